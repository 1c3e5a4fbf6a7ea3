"""Plain functions in compiled code.

Numba compiles what is decorated. Code that is not to load Numba before it is used is written as plain functions and
made known here when it is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import CodeType, FunctionType
from typing import Any

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
        if isinstance(other, FunctionType):
            adopt(other)


def used_by(function: FunctionType) -> Iterator[Any]:
    """Yield the values of all names of a function that are not its own."""
    names = function.__code__.co_names
    yield from (function.__globals__[name] for name in sorted(names) if name in function.__globals__)
    yield from (cell.cell_contents for cell in function.__closure__ or ())


def digest(functions: Iterable[Any]) -> bytes:
    """Return a digest of everything that some functions are compiled from: code, constants, and functions called."""
    found, pending, seen = hashlib.sha256(), list(functions), set()
    while pending:
        value = pending.pop()
        function = getattr(value, "py_func", value)  # of what Numba has decorated
        if isinstance(function, FunctionType):
            if function not in seen:
                seen.add(function)
                found.update(_code(function.__code__))
                pending += used_by(function)
        elif isinstance(function, bytes):
            found.update(function)
        elif isinstance(function, (int, float, str, tuple)):
            found.update(repr(function).encode())
    return found.digest()


def _code(code: CodeType) -> bytes:
    """Return the instructions, names and constants of a function."""
    inner = (_code(part) if isinstance(part, CodeType) else repr(part).encode() for part in code.co_consts)
    return b"".join(chain([code.co_code, repr(code.co_names).encode()], inner))
