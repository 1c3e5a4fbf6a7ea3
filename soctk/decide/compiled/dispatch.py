"""From a term of a form to the functions of its kernel: a switch over the kinds that the code is compiled for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numba.extending
from llvmlite import ir
from numba import types
from numba.core import cgutils

import soctk.decide.rules
import soctk.simd
import soctk.terms
from soctk.decide.compiled.arrays import ARRAYS, TERM_SIZES, term_table
from soctk.simd.functions import adopt, digest
from soctk.simd.records import RecordType, load_integer, make_record, pointer_to
from soctk.terms import Term
from soctk.terms.kernel import Kernel, Packs

intrinsic: Any = numba.extending.intrinsic
Kinds = tuple[type[Term], ...]
_KINDS: dict[int, Kinds] = {}


def key_of(kinds: Kinds) -> int:
    """Return a number that stands for some kinds of terms in compiled code: a digest of all that it is made from."""
    functions = [function for kind in kinds for function in _functions(kind)]
    for function in functions:
        adopt(function)
    folders = Path(__file__).parent, *map(Path, (*soctk.simd.__path__, *soctk.terms.__path__))
    sources = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    contents = [file.read_bytes() for file in (*sources, Path(soctk.decide.rules.__file__))]
    names = [repr((kind.__module__, kind.__qualname__, kind.packs)).encode() for kind in kinds]
    key = int.from_bytes(digest([*functions, *contents, *names])[:6], "big")
    _KINDS[key] = kinds
    return key


def _functions(kind: type[Term]) -> list[Any]:
    functions = (getattr(kind.kernel, field.name) for field in dataclasses.fields(Kernel))
    return [function for function in functions if function is not None]


@intrinsic(prefer_literal=True)
def problem_of(typing_context, key, layout, shared, common, sides, data):
    """Return the record of a problem whose terms are of the kinds that `key` stands for."""
    numbers = {"shared": shared.dtype, "common": common.dtype, "sides": sides.dtype, "data": data.dtype}
    kind = RecordType(ARRAYS, numbers, key.literal_value)

    def generate(context, builder, sig, args):
        layout, *vectors = (pointer_to(context, builder, *pair) for pair in zip(sig.args[1:], args[1:], strict=True))
        return make_record(context, builder, kind, layout, **dict(zip(numbers, vectors, strict=True)))

    return kind(key, layout, shared, common, sides, data), generate


def _row(builder, problem, index):
    """Return where the table's row of a term begins."""
    stride = load_integer(builder, problem.layout, ARRAYS.places["term_stride"])
    return builder.gep(problem.layout, [builder.add(cgutils.intp_t(ARRAYS.length), builder.mul(index, stride))])


@intrinsic
def term_of(typing_context, problem, index):
    """Return the sizes of a term, whatever its kind."""
    kind = RecordType(term_table(Packs((), (), (), ())), {})

    def generate(context, builder, sig, args):
        struct = cgutils.create_struct_proxy(problem)(context, builder, args[0])
        return make_record(context, builder, kind, _row(builder, struct, args[1]))

    return kind(problem, types.intp), generate


def operation(name: str) -> Any:
    """Return a function (problem, index, cache, u, lag, arguments) that calls one of the functions of a term's kernel.

    Where the kernel has no such function it returns 0 or nothing.

    Args of the function:
        problem, index: of the term.
        cache: what a pass leaves, (6 K).
        u, lag: of all terms, (K,), or None where the kernel has no use for them.
        arguments: a tuple of what the kernel's function takes after t.
    """

    @intrinsic
    def call(typing_context, problem, index, cache, u, lag, arguments):
        number, cases = problem.numbers["data"], []
        for place, kind in enumerate(_KINDS[problem.more]):
            function = getattr(kind.kernel, name)
            if function is not None:
                view = RecordType(term_table(kind.packs), _numbers(problem, cache, u, lag))
                known = typing_context.resolve_value_type(function)
                sig = typing_context.resolve_function_type(known, (view, *arguments), {})
                cases.append((place, view, known, sig))
        found = cases[0][-1].return_type
        result = number if isinstance(found, (types.Number, type(number))) else found

        def generate(context, builder, sig, args):
            struct = cgutils.create_struct_proxy(problem)(context, builder, args[0])
            row = _row(builder, struct, args[1])
            pointers = {"shared": struct.shared, "data": struct.data, "counts": row}
            for vector, kind, array in zip(("cache", "u", "lag"), sig.args[2:5], args[2:5], strict=True):
                if isinstance(kind, types.Array):
                    pointers[vector] = pointer_to(context, builder, kind, array)
            more = cgutils.unpack_tuple(builder, args[5])
            answer = cgutils.alloca_once(builder, context.get_value_type(result), zfill=True)
            after = builder.append_basic_block("after")
            switch = builder.switch(load_integer(builder, row, TERM_SIZES.index("kind")), after)
            for place, view, known, each in cases:
                with builder.goto_block(builder.append_basic_block("kind")):
                    switch.add_case(ir.Constant(cgutils.intp_t, place), builder.block)
                    given = {vector: pointers[vector] for vector in view.numbers}
                    t = make_record(context, builder, view, row, **given)
                    value = context.get_function(known, each)(builder, [t, *more])
                    builder.store(context.cast(builder, value, each.return_type, result), answer)
                    builder.branch(after)
            builder.position_at_end(after)
            return builder.load(answer)

        return result(problem, types.intp, cache, u, lag, arguments), generate

    return call


def _numbers(problem, cache, u, lag):
    """Return the types of the numbers in the vectors that a kernel's view has."""
    numbers = {"shared": problem.numbers["shared"], "data": problem.numbers["data"], "counts": types.intp}
    given = {"cache": cache, "u": u, "lag": lag}
    return numbers | {vector: array.dtype for vector, array in given.items() if isinstance(array, types.Array)}
