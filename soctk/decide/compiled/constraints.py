"""Constraints l <= R x <= u of a set in compiled code: their part of a Newton step, of a bound, and Farkas' proof.

They get slack variables t = R x, which the iterations need not satisfy at once (infeasible start), and a barrier:

    min f(x) - mu sum log(x - lo) - mu sum log(hi - x) - mu sum log(t - l) - mu sum log(u - t)  subject to  R x = t.

With the excess e = R x - t, primal-dual multipliers z_lo (t - l) = mu and z_hi (u - t) = mu, W = z_lo / (t - l) +
z_hi / (u - t) and b = -mu / (t - l) + mu / (u - t), elimination of dt from Newton's equations leaves

    (H + R'W R) dx = -(g + R'(b + W e)),    dt = R dx + e,    multiplier  = W dt + b.

One full step removes the excess for good. The line search's merit function adds penalty * |e|_1, exact for a penalty
above the multipliers. For any multiplier y, positive parts on u and negative ones on l, and q = R'y,

    sum(-y+ u + y- l) + min over lo <= x <= hi of (g + q)'x  <=  min of g'x over the set;

with g = 0 and a positive left side the set is empty (Farkas). A side may be infinite: its reciprocal slack is 0.
"""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.arrays import RUNNING
from soctk.decide.rules import MULTIPLIER_RANGE
from soctk.simd import add_rows, any_of, choose, fill
from soctk.simd.options import compiled

LARGEST_VIOLATION = 1e-11
"""Of a point that is certified: by how much it may violate a constraint of length one, relative to its side."""
SHARE_OF_WIDTH = 0.1
"""A slack begins at least this share of its range inside."""
PROOF = 1e-10
"""Farkas' sum, relative to what it adds, from which on the set is taken to be empty."""
PENALTY_SHARE = 10.0
"""mu is lowered only if the excess that is left, in the merit function, is at most this times what the barriers are."""


@compiled
def begin_slacks(problem, iterate, work, mu, fresh):
    """Begin fresh instances with slacks inside of their range, and multipliers to match; count all barriers."""
    n, R, lo, hi, R_lo, R_hi = problem.n, problem.R, problem.lo, problem.hi, problem.R_lo, problem.R_hi
    t, z_lo, z_hi = iterate.t, iterate.z_lo, iterate.z_hi
    count = 0 * mu + (2 if problem.has_hi != 0 else 1) * n
    for i in range(problem.constraints):
        here, least, most = 0 * mu, 0 * mu, 0 * mu
        for j in range(n):
            one, two = R[i * n + j] * lo[j], R[i * n + j] * hi[j]
            here += R[i * n + j] * iterate.x[j]
            least, most = least + min(one, two), most + max(one, two)
        low, high = R_lo[i], R_hi[i]
        width = max(min(high, most) - max(low, least), 1e-6 * (1 + abs(here)))
        margin = min(SHARE_OF_WIDTH * width, 0.25 * (high - low))
        t[i] = choose(fresh, min(max(here, low + margin), high - margin), t[i])
        count += choose(low > -np.inf, 1.0, 0.0) + choose(high < np.inf, 1.0, 0.0)
    iterate.barriers = choose(fresh, count, iterate.barriers)
    invert_slacks_of_constraints(problem, iterate, work)
    for i in range(problem.constraints):
        z_lo[i] = choose(fresh, mu * work.t_inverse_lo[i], z_lo[i])
        z_hi[i] = choose(fresh, mu * work.t_inverse_hi[i], z_hi[i])


@compiled
def invert_slacks_of_constraints(problem, iterate, work):
    """Fill the reciprocals of t - l and u - t."""
    for i in range(problem.constraints):
        work.t_inverse_lo[i] = 1 / (iterate.t[i] - problem.R_lo[i])
        work.t_inverse_hi[i] = 1 / (problem.R_hi[i] - iterate.t[i])


