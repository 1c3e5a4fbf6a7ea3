"""A solver's result as a decision: valued, rounded and checked against the set as the user gave it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.checks import as_array
from soctk.decide.choice import NEWTON
from soctk.decide.decision import Decision, Prices, Ray
from soctk.decide.fallback import put_points
from soctk.decide.pieces import side_by_side
from soctk.decide.problem import Limits, Problem
from soctk.decide.ranges import solve_in_range
from soctk.decide.result import Result, RowMultipliers
from soctk.decide.solver import Solver
from soctk.sets import FeasibleSet, Polyhedron, SetAt
from soctk.sets.rounding import FEASIBLE, directed
from soctk.status import Status

FEASIBLE_IN = {torch.float64: FEASIBLE, torch.float32: 1e-4}
"""What rounding may put a point outside of a set by, in units of its numbers."""


def chosen_solver(problem: Problem, make: Callable[[Problem], Solver]) -> Solver | None:
    """Return the solver that `make` gives a problem; None for one without instances.

    Raises:
        NotImplementedError: it refuses the problem; the message says why.
    """
    if problem.size == 0:
        return None
    solver = make(problem)
    if isinstance(problem.feasible_set, SetAt) and not solver.takes_sets_at:
        refused = f'method "{solver.name}" decides over one set for all contexts; use "newton" or "cvxpy"'
    else:
        refused = solver.refuses(problem)
    if refused is not None:
        raise NotImplementedError(refused)
    return solver


def answer(
    problem: Problem,
    solver: Solver | None,
    limits: Limits,
    start: Tensor | None,
    batch: tuple[int, ...],
    started: float,
) -> Decision:
    """Return the verified answer of a problem's solver in the contexts' batch shape.

    Args:
        problem: the functions and the set.
        solver: one that does not refuse it; None where there are no instances.
        limits: how far that may go.
        start: (N, n), or None.
        batch: the contexts' batch shape.
        started: the `time.perf_counter()` value at the user's call.
    """
    assert problem.model is not None
    if solver is not None and problem.size > (most := solver.at_once(problem)):

        def one(part: slice) -> Decision:
            begin = None if start is None else start[part]
            return answer(problem.piece(part), solver, limits, begin, (part.stop - part.start,), started)

        return Decision.joined(list(side_by_side(one, problem.size, most)), batch, time.perf_counter() - started)
    dtype = torch.promote_types(problem.contexts.dtype, problem.model.dtype)
    if solver is None or problem.size == 0:
        result = Result.unanswered(torch.zeros(0, problem.dim, dtype=problem.dtype, device=problem.device))
        if isinstance(sets := problem.by_rows().feasible_set, SetAt):
            result.rows = RowMultipliers.zero(sets.arrays, 0)
    else:
        # Rounding the answer costs a little of the gap, for which half of the tolerance is left.
        tol = limits.tol if dtype == problem.dtype else 0.5 * limits.tol
        inner = limits if tol == limits.tol else dataclasses.replace(limits, tol=tol)
        result = solver.solve(problem, inner, start)
        if solver.takes_any_point:
            put_points(result, problem, start)
        solve_in_range(solver, problem, inner, start, result, dtype)
    if dtype != problem.dtype:
        _round(result, problem, dtype)
    violation, flat = _verify(result, problem.feasible_set, limits.tol), batch == result.status.shape
    solver_names = np.empty(result.status.shape, dtype=object)
    solver_names[:] = result.solver

    def shaped(part: Any) -> Any:
        return part if flat else part.reshape(batch + part.shape[1:])

    return Decision(
        x=shaped(result.x),
        value=shaped(result.value),
        lower_bound=shaped(result.lower_bound),
        status=shaped(result.status),
        iterations=shaped(result.iterations),
        seconds=time.perf_counter() - started,
        scale=None if result.unit is None else shaped(result.unit),
        solver=shaped(solver_names),
        violation=shaped(violation),
        context=problem.kept_context,
        support=problem.model.support,
        **_of_rows(result, problem, batch, dtype),
    )


def _of_rows(result: Result, problem: Problem, batch: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Return what `Decision` says of a polyhedron's rows, nothing where they are not known."""
    if result.rows is None:
        return {}
    sets = problem.by_rows().feasible_set
    assert isinstance(sets, SetAt)
    rows, none = result.rows, None if result.all_optimal else result.status == Status.INFEASIBLE
    prices = np.maximum(rows.w, 0.0), np.minimum(rows.w, 0.0), -rows.nu, -rows.z
    for part, side in zip(prices[:2], sets.arrays.sides, strict=False):
        endless = np.isinf(side)
        if endless.any():
            part[np.broadcast_to(endless, part.shape)] = 0.0
    ray = np.zeros(rows.nu.shape), np.zeros(rows.z.shape)
    if none is not None:
        for part in prices:
            part[none | np.isinf(as_array(result.lower_bound))] = np.nan
        ray[0][none], ray[1][none] = rows.nu[none], rows.z[none]
    shaped = [torch.from_numpy(part.reshape(batch + part.shape[1:])) for part in (*prices, *ray)]
    if dtype != shaped[0].dtype:
        shaped[:4] = [part.to(dtype) for part in shaped[:4]]
    return {"prices": Prices(*shaped[:4]), "ray": Ray(*shaped[4:])}


