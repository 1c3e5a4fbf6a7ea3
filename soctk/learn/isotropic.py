"""A quadratic for fewer values than coefficients: one curvature for all directions, and the slope of least norm.

    f(x; theta) = q / 2 ||x||^2 + sum_j eta_j S_j'x + b0(theta),   eta = (theta, 1),   q >= 0

With S_j ~ N(0, tau^2 I) and noise of variance lambda tau^2, the values of an instance about their mean have the
covariance tau^2 (K + lambda I), K = C [(x x') * (eta eta')] C, C the centring; single values have that of b0 beside it.
q is the generalised least-squares estimate and S = sum_r alpha_r x_r eta_r' the posterior mean (universal kriging;
Rasmussen and Williams 2006, section 2.7): R x R systems for R values, however many variables. lambda is the one whose
leave-one-out errors are least; they need no refits (Dubrule 1983). What the values say nothing of keeps slope 0, so
that decisions stay at the middle there.
"""

from __future__ import annotations

import numpy as np
import torch

from soctk.learn.least_squares import LeastSquaresQuadratic, level_features
from soctk.learn.units import Standardized

MOST_VALUES = 3000
"""Beyond, the systems take long."""
LAMBDAS = np.logspace(-6, 3, 19)
"""In units of the mean of K's diagonal."""
SMALLEST_CURVATURE = 1e-3
"""q is at least this share of the values' variation over that of ||x||^2 / 2."""
LEVEL_VARIANCE = 10.0
"""Of b0 in single values, in units of that of the slope's part."""
LEVEL_RIDGE = 1e-3
TINY = float(np.finfo(np.float64).tiny)


def isotropic_quadratic(data: Standardized) -> LeastSquaresQuadratic:
    """Return the quadratic for at most `MOST_VALUES` observed values."""
    instances, candidates, n = data.x.shape
    x, y = data.x.numpy(), data.value.numpy()
    eta = np.concatenate([data.context.numpy(), np.ones((instances, 1))], axis=1)
    axis = 1 if candidates > 1 else 0  # single values have nothing but each other to be compared with
    points = (x - x.mean(axis=1, keepdims=True) if candidates > 1 else x).reshape(-1, n)
    about = (y - y.mean(axis=axis, keepdims=True)).reshape(-1)
    half = 0.5 * np.square(x).sum(axis=-1)
    square = (half - half.mean(axis=axis, keepdims=True)).reshape(-1)
    features = np.repeat(eta, candidates, axis=0)
    kernel = (points @ points.T) * (features @ features.T)
    if candidates == 1:
        levels = level_features(data.context).numpy()
        kernel += LEVEL_VARIANCE * np.diag(kernel).mean() / levels.shape[1] * (levels @ levels.T)
        kernel = kernel - kernel.mean(axis=0) - kernel.mean(axis=1)[:, None] + kernel.mean()
    q, alpha = _krige(kernel, square, about)
    if candidates == 1:
        alpha = alpha - alpha.mean()
    slope = points.T @ (alpha[:, None] * features)
    left = y - q * half - np.einsum("nmi,ij,nj->nm", x, slope, eta)
    level = _level(torch.from_numpy(left.mean(axis=1)), data.context)
    return LeastSquaresQuadratic(q * torch.eye(n, dtype=torch.float64), torch.from_numpy(slope), level)


def _krige(kernel: np.ndarray, square: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return q and alpha for the best lambda."""
    values, axes = np.linalg.eigh(kernel)
    values = values.clip(min=0.0)
    scale = max(float(values.mean()), TINY)
    variation = float(square @ square)
    floor = SMALLEST_CURVATURE * float(np.sqrt(y @ y / variation)) if variation > 0 else 0.0
    best = (np.inf, floor, np.zeros_like(y))
    for share in LAMBDAS:
        q, alpha, precision = solve(values + share * scale, axes, square, y, floor)
        error = float(np.square(alpha / precision.clip(min=TINY)).mean())
        if error < best[0]:
            best = (error, q, alpha)
    return best[1:]


def solve(
    values: np.ndarray, axes: np.ndarray, square: np.ndarray, y: np.ndarray, floor: float
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return q, alpha and what alpha is divided by to give leave-one-out errors.

    Args:
        values: eigenvalues of K + lambda I, (R,).
        axes: its eigenvectors, (R, R).
        square: ||x||^2 / 2 about the instance's mean, (R,).
        y: the values about theirs.
        floor: the least q.
    """
    a, b = axes.T @ square, axes.T @ y
    weight = float(a @ (a / values))
    q = max(floor, float(a @ (b / values)) / weight) if weight > 0 else 0.0
    precision = np.square(axes) @ (1 / values)
    if weight > 0:
        precision -= np.square(axes @ (a / values)) / weight
    return q, axes @ ((b - q * a) / values), precision


def _level(means: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """Return the coefficients of `level_features` for the instances' means, shrunk: there may be more of them."""
    features = level_features(context)
    free = torch.ones(features.shape[1], dtype=features.dtype)
    free[0] = 0.0
    penalty = torch.diag(LEVEL_RIDGE * len(features) * free)
    return torch.linalg.lstsq(features.mT @ features + penalty, features.mT @ means).solution
