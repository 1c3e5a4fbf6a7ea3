"""Full-batch L-BFGS over a module's weights (SciPy's L-BFGS-B, unbounded)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from soctk.lazy import optimize
from soctk.learn.search import Run, Search


def lbfgs(search: Search, losses: Sequence[Callable[[], Tensor]], *, history: int) -> Run:
    """Minimise the sum of `losses` over the search's weights in place.

    Args:
        search: the weights and when to stop.
        losses: the parts of the training loss at the current weights, differentiable; one is worked on at a time.
        history: correction pairs.
    """
    current = math.inf

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal current
        search.move_to(torch.from_numpy(flat.copy()).unsqueeze(0))
        total, gradient = 0.0, torch.zeros(flat.size, dtype=torch.float64)
        for loss in losses:
            value = loss()
            total += float(value.detach())
            if not math.isfinite(total):
                return math.inf, np.zeros_like(flat)  # the line search backs off
            slopes = torch.autograd.grad(value, search.weights, allow_unused=True, materialize_grads=True)
            gradient += torch.cat([slope.reshape(-1) for slope in slopes]).cpu()
        current = total
        return current, gradient.numpy()

    def after_iteration(flat: np.ndarray) -> None:
        search.move_to(torch.from_numpy(flat.copy()).unsqueeze(0))
        if search.step(current):
            raise StopIteration

    if search.iterations == 0:
        return search.finish()
    start = search.position()[0].cpu().numpy()
    options = {"maxiter": search.iterations, "maxfun": 10**9, "maxcor": history, "ftol": 0.0, "gtol": 1e-10}
    with search:
        result = optimize.minimize(
            objective, start, jac=True, method="L-BFGS-B", callback=after_iteration, options=options
        )
    search.move_to(torch.from_numpy(result.x.copy()).unsqueeze(0))
    return search.finish()
