"""One Newton step: bounds, direction, line search, and the move itself."""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.constraints import move_slacks, weigh
from soctk.decide.compiled.curvature import hessian
from soctk.decide.compiled.terms import values
from soctk.decide.rules import (
    ARMIJO,
    BACKTRACK,
    LINE_SEARCH_TRIALS,
    MULTIPLIER_RANGE,
    TO_BOUNDARY,
)
from soctk.simd import any_of, choose, dot, sum_of, view
from soctk.simd.algebra import factor_upper, solve_upper
from soctk.simd.options import compiled

FACTORS_IN_PRODUCT = 12
"""Ratios multiplied before a logarithm is taken: each is above 1 - TO_BOUNDARY, so that the product is no underflow."""


@compiled
def newton_direction(problem, iterate, work):
    """Fill the barrier objective's gradient, and dx with the solution of H dx = -gradient; sum(dx) = 0 with a sum."""
    n, ridge, width = problem.n, 1e-14, problem.bordered
    factor, dx, ones = work.factor, work.dx, work.ones
    added, working = 0 * iterate.mu, iterate.finished[0] == 0
    if problem.constraints > 0:
        weigh(problem, iterate, work)
    while True:
        hessian(problem, work, iterate.u, iterate.lag, factor)
        add_bounds(problem, iterate, work, added)
        definite = factor_upper(factor, n, width, work.scratch)
        if not any_of(working & (not definite)) or ridge > 1:
            break
        # Rounding can make a positive definite matrix fail; a ridge relative to the diagonal repairs it.
        added, ridge = choose(definite, added, ridge), 100 * ridge
    solve_upper(factor, n, width, dx, ones)
    if problem.has_sum != 0:
        ratio = sum_of(dx) / sum_of(ones)
        for j in range(n):
            dx[j] -= ratio * ones[j]
        # Rounding of the Schur step must not let sum(x) drift.
        mean = sum_of(dx) / n
        for j in range(n):
            dx[j] -= mean


@compiled
def add_bounds(problem, iterate, work, ridge):
    """Fill the gradient; add the bounds' s / slack and a relative ridge to H, and fill its border [-gradient 1].

    Any multiple of 1 may be added to the gradient where sum(dx) = 0. At a vertex one coordinate has next to no
    curvature: H^-1 g would be huge there, only to be cancelled by a multiple of H^-1 1. So there g is made 0.
    """
    n, width, mu, has_hi = problem.n, problem.bordered, iterate.mu, problem.has_hi != 0
    factor, g, gradient = work.factor, work.g, work.gradient
    inverse_lo, inverse_hi, s_lo, s_hi = work.inverse_lo, work.inverse_hi, iterate.s_lo, iterate.s_hi
    for j in range(n):
        slope, curvature = g[j] - mu * inverse_lo[j], s_lo[j] * inverse_lo[j]
        if has_hi:
            slope, curvature = slope + mu * inverse_hi[j], curvature + s_hi[j] * inverse_hi[j]
        row = view(factor, j * width, width)
        row[j] = (row[j] + curvature) * (1 + ridge)
        row[n + 1], gradient[j] = 1.0, slope
    if problem.constraints > 0:
        for j in range(n):
            gradient[j] += work.q[j]
    shift = 0 * mu
    if problem.has_sum != 0:
        flattest, shift = factor[0], gradient[0]
        for j in range(1, n):
            flatter = factor[j * width + j] < flattest
            flattest = choose(flatter, factor[j * width + j], flattest)
            shift = choose(flatter, gradient[j], shift)
    for j in range(n):
        gradient[j] -= shift
        factor[j * width + n] = -gradient[j]


