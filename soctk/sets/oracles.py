"""What answers for a polyhedron, chosen by its rows: `Between` bounds alone, `Capped` with a sum, else `General`."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from soctk.checks import to_numpy
from soctk.sets.projection import project_capped_simplex
from soctk.sets.rounding import rounded_down
from soctk.sets.rows import Rows
from soctk.sets.sampling import sample_capped_simplex


class Oracles(ABC):
    """The answers. Tensors are (*batch, n), of any floating-point type on any device, as what is returned."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @abstractmethod
    def project(self, y: Tensor) -> Tensor:
        """Return the Euclidean projection of y."""

    @abstractmethod
    def linear_minimizer(self, g: Tensor) -> Tensor:
        """Return a vertex argmin of g'x."""

    def linear_minimum(self, g: Tensor) -> Tensor:
        """Return min g'x, (*batch), not above it."""
        return rounded_down(g * self.linear_minimizer(g))

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Return points (count, n), float64, uniform at least in the limit."""

    @abstractmethod
    def center(self) -> Tensor:
        """Return a point (n,) in the relative interior, float64."""

    @abstractmethod
    def hull(self) -> tuple[Tensor, Tensor]:
        """Return the smallest box around the set, float64 (n,) each."""

    def around(self) -> tuple[Tensor, Tensor]:
        """Return a box around the set, float64 (n,) each, that is found soon."""
        return self.hull()

    @abstractmethod
    def free(self) -> Tensor:
        """Return which coordinates can move, bool (n,)."""

    def bounds_like(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bounds in the dtype and on the device of y."""
        return self.rows.lower.to(y), self.rows.upper.to(y)


class Between(Oracles):
    """{lower <= x <= upper}, all bounds finite."""

    def project(self, y: Tensor) -> Tensor:
        lo, hi = self.bounds_like(y)
        return torch.clamp(y, min=lo, max=hi)

    def linear_minimizer(self, g: Tensor) -> Tensor:
        """Return the lower bound where g >= 0, else the upper one."""
        lo, hi = self.bounds_like(g)
        return torch.where(g < 0, hi, lo)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        lo, hi = self.rows.lower, self.rows.upper
        return lo + (hi - lo) * torch.rand(count, lo.numel(), generator=generator, dtype=torch.float64)

    def center(self) -> Tensor:
        return 0.5 * (self.rows.lower + self.rows.upper)

    def hull(self) -> tuple[Tensor, Tensor]:
        return self.rows.lower, self.rows.upper

    def free(self) -> Tensor:
        return self.rows.lower < self.rows.upper


class Capped(Oracles):
    """{lower <= x <= upper, sum(x) = total}, lower bounds finite."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows)
        self.lo, self.hi, self.total = to_numpy(rows.lower), to_numpy(rows.upper), float(rows.f)
        self.spare = self.total - float(self.lo.sum())

    def project(self, y: Tensor) -> Tensor:
        lo, hi = self.bounds_like(y)
        return project_capped_simplex(y, lo, hi, torch.as_tensor(self.total, dtype=y.dtype, device=y.device))

    def linear_minimizer(self, g: Tensor) -> Tensor:
        """Fill the coordinates in the order of increasing g up to their upper bounds until the total is reached."""
        lo, hi = self.bounds_like(g)
        order = torch.argsort(g, dim=-1, stable=True)
        room = (hi - lo)[order]
        spare = torch.as_tensor(self.total, dtype=g.dtype, device=g.device) - lo.sum()
        room = torch.minimum(room, spare)
        taken_before = torch.cumsum(room, dim=-1) - room
        fill = torch.minimum((spare - taken_before).clamp(min=0), room)
        return lo + torch.zeros_like(g).scatter(-1, order, fill)

    def linear_minimum(self, g: Tensor) -> Tensor:
        """Return min g'x, not above it: the coordinate filled last is off by the rounding of what the others take."""
        taken = 2 * (abs(self.total) + float(self.rows.lower.abs().sum()))
        return rounded_down(g * self.linear_minimizer(g), taken * g.abs().amax(dim=-1))

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        return sample_capped_simplex(count, self.rows.lower, self.rows.upper, self.total, generator)

    def center(self) -> Tensor:
        """Return the point with the same share of every coordinate's range."""
        room = np.minimum(self.hi - self.lo, self.spare)
        size = float(room.sum())
        share = self.spare / size if size > 0 else 0.0
        return torch.from_numpy(np.maximum(self.lo, np.minimum(self.lo + room * share, self.hi)))

    def hull(self) -> tuple[Tensor, Tensor]:
        """No coordinate exceeds what the others leave at their lower bounds, nor falls below what they leave."""
        lo = self.rows.lower
        most = torch.minimum(self.rows.upper, lo + self.spare)
        return torch.maximum(lo, most - (most.sum() - self.total)), most

    def free(self) -> Tensor:
        """Return those between different bounds, where there are two of them and the total leaves a choice."""
        free = self.lo < self.hi
        choice = np.count_nonzero(free) > 1 and self.spare > 0 and self.total < float(self.hi.sum())
        return torch.from_numpy(free if choice else np.zeros_like(free))
