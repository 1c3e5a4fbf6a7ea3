"""Dense linear algebra in compiled loops, all of it made of one operation: adding a combination of rows.

Systems here are small, 5 to 100 variables: a call of BLAS would cost as much as its arithmetic, and rows added eight
at a time run from the first-level cache at the speed of a matrix product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

FUSED = ("contract",)
TARGETS = 4
# A name for each level of strictness. Only `iteration.advance_all` is called from Python, and its cache holds the
# others; wrappers and caches of their own would double the time to compile them.
OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
compiled = njit(**OPTIONS)
"""Strict floating-point arithmetic: what certificates are made of."""
inlined = njit(**OPTIONS, inline="always")
"""The same, compiled as part of what calls it."""
reordered = njit(**OPTIONS, fastmath={"contract", "reassoc"})
"""Sums may be reordered and products fused, as in any BLAS; NaN and infinities mean what they always do."""


@intrinsic
def view(typing_context, array, start, size):  # pyright: ignore[reportUnusedParameter]
    """Return array[start : start + size] of a vector, unchecked and not counted as a reference.

    NumPy's own slices are checked and counted, which takes longer than what is done with ten numbers.
    """
    kind = types.Array(array.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        source = make_array(signature.args[0])(context, builder, arguments[0])
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype)))
        result = make_array(kind)(context, builder)
        populate_array(
            result,
            data=builder.gep(source.data, [arguments[1]]),
            shape=cgutils.pack_array(builder, [arguments[2]]),
            strides=cgutils.pack_array(builder, [itemsize]),
            itemsize=itemsize,
            meminfo=None,
        )
        return result._getvalue()

    return kind(array, types.intp, types.intp), generate


def _spread(builder, number, lanes):
    """Return a vector of `lanes` times the same number."""
    kind = ir.VectorType(ir.DoubleType(), lanes)
    empty, zeros = ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(builder.insert_element(empty, number, ir.IntType(32)(0)), empty, zeros)


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
                product = builder.fmul(row, _spread(builder, weights[k], lanes), flags=FUSED)
                sums[k % 2] = builder.fadd(sums[k % 2], product, flags=FUSED)
            builder.store(builder.fadd(*sums, flags=FUSED), target, align=8)

        _by_lanes(context, builder, size, (8, 4), add)
        return context.get_dummy_value()

    @intrinsic
    def combine(typing_context, out, coefficients, size, matrix, at, stride):  # pyright: ignore
        return types.void(out, coefficients, types.intp, matrix, types.intp, types.intp), generate

    return combine


add_one, add_eight = _rows_at_once(1), _rows_at_once(8)


@intrinsic
def add_tiles(typing_context, out, width, coefficients, count, size, matrix, at, stride):  # pyright: ignore
    """Add sum_k C_tk M_k to four targets t: sums stay in registers over all rows, as in a matrix product.

    Target t is the `size` numbers of `out` from t width on, C (4, count), M_k the numbers of `matrix` from at + k stride.
    """
    integer = types.intp

    def generate(context, builder, signature, arguments):
        out, coefficients, matrix = (
            make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 2, 5)
        )
        _, width, _, count, size, _, at, stride = arguments
        four = [context.get_constant(integer, t) for t in range(TARGETS)]

        def add(lanes, j):
            kind, parts = ir.VectorType(ir.DoubleType(), min(lanes, 4)), range(0, lanes, 4)
            sums = {(t, part): cgutils.alloca_once(builder, kind) for t in range(TARGETS) for part in parts}
            places = {
                (t, part): _place(
                    builder,
                    out,
                    builder.add(builder.add(j, integer_of(part)), builder.mul(four[t], width)),
                    min(lanes, 4),
                )
                for t, part in sums
            }
            for key, place in places.items():
                builder.store(builder.load(place, align=8), sums[key])
            with cgutils.for_range(builder, count, intp=count.type) as loop:
                start = builder.add(builder.add(at, j), builder.mul(loop.index, stride))
                rows = {
                    part: builder.load(
                        _place(builder, matrix, builder.add(start, integer_of(part)), min(lanes, 4)), align=8
                    )
                    for part in parts
                }
                for t in range(TARGETS):
                    position = builder.add(builder.mul(four[t], count), loop.index)
                    weight = _spread(builder, builder.load(builder.gep(coefficients, [position])), min(lanes, 4))
                    for part in parts:
                        product = builder.fmul(rows[part], weight, flags=FUSED)
                        total = builder.fadd(builder.load(sums[t, part]), product, flags=FUSED)
                        builder.store(total, sums[t, part])
            for key, place in places.items():
                builder.store(builder.load(sums[key]), place, align=8)

        def integer_of(number):
            return context.get_constant(integer, number)

        _by_lanes(context, builder, size, (12, 4), add)
        return context.get_dummy_value()

    return types.void(out, integer, coefficients, integer, integer, matrix, integer, integer), generate


@reordered
def add_rows(out, coefficients, count, matrix, first, stride):
    """Add sum_k c_k r_k to `out` over k < count, r_k the numbers of `matrix` from first + k stride on."""
    for k in range(0, count - 7, 8):
        add_eight(out, view(coefficients, k, 8), out.size, matrix, first + k * stride, stride)
    for k in range(count - count % 8, count):
        add_one(out, view(coefficients, k, 1), out.size, matrix, first + k * stride, stride)


@reordered
def whole_lanes(i, n):
    """Return where to start in row i of an upper triangle: at or before the diagonal, so that whole vectors remain.

    What that writes below the diagonal is never read.
    """
    start = n - (n - i + 7) // 8 * 8
    return start if start >= 0 else i


@reordered
def add_gram(total, n, weights, rows, matrix, first, scratch):
    """Add the upper triangle of M' diag(w) M to `total` (n, n), M (rows, n) the numbers of `matrix` from `first` on."""
    for i in range(0, n, TARGETS):
        some = min(TARGETS, n - i)
        for k in range(rows):
            row = view(matrix, first + k * n + i, some)
            for t in range(some):
                scratch[t * rows + k] = weights[k] * row[t]
        start = whole_lanes(i, n)
        out = view(total, i * n + start, some * n - start)
        if some == TARGETS:
            add_tiles(out, n, scratch, rows, n - start, matrix, first + start, n)
        else:
            for t in range(some):
                add_rows(view(out, t * n, n - start), view(scratch, t * rows, rows), rows, matrix, first + start, n)


