"""From free coordinates back to the rows as given, in compiled code: points, multipliers, and what a bound adds.

For one context an operation of NumPy takes longer than all of its arithmetic, and there would be fifty of them. What
each number is, `soctk.decide.free_coordinates` and `soctk.decide.result` (`RowMultipliers`) tell. Rounding is
taken off as there: those margins hold in whatever order sums are made, and for fused products.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import typeof

from soctk.sets.arrays import TINY
from soctk.simd.options import FREE

EPS = float(np.finfo(np.float64).eps)
OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "fastmath": FREE}
compiled: Any = numba.njit(**OPTIONS)


@cache
def recover() -> Any:
    """Return `_recover` compiled, or loaded from the disk."""
    integers, row, matrix = np.zeros((1, 1), dtype=np.int64), np.zeros(1), np.zeros((1, 1))
    matrices, places = (matrix, matrix, matrix, row, matrix), (integers[0], integers, integers, 0)
    more = (matrix, matrix), (matrix,) * 3, matrix, (matrix,) * 3, (row, row), matrix, matrix, matrix, row, row
    try:
        function: Any = numba.njit(**OPTIONS, cache=True)(_recover)
    except RuntimeError:  # neither the package's folder nor the user's own can be written to
        function = compiled(_recover)
    function.compile(tuple(map(typeof, (matrices, places, *more))))
    function.disable_compile()
    return function


def _recover(matrices, places, sides, bounds, right, found, scratch, x, y, w, beside, share):
    """Fill x, y, w, beside and share.

    Args:
        matrices: basis (n, d), R (m, d), inverse (r, any), length (2 n + rows of G,), [E; G] (k + rows of G, n).
        places: basic, above and below, as `Elimination` has them, and the number k of equalities.
        sides: x_p, and b of every constraint and +inf, (1 or N, any) each.
        bounds: lower, upper and the largest |x_i|, (1 or N, n) each.
        right: f and h, (1 or N, k + rows of G).
        found: the points w (N, d), the slopes v + A'y (N, n), and the multipliers of R (N, m).
        scratch: room for numbers of the constraints (2 n + rows of G,) and of the axes (d,).
        x: the points, within their bounds, (N, n).
        y: nu and z side by side, (N, k + rows of G).
        w: slope + E'nu + G'z, (N, n).
        beside: -nu'f - z'h, less what rounding may have added to it and to w, (N,).
        share: by how much points violate their set, as a share of what a row adds (`SetArrays.excess`), (N,).
    """
    for i in range(x.shape[0]):
        _expand(matrices[0], sides[0], bounds, found[0], i, x[i])
        _attribute(matrices, places, sides[1], (found[1][i], found[2][i]), scratch, i)
        _originals(matrices, places, found[1][i], scratch[0], y[i])
        beside[i] = _price(matrices[4], right[min(i, len(right) - 1)], bounds[2], found[1][i], i, y[i], w[i])
        share[i] = _excess(matrices[4], right[min(i, len(right) - 1)], bounds, i, x[i], places[3])


@compiled
def _expand(basis, origin, bounds, points, i, x):
    """Fill x_p + Z w, moved between the bounds."""
    lower, upper = bounds[0][min(i, len(bounds[0]) - 1)], bounds[1][min(i, len(bounds[1]) - 1)]
    start = origin[min(i, len(origin) - 1)]
    for j in range(x.size):
        total = start[j]
        for k in range(basis.shape[1]):
            total += basis[j, k] * points[i, k]
        x[j] = max(min(total, upper[j]), lower[j])


@compiled
def _attribute(matrices, places, every, found, scratch, i):
    """Fill the first array of the scratch with the multiplier of each constraint.

    Along the axes the multipliers of directions are what is left of the slope.
    """
    basis, R, length, sides = matrices[0], matrices[1], matrices[3], every[min(i, len(every) - 1)]
    n, d, count = basis.shape[0], basis.shape[1], length.size
    constraints, along = scratch[0], scratch[1]
    slope, directions = found[0], found[1]
    for k in range(count):
        constraints[k] = 0.0
    for k in range(d):
        along[k] = 0.0
    for j in range(n):
        for k in range(d):
            along[k] += slope[j] * basis[j, k]
    for j in range(R.shape[0]):
        for k in range(d):
            along[k] += directions[j] * R[j, k]
    for k in range(d + R.shape[0]):
        amount = -along[k] if k < d else directions[k - d]
        if amount > 0:
            _give(constraints, places[1], k, amount, sides, length)
        else:
            _give(constraints, places[2], k, -amount, sides, length)


@compiled
def _give(constraints, group, k, amount, sides, length):
    """Give an end's multiplier to the first of its constraints that is the closest."""
    chosen = group[0, k]
    for place in range(1, group.shape[0]):
        if sides[group[place, k]] < sides[chosen]:
            chosen = group[place, k]
    if chosen < length.size:
        constraints[chosen] = amount / length[chosen]


@compiled
def _originals(matrices, places, slope, constraints, y):
    """Fill nu and z (`Reduction.originals`)."""
    inverse, rows, basic, k = matrices[2], matrices[4], places[0], places[3]
    n = slope.size
    for row in range(y.size):
        y[row] = 0.0 if row < k else constraints[2 * n + row - k]
    for b in range(basic.size):
        j = basic[b]
        wanted = slope[j] + constraints[j] - constraints[n + j]
        for row in range(k, y.size):
            wanted += y[row] * rows[row, j]
        for column in range(k):
            y[column] -= wanted * inverse[b, column]


@compiled
def _price(rows, right, largest, slope, i, y, w):
    """Fill w; return what a bound adds beside it, rounding taken off (`RowMultipliers.of`)."""
    total, size, most = 0.0, 0.0, largest[min(i, len(largest) - 1)]
    for j in range(w.size):
        w[j] = slope[j]
        size += abs(slope[j]) * most[j]
    for row in range(y.size):
        if y[row] != 0:
            total += y[row] * right[row]
            size += abs(y[row] * right[row])
            for j in range(w.size):
                w[j] += y[row] * rows[row, j]
                size += abs(y[row] * rows[row, j]) * most[j]
    return -total - (w.size + y.size + 8) * EPS * size


@compiled
def _excess(rows, right, bounds, i, x, k):
    """Return by how much a point violates its set, as a share of what a row adds (`SetArrays.excess`)."""
    lower, upper = bounds[0][min(i, len(bounds[0]) - 1)], bounds[1][min(i, len(bounds[1]) - 1)]
    worst = -np.inf
    for j in range(x.size):
        worst = max(worst, max(lower[j] - x[j], x[j] - upper[j]) / max(abs(x[j]), 1.0))
    for row in range(right.size):
        past, added = -right[row], abs(right[row])
        for j in range(x.size):
            past += x[j] * rows[row, j]
            added += max(abs(x[j]), 1.0) * abs(rows[row, j])
        if row < k:
            past = abs(past)
        worst = max(worst, past / max(added, TINY))
    return worst
