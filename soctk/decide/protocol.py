"""The paper's decision protocol: projected gradient or projected Adam, 5 restarts of 200 steps.

Kept to show the difference: neither reaches a certified gap in general. Adam's step is roughly the sign of the
gradient; projecting onto a simplex or a budget set cancels a constant vector, so it stalls there
(soctk's own method is in `newton.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from soctk.sets import FeasibleSet

RESTARTS = 5
STEPS = 200
LEARNING_RATE = {"projected_gradient": 1e-2, "projected_adam": 2e-3}

Objective = Callable[[Tensor], Tensor]


def projected_descent(
    objective: Objective,
    feasible_set: FeasibleSet,
    start: Tensor,
    *,
    method: str,
    steps: int = STEPS,
    rate: float,
) -> tuple[Tensor, Tensor]:
    """Return the best points (N, n) and values (N,) over all restarts and steps.

    Args:
        objective: (N, M, n) -> (N, M), differentiable; N instances, M restarts.
        feasible_set: where the points stay.
        start: (N, M, n) feasible starting points.
        method: "projected_gradient" or "projected_adam".
        steps: steps for each restart.
        rate: step size.
    """
    x = start.clone()
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    best_x, best_value = x[:, 0].clone(), x.new_full((x.shape[0],), torch.inf)
    for step in range(1, steps + 2):
        with torch.enable_grad():
            points = x.detach().requires_grad_()
            values = objective(points)
            (gradient,) = torch.autograd.grad(values.sum(), points)
        value, restart = values.detach().min(dim=1)
        better = value < best_value
        chosen = x[torch.arange(x.shape[0], device=x.device), restart]
        best_x = torch.where(better.unsqueeze(-1), chosen, best_x)
        best_value = torch.where(better, value, best_value)
        if step > steps:
            break
        if method == "projected_adam":
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient.square()
            direction = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        else:
            direction = gradient
        x = feasible_set._project(x - rate * direction)
    return best_x, best_value
