"""Decisions under learned constraints: min f(x) over the set subject to g_k(x) <= 0, g_k surrogates as f is.

An outside solver is given the lifts of f and of all g_k. It is believed only as far as our own certificate goes: for
any multipliers u >= 0

    min f subject to g <= 0  >=  min over the set of f + sum_k u_k g_k,

and the right-hand side, again one conic form, is bounded from below as any other decision is (`soctk.minimize`). The
solver's multipliers make the two meet. Where it calls the constraints infeasible, u >= 0 with sum 1 from the least
violation, min t subject to g <= t, and a positive lower bound of sum_k u_k g_k prove it.

A constraint says the same in any unit, but a solver has tolerances of its own. A constraint is therefore judged by
the size of the numbers that its value is a sum of, at the very point; what is not met or not proved is solved again
with every constraint divided by that. Decisions are solved for in the coordinates of the set, whatever the unit of x.

The bound with the multipliers says more than that of one optimum: subject to g <= r the optimal value is at least it
less u'r, for every r.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from soctk.checks import to_numpy
from soctk.decide.choice import default_solver
from soctk.decide.coordinates import in_coordinates
from soctk.decide.decision import Decision, relative_gap
from soctk.decide.lifted import solve_program, time_option
from soctk.decide.problem import Limits, Problem
from soctk.decide.ranges import magnitude_of
from soctk.forms.conic_form import ConicForm
from soctk.forms.embedding import FormEmbedding
from soctk.function import ConvexFunction, check_function
from soctk.lazy import cvxpy as cp
from soctk.sets import FeasibleSet
from soctk.status import Status

SATISFIED = 1e-7
"""What a constraint may exceed 0 by, as a share of the numbers it is a sum of, and x the set, of max(1, |x|)."""
SETTLED = (Status.OPTIMAL, Status.INFEASIBLE)
"""Answers that are proved."""


@dataclass(frozen=True, eq=False)
class _Found:
    """Answers to N instances: points (N, n), values and bounds (N,), multipliers (N, K), statuses (N,)."""

    x: Tensor
    value: Tensor
    bound: Tensor
    u: Tensor
    status: np.ndarray

    def put(self, index: Tensor, other: _Found) -> None:
        """Take the answers of the instances `index` that another attempt has proved."""
        proved = np.isin(other.status, SETTLED)
        rows, own = index[torch.from_numpy(proved)], torch.from_numpy(proved)
        for name in ("x", "value", "bound", "u"):
            getattr(self, name)[rows] = getattr(other, name)[own]
        self.status[rows.numpy()] = other.status[proved]


def decide_under(
    problem: Problem, constraints: Sequence[ConvexFunction], limits: Limits, batch: tuple[int, ...], started: float
) -> Decision:
    """Return verified decisions of a problem with a conic form under constraints.

    Args:
        problem: over one set.
        constraints: surrogates with a conic form, of the problem's dimension and context.
        limits: the tolerance and the deadline.
        batch: the contexts' batch shape.
        started: the `time.perf_counter()` value at the user's call.
    """
    assert isinstance(problem.feasible_set, FeasibleSet)
    given = problem.contexts if problem.contexts.shape[-1] > 0 else None
    forms = [_form(constraint, given, problem.size) for constraint in constraints]
    found = _attempt(problem, forms, limits)
    left = torch.from_numpy(np.flatnonzero(~np.isin(found.status, SETTLED)))
    if left.numel() > 0 and not limits.late:
        part, some = problem.select(left), [form.select(left) for form in forms]
        sizes = _sizes(some, found.x[left])
        scaled = [_scaled(form, 1 / sizes[:, k]) for k, form in enumerate(some)]
        again = _attempt(part, scaled, limits)
        again.u.div_(sizes)
        found.put(left, again)
    violation = torch.maximum(
        problem.feasible_set._violation(found.x), _values(forms, found.x).amax(dim=1).clamp(min=0)
    )
    none = torch.from_numpy(~np.isin(found.status, (Status.OPTIMAL, Status.INACCURATE, Status.TIME_LIMIT)))
    none |= ~torch.isfinite(found.value)
    found.x[none], found.value[none], violation[none] = torch.nan, torch.nan, torch.nan
    found.bound[none] = -torch.inf
    proved = torch.from_numpy(found.status == Status.INFEASIBLE)
    found.u[proved] /= found.u[proved].sum(dim=1, keepdim=True)
    found.u[none & ~proved] = torch.nan
    return Decision(
        x=found.x.reshape(*batch, problem.dim),
        value=found.value.reshape(batch),
        lower_bound=found.bound.reshape(batch),
        status=found.status.reshape(batch),
        iterations=torch.zeros(batch, dtype=torch.int64),
        seconds=time.perf_counter() - started,
        scale=None if problem.unit is None else problem.unit.reshape(batch),
        solver=np.full(batch, "cvxpy", dtype=object),
        violation=violation.reshape(batch),
        multipliers=found.u.reshape(*batch, len(forms)),
        context=problem.given,
        support=None if problem.model is None else problem.model.support,
    )


def _attempt(problem: Problem, forms: list[ConicForm], limits: Limits) -> _Found:
    """Return what Clarabel finds of every instance, judged; where it was not asked in time x is the centre."""
    assert isinstance(problem.feasible_set, FeasibleSet)
    lifted, size = _Lifted(problem.form, forms, problem.feasible_set), problem.size
    x, u = problem.center.clone(), torch.zeros(size, len(forms), dtype=torch.float64)
    status = np.full(size, Status.TIME_LIMIT, dtype=object)
    for row in range(size):
        if limits.late:
            break
        status[row] = lifted.solve(row, x, u, limits)
    x = problem.feasible_set._project(torch.where(torch.isfinite(x), x, problem.center))
    value, above = problem.form.evaluate(x.unsqueeze(1)).squeeze(-1), _values(forms, x)
    outside = problem.feasible_set._violation(x) <= SATISFIED * x.abs().amax(dim=1).clamp(min=1)
    met = (above <= SATISFIED * _sizes(forms, x)).all(dim=1) & outside
    bound = _bounds(problem, forms, u, x, value, limits)
    good, solved = met & (relative_gap(value, bound, problem.unit) <= limits.tol), status != Status.TIME_LIMIT
    claimed = np.isin(status, (Status.OPTIMAL, Status.INACCURATE))
    late = np.full(size, limits.late) & met.numpy()
    for row in np.flatnonzero(claimed):  # np.where would make plain texts of them
        unproved = Status.TIME_LIMIT if late[row] else Status.INACCURATE
        status[row] = Status.OPTIMAL if bool(good[row]) else unproved
    value[torch.from_numpy(~solved)] = torch.inf
    for row in np.flatnonzero(status == Status.INFEASIBLE):
        status[row], u[row] = lifted.prove_infeasible(int(row), problem, forms, limits)
    return _Found(x, value, bound, u, status)


def check_constraints(constraints: Sequence[ConvexFunction], model: ConvexFunction) -> None:
    """Raise an error unless all are surrogates with a conic form that go with the model."""
    if isinstance(constraints, ConvexFunction):
        raise TypeError("subject_to: expected a list of surrogates, got one; put it into brackets")
    for number, constraint in enumerate(constraints):
        name = f"subject_to[{number}]"
        check_function(constraint, name)
        if constraint.dim != model.dim or constraint.context_dim not in (0, model.context_dim):
            raise ValueError(
                f"{name}: expected a surrogate of {model.dim} variables and {model.context_dim} context numbers as the "
                f"model, got {constraint.dim} and {constraint.context_dim}"
            )
        if not constraint.has_conic_form or not model.has_conic_form:
            raise NotImplementedError(f"{name}: both it and the model need a conic form")


class _Lifted:
    """One parameterised program for all instances."""

    def __init__(self, form: ConicForm, forms: list[ConicForm], feasible_set: FeasibleSet) -> None:
        self._coordinates = feasible_set.coordinates
        self._z, self._slack = cp.Variable(form.dim), cp.Variable()
        moved = [in_coordinates(part, self._coordinates)[0] for part in (form, *forms)]
        parts = [FormEmbedding(part, self._z) for part in moved]
        self._parameters = [parameter for part in parts for parameter in part.parameters]
        self._values = [to_numpy(v) for f, part in zip(moved, parts, strict=True) for v in part.parameter_values(f)]
        self._limits = [part.value <= 0 for part in parts[1:]]
        self._relaxed = [part.value <= self._slack for part in parts[1:]]
        x = self._coordinates.expression(self._z)
        common = [*feasible_set.constraints(x), *(c for part in parts for c in part.constraints)]
        self._program = cp.Problem(cp.Minimize(parts[0].value), [*common, *self._limits])
        self._phase_one = cp.Problem(cp.Minimize(self._slack), [*common, *self._relaxed])

    def _set_row(self, row: int) -> None:
        for parameter, value in zip(self._parameters, self._values, strict=True):
            parameter.value = value[min(row, len(value) - 1)]

    def solve(self, row: int, x: Tensor, u: Tensor, limits: Limits) -> Status:
        """Solve one instance, its point and multipliers put into x and u."""
        self._set_row(row)
        status = solve_program(self._program, "CLARABEL", time_option("CLARABEL", limits))
        if status == Status.ITERATION_LIMIT and limits.late:
            return Status.TIME_LIMIT
        if status in (Status.OPTIMAL, Status.INACCURATE) and self._z.value is not None:
            x[row] = torch.from_numpy(self._coordinates.x_of(self._z.value))
            u[row] = _multipliers(self._limits)
        return status

    def prove_infeasible(
        self, row: int, problem: Problem, forms: list[ConicForm], limits: Limits
    ) -> tuple[Status, Tensor]:
        """Return INFEASIBLE where a lower bound of a mean of the constraints proves it, and its weights (K,)."""
        unproved = Status.TIME_LIMIT if limits.late else Status.INACCURATE, torch.full((len(forms),), torch.nan)
        if limits.late:
            return unproved
        self._set_row(row)
        status = solve_program(self._phase_one, "CLARABEL", time_option("CLARABEL", limits))
        if status not in (Status.OPTIMAL, Status.INACCURATE):
            return unproved
        u = _multipliers(self._relaxed)[None]
        index = torch.tensor([row])
        parts = [form.select(index) for form in forms]
        zero = dataclasses.replace(parts[0], constant=0 * parts[0].constant, linear=0 * parts[0].linear, terms=())
        weights, x = u / u.sum().clamp(min=1e-300), problem.center[:1]
        if self._z.value is not None:
            x = problem.feasible_set._project(torch.from_numpy(self._coordinates.x_of(self._z.value))[None])
        value = (weights * _values(parts, x)).sum(dim=1)
        bound = _bounds(Problem(zero, problem.feasible_set), parts, weights, x, value, limits)
        return (Status.INFEASIBLE, weights[0]) if float(bound) > 0 else unproved


def _multipliers(limits: Sequence[cp.Constraint]) -> Tensor:
    """Return the multipliers of the last solve, not negative, (K,)."""
    given = [float(np.asarray(limit.dual_value).item()) for limit in limits]
    return torch.tensor(given, dtype=torch.float64).clamp(min=0)


def _values(forms: Sequence[ConicForm], x: Tensor) -> Tensor:
    """Return the forms' values at one point of every instance, (N, n) -> (N, K)."""
    return torch.stack([form.evaluate(x.unsqueeze(1)).squeeze(-1) for form in forms], dim=1)


