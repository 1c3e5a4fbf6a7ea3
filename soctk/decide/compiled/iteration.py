"""The smoothing Newton method for many instances: `soctk.decide.newton` tells what each step is.

What a lane does never depends on the lanes beside it.
"""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.arrays import (
    ARRAYS,
    INFEASIBLE,
    ITERATION_LIMIT,
    OPTIMAL,
    OUT_OF_WORK,
    RUNNING,
    STALLED,
)
from soctk.decide.compiled.certificate import bound, reaches, relative_gap, restore, slope, value_at
from soctk.decide.compiled.constraints import (
    PENALTY_SHARE,
    begin_slacks,
    price,
    proved_empty,
    slack_direction,
    violated,
)
from soctk.decide.compiled.curvature import constant_hessian, outer_products
from soctk.decide.compiled.dispatch import problem_of
from soctk.decide.compiled.step import invert_slacks, line_search, move, newton_direction
from soctk.decide.compiled.terms import (
    advance_lags,
    balance_lags,
    duals,
    initial_lags,
    lagged_duals,
    references,
    values,
)
from soctk.decide.rules import SETTLED, STALL_ITERATIONS, UNSETTLED, WORTH_CERTIFYING
from soctk.simd import add_rows, any_of, choose, dot, fill, view
from soctk.simd.lanes import WIDTH, as_lanes, flat, width_of
from soctk.simd.options import called_from_python, compiled, inlined
from soctk.simd.records import record_of

iterate_of, work_of = record_of(ARRAYS, "state"), record_of(ARRAYS, "memory")
FEW, FEW_WITH_ROWS = WIDTH // 3, WIDTH // 2
"""Lanes with instances in work for which another iteration is not worth while; over sets with constraints R, where the
numbers of iterations differ more."""


def make_advance_all(kinds: int):
    """Return the one function that is called from outside, compiled when it is first called and cached on disk.

    Args:
        kinds: stands for the kinds of terms and all that is compiled (`dispatch.key_of`). It is part of the cache's
            key: on its own Numba would look at this file alone, and use old code after a change of another.
    """

    def advance_all(layout, shared, common, sides, data, state, scratch, memory, places, first, last, steps):
        """Take up to `steps` Newton steps with each of the instances first, ..., last - 1 that is still running.

        One instance is in work at a time, or one in each lane if `memory` (size, `lanes.WIDTH`) has room for that, all
        of them begun together. A lane whose instance is finished goes on for nothing: a new one in its place would be
        begun by itself, and want certificates in iterations in which no other lane does. When few are left in work they
        are written back as they are, to go on together with others' when all have been begun.

        Args:
            layout, shared, common, sides, data, state, scratch, memory: see `soctk.decide.compiled.arrays`; `scratch`
                as `memory` for one instance; one row of `sides` for all instances or one for each.
            places: room for the number of the instance in each lane.
            first, last, steps: see above.
        """
        own, matrices, memory = shared.shape[0] > 1, shared[0], as_lanes(memory)
        work, width = work_of(layout, memory), width_of(memory)
        held = work.held_data, work.held_state, work.held_sides
        problem, iterate = problem_of(kinds, layout, matrices, common, held[2], held[0]), iterate_of(layout, held[1])
        if not own:
            outer_products(problem, work_of(layout, scratch))
            reaches(problem)
        remaining, following, ended = 0, first, layout[OUT_OF_WORK]
        for instance in range(first, last):
            one = iterate_of(layout, state[instance])
            one.finished[0], one.taken = one.outcome != RUNNING, 0
            remaining += one.outcome == RUNNING
        while remaining > 0:
            in_work = 0
            for lane in range(width):
                while following < last and iterate_of(layout, state[following]).finished[0] != 0:
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
                here = state[instance]
                known = here.size if iterate_of(layout, here).started != 0 else ended
                load_lane(data[instance], held[0], lane)
                load_lane(sides[min(instance, sides.shape[0] - 1)], held[2], lane)
                load_lane(view(here, 0, known), held[1], lane)
                flat(iterate.finished)[lane] = places[lane] < 0
            if own:
                problem = problem_of(kinds, layout, shared[places[0]], common, held[2], held[0])
                outer_products(problem, work_of(layout, scratch))
                reaches(problem)
            begin(problem, iterate, work)
            few = FEW_WITH_ROWS if problem.constraints > 0 else FEW
            few = few if in_work > few else 0
            while in_work > few:
                proceed(problem, iterate, work, steps)
                for lane in range(width):
                    if places[lane] >= 0 and flat(iterate.finished)[lane] != 0:
                        here = state[places[lane]]
                        write_back(held[1], lane, view(here, 0, ended))
                        if problem.keep_final != 0 or iterate_of(layout, here).outcome == RUNNING:
                            write_back(held[1], lane, here)
                        places[lane] = -1
                        in_work, remaining = in_work - 1, remaining - 1
            for lane in range(width):
                if places[lane] >= 0:
                    write_back(held[1], lane, state[places[lane]])

    return called_from_python(advance_all)