@reordered
def subtract_pair(total, n, both, pair):
    """Subtract the upper triangle of left right' + right left' from `total` (n, n), `both` left and then right."""
    left, right = view(both, 0, n), view(both, n, n)
    for i in range(n):
        start = whole_lanes(i, n)
        row = view(total, i * n + start, n - start)
        pair[0], pair[1] = -right[i], -left[i]
        add_rows(row, pair, 2, both, start, n)


@reordered
def factor_upper(factor, n, width, scratch):
    """Overwrite [H R], (n, width), by [U U^-T R] with U'U = H upper triangular; return whether H is positive definite.

    The diagonal of U is replaced by its reciprocals.
    """
    for block in range(0, n, TARGETS):
        start, some = whole_lanes(block, width), min(TARGETS, n - block)
        size = width - start
        out = view(factor, block * width + start, some * width - start)
        if some == TARGETS and block > 0:
            for k in range(block):
                column = view(factor, k * width + block, TARGETS)
                for t in range(TARGETS):
                    scratch[t * block + k] = -column[t]
            add_tiles(out, width, scratch, block, size, factor, start, width)
        for i in range(block, block + some):
            row = view(out, (i - block) * width, size)
            done = block if some == TARGETS else 0
            for k in range(done, i):
                scratch[k - done] = -factor[k * width + i]
            add_rows(row, scratch, i - done, factor, done * width + start, width)
            pivot = row[i - start]
            if not pivot > 0:
                return False
            scale = 1 / np.sqrt(pivot)
            for j in range(i - start, size):
                row[j] *= scale
            row[i - start] = scale
    return True


@reordered
def solve_upper(factor, n, width, first, second):
    """Fill the solutions of U y = r, r the last two columns of what `factor_upper` made."""
    for i in range(n - 1, -1, -1):
        row, one, two = view(factor, i * width, width), 0.0, 0.0
        for j in range(i + 1, n):
            one += row[j] * first[j]
            two += row[j] * second[j]
        first[i] = (row[n] - one) * row[i]
        second[i] = (row[n + 1] - two) * row[i]


@reordered
def dot(left, right):
    """Return left'right."""
    total = 0.0
    for j in range(left.size):
        total += left[j] * right[j]
    return total
