"""Levenberg-Marquardt: Gauss-Newton steps on a sum of squared residuals, damped until they help.

With residuals r(w) in R^R and Jacobian J, a step solves (J'J + damping * diag(J'J)) s = -J'r (Marquardt 1963);
the damping falls where the quadratic model predicts the loss well and rises where it does not (Nielsen 1999).
Where L-BFGS needs hundreds of iterations through the narrow valleys that products of weights make, ten or
twenty of these do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from soctk.learn.search import Run, Search

FIRST_DAMPING = 1e-2
SMALLEST_DAMPING = 1e-12
LARGEST_FALL = 0.2
MAX_REJECTIONS = 10
SMALLEST_CURVATURE = 1e-12
"""A weight's curvature counts as at least this share of the largest, so that weights without effect stay put."""
CONVERGED = 1e-3
"""A step predicted to lower the loss by less than this share of it ends the search."""


def gram(slopes: Tensor) -> Tensor:
    """Return J'J of every problem, (B, R, P) -> (B, P, P); on a processor by NumPy, which forms one half of it."""
    if slopes.device.type != "cpu" or slopes.shape[0] > 1:
        return slopes.mT @ slopes
    rows = slopes[0].numpy()
    return torch.from_numpy(rows.T @ rows).unsqueeze(0)


@torch.no_grad()
def levenberg_marquardt(
    search: Search, residual: Callable[[], Tensor], jacobian: Callable[[], Tensor], penalty: float = 0.0
) -> Run:
    """Minimise mean(r^2) + penalty ||w||^2 of B independent problems over the search's weights in place.

    Args:
        search: the weights, (B, P) in its `position`, and when to stop.
        residual: the residuals at the current weights, (B, R).
        jacobian: their derivatives in a problem's own weights, (B, R, P).
        penalty: of the squared weights.
    """

    def total(residuals: Tensor) -> Tensor:
        return residuals.square().mean(dim=-1) + penalty * search.position().square().sum(dim=-1)

    current = residual()
    loss, weight = total(current), penalty * current.shape[-1]
    damping, rise = torch.full_like(loss, FIRST_DAMPING), torch.full_like(loss, 2.0)
    curvature = gradient = scale = torch.empty(0)
    moved, rejections = True, 0
    with search:
        while rejections < MAX_REJECTIONS and search.iterations > 0:
            if moved:
                slopes = jacobian()
                curvature = gram(slopes)
                curvature.diagonal(dim1=-2, dim2=-1).add_(weight)
                gradient = slopes.mT @ current.unsqueeze(-1) + weight * search.position().unsqueeze(-1)
                scale = curvature.diagonal(dim1=-2, dim2=-1)
                scale = torch.maximum(scale, SMALLEST_CURVATURE * scale.amax(dim=-1, keepdim=True))
            position = search.position()
            factor, failed = torch.linalg.cholesky_ex(curvature + torch.diag_embed(damping.unsqueeze(-1) * scale))
            step = -torch.cholesky_solve(gradient, factor)
            predicted = -(2 * gradient + curvature @ step).mul(step).sum(dim=(-2, -1)) / current.shape[-1]
            search.move_to(position + step.squeeze(-1))
            trial = residual()
            trial_loss = total(trial)
            accepted = (trial_loss < loss) & (failed == 0)
            search.move_to(torch.where(accepted.unsqueeze(-1), position + step.squeeze(-1), position))
            ratio = ((loss - trial_loss) / predicted.clamp(min=1e-300)).clamp(max=1.0)
            fall = (1 - (2 * ratio - 1) ** 3).clamp(min=LARGEST_FALL)
            damping = torch.where(accepted, damping * fall, damping * rise).clamp(min=SMALLEST_DAMPING)
            rise = torch.where(accepted, 2.0, 2 * rise)
            current = torch.where(accepted.unsqueeze(-1), trial, current)
            loss = torch.where(accepted, trial_loss, loss)
            moved = bool(accepted.any())
            rejections = 0 if moved else rejections + 1
            if moved and (search.step(float(loss.mean())) or bool((predicted <= CONVERGED * loss).all())):
                break
    return search.finish()
