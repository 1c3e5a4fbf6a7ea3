"""What `soctk.decide.ready` makes of the stacked rows of a dense model."""

from __future__ import annotations

from functools import partial

import numpy as np

from soctk.simd.options import FREE, called_from_python


@partial(called_from_python, fastmath=FREE)
def assemble(rows, floor, spread, unit, ridges, units, x_mean, data):
    """Fill `data` (N, ...) from rows (N, D) at N contexts; return whether all of it is finite.

    Args:
        rows: the first columns of `data`; softplus of the weights' arguments; the ridges'; tanh of the units'.
        floor, spread, unit, ridges, units, x_mean: as `soctk.decide.ready._Ready` has them.
        data: the columns of b0, v (n) and the offsets; of weights and kappas.
    """
    first, finite = data.shape[1] - floor.size, True
    n, count = ridges.shape
    last = rows.shape[1] - units.size
    for i in range(rows.shape[0]):
        row, out, level = rows[i], data[i], 0.0
        for k in range(first):
            out[k] = row[k]
        for k in range(floor.size):
            out[first + k] = floor[k] + unit[k] * row[first + spread[k]]
        for j in range(n):
            bent, start = 0.0, last + (j - n) * count
            for k in range(count):
                bent += max(row[start + k], 0.0) * ridges[j, k]
            out[1 + j] += bent
            level -= x_mean * bent
        for k in range(units.size):
            level += row[last + k] * units[k]
        out[0] += level
        for k in range(data.shape[1]):
            finite &= abs(out[k]) < np.inf
    return finite
