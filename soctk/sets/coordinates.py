"""The coordinates of a set, in which it lies between -1 and 1.

Solvers' tolerances are made for numbers near 1. With m the middle of a box around the set, and S half its widths,
x = m + S z. S are powers of two, so that multiplying by them is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soctk.lazy import cvxpy as cp

STILL = 1e-12
"""What is less than this share of the numbers that it is a difference of is their rounding."""


@dataclass(frozen=True, eq=False)
class Coordinates:
    """x = middle + unit * z.

    Attributes:
        middle: m, (n,).
        unit: S, (n,), powers of two.
    """

    middle: np.ndarray
    unit: np.ndarray

    @classmethod
    def of(cls, lo: np.ndarray, hi: np.ndarray) -> Coordinates:
        """Return the coordinates in which lo <= x <= hi, each (n,), is -1 <= z <= 1, about.

        What cannot move has the unit of what moves most.
        """
        half, middle = (hi - lo) / 2, (hi + lo) / 2
        half = np.where(half > STILL * np.abs(middle), half, 0.0)
        return cls(middle, powers_of_two(np.where(half > 0, half, half.max(initial=0.0))))

    def expression(self, z: cp.Expression) -> cp.Expression:
        """Return x as a CVXPY expression of z, (n,)."""
        return self.middle + cp.multiply(self.unit, z)

    def z_of(self, x: np.ndarray) -> np.ndarray:
        """Return z, (*batch, n)."""
        return (x - self.middle) / self.unit

    def x_of(self, z: np.ndarray) -> np.ndarray:
        """Return x, (*batch, n)."""
        return self.middle + self.unit * z


def powers_of_two(sizes: np.ndarray) -> np.ndarray:
    """Return the powers of two nearest to sizes, 1 where they are 0."""
    return np.exp2(np.round(np.log2(np.where(sizes > 0, sizes, 1.0))))
