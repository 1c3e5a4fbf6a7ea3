"""The smoothing Newton method for one instance after another: `soctk.decide.newton` tells what each step is."""

from __future__ import annotations

import numpy as np
from numba import njit

from soctk.decide.compiled.algebra import add_rows, compiled, dot, factor_upper, inlined, solve_upper, view
from soctk.decide.compiled.certificate import bound, inner, relative_gap, restore, slope, value_at
from soctk.decide.compiled.curvature import (
    advance_lags,
    hessian,
    initial_lags,
    lagged_duals,
    outer_products,
    quadratic_hessian,
)
from soctk.decide.compiled.form import (
    BEST_BOUND,
    BEST_VALUE,
    BEST_X,
    CACHE,
    CONSTANT,
    DIM,
    DU,
    DX,
    FACTOR,
    HAS_HI,
    HAS_SUM,
    HESSIAN,
    HI,
    ITERATION_LIMIT,
    ITERATIONS,
    LAG,
    LEFT,
    LINEAR,
    LO,
    MAX_ITER,
    MU,
    NUMBERS,
    ONES,
    OPTIMAL,
    OTHER,
    OTHER_G,
    OUTCOME,
    POINT,
    ROWS,
    RUNNING,
    S_HI,
    S_LO,
    SCRATCH,
    SETTINGS,
    STALLED,
    STARTED,
    STUCK,
    TOL,
    TRANSPOSED,
    TRIAL,
    VALUE,
    G,
    U,
    X,
)
from soctk.decide.compiled.terms import Y, duals, references, values
from soctk.decide.rules import (
    ARMIJO,
    BACKTRACK,
    LINE_SEARCH_TRIALS,
    MULTIPLIER_RANGE,
    STALL_ITERATIONS,
    TO_BOUNDARY,
    WORTH_CERTIFYING,
)

FACTORS_IN_PRODUCT = 12
"""Ratios multiplied before a logarithm is taken: each is above 1 - TO_BOUNDARY, so that the product is no underflow."""


def make_advance_all(sources: int):
    """Return the one function that is called from outside, compiled when it is first called and cached on disk.

    Args:
        sources: a digest of the files that it is compiled from. It is part of the cache's key: on its own Numba would
            look at this file alone, and use old code after a change of another.
    """

    @njit(cache=True, error_model="numpy", nogil=True)
    def advance_all(layout, shared, data, state, memory, first, last, steps):
        """Take up to `steps` Newton steps with each of the instances first, ..., last - 1 that is still running."""
        _ = sources
        own, prepared = shared.shape[0] > 1, False
        for i in range(first, last):
            standing = state[i]
            numbers = view(standing, layout[NUMBERS], 8)
            if numbers[OUTCOME] != RUNNING:
                continue
            matrices, coefficients = shared[i if own else 0], data[i]
            if own or not prepared:
                outer_products(layout, matrices, memory)
            prepared = True
            begin(layout, matrices, coefficients, standing, memory, numbers)
            iterate(layout, matrices, coefficients, standing, memory, numbers, steps)

    return advance_all


@inlined
def iterate(layout, shared, data, state, memory, numbers, steps):
    """Take Newton steps until the instance is finished or has taken `steps` of them."""
    remaining = steps
    while True:
        limit = numbers[ITERATIONS] >= memory[layout[SETTINGS] + MAX_ITER]
        if limit or remaining == 0 or worth_certifying(layout, memory, numbers):
            record(layout, shared, data, state, memory, numbers)
            if numbers[OUTCOME] == RUNNING and limit:
                numbers[OUTCOME] = ITERATION_LIMIT
            if numbers[OUTCOME] != RUNNING or remaining == 0:
                break
        advance(layout, shared, data, state, memory, numbers)
        numbers[ITERATIONS] += 1
        remaining -= 1


@inlined
def begin(layout, shared, data, state, memory, numbers):
    """Prepare an instance; at its first time choose mu by the gap of the linearisation, and multipliers and lags."""
    n, rows = layout[DIM], layout[ROWS]
    x, u, g = view(state, layout[X], n), view(memory, layout[U], rows), view(memory, layout[G], n)
    cache, other = view(memory, layout[CACHE], 6 * rows), view(memory, layout[OTHER], 6 * rows)
    settings, started = view(memory, layout[SETTINGS], 8), numbers[STARTED] != 0
    references(layout, shared, data, memory, other)
    quadratic_hessian(layout, shared, data, memory)
    if not started:
        value = value_at(layout, shared, data, memory, x, u, cache)
        duals(layout, shared, data, u, cache)
        slope(layout, shared, data, view(cache, Y * rows, rows), g)
        gap = value - bound(layout, data, memory, g, cache, view(memory, layout[POINT], n))
        numbers[MU] = max(0.1 * max(gap, 0.0) / ((2 if settings[HAS_HI] else 1) * n + n), 1e-12)
        for j in range(n):
            state[layout[S_LO] + j] = numbers[MU] / (x[j] - memory[layout[LO] + j])
            state[layout[S_HI] + j] = numbers[MU] / (memory[layout[HI] + j] - x[j])
    inner(layout, shared, data, x, u)
    smooth(layout, shared, data, state, memory, numbers)
    if not started:
        initial_lags(layout, cache, view(state, layout[LAG], rows))
        numbers[STARTED] = 1.0


