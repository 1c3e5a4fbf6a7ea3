"""`soctk.minimize`: one decision for each context, each with a certified gap."""

from __future__ import annotations

import time
from typing import Any, Literal, get_args

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor, check_count, check_last_dim, check_positive
from soctk.decide.certificate import best_bound, certify, frank_wolfe_gap
from soctk.decide.certified import cg_takes, default_method, solve_certified
from soctk.decide.decision import Decision, Status, relative_gap
from soctk.decide.lifted import SOLVER_STATUS, solve_lifted
from soctk.decide.protocol import LEARNING_RATE, RESTARTS, STEPS, projected_descent
from soctk.decide.ready import solve_ready
from soctk.decide.reduction import newton_refuses
from soctk.decide.result import Result
from soctk.sets import FeasibleSet
from soctk.surrogate import ConvexSurrogate

Method = Literal["newton", "newton_cg", "first_order", "cvxpy", "projected_gradient", "projected_adam"]
METHODS: tuple[Method, ...] = get_args(Method)
CERTIFIED = ("newton", "newton_cg", "first_order")
# np.full and np.where turn the members into plain strings; a table is quicker than the class.
_STATUSES = np.frompyfunc({status: status for status in Status}.__getitem__, 1, 1)


@torch.no_grad()
def minimize(
    model: ConvexSurrogate,
    feasible_set: FeasibleSet,
    context: ArrayLike | None = None,
    *,
    tol: float = 1e-6,
    max_iter: int | None = None,
    time_limit: float | None = None,
    method: Method | None = None,
    x0: ArrayLike | Decision | None = None,
    solver: str = "CLARABEL",
    solver_options: dict[str, Any] | None = None,
    seed: int = 0,
    scale: ArrayLike | None = None,
) -> Decision:
    """Minimise f(., context) over the set, for every context of the batch.

    Args:
        model: the surrogate; `newton` needs one with a conic form.
        feasible_set: a set of the model's dimension.
        context: (*batch, p), or None where p = 0.
        tol: relative gap to reach, (value - lower bound) / max(1, |value|), or in units of `scale`.
        max_iter: Newton steps (60 by default), gradient steps (20,000) or descent steps (the paper's 200).
        time_limit: seconds for the whole call; the best feasible points and honest gaps are returned.
        method: "newton" (smoothing Newton, certified); "newton_cg" (the same by conjugate gradients, for thousands of
            variables between bounds); "first_order" (smoothing and accelerated gradients, certified, for thousands of
            variables on any set); "cvxpy" (an outside solver on the lift, verified); "projected_gradient" and
            "projected_adam" (the paper's protocol: 5 restarts of 200 steps). By default "newton"; beyond 500
            variables "newton_cg" between bounds and without a network, "first_order" elsewhere; "cvxpy" for a model
            that brings its own CVXPY expression, and up to 500 variables for sets with rows other than one sum.
        x0: (*batch, n) points to start from, or the `Decision` of similar contexts; the set's centre by default.
        solver: for "cvxpy", the name of any installed solver.
        solver_options: for "cvxpy", keywords for `cp.Problem.solve`.
        seed: of the protocol's random restarts.
        scale: the unit that gaps are measured in, positive, a number or (*batch): where values differ by much less than
            1, their standard deviation over the decisions in question. max(1, |value|) by default.

    The first call ever compiles the Newton method, which takes half a minute, and the first with 32 contexts or more
    compiles it for several side by side; the code is kept on disk.

    Returns:
        `Decision`; computed in the higher of the context's and the weights' precision.

    Raises:
        ValueError: bad shapes, non-finite numbers, a non-positive limit or tolerance, an unknown method.
        NotImplementedError: a certified method and a model without a conic form, or "newton" or "newton_cg" and a
            set whose rows they do not know.
    """
    started = time.perf_counter()
    chosen = method or model.decision_method
    _check_arguments(model, feasible_set, tol, max_iter, time_limit, chosen, solver)
    refused = newton_refuses(feasible_set) if method == "newton" else None
    if refused is not None:
        raise NotImplementedError(f'method: "newton": {refused}; use "cvxpy" or "first_order"')
    contexts = model.check_context(context)
    batch = tuple(contexts.shape[:-1]) if model.context_dim > 0 else ()
    size = int(np.prod(batch))
    start = _check_start(x0, feasible_set, batch, torch.promote_types(contexts.dtype, model.dtype), model.device)
    unit = _check_scale(scale, batch, model)
    deadline = float("inf") if time_limit is None else started + time_limit
    if size == 0:
        result = _empty(model, contexts)
    elif chosen in LEARNING_RATE:
        steps = STEPS if max_iter is None else max_iter
        result = _descend(model, feasible_set, contexts, start, chosen, tol, steps, seed, unit)
    elif chosen == "cvxpy":
        result = _outside(model, feasible_set, contexts, tol, solver, dict(solver_options or {}), time_limit, unit)
    else:
        result = None
        if chosen == "newton" and start is None and unit is None:
            result = solve_ready(model, feasible_set, contexts, tol=tol, max_iter=max_iter, deadline=deadline)
        if result is None:
            form = model.form_at(contexts).check()
            chosen = chosen if method is not None else default_method(form, feasible_set)
            limits = {"tol": tol, "max_iter": max_iter, "deadline": deadline}
            result = solve_certified(form, feasible_set, method=chosen, start=start, scale=unit, **limits)
    return Decision(
        x=result.x.reshape(*batch, model.dim),
        value=result.value.reshape(batch),
        lower_bound=result.lower_bound.reshape(batch),
        status=np.asarray(_STATUSES(result.status), dtype=object).reshape(batch),
        iterations=result.iterations.reshape(batch),
        seconds=time.perf_counter() - started,
        scale=None if unit is None else unit.reshape(batch),
    )


