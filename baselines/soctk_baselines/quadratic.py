"""Least-squares quadratic with context cross terms: the regression every learned method should beat.

    f(x; theta) = 1/2 x'Qx + (q + C theta)'x + r(theta),   r quadratic in theta,   Q positive semidefinite

Linear in its coefficients, so the fit is one convex problem. With everything but Q eliminated (variable
projection) it is min over Q >= 0 of a quadratic in Q, solved by accelerated projected gradient (FISTA) from the
unconstrained solution, which is the answer when it is already positive semidefinite.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from soctk import ConicForm, ConvexSurrogate
from soctk.learn.report import FitStatus
from soctk.learn.trainer import Trainer
from soctk.learn.units import Standardized
from soctk.maps.linear import DenseMap
from soctk.terms import Quadratic
from soctk.traits import TrainingTraits

FISTA_STEPS = 5000
RIDGE = 1e-9


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
        return ConicForm(_level_features(context) @ self.level.unsqueeze(-1), v, (quadratic,), (context.shape[0],))

    @property
    def traits(self) -> TrainingTraits:
        """Trained in one step, in which `FitConfig` has nothing to decide."""
        return TrainingTraits(own=self.train_by_least_squares)

    @torch.no_grad()
    def train_by_least_squares(self, trainer: Trainer) -> None:
        """Take the coefficients that are best on the training data."""
        part = trainer.standardized()[0]
        rows, columns = torch.triu_indices(self.dim, self.dim)
        gram, right = _normal_equations(part, rows, columns)
        pairs = rows.numel()
        Q, rest = _solve(gram, right, pairs, rows, columns, self.dim)
        values, vectors = torch.linalg.eigh(Q)
        self.factor.copy_(values.clamp(min=0).sqrt().unsqueeze(-1) * vectors.mT)
        n_linear = self.dim * (self.context_dim + 1)
        self.linear.copy_(rest[:n_linear].reshape(self.dim, self.context_dim + 1))
        self.level.copy_(rest[n_linear:])
        trainer.judge(FitStatus.CONVERGED, 1)

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"dim": self.dim, "context_dim": self.context_dim}


def _level_features(context: Tensor) -> Tensor:
    """Return [1, theta, theta_i theta_j]: (N, p) -> (N, 1 + p + p (p + 1) / 2)."""
    size, p = context.shape
    rows, columns = torch.triu_indices(p, p, device=context.device)
    ones = context.new_ones(size, 1)
    return torch.cat([ones, context, context[:, rows] * context[:, columns]], dim=-1)


def _normal_equations(part: Standardized, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return (F'F, F'y) over all observed values, a block of instances at a time."""
    gram, right = None, None
    ones = torch.cat([part.context, torch.ones_like(part.value[:, :1])], dim=-1)
    scale = torch.where(rows == columns, 0.5, 1.0).to(part.x.dtype)
    for index in torch.arange(part.x.shape[0]).split(max(1, 200_000 // (part.x.shape[1] * (rows.numel() + 1)))):
        x = part.x[index]
        cross = x.unsqueeze(-1) * ones[index][:, None, None, :]
        level = _level_features(part.context[index]).unsqueeze(1).expand(-1, x.shape[1], -1)
        features = torch.cat([scale * x[..., rows] * x[..., columns], cross.flatten(-2), level], dim=-1).flatten(0, 1)
        y = part.value[index].flatten()
        gram = features.mT @ features + (0.0 if gram is None else gram)
        right = features.mT @ y + (0.0 if right is None else right)
    assert gram is not None
    assert right is not None
    return gram / part.value.numel(), right / part.value.numel()


def _solve(gram: Tensor, right: Tensor, pairs: int, rows: Tensor, columns: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the best positive semidefinite Q and the coefficients that go with it."""
    gram = gram + RIDGE * torch.eye(gram.shape[0], dtype=gram.dtype) * gram.diagonal().mean()
    cross, corner = gram[:pairs, pairs:], torch.linalg.cholesky(gram[pairs:, pairs:])
    hessian = gram[:pairs, :pairs] - cross @ torch.cholesky_solve(cross.mT, corner)
    linear = right[:pairs] - cross @ torch.cholesky_solve(right[pairs:, None], corner)[:, 0]

    def matrix(q: Tensor) -> Tensor:
        Q = q.new_zeros(dim, dim)
        Q[rows, columns] = q
        return torch.triu(Q) + torch.triu(Q, 1).mT

    def project(q: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix(q))
        return ((vectors * values.clamp(min=0)) @ vectors.mT)[rows, columns]

    q = torch.linalg.solve(hessian, linear)
    if float(torch.linalg.eigvalsh(matrix(q)).min()) < 0:
        # In the coordinates (Q_ii, sqrt(2) Q_ij) the projection onto the cone is Euclidean.
        weight = torch.where(rows == columns, 1.0, math.sqrt(2.0)).to(q.dtype)
        scaled = hessian / weight[:, None] / weight[None, :]
        step = 1.0 / float(torch.linalg.eigvalsh(scaled).max())
        point = ahead = project(q) * weight
        momentum = 1.0
        for _ in range(FISTA_STEPS):
            gradient = scaled @ ahead - linear / weight
            moved = project((ahead - step * gradient) / weight) * weight
            if float(((ahead - moved) * (moved - point)).sum()) > 0:  # restart (O'Donoghue and Candes 2015)
                momentum = 1.0
            following = 0.5 * (1 + math.sqrt(1 + 4 * momentum**2))
            ahead, change = moved + (momentum - 1) / following * (moved - point), (moved - point).abs().max()
            point, momentum = moved, following
            if float(change) < 1e-10:
                break
        q = point / weight
    rest = torch.cholesky_solve((right[pairs:] - cross.mT @ q)[:, None], corner)[:, 0]
    return matrix(q), rest
