"""Machine code in this process: made for this processor already, or made from LLVM's bitcode now.

A function takes the address of an array of words of eight bytes: the addresses of room for its answer and for an
error, then its arguments. A number is one word, an array seven or nine: two zeros, its numbers of entries and of bytes
of each, the address of the first, its shape, and its strides in bytes. Of a tuple there are its parts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

KNOWN = ("exp", "fma", "log", "log1p", "memcpy", "memmove", "memset", "sqrt")
"""Functions of the system's libraries that code may call."""


@dataclass(frozen=True, eq=False)
class MachineCode:
    """Functions for one kind of machine and system.

    Attributes:
        bitcode: a module of LLVM.
        object: the same as an object file for a processor with `features`.
        triple: the kind of machine and system, as LLVM calls it.
        features: what the processor must be able to do for `object`.
        llvmlite: the version that made it.
    """

    bitcode: bytes
    object: bytes
    triple: str
    features: list[str]
    llvmlite: str


class Functions:
    """Machine code that is loaded; kept for as long as one of its functions may be called.

    Raises:
        ValueError: it is for another kind of machine or system, or made by a version of llvmlite that is too new.
    """

    def __init__(self, code: MachineCode) -> None:
        machine = target_machine()
        if machine.triple != code.triple:
            raise ValueError(
                f"expected code for {machine.triple}, got code for {code.triple}; export it on such a machine"
            )
        for name in KNOWN:
            _provide(name)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        able = {name for name, has in llvm.get_host_cpu_features().items() if has}
        if able.issuperset(code.features):
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code.object))
        else:
            try:
                self._engine.add_module(llvm.parse_bitcode(code.bitcode))
            except RuntimeError as error:
                here, there = llvmlite.__version__, code.llvmlite
                raise ValueError(f"llvmlite {here} cannot read what {there} wrote ({error}); install {there}") from None
        self._engine.finalize_object()

    def get(self, name: str) -> Any:
        """Return a function that takes the address of its words."""
        address = self._engine.get_function_address(prefixed(name))
        return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)


class Call:
    """A function with its arguments, which may be changed in place.

    Args:
        functions: that it is one of; to be kept.
        name: of the function.
        arguments: arrays, row after row, numbers, and tuples of them.
    """

    def __init__(self, functions: Functions, name: str, arguments: list[Any]) -> None:
        self._name, self._function, self._arguments = name, functions.get(name), arguments
        self._answer = np.zeros(2, np.int64)
        words = [self._answer.ctypes.data, self._answer.ctypes.data + 8]
        for argument in arguments:
            words += _words(argument)
        self._words = np.array(words, np.int64)
        self._address = self._words.ctypes.data

    def __call__(self, last: int | None = None) -> int:
        """Call the function and return its answer, 0 for none; `last` is its last argument, where that changes.

        Raises:
            RuntimeError: it failed, which none should.
        """
        if last is not None:
            self._words[-1] = last
        if self._function(self._address) != 0:
            raise RuntimeError(f"the compiled function {self._name} failed; export the decision again, and report this")
        return int(self._answer[0])


def _words(argument: Any) -> Iterator[int]:
    if isinstance(argument, tuple):
        for part in argument:
            yield from _words(part)
    elif isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        yield from (0, 0, argument.size, argument.itemsize, argument.ctypes.data, *argument.shape, *argument.strides)
    elif isinstance(argument, float):
        yield int(np.float64(argument).view(np.int64))
    else:
        yield argument


def target_machine() -> llvm.TargetMachine:
    """Return what makes code for this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features, target = llvm.get_host_cpu_features().flatten(), llvm.Target.from_default_triple()
    # Addresses of eight bytes: where code lies too far from its constants for four, LLVM ends the process.
    options = {"opt": 3, "reloc": "static", "codemodel": "large"}
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, **options)


def prefixed(name: str) -> str:
    """Return what a function is called in machine code."""
    return f"soctk_{name}"


def _provide(name: str) -> None:
    """See to it that LLVM finds a function of the system's libraries: it ends the process where it does not."""
    if llvm.address_of_symbol(name) is None:
        function = getattr(ctypes.CDLL(None), name)
        llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
