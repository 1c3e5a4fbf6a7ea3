"""A polyhedron with right-hand sides of its own for each context: what `Polyhedron.at` returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_dense, as_tensor, check_last_dim, to_numpy
from soctk.sets.arrays import Eliminated, SetArrays
from soctk.sets.base import Device, FeasibleSet, Presolved
from soctk.sets.coordinates import Coordinates
from soctk.sets.given import ENDLESS, check_below
from soctk.sets.rounding import rounded_down
from soctk.sets.rows import Rows

NAMES = ("lower", "upper", "f", "h")


class Base(Eliminated, Protocol):
    """The polyhedron that the matrices come from."""

    @property
    def arrays(self) -> SetArrays:
        """The set itself as arrays."""
        ...

    def replaced(self, lower: Tensor, upper: Tensor, f: Tensor, h: Tensor) -> FeasibleSet:
        """Return the set with other right-hand sides."""
        ...


@dataclass(frozen=True, eq=False)
class SetAt:
    """{lower <= x <= upper, E x = f, G x <= h} for a batch of right-hand sides; E and G are those of `base`.

    Some of these sets may be empty: decisions over them say so. Right-hand sides keep their autograd graph.

    Attributes:
        base: the polyhedron that it was made from.
        lower: (*batch, n) or (n,), as the next three float64.
        upper: (*batch, n) or (n,).
        f: (*batch, k) or (k,).
        h: (*batch, m) or (m,).
    """

    base: Base
    lower: Tensor
    upper: Tensor
    f: Tensor
    h: Tensor

    @classmethod
    def of(
        cls,
        base: Base,
        total: ArrayLike | None,
        lower: ArrayLike | None,
        upper: ArrayLike | None,
        f: ArrayLike | None,
        h: ArrayLike | None,
    ) -> SetAt:
        """Return `base` with some right-hand sides replaced; see `Polyhedron.at`."""
        rows = base.rows()
        if total is not None:
            if f is not None:
                raise ValueError("total: another name of f for a set with a sum; give one of the two")
            if rows.total is None:
                raise ValueError("total: expected a set with a sum, such as a Budget; give the rows of E their f")
            f = as_tensor(total, "total").unsqueeze(-1)
        sides = {
            name: getattr(rows, name) if value is None else _side(value, name, getattr(rows, name))
            for name, value in zip(NAMES, (lower, upper, f, h), strict=True)
        }
        if len({side.shape[:-1] for side in sides.values() if side.ndim > 1}) > 1:
            shapes = ", ".join(f"{name} {tuple(side.shape)}" for name, side in sides.items() if side.ndim > 1)
            raise ValueError(f"expected right-hand sides of one batch shape, got {shapes}")
        return cls(base, **sides)

    @property
    def dim(self) -> int:
        """The decision dimension n."""
        return self.base.dim

    @cached_property
    def batch_shape(self) -> tuple[int, ...]:
        """The batch shape of the right-hand sides; () where there is one set."""
        return next((tuple(side.shape[:-1]) for side in self.sides if side.ndim > 1), ())

    @property
    def sides(self) -> tuple[Tensor, ...]:
        """lower, upper, f and h."""
        return self.lower, self.upper, self.f, self.h

    @property
    def rows(self) -> Rows:
        """The matrices, and the right-hand sides of `base`."""
        return self.base.rows()

    def flat(self, batch: tuple[int, ...]) -> SetAt:
        """Return the sets for contexts of a batch shape, sides flattened to (N, any) or kept where all share them."""
        if self.batch_shape not in ((), batch):
            raise ValueError(
                f"feasible_set: expected right-hand sides of batch shape {batch} as the contexts', "
                f"got {self.batch_shape}"
            )
        if len(batch) == 1 and self.batch_shape in ((), batch):  # flat already
            return self
        return self._map(lambda side: side if side.ndim == 1 else side.expand(*batch, -1).reshape(-1, side.shape[-1]))

    def select(self, index: Tensor | slice) -> SetAt:
        """Return the sets of the instances `index`, where sides are flat."""
        if isinstance(index, Tensor):
            index = index.to(self.sides[0].device)
        return self._map(lambda side: side if side.ndim == 1 else side[index])

    def detach(self) -> SetAt:
        """Return the sets cut from autograd, on the CPU."""
        if not any(side.requires_grad or not side.is_cpu for side in self.sides):
            return self
        return self._map(lambda side: side.detach().cpu())

    def cpu(self) -> SetAt:
        """Return the sets in the processor's memory, part of whatever graph they are of."""
        return self._map(Tensor.cpu)

    def _map(self, fn: Callable[[Tensor], Tensor]) -> SetAt:
        return SetAt(self.base, *map(fn, self.sides))

    def one(self, index: int) -> FeasibleSet:
        """Return the set of one instance, where sides are flat.

        Raises:
            ValueError: it is empty.
        """
        return self.base.replaced(*(to_row(side, index) for side in self.sides))

    @cached_property
    def arrays(self) -> SetArrays:
        """The sets cut from autograd as arrays, flattened; those of `base` itself are kept there."""
        rows = self.base.rows()
        if all(mine is getattr(rows, name) for name, mine in zip(NAMES, self.sides, strict=True)):
            return self.base.arrays
        sides = map(to_numpy, self.sides)
        return SetArrays(self.base, *(side.reshape(math.prod(side.shape[:-1]), side.shape[-1]) for side in sides))

    @cached_property
    def box(self) -> tuple[Tensor, Tensor]:
        """(lo, hi), finite, (n,) or (*batch, n): boxes around the sets; the bounds where they are finite."""
        lo, hi = (
            torch.from_numpy(end).reshape(*(() if len(end) == 1 else self.batch_shape), self.dim)
            for end in self.arrays.box
        )
        return lo, hi

    @cached_property
    def reach(self) -> tuple[Tensor, float]:
        """The largest |x_i| in any of the sets, (n,), and a bound of |x|_1."""
        lo, hi = self.box
        largest = torch.maximum(lo.abs(), hi.abs()).reshape(-1, self.dim).amax(dim=0).cpu()
        return largest, float(largest.sum())

    @cached_property
    def coordinates(self) -> Coordinates:
        """Coordinates in which all of the sets lie between -1 and 1, about."""
        lo, hi = (torch.atleast_2d(end).cpu().numpy() for end in self.box)
        return Coordinates.of(lo.min(axis=0), hi.max(axis=0))

    @cached_property
    def magnitude(self) -> float:
        """The largest number among bounds and right-hand sides, at least 1."""
        numbers = [side.detach().abs().reshape(-1) for side in self.sides]
        return max(1.0, *(float(part[torch.isfinite(part)].max()) for part in numbers if torch.isfinite(part).any()))

    # -- as solvers see them -------------------------------------------------------------------------------

    def presolve(self) -> Presolved[SetAt]:
        """Return the sets as they are."""
        return self._presolved

    @cached_property
    def _presolved(self) -> Presolved[SetAt]:
        return Presolved(*_all_free(self.dim), self)

    def center(self, dtype: torch.dtype = torch.float64, device: Device = "cpu") -> Tensor:
        """Return the middles of the boxes, (..., n); they need not be in the sets."""
        lo, hi = self.box
        return (0.5 * (lo + hi)).to(dtype=dtype, device=device)

    def linear_minimum(self, g: Tensor) -> Tensor:
        """Return lower bounds of min g'x, (N, n) -> (N) or (N, M, n) -> (N, M): the minima over the boxes."""
        lo, hi = (end.to(g) for end in self.box)
        lo, hi = (end.unsqueeze(1) if end.ndim > 1 and g.ndim > end.ndim else end for end in (lo, hi))
        return rounded_down(torch.minimum(g * lo, g * hi))

    # -- oracles -------------------------------------------------------------------------------------------

    def violation(self, x: ArrayLike) -> Tensor:
        """Return the largest violation of any constraint of its own set by each point, (*batch, n) -> (*batch)."""
        return self._violation(self._check(x, "x"))

    def contains(self, x: ArrayLike, atol: float = 1e-9) -> Tensor:
        """Return whether each x satisfies every constraint of its own set to `atol`, (*batch, n) -> bool (*batch)."""
        return self.violation(x) <= atol

    def _violation(self, x: Tensor) -> Tensor:
        return self.rows.violation(x, *(side.to(x) for side in self.sides))

    def _check(self, value: ArrayLike, name: str) -> Tensor:
        tensor = as_tensor(value, name)
        check_last_dim(tensor, self.dim, name)
        return tensor

    def refutes(self, nu: ArrayLike, z: ArrayLike) -> Tensor:
        """Return -nu'f - z'h + min over lower <= x <= upper of (E'nu + G'z)'x, (*batch): positive where a set is empty.

        Less what rounding may have added to it, so that it proves what it says. inf where a lower bound lies above its
        upper one.

        Args:
            nu: (*batch, k).
            z: (*batch, m), not negative.

        Raises:
            ValueError: a wrong shape, or a negative z.
        """
        one, two = (as_tensor(part, name).detach().to(torch.float64) for part, name in ((nu, "nu"), (z, "z")))
        check_last_dim(one, self.f.shape[-1], "nu")
        check_last_dim(two, self.h.shape[-1], "z")
        if bool((two < 0).any()):
            raise ValueError(f"z: expected multipliers of at least 0, got {float(two.min()):g}")
        batch = np.broadcast_shapes(one.shape[:-1], two.shape[:-1], self.batch_shape)
        parts = (part.expand(*batch, -1).reshape(math.prod(batch), part.shape[-1]).numpy() for part in (one, two))
        amount = torch.from_numpy(self.flat(tuple(batch)).arrays.refutes(*parts))
        return amount.reshape(batch)

    def project(self, y: ArrayLike) -> Tensor:
        """Return the Euclidean projection of each y onto its own set: (*batch, n) -> (*batch, n).

        Raises:
            ValueError: a wrong shape, a NaN, an empty set.
        """
        return self._project(self._check(y, "y"))

    def _project(self, y: Tensor) -> Tensor:
        if self.rows.at_most_a_sum and self.rows.total is None:
            crossed = np.flatnonzero(self.arrays.crossed())
            if crossed.size > 0:
                raise ValueError(f"set {int(crossed[0])} is empty: a lower bound lies above its upper one")
            return torch.clamp(y, min=self.lower.detach().to(y), max=self.upper.detach().to(y))
        return self._each(y, lambda one, point: one.project(point))

    def linear_minimizer(self, g: ArrayLike) -> Tensor:
        """Return an argmin of g'x over each set, (*batch, n) -> (*batch, n).

        Raises:
            ValueError: a wrong shape, a NaN, an empty set.
        """
        return self._linear_minimizer(self._check(g, "g"))

    def _linear_minimizer(self, g: Tensor) -> Tensor:
        return self._each(g, lambda one, slope: one.linear_minimizer(slope))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return a point drawn from each set, (*batch, n), as `FeasibleSet.sample` draws.

        Raises:
            ValueError: an empty set.
        """
        none = torch.zeros(*self.batch_shape, self.dim, dtype=torch.float64)
        return self._each(none, lambda one, _: one.sample((), generator))

    def _each(self, points: Tensor, answer: Callable[[FeasibleSet, Tensor], Tensor]) -> Tensor:
        """Return the answers of one set at a time."""
        batch = np.broadcast_shapes(points.shape[:-1], self.batch_shape)
        wide, flat = points.detach().expand(*batch, self.dim).reshape(-1, self.dim), self.flat(tuple(batch)).detach()
        if self.batch_shape == ():
            return answer(flat.one(0), wide).reshape(*batch, self.dim)
        found = [answer(flat.one(k), point) for k, point in enumerate(wide)]
        return torch.stack(found).reshape(*batch, self.dim) if found else wide.reshape(*batch, self.dim)


@cache
def _all_free(dim: int) -> tuple[Tensor, Tensor]:
    """Return a point and all coordinates."""
    with torch.inference_mode(False):
        return torch.zeros(dim, dtype=torch.float64), torch.arange(dim)


def to_row(side: Tensor, index: int) -> Tensor:
    """Return the right-hand sides of one instance, (any,)."""
    return side if side.ndim == 1 else side[index]


def _side(value: ArrayLike, name: str, usual: Tensor) -> Tensor:
    """Return right-hand sides as a float64 tensor (*batch, rows)."""
    count = usual.shape[-1]
    if count == 0:
        raise ValueError(f"{name}: the set has no such rows")
    side = _bound(value, name) if name in ("lower", "upper") else as_tensor(value, name).to(torch.float64)
    if name in ("f", "h"):  # an h that large is no limit
        check_below(side, name, side.abs() >= ENDLESS if name == "f" else side <= -ENDLESS)
    if side is value:  # the caller may go on writing into it
        side = side.clone()
    if side.ndim == 0:
        return side.expand(count)
    if side.shape[-1] != count:
        if count > 1:
            raise ValueError(f"{name}: expected last dimension {count}, one number a row, got {tuple(side.shape)}")
        side = side.unsqueeze(-1)
    return side


def _bound(value: ArrayLike, name: str) -> Tensor:
    """Return bounds as a float64 tensor, infinite on their own side alone."""
    ready = isinstance(value, Tensor) and value.layout == torch.strided
    given = value if ready else torch.from_numpy(as_dense(value, name))
    endless = given == (-torch.inf if name == "lower" else torch.inf)
    side = as_tensor(torch.where(endless, torch.zeros_like(given), given), name).to(torch.float64)
    return torch.where(endless, given.to(torch.float64), side) if bool(endless.any()) else side
