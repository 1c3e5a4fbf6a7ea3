"""Losses for learning a convex surrogate from observed values."""

from __future__ import annotations

import torch
from torch import Tensor

from soctk.learn.data import ValueData
from soctk.surrogate import ConvexSurrogate


def residual_loss(residual: Tensor, level_weight: float = 1.0) -> Tensor:
    """Return the mean square of residuals (N, M), the instances' means weighted by `level_weight`.

    The variation of f within an instance decides; its level does not. With weight 1 this is the plain mean
    squared error: mean(r^2) = mean over instances of (variance + mean^2).
    """
    if level_weight == 1.0 or residual.shape[1] == 1:
        return residual.square().mean()
    level = residual.mean(dim=1)
    return (residual - level.unsqueeze(1)).square().mean() + level_weight * level.square().mean()


def value_loss(model: ConvexSurrogate, data: ValueData, level_weight: float = 1.0) -> Tensor:
    """Return the mean squared error of the model's values, in the user's units squared; differentiable."""
    residual = model.evaluate(data.x, data.context) - data.value
    return residual_loss(residual, level_weight)


@torch.no_grad()
def relative_error(model: ConvexSurrogate, data: ValueData) -> float:
    """Return ||f_hat - f||_2 / ||f||_2 over all candidates of all instances (the paper's relative l2 error)."""
    residual = model.evaluate(data.x, data.context) - data.value
    return float(torch.linalg.vector_norm(residual) / torch.linalg.vector_norm(data.value).clamp(min=1e-300))
