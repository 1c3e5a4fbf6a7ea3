"""The terms' values and dual points, smoothed or not, as in `soctk.terms`.

Every pass fills a cache (6, K): rows of a (preactivations), 1 / r (of a ReLU) or 1 / tau (of a group, at its first
rows), z (activations; of a group tau), p (slopes), nubar, and y, the dual point. Reciprocals, because divisions take
long: each is made once. mu = 0 gives the function itself and a subgradient.
"""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.form import (
    COLUMNS,
    COUNT,
    DELTA,
    FIRST,
    HUBER,
    KAPPA,
    KIND,
    LAYERS,
    LOG_SUM_EXP,
    LOGISTIC,
    MIX,
    MIXING,
    MIXING_TRANSPOSED,
    NORMS,
    QUADRATIC,
    REFERENCE,
    RELU,
    ROWS,
    SIZE,
    SOFTPLUS,
    TABLE,
    TERMS,
    WEIGHT,
    WEIGHTS,
    WIDTHS,
)
from soctk.simd.algebra import add_rows, fill, sum_of
from soctk.simd.lanes import any_of, choose, view
from soctk.simd.options import compiled
from soctk.terms.base import SMALLEST_WEIGHT

A, INVERSE, Z, P, NUBAR, Y = range(6)
TINY = np.finfo(np.float64).tiny


