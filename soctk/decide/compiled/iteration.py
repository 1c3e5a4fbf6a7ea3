"""The smoothing Newton method for many instances: `soctk.decide.newton` tells what each step is.

What a lane does never depends on the lanes beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from soctk.decide.compiled.algebra import add_rows, dot, fill
from soctk.decide.compiled.certificate import bound, inner, relative_gap, restore, slope, value_at
from soctk.decide.compiled.curvature import (
    advance_lags,
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
    CERTIFIED,
    CONSTANT,
    DIM,
    DU,
    DX,
    FINISHED,
    FIRST_SHARE,
    GRADIENT,
    HAS_HI,
    HELD_DATA,
    HELD_STATE,
    ITERATION_LIMIT,
    ITERATIONS,
    LAG,
    LAST_SHARE,
    LINEAR,
    MAX_ITER,
    MU,
    NEAR_HI,
    NEAR_LO,
    NUMBERS,
    NUMBERS_SIZE,
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
    TAKEN,
    TOL,
    TRANSPOSED,
    TRIAL,
    VALUE,
    G,
    U,
    X,
)
from soctk.decide.compiled.lanes import any_of, as_lanes, choose, flat, view, width_of
from soctk.decide.compiled.options import compiled, inlined
from soctk.decide.compiled.step import line_search, measure_rooms, move, newton_direction
from soctk.decide.compiled.terms import Y, duals, references, values
from soctk.decide.rules import STALL_ITERATIONS, WORTH_CERTIFYING


def make_advance_all(sources: int):
    """Return the one function that is called from outside, compiled when it is first called and cached on disk.

    Args:
        sources: a digest of the files that it is compiled from. It is part of the cache's key: on its own Numba would
            look at this file alone, and use old code after a change of another.
    """

    def advance_all(layout, shared, common, data, state, scratch, memory, running, first, last, steps):
        """Take up to `steps` Newton steps with each of the instances first, ..., last - 1 that is still running.

        One instance is in work at a time, or one in each lane if `memory` (size, `lanes.WIDTH`) has room for that, all
        of them begun together. A lane whose instance is finished goes on, for nothing, until the last is: new ones in
        its place would be begun one by one, and want certificates in iterations in which no other lane does.
        """
        _ = sources
        own, memory, matrices = shared.shape[0] > 1, as_lanes(memory), shared[0]
        coefficients = view(memory, layout[HELD_DATA], data.shape[1])
        standing = view(memory, layout[HELD_STATE], state.shape[1])
        numbers = view(standing, layout[NUMBERS], NUMBERS_SIZE)
        width = width_of(numbers)
        if not own:
            outer_products(layout, matrices, common, scratch)
        for start in range(first, last, width):
            for lane in range(width):
                instance = min(start + lane, last - 1)
                running[lane] = start + lane < last and state[instance, layout[NUMBERS] + OUTCOME] == RUNNING
                into_lane(data[instance], coefficients, lane)
                into_lane(state[instance], standing, lane)
                flat(numbers)[FINISHED * width + lane] = not running[lane]
            if not running.any():
                continue
            if own:
                matrices = shared[start]
                outer_products(layout, matrices, common, scratch)
            begin(layout, matrices, common, coefficients, standing, memory)
            while running.any():
                iterate(layout, matrices, common, coefficients, standing, memory, numbers, steps)
                for lane in range(width):
                    if running[lane] and flat(numbers)[FINISHED * width + lane] != 0:
                        put_down(standing, lane, state[start + lane])
                        running[lane] = False

    options: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False}
    try:
        return njit(cache=True, **options)(advance_all)
    except RuntimeError:  # neither the package's folder nor the user's own can be written to
        return njit(**options)(advance_all)


@compiled
def into_lane(source, target, lane):
    """Copy numbers to one lane of a vector."""
    to, width = flat(target), width_of(target)
    for k in range(source.size):
        to[k * width + lane] = source[k]


@compiled
def put_down(standing, lane, state):
    """Copy a lane's state back to the instance."""
    source, width = flat(standing), width_of(standing)
    for k in range(state.size):
        state[k] = source[k * width + lane]


