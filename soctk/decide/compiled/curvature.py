"""Hessians with lagged duals, and the lagged duals themselves."""

from __future__ import annotations

from soctk.decide.compiled.form import (
    BASE,
    COEFFICIENTS,
    COLUMNS,
    COUNT,
    CURVATURE,
    DELTA,
    DIM,
    FIRST,
    HUBER,
    JACOBIANS,
    KEPT,
    KEPT_COUNT,
    KEPT_FIRST,
    KIND,
    LAYERS,
    LOG_SUM_EXP,
    LOGISTIC,
    MATRIX,
    MIX,
    MIXING,
    MIXING_TRANSPOSED,
    NORMS,
    PAIRS,
    PRODUCTS,
    QUADRATIC,
    RELU,
    ROWS,
    SCRATCH,
    SIZE,
    SOFTPLUS,
    TABLE,
    TERMS,
    WEIGHT,
    WEIGHTS,
    WIDTHS,
)
from soctk.decide.compiled.terms import INVERSE, NUBAR, A, P, Y, chain, into_balls
from soctk.simd.algebra import (
    add_gram,
    add_gram_rows,
    add_kept_rows,
    add_product,
    add_rows,
    fill,
    subtract_pairs_rows,
)
from soctk.simd.lanes import choose, view
from soctk.simd.options import compiled
from soctk.simd.tiles import TARGETS


@compiled
def quadratic_hessian(layout, shared, data, memory):
    """Fill the Hessian of the quadratic terms, upper triangle: it is the same in every iteration."""
    n = layout[DIM]
    base, scratch = view(memory, layout[BASE], n * n), view(memory, layout[SCRATCH], TARGETS * layout[ROWS])
    fill(base, 0.0)
    for index in range(layout[TERMS]):
        term = view(layout, TABLE + index * COLUMNS, COLUMNS)
        if term[KIND] == QUADRATIC:
            weights = view(data, layout[WEIGHTS] + term[WEIGHT], term[COUNT])
            add_gram(base, n, n, weights, term[COUNT], shared, layout[MATRIX] + term[FIRST] * n, scratch)


@compiled
def outer_products(layout, shared, common, memory):
    """Fill the Gram matrices A_g'A_g, upper triangles, of the rows and groups for which the table keeps them."""
    n, rows = layout[DIM], layout[ROWS]
    ones, scratch = view(memory, layout[CURVATURE], rows), view(memory, layout[SCRATCH], TARGETS * rows)
    fill(ones, 1.0)
    for index in range(layout[TERMS]):
        term = view(layout, TABLE + index * COLUMNS, COLUMNS)
        size = term[SIZE]
        for g in range(term[KEPT_COUNT]):
            out = view(common, layout[KEPT] + (term[KEPT_FIRST] + g) * n * n, n * n)
            fill(out, 0.0)
            add_gram(out, n, n, ones, size, shared, layout[MATRIX] + (term[FIRST] + g * size) * n, scratch)


@compiled
def hessian(layout, shared, common, data, memory, u, cache, lag, total):
    """Fill the upper triangle of sum_j A_j'(Hessian of phi_j)A_j in `total`, rows n + 2 apart.

    A block of rows takes all terms before the next, so that it stays in the first-level cache.
    """
    n, rows, stride = layout[DIM], layout[ROWS], layout[DIM] + 2
    base, coefficients = view(memory, layout[BASE], n * n), view(memory, layout[COEFFICIENTS], layout[PRODUCTS])
    scratch, pairs, deep = view(memory, layout[SCRATCH], TARGETS * rows), 0, False
    for index in range(layout[TERMS]):
        term = view(layout, TABLE + index * COLUMNS, COLUMNS)
        weights = view(data, layout[WEIGHTS] + term[WEIGHT], term[COUNT])
        curvature = view(memory, layout[CURVATURE] + term[FIRST], term[COUNT])
        row_curvatures(term, rows, weights, shared[layout[DELTA] + index], u, cache, lag, curvature)
        deep = deep or term[LAYERS] > 1
        if term[KIND] in (NORMS, LOG_SUM_EXP) and term[SIZE] > 1:
            pairs = rank_ones(layout, shared, memory, term, weights, u, cache, lag, pairs)
        for g in range(term[KEPT_COUNT]):
            coefficients[term[KEPT_FIRST] + g] = curvature[g * term[SIZE]]
    if deep:
        copy_rows(total, stride, base, n, 0, n)
        for index in range(layout[TERMS]):
            term = view(layout, TABLE + index * COLUMNS, COLUMNS)
            add_deeper_layers(layout, shared, memory, term, cache, total)
    for i in range(0, n, TARGETS):
        if not deep:
            copy_rows(total, stride, base, n, i, min(i + TARGETS, n))
        add_kept_rows(total, stride, n, i, coefficients, layout[PRODUCTS], common, layout[KEPT])
        for index in range(layout[TERMS]):
            term = view(layout, TABLE + index * COLUMNS, COLUMNS)
            if term[KIND] != QUADRATIC and term[KEPT_COUNT] == 0:
                count = layout[term[WIDTHS]] if term[LAYERS] > 0 else term[COUNT]
                curvature = view(memory, layout[CURVATURE] + term[FIRST], count)
                at = layout[MATRIX] + term[FIRST] * n
                add_gram_rows(total, stride, n, i, curvature, count, shared, at, scratch)
        subtract_pairs_rows(total, stride, n, i, 2 * pairs, memory, layout[PAIRS], scratch)


