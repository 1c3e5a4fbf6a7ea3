"""Plain functions in compiled code.

Numba compiles what is decorated. Code that is not to load Numba before it is used is written as plain functions and
made known here when it is needed.
"""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Callable, Iterable, Iterator
from enum import EnumType
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba import types
from numba.core.typing import templates

from soctk.simd.options import compiled

register: Any = templates.infer_global
_known: dict[Any, Any] = {}
"""What Numba has made of plain functions; it keeps weak references alone."""


def implements(word: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a decorator of what would be an `intrinsic`, which makes it the compiled form of a plain function."""

    def bind(definition: Any) -> Any:
        template = templates.make_intrinsic_template(word, definition, definition.__name__)
        templates.infer(template)
        register(word, types.Function(template))
        _known[word] = definition
        return definition

    return bind


def stands_for(word: Callable[..., Any], dispatcher: Any) -> None:
    """Make what Numba has decorated the compiled form of a plain function; None where Numba knows it by itself."""
    _known[word] = dispatcher
    if dispatcher is not None:
        register(word, types.Dispatcher(dispatcher))


def adopt(function: FunctionType, decorate: Callable[[Any], Any] = compiled) -> None:
    """Make a plain function, and those that it calls, known to compiled code; `decorate` says how it is compiled."""
    if function in _known:
        return
    stands_for(function, decorate(function))
    for other in used_by(function):
        if isinstance(other, FunctionType) and not _known_by_name(other):
            adopt(other)


def used_by(function: FunctionType) -> Iterator[Any]:
    """Yield the values of all names of a function that are not its own, what it takes from modules among them."""
    codes = list(_codes(function.__code__))
    wanted = sorted({name for code in codes for name in _globals(code)})
    names = sorted({name for code in codes for name in code.co_names})
    pending = [function.__globals__[name] for name in wanted if name in function.__globals__]
    pending += [cell.cell_contents for cell in function.__closure__ or ()]
    seen = set[str]()
    while pending:
        value = pending.pop()
        if not isinstance(value, ModuleType):
            yield value
        elif value.__name__ not in seen:
            seen.add(value.__name__)
            pending += [getattr(value, name) for name in names if hasattr(value, name)]


def digest(functions: Iterable[Any]) -> bytes:
    """Return a digest of everything that some functions are compiled from: code, constants, and functions called.

    Numba takes the values of names outside of a function for constants when it compiles it, and does not look at them
    again when it loads what it has kept.
    """
    found, pending, seen = hashlib.sha256(), list(functions), set()
    while pending:
        value = pending.pop()
        value = getattr(value, "py_func", value)  # of what Numba has decorated
        if isinstance(value, FunctionType) and not _known_by_name(value):
            if value not in seen:
                seen.add(value)
                found.update(b"".join(map(_contents, _codes(value.__code__))))
                pending += [value.__defaults__, *used_by(value)]
        elif isinstance(value, tuple):
            found.update(repr((type(value).__name__, len(value))).encode())
            pending += value
        elif isinstance(value, np.ndarray):
            found.update(repr((value.dtype.str, value.shape, value.tolist())).encode())
        elif isinstance(value, bytes):
            found.update(value)
        elif isinstance(value, EnumType):
            found.update(repr([(one.name, one.value) for one in value]).encode())
        elif callable(value):
            found.update(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}".encode())
        else:
            found.update(repr((type(value).__qualname__, value)).encode())
    return found.digest()


def _known_by_name(function: FunctionType) -> bool:
    """Return whether Numba does not compile a function but has one of its own in its place, as of NumPy's."""
    return (function.__module__ or "").partition(".")[0] in ("numpy", "math", "numba", "builtins")


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of those within it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


def _globals(code: CodeType) -> Iterator[str]:
    """Yield the names that are looked up outside of a function, those of attributes not among them."""
    return (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")


def _contents(code: CodeType) -> bytes:
    """Return the instructions, names and constants of a function, without those of functions within it."""
    constants = (repr(part).encode() for part in code.co_consts if not isinstance(part, CodeType))
    return b"".join([code.co_code, repr(code.co_names).encode(), *constants])
