"""Dense linear algebra in compiled loops, all of it made of one operation: adding a combination of rows.

Systems here are small, 5 to 100 variables: a call of BLAS would cost as much as its arithmetic, and rows added eight
at a time run from the first-level cache at the speed of a matrix product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from soctk.decide.compiled.lanes import TARGETS, add_eight, add_four, add_one, add_tiles, add_two, view

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


@reordered
def add_rows(out, coefficients, count, matrix, first, stride):
    """Add sum_k c_k r_k to `out` over k < count, r_k the numbers of `matrix` from first + k stride on."""
    size, done = out.size, count - count % 8
    for k in range(0, done, 8):
        add_eight(out, view(coefficients, k, 8), size, matrix, first + k * stride, stride)
    if count - done >= 4:
        add_four(out, view(coefficients, done, 4), size, matrix, first + done * stride, stride)
        done += 4
    if count - done >= 2:
        add_two(out, view(coefficients, done, 2), size, matrix, first + done * stride, stride)
        done += 2
    if count > done:
        add_one(out, view(coefficients, done, 1), size, matrix, first + done * stride, stride)


@reordered
def whole_lanes(i, n):
    """Return where to start in row i of an upper triangle: at or before the diagonal, so that whole vectors remain.

    What that writes below the diagonal is never read.
    """
    start = n - (n - i + 7) // 8 * 8
    return start if start >= 0 else i


@reordered
def add_block(out, n, some, coefficients, count, size, matrix, first):
    """Add combinations of `count` rows, n apart, to `some` rows of `out`, of which `size` numbers are of interest."""
    if some == TARGETS:
        add_tiles(out, n, coefficients, count, size, matrix, first, n)
    else:
        for t in range(some):
            add_rows(view(out, t * n, size), view(coefficients, t * count, count), count, matrix, first, n)


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
        add_block(
            view(total, i * n + start, some * n - start), n, some, scratch, rows, n - start, matrix, first + start
        )


@reordered
def subtract_pairs(total, n, count, matrix, first, scratch):
    """Subtract the upper triangle of the sum of l r' + r l' from `total` (n, n).

    l and r are neighbouring rows of n numbers, `count` in all, of `matrix` from `first` on.
    """
    for i in range(0, n, TARGETS):
        some = min(TARGETS, n - i)
        for k in range(0, count, 2):
            left, right = view(matrix, first + k * n + i, some), view(matrix, first + (k + 1) * n + i, some)
            for t in range(some):
                scratch[t * count + k], scratch[t * count + k + 1] = -right[t], -left[t]
        start = whole_lanes(i, n)
        add_block(
            view(total, i * n + start, some * n - start), n, some, scratch, count, n - start, matrix, first + start
        )


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
