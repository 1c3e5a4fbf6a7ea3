"""Linear algebra for several instances in SIMD lanes: a number is a vector, so that loops need no care.

Tiles of sums stay in registers while their products are added (`tiles`). The functions are
`soctk.simd.algebra`'s, which documents them.
"""

from __future__ import annotations

from soctk.simd import choose, view
from soctk.simd.options import reordered
from soctk.simd.tiles import TARGETS, add_lane_pair, add_lane_row


@reordered
def add_rows(out, coefficients, count, matrix, first, stride):
    add_lane_row(out, 0, coefficients, count, out.size, matrix, first, stride)


@reordered
def add_block(out, stride, some, coefficients, count, size, matrix, first, step):
    """Add one or two combinations of `count` rows to as many rows of `out`."""
    if some == 2:
        add_lane_pair(out, stride, coefficients, count, size, matrix, first, step)
    else:
        add_rows(view(out, 0, size), coefficients, count, matrix, first, step)


@reordered
def add_gram_rows(out, stride, n, i, weights, rows, matrix, first, scratch):
    for start in range(i, min(i + TARGETS, n), 2):
        some = min(2, n - start)
        for t in range(some):
            for k in range(rows):
                scratch[t * rows + k] = weights[k] * view(matrix, first + k * n + start + t, 1)[0]
        target = view(out, start * stride + start, some * stride - start)
        add_block(target, stride, some, scratch, rows, n - start, matrix, first + start, n)


@reordered
def add_kept_rows(out, stride, n, i, coefficients, count, matrix, first):
    for row in range(i, min(i + TARGETS, n)):
        start = row // 4 * 4  # below the diagonal, where nothing is read, so that whole tiles remain
        at = first + row * n + start
        add_rows(view(out, row * stride + start, n - start), coefficients, count, matrix, at, n * n)


@reordered
def add_product(out, rows, n, mixing, at, inner, scales, matrix, first, scratch):
    for start in range(0, rows, 2):
        some = min(2, rows - start)
        for t in range(some):
            mixed = view(mixing, at + (start + t) * inner, inner)
            for m in range(inner):
                scratch[t * inner + m] = mixed[m] * scales[m]
        add_block(view(out, start * n, some * n), n, some, scratch, inner, n, matrix, first, n)


@reordered
def subtract_pairs_rows(out, stride, n, i, count, matrix, first, scratch):
    for start in range(i, min(i + TARGETS, n), 2):
        some = min(2, n - start)
        for t in range(some):
            for k in range(0, count, 2):
                at = first + k * n + start + t
                left, right = view(matrix, at, 1), view(matrix, at + n, 1)
                scratch[t * count + k], scratch[t * count + k + 1] = -right[0], -left[0]
        target = view(out, start * stride + start, some * stride - start)
        add_block(target, stride, some, scratch, count, n - start, matrix, first + start, n)


@reordered
def factor_upper(factor, n, width, scratch):
    definite = not (factor[0] <= 0)
    for start in range(0, n, 2):
        some, size = min(2, n - start), width - start
        rows = view(factor, start * width + start, some * width - start)
        for k in range(start):
            above = view(factor, k * width, width)
            for t in range(some):
                scratch[t * start + k] = -above[start + t] * above[k]
        add_block(rows, width, some, scratch, start, size, factor, start, width)
        for t in range(some):
            row = view(rows, t * width, size)
            if t == 1:
                above, weight = view(rows, 0, size), rows[1] * rows[0]
                for j in range(1, size):
                    row[j] -= weight * above[j]
            positive = not (row[t] <= 0)  # NaN is no reason to try again
            definite = definite & positive
            row[t] = 1 / choose(positive, row[t], 1.0)
    return definite


@reordered
def solve_upper(factor, n, width, first, second):
    for i in range(n - 1, -1, -1):
        row = view(factor, i * width, width)
        one, two = row[n], row[n + 1]
        for j in range(i + 1, n):
            one -= row[j] * first[j]
            two -= row[j] * second[j]
        first[i] = one * row[i]
        second[i] = two * row[i]
