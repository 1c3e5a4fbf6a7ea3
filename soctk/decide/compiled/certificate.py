"""The certificate in compiled code: the value at a feasible point, and bounds from feasible dual points.

Nothing is taken over from the iterations but x and the dual points; products may be summed in any order, which moves a
bound by rounding alone.
"""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.algebra import add_rows, compiled
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
from soctk.decide.compiled.lanes import view
from soctk.decide.compiled.terms import Y, conjugates, values

RESTORATIONS = 4


@compiled
def restore(layout, memory, x, point):
    """Fill `point` with x moved onto the set, x strictly inside the bounds with its sum right up to rounding."""
    n = layout[DIM]
    lo, hi, settings = (
        view(memory, layout[LO], n),
        view(memory, layout[HI], n),
        view(memory, layout[SETTINGS], SETTINGS_SIZE),
    )
    for i in range(n):
        point[i] = min(max(x[i], lo[i]), hi[i])
    if settings[HAS_SUM] == 0:
        return
    for _ in range(RESTORATIONS):
        excess, free = -settings[TOTAL], 0
        for i in range(n):
            excess += point[i]
            free += lo[i] < point[i] < hi[i]
        if excess == 0 or free == 0:
            return
        for i in range(n):
            if lo[i] < point[i] < hi[i]:
                point[i] = min(max(point[i] - excess / free, lo[i]), hi[i])


@compiled
def linear_minimum(layout, memory, g, taken):
    """Return min g'x over the set; `taken` is scratch."""
    n, total = layout[DIM], 0.0
    lo, hi, settings = (
        view(memory, layout[LO], n),
        view(memory, layout[HI], n),
        view(memory, layout[SETTINGS], SETTINGS_SIZE),
    )
    if settings[HAS_SUM] == 0:
        for i in range(n):
            total += g[i] * (hi[i] if g[i] < 0 else lo[i])
        return total
    spare = settings[TOTAL]
    for i in range(n):
        spare -= lo[i]
        total += g[i] * lo[i]
        taken[i] = 0.0
    while spare > 0:
        best = -1
        for i in range(n):
            if taken[i] == 0 and (best < 0 or g[i] < g[best]):
                best = i
        if best < 0:
            break
        amount = min(hi[best] - lo[best], spare)
        taken[best] = 1.0
        spare -= amount
        total += g[best] * amount
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
    return total + values(layout, shared, data, memory, u, 0.0, cache)


@compiled
def bound(layout, data, memory, g, cache, taken):
    """Return the lower bound of the dual point y that the cache holds, g = v + A'y (`ConicForm.bound`)."""
    rows = layout[ROWS]
    y, offset = view(cache, Y * rows, rows), view(data, layout[OFFSET], rows)
    constant = data[layout[CONSTANT]] - conjugates(layout, data, cache)
    for k in range(rows):
        constant += y[k] * offset[k]
    return constant + linear_minimum(layout, memory, g, taken)


@compiled
def relative_gap(value, lower_bound):
    """Return (value - lower_bound) / max(1, |value|), not below 0; infinite where it is not finite."""
    gap = max(value - lower_bound, 0.0) / max(1.0, abs(value))
    return gap if np.isfinite(gap) else np.inf
