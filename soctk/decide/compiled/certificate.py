"""The certificate in compiled code: the value at a feasible point, and bounds from feasible dual points.

Nothing is taken over from the iterations but x and the dual points; products may be summed in any order, which moves a
bound by rounding alone.
"""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.terms import cache_of, term_conjugate, values
from soctk.simd import add_rows, any_of, choose
from soctk.simd.options import compiled

RESTORATIONS = 4


@compiled
def restore(problem, x, point):
    """Fill `point` with x moved onto the set, x strictly inside the bounds with its sum right up to rounding."""
    n, lo, hi = problem.n, problem.lo, problem.hi
    for i in range(n):
        point[i] = min(max(x[i], lo[i]), hi[i])
    if problem.has_sum == 0:
        return
    for _ in range(RESTORATIONS):
        excess, free = -problem.total, 0.0
        for i in range(n):
            excess += point[i]
            free += choose((point[i] > lo[i]) & (point[i] < hi[i]), 1.0, 0.0)
        wrong = (excess != 0) & (free > 0)
        if not any_of(wrong):
            return
        share = choose(wrong, excess / free, 0.0)
        for i in range(n):
            inside = (point[i] > lo[i]) & (point[i] < hi[i])
            point[i] = choose(inside, min(max(point[i] - share, lo[i]), hi[i]), point[i])


@compiled
def linear_minimum(problem, g, taken):
    """Return min g'x over the set, not above it; `taken` is scratch."""
    n, lo, hi, total, size = problem.n, problem.lo, problem.hi, 0.0, 0.0
    if problem.has_sum == 0:
        for i in range(n):
            part = g[i] * choose(g[i] < 0, hi[i], lo[i])
            total, size = total + part, size + abs(part)
        return total - problem.rounding * size
    spare, largest, numbers = problem.total + 0 * g[0], 0.0, abs(problem.total)
    for i in range(n):
        spare -= lo[i]
        total, size = total + g[i] * lo[i], size + abs(g[i] * lo[i])
        largest, numbers = max(largest, abs(g[i])), numbers + abs(lo[i])
        taken[i] = 0.0
    # All coordinates that share the lowest price are filled at once.
    while any_of(spare > 0):
        price, width = np.inf, 0.0
        for i in range(n):
            price = min(price, choose(taken[i] == 0, g[i], np.inf))
        for i in range(n):
            cheapest = (taken[i] == 0) & (g[i] == price)
            width += choose(cheapest, hi[i] - lo[i], 0.0)
            taken[i] = choose(cheapest, 1.0, taken[i])
        amount = choose((spare > 0) & (price < np.inf), min(width, spare), 0.0)
        part = choose(amount > 0, price * amount, 0.0)
        total, size = total + part, size + abs(part)
        spare = choose(price < np.inf, spare - amount, 0.0)
    # What is filled last is off by the rounding of what the others take.
    return total - problem.rounding * (size + 2 * largest * numbers)


@compiled
def inner(problem, x, u):
    """Fill u = A x + d."""
    offset = problem.offset
    for k in range(problem.rows):
        u[k] = offset[k]
    add_rows(u, x, problem.n, problem.A_transposed, 0, problem.rows)


@compiled
def slope(problem, cache, g):
    """Fill g = v + A'y, y as the cache holds it."""
    linear = problem.linear
    for i in range(problem.n):
        g[i] = linear[i]
    add_rows(g, cache_of(problem, cache).y, problem.rows, problem.A, 0, problem.n)


@compiled
def value_at(problem, work, x, u, cache):
    """Return f(x), with u and cache as scratch."""
    inner(problem, x, u)
    total, linear = problem.constant, problem.linear
    for i in range(x.size):
        total += linear[i] * x[i]
    return total + values(problem, work, u, 0 * total, cache)


@compiled
def bound(problem, g, cache, taken):
    """Return the lower bound of the dual point y that the cache holds, g = v + A'y (`ConicForm.bound`)."""
    y, offset, reach = cache_of(problem, cache).y, problem.offset, problem.reach
    linear, largest, steepest, added = problem.linear, problem.largest, 0.0, 0.0
    constant, size = problem.constant, abs(problem.constant)
    for index in range(problem.terms):
        conjugate = term_conjugate(problem, index, cache, None, None, ())
        constant, size = constant - conjugate, size + abs(conjugate)
    for k in range(problem.rows):
        constant, size = constant + y[k] * offset[k], size + abs(y[k]) * (abs(offset[k]) + reach[k])
    for i in range(problem.n):
        steepest, added = max(steepest, abs(linear[i])), added + abs(linear[i]) * largest[i]
    size += min(added, problem.most * steepest)
    return constant + linear_minimum(problem, g, taken) - problem.rounding * size


@compiled
def reaches(problem):
    """Fill what each |A_k x| is at most over the set (`DenseMap.reach`)."""
    n, A, largest, reach = problem.n, problem.A, problem.largest, problem.reach
    for k in range(problem.rows):
        total, most = 0.0, 0.0
        for i in range(n):
            number = abs(A[k * n + i])
            total, most = total + number * largest[i], max(most, number)
        reach[k] = min(total, problem.most * most)


@compiled
def relative_gap(value, lower_bound):
    """Return (value - lower_bound) / max(1, |value|), not below 0; infinite where it is not finite."""
    gap = max(value - lower_bound, 0.0) / max(1.0, abs(value))
    return choose(gap < np.inf, gap, np.inf)
