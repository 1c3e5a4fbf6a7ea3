"""Minimising a conic form through CVXPY: one parameterised program, re-solved for every context.

The program is the lift of `soctk.forms.embedding`, whose multipliers are the dual point y_j of every term: the
solver's own dual is turned into a lower bound that does not trust the solver.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from soctk.decide.problem import Limits
from soctk.forms.conic_form import ConicForm
from soctk.forms.embedding import FormEmbedding
from soctk.lazy import cvxpy as cp
from soctk.sets import FeasibleSet, SetAt
from soctk.sets.coordinates import Coordinates, powers_of_two
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
TIME_OPTIONS = {
    **dict.fromkeys(("CLARABEL", "OSQP", "QPALM", "HIGHS"), "time_limit"),
    "SCS": "time_limit_secs",
    "GUROBI": "TimeLimit",
    "COPT": "TimeLimit",
}
"""What solvers call the most seconds."""


def usual_solver(program: cp.Problem) -> str:
    """Return the name of what solves a program by default.

    Simplex steps end at a vertex, where values and bounds meet but for rounding: of linear programs of random ReLU
    models HiGHS leaves gaps of up to 4e-11, interior points of up to 3e-6. Others have curvature or cones.
    """
    return "HIGHS" if program.is_lp() else "CLARABEL"


def time_option(solver: str, limits: Limits) -> dict[str, float]:
    """Return the keyword that stops a solver at the deadline; empty where there is no deadline or no such keyword."""
    known = limits.deadline < float("inf") and solver in TIME_OPTIONS
    return {TIME_OPTIONS[solver]: limits.seconds_left} if known else {}


def solve_program(problem: cp.Problem, solver: str, options: dict[str, Any]) -> Status:
    """Solve a CVXPY problem; return how the solver says it ended."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # inaccurate solutions are reported by the status
            problem.solve(solver=solver, **options)
    except (cp.SolverError, ArithmeticError, ValueError):
        return Status.FAILED
    status, most = SOLVER_STATUS.get(problem.status, Status.FAILED), options.get(TIME_OPTIONS.get(solver, ""))
    if status == Status.ITERATION_LIMIT and most is not None and (problem.solver_stats.solve_time or 0.0) >= most:
        return Status.TIME_LIMIT  # by the solver's clock: Clarabel's goes on from an earlier solve at times
    return status


class SetConstraints:
    """The constraints of sets with right-hand sides of their own, parameters of one program.

    Args:
        sets: flat and detached.
        x: the decision, an expression (n,).
    """

    def __init__(self, sets: SetAt, x: cp.Expression) -> None:
        rows, sides = sets.rows, [torch.atleast_2d(side) for side in sets.sides]
        # an infinite bound in some of the sets alone is replaced by what the others imply
        ends = [torch.where(torch.isfinite(side), side, end) for side, end in zip(sides, sets.box, strict=False)]
        endless = [torch.isinf(side).all(dim=0).numpy() for side in sides[:2]]
        self.constraints: list[cp.Constraint] = []
        self._values: list[tuple[cp.Parameter, np.ndarray]] = []
        for end, none, sign in zip(ends, endless, (1, -1), strict=True):
            if not none.all():
                kept = np.flatnonzero(~none)
                self.constraints.append(sign * x[kept] >= self._parameter(sign * end.numpy()[:, kept]))
        self._equal = self._below = None
        largest = sets.reach[0].numpy()
        self._divisors = [powers_of_two(np.abs(matrix.numpy()) @ largest) for matrix in (rows.E, rows.G)]
        equal, below = (m.numpy() / d[:, None] for m, d in zip((rows.E, rows.G), self._divisors, strict=True))
        if len(rows.E):
            self._equal = equal @ x == self._parameter(sides[2].numpy() / self._divisors[0])
            self.constraints.append(self._equal)
        if len(rows.G):
            self._below = below @ x <= self._parameter(sides[3].numpy() / self._divisors[1])
            self.constraints.append(self._below)

    def _parameter(self, values: np.ndarray) -> cp.Parameter:
        self._values.append((cp.Parameter(values.shape[1]), values))
        return self._values[-1][0]

    def set_row(self, row: int) -> None:
        """Set the parameters to the right-hand sides of one instance."""
        for parameter, values in self._values:
            parameter.value = values[min(row, len(values) - 1)]

    def multipliers(self) -> list[np.ndarray]:
        """Return nu and z of the last solve, empty where there are no rows or none was given."""
        given = [None if each is None else each.dual_value for each in (self._equal, self._below)]
        return [
            np.zeros(0) if dual is None else np.atleast_1d(dual).astype(float) / divisor
            for dual, divisor in zip(given, self._divisors, strict=True)
        ]


class LiftedProblem:
    """The parameterised program of a conic form over a set.

    Args:
        form: any form of the structure to solve; its shared coefficients are baked in.
        feasible_set: the set; or sets with right-hand sides of their own, flat and detached.
        trained: makes parameters of shared coefficients too where they require a gradient.
        coordinates: those that the form is in, where it is not in the set's own.

    Attributes:
        x: the decision (n,), the variable itself or an expression of it.
        problem: the `cp.Problem`.
        parameters: the parameters in a fixed order, see `parameter_values`.
    """

    def __init__(
        self,
        form: ConicForm,
        feasible_set: FeasibleSet | SetAt,
        *,
        trained: bool = False,
        coordinates: Coordinates | None = None,
    ) -> None:
        variable = cp.Variable(form.dim, name="x" if coordinates is None else "z")
        self.x = variable if coordinates is None else coordinates.expression(variable)
        self._embedded = FormEmbedding(form, variable, trained=trained)
        self.parameters, self.parameter_values = self._embedded.parameters, self._embedded.parameter_values
        self.rows = SetConstraints(feasible_set, self.x) if isinstance(feasible_set, SetAt) else None
        of_set = feasible_set.constraints(self.x) if self.rows is None else self.rows.constraints
        constraints = [*self._embedded.constraints, *of_set]
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