@inlined
def iterate(layout, shared, common, data, state, memory, numbers, steps):
    """Take Newton steps until another instance is finished or has taken `steps` of them."""
    while True:
        limit = numbers[ITERATIONS] >= common[layout[SETTINGS] + MAX_ITER]
        pause = limit | (numbers[TAKEN] >= steps)
        wanted = pause | worth_certifying(layout, common, numbers)
        wanted = wanted & (numbers[FINISHED] == 0) & (numbers[CERTIFIED] != numbers[ITERATIONS])
        if any_of(wanted):
            record(layout, shared, common, data, state, memory, numbers, wanted)
            numbers[CERTIFIED] = choose(wanted, numbers[ITERATIONS], numbers[CERTIFIED])
        running = numbers[OUTCOME] == RUNNING
        numbers[OUTCOME] = choose(running & limit, ITERATION_LIMIT, numbers[OUTCOME])
        finished = (numbers[FINISHED] == 0) & (pause | (numbers[OUTCOME] != RUNNING))
        numbers[FINISHED] = choose(finished, 1.0, numbers[FINISHED])
        if any_of(finished):
            break
        advance(layout, shared, common, data, state, memory, numbers)
        numbers[ITERATIONS] += 1
        numbers[TAKEN] += 1


@inlined
def begin(layout, shared, common, data, state, memory):
    """Prepare instances; at their first time choose mu by the gap of the linearisation, and multipliers and lags."""
    n, rows = layout[DIM], layout[ROWS]
    numbers, settings = view(state, layout[NUMBERS], NUMBERS_SIZE), view(common, layout[SETTINGS], SETTINGS_SIZE)
    x, u, g = view(state, layout[X], n), view(memory, layout[U], rows), view(memory, layout[G], n)
    cache, other = view(memory, layout[CACHE], 6 * rows), view(memory, layout[OTHER], 6 * rows)
    near_lo, near_hi = view(memory, layout[NEAR_LO], n), view(memory, layout[NEAR_HI], n)
    s_lo, s_hi = view(state, layout[S_LO], n), view(state, layout[S_HI], n)
    fresh = numbers[STARTED] == 0
    measure_rooms(layout, common, x, near_lo, near_hi)
    references(layout, shared, data, memory, other)
    quadratic_hessian(layout, shared, data, memory)
    if any_of(fresh):
        value = value_at(layout, shared, data, memory, x, u, cache)
        duals(layout, shared, data, u, cache)
        slope(layout, shared, data, view(cache, Y * rows, rows), g)
        gap = value - bound(layout, common, data, g, cache, view(memory, layout[POINT], n))
        mu = max(settings[FIRST_SHARE] * max(gap, 0.0) / (barriers(layout, common) + n), 1e-12)
        numbers[MU] = choose(fresh, mu, numbers[MU])
        for j in range(n):
            s_lo[j] = choose(fresh, mu * near_lo[j], s_lo[j])
            s_hi[j] = choose(fresh, mu * near_hi[j], s_hi[j])
        numbers[CERTIFIED] = choose(fresh, -1.0, numbers[CERTIFIED])
    inner(layout, shared, data, x, u)
    smooth(layout, shared, data, state, memory, numbers)
    if any_of(fresh):
        initial_lags(layout, cache, view(state, layout[LAG], rows), fresh)
    numbers[STARTED], numbers[TAKEN] = 1.0, 0.0


@inlined
def worth_certifying(layout, common, numbers):
    """Whether the barrier's part of the gap is small enough for the certificate to succeed."""
    tol = common[layout[SETTINGS] + TOL]
    return barriers(layout, common) * numbers[MU] <= WORTH_CERTIFYING * tol * max(1.0, abs(numbers[VALUE]))


