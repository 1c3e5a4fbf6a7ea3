"""A polyhedron as numbers: bounds, equalities and inequalities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """{x : lower <= x <= upper, E x = f, G x <= h}, float64 tensors on the CPU that nobody changes.

    Attributes:
        lower: (n,), -inf where there is no bound.
        upper: (n,), +inf where there is none.
        E: (k, n), k may be 0.
        f: (k,).
        G: (m, n), m may be 0.
        h: (m,).
    """

    lower: Tensor
    upper: Tensor
    E: Tensor
    f: Tensor
    G: Tensor
    h: Tensor

    @cached_property
    def at_most_a_sum(self) -> bool:
        """Whether this is a box or a capped simplex: no rows but sum(x) = f at most, bounds finite, or upper ones not.

        Upper bounds are then finite throughout, or, beside a sum, infinite throughout.
        """
        if len(self.G) > 0 or len(self.E) > 1 or not bool(torch.isfinite(self.lower).all()):
            return False
        finite = torch.isfinite(self.upper)
        if len(self.E) == 0:
            return bool(finite.all())
        return bool((self.E == 1).all()) and bool(finite.all() | ~finite.any())

    @property
    def total(self) -> float | None:
        """f of the sum where `at_most_a_sum` holds and there is one, else None."""
        return float(self.f) if self.at_most_a_sum and len(self.E) == 1 else None


def rows_of(
    dim: int,
    lower: float | Sequence[float],
    upper: float | Sequence[float],
    E: np.ndarray,
    f: np.ndarray,
    G: np.ndarray,
    h: np.ndarray,
) -> Rows:
    """Return the rows of arrays, copied; bounds are a number or one for each coordinate."""
    low, high = (np.full(dim, bound, dtype=float) for bound in (lower, upper))
    return Rows(*(torch.from_numpy(part) for part in (low, high, E.copy(), f.copy(), G.copy(), h.copy())))


def bounds_and_sum(
    dim: int, lower: float | Sequence[float], upper: float | Sequence[float], total: float | None
) -> Rows:
    """Return the rows of a box, or of a capped simplex where there is a total."""
    sums = 0 if total is None else 1
    none = np.zeros(0)
    return rows_of(dim, lower, upper, np.ones((sums, dim)), np.full(sums, total or 0.0), none.reshape(0, dim), none)
