"""The oracles of polyhedra at large: linear programmes, an active-set projection, hit-and-run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from soctk.sets.active_set import Projector
from soctk.sets.interior import Interior
from soctk.sets.linear_programs import Ends, System
from soctk.sets.oracles import Oracles
from soctk.sets.polyhedral_walk import Directions, uniform_points
from soctk.sets.rounding import directed
from soctk.sets.rows import Rows

MOST_PROGRAMS = 100
"""Coordinates beyond which two linear programmes for each are not solved only for how far rounding may reach."""
MOVES = 1e-9
"""A coordinate moves that has more than this of some direction of length one in the affine hull."""


class General(Oracles):
    """{lower <= x <= upper, E x = f, G x <= h}, compact and not empty.

    Raises:
        ValueError: the set is empty or not bounded.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows)
        self.system = System.of(rows)
        self.inside = Interior.of(self.system)
        self.box: Ends = self.system.box()

    def project(self, y: Tensor) -> Tensor:
        lo, hi, unit = self.rows.lower.numpy(), self.rows.upper.numpy(), self.system.unit
        points = y.detach().cpu().double().reshape(-1, y.shape[-1]).numpy() / unit
        return torch.from_numpy(np.clip(unit * self._projector.project(points), lo, hi)).reshape(y.shape).to(y)

    def linear_minimizer(self, g: Tensor) -> Tensor:
        lo, hi = self.rows.lower.numpy(), self.rows.upper.numpy()
        return _each(g, lambda row: np.clip(self.system.minimum(row, self.box)[0], lo, hi), g.shape[-1:]).to(g)

    def linear_minimum(self, g: Tensor) -> Tensor:
        """Return a lower bound of the minimum, within 1e-9 of it, from the multipliers."""
        least = _each(g, lambda row: np.array(self.system.minimum(row, self.box)[1]), ())
        return directed(least, g.dtype, -torch.inf).to(g.device)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        unit = self.system.unit
        return uniform_points(unit * self._center, unit * self._frame[0], self._directions, count, generator)

    def center(self) -> Tensor:
        """Return the analytic centre."""
        return torch.from_numpy(self.system.unit * self._center)

    def hull(self) -> tuple[Tensor, Tensor]:
        axes = torch.eye(len(self.rows.lower), dtype=torch.float64)
        lo, hi = self.linear_minimum(axes), -self.linear_minimum(-axes)
        return torch.maximum(lo, self.rows.lower), torch.minimum(hi, self.rows.upper)

    def around(self) -> tuple[Tensor, Tensor]:
        if len(self.rows.lower) <= MOST_PROGRAMS:
            return self.hull()
        lo, hi = (torch.from_numpy(self.system.unit * end) for end in self.box)
        return lo, hi

    def free(self) -> Tensor:
        axes = np.eye(len(self.rows.lower))
        return torch.from_numpy(np.linalg.norm(self.inside.across(axes), axis=1) > MOVES)

    @cached_property
    def _center(self) -> np.ndarray:
        return self.inside.analytic_center()

    @cached_property
    def _projector(self) -> Projector:
        return Projector(self.inside)

    @cached_property
    def _frame(self) -> tuple[np.ndarray, np.ndarray]:
        """The axes of the log barrier's ellipsoid at the centre, (d, n), and how rows fall along them, (m, d)."""
        rows = self.inside.normals / (self.inside.heights - self.inside.normals @ self._center)[:, None]
        _, lengths, axes = np.linalg.svd(self.inside.across(rows), full_matrices=False)
        d = len(self.rows.lower) - len(self.inside.span)
        frame = axes[:d] / lengths[:d, None]
        for _ in range(2):  # a long axis leaves the affine hull by rounding, and again by that of its projection
            frame = self.inside.across(frame)
        return frame, rows @ frame.T

    @cached_property
    def _directions(self) -> Directions:
        return Directions.of(self._frame[1])


def _each(points: Tensor, answer: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]) -> Tensor:
    """Return the answers (*shape) to one point at a time, float64 on the CPU: (*batch, n) -> (*batch, *shape)."""
    rows = points.detach().cpu().double().reshape(-1, points.shape[-1]).numpy()
    if len(rows) == 0:
        return torch.zeros((*points.shape[:-1], *shape), dtype=torch.float64)
    answers = torch.from_numpy(np.stack([answer(row) for row in rows]))
    return answers.reshape((*points.shape[:-1], *shape))