def _outside(
    model: ConvexSurrogate,
    feasible_set: FeasibleSet,
    contexts: Tensor,
    tol: float,
    solver: str,
    options: dict[str, Any],
    time_limit: float | None,
    scale: Tensor | None,
) -> Result:
    """Decide by CVXPY; a solver that reports success is believed only as far as the certificate goes."""
    if time_limit is not None and solver.upper() == "CLARABEL":
        options.setdefault("time_limit", time_limit)
    if not model.exports_expression:
        form = model.form_at(contexts).check().detach()
        x, value, lower, status = solve_lifted(form, feasible_set, solver, options)
    else:
        x, value, lower, status = _solve_expressions(model, feasible_set, contexts, solver, options)
    gap = relative_gap(value, lower, scale)
    confirmed = (gap <= tol).cpu().numpy()
    answered = np.isin(status, [Status.OPTIMAL, Status.INACCURATE])
    status[answered] = np.where(confirmed[answered], Status.OPTIMAL, Status.INACCURATE)
    return Result(x, value, lower, torch.zeros(x.shape[0], dtype=torch.int64), status)


def _solve_expressions(
    model: ConvexSurrogate, feasible_set: FeasibleSet, contexts: Tensor, solver: str, options: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """Solve each context's own CVXPY program, certified afterwards."""
    rows = model.context_rows(contexts)
    x = torch.full((rows.shape[0], model.dim), torch.nan, dtype=model.dtype)
    status = np.full(rows.shape[0], Status.FAILED, dtype=object)
    for row, context in enumerate(rows):
        variable = cp.Variable(model.dim)
        problem = cp.Problem(
            cp.Minimize(model.to_cvxpy(variable, context if model.context_dim > 0 else None)),
            feasible_set.constraints(variable),
        )
        try:
            problem.solve(solver=solver, ignore_dpp=True, **options)
        except (cp.SolverError, ArithmeticError):
            continue
        status[row] = SOLVER_STATUS.get(problem.status, Status.FAILED)
        if variable.value is not None:
            x[row] = feasible_set.project(variable.value).to(model.dtype)
    solved = torch.isfinite(x).all(dim=-1)
    points = torch.where(solved.unsqueeze(-1), x, feasible_set.center(model.dtype))
    given = rows if model.context_dim > 0 else None
    value = model(points, given)
    lower = certify(model, feasible_set, points, given).lower_bound
    return x, torch.where(solved, value, torch.nan), torch.where(solved, lower, -torch.inf), status


def _descend(
    model: ConvexSurrogate,
    feasible_set: FeasibleSet,
    contexts: Tensor,
    start: Tensor | None,
    method: str,
    tol: float,
    steps: int,
    seed: int,
    scale: Tensor | None,
) -> Result:
    rows = model.context_rows(contexts)
    dtype = torch.promote_types(rows.dtype, model.dtype)
    generator = torch.Generator().manual_seed(seed)
    begin = feasible_set.sample((rows.shape[0], RESTARTS), generator).to(dtype=dtype, device=rows.device)
    if start is not None:
        begin[:, 0] = start
    form = model.form_at(contexts).check().detach() if model.has_conic_form else None
    objective = form.evaluate if form is not None else (lambda x: model.evaluate(x, rows))
    rate = LEARNING_RATE[method]
    x, value = projected_descent(objective, feasible_set, begin, method=method, steps=steps, rate=rate)
    if form is not None:
        lower = best_bound(form, feasible_set, x.unsqueeze(1)).squeeze(-1)
    else:
        lower = value - frank_wolfe_gap(model, feasible_set, x, rows if model.context_dim > 0 else None)
    reached = (relative_gap(value, lower, scale) <= tol).cpu().numpy()
    status = np.where(reached, Status.OPTIMAL, Status.ITERATION_LIMIT).astype(object)
    return Result(x, value, lower, torch.full((rows.shape[0],), steps, device=x.device), status)


def _empty(model: ConvexSurrogate, contexts: Tensor) -> Result:
    dtype = torch.promote_types(contexts.dtype, model.dtype)
    none = torch.zeros(0, dtype=dtype, device=contexts.device)
    x = none.reshape(0, model.dim)
    return Result(x, none, none, none.to(torch.int64), np.zeros(0, dtype=object))


def _check_start(
    x0: ArrayLike | Decision | None,
    feasible_set: FeasibleSet,
    batch: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor | None:
    if x0 is None:
        return None
    start = as_tensor(x0.x if isinstance(x0, Decision) else x0, "x0").to(device=device, dtype=dtype)
    check_last_dim(start, feasible_set.dim, "x0")
    if tuple(start.shape[:-1]) != batch:
        raise ValueError(f"x0: expected batch shape {batch} as the contexts', got {tuple(start.shape[:-1])}")
    return feasible_set._project(start.reshape(-1, feasible_set.dim))


def _check_scale(scale: ArrayLike | None, batch: tuple[int, ...], model: ConvexSurrogate) -> Tensor | None:
    if scale is None:
        return None
    unit = as_tensor(scale, "scale").to(device=model.device, dtype=model.dtype)
    if tuple(unit.shape) not in ((), batch):
        raise ValueError(f"scale: expected a number or batch shape {batch} as the contexts', got {tuple(unit.shape)}")
    if bool((unit <= 0).any()):
        raise ValueError(f"scale: expected positive numbers, got {float(unit.min()):g}")
    return unit.expand(batch).reshape(-1)


def _check_arguments(
    model: ConvexSurrogate,
    feasible_set: FeasibleSet,
    tol: float,
    max_iter: int | None,
    time_limit: float | None,
    method: str,
    solver: str,
) -> None:
    if feasible_set.dim != model.dim:
        raise ValueError(f"feasible_set: expected dimension {model.dim} as the model's, got {feasible_set.dim}")
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    check_positive(tol, "tol")
    if max_iter is not None:
        check_count(max_iter, "max_iter")
    if time_limit is not None:
        check_positive(time_limit, "time_limit")
    if method in CERTIFIED and not model.has_conic_form:
        raise NotImplementedError(f'{type(model).__name__} has no conic form; use method="cvxpy"')
    if method == "newton_cg" and not cg_takes(feasible_set):
        raise NotImplementedError('method: "newton_cg" works between bounds alone; use "first_order"')
    if method == "cvxpy" and solver.upper() not in cp.installed_solvers():
        raise ValueError(f"solver: expected one of {', '.join(cp.installed_solvers())}, got {solver!r}")
