"""Exact batched Euclidean projection onto {lo <= x <= hi, sum(x) = total} (the capped simplex).

The projection of y is x(tau) = clip(y - tau, lo, hi), where tau solves
phi(tau) = sum_i clip(y_i - tau, lo_i, hi_i) - total = 0: the optimality conditions of
min 1/2 ||x - y||^2 with multiplier tau for the equality. phi is piecewise linear and non-increasing, with
slope -(number of coordinates strictly between their bounds). Newton's method on phi, safeguarded by a
bracket, therefore ends after finitely many steps on the piece that holds the root, where one step is exact
(Michelot 1986; Condat 2016; Cominetti, Mascarenhas and Silva 2014 for the capped case).
"""

from __future__ import annotations

import torch
from torch import Tensor

_MAX_STEPS = 200
_SUM_ROUNDING = 16.0


def project_capped_simplex(y: Tensor, lo: Tensor, hi: Tensor, total: Tensor) -> Tensor:
    """Project each row of y onto {lo <= x <= hi, sum(x) = total}.

    Args:
        y: (*batch, n), finite.
        lo: (n,), finite.
        hi: (n,), may be +inf.
        total: scalar between sum(lo) and sum(hi).

    Returns:
        (*batch, n): feasible and optimal to rounding.
    """
    rows = y.reshape(-1, y.shape[-1])
    # No coordinate can exceed what the others leave at their lower bounds: the same set, with finite bounds.
    largest = lo + (total - lo.sum())
    start = (rows.sum(dim=-1, keepdim=True) - total) / y.shape[-1]
    if bool((hi >= largest).all()):
        # A simplex: at tau = max(y - largest) one coordinate alone has the whole sum, so that the root lies above,
        # with few coordinates left between their bounds.
        start = torch.maximum(start, (rows - largest).amax(dim=-1, keepdim=True))
    hi = torch.minimum(hi, largest)
    rows = rows - _solve_multiplier(rows, lo, hi, total, start)
    # tau is known to eps |tau| only, which is much where y is large. Coordinates that end between their bounds lie
    # within hi - lo of tau, so that y - tau is exact to their own size; what tau missed is found in those units.
    missed = (torch.clamp(rows, min=lo, max=hi).sum(dim=-1) - total).abs()
    size = torch.maximum(lo.abs(), hi.abs()).sum()
    again = torch.nonzero(missed > torch.finfo(y.dtype).eps * size).squeeze(-1)
    if again.numel() > 0:
        part = rows[again]
        rows[again] = part - _solve_multiplier(part, lo, hi, total, torch.zeros_like(part[:, :1]))
    x = torch.clamp(rows, min=lo, max=hi)
    return _absorb_rounding(x, rows, lo, hi, total).reshape(y.shape)


def _solve_multiplier(y: Tensor, lo: Tensor, hi: Tensor, total: Tensor, start: Tensor) -> Tensor:
    """Return tau (B, 1) with sum(clip(y - tau, lo, hi)) = total, searched from `start`."""
    lower = (y - hi).amin(dim=-1, keepdim=True)
    upper = (y - lo).amax(dim=-1, keepdim=True)
    tau = start.clamp(min=lower, max=upper)
    active = torch.arange(y.shape[0], device=y.device)
    result = tau.clone()
    for _ in range(_MAX_STEPS):
        shifted = y - tau
        x = torch.clamp(shifted, min=lo, max=hi)
        excess = x.sum(dim=-1, keepdim=True) - total
        free = ((shifted > lo) & (shifted < hi)).sum(dim=-1, keepdim=True)
        lower = torch.where(excess > 0, tau, lower)
        upper = torch.where(excess < 0, tau, upper)
        newton = tau + excess / free.clamp(min=1)
        inside = (free > 0) & (newton > lower) & (newton < upper)
        following = torch.where(inside, newton, 0.5 * (lower + upper))
        scale = torch.maximum(tau.abs(), x.abs().amax(dim=-1, keepdim=True)) * torch.finfo(y.dtype).eps
        # As small as the rounding of the sum itself: what remains is absorbed by the coordinates between their bounds.
        exact = excess.abs() <= _SUM_ROUNDING * torch.finfo(y.dtype).eps * x.abs().sum(dim=-1, keepdim=True)
        done = (exact | ((following - tau).abs() <= scale)).squeeze(-1)
        result[active] = torch.where(exact, tau, following)
        if bool(done.all()):
            break
        keep = ~done
        active, y, tau = active[keep], y[keep], following[keep]
        lower, upper = lower[keep], upper[keep]
    return result


def _absorb_rounding(x: Tensor, shifted: Tensor, lo: Tensor, hi: Tensor, total: Tensor) -> Tensor:
    """Spread what rounding left of sum(x) - total over the coordinates strictly between their bounds."""
    free = (shifted > lo) & (shifted < hi)
    for _ in range(2):
        excess = x.sum(dim=-1, keepdim=True) - total
        count = free.sum(dim=-1, keepdim=True)
        x = torch.clamp(x - torch.where(free, excess / count.clamp(min=1), 0.0), min=lo, max=hi)
    return x
