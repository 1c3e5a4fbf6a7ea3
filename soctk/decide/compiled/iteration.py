"""The smoothing Newton method for one instance after another: `soctk.decide.newton` tells what each step is."""

from __future__ import annotations

from typing import Any

from numba import njit

from soctk.decide.compiled.algebra import add_rows, compiled, dot, inlined
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
    FIRST_SHARE,
    GRADIENT,
    HAS_HI,
    HI,
    ITERATION_LIMIT,
    ITERATIONS,
    LAG,
    LINEAR,
    LO,
    MAX_ITER,
    MU,
    NUMBERS,
    OPTIMAL,
    OTHER,
    OTHER_G,
    OUTCOME,
    POINT,
    ROWS,
    RULES,
    RUNNING,
    S_HI,
    S_LO,
    SETTINGS,
    SETTINGS_SIZE,
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
from soctk.decide.compiled.lanes import view
from soctk.decide.compiled.step import add_bounds, line_search, move, newton_direction
from soctk.decide.compiled.terms import Y, duals, references, values
from soctk.decide.rules import (
    STALL_ITERATIONS,
    WORTH_CERTIFYING,
)


def make_advance_all(sources: int):
    """Return the one function that is called from outside, compiled when it is first called and cached on disk.

    Args:
        sources: a digest of the files that it is compiled from. It is part of the cache's key: on its own Numba would
            look at this file alone, and use old code after a change of another.
    """

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

    options: dict[str, Any] = {"error_model": "numpy", "nogil": True}
    try:
        return njit(cache=True, **options)(advance_all)
    except RuntimeError:  # neither the package's folder nor the user's own can be written to
        return njit(**options)(advance_all)


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
    settings, started = view(memory, layout[SETTINGS], SETTINGS_SIZE), numbers[STARTED] != 0
    references(layout, shared, data, memory, other)
    quadratic_hessian(layout, shared, data, memory)
    if not started:
        value = value_at(layout, shared, data, memory, x, u, cache)
        duals(layout, shared, data, u, cache)
        slope(layout, shared, data, view(cache, Y * rows, rows), g)
        gap = value - bound(layout, data, memory, g, cache, view(memory, layout[POINT], n))
        numbers[MU] = max(settings[FIRST_SHARE] * max(gap, 0.0) / ((2 if settings[HAS_HI] else 1) * n + n), 1e-12)
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
    settings = view(memory, layout[SETTINGS], SETTINGS_SIZE)
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
    """Take one Newton step, and lower mu where the iterate is near the path."""
    n, rows, mu = layout[DIM], layout[ROWS], numbers[MU]
    u, du, trial = view(memory, layout[U], rows), view(memory, layout[DU], rows), view(memory, layout[TRIAL], rows)
    cache, lag = view(memory, layout[CACHE], 6 * rows), view(state, layout[LAG], rows)
    gradient, dx = view(memory, layout[GRADIENT], n), view(memory, layout[DX], n)
    settings = view(memory, layout[SETTINGS], SETTINGS_SIZE)
    hessian(layout, shared, data, memory, u, cache, lag)
    add_bounds(layout, state, memory, mu, gradient)
    newton_direction(layout, memory, gradient, dx)
    decrement = -dot(gradient, dx)
    du[:] = 0.0
    add_rows(du, dx, n, shared, layout[TRANSPOSED], rows)
    advance_lags(layout, shared, data, u, du, cache, lag, trial)
    step = line_search(layout, shared, data, state, memory, numbers, decrement)
    move(layout, state, memory, mu, step)
    count = (2 if settings[HAS_HI] else 1) * n
    factor = 1.0
    for at in (RULES + 3, RULES):
        if step >= settings[at + 1] and decrement <= settings[at + 2] * count * mu:
            factor = settings[at]
    floor = 0.1 * settings[TOL] * max(1.0, abs(numbers[VALUE])) / (count + n)
    numbers[MU] = max(factor * mu, min(floor, mu))
    smooth(layout, shared, data, state, memory, numbers)