@compiled
def line_search(problem, iterate, work, decrement):
    """Return the largest step found that satisfies Armijo's rule, 0 where none does; `value` becomes its objective."""
    mu, value, x, dx, linear = iterate.mu, iterate.value, iterate.x, work.dx, problem.linear
    inverse_lo, inverse_hi, u, du, trial = work.inverse_lo, work.inverse_hi, iterate.u, work.du, work.trial
    used = TO_BOUNDARY + 0 * mu  # the largest share of a slack that a full step would use
    for j in range(problem.n):
        used = max(used, max(-dx[j] * inverse_lo[j], dx[j] * inverse_hi[j]))
    for i in range(problem.constraints):
        used = max(used, max(-work.dt[i] * work.t_inverse_lo[i], work.dt[i] * work.t_inverse_hi[i]))
    step = TO_BOUNDARY / used
    level, along = problem.constant + dot(linear, x), dot(linear, dx)
    rounding = 1e-14 * max(1.0, abs(value))
    searching, taken = iterate.finished[0] == 0, 0 * step
    for _ in range(LINE_SEARCH_TRIALS):
        for k in range(problem.rows):
            trial[k] = u[k] + step * du[k]
        moved = values(problem, work, trial, mu, work.other)
        moved += level + step * along
        change = -mu * barrier_change(dx, step, inverse_lo, inverse_hi, problem.has_hi != 0)
        if problem.constraints > 0:
            change -= mu * barrier_change(work.dt, step, work.t_inverse_lo, work.t_inverse_hi, True)
            change -= step * iterate.penalty * iterate.residual
        found = searching & (moved - value + change <= rounding - ARMIJO * step * decrement)
        iterate.value, taken = choose(found, moved, iterate.value), choose(found, step, taken)
        searching = searching & (not found)
        if not any_of(searching):
            break
        step = choose(searching, BACKTRACK * step, step)
    return taken


@compiled
def barrier_change(dx, step, inverse_lo, inverse_hi, has_hi):
    """Return the change of sum log(x - lo) + sum log(hi - x)."""
    total, product = 0.0, 1.0
    for j in range(dx.size):
        product *= 1 + step * dx[j] * inverse_lo[j]
        if has_hi:
            product *= 1 - step * dx[j] * inverse_hi[j]
        if j % FACTORS_IN_PRODUCT == FACTORS_IN_PRODUCT - 1:
            total += np.log(product)
            product = 1.0
    return total + np.log(product)


@compiled
def move(problem, iterate, work, mu, step):
    """Move x and u by the step, and the bounds' multipliers by the linearised s (x - lo) = mu."""
    x, dx, s_lo, s_hi, u, du = iterate.x, work.dx, iterate.s_lo, iterate.s_hi, iterate.u, work.du
    inverse_lo, inverse_hi = work.inverse_lo, work.inverse_hi
    for j in range(problem.n):
        x[j] += step * dx[j]
        s_lo[j] = (mu - s_lo[j] * dx[j]) * inverse_lo[j]
        s_hi[j] = (mu + s_hi[j] * dx[j]) * inverse_hi[j]
    invert_slacks(problem, x, inverse_lo, inverse_hi)
    for j in range(problem.n):
        s_lo[j] = into_range(s_lo[j], mu * inverse_lo[j])
        s_hi[j] = into_range(s_hi[j], mu * inverse_hi[j])
    for k in range(problem.rows):
        u[k] += step * du[k]
    if problem.constraints > 0:
        move_slacks(problem, iterate, work, mu, step)


@compiled
def invert_slacks(problem, x, inverse_lo, inverse_hi):
    """Fill the reciprocals of x - lo and of hi - x, 0 where there is no bound: divisions take long, so once for all."""
    lo, hi = problem.lo, problem.hi
    if problem.has_hi == 0:
        for j in range(x.size):
            inverse_lo[j], inverse_hi[j] = 1 / (x[j] - lo[j]), 0.0
        return
    for j in range(x.size):
        above, below = x[j] - lo[j], hi[j] - x[j]
        both = 1 / (above * below)
        inverse_lo[j], inverse_hi[j] = below * both, above * both


@compiled
def into_range(s, target):
    """Return a multiplier kept within a range of mu / slack."""
    return max(min(s, MULTIPLIER_RANGE * target), (1 / MULTIPLIER_RANGE) * target)
