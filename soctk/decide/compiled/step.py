"""One Newton step: bounds, direction, line search, and the move itself."""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.curvature import hessian
from soctk.decide.compiled.form import (
    CACHE,
    CONSTANT,
    DIM,
    DU,
    DX,
    FACTOR,
    FINISHED,
    HAS_HI,
    HAS_SUM,
    HI,
    LAG,
    LINEAR,
    LO,
    MU,
    NEAR_HI,
    NEAR_LO,
    NUMBERS,
    NUMBERS_SIZE,
    ONES,
    OTHER,
    ROWS,
    S_HI,
    S_LO,
    SCRATCH,
    SETTINGS,
    TRIAL,
    VALUE,
    G,
    U,
    X,
)
from soctk.decide.compiled.terms import values
from soctk.decide.rules import (
    ARMIJO,
    BACKTRACK,
    LINE_SEARCH_TRIALS,
    MULTIPLIER_RANGE,
    TO_BOUNDARY,
)
from soctk.simd.algebra import dot, factor_upper, solve_upper, sum_of
from soctk.simd.lanes import any_of, choose, view
from soctk.simd.options import compiled

FACTORS_IN_PRODUCT = 12
"""Ratios multiplied before a logarithm is taken: each is above 1 - TO_BOUNDARY, so that the product is no underflow."""


@compiled
def newton_direction(layout, shared, common, data, state, memory, mu, gradient, dx):
    """Fill the barrier objective's gradient, and dx with the solution of H dx = -gradient; sum(dx) = 0 with a sum."""
    n, ridge, width = layout[DIM], 1e-14, layout[DIM] + 2
    factor, scratch = view(memory, layout[FACTOR], n * width), view(memory, layout[SCRATCH], 4 * n)
    u, cache = view(state, layout[U], layout[ROWS]), view(memory, layout[CACHE], 6 * layout[ROWS])
    lag, ones = view(state, layout[LAG], layout[ROWS]), view(memory, layout[ONES], n)
    added, working = 0 * mu, view(state, layout[NUMBERS], NUMBERS_SIZE)[FINISHED] == 0
    while True:
        hessian(layout, shared, common, data, memory, u, cache, lag, factor)
        add_bounds(layout, common, state, memory, mu, gradient, factor, added)
        definite = factor_upper(factor, n, width, scratch)
        if not any_of(working & (not definite)) or ridge > 1:
            break
        # Rounding can make a positive definite matrix fail; a ridge relative to the diagonal repairs it.
        added, ridge = choose(definite, added, ridge), 100 * ridge
    solve_upper(factor, n, width, dx, ones)
    if common[layout[SETTINGS] + HAS_SUM] != 0:
        ratio = sum_of(dx) / sum_of(ones)
        for j in range(n):
            dx[j] -= ratio * ones[j]
        # Rounding of the Schur step must not let sum(x) drift.
        mean = sum_of(dx) / n
        for j in range(n):
            dx[j] -= mean


@compiled
def add_bounds(layout, common, state, memory, mu, gradient, factor, ridge):
    """Fill the gradient; add the bounds' s / room and a relative ridge to H, and fill its border [-gradient 1].

    Any multiple of 1 may be added to the gradient where sum(dx) = 0. At a vertex one coordinate has next to no
    curvature: H^-1 g would be huge there, only to be cancelled by a multiple of H^-1 1. So there g is made 0.
    """
    n, width = layout[DIM], layout[DIM] + 2
    g, has_hi = view(memory, layout[G], n), common[layout[SETTINGS] + HAS_HI] != 0
    near_lo, near_hi = view(memory, layout[NEAR_LO], n), view(memory, layout[NEAR_HI], n)
    s_lo, s_hi = view(state, layout[S_LO], n), view(state, layout[S_HI], n)
    for j in range(n):
        slope, curvature = g[j] - mu * near_lo[j], s_lo[j] * near_lo[j]
        if has_hi:
            slope, curvature = slope + mu * near_hi[j], curvature + s_hi[j] * near_hi[j]
        row = view(factor, j * width, width)
        row[j] = (row[j] + curvature) * (1 + ridge)
        row[n + 1], gradient[j] = 1.0, slope
    shift = 0 * mu
    if common[layout[SETTINGS] + HAS_SUM] != 0:
        flattest, shift = factor[0], gradient[0]
        for j in range(1, n):
            flatter = factor[j * width + j] < flattest
            flattest = choose(flatter, factor[j * width + j], flattest)
            shift = choose(flatter, gradient[j], shift)
    for j in range(n):
        gradient[j] -= shift
        factor[j * width + n] = -gradient[j]


