"""The certified methods on any set: fixed coordinates taken out before, missed instances finished by the lift after."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.decide.decision import Status
from soctk.decide.first_order import DEFAULT_STEPS, solve_first_order
from soctk.decide.lifted import solve_lifted
from soctk.decide.newton import DEFAULT_ITERATIONS, solve_newton
from soctk.decide.newton_cg import DEFAULT_STEPS as DEFAULT_CG_STEPS
from soctk.decide.newton_cg import solve_newton_cg
from soctk.decide.reduction import newton_refuses, reduced
from soctk.decide.result import Result
from soctk.forms.conic_form import ConicForm
from soctk.sets import FeasibleSet, Presolved

NEWTON_DIM = 500
"""Beyond this many variables the n by n systems of Newton steps cost more than iterative methods."""
LARGE_SOLVERS = {"newton_cg": (solve_newton_cg, DEFAULT_CG_STEPS), "first_order": (solve_first_order, DEFAULT_STEPS)}
SMALLEST_TOLERANCE = 1e-14


def default_method(form: ConicForm, feasible_set: FeasibleSet) -> str:
    """Return the certified method for a form: Newton steps while n by n systems are cheap.

    Beyond that by conjugate gradients, which need bounds alone, and which the many kinks of a network slow down. Sets
    that none of them knows are left to the lift while it is small.
    """
    refused = newton_refuses(feasible_set) is not None
    if form.dim <= NEWTON_DIM:
        return "cvxpy" if refused else "newton"
    return "newton_cg" if not refused and cg_takes(feasible_set) and form.network is None else "first_order"


def cg_takes(feasible_set: FeasibleSet) -> bool:
    """Whether a set has bounds alone."""
    rows = feasible_set.presolve().reduced.rows()
    return rows is not None and rows.at_most_a_sum and rows.total is None


def solve_certified(
    form: ConicForm,
    feasible_set: FeasibleSet,
    *,
    method: str = "newton",
    tol: float,
    max_iter: int | None = None,
    deadline: float = float("inf"),
    start: Tensor | None = None,
    scale: Tensor | None = None,
) -> Result:
    """Minimise every function of `form` by "newton", "newton_cg", "first_order" or, through the lift, "cvxpy".

    What Newton steps leave short of `tol` (pure ReLU models, which are linear programs) is solved again, by Clarabel or
    after "newton_cg" by first-order steps, unless the caller limited the iterations. `scale` (N,) is the unit of the
    gap, max(1, |value|) where it is None.
    """
    presolved = feasible_set.presolve()
    if presolved.single_point:
        return _only_point(form, presolved)
    begin = None if start is None else start[:, presolved.columns.to(start.device)]
    inner, inner_set = reduced(form, presolved), presolved.reduced
    if method == "cvxpy":
        result = _by_lift(inner, inner_set, tol=tol, deadline=deadline, scale=scale)
    elif method == "newton":
        steps = DEFAULT_ITERATIONS if max_iter is None else max_iter
        result = _newton(inner, inner_set, tol=tol, max_iter=steps, deadline=deadline, start=begin, scale=scale)
    else:
        solve, steps = LARGE_SOLVERS[method]
        steps = steps if max_iter is None else max_iter
        result = solve(inner, inner_set, tol=tol, max_iter=steps, deadline=deadline, start=begin, scale=scale)
    result.x = presolved.expand(result.x)
    if max_iter is None and method != "cvxpy":
        finish(result, lambda: form, feasible_set, method, tol, deadline)
    return result


def finish(
    result: Result,
    form: Callable[[], ConicForm],
    feasible_set: FeasibleSet,
    method: str,
    tol: float,
    deadline: float,
) -> None:
    """Solve again what a method left short of `tol`."""
    if result.status.tolist().count(Status.OPTIMAL) == result.status.size:
        return  # nearly always, and found out in a tenth of the time
    missed = np.isin(result.status, [Status.STALLED, Status.ITERATION_LIMIT])
    if method != "first_order" and missed.any() and time.perf_counter() < deadline:
        again = _finish_by_lift if method == "newton" else _finish_by_first_order
        again(result, form(), feasible_set, np.flatnonzero(missed), tol, deadline)


def _newton(
    form: ConicForm, feasible_set: FeasibleSet, *, tol: float, start: Tensor | None, scale: Tensor | None, **limits: Any
) -> Result:
    """Solve by Newton steps; a gap in units of `scale` is asked for as the relative gap of a rescaled function.

    g = (f - f(x0)) / scale has -gap(x0) <= min g <= 0, so gap / max(1, |g|) <= tol / max(1, gap(x0)) is enough.
    """
    if scale is None:
        return solve_newton(form, feasible_set, tol=tol, start=start, **limits)
    first = feasible_set.center(form.dtype, form.linear.device).expand(form.size, -1) if start is None else start
    unit, points = scale.unsqueeze(-1), first.unsqueeze(1)
    value = form.evaluate(points)
    gap = (value - form.bound(form.subgradients(points), feasible_set)) / unit
    scaled = dataclasses.replace(
        form,
        constant=(form.constant - value) / unit,
        linear=form.linear / unit.unsqueeze(-1),
        terms=tuple(term.scaled(1 / unit.unsqueeze(-1)) for term in form.terms),
    )
    tighter = max(tol / max(1.0, float(gap.max())), SMALLEST_TOLERANCE)
    result = solve_newton(scaled, feasible_set, tol=tighter, start=start, **limits)
    result.value = form.evaluate(result.x.unsqueeze(1)).squeeze(-1)
    result.lower_bound = result.lower_bound * scale + value.squeeze(-1)
    result.scale = scale
    return result


def _by_lift(
    form: ConicForm, feasible_set: FeasibleSet, *, tol: float, deadline: float, scale: Tensor | None
) -> Result:
    """Solve all instances by Clarabel."""
    answer = solve_lifted(form.apply(Tensor.cpu), feasible_set, "CLARABEL", {}, deadline)
    x, value, lower = (part.to(form.linear.device) for part in answer[:3])
    status = answer[3]
    result = Result(x, value, lower, torch.zeros(form.size, dtype=torch.int64, device=x.device), status, scale=scale)
    reached = (result.relative_gap(torch.arange(form.size, device=x.device)) <= tol).cpu().numpy()
    answered = np.isin(status, [Status.OPTIMAL, Status.INACCURATE])
    status[answered] = np.where(reached[answered], Status.OPTIMAL, Status.INACCURATE)
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


def _finish_by_first_order(
    result: Result, form: ConicForm, feasible_set: FeasibleSet, rows: np.ndarray, tol: float, deadline: float
) -> None:
    """Go on with the instances `rows` by first-order steps, keeping whatever value and bound are better."""
    index = torch.from_numpy(rows).to(result.x.device)
    scale = None if result.scale is None else result.scale[index]
    again = solve_certified(
        form.select(index),
        feasible_set,
        method="first_order",
        tol=tol,
        deadline=deadline,
        start=result.x[index],
        scale=scale,
    )
    result.improve(index, again.x, again.value, again.lower_bound)
    result.iterations[index] += again.iterations
    result.status[rows] = again.status
    result.status[rows[(result.relative_gap(index) <= tol).cpu().numpy()]] = Status.OPTIMAL


def _only_point(form: ConicForm, presolved: Presolved) -> Result:
    x = presolved.point.to(form.linear).expand(form.size, -1).clone()
    value = form.evaluate(x.unsqueeze(1)).squeeze(-1)
    status = np.full(form.size, Status.OPTIMAL, dtype=object)
    return Result(x, value, value.clone(), torch.zeros(form.size, dtype=torch.int64, device=x.device), status)
