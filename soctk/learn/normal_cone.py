"""Normal cones of a polyhedron at points: which gradients an optimum allows, where rows stand beside bounds and a sum.

x* minimises f over {lower <= x <= upper, E x = f, G x <= h} if and only if -g lies in the cone that the rows of E, of
both signs, and the rows and bounds that hold with equality at x* span. How far -g is from it is a non-negative least
squares problem, whose multipliers are held fixed in derivatives of the squared distance (envelope theorem).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from soctk.lazy import optimize
from soctk.sets import Rows

DEPENDENT = 1e-9
"""Singular values of unit rows below this are none."""


@dataclass(frozen=True, eq=False)
class NormalCones:
    """The normal cones at several points.

    Attributes:
        across: (n, n), the projection onto the directions in which E allows to move.
        active: for each point its active rows (m, n), moved onto these directions.
    """

    across: np.ndarray
    active: list[np.ndarray]

    @classmethod
    def of(
        cls, rows: Rows, sides: tuple[Tensor, Tensor, Tensor], points: Tensor, near: Tensor, unit: Tensor
    ) -> NormalCones:
        """Return the cones at points (N, n), for gradients in x / unit.

        Args:
            rows: the matrices.
            sides: lower and upper, (n,) or (N, n), and h, (m,) or (N, m).
            points: one of each set.
            near: (n,) or (N, n), how close to a bound counts as at it.
            unit: of each coordinate, (n,).
        """
        lower, upper, h = sides
        n = points.shape[1]
        axes = torch.eye(n, dtype=torch.float64)
        normals = torch.cat([rows.G, axes, -axes])
        slack = torch.cat([h - points @ rows.G.T, upper - points, points - lower], dim=1)
        held = slack <= torch.cat([(near.square() @ rows.G.square().T).sqrt(), near, near], dim=-1)
        normals, equalities = normals * unit, rows.E * unit
        lengths = equalities.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        _, sizes, basis = np.linalg.svd((equalities / lengths).numpy())
        equal = basis[: int((sizes > DEPENDENT).sum())]
        across = np.eye(n) - equal.T @ equal
        return cls(across, [normals[mine].numpy() @ across for mine in held])

    def distance(self, g: Tensor) -> Tensor:
        """Return for each point what no multipliers explain of the gradients g (N, n), (N, n); differentiable."""
        moving = g @ torch.from_numpy(self.across).to(g)
        numbers = moving.detach().cpu().double().numpy()
        explained = np.zeros_like(numbers)
        for row, active in enumerate(self.active):
            if len(active):
                explained[row] = active.T @ optimize.nnls(active.T, -numbers[row])[0]
        return moving + torch.from_numpy(explained).to(g)
