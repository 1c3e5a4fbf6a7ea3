"""The paper's decision protocol: projected gradient or projected Adam, 5 restarts of 200 steps.

Kept to show the difference: neither reaches a certified gap in general. Adam's step is roughly the sign of the
gradient; projecting onto a simplex or a budget set cancels a constant vector, so it stalls there
(soctk's own method is in `newton.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from soctk.checks import check_count, check_positive, seeded
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result, repeated
from soctk.decide.solver import Solver
from soctk.status import Status

Descent = Literal["projected_gradient", "projected_adam"]
RATES: dict[Descent, float] = {"projected_gradient": 1e-2, "projected_adam": 2e-3}


@dataclass(frozen=True)
class PaperProtocol(Solver):
    """The paper's protocol: the best point of some steps of projected descent from random points.

    Attributes:
        name: "projected_gradient" or "projected_adam".
        restarts: random starting points of each instance; a given start takes the place of the first.
        steps: from each of them.
        rate: step size; the paper's for the kind of descent by default.
        seed: of the random points.

    Raises:
        ValueError: another name, a number that is not positive.
    """

    name: Descent = "projected_gradient"  # type: ignore[misc]
    restarts: int = 5
    steps: int = 200
    rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in RATES:
            raise ValueError(f"name: expected one of {', '.join(RATES)}, got {self.name!r}")
        check_count(self.restarts, "restarts")
        check_count(self.steps, "steps")
        if self.rate is not None:
            check_positive(self.rate, "rate")

    def refuses(self, problem: Problem) -> None:
        """Return None: points of any function can be moved."""
        return

    def solve(self, problem: Problem, limits: Limits, start: Tensor | None = None) -> Result:
        """Minimise every function: see `Solver.solve`."""
        generator = seeded(self.seed)
        points = problem.feasible_set.sample((problem.size, self.restarts), generator)
        points = points.to(dtype=problem.dtype, device=problem.device)
        if start is not None:
            points[:, 0] = start
        x, value, taken = self._descend(problem, points, limits)
        bound, iterations = problem.bound_at(x, limits), torch.full((problem.size,), taken, device=problem.device)
        status = repeated(Status.TIME_LIMIT if limits.late else Status.ITERATION_LIMIT, problem.size)
        result = Result(x, value, bound, iterations, status, self.name, problem.unit)
        result.judge(limits.tol)
        return result

    def _steps(self, limits: Limits) -> int:
        return self.steps if limits.max_iter is None else limits.max_iter

    def _descend(self, problem: Problem, x: Tensor, limits: Limits) -> tuple[Tensor, Tensor, int]:
        """Return the best points (N, n) and values (N,) of paths from x (N, M, n), and the number of steps."""
        rate = RATES[self.name] if self.rate is None else self.rate
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        best_x, best_value = x[:, 0].clone(), x.new_full((x.shape[0],), torch.inf)
        for step in range(1, self._steps(limits) + 2):
            with torch.enable_grad():
                points = x.detach().requires_grad_()
                values = problem.evaluate(points)
                (gradient,) = torch.autograd.grad(values.sum(), points)
            value, restart = values.detach().min(dim=1)
            better = value < best_value
            chosen = x[torch.arange(x.shape[0], device=x.device), restart]
            best_x = torch.where(better.unsqueeze(-1), chosen, best_x)
            best_value = torch.where(better, value, best_value)
            if step > self._steps(limits) or limits.late:
                break
            direction = gradient
            if self.name == "projected_adam":
                first = 0.9 * first + 0.1 * gradient
                second = 0.999 * second + 0.001 * gradient.square()
                direction = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
            x = problem.feasible_set._project(x - rate * direction)
        return best_x, best_value, step - 1