@compiled
def copy_rows(total, stride, base, n, first, last):
    """Copy rows of n numbers, from the diagonal's block on, to where they are `stride` apart."""
    for i in range(first, last):
        to, source = view(total, i * stride, n), view(base, i * n, n)
        for j in range(i // TARGETS * TARGETS, n):
            to[j] = source[j]


@compiled
def row_curvatures(term, rows, weights, delta, u, cache, lag, curvature):
    """Fill the diagonal part of a term's Hessian in u."""
    kind, first, count, size = term[KIND], term[FIRST], term[COUNT], term[SIZE]
    inverse, a = view(cache, INVERSE * rows + first, count), view(cache, A * rows + first, count)
    p, nubar = view(cache, P * rows + first, count), view(cache, NUBAR * rows + first, count)
    y, mine, t = view(cache, Y * rows + first, count), view(u, first, count), view(lag, first, count)
    if kind == RELU:
        for k in range(count):
            curvature[k] = nubar[k] * (1 - t[k] * a[k] * inverse[k]) * (0.5 * inverse[k])
    elif kind == SOFTPLUS:
        for k in range(count):
            curvature[k] = nubar[k] * p[k] * (1 - p[k])
    elif kind == NORMS and size > 1:
        for g in range(count // size):
            fill(view(curvature, g * size, size), weights[g] * inverse[g])
    elif kind == NORMS:
        for k in range(count):
            curvature[k] = (weights[k] - t[k] * mine[k] * inverse[k]) * inverse[k]
    elif kind == LOGISTIC:
        for k in range(count):
            curvature[k] = weights[k] * p[k] * (1 - p[k])
    elif kind == LOG_SUM_EXP:
        for k in range(count):
            curvature[k] = y[k] if size > 1 else 0 * y[k]  # of one number it is that number, and affine
    elif kind == HUBER:
        for k in range(count):
            curvature[k] = choose(abs(mine[k]) <= delta, weights[k], 0.0)


@compiled
def rank_ones(layout, shared, memory, term, weights, u, cache, lag, pairs):
    """Fill the pairs l, r of what is to be subtracted as l r' + r l' for a term's groups, from pair `pairs` on.

    That is (A'u (A'rho)' + A'rho (A'u)') / (2 tau^2) of a norm and beta (A'p) (A'p)' of a log-sum-exp. Returns the
    number of pairs with these.
    """
    n, rows, size = layout[DIM], layout[ROWS], term[SIZE]
    for g in range(term[COUNT] // size):
        first = term[FIRST] + g * size
        at, here = layout[MATRIX] + first * n, layout[PAIRS] + 2 * (pairs + g) * n
        left, right = view(memory, here, n), view(memory, here + n, n)
        fill(left, 0.0)
        if term[KIND] == NORMS:
            inverse = cache[INVERSE * rows + term[FIRST] + g]
            fill(right, 0.0)
            add_rows(left, view(u, first, size), size, shared, at, n)
            add_rows(right, view(lag, first, size), size, shared, at, n)
            scale = 0.5 * inverse * inverse
            for i in range(n):
                right[i] *= scale
        else:
            add_rows(left, view(cache, P * rows + first, size), size, shared, at, n)
            for i in range(n):
                right[i] = 0.5 * weights[g] * left[i]
    return pairs + term[COUNT] // size


@compiled
def add_deeper_layers(layout, shared, memory, term, cache, total):
    """Add J_l' diag(nubar_l k_l) J_l for l > 1: J_1 = W_1, J_l = W_l + U_l diag(p_{l-1}) J_{l-1}."""
    n, rows, start = layout[DIM], layout[ROWS], term[FIRST]
    mixing, below = layout[MIXING] + term[MIX], layout[MATRIX] + term[FIRST] * n
    scratch, half = view(memory, layout[SCRATCH], TARGETS * rows), (layout[COEFFICIENTS] - layout[JACOBIANS]) // 2
    for level in range(1, term[LAYERS]):
        inner, width = layout[term[WIDTHS] + level - 1], layout[term[WIDTHS] + level]
        p, here = view(cache, P * rows + start, inner), layout[JACOBIANS] + (level % 2) * half
        start += inner
        out, own = view(memory, here, width * n), view(shared, layout[MATRIX] + start * n, width * n)
        for i in range(width * n):
            out[i] = own[i]
        if level == 1:
            add_product(out, width, n, shared, mixing, inner, p, shared, below, scratch)
        else:
            add_product(out, width, n, shared, mixing, inner, p, memory, below, scratch)
        add_gram(total, n + 2, n, view(memory, layout[CURVATURE] + start, width), width, memory, here, scratch)
        mixing, below = mixing + inner * width, here


@compiled
def initial_lags(layout, cache, lag, wanted):
    """Fill the lagged duals that are wanted by those that agree with the last pass: a ReLU's a / r, a norm's y."""
    rows = layout[ROWS]
    for index in range(layout[TERMS]):
        term = view(layout, TABLE + index * COLUMNS, COLUMNS)
        for k in range(term[FIRST], term[FIRST] + term[COUNT]):
            agreed = cache[A * rows + k] * cache[INVERSE * rows + k] if term[KIND] == RELU else cache[Y * rows + k]
            lag[k] = choose(wanted, agreed, lag[k])


@compiled
def advance_lags(layout, shared, data, u, du, cache, lag, moved):
    """Update the lagged duals by their linearised optimality conditions after a step that moves u by du."""
    rows = layout[ROWS]
    for index in range(layout[TERMS]):
        term = view(layout, TABLE + index * COLUMNS, COLUMNS)
        first, count, size = term[FIRST], term[COUNT], term[SIZE]
        if term[KIND] == RELU:
            advance_slopes(layout, shared, term, du, cache, lag, moved)
        elif term[KIND] == NORMS:
            weights = view(data, layout[WEIGHTS] + term[WEIGHT], count)
            inverse = view(cache, INVERSE * rows + first, count)
            rho, mine, change = view(lag, first, count), view(u, first, count), view(du, first, count)
            for g in range(count // size):
                along, weight = 0.0, weights[g] * inverse[g]
                for k in range(g * size, (g + 1) * size):
                    along += mine[k] * change[k]
                along *= inverse[g] * inverse[g]
                for k in range(g * size, (g + 1) * size):
                    rho[k] = weight * (mine[k] + change[k]) - along * rho[k]
            into_balls(weights, rho, size)


@compiled
def advance_slopes(layout, shared, term, du, cache, lag, moved):
    """t <- a / r + (1 - t a / r) / r da, clipped to [-1, 1]; da = du + U (p da of the layer below)."""
    rows, start, mixing, inner = layout[ROWS], term[FIRST], layout[MIXING_TRANSPOSED] + term[MIX], 0
    for level in range(term[LAYERS]):
        width = layout[term[WIDTHS] + level]
        da, t, p = view(moved, start, width), view(lag, start, width), view(cache, P * rows + start, width)
        a, inverse = view(cache, A * rows + start, width), view(cache, INVERSE * rows + start, width)
        for k in range(width):
            da[k] = du[start + k]
        if level > 0:
            add_rows(da, view(moved, start - inner, inner), inner, shared, mixing, width)
            mixing += inner * width
        for k in range(width):
            share = a[k] * inverse[k]
            t[k] = min(max(share + (1 - t[k] * share) * inverse[k] * da[k], -1.0), 1.0)
            da[k] *= p[k]
        start, inner = start + width, width


@compiled
def lagged_duals(layout, shared, data, cache, lag, other):
    """Fill the dual point that the lagged duals stand for in another cache."""
    rows = layout[ROWS]
    for k in range(P * rows, 6 * rows):
        other[k] = cache[k]
    for index in range(layout[TERMS]):
        term = view(layout, TABLE + index * COLUMNS, COLUMNS)
        first, count = term[FIRST], term[COUNT]
        if term[KIND] == RELU:
            for k in range(first, first + count):
                other[P * rows + k] = 0.5 * (1 + lag[k])
            chain(layout, shared, view(data, layout[WEIGHTS] + term[WEIGHT], count), term, other)
        elif term[KIND] == NORMS:
            for k in range(first, first + count):
                other[Y * rows + k] = lag[k]
