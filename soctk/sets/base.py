"""The feasible set of a decision: a compact convex set, known by the questions that it answers.

Four answers are a set's own: the projection, a linear minimiser, the violation and the constraints in CVXPY. All the
others follow from these four, and a set overrides what it knows better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor, check_last_dim
from soctk.lazy import cvxpy as cp
from soctk.sets.agreement import check_answers
from soctk.sets.coordinates import Coordinates
from soctk.sets.hit_and_run import Walk, frame_of, hit_and_run, walk_by_bisection
from soctk.sets.rounding import rounded_down
from soctk.sets.rows import Rows

Device = torch.device | str
Reduced = TypeVar("Reduced", covariant=True)


class FeasibleSet(ABC):
    """A compact convex set in R^n. A set of one's own derives from this class and never changes.

    Required: the attribute `dim` and the four abstract methods, three of which are given checked tensors (*batch, n) of
    any floating-point type on any device and return the same type there. Unless `rows` says otherwise, decisions come
    from the methods that need no rows: "cvxpy" by the constraints, "first_order" by projections. Before the first one
    its answers are tried out (`check`).

    Attributes:
        dim: the decision dimension n.
        trusted: whether its answers are not tried out before the first decision: those of soctk's own sets.
    """

    dim: int
    trusted: ClassVar[bool] = False

    @abstractmethod
    def _project(self, y: Tensor) -> Tensor:
        """Return the Euclidean projection of y onto the set, (*batch, n)."""

    @abstractmethod
    def _linear_minimizer(self, g: Tensor) -> Tensor:
        """Return an argmin over the set of g'x, (*batch, n)."""

    @abstractmethod
    def _violation(self, x: Tensor) -> Tensor:
        """Return how far x is outside, (*batch, n) -> (*batch); 0 inside the set."""

    @abstractmethod
    def constraints(self, x: cp.Expression) -> list[cp.Constraint]:
        """Return the set as CVXPY constraints on `x`, a CVXPY expression of shape (n,)."""

    # -- the public oracles ------------------------------------------------------------------------------

    def project(self, y: ArrayLike) -> Tensor:
        """Return the Euclidean projection of y onto the set.

        Args:
            y: (*batch, n), finite; float32 and float64 are kept.

        Returns:
            (*batch, n). Simplex, Box and Budget: feasible and optimal to rounding (1e-12 in float64). Polyhedron:
            within 1e-9 of the larger of y and the set.

        Raises:
            ValueError: y has a wrong last dimension, a NaN or an infinity.
        """
        return self._project(self._check(y, "y"))

    def linear_minimizer(self, g: ArrayLike) -> Tensor:
        """Return an argmin over the set of g'x; (*batch, n) -> (*batch, n). A vertex of a polyhedron.

        Of general polyhedra it is one to 1e-10 |g| of the set's size, the tolerance of the linear programme.

        Raises:
            ValueError: g has a wrong last dimension, a NaN or an infinity.
        """
        return self._linear_minimizer(self._check(g, "g"))

    def linear_minimum(self, g: Tensor) -> Tensor:
        """Return min over the set of g'x, (*batch, n) -> (*batch): the support function of -g, negated.

        Lower bounds of decisions rest on it: what is computed may fall below the minimum by rounding, but does not
        exceed it, as far as the linear minimiser is one.
        """
        return rounded_down(g * self._linear_minimizer(g))

    def violation(self, x: ArrayLike) -> Tensor:
        """Return the largest violation of any constraint, (*batch, n) -> (*batch); 0 inside the set.

        In absolute terms and in each constraint's own units: of a row a'x <= b it is a'x - b.
        """
        return self._violation(self._check(x, "x"))

    def contains(self, x: ArrayLike, atol: float = 1e-9) -> Tensor:
        """Return whether each x satisfies every constraint to `atol`, (*batch, n) -> bool (*batch)."""
        return self.violation(x) <= atol

    def sample(self, shape: int | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Return points drawn from the set, float64 (*shape, n).

        Exactly uniform for Simplex and Box and for most Budgets. Elsewhere by hit-and-run, uniform in the limit:
        chains, 512 at most, begin at the centre. In a polyhedron of d dimensions they take 200 + 30 d steps first, then
        20 + 3 d between points, in a set of one's own 200 + 20 d and 10 + 2 d. That was enough for R-hat below 1.02 in
        polyhedra of up to 80 dimensions, long and thin ones among them, but is no guarantee: points of one chain are
        not quite independent, and narrow corners may have fewer points than they should.

        Args:
            shape: the batch shape; () gives one point.
            generator: source of randomness; torch's global one by default.
        """
        batch = (shape,) if isinstance(shape, int) else tuple(shape)
        return self._sample(int(np.prod(batch)), generator).reshape(*batch, self.dim)

    def center(self, dtype: torch.dtype = torch.float64, device: Device = "cpu") -> Tensor:
        """Return a point (n,) in the relative interior."""
        return self._frame[0].to(dtype=dtype, device=device, copy=True)

    def hull(self, dtype: torch.dtype = torch.float64, device: Device = "cpu") -> tuple[Tensor, Tensor]:
        """Return (lo, hi), each (n,): the smallest box that holds the set."""
        axes = torch.eye(self.dim, dtype=torch.float64)
        lo, hi = self.linear_minimum(axes), -self.linear_minimum(-axes)
        return lo.to(dtype=dtype, device=device), hi.to(dtype=dtype, device=device)

    def rows(self) -> Rows | None:
        """Return the set's exact description by bounds, equalities and inequalities, None where it has none."""
        return None

    def presolve(self) -> Presolved[FeasibleSet]:
        """Return the set without the coordinates that cannot move; here none is looked for."""
        return Presolved(self.center(), torch.arange(self.dim), self)

    @cached_property
    @torch.inference_mode(False)  # kept for calls that are differentiated too
    def reach(self) -> tuple[Tensor, float]:
        """Bounds of |x_i| in the set, (n,), float64 on the CPU, and of |x|_1: for products with x."""
        lo, hi = self._around()
        largest = torch.maximum(lo.abs(), hi.abs())
        most = -self.linear_minimum(-torch.ones_like(lo))
        return largest, min(float(largest.sum()), float(most + 2 * (-lo).clamp(min=0).sum()))

    @cached_property
    def coordinates(self) -> Coordinates:
        """Coordinates in which the set lies between -1 and 1, about."""
        return Coordinates.of(*(end.numpy() for end in self.hull()))

    @property
    def magnitude(self) -> float:
        """The size of the set's numbers, at least 1: what tolerances of feasibility are relative to."""
        lo, hi = self.hull()
        return max(1.0, float(lo.abs().max()), float(hi.abs().max()))

    def check(self) -> None:
        """Raise where the answers of a set of one's own contradict each other; tried once, before its first decision.

        Raises:
            TypeError: an answer that is no tensor of the type that was given.
            ValueError: an answer of another shape, or one that contradicts the others (`soctk.sets.agreement`).
        """
        if not self.trusted:
            _ = self._agrees

    @cached_property
    def _agrees(self) -> bool:
        check_answers(self)
        return True

    # -- for sets to override ----------------------------------------------------------------------------

    def _around(self) -> tuple[Tensor, Tensor]:
        """Return (lo, hi), each (n,): a box that holds the set, wider than its hull where that would take long."""
        return self.hull()

    def _sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Return `count` points, float64 (count, n)."""
        return hit_and_run(self._walk(), count, generator)

    def _walk(self) -> Walk:
        """Return where and how hit-and-run walks."""
        return walk_by_bisection(*self._frame, self._violation)

    @cached_property
    def _frame(self) -> tuple[Tensor, Tensor]:
        """A point (n,) in the relative interior and independent directions (d, n) within the set."""
        return frame_of(self._linear_minimizer, self.dim)

    def _check(self, value: ArrayLike, name: str) -> Tensor:
        tensor = as_tensor(value, name)
        check_last_dim(tensor, self.dim, name)
        return tensor


@dataclass(frozen=True, eq=False)
class Presolved(Generic[Reduced]):
    """A set with the coordinates that cannot move substituted, so that what is left has an interior to work in.

    Attributes:
        point: (n,), float64 on the CPU: a feasible point; the fixed coordinates hold its values.
        columns: indices of the free coordinates, on the CPU.
        reduced: the set of the free coordinates; the set itself where all are free, or none.
    """

    point: Tensor
    columns: Tensor
    reduced: Reduced

    @property
    def trivial(self) -> bool:
        """Whether every coordinate is free."""
        return self.columns.numel() == self.point.numel()

    @property
    def single_point(self) -> bool:
        """Whether the set is one point."""
        return self.columns.numel() == 0

    def expand(self, x: Tensor) -> Tensor:
        """Put the fixed coordinates back: (N, free) -> (N, n)."""
        if self.trivial:
            return x
        point = self.point.to(x)
        return point.expand(x.shape[0], -1).index_copy(1, self.columns.to(x.device), x)
