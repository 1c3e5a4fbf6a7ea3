"""Combinations of rows in vector registers, for one instance at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

import numba.extending
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import make_array

from soctk.decide.compiled.lanes import FUSED, spread

intrinsic: Any = numba.extending.intrinsic
TARGETS = 4
"""Rows that `add_tiles` adds to at a time."""


def _place(builder, data, position, lanes):
    """Return the address of `lanes` numbers."""
    return builder.bitcast(builder.gep(data, [position]), ir.VectorType(ir.DoubleType(), lanes).as_pointer())


def _by_lanes(context, builder, size, widths, add):
    """Call add(lanes, j) for j = 0, ..., size - 1, by as many lanes at a time as there still are."""
    start = context.get_constant(types.intp, 0)
    for lanes in (*widths, 1):
        step = context.get_constant(types.intp, lanes)
        stop = builder.sub(size, builder.urem(builder.sub(size, start), step))
        with cgutils.for_range_slice(builder, start, stop, step, step.type) as (j, _):
            add(lanes, j)
        start = stop


def _rows_at_once(rows: int):
    """Return a function that adds a combination of `rows` rows to a vector, in vector registers.

    Left to itself the compiler would vectorise long loops only, and check at run time that nothing overlaps.
    """

    def generate(context, builder, signature, arguments):
        out, coefficients, matrix = (
            make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 1, 3)
        )
        _, _, size, _, at, stride = arguments
        index = [context.get_constant(types.intp, k) for k in range(rows)]
        weights = [builder.load(builder.gep(coefficients, [k])) for k in index]
        starts = [builder.add(at, builder.mul(k, stride)) for k in index]

        def add(lanes, j):
            target = _place(builder, out, j, lanes)
            # Two sums, so that no product waits for all others.
            sums = [builder.load(target, align=8), ir.Constant(target.type.pointee, [0.0] * lanes)]
            for k in range(rows):
                row = builder.load(_place(builder, matrix, builder.add(starts[k], j), lanes), align=8)
                product = builder.fmul(row, spread(builder, weights[k], row.type), flags=FUSED)
                sums[k % 2] = builder.fadd(sums[k % 2], product, flags=FUSED)
            builder.store(builder.fadd(*sums, flags=FUSED), target, align=8)

        _by_lanes(context, builder, size, (8, 4), add)
        return context.get_dummy_value()

    @intrinsic
    def combine(typing_context, out, coefficients, size, matrix, at, stride):
        return types.void(out, coefficients, types.intp, matrix, types.intp, types.intp), generate

    return combine


add_one, add_two, add_four, add_eight = (_rows_at_once(rows) for rows in (1, 2, 4, 8))


@intrinsic
def add_tiles(typing_context, out, width, coefficients, count, size, matrix, at, stride):
    """Add sum_k C_tk M_k to four targets t: sums stay in registers over all rows, as in a matrix product.

    Target t is the `size` numbers of `out` from t width on, C (4, count), M_k those of `matrix` from at + k stride on.
    """
    integer = types.intp

    def generate(context, builder, signature, arguments):
        out, coefficients, matrix = (
            make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 2, 5)
        )
        _, width, _, count, size, _, at, stride = arguments
        constant = partial(context.get_constant, integer)

        def add(lanes, j):
            each, parts = min(lanes, 4), range(0, lanes, 4)
            sums = {
                (t, part): cgutils.alloca_once(builder, ir.VectorType(ir.DoubleType(), each))
                for t in range(TARGETS)
                for part in parts
            }
            places = {}
            for t, part in sums:
                position = builder.add(builder.add(j, constant(part)), builder.mul(constant(t), width))
                places[t, part] = _place(builder, out, position, each)
            for key, place in places.items():
                builder.store(builder.load(place, align=8), sums[key])
            with cgutils.for_range(builder, count, intp=count.type) as loop:
                start = builder.add(builder.add(at, j), builder.mul(loop.index, stride))
                rows = {}
                for part in parts:
                    place = _place(builder, matrix, builder.add(start, constant(part)), each)
                    rows[part] = builder.load(place, align=8)
                for t in range(TARGETS):
                    position = builder.add(builder.mul(constant(t), count), loop.index)
                    weight = spread(builder, builder.load(builder.gep(coefficients, [position])), rows[0].type)
                    for part in parts:
                        product = builder.fmul(rows[part], weight, flags=FUSED)
                        total = builder.fadd(builder.load(sums[t, part]), product, flags=FUSED)
                        builder.store(total, sums[t, part])
            for key, place in places.items():
                builder.store(builder.load(sums[key]), place, align=8)

        _by_lanes(context, builder, size, (12, 4), add)
        return context.get_dummy_value()

    return types.void(out, integer, coefficients, integer, integer, matrix, integer, integer), generate
