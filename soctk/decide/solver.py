"""What every solver is: an object with options of its own that says what it cannot do, and does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result, repeated
from soctk.decide.units import Rescaled
from soctk.status import Status


class Solver(ABC):
    """A way to minimise; subclasses are frozen dataclasses of their options.

    Attributes:
        name: what `minimize(method=)` and `Decision.solver` call it.
        takes_sets_at: whether it decides over sets with right-hand sides of their own.
        takes_any_point: whether any point of the set is an answer, such as its centre where the search has found none.
    """

    name: str
    takes_sets_at: ClassVar[bool] = False
    takes_any_point: ClassVar[bool] = True

    @abstractmethod
    def refuses(self, problem: Problem) -> str | None:
        """Return the reason why it cannot solve the problem, a sentence with a remedy; None where it can."""

    def at_once(self, problem: Problem) -> int:
        """Return how many instances of the problem are best solved in one call: here, all of them."""
        return problem.size

    @abstractmethod
    def solve(self, problem: Problem, limits: Limits, start: Tensor | None = None) -> Result:
        """Minimise every function of the problem.

        Args:
            problem: one that it does not refuse.
            limits: how far it may go.
            start: (N, n) feasible starting points; a choice of its own by default.

        Raises:
            ValueError: weights that are not finite or make a function non-convex.
        """


class FormSolver(Solver):
    """A solver of conic forms on the free coordinates, and another for what it leaves short of the tolerance.

    Attributes:
        max_iter: the most iterations for each instance, where the limits say nothing.
        second: solves again what this one left short of the tolerance, unless an instance ran into a `Limits.max_iter`
            below `max_iter`; None for no other.
    """

    max_iter: int
    second: Solver | None

    @abstractmethod
    def _solve(self, problem: Problem, limits: Limits, max_iter: int, start: Tensor | None) -> Result:
        """Minimise where every coordinate is free."""

    def refuses(self, problem: Problem) -> str | None:
        """Return why it cannot solve the problem: here, because there is no conic form."""
        if problem.has_form:
            return None
        assert problem.model is not None
        return f'{problem.model.without_form()}; use method="cvxpy"'

    def solve(self, problem: Problem, limits: Limits, start: Tensor | None = None) -> Result:
        """Minimise every function of the problem: see `Solver.solve`."""
        presolved = problem.presolved
        if presolved.single_point:
            return self._only_point(problem)
        if start is not None and not presolved.trivial:
            start = start[:, presolved.columns.to(start.device)]
        inner, rescaled = problem.reduced, None
        if problem.unit is not None:
            rescaled = Rescaled.of(inner, start)
            inner = rescaled.problem
        result = self._solve(inner, limits, self.max_iter if limits.max_iter is None else limits.max_iter, start)
        result.solver = self.name
        if rescaled is not None:
            result = rescaled.back(result)
            result.judge(limits.tol)
        result.x = presolved.expand(result.x)
        if self.second is not None and not result.all_optimal:
            again = [Status.STALLED]
            if limits.max_iter is None or limits.max_iter >= self.max_iter:
                again.append(Status.ITERATION_LIMIT)
            self._before_second(problem, limits, result, np.flatnonzero(np.isin(result.status, again)))
            finish(self.second, problem, limits, result, np.flatnonzero(np.isin(result.status, again)))
        return result

    def _before_second(self, problem: Problem, limits: Limits, result: Result, rows: np.ndarray) -> None:
        """Improve the instances `rows`, which are left short of the tolerance: here nothing is tried."""

    def _only_point(self, problem: Problem) -> Result:
        x = problem.presolved.point.to(dtype=problem.dtype, device=problem.device).expand(problem.size, -1).clone()
        value = problem.form.evaluate(x.unsqueeze(1)).squeeze(-1)
        none = torch.zeros(problem.size, dtype=torch.int64, device=problem.device)
        status = repeated(Status.OPTIMAL, problem.size)
        return Result(x, value, value.clone(), none, status, self.name, problem.unit)


def finish(second: Solver, problem: Problem, limits: Limits, result: Result, rows: np.ndarray) -> None:
    """Solve the instances `rows` again, from where they are, and keep whatever point and whatever bound are better.

    Those that there is no time for are said to have run into the deadline.
    """
    if rows.size == 0 or second.refuses(problem) is not None:
        return
    for index in torch.from_numpy(rows).to(result.x.device).split(second.at_once(problem)):
        if limits.late:
            result.status[index.cpu().numpy()] = Status.TIME_LIMIT
            continue
        part, inner = problem.select(index), Limits(limits.tol, None, limits.deadline)
        merge(result, index, second.solve(part, inner, result.x[index]), limits.tol)


def merge(result: Result, index: Tensor, again: Result, tol: float) -> None:
    """Take, for the instances `index`, whatever point and whatever bound are better in another solver's result."""
    rows = index.cpu().numpy()
    if result.rows is not None and again.rows is not None:
        higher = (again.lower_bound > result.lower_bound[index]).cpu().numpy()
        wanted = higher | (again.status == Status.INFEASIBLE)
        result.rows.put(rows[wanted], again.rows.select(wanted))
    better = result.improve(index, again.x, again.value, again.lower_bound).cpu().numpy()
    names = np.full(result.status.size, result.solver, dtype=object)
    names[rows[better]] = np.broadcast_to(np.asarray(again.solver, dtype=object), rows.shape)[better]
    result.solver = names
    result.iterations[index] += again.iterations
    result.status[rows[again.status == Status.TIME_LIMIT]] = Status.TIME_LIMIT
    result.refuse(index[torch.from_numpy(again.status == Status.INFEASIBLE)])
    result.judge(tol)