@compiled
def line_search(layout, shared, common, data, state, memory, numbers, decrement):
    """Return the largest step found that satisfies Armijo's rule, 0 where none does; VALUE becomes its objective."""
    n, rows, mu, value = layout[DIM], layout[ROWS], numbers[MU], numbers[VALUE]
    x, dx, linear = view(state, layout[X], n), view(memory, layout[DX], n), view(data, layout[LINEAR], n)
    near_lo, near_hi = view(memory, layout[NEAR_LO], n), view(memory, layout[NEAR_HI], n)
    u, du, trial = view(state, layout[U], rows), view(memory, layout[DU], rows), view(memory, layout[TRIAL], rows)
    used = TO_BOUNDARY + 0 * mu  # the largest share of a room that a full step would use
    for j in range(n):
        used = max(used, max(-dx[j] * near_lo[j], dx[j] * near_hi[j]))
    step = TO_BOUNDARY / used
    level, along = data[layout[CONSTANT]] + dot(linear, x), dot(linear, dx)
    slack = 1e-14 * max(1.0, abs(value))
    searching, taken = numbers[FINISHED] == 0, 0 * step
    for _ in range(LINE_SEARCH_TRIALS):
        for k in range(rows):
            trial[k] = u[k] + step * du[k]
        moved = values(layout, shared, data, memory, trial, mu, view(memory, layout[OTHER], 6 * rows))
        moved += level + step * along
        barrier = barrier_change(dx, step, near_lo, near_hi, common[layout[SETTINGS] + HAS_HI] != 0)
        found = searching & (moved - value - mu * barrier <= slack - ARMIJO * step * decrement)
        numbers[VALUE], taken = choose(found, moved, numbers[VALUE]), choose(found, step, taken)
        searching = searching & (not found)
        if not any_of(searching):
            break
        step = choose(searching, BACKTRACK * step, step)
    return taken


@compiled
def barrier_change(dx, step, near_lo, near_hi, has_hi):
    """Return the change of sum log(x - lo) + sum log(hi - x)."""
    total, product = 0.0, 1.0
    for j in range(dx.size):
        product *= 1 + step * dx[j] * near_lo[j]
        if has_hi:
            product *= 1 - step * dx[j] * near_hi[j]
        if j % FACTORS_IN_PRODUCT == FACTORS_IN_PRODUCT - 1:
            total += np.log(product)
            product = 1.0
    return total + np.log(product)


@compiled
def move(layout, common, state, memory, mu, step):
    """Move x and u by the step, and the bounds' multipliers by the linearised s (x - lo) = mu."""
    n, rows = layout[DIM], layout[ROWS]
    x, dx = view(state, layout[X], n), view(memory, layout[DX], n)
    s_lo, s_hi = view(state, layout[S_LO], n), view(state, layout[S_HI], n)
    near_lo, near_hi = view(memory, layout[NEAR_LO], n), view(memory, layout[NEAR_HI], n)
    for j in range(n):
        x[j] += step * dx[j]
        s_lo[j] = (mu - s_lo[j] * dx[j]) * near_lo[j]
        s_hi[j] = (mu + s_hi[j] * dx[j]) * near_hi[j]
    measure_rooms(layout, common, x, near_lo, near_hi)
    for j in range(n):
        s_lo[j] = into_range(s_lo[j], mu * near_lo[j])
        s_hi[j] = into_range(s_hi[j], mu * near_hi[j])
    u, du = view(state, layout[U], rows), view(memory, layout[DU], rows)
    for k in range(rows):
        u[k] += step * du[k]


@compiled
def measure_rooms(layout, common, x, near_lo, near_hi):
    """Fill the reciprocals of x - lo and of hi - x, 0 where there is no bound: divisions take long, so once for all."""
    lo, hi = view(common, layout[LO], x.size), view(common, layout[HI], x.size)
    if common[layout[SETTINGS] + HAS_HI] == 0:
        for j in range(x.size):
            near_lo[j], near_hi[j] = 1 / (x[j] - lo[j]), 0.0
        return
    for j in range(x.size):
        above, below = x[j] - lo[j], hi[j] - x[j]
        both = 1 / (above * below)
        near_lo[j], near_hi[j] = below * both, above * both


@compiled
def into_range(s, target):
    """Return a multiplier kept within a range of mu / room."""
    return max(min(s, MULTIPLIER_RANGE * target), (1 / MULTIPLIER_RANGE) * target)
