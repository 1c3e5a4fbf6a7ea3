"""Decisions under learned constraints: min f(x) over the set subject to g_k(x) <= 0, g_k surrogates as f is.

An outside solver is given the lifts of f and of all g_k. It is believed only as far as our own certificate goes: for
any multipliers u >= 0

    min f subject to g <= 0  >=  min over the set of f + sum_k u_k g_k,

and the right-hand side, again one conic form, is bounded from below as any other decision is (`soctk.minimize`). The
solver's multipliers make the two meet. Where it calls the constraints infeasible, u >= 0 with sum 1 from the least
violation, min t subject to g <= t, and a positive lower bound of sum_k u_k g_k prove it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from soctk.checks import to_numpy
from soctk.decide.choice import default_solver
from soctk.decide.decision import Decision, relative_gap
from soctk.decide.lifted import solve_program
from soctk.decide.problem import Limits, Problem
from soctk.forms.conic_form import ConicForm
from soctk.forms.embedding import FormEmbedding
from soctk.function import ConvexFunction, check_function
from soctk.lazy import cvxpy as cp
from soctk.sets import FeasibleSet
from soctk.status import Status

SATISFIED = 1e-7
"""What a constraint may exceed 0 by, in units of max(1, |its value at the centre|), and x the set, of max(1, |x|)."""


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
    lifted = _Lifted(problem.form, forms, problem.feasible_set)
    size, count = problem.size, len(forms)
    x, u = problem.center.clone(), torch.zeros(size, count, dtype=torch.float64)
    status = np.full(size, Status.TIME_LIMIT, dtype=object)
    for row in range(size):
        if limits.late:
            break
        status[row] = lifted.solve(row, x, u)
    bound = _bounds(problem, forms, u, limits)
    x = problem.feasible_set._project(torch.where(torch.isfinite(x), x, problem.center))
    above, units = _values(forms, x), _values(forms, problem.center).abs().clamp(min=1)
    value, outside = problem.form.evaluate(x.unsqueeze(1)).squeeze(-1), problem.feasible_set._violation(x)
    met = (above <= SATISFIED * units).all(dim=1) & (outside <= SATISFIED * x.abs().amax(dim=1).clamp(min=1))
    violation = torch.maximum(outside, above.amax(dim=1).clamp(min=0))
    good = met & (relative_gap(value, bound, problem.unit) <= limits.tol)
    solved = np.isin(status, (Status.OPTIMAL, Status.INACCURATE))
    status[solved] = np.where(good.numpy()[solved], Status.OPTIMAL, Status.INACCURATE)
    for row in np.flatnonzero(status == Status.INFEASIBLE):
        status[row] = lifted.prove_infeasible(int(row), problem, forms, limits)
    none = torch.from_numpy(~np.isin(status, (Status.OPTIMAL, Status.INACCURATE)))
    x[none], value[none] = torch.nan, torch.nan
    bound[none] = -torch.inf
    return Decision(
        x=x.reshape(*batch, problem.dim),
        value=value.reshape(batch),
        lower_bound=bound.reshape(batch),
        status=status.reshape(batch),
        iterations=torch.zeros(batch, dtype=torch.int64),
        seconds=time.perf_counter() - started,
        scale=None if problem.unit is None else problem.unit.reshape(batch),
        solver=np.full(batch, "cvxpy", dtype=object),
        violation=violation.reshape(batch),
        context=problem.given,
        support=None if problem.model is None else problem.model.support,
    )


def check_constraints(constraints: Sequence[ConvexFunction], model: ConvexFunction) -> None:
    """Raise an error unless all are surrogates with a conic form that go with the model."""
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
        self.x, self._slack, self._set = cp.Variable(form.dim), cp.Variable(), feasible_set
        parts = [FormEmbedding(part, self.x) for part in (form, *forms)]
        self._parameters = [parameter for part in parts for parameter in part.parameters]
        self._values = [
            to_numpy(v) for f, part in zip((form, *forms), parts, strict=True) for v in part.parameter_values(f)
        ]
        self._limits = [part.value <= 0 for part in parts[1:]]
        self._relaxed = [part.value <= self._slack for part in parts[1:]]
        common = [*feasible_set.constraints(self.x), *(c for part in parts for c in part.constraints)]
        self._program = cp.Problem(cp.Minimize(parts[0].value), [*common, *self._limits])
        self._phase_one = cp.Problem(cp.Minimize(self._slack), [*common, *self._relaxed])

    def _set_row(self, row: int) -> None:
        for parameter, value in zip(self._parameters, self._values, strict=True):
            parameter.value = value[min(row, len(value) - 1)]

    def solve(self, row: int, x: Tensor, u: Tensor) -> Status:
        """Solve one instance, its point and multipliers put into x and u."""
        self._set_row(row)
        status = solve_program(self._program, "CLARABEL", {})
        if status in (Status.OPTIMAL, Status.INACCURATE) and self.x.value is not None:
            x[row] = torch.from_numpy(self.x.value)
            u[row] = torch.tensor([max(float(limit.dual_value), 0.0) for limit in self._limits])
        return status

    def prove_infeasible(self, row: int, problem: Problem, forms: list[ConicForm], limits: Limits) -> Status:
        """Return INFEASIBLE where a lower bound of a mean of the constraints proves it, else INACCURATE."""
        self._set_row(row)
        if solve_program(self._phase_one, "CLARABEL", {}) not in (Status.OPTIMAL, Status.INACCURATE):
            return Status.INACCURATE
        u = torch.tensor([[max(float(limit.dual_value), 0.0) for limit in self._relaxed]], dtype=torch.float64)
        index = torch.tensor([row])
        parts = [form.select(index) for form in forms]
        zero = dataclasses.replace(parts[0], constant=0 * parts[0].constant, linear=0 * parts[0].linear, terms=())
        bound = _bounds(Problem(zero, problem.feasible_set), parts, u / u.sum().clamp(min=1e-300), limits)
        return Status.INFEASIBLE if float(bound) > 0 else Status.INACCURATE


def _values(forms: Sequence[ConicForm], x: Tensor) -> Tensor:
    """Return the forms' values at one point of every instance, (N, n) -> (N, K)."""
    return torch.stack([form.evaluate(x.unsqueeze(1)).squeeze(-1) for form in forms], dim=1)


def _form(constraint: ConvexFunction, contexts: Tensor | None, size: int) -> ConicForm:
    form = constraint.form_at(contexts if constraint.context_dim > 0 and contexts is not None else torch.zeros(0))
    form = form.check().detach()
    return form if form.size == size else dataclasses.replace(form, batch_shape=(size,))


def _bounds(problem: Problem, forms: list[ConicForm], u: Tensor, limits: Limits) -> Tensor:
    """Return lower bounds of the minima over the set of f + sum_k u_k g_k, (N,)."""
    form = problem.form
    constant, linear, terms = form.constant, form.linear, list(form.terms)
    for k, part in enumerate(forms):
        weight = u[:, k : k + 1]
        constant, linear = constant + weight * part.constant, linear + weight.unsqueeze(-1) * part.linear
        terms += [term.scaled(weight.unsqueeze(-1)) for term in part.terms]
    total = ConicForm(constant, linear, tuple(terms), (len(u),))
    whole = Problem(total, problem.feasible_set, problem.unit)
    return default_solver(whole).solve(whole, Limits(0.1 * limits.tol, None, limits.deadline)).lower_bound
