"""Learning the curved part and the affine part apart (variable projection, Golub and Pereyra 1973).

A surrogate is f = b0(theta) + v(theta)'x + h(x; theta). With several candidates for every context, the best
affine function of each instance can be projected out of the residual: with X_i = [1, x_i] = Q_i R_i,

    min over (b0, v) of ||y_i - h_i - X_i (b0, v)||^2  =  ||(I - Q_i Q_i') (y_i - h_i)||^2.

1. h is learned on the right-hand side, undisturbed by how well b0 and v follow the context;
2. then v is a plain regression on the context with targets Q_i'(y_i - h_i), which costs next to nothing:
   ||R_i (b0, v)(theta_i) - Q_i'(y_i - h_i)||^2, where only the first row of R_i, upper triangular, sees b0.

The level b0 never moves a decision: it is projected out of every phase (the column 1) and fitted last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from soctk.conditioning import AffinePart
from soctk.learn.units import Standardized
from soctk.surrogate import ConvexSurrogate

SPARE_CANDIDATES = 1.2
"""Candidates for each affine coefficient that an instance must have, so that projecting leaves information."""


def can_profile(model: ConvexSurrogate, candidates: int) -> bool:
    """Return whether the model keeps its affine part apart and the data can spare what projecting takes."""
    part = model.affine_part
    return part is not None and part.conditioned and candidates >= SPARE_CANDIDATES * (model.dim + 1)


def centered(residual: Tensor) -> Tensor:
    """Return residuals (N, M) without their instances' means: the best level projected out."""
    return residual - residual.mean(dim=1, keepdim=True)


class Profiled:
    """Data with the affine functions of every instance projected out.

    Args:
        data: standardised data, float64.
    """

    def __init__(self, data: Standardized) -> None:
        self.data = data
        columns = torch.cat([torch.ones_like(data.x[..., :1]), data.x], dim=-1)
        self.basis, self.triangle = torch.linalg.qr(columns)

    def residual(self, model: ConvexSurrogate) -> Tensor:
        """Return (I - QQ')(f - y), (N, M): zero gradient for the affine part, by construction."""
        raw = model._value(self.data.x, self.data.context) - self.data.value
        return raw - (self.basis @ (self.basis.mT @ raw.unsqueeze(-1))).squeeze(-1)

    @torch.no_grad()
    def slope_targets(self, model: ConvexSurrogate) -> Tensor:
        """Return the rows of Q'(y - h) that see v alone, with the model's current h: (N, n)."""
        part = _affine_part(model)
        b0, v = part(self.data.context)
        curved = model._value(self.data.x, self.data.context) - b0 - (self.data.x * v).sum(dim=-1)
        return (self.basis.mT @ (self.data.value - curved).unsqueeze(-1))[:, 1:, 0]

    def slope_loss(self, model: ConvexSurrogate, targets: Tensor) -> Tensor:
        """Return the mean square of R v - targets: the part of the centred residual that v explains."""
        v = _affine_part(model).v(self.data.context)
        residual = (self.triangle[:, 1:, 1:] @ v.mT).squeeze(-1) - targets
        return residual.square().sum(dim=-1).mean() / self.data.x.shape[1]


@torch.no_grad()
def level_targets(model: ConvexSurrogate, data: Standardized) -> Tensor:
    """Return what b0 should be for each instance: the mean of y - (f - b0), (N, 1)."""
    b0 = _affine_part(model).b0(data.context)
    return (data.value - model._value(data.x, data.context)).mean(dim=1, keepdim=True) + b0


def level_loss(model: ConvexSurrogate, data: Standardized, targets: Tensor) -> Tensor:
    """Return the mean square of b0 - targets."""
    b0 = _affine_part(model).b0(data.context)
    return (b0 - targets).square().mean()


def _affine_part(model: ConvexSurrogate) -> AffinePart:
    part = model.affine_part
    if part is None:
        raise ValueError(f"{type(model).__name__} does not keep its affine part apart")
    return part
