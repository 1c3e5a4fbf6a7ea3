"""The oracles of polyhedra at large: linear programmes, an active-set projection, hit-and-run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from soctk.sets.active_set import Projector
from soctk.sets.hit_and_run import Walk, hit_and_run
from soctk.sets.interior import Interior
from soctk.sets.linear_programs import Ends, System
from soctk.sets.oracles import Oracles
from soctk.sets.rows import Rows

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
        return _each(y, lambda point: np.clip(unit * self._projector.project(point / unit), lo, hi)).to(y)

    def linear_minimizer(self, g: Tensor) -> Tensor:
        lo, hi = self.rows.lower.numpy(), self.rows.upper.numpy()
        return _each(g, lambda row: np.clip(self.system.minimum(row, self.box)[0], lo, hi)).to(g)

    def linear_minimum(self, g: Tensor) -> Tensor:
        """Return a lower bound of the minimum, within 1e-9 of it, from the multipliers."""
        least = _each(g, lambda row: np.array(self.system.minimum(row, self.box)[1])).to(g.device)
        rounded = least.to(g.dtype)
        return torch.where(rounded > least, torch.nextafter(rounded, torch.full_like(rounded, -torch.inf)), rounded)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        return hit_and_run(self._walk, count, generator)

    def center(self) -> Tensor:
        """Return the analytic centre."""
        return torch.from_numpy(self.system.unit * self._center)

    def hull(self) -> tuple[Tensor, Tensor]:
        axes = torch.eye(len(self.rows.lower), dtype=torch.float64)
        lo, hi = self.linear_minimum(axes), -self.linear_minimum(-axes)
        return torch.maximum(lo, self.rows.lower), torch.minimum(hi, self.rows.upper)

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
    def _walk(self) -> Walk:
        """Directions stretched as the ellipsoid of the log barrier at the centre, which lies inside the set."""
        inside, unit = self.inside, self.system.unit
        rows = inside.normals / (inside.heights - inside.normals @ self._center)[:, None]
        _, lengths, axes = np.linalg.svd(inside.across(rows), full_matrices=False)
        d = len(self.rows.lower) - len(inside.span)
        frame = axes[:d] / lengths[:d, None]
        rates = torch.from_numpy(rows @ frame.T)

        def chord(w: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
            left, speed = (1 - w @ rates.T).clamp(min=0), direction @ rates.T
            times = left / speed
            least = torch.where(speed < 0, times, -torch.inf).amax(dim=-1, keepdim=True)
            return least, torch.where(speed > 0, times, torch.inf).amin(dim=-1, keepdim=True)

        return Walk(self.center(), torch.from_numpy(unit * frame), chord)


def _each(points: Tensor, answer: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    """Return the answers to one point at a time, float64 on the CPU: (*batch, n) -> (*batch, n) or (*batch)."""
    rows = points.detach().cpu().double().reshape(-1, points.shape[-1]).numpy()
    if len(rows) == 0:
        return torch.zeros(points.shape, dtype=torch.float64)
    answers = torch.from_numpy(np.stack([answer(row) for row in rows]))
    return answers.reshape(points.shape[:-1] + answers.shape[1:])
