"""Combinations of rows in vector registers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numba.extending
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import make_array

from soctk.simd.lanes import FUSED, VECTOR, WIDE, lanes, spread

intrinsic: Any = numba.extending.intrinsic
TARGETS = 4
"""Rows that `add_tiles` adds to at a time."""


def _place(builder, data, position, numbers):
    """Return the address of a few numbers as that of a register, or of one that is a register already."""
    place = builder.gep(data, [position])
    if data.type.pointee == VECTOR:
        return place
    return builder.bitcast(place, ir.VectorType(ir.DoubleType(), numbers).as_pointer())


def _by_widths(context, builder, size, widths, add):
    """Call add(numbers, j) for j = 0, ..., size - 1, by as many numbers at a time as there still are."""
    start = context.get_constant(types.intp, 0)
    for numbers in (*widths, 1):
        step = context.get_constant(types.intp, numbers)
        stop = builder.sub(size, builder.urem(builder.sub(size, start), step))
        with cgutils.for_range_slice(builder, start, stop, step, step.type) as (j, _):
            add(numbers, j)
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

        def add(numbers, j):
            target = _place(builder, out, j, numbers)
            # Two sums, so that no product waits for all others.
            sums = [builder.load(target, align=8), ir.Constant(target.type.pointee, [0.0] * numbers)]
            for k in range(rows):
                row = builder.load(_place(builder, matrix, builder.add(starts[k], j), numbers), align=8)
                product = builder.fmul(row, spread(builder, weights[k], row.type), flags=FUSED)
                sums[k % 2] = builder.fadd(sums[k % 2], product, flags=FUSED)
            builder.store(builder.fadd(*sums, flags=FUSED), target, align=8)

        _by_widths(context, builder, size, (8, 4), add)
        return context.get_dummy_value()

    @intrinsic
    def combine(typing_context, out, coefficients, size, matrix, at, stride):
        return types.void(out, coefficients, types.intp, matrix, types.intp, types.intp), generate

    return combine


add_one, add_two, add_four, add_eight = (_rows_at_once(rows) for rows in (1, 2, 4, 8))


def _tiles(targets: int, widths: tuple[int, ...]):
    """Return a function that adds sum_k C_tk M_k to each target t < `targets`.

    Sums stay in registers over all rows, as in a matrix product. Target t is the `size` numbers of `out` from t width
    on, C (targets, count), M_k those of `matrix` from at + k stride on. `widths`: how many numbers of a row are taken
    at a time. Numbers of `out` and `coefficients` may be lanes, each a register; those of `matrix` then too, or not.
    """
    integer = types.intp

    def generate(context, builder, signature, arguments):
        out, coefficients, matrix = (
            make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 2, 5)
        )
        _, width, _, count, size, _, at, stride = arguments
        constant = partial(context.get_constant, integer)
        several = signature.args[0].dtype == lanes

        def load(data, position, numbers, kind):
            if data.type.pointee == VECTOR or not several:
                return builder.load(_place(builder, data, position, numbers), align=8)
            return spread(builder, builder.load(builder.gep(data, [position])), kind)

        def add(numbers, j):
            each = 1 if several else min(numbers, 4)
            kind = VECTOR if several else ir.VectorType(ir.DoubleType(), each)
            parts = range(0, numbers, each)
            sums = {(t, part): cgutils.alloca_once(builder, kind) for t in range(targets) for part in parts}
            places = {}
            for t, part in sums:
                position = builder.add(builder.add(j, constant(part)), builder.mul(constant(t), width))
                places[t, part] = _place(builder, out, position, each)
            for key, place in places.items():
                builder.store(builder.load(place, align=8), sums[key])
            with cgutils.for_range(builder, count, intp=count.type) as loop:
                start = builder.add(builder.add(at, j), builder.mul(loop.index, stride))
                rows = {part: load(matrix, builder.add(start, constant(part)), each, kind) for part in parts}
                for t in range(targets):
                    place = builder.gep(coefficients, [builder.add(builder.mul(constant(t), count), loop.index)])
                    weight = builder.load(place, align=8)
                    weight = weight if several else spread(builder, weight, kind)
                    for part in parts:
                        product = builder.fmul(rows[part], weight, flags=FUSED)
                        total = builder.fadd(builder.load(sums[t, part]), product, flags=FUSED)
                        builder.store(total, sums[t, part])
            for key, place in places.items():
                builder.store(builder.load(sums[key]), place, align=8)

        _by_widths(context, builder, size, widths, add)
        return context.get_dummy_value()

    @intrinsic
    def combine(typing_context, out, width, coefficients, count, size, matrix, at, stride):
        return types.void(out, integer, coefficients, integer, integer, matrix, integer, integer), generate

    return combine


add_tiles = _tiles(TARGETS, (12, 4))
# as many sums as there are registers for, two to a number
add_lane_row = _tiles(1, (6, 4, 2))
add_lane_pair = _tiles(2, (4, 2) if WIDE else (2,))
