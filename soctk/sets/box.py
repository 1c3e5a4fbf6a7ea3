"""The box."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from soctk.checks import check_count
from soctk.sets.given import Bound, freeze_bounds
from soctk.sets.polyhedron import Polyhedron
from soctk.sets.rows import Rows, bounds_and_sum


@dataclass(frozen=True)
class Box(Polyhedron):
    """{lower <= x <= upper}, bounds a number or one per coordinate.

    Raises:
        ValueError: dim < 1, a bound is not finite or has a wrong length, or lower > upper somewhere.
    """

    dim: int
    lower: Bound = 0.0
    upper: Bound = 1.0

    def __post_init__(self) -> None:
        check_count(self.dim, "dim")
        freeze_bounds(self, finite=True)

    @cached_property
    def _rows(self) -> Rows:
        return bounds_and_sum(self.dim, self.lower, self.upper, None)
