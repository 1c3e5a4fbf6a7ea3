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
        sums = self.E.shape[0]
        if self.G.shape[0] > 0 or sums > 1 or not np.isfinite(self.lower.numpy()).all():
            return False
        finite = np.isfinite(self.upper.numpy())
        if sums == 0:
            return bool(finite.all())
        return bool((self.E.numpy() == 1).all()) and bool(finite.all() or not finite.any())

    @cached_property
    def total(self) -> float | None:
        """f of the sum where `at_most_a_sum` holds and there is one, else None."""
        return float(self.f) if self.at_most_a_sum and self.E.shape[0] == 1 else None

    @cached_property
    def transposed(self) -> np.ndarray:
        """The columns of E' and G' side by side, (n, k + m)."""
        return np.concatenate([self.E.numpy(), self.G.numpy()]).T

    @cached_property
    def stacked(self) -> np.ndarray:
        """E and G one above the other, (k + m, n)."""
        return np.ascontiguousarray(self.transposed.T)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Their absolute values."""
        return np.abs(self.transposed)

    def violation(self, x: Tensor, lower: Tensor, upper: Tensor, f: Tensor, h: Tensor) -> Tensor:
        """Return the largest violation of the rows with these right-hand sides, each like x: (..., n) -> (...)."""
        worst = torch.maximum(lower - x, x - upper).amax(dim=-1).clamp(min=0)
        if self.total is not None:
            return torch.maximum(worst, (x.sum(dim=-1) - f[..., 0]).abs())
        if len(self.E):
            worst = torch.maximum(worst, (x @ self.E.to(x).T - f).abs().amax(dim=-1))
        if len(self.G):
            worst = torch.maximum(worst, (x @ self.G.to(x).T - h).amax(dim=-1))
        return worst


@torch.inference_mode(False)  # kept for calls that are differentiated too
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
    parts = np.full(dim, lower, dtype=float), np.full(dim, upper, dtype=float), E.copy(), f.copy(), G.copy(), h.copy()
    return Rows(*map(torch.from_numpy, parts))


@torch.inference_mode(False)  # kept for calls that are differentiated too
def bounds_and_sum(
    dim: int, lower: float | Sequence[float], upper: float | Sequence[float], total: float | None
) -> Rows:
    """Return the rows of a box, or of a capped simplex where there is a total."""
    sums = [] if total is None else [float(total)]
    bounds = np.full(dim, lower, dtype=float), np.full(dim, upper, dtype=float)
    parts = *bounds, np.ones((len(sums), dim)), np.array(sums), np.empty((0, dim)), np.empty(0)
    rows = Rows(*map(torch.from_numpy, parts))
    rows.__dict__.update(at_most_a_sum=True, total=sums[0] if sums else None)  # known here, and slow to find out
    return rows
