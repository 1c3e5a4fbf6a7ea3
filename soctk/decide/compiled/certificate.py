"""The certificate in compiled code: the value at a feasible point, and bounds from feasible dual points.

Nothing is taken over from the iterations but x and the dual points; products may be summed in any order, which moves a
bound by rounding alone.
"""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.form import (
    CONSTANT,
    DIM,
    HAS_SUM,
    HI,
    LINEAR,
    LO,
    MATRIX,
    OFFSET,
    ROWS,
    SETTINGS,
    SETTINGS_SIZE,
    TOTAL,
    TRANSPOSED,
)
from soctk.decide.compiled.terms import Y, conjugates, values
from soctk.simd.algebra import add_rows
from soctk.simd.lanes import any_of, choose, view
from soctk.simd.options import compiled

RESTORATIONS = 4


@compiled
def restore(layout, common, x, point):
    """Fill `point` with x moved onto the set, x strictly inside the bounds with its sum right up to rounding."""
    n = layout[DIM]
    lo, hi, settings = (
        view(common, layout[LO], n),
        view(common, layout[HI], n),
        view(common, layout[SETTINGS], SETTINGS_SIZE),
    )
    for i in range(n):
        point[i] = min(max(x[i], lo[i]), hi[i])
    if settings[HAS_SUM] == 0:
        return
    for _ in range(RESTORATIONS):
        excess, free = -settings[TOTAL], 0.0
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
def linear_minimum(layout, common, g, taken):
    """Return min g'x over the set; `taken` is scratch."""
    n, total = layout[DIM], 0.0
    lo, hi, settings = (
        view(common, layout[LO], n),
        view(common, layout[HI], n),
        view(common, layout[SETTINGS], SETTINGS_SIZE),
    )
    if settings[HAS_SUM] == 0:
        for i in range(n):
            total += g[i] * choose(g[i] < 0, hi[i], lo[i])
        return total
    spare = settings[TOTAL] + 0 * g[0]
    for i in range(n):
        spare -= lo[i]
        total += g[i] * lo[i]
        taken[i] = 0.0
    # All coordinates that share the lowest price are filled at once.
    while any_of(spare > 0):
        price, room = np.inf, 0.0
        for i in range(n):
            price = min(price, choose(taken[i] == 0, g[i], np.inf))
        for i in range(n):
            cheapest = (taken[i] == 0) & (g[i] == price)
            room += choose(cheapest, hi[i] - lo[i], 0.0)
            taken[i] = choose(cheapest, 1.0, taken[i])
        amount = choose((spare > 0) & (price < np.inf), min(room, spare), 0.0)
        total += choose(amount > 0, price * amount, 0.0)
        spare = choose(price < np.inf, spare - amount, 0.0)
    return total


@compiled
def inner(layout, shared, data, x, u):
    """Fill u = A x + d."""
    rows, offset = layout[ROWS], view(data, layout[OFFSET], layout[ROWS])
    for k in range(rows):
        u[k] = offset[k]
    add_rows(u, x, layout[DIM], shared, layout[TRANSPOSED], rows)


@compiled
def slope(layout, shared, data, y, g):
    """Fill g = v + A'y."""
    n, linear = layout[DIM], view(data, layout[LINEAR], layout[DIM])
    for i in range(n):
        g[i] = linear[i]
    add_rows(g, y, layout[ROWS], shared, layout[MATRIX], n)


@compiled
def value_at(layout, shared, data, memory, x, u, cache):
    """Return f(x), with u and cache as scratch."""
    inner(layout, shared, data, x, u)
    total, linear = data[layout[CONSTANT]], view(data, layout[LINEAR], layout[DIM])
    for i in range(x.size):
        total += linear[i] * x[i]
    return total + values(layout, shared, data, memory, u, 0 * total, cache)


@compiled
def bound(layout, common, data, g, cache, taken):
    """Return the lower bound of the dual point y that the cache holds, g = v + A'y (`ConicForm.bound`)."""
    rows = layout[ROWS]
    y, offset = view(cache, Y * rows, rows), view(data, layout[OFFSET], rows)
    constant = data[layout[CONSTANT]] - conjugates(layout, data, cache)
    for k in range(rows):
        constant += y[k] * offset[k]
    return constant + linear_minimum(layout, common, g, taken)


@compiled
def relative_gap(value, lower_bound):
    """Return (value - lower_bound) / max(1, |value|), not below 0; infinite where it is not finite."""
    gap = max(value - lower_bound, 0.0) / max(1.0, abs(value))
    return choose(gap < np.inf, gap, np.inf)