@compiled
def load_lane(source, target, lane):
    """Copy numbers to one lane of a vector."""
    width = width_of(target)
    to = view(flat(target), lane, width * (source.size - 1) + 1)
    for k in range(source.size):
        to[k * width] = source[k]


@compiled
def write_back(held, lane, state):
    """Copy a lane's state back to the instance."""
    width = width_of(held)
    source = view(flat(held), lane, width * (state.size - 1) + 1)
    for k in range(state.size):
        state[k] = source[k * width]


@inlined
def proceed(problem, iterate, work, steps):
    """Take Newton steps until another instance is finished or has taken `steps` of them."""
    while True:
        limit = iterate.iterations >= problem.max_iter
        pause = limit | (iterate.taken >= steps)
        wanted = pause | worth_certifying(problem, iterate)
        wanted = wanted & (iterate.outcome == RUNNING) & (iterate.certified != iterate.iterations)
        wanted = wanted & (iterate.finished[0] == 0)
        if any_of(wanted):
            record(problem, iterate, work, wanted)
            iterate.certified = choose(wanted, iterate.iterations, iterate.certified)
        running = iterate.outcome == RUNNING
        iterate.outcome = choose(running & limit, ITERATION_LIMIT, iterate.outcome)
        finished = (iterate.finished[0] == 0) & (pause | (iterate.outcome != RUNNING))
        iterate.finished[0] = choose(finished, 1.0, iterate.finished[0])
        if any_of(finished):
            break
        advance(problem, iterate, work)
        iterate.iterations += 1
        iterate.taken += 1


@compiled
def balance(problem, iterate, work):
    """Balance the dual iterates where a certificate may be tried after this step, lowered as mu is at most."""
    lag, balanced, lowest = iterate.lag, iterate.balanced, min(problem.rules[0], problem.rules[3]) * iterate.mu
    near = lowest * iterate.barriers <= 2 * WORTH_CERTIFYING * problem.tol * max(1.0, abs(iterate.value))
    if any_of(near):
        balance_lags(problem, work, iterate.u, lag, balanced)
    for k in range(problem.rows):
        balanced[k] = choose(near, balanced[k], lag[k])


@inlined
def begin(problem, iterate, work):
    """Prepare instances; at their first time choose mu by the gap of the linearisation, and multipliers and lags.

    One that goes on does so as if it had never been written back.
    """
    x, s_lo, s_hi, u, trial = iterate.x, iterate.s_lo, iterate.s_hi, iterate.u, work.trial
    inverse_lo, inverse_hi = work.inverse_lo, work.inverse_hi
    fresh = iterate.started == 0
    invert_slacks(problem, x, inverse_lo, inverse_hi)
    references(problem, work)
    constant_hessian(problem, work, u, iterate.lag)
    if any_of(fresh):
        value = value_at(problem, work, x, trial, work.here)
        duals(problem, trial, work.here)
        slope(problem, work.here, work.g)
        gap = value - bound(problem, work.g, work.here, work.point)
        iterate.barriers = choose(fresh, (2.0 if problem.has_hi != 0 else 1.0) * problem.n, iterate.barriers)
        mu = max(problem.first_share * max(gap, 0.0) / (iterate.barriers + problem.n), 1e-12)
        iterate.mu = choose(fresh, mu, iterate.mu)
        iterate.first_gap = choose(fresh, gap, iterate.first_gap)
        for j in range(problem.n):
            s_lo[j] = choose(fresh, mu * inverse_lo[j], s_lo[j])
            s_hi[j] = choose(fresh, mu * inverse_hi[j], s_hi[j])
        for k in range(problem.rows):
            u[k] = choose(fresh, trial[k], u[k])
        iterate.certified = choose(fresh, -1.0, iterate.certified)
    if problem.constraints > 0:
        begin_slacks(problem, iterate, work, iterate.mu, fresh)
    smooth(problem, iterate, work)
    if any_of(fresh):
        initial_lags(problem, work, u, iterate.lag, fresh)
        keep(iterate.balanced, iterate.lag, problem.rows, fresh)
    iterate.started = 1.0


