"""Least-squares quadratic with context cross terms: the regression every learned method should beat.

    f(x; theta) = 1/2 x'Qx + (q + C theta)'x + r(theta),   r quadratic in theta,   Q positive semidefinite

Fitted exactly (`soctk.learn.least_squares`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from soctk import ConicForm, ConvexSurrogate
from soctk.learn.least_squares import LeastSquaresQuadratic, level_features
from soctk.learn.report import FitStatus
from soctk.learn.trainer import Trainer
from soctk.maps.linear import DenseMap
from soctk.terms import Quadratic
from soctk.traits import TrainingTraits


class QuadraticRegression(ConvexSurrogate):
    """A convex quadratic in x with an affine response to the context.

    Args:
        dim: the decision dimension n.
        context_dim: the context dimension p.
    """

    def __init__(self, dim: int, context_dim: int = 0, *, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dim, context_dim, dtype=dtype)
        self.factor = nn.Parameter(torch.zeros(dim, dim, dtype=dtype))
        self.linear = nn.Parameter(torch.zeros(dim, context_dim + 1, dtype=dtype))
        level = 1 + context_dim + context_dim * (context_dim + 1) // 2
        self.level = nn.Parameter(torch.zeros(level, dtype=dtype))

    def _conic_form(self, context: Tensor) -> ConicForm:
        ones = torch.cat([context, context.new_ones(context.shape[0], 1)], dim=-1)
        none = torch.zeros(1, 1, self.dim, dtype=self.dtype, device=self.device)
        quadratic = Quadratic(DenseMap(self.factor.unsqueeze(0)), none, torch.ones_like(none))
        v = (ones @ self.linear.mT).unsqueeze(1)
        return ConicForm(level_features(context) @ self.level.unsqueeze(-1), v, (quadratic,), (context.shape[0],))

    @property
    def traits(self) -> TrainingTraits:
        """Trained in one step, in which `FitConfig` has nothing to decide."""
        return TrainingTraits(own=self.train_by_least_squares)

    @torch.no_grad()
    def train_by_least_squares(self, trainer: Trainer) -> None:
        """Take the coefficients that are best on the training data."""
        found = LeastSquaresQuadratic.of(trainer.standardized()[0])
        self.factor.copy_(found.factor)
        self.linear.copy_(found.slope)
        self.level.copy_(found.level)
        trainer.judge(FitStatus.CONVERGED, 1)

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"dim": self.dim, "context_dim": self.context_dim}
