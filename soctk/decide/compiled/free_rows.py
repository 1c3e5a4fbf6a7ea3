"""From rows as given to free coordinates, in compiled code: what `soctk.sets.elimination` says of right-hand sides.

For one context an operation of NumPy takes longer than all of its arithmetic.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import typeof

from soctk.simd.options import COMMON, FREE

SUSPECT, ENDLESS, TOO_NARROW, UNBOUNDED = 1, 2, 4, 8
"""What may need a closer look: ends that cross, or a constant row that is violated; axes without an end; ends that are
closer together than a barrier needs; bounds that are infinite."""
OPTIONS: dict[str, Any] = {**COMMON, "fastmath": FREE}
compiled: Any = numba.njit(**OPTIONS)


@cache
def reduce() -> Any:
    """Return `_reduce` compiled, or loaded from the disk."""
    try:
        function: Any = numba.njit(**OPTIONS, cache=True)(_reduce)
    except RuntimeError:  # neither the package's folder nor the user's own can be written to
        function = compiled(_reduce)
    function.compile(tuple(map(typeof, of_reductions())))
    function.disable_compile()
    return function


def of_reductions() -> tuple[Any, ...]:
    """Return arguments of the types that `_reduce` takes."""
    places, row, matrix = np.zeros((1, 1), dtype=np.int64), np.zeros(1), np.zeros((1, 1))
    return (matrix, matrix, row), (places, places, places[0]), (matrix,) * 4, 1, 1.0, row, *(matrix,) * 5, row


def _reduce(matrices, groups, given, axes, room, taken, origin, sides, low, high, middle, largest):
    """Fill x_p, b of every constraint and +inf, and the ends of all directions; return which of the flags are true.

    Args:
        matrices: lift (n, k), G (any, n), length (2 n + rows of G,).
        groups: below, above, constant, as `Elimination` has them.
        given: lower, upper, f, h, (1 or N, any) each.
        axes: how many directions they are.
        room: the least distance between ends, relative to them.
        taken: room for G x_p, (rows of G,).
        origin: (rows of f, n).
        sides: (1 or N, 2 n + rows of G + 1).
        low, high: (1 or N, d + m).
        middle: the middles of the ends of the axes, (1 or N, d).
        largest: the largest of their absolute values, (d,).
    """
    lift, G, length = matrices[0], matrices[1], matrices[2]
    n, found = lift.shape[0], 0
    for i in range(origin.shape[0]):
        for j in range(n):
            total = 0.0
            for k in range(lift.shape[1]):
                total += given[2][i, k] * lift[j, k]
            origin[i, j] = total
    for i in range(sides.shape[0]):
        lower, upper = given[0][min(i, len(given[0]) - 1)], given[1][min(i, len(given[1]) - 1)]
        h, start, b = given[3][min(i, len(given[3]) - 1)], origin[min(i, len(origin) - 1)], sides[i]
        for j in range(n):
            b[j], b[n + j] = (upper[j] - start[j]) / length[j], (start[j] - lower[j]) / length[n + j]
            if lower[j] > upper[j]:
                found |= SUSPECT
            if np.isinf(lower[j]) or np.isinf(upper[j]):
                found |= UNBOUNDED
        for row in range(h.size):
            if i < len(origin):  # once where all share x_p
                taken[row] = 0.0
                for j in range(n):
                    taken[row] += G[row, j] * start[j]
            b[2 * n + row] = (h[row] - taken[row]) / length[2 * n + row]
        b[2 * n + h.size] = np.inf
        for place in range(groups[2].size):
            if b[groups[2][place]] < 0:
                found |= SUSPECT
        for k in range(low.shape[1]):
            low[i, k], high[i, k] = -_least(b, groups[0], k), _least(b, groups[1], k)
            if k < axes:
                middle[i, k] = 0.5 * (low[i, k] + high[i, k])
                largest[k] = max(largest[k], max(abs(low[i, k]), abs(high[i, k])))
            if low[i, k] > high[i, k]:
                found |= SUSPECT
            if k < axes and (np.isinf(low[i, k]) or np.isinf(high[i, k])):
                found |= ENDLESS
            if high[i, k] - low[i, k] < room * (1 + min(abs(low[i, k]), abs(high[i, k]))):
                found |= TOO_NARROW
    return found


@compiled
def _least(sides, group, k):
    """Return the least of the sides that a column of `group` names."""
    least = sides[group[0, k]]
    for place in range(1, group.shape[0]):
        least = min(least, sides[group[place, k]])
    return least
