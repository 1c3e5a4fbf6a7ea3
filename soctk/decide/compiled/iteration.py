"""The smoothing Newton method for many instances: `soctk.decide.newton` tells what each step is.

What a lane does never depends on the lanes beside it.
"""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.certificate import bound, relative_gap, restore, slope, value_at
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
    DECREMENT,
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
from soctk.decide.compiled.step import line_search, measure_rooms, move, newton_direction
from soctk.decide.compiled.terms import Y, duals, references, values
from soctk.decide.rules import SETTLED, STALL_ITERATIONS, UNSETTLED, WORTH_CERTIFYING
from soctk.simd.algebra import add_rows, dot, fill
from soctk.simd.lanes import WIDTH, any_of, as_lanes, choose, flat, view, width_of
from soctk.simd.options import called_from_python, compiled, inlined

FEW = WIDTH // 3
"""Lanes with instances in work for which another iteration is not worth while."""


def make_advance_all(sources: int):
    """Return the one function that is called from outside, compiled when it is first called and cached on disk.

    Args:
        sources: a digest of the files that it is compiled from. It is part of the cache's key: on its own Numba would
            look at this file alone, and use old code after a change of another.
    """

    def advance_all(layout, shared, common, data, state, scratch, memory, places, first, last, steps):
        """Take up to `steps` Newton steps with each of the instances first, ..., last - 1 that is still running.

        One instance is in work at a time, or one in each lane if `memory` (size, `lanes.WIDTH`) has room for that, all
        of them begun together. A lane whose instance is finished goes on for nothing: a new one in its place would be
        begun by itself, and want certificates in iterations in which no other lane does. When few are left in work they
        are put down as they are, to go on together with others' when all have been begun.

        Args:
            layout, shared, common, data, state, scratch, memory: see `soctk.decide.compiled.form`; `scratch` as
                `memory` for one instance.
            places: room for the number of the instance in each lane.
            first, last, steps: see above.
        """
        _ = sources
        own, memory, matrices = shared.shape[0] > 1, as_lanes(memory), shared[0]
        coefficients = view(memory, layout[HELD_DATA], data.shape[1])
        standing = view(memory, layout[HELD_STATE], state.shape[1])
        numbers = view(standing, layout[NUMBERS], NUMBERS_SIZE)
        width, done = width_of(numbers), layout[NUMBERS] + FINISHED
        if not own:
            outer_products(layout, matrices, common, scratch)
        remaining, following = 0, first
        for instance in range(first, last):
            running = state[instance, layout[NUMBERS] + OUTCOME] == RUNNING
            state[instance, done], state[instance, layout[NUMBERS] + TAKEN] = not running, 0
            remaining += running
        while remaining > 0:
            in_work = 0
            for lane in range(width):
                while following < last and state[following, done] != 0:
                    following += 1
                places[lane] = -1
                if following < last:
                    places[lane] = following
                    in_work += 1
                    following += 1
            if following == last:
                following = first
            if in_work == 0:
                continue
            for lane in range(width):
                instance = max(places[lane], places[0])
                into_lane(data[instance], coefficients, lane)
                into_lane(state[instance], standing, lane)
                flat(numbers)[FINISHED * width + lane] = places[lane] < 0
            if own:
                matrices = shared[places[0]]
                outer_products(layout, matrices, common, scratch)
            begin(layout, matrices, common, coefficients, standing, memory)
            few = FEW if in_work > FEW else 0
            while in_work > few:
                iterate(layout, matrices, common, coefficients, standing, memory, numbers, steps)
                for lane in range(width):
                    if places[lane] >= 0 and flat(numbers)[FINISHED * width + lane] != 0:
                        put_down(standing, lane, state[places[lane]])
                        places[lane] = -1
                        in_work, remaining = in_work - 1, remaining - 1
            for lane in range(width):
                if places[lane] >= 0:
                    put_down(standing, lane, state[places[lane]])

    return called_from_python(advance_all)


@compiled
def into_lane(source, target, lane):
    """Copy numbers to one lane of a vector."""
    width = width_of(target)
    to = view(flat(target), lane, width * (source.size - 1) + 1)
    for k in range(source.size):
        to[k * width] = source[k]


