"""Functions of free coordinates, in compiled code: what `soctk.decide.compiled.form.substituted` fills in.

For one context an operation of NumPy takes longer than all of its arithmetic.
"""

from __future__ import annotations

from functools import partial

from soctk.simd.options import FREE, called_from_python


@partial(called_from_python, fastmath=FREE)
def substitute(shared, rows, basis, origin, data, inner):
    """Fill b0, v and the offsets of w -> f(origin + basis w), and copy what follows them.

    Args:
        shared: matrices, A (rows, n) first, (1 or N, any).
        rows: of A.
        basis: (n, d).
        origin: (1 or N, n).
        data: `Packed.data`, (N, D).
        inner: filled, (N, D + d - n).
    """
    n, d = basis.shape
    for i in range(data.shape[0]):
        source, target = data[i], inner[i]
        matrix, start = shared[min(i, shared.shape[0] - 1)], origin[min(i, origin.shape[0] - 1)]
        level = source[0]
        for k in range(d):
            target[1 + k] = 0.0
        for j in range(n):
            level += source[1 + j] * start[j]
            for k in range(d):
                target[1 + k] += source[1 + j] * basis[j, k]
        target[0] = level
        for row in range(rows):
            total = 0.0
            for j in range(n):
                total += matrix[row * n + j] * start[j]
            target[1 + d + row] = source[1 + n + row] + total
        for k in range(1 + n + rows, source.size):
            target[k + d - n] = source[k]
