"""A feasible set of one's own, with the four methods that are required and nothing else."""

from __future__ import annotations

import cvxpy as cp
import torch
from torch import Tensor

from soctk import FeasibleSet


class Ball(FeasibleSet):
    """{x : |x - middle| <= radius}, every coordinate of the middle the same."""

    def __init__(self, dim: int, radius: float = 1.0, middle: float = 0.0) -> None:
        self.dim, self.radius, self.middle = dim, radius, middle

    def _project(self, y: Tensor) -> Tensor:
        away = y - self.middle
        length = away.norm(dim=-1, keepdim=True)
        return self.middle + away * torch.where(length > self.radius, self.radius / length, torch.ones_like(length))

    def _linear_minimizer(self, g: Tensor) -> Tensor:
        length = g.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)
        return self.middle - self.radius * g / length

    def _violation(self, x: Tensor) -> Tensor:
        return ((x - self.middle).norm(dim=-1) - self.radius).clamp(min=0)

    def constraints(self, x: cp.Expression) -> list[cp.Constraint]:
        if x.shape != (self.dim,):
            raise ValueError(f"x: expected a CVXPY expression of shape ({self.dim},), got {x.shape}")
        return [cp.norm(x - self.middle) <= self.radius]