@compiled
def put_down(standing, lane, state):
    """Copy a lane's state back to the instance."""
    width = width_of(standing)
    source = view(flat(standing), lane, width * (state.size - 1) + 1)
    for k in range(state.size):
        state[k] = source[k * width]


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
    """Prepare instances; at their first time choose mu by the gap of the linearisation, and multipliers and lags.

    One that goes on does so as if it had never been put down.
    """
    n, rows = layout[DIM], layout[ROWS]
    numbers, settings = view(state, layout[NUMBERS], NUMBERS_SIZE), view(common, layout[SETTINGS], SETTINGS_SIZE)
    x, g = view(state, layout[X], n), view(memory, layout[G], n)
    u, trial = view(state, layout[U], rows), view(memory, layout[TRIAL], rows)
    cache, other = view(memory, layout[CACHE], 6 * rows), view(memory, layout[OTHER], 6 * rows)
    near_lo, near_hi = view(memory, layout[NEAR_LO], n), view(memory, layout[NEAR_HI], n)
    s_lo, s_hi = view(state, layout[S_LO], n), view(state, layout[S_HI], n)
    fresh = numbers[STARTED] == 0
    measure_rooms(layout, common, x, near_lo, near_hi)
    references(layout, shared, data, memory, other)
    quadratic_hessian(layout, shared, data, memory)
    if any_of(fresh):
        value = value_at(layout, shared, data, memory, x, trial, cache)
        duals(layout, shared, data, trial, cache)
        slope(layout, shared, data, view(cache, Y * rows, rows), g)
        gap = value - bound(layout, common, data, g, cache, view(memory, layout[POINT], n))
        mu = max(settings[FIRST_SHARE] * max(gap, 0.0) / (barriers(layout, common) + n), 1e-12)
        numbers[MU] = choose(fresh, mu, numbers[MU])
        for j in range(n):
            s_lo[j] = choose(fresh, mu * near_lo[j], s_lo[j])
            s_hi[j] = choose(fresh, mu * near_hi[j], s_hi[j])
        for k in range(rows):
            u[k] = choose(fresh, trial[k], u[k])
        numbers[CERTIFIED] = choose(fresh, -1.0, numbers[CERTIFIED])
    smooth(layout, shared, data, state, memory, numbers)
    if any_of(fresh):
        initial_lags(layout, cache, view(state, layout[LAG], rows), fresh)
    numbers[STARTED] = 1.0


@inlined
def worth_certifying(layout, common, numbers):
    """Whether the certificate is likely to succeed: the barrier's part of the gap and the last decrement are small."""
    wanted = common[layout[SETTINGS] + TOL] * max(1.0, abs(numbers[VALUE]))
    settled = (numbers[DECREMENT] <= SETTLED * wanted) | (numbers[ITERATIONS] >= UNSETTLED)
    return settled & (barriers(layout, common) * numbers[MU] <= WORTH_CERTIFYING * wanted)


@compiled
def barriers(layout, common):
    """Return the number of bounds that have a barrier."""
    return (2 if common[layout[SETTINGS] + HAS_HI] != 0 else 1) * layout[DIM]


@compiled
def smooth(layout, shared, data, state, memory, numbers):
    """Fill the cache, its dual point, its gradient g and the smoothed objective at x, given u = A x + d."""
    n, rows = layout[DIM], layout[ROWS]
    u, cache = view(state, layout[U], rows), view(memory, layout[CACHE], 6 * rows)
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
    u, du, trial = view(state, layout[U], rows), view(memory, layout[DU], rows), view(memory, layout[TRIAL], rows)
    cache, lag = view(memory, layout[CACHE], 6 * rows), view(state, layout[LAG], rows)
    gradient, dx = view(memory, layout[GRADIENT], n), view(memory, layout[DX], n)
    settings = view(common, layout[SETTINGS], SETTINGS_SIZE)
    newton_direction(layout, shared, common, data, state, memory, mu, gradient, dx)
    decrement = -dot(gradient, dx)
    numbers[DECREMENT] = decrement
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
