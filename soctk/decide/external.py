"""Deciding by outside solvers through CVXPY, believed only as far as our own certificate goes.

A conic form is solved as its lift, one parameterised program for all instances, whose multipliers are a dual point and
give a bound that does not trust the solver. A surrogate with a CVXPY expression of its own is solved as that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from soctk.checks import as_array, to_numpy
from soctk.decide.coordinates import Moved
from soctk.decide.lifted import LiftedProblem, solve_program, time_option, usual_solver
from soctk.decide.polyhedral import ROUNDING, bound_by_rows, project_points, prove_empty
from soctk.decide.problem import Limits, Problem
from soctk.decide.ranges import variation
from soctk.decide.result import Result, repeated
from soctk.decide.solver import Solver, finish
from soctk.decide.units import Rescaled
from soctk.lazy import cvxpy as cp
from soctk.sets import FeasibleSet, Polyhedron, SetAt
from soctk.sets.elastic import nearest
from soctk.status import Status

ITERATION_OPTIONS = {
    **dict.fromkeys(("CLARABEL", "OSQP", "PIQP", "PROXQP", "QPALM", "QOCO"), "max_iter"),
    **dict.fromkeys(("SCS", "ECOS", "CVXOPT"), "max_iters"),
}
"""What solvers call the most iterations; elsewhere a count of simplex pivots or of nothing comparable."""
WITHOUT_ANSWER = (Status.INFEASIBLE, Status.UNBOUNDED, Status.FAILED)
TOLD = (Status.OPTIMAL, Status.INACCURATE)


@dataclass(frozen=True)
class External(Solver):
    """Any solver that CVXPY finds installed, on any set.

    Time limits are looked at between instances, and within one where the solver has such an option
    (`soctk.decide.lifted.TIME_OPTIONS`).

    Attributes:
        solver: its name; None for HiGHS where the program is linear, as that of a pure ReLU network between rows is,
            and nothing is asked for in the words of interior-point methods (`options`, a limit of iterations); else for
            Clarabel.
        options: keywords for `cp.Problem.solve`.
        second: solves again over sets that the solver calls empty and that have points; None for no other.

    Raises:
        ValueError: a solver that is not installed.
    """

    name: ClassVar[str] = "cvxpy"
    takes_sets_at: ClassVar[bool] = True
    solver: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    second: Solver | None = None

    def __post_init__(self) -> None:
        if self.solver is None:
            return
        object.__setattr__(self, "solver", str(self.solver).upper())
        if self.solver != "CLARABEL" and self.solver not in cp.installed_solvers():
            raise ValueError(f"solver: expected one of {', '.join(cp.installed_solvers())}, got {self.solver!r}")

    def refuses(self, problem: Problem) -> str | None:
        """Return why it cannot solve the problem: a surrogate that gives it nothing to solve."""
        model = problem.model
        if problem.has_form or (model is not None and model.exports_expression):
            return None
        return f'{type(model).__name__} has neither a conic form nor a CVXPY expression; use "projected_gradient"'

    def solve(self, problem: Problem, limits: Limits, start: Tensor | None = None) -> Result:
        """Minimise every function: see `Solver.solve`. Where the limits come first, `start` may be the answer.

        Raises:
            ValueError: a limit of iterations, and a solver whose name for it is not known here.
        """
        if limits.max_iter is not None and self.solver not in (None, *ITERATION_OPTIONS):
            raise ValueError(f"max_iter: what {self.solver} calls it is not known here; give it in solver_options")
        if isinstance(problem.feasible_set, SetAt):
            if not problem.has_form:
                return self._set_by_set(problem, problem.feasible_set, limits, start)
            return self._by_rows(problem, limits, start)
        expression = problem.model is not None and problem.model.exports_expression
        if not expression and type(problem.feasible_set) is Polyhedron:
            # Multipliers of rows give bounds without a linear programme for each; the centre is a point of the set.
            size, start = variation(problem), problem.center if start is None else start
            result = self._by_rows(problem.by_rows(), limits, start, size)
            result.judge(limits.tol, Status.INACCURATE)
            _bound_at_points(problem, result, limits)
        else:
            result = self._over_set(problem, limits, start)
        if self.second is not None:
            short = (result.value >= result.lower_bound).cpu().numpy()  # else they contradict each other
            left = (result.status == Status.STALLED) | ((result.status == Status.INACCURATE) & short)
            finish(self.second, problem, limits, result, np.flatnonzero(left))
        return result

    def _by_rows(self, problem: Problem, limits: Limits, start: Tensor | None, size: Tensor | None = None) -> Result:
        """Solve over rows in the processor's memory, each f divided by about what it varies by, `size`, where given."""
        here, start, size = problem.on_processor(), *(None if part is None else part.cpu() for part in (start, size))
        if size is None or here.unit is None:
            return self._by_lift_of_rows(here, limits, start, size).to(problem.device)
        rescaled = Rescaled.of(here, start, size)
        found = self._by_lift_of_rows(rescaled.problem, limits, start, size / rescaled.scale)
        return rescaled.back(found).to(problem.device)

    def _over_set(self, problem: Problem, limits: Limits, start: Tensor | None) -> Result:
        if problem.model is not None and problem.model.exports_expression:
            return self._by_expression(problem, limits, start)
        if problem.unit is None:
            return self._by_lift(problem, limits, start)
        rescaled = Rescaled.of(problem, start, problem.first_gap(problem.center if start is None else start))
        result = rescaled.back(self._by_lift(rescaled.problem, limits, start))
        result.judge(limits.tol, Status.INACCURATE)
        return result

    def _by_lift(self, problem: Problem, limits: Limits, start: Tensor | None) -> Result:
        assert isinstance(problem.feasible_set, FeasibleSet)
        form, coordinates = problem.form.apply(Tensor.cpu), problem.feasible_set.coordinates
        moved = Moved.of(form, coordinates, variation(problem).cpu())
        lifted = LiftedProblem(moved.form, problem.feasible_set, coordinates=coordinates)
        values = [to_numpy(tensor) for tensor in lifted.parameter_values(moved.form)]
        duals = [torch.zeros(form.size, 1, term.map.rows, dtype=form.dtype) for term in form.terms]
        has_dual = torch.zeros(form.size, dtype=torch.bool)

        def solve_row(row: int) -> tuple[Status, np.ndarray | None]:
            status = lifted.solve([value[row] for value in values], *self._asked(lifted.problem, limits))
            found = None if status in WITHOUT_ANSWER else lifted.duals()
            if found is not None:
                has_dual[row] = True
                for target, y in zip(duals, found, strict=True):
                    target[row, 0] = torch.from_numpy(np.asarray(y, dtype=float).reshape(-1))
            return status, lifted.x.value

        x, status = self._solve_rows(problem, limits, start, solve_row)
        from_solver = form.bound(moved.put_back(duals), problem.feasible_set).squeeze(-1)
        bound = torch.where(has_dual, from_solver, -torch.inf).to(problem.device)

        def at_points(points: Tensor) -> Tensor:
            duals = problem.form.subgradients(points.unsqueeze(1))
            return torch.maximum(bound, problem.form.bound(duals, problem.feasible_set).squeeze(-1))

        return self._result(problem, x, status, limits.tol, at_points)

    def _by_lift_of_rows(self, problem: Problem, limits: Limits, start: Tensor | None, size: Tensor | None) -> Result:
        """Solve over rows with right-hand sides of each instance; their multipliers give bounds and proofs.

        The problem is in the processor's memory; each f is divided by about `size`, where that is given.
        """
        sets = problem.feasible_set
        assert isinstance(sets, SetAt)
        form, coordinates = problem.form, sets.coordinates
        moved = Moved.of(form, coordinates, size)
        lifted = LiftedProblem(moved.form, sets, coordinates=coordinates)
        assert lifted.rows is not None
        values = [to_numpy(tensor) for tensor in lifted.parameter_values(moved.form)]
        duals = [torch.zeros(form.size, 1, term.map.rows, dtype=form.dtype) for term in form.terms]
        nu, z = (torch.zeros(form.size, side.shape[-1], dtype=form.dtype) for side in (sets.f, sets.h))

        def solve_row(row: int) -> tuple[Status, np.ndarray | None]:
            assert lifted.rows is not None
            lifted.rows.set_row(row)
            status = lifted.solve([value[row] for value in values], *self._asked(lifted.problem, limits))
            found = None if status in WITHOUT_ANSWER else lifted.duals()
            if found is not None:
                multipliers = lifted.rows.multipliers()
                for target, y in zip((*duals, nu, z), (*found, *multipliers), strict=True):
                    if y.size > 0:
                        target[row] = torch.from_numpy(np.asarray(y, dtype=float).reshape(target[row].shape))
            return status, lifted.x.value

        x, status = self._solve_rows(problem, limits, start, solve_row)
        lower, upper = (side.to(x) for side in sets.sides[:2])
        x = torch.maximum(torch.minimum(x, upper), lower)
        y = moved.scale.unsqueeze(-1) * torch.cat([nu, z.clamp(min=0)], dim=1)
        bound, rows = bound_by_rows(form, sets, moved.put_back(duals), y.numpy())
        result = self._result(problem, x, status, limits.tol, lambda points: bound)
        result.rows = rows

        def value(index: Tensor, x: Tensor) -> Tensor:
            return form.select(index).evaluate(x.unsqueeze(1)).squeeze(-1)

        off = np.flatnonzero(sets.arrays.excess(result.x.numpy())[1] > ROUNDING)
        project_points(value, sets, result, off)
        if start is not None and off.size > 0:  # where the projection failed, a point of the set may be known
            still, known = (sets.arrays.excess(points.numpy())[1] > ROUNDING for points in (result.x, start))
            index = torch.from_numpy(np.flatnonzero(still & ~known))
            result.x[index], result.value[index] = start[index], value(index, start[index])
        prove_empty(result, sets, np.flatnonzero(status == Status.INFEASIBLE), limits.deadline)
        return result

    def _by_expression(self, problem: Problem, limits: Limits, start: Tensor | None) -> Result:
        model = problem.model
        assert model is not None

        def solve_row(row: int) -> tuple[Status, np.ndarray | None]:
            x = cp.Variable(problem.dim)
            value = model.to_cvxpy(x, problem.contexts[row] if model.context_dim > 0 else None)
            program = cp.Problem(cp.Minimize(value), problem.feasible_set.constraints(x))
            solver, options = self._asked(program, limits)
            status = solve_program(program, solver, {"ignore_dpp": True} | options)
            return status, x.value  # pyright: ignore[reportReturnType]

        x, status = self._solve_rows(problem, limits, start, solve_row)
        result = self._result(problem, x, status, limits.tol, lambda points: problem.bound_at(points, limits))
        doubtful = np.flatnonzero(result.status == Status.INACCURATE)
        if problem.has_form and doubtful.size > 0:  # at kinks points alone bound the minimum poorly
            index = torch.from_numpy(doubtful).to(problem.device)
            part = Problem(problem.form.select(index), problem.feasible_set)
            lower = External(self.solver, self.options)._by_lift(part, limits, result.x[index]).lower_bound
            result.lower_bound[index] = torch.maximum(result.lower_bound[index], lower)
            result.judge(limits.tol)
        return result

    def _set_by_set(self, problem: Problem, sets: SetAt, limits: Limits, start: Tensor | None) -> Result:
        """Solve expressions over sets with right-hand sides of their own, each over its own set."""
        whole = Result.unanswered(problem.center, problem.unit)
        whole.solver = self.name
        for row in range(problem.size):
            if limits.late:
                whole.status[row:] = Status.TIME_LIMIT
                whole.x[row:], whole.value[row:] = torch.nan, torch.nan
                break
            index = torch.tensor([row], device=problem.device)
            part = problem.select(index)
            try:
                part.feasible_set = sets.one(row)
            except ValueError:  # it seems to be empty
                one = sets.select(index)
                _, _, nu, z = nearest(one)
                if bool((one.arrays.refutes(nu, z) > 0).all()):
                    whole.refuse(index)
                else:
                    whole.x[row], whole.value[row], whole.status[row] = torch.nan, torch.nan, Status.INACCURATE
                continue
            found = self._by_expression(part, limits, None if start is None else start[row : row + 1])
            for name in ("x", "value", "lower_bound", "status"):
                getattr(whole, name)[row] = getattr(found, name)[0]
        return whole

    def _solve_rows(
        self,
        problem: Problem,
        limits: Limits,
        start: Tensor | None,
        solve_row: Callable[[int], tuple[Status, np.ndarray | None]],
    ) -> tuple[Tensor, np.ndarray]:
        """Solve one instance after the other; return x (N, n), NaN where there is none, and the solver's statuses."""
        whole = not isinstance(problem.feasible_set, SetAt)
        # of sets of their own no point is known before there is an answer
        x = start.clone() if start is not None else problem.center.clone() if whole else problem.center * torch.nan
        status = repeated(Status.TIME_LIMIT, problem.size)
        for row in range(problem.size):
            if limits.late:
                break
            status[row], found = solve_row(row)
            stopped = limits.late and status[row] in (Status.ITERATION_LIMIT, Status.INACCURATE)
            if stopped or status[row] == Status.TIME_LIMIT:
                # what it was stopped at may be far outside of a set, which may have no point
                status[row], found = Status.TIME_LIMIT, found if whole else None
            if status[row] in (Status.INFEASIBLE, Status.UNBOUNDED) and whole:  # it has points, and an end
                status[row], found = Status.STALLED, None
            if found is not None and np.isfinite(found).all():
                x[row] = problem.feasible_set.project(found).to(x) if whole else torch.from_numpy(found).to(x)
            elif status[row] in TOLD:
                status[row] = Status.FAILED
            if status[row] in WITHOUT_ANSWER:
                x[row] = torch.nan
        return x, status

    def _asked(self, program: cp.Problem, limits: Limits) -> tuple[str, dict[str, Any]]:
        """Return who is asked, and with what: the options and the limits in that solver's words, the smaller of two."""
        interior = self.options or limits.max_iter is not None
        solver = self.solver or ("CLARABEL" if interior else usual_solver(program))
        options = dict(self.options)
        if limits.max_iter is not None:
            name = ITERATION_OPTIONS[solver]
            options[name] = min(int(limits.max_iter), options.get(name, limits.max_iter))
        for name, most in time_option(solver, limits).items():
            options[name] = min(most, options.get(name, most))
        return solver, options

    def _result(
        self, problem: Problem, x: Tensor, status: np.ndarray, tol: float, bound: Callable[[Tensor], Tensor]
    ) -> Result:
        """Return the answers with our own values and bounds; what the solver calls solved is, where these say so."""
        solved = torch.isfinite(x).all(dim=-1)
        points = torch.where(solved.unsqueeze(-1), x, problem.center)
        value = torch.where(solved, problem.evaluate(points.unsqueeze(1)).squeeze(-1), torch.nan)
        lower = torch.where(solved, bound(points), -torch.inf)
        none = torch.zeros(problem.size, dtype=torch.int64, device=problem.device)
        result = Result(x, value, lower, none, status, self.name, problem.unit)
        result.judge(tol, Status.INACCURATE)
        return result


def _bound_at_points(problem: Problem, result: Result, limits: Limits) -> None:
    """Bound by linear programmes at the points of instances left short: of few whatever the deadline, else until it."""
    left = torch.from_numpy(np.flatnonzero((result.status != Status.OPTIMAL) & np.isfinite(as_array(result.value))))
    for some in problem.groups(left.to(result.x.device), limits):
        lower = result.value[some] - problem.select(some).first_gap(result.x[some])
        result.lower_bound[some] = torch.maximum(result.lower_bound[some], lower)
    result.judge(limits.tol, Status.INACCURATE)