@inlined
def worth_certifying(problem, iterate):
    """Whether the certificate is likely to succeed: the barrier's part of the gap and the last decrement are small."""
    wanted = problem.tol * max(1.0, abs(iterate.value))
    settled = (iterate.decrement <= SETTLED * wanted) | (iterate.iterations >= UNSETTLED)
    return settled & (iterate.barriers * iterate.mu <= WORTH_CERTIFYING * wanted)


@compiled
def smooth(problem, iterate, work):
    """Fill the cache, its dual point, its gradient g and the smoothed objective at x, given u = A x + d."""
    u, here = iterate.u, work.here
    affine = problem.constant + dot(problem.linear, iterate.x)
    iterate.value = affine + values(problem, work, u, iterate.mu, here)
    duals(problem, u, here)
    slope(problem, here, work.g)


@inlined
def record(problem, iterate, work, wanted):
    """Update the best points and bounds that are wanted by the current iterates, and the outcomes."""
    here, other, point, tol, best = work.here, work.other, work.point, problem.tol, iterate.best_x
    previous = relative_gap(iterate.best_value, iterate.best_bound)
    restore(problem, iterate.x, point)
    if problem.constraints > 0:
        wanted = wanted & (not violated(problem, work, point))
    value = value_at(problem, work, point, work.trial, other)
    better = wanted & (value < iterate.best_value)
    iterate.best_value = choose(better, value, iterate.best_value)
    for j in range(problem.n):
        best[j] = choose(better, point[j], best[j])
    raise_bound(problem, iterate, work, work.g, here, wanted)
    missing = wanted & (relative_gap(iterate.best_value, iterate.best_bound) > tol)
    if any_of(missing):
        # The dual iterates are often the better point; a second bound is needed only where the first is too low.
        lagged_duals(problem, work, iterate.balanced)
        slope(problem, other, work.other_g)
        raise_bound(problem, iterate, work, work.other_g, other, missing)
    gap = relative_gap(iterate.best_value, iterate.best_bound)
    stuck = choose(gap < 0.9 * previous, 0.0, iterate.stuck + 1)
    iterate.stuck = choose(wanted, stuck, iterate.stuck)
    outcome = choose(gap <= tol, OPTIMAL, choose(stuck >= STALL_ITERATIONS, STALLED, RUNNING))
    iterate.outcome = choose(wanted, outcome, iterate.outcome)


@compiled
def raise_bound(problem, iterate, work, g, cache, wanted):
    """Raise the best bounds that are wanted and exceeded by that of a dual point, g = v + A'y."""
    level = 0 * iterate.mu
    if problem.constraints > 0:
        level, shifted = price(problem, iterate.multiplier, work.q), work.dx
        for j in range(problem.n):
            shifted[j] = g[j] + work.q[j]
        g = shifted
    lower = level + bound(problem, g, cache, work.point)
    higher = wanted & (lower > iterate.best_bound) & (lower < np.inf)
    iterate.best_bound = choose(higher, lower, iterate.best_bound)
    keep(iterate.best_multiplier, iterate.multiplier, problem.constraints, higher)
    keep(iterate.best_cache, cache, problem.kept, higher)


@compiled
def keep(target, source, count, wanted):
    """Overwrite numbers where that is wanted."""
    for k in range(count):
        target[k] = choose(wanted, source[k], target[k])


@inlined
def advance(problem, iterate, work):
    """Take one Newton step, and lower mu where the iterate is near the path."""
    mu, du, dx, rules = iterate.mu, work.du, work.dx, problem.rules
    newton_direction(problem, iterate, work)
    decrement = -dot(work.gradient, dx)
    if problem.constraints > 0:
        decrement += slack_direction(problem, iterate, work)
        empty = proved_empty(problem, iterate, work)
        iterate.outcome = choose(empty, INFEASIBLE, iterate.outcome)
        keep(iterate.best_multiplier, iterate.multiplier, problem.constraints, empty)
    iterate.decrement = decrement
    fill(du, 0.0)
    add_rows(du, dx, problem.n, problem.A_transposed, 0, problem.rows)
    advance_lags(problem, work, iterate.u, iterate.lag)
    balance(problem, iterate, work)
    step = line_search(problem, iterate, work, decrement)
    move(problem, iterate, work, mu, step)
    count, factor = iterate.barriers, 0 * mu + 1
    left = (1 - step) * iterate.penalty * iterate.residual <= PENALTY_SHARE * count * mu
    for at in (3, 0):
        near = left & (step >= rules[at + 1]) & (decrement <= rules[at + 2] * count * mu)
        factor = choose(near, rules[at], factor)
    floor = problem.last_share * problem.tol * max(1.0, abs(iterate.value)) / (count + problem.n)
    iterate.mu = max(factor * mu, min(floor, mu))
    smooth(problem, iterate, work)
