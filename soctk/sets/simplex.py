"""The simplex."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from soctk.checks import as_number, check_count
from soctk.sets.polyhedron import Polyhedron
from soctk.sets.rows import Rows, bounds_and_sum


@dataclass(frozen=True)
class Simplex(Polyhedron):
    """{x >= 0, sum(x) = total}.

    Raises:
        ValueError: dim < 1, or total is not positive and finite.
    """

    dim: int
    total: float = 1.0

    def __post_init__(self) -> None:
        check_count(self.dim, "dim")
        object.__setattr__(self, "total", as_number(self.total, "total"))
        if not (np.isfinite(self.total) and self.total > 0):
            raise ValueError(f"total: expected a positive finite number, got {self.total!r}")

    @cached_property
    def _rows(self) -> Rows:
        return bounds_and_sum(self.dim, 0.0, np.inf, self.total)
