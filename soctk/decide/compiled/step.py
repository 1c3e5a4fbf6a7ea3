"""One Newton step of one instance: bounds, direction, line search, and the move itself."""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.algebra import compiled, dot, factor_upper, solve_upper
from soctk.decide.compiled.form import (
    CONSTANT,
    DIM,
    DU,
    DX,
    FACTOR,
    HAS_HI,
    HAS_SUM,
    HESSIAN,
    HI,
    LINEAR,
    LO,
    MU,
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
from soctk.decide.compiled.lanes import view
from soctk.decide.compiled.terms import values
from soctk.decide.rules import (
    ARMIJO,
    BACKTRACK,
    LINE_SEARCH_TRIALS,
    MULTIPLIER_RANGE,
    TO_BOUNDARY,
)

FACTORS_IN_PRODUCT = 12
"""Ratios multiplied before a logarithm is taken: each is above 1 - TO_BOUNDARY, so that the product is no underflow."""


@compiled
def add_bounds(layout, state, memory, mu, gradient):
    """Fill the gradient of the barrier objective, and add the bounds' curvature s / room to the Hessian."""
    n = layout[DIM]
    x, g, total = view(state, layout[X], n), view(memory, layout[G], n), view(memory, layout[HESSIAN], n * n)
    lo, hi = view(memory, layout[LO], n), view(memory, layout[HI], n)
    s_lo, s_hi = view(state, layout[S_LO], n), view(state, layout[S_HI], n)
    for j in range(n):
        below = x[j] - lo[j]
        gradient[j] = g[j] - mu / below
        total[j * n + j] += s_lo[j] / below
    if memory[layout[SETTINGS] + HAS_HI]:
        for j in range(n):
            above = hi[j] - x[j]
            gradient[j] += mu / above
            total[j * n + j] += s_hi[j] / above


@compiled
def newton_direction(layout, memory, gradient, dx):
    """Fill dx with the solution of H dx = -gradient, sum(dx) = 0 where there is a sum."""
    n, ridge, width = layout[DIM], 1e-14, layout[DIM] + 2
    factor, scratch = view(memory, layout[FACTOR], n * width), view(memory, layout[SCRATCH], 4 * n)
    ones = view(memory, layout[ONES], n)
    bordered(layout, memory, gradient, factor, 0.0)
    while not factor_upper(factor, n, width, scratch) and ridge < 1:
        # Rounding can make a positive definite matrix fail; a ridge relative to the diagonal repairs it.
        bordered(layout, memory, gradient, factor, ridge)
        ridge *= 100
    solve_upper(factor, n, width, dx, ones)
    if memory[layout[SETTINGS] + HAS_SUM]:
        ratio = dx.sum() / ones.sum()
        for j in range(n):
            dx[j] -= ratio * ones[j]
        # Rounding of the Schur step must not let sum(x) drift.
        mean = dx.sum() / n
        for j in range(n):
            dx[j] -= mean


@compiled
def bordered(layout, memory, gradient, factor, ridge):
    """Fill [H -gradient 1], its diagonal raised by a relative ridge."""
    n, total = layout[DIM], view(memory, layout[HESSIAN], layout[DIM] * layout[DIM])
    for i in range(n):
        row, source = view(factor, i * (n + 2), n + 2), view(total, i * n, n)
        for j in range(n):
            row[j] = source[j]
        row[i] *= 1 + ridge
        row[n], row[n + 1] = -gradient[i], 1.0


@compiled
def line_search(layout, shared, data, state, memory, numbers, decrement):
    """Return the largest step found that satisfies Armijo's rule, 0 where none does; VALUE becomes its objective."""
    n, rows, mu, value = layout[DIM], layout[ROWS], numbers[MU], numbers[VALUE]
    x, dx, linear = view(state, layout[X], n), view(memory, layout[DX], n), view(data, layout[LINEAR], n)
    lo, hi, has_hi = view(memory, layout[LO], n), view(memory, layout[HI], n), memory[layout[SETTINGS] + HAS_HI] != 0
    u, du, trial = view(memory, layout[U], rows), view(memory, layout[DU], rows), view(memory, layout[TRIAL], rows)
    longest = np.inf
    for j in range(n):
        if dx[j] < 0:
            longest = min(longest, (lo[j] - x[j]) / dx[j])
        elif dx[j] > 0 and has_hi:
            longest = min(longest, (hi[j] - x[j]) / dx[j])
    step = min(TO_BOUNDARY * longest, 1.0)
    level, along = data[layout[CONSTANT]] + dot(linear, x), dot(linear, dx)
    slack = 1e-14 * max(1.0, abs(value))
    for _ in range(LINE_SEARCH_TRIALS):
        for k in range(rows):
            trial[k] = u[k] + step * du[k]
        moved = values(layout, shared, data, memory, trial, mu, view(memory, layout[OTHER], 6 * rows))
        moved += level + step * along
        barrier = barrier_change(x, dx, step, lo, hi, has_hi)
        if moved - value - mu * barrier <= slack - ARMIJO * step * decrement:
            numbers[VALUE] = moved
            return step
        step *= BACKTRACK
    return 0.0


@compiled
def barrier_change(x, dx, step, lo, hi, has_hi):
    """Return the change of sum log(x - lo) + sum log(hi - x)."""
    total, product = 0.0, 1.0
    for j in range(x.size):
        product *= 1 + step * dx[j] / (x[j] - lo[j])
        if has_hi:
            product *= 1 - step * dx[j] / (hi[j] - x[j])
        if j % FACTORS_IN_PRODUCT == FACTORS_IN_PRODUCT - 1:
            total += np.log(product)
            product = 1.0
    return total + np.log(product)


@compiled
def move(layout, state, memory, mu, step):
    """Move x and u by the step, and the bounds' multipliers by the linearised s (x - lo) = mu."""
    n, rows = layout[DIM], layout[ROWS]
    x, dx = view(state, layout[X], n), view(memory, layout[DX], n)
    lo, hi = view(memory, layout[LO], n), view(memory, layout[HI], n)
    s_lo, s_hi = view(state, layout[S_LO], n), view(state, layout[S_HI], n)
    for j in range(n):
        below, above = x[j] - lo[j], hi[j] - x[j]
        x[j] += step * dx[j]
        s_lo[j] = multiplier(mu, s_lo[j], below, -dx[j], x[j] - lo[j])
        s_hi[j] = multiplier(mu, s_hi[j], above, dx[j], hi[j] - x[j])
    u, du = view(memory, layout[U], rows), view(memory, layout[DU], rows)
    for k in range(rows):
        u[k] += step * du[k]


@compiled
def multiplier(mu, s, room, toward, room_after):
    """Return s after the full step, kept within a range of mu / room."""
    target = mu / room_after
    return max(min(mu / room + s / room * toward, MULTIPLIER_RANGE * target), target / MULTIPLIER_RANGE)
