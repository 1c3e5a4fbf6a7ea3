"""The compiled method as machine code that neither Numba nor PyTorch is needed to run.

Numba's code for this processor is linked into one module, once as LLVM's bitcode, from which code for another processor
of the same kind can be made, and once as an object file for this one. What each function does is what it does here.

A function of Numba's takes the addresses of its answer and of an error, then its arguments, arrays by their members:
two addresses that own the memory, or none, the numbers of entries and of bytes of an entry, the address of the first,
the shape, and the strides in bytes. It returns 0. Beside each a function is added that takes all of this from one array
of words of eight bytes, `soctk.runtime.code` says how.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import __version__ as llvmlite_version
from numba import typeof

from soctk.decide.compiled.coefficients import assemble
from soctk.decide.compiled.first_use import Kinds, method_for, of_iterations, of_proofs
from soctk.decide.compiled.free_rows import of_reductions, reduce
from soctk.decide.compiled.substitution import substitute
from soctk.runtime.code import KNOWN, MachineCode, prefixed, target_machine

ASSEMBLE = (
    *("rows", "weights", "ridges", "outer_ridges", "index", "columns"),
    *("gain", "bias", "shift", "data"),
)
"""The arguments of `assemble`."""
FUNCTIONS = ("assemble", "reduce", "substitute", "advance", "prove")
WORDS = ("ptr", "i64", "double")
"""Types of LLVM that have eight bytes."""


@cache
def machine_code(kinds: Kinds) -> MachineCode:
    """Return `FUNCTIONS` for forms of some kinds of terms.

    Raises:
        NotImplementedError: the code calls functions that Numba brings, such as those of Intel's SVML.
    """
    method = method_for(kinds)
    method.ready(several=False, wait=True)
    matrix, numbers, places = np.zeros((1, 1)), np.zeros(1), np.zeros(1, dtype=np.int64)
    of_assemble = *(matrix,) * 4, places, places, numbers, numbers, numbers, matrix
    of_substitute = matrix, 1, *(matrix,) * 4
    module = llvm.parse_assembly("")
    module.triple = target_machine().triple
    _add(module, "assemble", assemble, of_assemble)
    _add(module, "reduce", reduce(), of_reductions())
    _add(module, "substitute", substitute, of_substitute)
    _add(module, "advance", method.function, of_iterations(several=False))
    _add(module, "prove", method.prove, of_proofs())
    _drop_unused(module)
    called = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    unknown = sorted({*called} - {*KNOWN})
    if unknown:
        raise NotImplementedError(
            f"the compiled method calls {', '.join(unknown)}, which only Numba has at hand; with "
            "NUMBA_DISABLE_INTEL_SVML=1 in the environment and an empty cache of Numba's it does not"
        )
    machine, features = target_machine(), llvm.get_host_cpu_features()
    return MachineCode(
        bitcode=module.as_bitcode(),
        object=machine.emit_object(module),
        triple=machine.triple,
        features=sorted(name for name, has in features.items() if has),
        llvmlite=llvmlite_version,
    )


def _add(module: llvm.ModuleRef, name: str, function: Any, example: tuple[Any, ...]) -> None:
    """Add a compiled function, and the function that takes its arguments from an array of words."""
    kinds = tuple(map(typeof, example))
    if kinds not in function.overloads:
        function.compile(kinds)
    compiled = function.overloads[kinds]
    inner, part = compiled.fndesc.llvm_func_name, compiled.library._get_module_for_linking().clone()
    part.get_function(inner).linkage = "external"  # what is defined more than once is linked only where it is called
    words = [str(argument.type) for argument in part.get_function(inner).arguments]
    module.link_in(part)
    assert {*words} <= {*WORDS}, words
    lines = [f"  %p{k} = getelementptr i64, ptr %words, i64 {k}" for k in range(len(words))]
    lines += [f"  %w{k} = load {kind}, ptr %p{k}" for k, kind in enumerate(words)]
    given = ", ".join(f"{kind} %w{k}" for k, kind in enumerate(words))
    outer = llvm.parse_assembly(
        f'declare i32 @"{inner}"({", ".join(words)})\n'
        f"define i32 @{prefixed(name)}(ptr %words) {{\n" + "\n".join(lines) + "\n"
        f'  %answer = call i32 @"{inner}"({given})\n  ret i32 %answer\n}}'
    )
    module.link_in(outer)


def _drop_unused(module: llvm.ModuleRef) -> None:
    """Leave the functions that are called from outside, and what they call."""
    kept = {prefixed(name) for name in FUNCTIONS}
    for function in module.functions:
        if not function.is_declaration and function.name not in kept:
            function.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, llvm.create_pass_builder(target_machine(), llvm.create_pipeline_tuning_options()))
