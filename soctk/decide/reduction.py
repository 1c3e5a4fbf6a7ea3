"""Taking out the coordinates that cannot move, so that a barrier has an interior to work in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from soctk.forms.conic_form import ConicForm
from soctk.sets import Box, Budget, FeasibleSet, Simplex


@dataclass(frozen=True, eq=False)
class Reduction:
    """A set with the coordinates where lo = hi substituted; none is left where the set is a single point.

    Attributes:
        feasible_set: the set as given.
        point: (n,), a feasible point; the fixed coordinates hold its values.
        columns: indices of the free coordinates.
    """

    feasible_set: FeasibleSet
    point: Tensor
    columns: Tensor

    @staticmethod
    @lru_cache(maxsize=64)
    def of(feasible_set: FeasibleSet, dtype: torch.dtype, device: torch.device) -> Reduction:
        """Find the free coordinates of a set; sets are immutable, so that the answer is kept."""
        lo, hi = feasible_set.bounds()
        free, total = lo < hi, feasible_set.sum_total
        if total is not None and (int(free.sum()) <= 1 or total <= float(lo.sum()) or total >= float(hi.sum())):
            free = torch.zeros_like(free)
        point = feasible_set._project(feasible_set.center(dtype, device))
        return Reduction(feasible_set, point, torch.nonzero(free).squeeze(-1).to(device))

    @property
    def trivial(self) -> bool:
        """Whether every coordinate is free."""
        return self.columns.numel() == self.feasible_set.dim

    @property
    def single_point(self) -> bool:
        """Whether the set is one point."""
        return self.columns.numel() == 0

    @property
    def reduced_set(self) -> FeasibleSet:
        """The set of the free coordinates."""
        if self.trivial:
            return self.feasible_set
        lo, hi = self.feasible_set.bounds()
        free = torch.zeros(self.feasible_set.dim, dtype=torch.bool)
        free[self.columns.cpu()] = True
        count, lower, upper = int(free.sum()), tuple(lo[free].tolist()), tuple(hi[free].tolist())
        if self.feasible_set.sum_total is None:
            return Box(count, lower, upper)
        if isinstance(self.feasible_set, Simplex):
            return Simplex(count, self.feasible_set.total)
        held = float(self.point.cpu()[~free].sum())
        return Budget(count, self.feasible_set.sum_total - held, lower, upper)

    def form(self, form: ConicForm) -> ConicForm:
        """Return the form as a function of the free coordinates."""
        return form if self.trivial else form.restricted(self.columns, self.point)

    def expand(self, x: Tensor) -> Tensor:
        """Put the fixed coordinates back: (N, free) -> (N, n)."""
        if self.trivial:
            return x
        return self.point.expand(x.shape[0], -1).index_copy(1, self.columns, x)
