"""Linear algebra for one instance: rows are added eight at a time, from the first-level cache, as in a matrix product.

The functions are `soctk.simd.algebra`'s, which documents them.
"""

from __future__ import annotations

from soctk.simd import view
from soctk.simd.options import reordered
from soctk.simd.tiles import TARGETS, add_eight, add_four, add_one, add_tiles, add_two


@reordered
def add_rows(out, coefficients, count, matrix, first, stride):
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
def add_block(out, stride, some, coefficients, count, size, matrix, first, step):
    """Add combinations of `count` rows, `step` apart, to `some` rows of `out`, of which `size` numbers matter."""
    if some == TARGETS:
        add_tiles(out, stride, coefficients, count, size, matrix, first, step)
    else:
        for t in range(some):
            add_rows(view(out, t * stride, size), view(coefficients, t * count, count), count, matrix, first, step)


@reordered
def add_gram_rows(out, stride, n, i, weights, rows, matrix, first, scratch):
    some, start = min(TARGETS, n - i), whole_lanes(i, n)
    for k in range(rows):
        row = view(matrix, first + k * n + i, some)
        for t in range(some):
            scratch[t * rows + k] = weights[k] * row[t]
    target = view(out, i * stride + start, some * stride - start)
    add_block(target, stride, some, scratch, rows, n - start, matrix, first + start, n)


@reordered
def add_kept_rows(out, stride, n, i, coefficients, count, matrix, first):
    for row in range(i, min(i + TARGETS, n)):
        start = whole_lanes(row, n)
        at = first + row * n + start
        add_rows(view(out, row * stride + start, n - start), coefficients, count, matrix, at, n * n)


@reordered
def add_product(out, rows, n, mixing, at, inner, scales, matrix, first, scratch):
    for k in range(rows):
        mixed = view(mixing, at + k * inner, inner)
        for m in range(inner):
            scratch[k % TARGETS * inner + m] = mixed[m] * scales[m]
        if k % TARGETS == TARGETS - 1:
            add_tiles(view(out, (k + 1 - TARGETS) * n, TARGETS * n), n, scratch, inner, n, matrix, first, n)
        elif k >= rows - rows % TARGETS:
            add_rows(view(out, k * n, n), view(scratch, k % TARGETS * inner, inner), inner, matrix, first, n)


@reordered
def subtract_pairs_rows(out, stride, n, i, count, matrix, first, scratch):
    some, start = min(TARGETS, n - i), whole_lanes(i, n)
    for k in range(0, count, 2):
        left, right = view(matrix, first + k * n + i, some), view(matrix, first + (k + 1) * n + i, some)
        for t in range(some):
            scratch[t * count + k], scratch[t * count + k + 1] = -right[t], -left[t]
    target = view(out, i * stride + start, some * stride - start)
    add_block(target, stride, some, scratch, count, n - start, matrix, first + start, n)


@reordered
def factor_upper(factor, n, width, scratch):
    for block in range(0, n, TARGETS):
        start, some = whole_lanes(block, width), min(TARGETS, n - block)
        size = width - start
        out = view(factor, block * width + start, some * width - start)
        if some == TARGETS and block > 0:
            for k in range(block):
                column, inverse = view(factor, k * width + block, TARGETS), factor[k * width + k]
                for t in range(TARGETS):
                    scratch[t * block + k] = -column[t] * inverse
            add_tiles(out, width, scratch, block, size, factor, start, width)
        for i in range(block, block + some):
            row = view(out, (i - block) * width, size)
            done = block if some == TARGETS else 0
            for k in range(done, i):
                scratch[k - done] = -factor[k * width + i] * factor[k * width + k]
            add_rows(row, scratch, i - done, factor, done * width + start, width)
            pivot = row[i - start]
            if pivot <= 0:  # NaN is no reason to try again
                return False
            row[i - start] = 1 / pivot
    return True


@reordered
def solve_upper(factor, n, width, first, second):
    for i in range(n - 1, -1, -1):
        row, one, two = view(factor, i * width, width), 0.0, 0.0
        for j in range(i + 1, n):
            one += row[j] * first[j]
            two += row[j] * second[j]
        first[i] = (row[n] - one) * row[i]
        second[i] = (row[n + 1] - two) * row[i]
