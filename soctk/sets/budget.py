"""The capped simplex."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from soctk.checks import as_number, check_count
from soctk.sets.given import Bound, check_total, freeze_bounds
from soctk.sets.polyhedron import Polyhedron
from soctk.sets.rows import Rows, bounds_and_sum


@dataclass(frozen=True)
class Budget(Polyhedron):
    """The capped simplex {lower <= x <= upper, sum(x) = total}.

    Raises:
        ValueError: as for `Box`, or total outside [sum(lower), sum(upper)].
    """

    dim: int
    total: float
    lower: Bound = 0.0
    upper: Bound = 1.0

    def __post_init__(self) -> None:
        check_count(self.dim, "dim")
        freeze_bounds(self, finite=True)
        least, most = (self.dim * b if isinstance(b, float) else sum(b) for b in (self.lower, self.upper))
        object.__setattr__(self, "total", as_number(self.total, "total"))
        check_total(self.total, "total", least, most)

    @cached_property
    def _rows(self) -> Rows:
        return bounds_and_sum(self.dim, self.lower, self.upper, self.total)