@inlined
def worth_certifying(layout, memory, numbers):
    """Whether the barrier's part of the gap is small enough for the certificate to succeed."""
    settings = view(memory, layout[SETTINGS], 8)
    count = (2 if settings[HAS_HI] else 1) * layout[DIM]
    return count * numbers[MU] <= WORTH_CERTIFYING * settings[TOL] * max(1.0, abs(numbers[VALUE]))


@compiled
def smooth(layout, shared, data, state, memory, numbers):
    """Fill the cache, its dual point, its gradient g and the smoothed objective at x, given u = A x + d."""
    n, rows = layout[DIM], layout[ROWS]
    u, cache = view(memory, layout[U], rows), view(memory, layout[CACHE], 6 * rows)
    affine = data[layout[CONSTANT]] + dot(view(data, layout[LINEAR], n), view(state, layout[X], n))
    numbers[VALUE] = affine + values(layout, shared, data, memory, u, numbers[MU], cache)
    duals(layout, shared, data, u, cache)
    slope(layout, shared, data, view(cache, Y * rows, rows), view(memory, layout[G], n))


@inlined
def record(layout, shared, data, state, memory, numbers):
    """Update the best point and bound by the current iterate, and the outcome."""
    n, rows = layout[DIM], layout[ROWS]
    cache, other = view(memory, layout[CACHE], 6 * rows), view(memory, layout[OTHER], 6 * rows)
    point, other_g, tol = (
        view(memory, layout[POINT], n),
        view(memory, layout[OTHER_G], n),
        memory[layout[SETTINGS] + TOL],
    )
    best = view(state, layout[BEST_X], n)
    previous = relative_gap(numbers[BEST_VALUE], numbers[BEST_BOUND])
    restore(layout, memory, view(state, layout[X], n), point)
    value = value_at(layout, shared, data, memory, point, view(memory, layout[TRIAL], rows), other)
    if value < numbers[BEST_VALUE]:
        numbers[BEST_VALUE] = value
        for j in range(n):
            best[j] = point[j]
    lower = bound(layout, data, memory, view(memory, layout[G], n), cache, point)
    if lower > numbers[BEST_BOUND]:
        numbers[BEST_BOUND] = lower
    if relative_gap(numbers[BEST_VALUE], numbers[BEST_BOUND]) > tol:
        # The lagged duals are often the better point; a second bound is needed only where the first is too low.
        lagged_duals(layout, shared, data, cache, view(state, layout[LAG], rows), other)
        slope(layout, shared, data, view(other, Y * rows, rows), other_g)
        lower = bound(layout, data, memory, other_g, other, point)
        if lower > numbers[BEST_BOUND]:
            numbers[BEST_BOUND] = lower
    gap = relative_gap(numbers[BEST_VALUE], numbers[BEST_BOUND])
    numbers[STUCK] = 0 if gap < 0.9 * previous else numbers[STUCK] + 1
    if gap <= tol:
        numbers[OUTCOME] = OPTIMAL
    elif numbers[STUCK] >= STALL_ITERATIONS:
        numbers[OUTCOME] = STALLED


@inlined
def advance(layout, shared, data, state, memory, numbers):
    """Take one Newton step, and lower mu where the smoothed problem is solved well."""
    n, rows, mu = layout[DIM], layout[ROWS], numbers[MU]
    u, du, trial = view(memory, layout[U], rows), view(memory, layout[DU], rows), view(memory, layout[TRIAL], rows)
    cache, lag = view(memory, layout[CACHE], 6 * rows), view(state, layout[LAG], rows)
    gradient, dx = view(memory, layout[LEFT], n), view(memory, layout[DX], n)
    settings = view(memory, layout[SETTINGS], 8)
    hessian(layout, shared, data, memory, u, cache, lag)
    add_bounds(layout, state, memory, mu, gradient)
    newton_direction(layout, memory, gradient, dx)
    decrement = -dot(gradient, dx)
    du[:] = 0.0
    add_rows(du, dx, n, shared, layout[TRANSPOSED], rows)
    advance_lags(layout, shared, data, u, du, cache, lag, trial)
    step = line_search(layout, shared, data, state, memory, numbers, decrement)
    move(layout, state, memory, mu, step)
    count, near = (2 if settings[HAS_HI] else 1) * n, max(decrement, 0.0)
    factor = 1.0
    if step >= 0.9 and near <= count * mu:
        factor = 0.1
    elif step >= 0.5 and near <= 10 * count * mu:
        factor = 0.3
    floor = 0.1 * settings[TOL] * max(1.0, abs(numbers[VALUE])) / (count + n)
    numbers[MU] = max(factor * mu, min(floor, mu))
    smooth(layout, shared, data, state, memory, numbers)


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
