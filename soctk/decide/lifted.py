"""Minimising a conic form through CVXPY: one parameterised program, re-solved for every context.

The program is the lift of `soctk.forms.embedding`, whose multipliers are the dual point y_j of every term: the
solver's own dual is turned into a lower bound that does not trust the solver.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from soctk.checks import to_numpy
from soctk.decide.decision import Status
from soctk.forms.conic_form import ConicForm, Dual
from soctk.forms.embedding import FormEmbedding
from soctk.sets import FeasibleSet

SOLVER_STATUS = {
    cp.OPTIMAL: Status.OPTIMAL,
    cp.OPTIMAL_INACCURATE: Status.INACCURATE,
    cp.INFEASIBLE: Status.INFEASIBLE,
    cp.INFEASIBLE_INACCURATE: Status.INFEASIBLE,
    cp.UNBOUNDED: Status.UNBOUNDED,
    cp.UNBOUNDED_INACCURATE: Status.UNBOUNDED,
    cp.USER_LIMIT: Status.TIME_LIMIT,
}


class LiftedProblem:
    """The parameterised program of a conic form over a set.

    Args:
        form: any form of the structure to solve; its shared coefficients are baked in.
        feasible_set: the set.

    Attributes:
        x: the decision variable (n,).
        problem: the `cp.Problem`.
        parameters: the parameters in a fixed order, see `parameter_values`.
    """

    def __init__(self, form: ConicForm, feasible_set: FeasibleSet) -> None:
        self.x = cp.Variable(form.dim, name="x")
        self._embedded = FormEmbedding(form, self.x)
        self.parameters, self.parameter_values = self._embedded.parameters, self._embedded.parameter_values
        constraints = [*self._embedded.constraints, *feasible_set.constraints(self.x)]
        self.problem = cp.Problem(cp.Minimize(self._embedded.value), constraints)

    def solve(self, values: list[np.ndarray], solver: str, options: dict[str, Any]) -> Status:
        """Solve at one instance's parameter values; the outcome stays in `x` and the links' dual values."""
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.value = value
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # inaccurate solutions are reported by the status
                self.problem.solve(solver=solver, **options)
        except (cp.SolverError, ArithmeticError, ValueError):
            return Status.FAILED
        return SOLVER_STATUS.get(self.problem.status, Status.FAILED)

    def duals(self) -> list[np.ndarray] | None:
        """Return y_j for every term from the last solve, or None where the solver gave none."""
        given = [link.dual_value for link in self._embedded.links]
        if any(dual is None for dual in given):
            return None
        duals = [np.asarray(dual, dtype=float) for dual in given]
        # CVXPY's Lagrangian adds dual'(u - A x - d); stationarity in u gives y = -dual.
        return [-dual for dual in duals] if all(np.isfinite(dual).all() for dual in duals) else None


def solve_lifted(
    form: ConicForm,
    feasible_set: FeasibleSet,
    solver: str,
    options: dict[str, Any],
    deadline: float = float("inf"),
) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """Minimise every function of `form`, on the CPU, by an outside solver, verified by our certificate.

    Instances that are not begun before the deadline (a `time.perf_counter()` value) get no answer.

    Returns:
        x (N, n) projected to the set (NaN where there is none), value (N,), lower bound (N,), status (N,).
    """
    lifted = LiftedProblem(form, feasible_set)
    values = [to_numpy(tensor) for tensor in lifted.parameter_values(form)]
    size = form.size
    x = torch.full((size, form.dim), torch.nan, dtype=form.dtype)
    duals = [torch.zeros(size, 1, term.map.rows, dtype=form.dtype) for term in form.terms]
    status = np.full(size, Status.FAILED, dtype=object)
    has_dual = torch.zeros(size, dtype=torch.bool)
    for row in range(size):
        if time.perf_counter() > deadline:
            status[row:] = Status.TIME_LIMIT
            break
        status[row] = lifted.solve([value[row] for value in values], solver, options)
        answer = lifted.x.value
        if status[row] in (Status.INFEASIBLE, Status.UNBOUNDED, Status.FAILED) or answer is None:
            continue
        x[row] = feasible_set.project(answer).to(form.dtype)
        found = lifted.duals()
        if found is not None:
            has_dual[row] = True
            for target, y in zip(duals, found, strict=True):
                target[row, 0] = torch.from_numpy(np.asarray(y, dtype=float).reshape(-1))
    solved = torch.isfinite(x).all(dim=-1)
    points = torch.where(solved.unsqueeze(-1), x, feasible_set.center(form.dtype))
    value = torch.where(solved, form.evaluate(points.unsqueeze(1)).squeeze(-1), torch.nan)
    from_solver = form.bound(Dual(tuple(duals)), feasible_set).squeeze(-1)
    at_point = form.bound(form.subgradients(points.unsqueeze(1)), feasible_set).squeeze(-1)
    lower = torch.where(has_dual, torch.maximum(from_solver, at_point), at_point)
    return x, value, torch.where(solved, lower, -torch.inf), status