def _round(result: Result, problem: Problem, dtype: torch.dtype) -> None:
    """Bring the points to a lower precision and value them there; round values up and bounds down."""
    answered = torch.isfinite(result.x).all(dim=-1)
    points = torch.where(answered.unsqueeze(-1), result.x, problem.center).to(dtype)
    if not isinstance(problem.feasible_set, SetAt):  # that would be a projection for each, and moves by rounding alone
        points = problem.feasible_set._project(points)
    value = problem.evaluate(points.to(problem.dtype).unsqueeze(1)).squeeze(-1)
    result.x = torch.where(answered.unsqueeze(-1), points, torch.nan)
    result.value = directed(torch.where(answered, value, result.value), dtype, torch.inf)
    result.lower_bound = directed(result.lower_bound, dtype, -torch.inf)
    result.unit = None if result.unit is None else result.unit.to(dtype)


def _verify(result: Result, feasible_set: FeasibleSet | SetAt, tol: float) -> Tensor:
    """Return how far points are outside of the set as the user gave it; settle the statuses by that and the gaps."""
    result.judge(tol)
    worst, share = (_excess_of_rows if _by_compiled_rows(result) else excess)(feasible_set, result.x)
    outside = share > FEASIBLE_IN[result.x.dtype]
    if outside.any():
        result.status[outside] = Status.INACCURATE
    return torch.from_numpy(worst).to(result.x)


def excess(feasible_set: FeasibleSet | SetAt, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much points (N, n) violate the set, and that in units of its numbers, (N,) each."""
    if not isinstance(feasible_set, (SetAt, Polyhedron)):
        worst = as_array(feasible_set._violation(x))
        return worst, worst / max(1.0, feasible_set.magnitude)
    worst, share = feasible_set.arrays.excess(as_array(x))
    by_rows = isinstance(feasible_set, SetAt) or type(feasible_set) is Polyhedron
    return worst, share if by_rows else worst / max(1.0, feasible_set.magnitude)


def _by_compiled_rows(result: Result) -> bool:
    """Whether all points are float64 and come from compiled code that decided by rows."""
    newton = isinstance(result.solver, str) and result.solver == NEWTON.name
    return newton and result.rows is not None and result.x.dtype == torch.float64


def _excess_of_rows(sets: FeasibleSet | SetAt, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the same over what `Problem.by_rows` is, in compiled code, which is loaded already."""
    from soctk.decide.compiled.original_rows import violations

    assert isinstance(sets, (SetAt, Polyhedron))
    return violations(sets.arrays, as_array(x))
