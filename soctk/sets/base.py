"""Feasible sets of a decision: bounds and at most one equality on the sum.

Every set is {x in R^n : lo <= x <= hi, and sum(x) = total where a total is given}. Projection, linear
minimiser, sampling and the CVXPY constraints follow from that description alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor, check_count, check_last_dim
from soctk.sets.projection import project_capped_simplex
from soctk.sets.sampling import sample_capped_simplex

Bound = float | Sequence[float]


@dataclass(frozen=True)
class FeasibleSet(ABC):
    """A set {lo <= x <= hi} with at most one equality sum(x) = total. Immutable and hashable.

    Attributes:
        dim: the decision dimension n.
    """

    dim: int

    @abstractmethod
    def bounds(self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return (lo, hi), each (n,); hi may be +inf."""

    @property
    def sum_total(self) -> float | None:
        """The right-hand side of sum(x) = total, or None where there is no such equality."""
        return None

    def project(self, y: ArrayLike) -> Tensor:
        """Return the exact Euclidean projection of y onto the set.

        Args:
            y: (*batch, n), finite; float32 and float64 are kept.

        Returns:
            (*batch, n), feasible and optimal to rounding (1e-12 in float64).

        Raises:
            ValueError: y has a wrong last dimension, a NaN or an infinity.
        """
        return self._project(self._check(y, "y"))

    def _project(self, y: Tensor) -> Tensor:
        lo, hi = self.bounds(y.dtype, y.device)
        if self.sum_total is None:
            return torch.clamp(y, min=lo, max=hi)
        return project_capped_simplex(y, lo, hi, torch.as_tensor(self.sum_total, dtype=y.dtype, device=y.device))

    def linear_minimizer(self, g: ArrayLike) -> Tensor:
        """Return a vertex argmin over the set of g'x; (*batch, n) -> (*batch, n). Closed form.

        Bounds alone: the lower bound where g >= 0, else the upper one. With a sum: fill the coordinates in
        the order of increasing g up to their upper bounds until the total is reached.

        Raises:
            ValueError: g has a wrong last dimension, a NaN or an infinity.
        """
        return self._linear_minimizer(self._check(g, "g"))

    def _linear_minimizer(self, g: Tensor) -> Tensor:
        lo, hi = self.bounds(g.dtype, g.device)
        if self.sum_total is None:
            return torch.where(g < 0, hi, lo).expand_as(g).clone()
        order = torch.argsort(g, dim=-1, stable=True)
        room = (hi - lo)[order]
        spare = torch.as_tensor(self.sum_total, dtype=g.dtype, device=g.device) - lo.sum()
        room = torch.minimum(room, spare)
        taken_before = torch.cumsum(room, dim=-1) - room
        fill = torch.minimum((spare - taken_before).clamp(min=0), room)
        return lo + torch.zeros_like(g).scatter(-1, order, fill)

    def linear_minimum(self, g: Tensor) -> Tensor:
        """Return min over the set of g'x, (*batch, n) -> (*batch): the support function of -g, negated."""
        return (g * self._linear_minimizer(g)).sum(dim=-1)

    def violation(self, x: ArrayLike) -> Tensor:
        """Return the largest violation of any constraint, (*batch, n) -> (*batch); 0 inside the set."""
        point = self._check(x, "x")
        lo, hi = self.bounds(point.dtype, point.device)
        worst = torch.maximum(lo - point, point - hi).amax(dim=-1).clamp(min=0)
        if self.sum_total is not None:
            worst = torch.maximum(worst, (point.sum(dim=-1) - self.sum_total).abs())
        return worst

    def contains(self, x: ArrayLike, atol: float = 1e-9) -> Tensor:
        """Return whether each x satisfies every constraint to `atol`, (*batch, n) -> bool (*batch)."""
        return self.violation(x) <= atol

    def sample(self, shape: int | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Return points drawn uniformly from the set, float64 (*shape, n).

        Args:
            shape: the batch shape; () gives one point.
            generator: source of randomness; torch's global one by default.
        """
        batch = (shape,) if isinstance(shape, int) else tuple(shape)
        lo, hi = self.bounds()
        if self.sum_total is None:
            return lo + (hi - lo) * torch.rand(*batch, self.dim, generator=generator, dtype=torch.float64)
        count = int(np.prod(batch))
        return sample_capped_simplex(count, lo, hi, self.sum_total, generator).reshape(*batch, self.dim)

    def center(self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> Tensor:
        """Return a point (n,) in the relative interior: the same share of every coordinate's range."""
        lo, hi = self.bounds(dtype, device)
        if self.sum_total is None:
            return 0.5 * (lo + hi)
        room = torch.minimum(hi - lo, self.sum_total - lo.sum())
        spare = self.sum_total - lo.sum()
        return lo + room * (spare / room.sum()) if float(room.sum()) > 0 else lo

    def constraints(self, x: cp.Variable | cp.Expression) -> list[cp.Constraint]:
        """Return the set as CVXPY constraints on `x`, a CVXPY expression of shape (n,)."""
        if x.shape != (self.dim,):
            raise ValueError(f"x: expected a CVXPY expression of shape ({self.dim},), got {x.shape}")
        lo, hi = (bound.numpy() for bound in self.bounds())
        constraints: list[cp.Constraint] = [x >= lo]
        if np.isfinite(hi).all():
            constraints.append(x <= hi)
        if self.sum_total is not None:
            constraints.append(cp.Zero(cp.sum(x) - self.sum_total))
        return constraints

    def _check(self, value: ArrayLike, name: str) -> Tensor:
        tensor = as_tensor(value, name)
        check_last_dim(tensor, self.dim, name)
        return tensor


@dataclass(frozen=True)
class Simplex(FeasibleSet):
    """{x >= 0, sum(x) = total}.

    Raises:
        ValueError: dim < 1, or total is not positive and finite.
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        check_count(self.dim, "dim")
        if not (np.isfinite(self.total) and self.total > 0):
            raise ValueError(f"total: expected a positive finite number, got {self.total!r}")

    @property
    def sum_total(self) -> float:
        """The sum of every point of the simplex."""
        return float(self.total)

    def bounds(self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return lo = 0 and hi = +inf."""
        zero = torch.zeros(self.dim, dtype=dtype, device=device)
        return zero, torch.full_like(zero, torch.inf)


@dataclass(frozen=True)
class Box(FeasibleSet):
    """{lower <= x <= upper}, bounds a number or one per coordinate.

    Raises:
        ValueError: dim < 1, a bound is not finite or has a wrong length, or lower > upper somewhere.
    """

    lower: Bound = 0.0
    upper: Bound = 1.0

    def __post_init__(self) -> None:
        check_count(self.dim, "dim")
        _freeze_bounds(self)

    def bounds(self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return (lower, upper) as vectors."""
        return _bound_vectors(self, dtype, device)


@dataclass(frozen=True)
class Budget(FeasibleSet):
    """The capped simplex {lower <= x <= upper, sum(x) = total}.

    Raises:
        ValueError: as for `Box`, or total outside [sum(lower), sum(upper)].
    """

    total: float
    lower: Bound = 0.0
    upper: Bound = 1.0

    def __post_init__(self) -> None:
        check_count(self.dim, "dim")
        _freeze_bounds(self)
        lo, hi = self.bounds()
        least, most = float(lo.sum()), float(hi.sum())
        slack = 1e-12 * max(1.0, abs(least), abs(most))
        if not (least - slack <= self.total <= most + slack):
            raise ValueError(
                f"total: expected a number between sum(lower) = {least:g} and sum(upper) = {most:g}, "
                f"got {self.total!r}; the budget cannot be met"
            )

    @property
    def sum_total(self) -> float:
        """The sum of every point of the set."""
        return float(self.total)

    def bounds(self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return (lower, upper) as vectors."""
        return _bound_vectors(self, dtype, device)


def _freeze_bounds(target: Box | Budget) -> None:
    """Check the two bounds and store them as a float or a tuple of floats, so that the set stays hashable."""
    arrays = {}
    for name in ("lower", "upper"):
        array = np.asarray(getattr(target, name), dtype=float)
        if array.shape not in ((), (target.dim,)):
            raise ValueError(f"{name}: expected a number or {target.dim} numbers, got shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: expected finite bounds, got {getattr(target, name)!r}")
        arrays[name] = array
        object.__setattr__(target, name, float(array) if array.ndim == 0 else tuple(array.tolist()))
    crossed = np.flatnonzero(np.broadcast_to(arrays["lower"] > arrays["upper"], (target.dim,)))
    if crossed.size:
        raise ValueError(f"lower: expected lower <= upper, got lower > upper at coordinate {crossed[0]}")


def _bound_vectors(target: Box | Budget, dtype: torch.dtype, device: torch.device | str) -> tuple[Tensor, Tensor]:
    lo = torch.as_tensor(target.lower, dtype=dtype, device=device).expand(target.dim)
    hi = torch.as_tensor(target.upper, dtype=dtype, device=device).expand(target.dim)
    return lo, hi