def _form(constraint: ConvexFunction, contexts: Tensor | None, size: int) -> ConicForm:
    form = constraint.form_at(contexts if constraint.context_dim > 0 and contexts is not None else torch.zeros(0))
    form = form.check().detach()
    return form if form.size == size else dataclasses.replace(form, batch_shape=(size,))


def _sizes(forms: Sequence[ConicForm], x: Tensor) -> Tensor:
    """Return the sizes of the numbers that the forms' values at points (N, n) are sums of, 1 for none, (N, K)."""
    values = _values(forms, x)
    sizes = torch.stack([magnitude_of(form, x, values[:, k]) for k, form in enumerate(forms)], dim=1)
    return torch.where(sizes > 0, sizes, 1.0)


def _scaled(form: ConicForm, factor: Tensor) -> ConicForm:
    """Return the forms times factors (N,)."""
    each = factor[:, None, None]
    terms = tuple(term.scaled(each) for term in form.terms)
    return dataclasses.replace(form, constant=form.constant * each[..., 0], linear=form.linear * each, terms=terms)


def _bounds(problem: Problem, forms: list[ConicForm], u: Tensor, x: Tensor, value: Tensor, limits: Limits) -> Tensor:
    """Return lower bounds of the minima over the set of f + sum_k u_k g_k, (N,).

    By tangent planes at x, which minimises it where x and u are right; by a search of its own where that is not enough.
    """
    form = problem.form
    constant, linear, terms = form.constant, form.linear, list(form.terms)
    for k, part in enumerate(forms):
        scaled = _scaled(part, u[:, k])
        constant, linear = constant + scaled.constant, linear + scaled.linear
        terms += scaled.terms
    total = ConicForm(constant, linear, tuple(terms), (len(u),))
    whole = Problem(total, problem.feasible_set, problem.unit)
    bound = whole.bound_at(x)
    rest = torch.nonzero(~(relative_gap(value, bound, problem.unit) <= limits.tol)).squeeze(1)
    if rest.numel() > 0 and not limits.late:
        part = whole.select(rest)
        again = default_solver(part).solve(part, Limits(0.1 * limits.tol, None, limits.deadline)).lower_bound
        bound[rest] = torch.maximum(bound[rest], again)
    return bound
