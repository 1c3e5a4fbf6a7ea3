"""The certified methods on any set: fixed coordinates taken out before, missed instances finished by the lift after."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from soctk.conic_form import ConicForm
from soctk.decide.decision import Status
from soctk.decide.first_order import DEFAULT_STEPS, solve_first_order
from soctk.decide.lifted import solve_lifted
from soctk.decide.newton import DEFAULT_ITERATIONS, solve_newton
from soctk.decide.reduction import Reduction
from soctk.decide.result import Result
from soctk.sets import FeasibleSet

NEWTON_DIM = 500
"""Beyond this many variables the n by n systems of Newton steps cost more than many gradient steps."""
SOLVERS = {"newton": (solve_newton, DEFAULT_ITERATIONS), "first_order": (solve_first_order, DEFAULT_STEPS)}


def solve_certified(
    form: ConicForm,
    feasible_set: FeasibleSet,
    *,
    method: str = "newton",
    tol: float,
    max_iter: int | None = None,
    deadline: float = float("inf"),
    start: Tensor | None = None,
) -> Result:
    """Minimise every function of `form` by "newton" or "first_order".

    What Newton steps leave short of `tol` (pure ReLU models, which are linear programs) is solved again by Clarabel,
    unless the caller limited the iterations.
    """
    reduction = Reduction.of(feasible_set, form.dtype, form.linear.device)
    if reduction.single_point:
        return _only_point(form, reduction)
    solve, steps = SOLVERS[method]
    result = solve(
        reduction.form(form),
        reduction.reduced_set,
        tol=tol,
        max_iter=steps if max_iter is None else max_iter,
        deadline=deadline,
        start=None if start is None else start[:, reduction.columns],
    )
    result.x = reduction.expand(result.x)
    if method == "newton" and max_iter is None:
        missed = np.isin(result.status, [Status.STALLED, Status.ITERATION_LIMIT])
        if missed.any() and time.perf_counter() < deadline:
            _finish_by_lift(result, form, feasible_set, np.flatnonzero(missed), tol, deadline)
    return result


def _finish_by_lift(
    result: Result, form: ConicForm, feasible_set: FeasibleSet, rows: np.ndarray, tol: float, deadline: float
) -> None:
    """Solve the instances `rows` again by Clarabel, keeping whatever value and bound are better."""
    device = result.x.device
    index = torch.from_numpy(rows).to(device)
    on_cpu = form.select(index).apply(Tensor.cpu)
    answer = solve_lifted(on_cpu, feasible_set, "CLARABEL", {}, deadline)
    x, value, lower = (part.to(device) for part in answer[:3])
    result.improve(index, x, value, lower)
    result.status[rows[(result.relative_gap(index) <= tol).cpu().numpy()]] = Status.OPTIMAL


def _only_point(form: ConicForm, reduction: Reduction) -> Result:
    x = reduction.point.expand(form.size, -1).clone()
    value = form.evaluate(x.unsqueeze(1)).squeeze(-1)
    status = np.full(form.size, Status.OPTIMAL, dtype=object)
    return Result(x, value, value.clone(), torch.zeros(form.size, dtype=torch.int64, device=x.device), status)