@compiled
def values(layout, shared, data, memory, u, mu, cache):
    """Return the sum of the smoothed terms at u, and fill what `duals` needs of the pass."""
    rows, total = layout[ROWS], 0.0
    for index in range(layout[TERMS]):
        term = view(layout, TABLE + index * COLUMNS, COLUMNS)
        kind, first, count, size = term[KIND], term[FIRST], term[COUNT], term[SIZE]
        weights, reference = view(data, layout[WEIGHTS] + term[WEIGHT], count), memory[layout[REFERENCE] + index]
        mine, p = view(u, first, count), view(cache, P * rows + first, count)
        if kind == QUADRATIC:
            for k in range(count):
                total += 0.5 * weights[k] * mine[k] * mine[k]
        elif kind == NORMS:
            kappa, tau = view(data, layout[WEIGHTS] + term[KAPPA], count), view(cache, Z * rows + first, count)
            eps = 2 * mu / reference
            for g in range(count // size):
                squares = kappa[g] * kappa[g] + eps * eps
                for k in range(g * size, (g + 1) * size):
                    squares += mine[k] * mine[k]
                tau[g] = np.sqrt(max(squares, TINY))
                total += weights[g] * tau[g]
        elif kind in (RELU, SOFTPLUS):
            total += network_value(layout, shared, weights, term, reference, u, mu, cache)
        elif kind == LOGISTIC:
            for k in range(count):
                z, p[k] = softplus(mine[k])
                total += weights[k] * z
        elif kind == LOG_SUM_EXP:
            for g in range(count // size):
                total += weights[g] * log_sum_exp(view(mine, g * size, size), view(p, g * size, size))
        elif kind == HUBER:
            delta = shared[layout[DELTA] + index]
            for k in range(count):
                clipped = min(max(mine[k], -delta), delta)
                total += weights[k] * clipped * (mine[k] - 0.5 * clipped)
    return total


@compiled
def softplus(a):
    """Return log(1 + exp(a)) and its slope."""
    small = np.exp(-abs(a))
    return max(a, 0.0) + np.log1p(small), choose(a >= 0, 1.0, small) / (1 + small)


@compiled
def log_sum_exp(u, p):
    """Return log sum exp(u), and fill p with its gradient."""
    largest, mass = -np.inf, 0.0
    for k in range(u.size):
        largest = max(largest, u[k])
    for k in range(u.size):
        p[k] = np.exp(u[k] - largest)
        mass += p[k]
    for k in range(u.size):
        p[k] /= mass
    return largest + np.log(mass)


@compiled
def network_value(layout, shared, weights, term, reference, u, mu, cache):
    """Return c'z_L of a network, every ReLU smoothed: (a + r) / 2, r = sqrt(a^2 + 4 delta^2), delta = 2 mu / nubar."""
    rows, start, mixing, inner = layout[ROWS], term[FIRST], layout[MIXING_TRANSPOSED] + term[MIX], 0
    delta, total = 2 * mu / reference, 0.0
    spread = 4 * delta * delta
    for level in range(term[LAYERS]):
        width = layout[term[WIDTHS] + level]
        a, inverse = view(cache, A * rows + start, width), view(cache, INVERSE * rows + start, width)
        z, p = view(cache, Z * rows + start, width), view(cache, P * rows + start, width)
        for k in range(width):
            a[k] = u[start + k]
        if level > 0:
            add_rows(a, view(cache, Z * rows + start - inner, inner), inner, shared, mixing, width)
            mixing += inner * width
        if term[KIND] == SOFTPLUS:
            for k in range(width):
                z[k], p[k] = softplus(a[k])
        else:
            for k in range(width):
                # (a + r) / 2 loses all digits for very negative a; delta^2 / ((|a| + r) / 2) does not.
                r = np.sqrt(a[k] * a[k] + spread)
                half = 0.5 * (r + abs(a[k]))
                both = 1 / max(half * r, TINY)
                inverse[k] = half * both
                z[k] = choose(a[k] > 0, half, delta * delta * (r * both))
                p[k] = min(z[k] * inverse[k], 1.0)  # no slope is above 1 by rounding: bounds are made of it
        start, inner = start + width, width
    last = view(cache, Z * rows + start - inner, inner)
    for k in range(inner):
        total += weights[k] * last[k]
    return total


@compiled
def duals(layout, shared, data, u, cache):
    """Fill the dual point y of the last pass, and the networks' nubar."""
    rows = layout[ROWS]
    for index in range(layout[TERMS]):
        term = view(layout, TABLE + index * COLUMNS, COLUMNS)
        kind, first, count, size = term[KIND], term[FIRST], term[COUNT], term[SIZE]
        weights, mine = view(data, layout[WEIGHTS] + term[WEIGHT], count), view(u, first, count)
        y, p = view(cache, Y * rows + first, count), view(cache, P * rows + first, count)
        if kind == QUADRATIC:
            for k in range(count):
                y[k] = weights[k] * mine[k]
        elif kind == NORMS:
            inverse, tau = view(cache, INVERSE * rows + first, count), view(cache, Z * rows + first, count)
            for g in range(count // size):
                inverse[g] = 1 / tau[g]
                weight = weights[g] * inverse[g]
                for k in range(g * size, (g + 1) * size):
                    y[k] = weight * mine[k]
            into_balls(weights, y, size)
        elif kind in (RELU, SOFTPLUS):
            chain(layout, shared, weights, term, cache)
        elif kind == LOGISTIC:
            for k in range(count):
                y[k] = weights[k] * p[k]
        elif kind == LOG_SUM_EXP:
            for g in range(count // size):
                for k in range(g * size, (g + 1) * size):
                    y[k] = weights[g] * p[k]
        elif kind == HUBER:
            delta = shared[layout[DELTA] + index]
            for k in range(count):
                y[k] = weights[k] * min(max(mine[k], -delta), delta)


@compiled
def into_balls(weights, y, size):
    """Project every group of a norm term's dual to its ball."""
    for g in range(y.size // size):
        squares = 0.0
        for k in range(g * size, (g + 1) * size):
            squares += y[k] * y[k]
        outside = squares > weights[g] * weights[g]
        if any_of(outside):
            shrink = choose(outside, weights[g] / np.sqrt(squares), 1.0)
            for k in range(g * size, (g + 1) * size):
                y[k] *= shrink


@compiled
def chain(layout, shared, weights, term, cache):
    """Fill nu (in y) and nubar of a network from its slopes p: nu_l = nubar_l p_l, nubar_{l-1} = U_l'nu_l."""
    rows, layers, stop = layout[ROWS], term[LAYERS], term[FIRST] + term[COUNT]
    mixing, width = layout[MIXING] + term[MIX], layout[term[WIDTHS] + layers - 1]
    for level in range(1, layers):
        mixing += layout[term[WIDTHS] + level] * layout[term[WIDTHS] + level - 1]
    last = view(cache, NUBAR * rows + stop - width, width)
    for k in range(width):
        last[k] = weights[k]
    for level in range(layers - 1, -1, -1):
        width = layout[term[WIDTHS] + level]
        stop -= width
        nubar, p = view(cache, NUBAR * rows + stop, width), view(cache, P * rows + stop, width)
        y = view(cache, Y * rows + stop, width)
        for k in range(width):
            y[k] = nubar[k] * p[k]
        if level > 0:
            inner = layout[term[WIDTHS] + level - 1]
            mixing -= inner * width
            below = view(cache, NUBAR * rows + stop - inner, inner)
            fill(below, 0.0)
            add_rows(below, y, width, shared, mixing, inner)


@compiled
def conjugates(layout, data, cache):
    """Return the sum of phi*(y), y as the cache holds it with the slopes and nubar that it was made of."""
    rows, total = layout[ROWS], 0.0
    for index in range(layout[TERMS]):
        term = view(layout, TABLE + index * COLUMNS, COLUMNS)
        kind, first, count, size = term[KIND], term[FIRST], term[COUNT], term[SIZE]
        weights, p = view(data, layout[WEIGHTS] + term[WEIGHT], count), view(cache, P * rows + first, count)
        y, nubar = view(cache, Y * rows + first, count), view(cache, NUBAR * rows + first, count)
        if kind in (QUADRATIC, HUBER):
            for k in range(count):
                total += choose(weights[k] > 0, 0.5 * y[k] * y[k] / weights[k], 0.0)
        elif kind == NORMS:
            kappa = view(data, layout[WEIGHTS] + term[KAPPA], count)
            for g in range(count // size):
                if any_of(kappa[g] != 0):
                    slack = weights[g] * weights[g]
                    for k in range(g * size, (g + 1) * size):
                        slack -= y[k] * y[k]
                    total -= choose(kappa[g] != 0, abs(kappa[g]) * np.sqrt(max(slack, 0.0)), 0.0)
        elif kind == SOFTPLUS:
            for k in range(count):
                total -= nubar[k] * entropy(p[k])
        elif kind == LOGISTIC:
            for k in range(count):
                total -= weights[k] * entropy(p[k])
        elif kind == LOG_SUM_EXP:
            for g in range(count // size):
                for k in range(g * size, (g + 1) * size):
                    total += choose(p[k] > 0, weights[g] * p[k] * np.log(p[k]), 0.0)
    return total


@compiled
def entropy(p):
    """Return -p log p - (1 - p) log(1 - p), 0 at both ends."""
    return choose((p > 0) & (p < 1), -p * np.log(p) - (1 - p) * np.log1p(-p), 0.0)


@compiled
def references(layout, shared, data, memory, scratch):
    """Fill what each term's smoothing is relative to: the largest lambda, the largest mean of nubar."""
    rows = layout[ROWS]
    for index in range(layout[TERMS]):
        term, largest = view(layout, TABLE + index * COLUMNS, COLUMNS), SMALLEST_WEIGHT
        count = term[COUNT]
        weights = view(data, layout[WEIGHTS] + term[WEIGHT], count)
        if term[KIND] == NORMS:
            for g in range(count // term[SIZE]):
                largest = max(largest, weights[g])
        elif term[KIND] == RELU:
            slopes, start = view(scratch, P * rows + term[FIRST], count), term[FIRST]
            fill(slopes, 1.0)
            chain(layout, shared, weights, term, scratch)
            for level in range(term[LAYERS]):
                width = layout[term[WIDTHS] + level]
                nubar = view(scratch, NUBAR * rows + start, width)
                largest = max(largest, sum_of(nubar) / width)
                start += width
        memory[layout[REFERENCE] + index] = largest
