"""The compiled half of a context map: the columns of packed data from the responses to the context."""

from __future__ import annotations

from functools import partial

import numpy as np

from soctk.simd.options import FREE, called_from_python


@partial(called_from_python, fastmath=FREE)
def assemble(rows, weights, ridges, outer_ridges, index, columns, gain, bias, shift, data):
    """Fill `data` (N, D) with the coefficients at N contexts, in the user's units; return whether all is finite.

    Args:
        rows, weights, ridges: of `ContextMap.responses`, (N, 1 + n + K), (N, W), (N, n count).
        outer_ridges, index: the map's `ridges` (n, count) and `index`.
        columns: for each weight of the terms its column in `data`, those of b0, v and the offsets being the first.
        gain, bias: data = gain * coefficient + bias, (D,).
        shift: what b0 gains with each of v, (n,).
    """
    finite, (n, count), first = True, outer_ridges.shape, rows.shape[1]
    for i in range(rows.shape[0]):
        out, level = data[i], rows[i, 0]
        for j in range(n):
            slope = rows[i, 1 + j]
            for k in range(count):
                slope += ridges[i, j * count + k] * outer_ridges[j, k]
            level += shift[j] * slope
            out[1 + j] = gain[1 + j] * slope + bias[1 + j]
        out[0] = gain[0] * level + bias[0]
        for k in range(1 + n, first):
            out[k] = gain[k] * rows[i, k] + bias[k]
        for k in range(first, out.size):
            out[k] = bias[k]
        for k in range(columns.size):
            out[columns[k]] = gain[columns[k]] * weights[i, index[k]]
        for k in range(out.size):
            finite &= abs(out[k]) < np.inf
    return finite