@compiled
def barriers(layout, common):
    """Return the number of bounds that have a barrier."""
    return (2 if common[layout[SETTINGS] + HAS_HI] != 0 else 1) * layout[DIM]


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
def record(layout, shared, common, data, state, memory, numbers, wanted):
    """Update the best points and bounds that are wanted by the current iterates, and the outcomes."""
    n, rows = layout[DIM], layout[ROWS]
    cache, other = view(memory, layout[CACHE], 6 * rows), view(memory, layout[OTHER], 6 * rows)
    point, other_g, tol = (
        view(memory, layout[POINT], n),
        view(memory, layout[OTHER_G], n),
        common[layout[SETTINGS] + TOL],
    )
    best = view(state, layout[BEST_X], n)
    previous = relative_gap(numbers[BEST_VALUE], numbers[BEST_BOUND])
    restore(layout, common, view(state, layout[X], n), point)
    value = value_at(layout, shared, data, memory, point, view(memory, layout[TRIAL], rows), other)
    better = wanted & (value < numbers[BEST_VALUE])
    numbers[BEST_VALUE] = choose(better, value, numbers[BEST_VALUE])
    for j in range(n):
        best[j] = choose(better, point[j], best[j])
    lower = bound(layout, common, data, view(memory, layout[G], n), cache, point)
    raise_bound(numbers, lower, wanted)
    missing = wanted & (relative_gap(numbers[BEST_VALUE], numbers[BEST_BOUND]) > tol)
    if any_of(missing):
        # The lagged duals are often the better point; a second bound is needed only where the first is too low.
        lagged_duals(layout, shared, data, cache, view(state, layout[LAG], rows), other)
        slope(layout, shared, data, view(other, Y * rows, rows), other_g)
        raise_bound(numbers, bound(layout, common, data, other_g, other, point), missing)
    gap = relative_gap(numbers[BEST_VALUE], numbers[BEST_BOUND])
    stuck = choose(gap < 0.9 * previous, 0.0, numbers[STUCK] + 1)
    numbers[STUCK] = choose(wanted, stuck, numbers[STUCK])
    outcome = choose(gap <= tol, OPTIMAL, choose(stuck >= STALL_ITERATIONS, STALLED, RUNNING))
    numbers[OUTCOME] = choose(wanted, outcome, numbers[OUTCOME])


@inlined
def raise_bound(numbers, lower, wanted):
    """Raise the best bounds that are wanted and exceeded."""
    higher = wanted & (lower > numbers[BEST_BOUND]) & (lower < np.inf)
    numbers[BEST_BOUND] = choose(higher, lower, numbers[BEST_BOUND])


@inlined
def advance(layout, shared, common, data, state, memory, numbers):
    """Take one Newton step, and lower mu where the iterate is near the path."""
    n, rows, mu = layout[DIM], layout[ROWS], numbers[MU]
    u, du, trial = view(memory, layout[U], rows), view(memory, layout[DU], rows), view(memory, layout[TRIAL], rows)
    cache, lag = view(memory, layout[CACHE], 6 * rows), view(state, layout[LAG], rows)
    gradient, dx = view(memory, layout[GRADIENT], n), view(memory, layout[DX], n)
    settings = view(common, layout[SETTINGS], SETTINGS_SIZE)
    newton_direction(layout, shared, common, data, state, memory, mu, gradient, dx)
    decrement = -dot(gradient, dx)
    fill(du, 0.0)
    add_rows(du, dx, n, shared, layout[TRANSPOSED], rows)
    advance_lags(layout, shared, data, u, du, cache, lag, trial)
    step = line_search(layout, shared, common, data, state, memory, numbers, decrement)
    move(layout, common, state, memory, mu, step)
    count = barriers(layout, common)
    factor = 0 * mu + 1
    for at in (RULES + 3, RULES):
        near = (step >= settings[at + 1]) & (decrement <= settings[at + 2] * count * mu)
        factor = choose(near, settings[at], factor)
    floor = settings[LAST_SHARE] * settings[TOL] * max(1.0, abs(numbers[VALUE])) / (count + n)
    numbers[MU] = max(factor * mu, min(floor, mu))
    smooth(layout, shared, data, state, memory, numbers)
