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

from soctk.sets.arrays import TINY, SetArrays
from soctk.sets.batches import whole
from soctk.simd.options import FREE

EPS = float(np.finfo(np.float64).eps)
OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "fastmath": FREE}
compiled: Any = numba.njit(**OPTIONS)


@compiled
def recover(matrices, places, ends, given, found, scratch, i, x, y, w):
    """Fill x, y and w of instance i; return what its bound adds, and by how much x violates its set.

    Args:
        matrices: basis (n, d), R (m, d), inverse (r, any), length (2 n + rows of G,), [E; G] (k + rows of G, n).
        places: basic, above and below, as `Elimination` has them.
        ends: x_p, and b of every constraint and +inf, (1 or N, any) each.
        given: lower, upper, f, h, and finite ends lo and hi in place of the first two, (1 or N, any) each.
        found: of the instance the point w (d,), the slope v + A'y (n,), and the multipliers of R (m,).
        scratch: room for numbers of the constraints (2 n + rows of G,) and of the axes (d,).
        i: the instance.
        x: the point, within its bounds, (n,).
        y: nu and z side by side, (k + rows of G,).
        w: slope + E'nu + G'z, (n,).

    Returns:
        -nu'f - z'h, less what rounding may have added to it and to w; and the violation as a share of what a row adds
        (`SetArrays.excess`).
    """
    _expand(matrices[0], ends[0][row_of(ends[0], i)], given, found[0], i, x)
    _attribute(matrices, places, ends[1][row_of(ends[1], i)], found, scratch)
    _originals(matrices, places[0], given[2].shape[1], found[1], scratch[0], y)
    beside = _price(matrices[4], given, found[1], i, y, w, scratch[0])
    return beside, excess(matrices[4], given, i, x)[1]


@compiled
def row_of(array, i):
    """Return where an instance's row is of (1 or N, any)."""
    return min(i, len(array) - 1)


@compiled
def _side(given, i, row):
    """Return the right-hand side of a row of [E; G]."""
    f, h = given[2], given[3]
    k = f.shape[1]
    return f[row_of(f, i), row] if row < k else h[row_of(h, i), row - k]


@compiled
def _expand(basis, start, given, point, i, x):
    """Fill x_p + Z w, moved between the bounds."""
    lower, upper = given[0][row_of(given[0], i)], given[1][row_of(given[1], i)]
    for j in range(x.size):
        total = start[j]
        for k in range(basis.shape[1]):
            total += basis[j, k] * point[k]
        x[j] = max(min(total, upper[j]), lower[j])


@compiled
def _attribute(matrices, places, sides, found, scratch):
    """Fill the first array of the scratch with the multiplier of each constraint.

    Along the axes the multipliers of directions are what is left of the slope.
    """
    basis, R, length = matrices[0], matrices[1], matrices[3]
    n, d, count = basis.shape[0], basis.shape[1], length.size
    constraints, along = scratch[0], scratch[1]
    slope, directions = found[1], found[2]
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
def _originals(matrices, basic, k, slope, constraints, y):
    """Fill nu and z (`Reduction.originals`)."""
    inverse, rows = matrices[2], matrices[4]
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
def _price(rows, given, slope, i, y, w, largest):
    """Fill w; return what a bound adds beside it, rounding taken off (`RowMultipliers.of`); `largest` is scratch."""
    lo, hi = given[4][row_of(given[4], i)], given[5][row_of(given[5], i)]
    total, size = 0.0, 0.0
    for j in range(w.size):
        largest[j] = max(abs(lo[j]), abs(hi[j]))
        w[j] = slope[j]
        size += abs(slope[j]) * largest[j]
    for row in range(y.size):
        if y[row] != 0:
            product, added = y[row] * _side(given, i, row), 0.0
            for j in range(w.size):
                added += abs(rows[row, j]) * largest[j]
            for j in range(w.size):
                w[j] += y[row] * rows[row, j]
            total += product
            size += abs(product) + abs(y[row]) * added
    return -total - (w.size + y.size + 8) * EPS * size


@compiled
def excess(rows, given, i, x):
    """Return by how much a point violates its set, and that as a share of what a row adds (`SetArrays.excess`).

    Both are NaN where the point has a NaN.
    """
    lower, upper, k = given[0][row_of(given[0], i)], given[1][row_of(given[1], i)], given[2].shape[1]
    worst, share, size = 0.0, -np.inf, 0.0
    for j in range(x.size):
        beyond = max(lower[j] - x[j], x[j] - upper[j])
        worst, share = max(worst, beyond), max(share, beyond / max(abs(x[j]), 1.0))
        size += x[j]
    if np.isnan(size):
        return np.nan, np.nan
    for row in range(rows.shape[0]):
        side = _side(given, i, row)
        past, added = -side, abs(side)
        for j in range(x.size):
            past += x[j] * rows[row, j]
            added += max(abs(x[j]), 1.0) * abs(rows[row, j])
        if row < k:
            past = abs(past)
        worst, share = max(worst, past), max(share, past / max(added, TINY))
    return worst, share


@cache
def measure() -> Any:
    """Return `_measure` compiled, or loaded from the disk."""
    matrix = np.zeros((1, 1))
    try:
        function: Any = numba.njit(**OPTIONS, cache=True)(_measure)
    except RuntimeError:  # neither the package's folder nor the user's own can be written to
        function = compiled(_measure)
    function.compile(tuple(map(typeof, (matrix, (matrix,) * 4, matrix, matrix))))
    function.disable_compile()
    return function


def violations(sets: SetArrays, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `SetArrays.excess` of points (N, n)."""
    answers = np.empty((2, len(x)))
    measure()(sets.rows.stacked, tuple(map(whole, sets.sides)), whole(x), answers)
    return answers[0], answers[1]


def _measure(rows, given, x, answers):
    """Fill by how much points (N, n) violate their sets, (2, N): see `excess`."""
    for i in range(x.shape[0]):
        answers[0, i], answers[1, i] = excess(rows, given, i, x[i])
