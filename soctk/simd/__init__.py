"""The words of compiled code that treats one instance, or several in SIMD lanes: numbers that may have lanes.

Code is written once, as plain functions, and compiled for ordinary numbers and for lanes (`soctk.simd.lanes`). A
comparison of lanes is a mask: there are no branches on it, `choose` takes their place, and conditions are joined by
&, | and not. Beside these words min, max, abs and NumPy's sqrt, exp, log and log1p know lanes.

This module loads no Numba; what implements the words for compiled code does (`lanes`, `algebra`). Words are imported by
name: Numba takes `simd.view(...)` for the method of an array.
"""

from __future__ import annotations

from typing import Any


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """Return yes where the condition holds and no elsewhere, for a number or for each lane."""
    return yes if condition else no


def any_of(condition: Any) -> bool:
    """Whether a condition holds, in any lane."""
    return bool(condition)


def view(array: Any, start: int, size: int) -> Any:
    """Return array[start : start + size] of a vector, unchecked and not counted as a reference.

    NumPy's own slices are checked and counted, which takes longer than what is done with ten numbers.
    """
    return array[start : start + size]


def fill(vector: Any, number: Any) -> None:
    """Set all numbers of a vector."""
    for j in range(vector.size):
        vector[j] = number


def dot(left: Any, right: Any) -> Any:
    """Return left'right, summed in any order."""
    total = 0.0
    for j in range(left.size):
        total += left[j] * right[j]
    return total


def sum_of(vector: Any) -> Any:
    """Return the sum of a vector's numbers, in any order."""
    total = 0.0
    for j in range(vector.size):
        total += vector[j]
    return total


def add_rows(out: Any, coefficients: Any, count: int, matrix: Any, first: int, stride: int) -> None:
    """Add sum_k c_k r_k to `out` over k < count, r_k the numbers of `matrix` from first + k stride on."""
    for k in range(count):
        for j in range(out.size):
            out[j] += coefficients[k] * matrix[first + k * stride + j]


def add_gram(out: Any, stride: int, n: int, weights: Any, rows: int, matrix: Any, first: int, scratch: Any) -> None:
    """Add the upper triangle of M' diag(w) M to `out`, whose rows are `stride` apart; what is below it is undefined.

    M (rows, n) are the numbers of `matrix` from `first` on; `scratch` has 4 rows numbers.
    """
    for k in range(rows):
        for i in range(n):
            for j in range(i, n):
                out[i * stride + j] += weights[k] * matrix[first + k * n + i] * matrix[first + k * n + j]


def add_product(
    out: Any, rows: int, n: int, mixing: Any, at: int, inner: int, scales: Any, matrix: Any, first: int, scratch: Any
) -> None:
    """Add U diag(s) M to `out` (rows, n): U (rows, inner) from `at` on, M (inner, n) from `first` on.

    `scratch` has 4 inner numbers.
    """
    for k in range(rows):
        for m in range(inner):
            for j in range(n):
                out[k * n + j] += mixing[at + k * inner + m] * scales[m] * matrix[first + m * n + j]
