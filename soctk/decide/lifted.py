"""Minimising a conic form through CVXPY: one parameterised program, re-solved for every context.

The program is the lift of `soctk.forms.embedding`, whose multipliers are the dual point y_j of every term: the
solver's own dual is turned into a lower bound that does not trust the solver.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from soctk.forms.conic_form import ConicForm
from soctk.forms.embedding import FormEmbedding
from soctk.lazy import cvxpy as cp
from soctk.sets import FeasibleSet
from soctk.status import Status

SOLVER_STATUS = {  # as CVXPY names them
    "optimal": Status.OPTIMAL,
    "optimal_inaccurate": Status.INACCURATE,
    "infeasible": Status.INFEASIBLE,
    "infeasible_inaccurate": Status.INFEASIBLE,
    "unbounded": Status.UNBOUNDED,
    "unbounded_inaccurate": Status.UNBOUNDED,
    "user_limit": Status.ITERATION_LIMIT,
}


def solve_program(problem: cp.Problem, solver: str, options: dict[str, Any]) -> Status:
    """Solve a CVXPY problem; return how the solver says it ended, ITERATION_LIMIT for a limit of any kind."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # inaccurate solutions are reported by the status
            problem.solve(solver=solver, **options)
    except (cp.SolverError, ArithmeticError, ValueError):
        return Status.FAILED
    return SOLVER_STATUS.get(problem.status, Status.FAILED)


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
        return solve_program(self.problem, solver, options)

    def duals(self) -> list[np.ndarray] | None:
        """Return y_j for every term from the last solve, or None where the solver gave none."""
        given = [link.dual_value for link in self._embedded.links]
        if any(dual is None for dual in given):
            return None
        duals = [np.asarray(dual, dtype=float) for dual in given]
        # CVXPY's Lagrangian adds dual'(u - A x - d); stationarity in u gives y = -dual.
        return [-dual for dual in duals] if all(np.isfinite(dual).all() for dual in duals) else None
