"""The least-squares quadratic: a convex quadratic in x whose slope is affine in the context, fitted exactly.

    f(x; theta) = 1/2 x'Qx + (q + C theta)'x + r(theta),   r quadratic in theta,   Q positive semidefinite

Linear in its coefficients, so the fit is one convex problem. With everything but Q eliminated (variable projection,
Golub and Pereyra 1973) it is min over Q >= 0 of a quadratic in Q, solved by accelerated projected gradients (FISTA)
from the unconstrained solution, which is the answer when it is already positive semidefinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.learn.units import Standardized

FISTA_STEPS = 5000
RIDGE = 1e-9
AT_A_TIME = 200_000
"""Numbers of features worked on at a time, about."""


@dataclass(frozen=True, eq=False)
class LeastSquaresQuadratic:
    """The coefficients of a quadratic.

    Attributes:
        Q: (n, n), positive semidefinite.
        slope: [C, q], (n, p + 1).
        level: the coefficients of `level_features`.
    """

    Q: Tensor
    slope: Tensor
    level: Tensor

    @classmethod
    def of(cls, data: Standardized, *, diagonal: bool = False) -> LeastSquaresQuadratic:
        """Return the quadratic of least squared error on the data.

        Args:
            data: observed values.
            diagonal: whether Q is, so that there are n coefficients of it and not n (n + 1) / 2.
        """
        n, p = data.x.shape[-1], data.context.shape[-1]
        rows, columns = torch.arange(n).expand(2, n) if diagonal else torch.triu_indices(n, n)
        gram, right = _normal_equations(data, rows, columns)
        Q, rest = _solve(gram, right, rows, columns, n)
        slope, level = rest.split([n * (p + 1), len(rest) - n * (p + 1)])
        return cls(Q, slope.reshape(n, p + 1), level)

    @property
    def factor(self) -> Tensor:
        """Return B with B'B = Q, (n, n)."""
        values, vectors = torch.linalg.eigh(self.Q)
        return values.clamp(min=0).sqrt().unsqueeze(-1) * vectors.mT


def ridge_regression(features: Tensor, targets: Tensor, decay: float) -> Tensor:
    """Return the minimiser B of mean |features B - targets|^2 + decay |B|^2: (N, k), (N, m) -> (k, m)."""
    curvature = features.mT @ features / len(features)
    curvature.diagonal().add_(decay)
    return torch.linalg.solve(curvature, features.mT @ targets / len(features))


def level_features(context: Tensor) -> Tensor:
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
    for index in torch.arange(part.x.shape[0]).split(max(1, AT_A_TIME // (part.x.shape[1] * (rows.numel() + 1)))):
        x = part.x[index]
        cross = x.unsqueeze(-1) * ones[index][:, None, None, :]
        level = level_features(part.context[index]).unsqueeze(1).expand(-1, x.shape[1], -1)
        features = torch.cat([scale * x[..., rows] * x[..., columns], cross.flatten(-2), level], dim=-1).flatten(0, 1)
        y = part.value[index].flatten()
        if part.root is not None:
            root = part.root[index].flatten()
            features, y = root.unsqueeze(1) * features, root * y
        gram = features.mT @ features + (0.0 if gram is None else gram)
        right = features.mT @ y + (0.0 if right is None else right)
    assert gram is not None
    assert right is not None
    return gram / part.value.numel(), right / part.value.numel()


def _solve(gram: Tensor, right: Tensor, rows: Tensor, columns: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the best positive semidefinite Q and the coefficients that go with it."""
    pairs = rows.numel()
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