@compiled
def weigh(problem, iterate, work):
    """Fill the weights W, the excess e, and q with R'(b + W e)."""
    mu, excess, pull = iterate.mu, work.excess, work.dt
    fill(excess, 0.0)
    add_rows(excess, iterate.x, problem.n, problem.R_transposed, 0, problem.constraints)
    residual = 0 * mu
    for i in range(problem.constraints):
        inverse_lo, inverse_hi = work.t_inverse_lo[i], work.t_inverse_hi[i]
        excess[i] -= iterate.t[i]
        residual += abs(excess[i])
        work.weight[i] = iterate.z_lo[i] * inverse_lo + iterate.z_hi[i] * inverse_hi
        pull[i] = mu * (inverse_hi - inverse_lo) + work.weight[i] * excess[i]
    iterate.residual = residual
    fill(work.q, 0.0)
    add_rows(work.q, pull, problem.constraints, problem.R, 0, problem.n)


@compiled
def slack_direction(problem, iterate, work):
    """Fill dt and the multipliers, raise the penalty above them; return what dt adds to the decrement."""
    dt, R_dx, excess, weight, multiplier = work.dt, work.R_dx, work.excess, work.weight, iterate.multiplier
    fill(R_dx, 0.0)
    add_rows(R_dx, work.dx, problem.n, problem.R_transposed, 0, problem.constraints)
    more, level = 0 * iterate.mu, 0 * iterate.mu
    for i in range(problem.constraints):
        dt[i] = R_dx[i] + excess[i]
        more += weight[i] * (dt[i] * dt[i] - R_dx[i] * R_dx[i])
        multiplier[i] = weight[i] * dt[i] + iterate.mu * (work.t_inverse_hi[i] - work.t_inverse_lo[i])
        level += multiplier[i] * excess[i]
    some = iterate.residual > 0
    wanted = 2 * abs(level) / choose(some, iterate.residual, 1.0)
    iterate.penalty = choose(some, max(iterate.penalty, wanted), iterate.penalty)
    return more


@compiled
def move_slacks(problem, iterate, work, mu, step):
    """Move t by the step, and the multipliers by the linearised z (t - l) = mu, kept within a range of mu / (t - l)."""
    dt, z_lo, z_hi, range_of = work.dt, iterate.z_lo, iterate.z_hi, MULTIPLIER_RANGE
    for i in range(problem.constraints):
        iterate.t[i] += step * dt[i]
        z_lo[i] = (mu - z_lo[i] * dt[i]) * work.t_inverse_lo[i]
        z_hi[i] = (mu + z_hi[i] * dt[i]) * work.t_inverse_hi[i]
    invert_slacks_of_constraints(problem, iterate, work)
    for i in range(problem.constraints):
        low, high = mu * work.t_inverse_lo[i], mu * work.t_inverse_hi[i]
        z_lo[i] = max(min(z_lo[i], range_of * low), (1 / range_of) * low)
        z_hi[i] = max(min(z_hi[i], range_of * high), (1 / range_of) * high)


@compiled
def violated(problem, work, point):
    """Whether a point violates constraints by more than rounding."""
    value = work.R_dx
    fill(value, 0.0)
    add_rows(value, point, problem.n, problem.R_transposed, 0, problem.constraints)
    worst = -1.0 + 0 * value[0]
    for i in range(problem.constraints):
        below, above = problem.R_lo[i] - value[i], value[i] - problem.R_hi[i]
        worst = max(worst, max(below, above) - LARGEST_VIOLATION * (1 + abs(value[i])))
    return worst > 0


@compiled
def price(problem, multiplier, q):
    """Fill q with R'y; return sum(-y+ u + y- l). A multiplier on an infinite side counts as 0."""
    total = 0 * q[0]
    for i in range(problem.constraints):
        y = multiplier[i]
        side = choose(y > 0, problem.R_hi[i], problem.R_lo[i])
        y = choose(abs(side) < np.inf, y, 0.0)
        multiplier[i] = y
        total -= y * choose(abs(side) < np.inf, side, 0.0)
    fill(q, 0.0)
    add_rows(q, multiplier, problem.constraints, problem.R, 0, problem.n)
    return total


@compiled
def proved_empty(problem, iterate, work):
    """Whether the multipliers prove that the set is empty; asked only while there is an excess."""
    doubtful = (iterate.residual > LARGEST_VIOLATION * problem.constraints) & (iterate.outcome == RUNNING)
    if not any_of(doubtful):
        return doubtful
    q = work.q
    total = price(problem, iterate.multiplier, q)
    size = abs(total)
    for j in range(problem.n):
        one, two = q[j] * problem.lo[j], q[j] * problem.hi[j]
        total += min(one, two)
        size += max(abs(one), abs(two))
    return doubtful & (total > PROOF * size)
