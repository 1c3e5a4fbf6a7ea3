"""Decisions under learned constraints: min f(x) over the set subject to g_k(x) <= 0, g_k surrogates as f is.

Under one constraint its multiplier is searched for (`soctk.decide.one_constraint`). Under several, and for what that
leaves, an outside solver is given the lifts of f and of all g_k. It is believed only as far as our own certificate
goes: for any multipliers u >= 0

    min f subject to g <= 0  >=  min over the set of f + sum_k u_k g_k,

and the right-hand side, again one conic form, is bounded from below as any other decision is (`soctk.minimize`). The
solver's multipliers make the two meet. Where it calls the constraints infeasible, u >= 0 with sum 1 from the least
violation, min t subject to g <= t, and a positive lower bound of sum_k u_k g_k prove it.

A constraint says the same in any unit, but a solver has tolerances of its own. A constraint is therefore judged by
the size of the numbers that its value is a sum of, at the very point; what is not met or not proved is solved again
with every constraint divided by that at the centre. The solver works in the coordinates of the set, whatever the unit
of x.

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
from soctk.decide.answer import excess
from soctk.decide.choice import NEWTON, default_solver
from soctk.decide.coordinates import Moved
from soctk.decide.decision import Decision, relative_gap
from soctk.decide.external import External
from soctk.decide.lifted import solve_program, time_option
from soctk.decide.one_constraint import search
from soctk.decide.problem import Limits, Problem
from soctk.decide.ranges import magnitude_of, unit_in_range, variation
from soctk.decide.result import repeated
from soctk.forms.conic_form import ConicForm
from soctk.forms.embedding import FormEmbedding
from soctk.function import ConvexFunction
from soctk.lazy import cvxpy as cp
from soctk.sets import FeasibleSet
from soctk.status import Status

SATISFIED = 1e-7
"""What a constraint may exceed 0 by, as a share of the numbers it is a sum of there or at the set's centre, and x the
set, likewise."""
FOR_BOUNDS = 0.2
"""The share of the time left that is kept for bounds, without which no answer is proved."""
SETTLED = (Status.OPTIMAL, Status.INFEASIBLE)
"""Answers that are proved."""


@dataclass(frozen=True, eq=False)
class Constraint:
    """g(x, context) <= level.

    Attributes:
        function: the surrogate g.
        level: (N,), float64 on the CPU.
    """

    function: ConvexFunction
    level: Tensor

    def form(self, contexts: Tensor) -> ConicForm:
        """Return g - level at contexts (N, p), or for all N alike, on the processor."""
        given = contexts if self.function.context_dim > 0 else contexts.new_zeros(0)
        form = self.function.form_at(given).check().detach().apply(Tensor.cpu)
        constant = form.constant - self.level.unsqueeze(-1).to(form.constant)
        return dataclasses.replace(form, constant=constant, batch_shape=(len(self.level),))


@dataclass(frozen=True, eq=False)
class _Found:
    """Answers to N instances: points (N, n), values and bounds (N,), multipliers (N, K), statuses and solvers (N,).

    Attributes:
        met: whether the point is in the set and satisfies the constraints, to `SATISFIED`, (N,).
    """

    x: Tensor
    value: Tensor
    bound: Tensor
    met: Tensor
    u: Tensor
    status: np.ndarray
    solver: np.ndarray

    @classmethod
    def nothing(cls, problem: Problem, count: int) -> _Found:
        """Return that nothing is known yet; the value of no point is inf."""
        size = problem.size
        value = torch.full((size,), torch.inf, dtype=torch.float64)
        u = torch.full((size, count), torch.nan, dtype=torch.float64)
        solver = np.full(size, External.name, dtype=object)
        met = torch.zeros(size, dtype=torch.bool)
        return cls(problem.center.clone(), value, -value, met, u, repeated(Status.TIME_LIMIT, size), solver)

    @property
    def open(self) -> Tensor:
        """The instances that are not settled."""
        return torch.from_numpy(np.flatnonzero(~np.isin(self.status, SETTLED)))

    def good(self, index: Tensor, unit: Tensor | None, tol: float) -> Tensor:
        """Return whether the gaps of the instances `index` are at most `tol`, in units of their own."""
        return self.met[index] & (relative_gap(self.value[index], self.bound[index], unit) <= tol)

    def put(self, index: Tensor, other: _Found, unit: Tensor | None, tol: float) -> None:
        """Take what another attempt at the instances `index` has better, alone, or proved.

        The better point and the better bound may be those of two attempts; OPTIMAL is where they meet, in the unit.
        """
        none = torch.from_numpy(other.status == Status.INFEASIBLE)
        known = self.met[index] & (self.value[index] <= other.value)
        better = none | (other.met & ~known) | self.value[index].isinf()
        higher = none | (other.bound > self.bound[index])
        points, bounds = index[better], index[higher]
        self.x[points], self.value[points], self.met[points] = other.x[better], other.value[better], other.met[better]
        self.bound[bounds], self.u[bounds] = other.bound[higher], other.u[higher]
        self.status[points.numpy()] = other.status[better.numpy()]
        self.solver[points.numpy()] = other.solver[better.numpy()]
        self.status[index[~none & self.good(index, unit, tol)].numpy()] = Status.OPTIMAL


def decide_under(
    problem: Problem, constraints: Sequence[Constraint], limits: Limits, batch: tuple[int, ...], started: float
) -> Decision:
    """Return verified decisions of a problem with a conic form under constraints.

    Args:
        problem: over one set, or with one constraint over one for each context.
        constraints: as `check_constraints` returns them.
        limits: the tolerance and the deadline.
        batch: the contexts' batch shape.
        started: the `time.perf_counter()` value at the user's call.
    """
    forms = [constraint.form(problem.contexts) for constraint in constraints]
    # the functions are made once, and solvers are chosen by them alone
    inner, device = Problem(problem.form, problem.feasible_set, problem.unit).on_processor(), problem.device
    found = _decide(inner, forms, limits)
    unit = _in_range(inner, forms, found, limits) if inner.unit is None else inner.unit
    if limits.late:  # whichever attempt was the last: with more time others would have followed
        found.status[found.status == Status.INACCURATE] = Status.TIME_LIMIT
    outside = torch.from_numpy(excess(inner.feasible_set, found.x)[0])
    violation = torch.maximum(outside, _values(forms, found.x).amax(dim=1).clamp(min=0))
    none = torch.from_numpy(~np.isin(found.status, (Status.OPTIMAL, Status.INACCURATE, Status.TIME_LIMIT)))
    none |= ~torch.isfinite(found.value)
    found.x[none], found.value[none], violation[none] = torch.nan, torch.nan, torch.nan
    found.bound[none] = -torch.inf
    proved = torch.from_numpy(found.status == Status.INFEASIBLE)
    found.u[proved] /= found.u[proved].sum(dim=1, keepdim=True)
    found.u[none & ~proved] = torch.nan
    return Decision(
        x=found.x.reshape(*batch, problem.dim).to(device),
        value=found.value.reshape(batch).to(device),
        lower_bound=found.bound.reshape(batch).to(device),
        status=found.status.reshape(batch),
        iterations=torch.zeros(batch, dtype=torch.int64, device=device),
        seconds=time.perf_counter() - started,
        scale=None if unit is None else unit.reshape(batch).to(device),
        solver=found.solver.reshape(batch),
        violation=violation.reshape(batch).to(device),
        multipliers=found.u.reshape(*batch, len(forms)).to(device),
        context=problem.kept_context,
        support=None if problem.model is None else problem.model.support,
    )


def _in_range(problem: Problem, forms: list[ConicForm], found: _Found, limits: Limits) -> Tensor | None:
    """Return the unit where f hardly varies, None where it does; decide again what has too large a gap in it."""
    known = found.value.isfinite()
    value = torch.where(known, found.value, 0.0)
    unit = unit_in_range(problem, found.x, value, limits)
    if unit is None:
        return None
    good = found.good(torch.arange(problem.size), unit, limits.tol)
    again = torch.nonzero(known & (unit < value.abs().clamp(min=1.0)) & ~good).squeeze(1)
    found.status[again.numpy()] = Status.INACCURATE
    part = problem.select(again)
    part.unit = unit[again]
    found.put(again, _decide(part, [form.select(again) for form in forms], limits), part.unit, limits.tol)
    return unit


def _decide(problem: Problem, forms: list[ConicForm], limits: Limits) -> _Found:
    """Return what the attempts find, one after the other."""
    found = _Found.nothing(problem, len(forms))
    attempts = [_solve, _solve_scaled] if isinstance(problem.feasible_set, FeasibleSet) else []
    if len(forms) == 1 and default_solver(problem) is NEWTON:
        attempts, found.solver[:] = [_search, *attempts], NEWTON.name
    for attempt in attempts:
        left = found.open
        if left.numel() == 0 or limits.late:
            break
        part = problem.select(left)
        found.put(left, attempt(part, [form.select(left) for form in forms], limits), part.unit, limits.tol)
    return found


def _search(problem: Problem, forms: list[ConicForm], limits: Limits) -> _Found:
    """Return what the search for the multiplier of one constraint finds; OPTIMAL is said where it is put (`put`)."""
    found, size = _Found.nothing(problem, 1), _sizes(forms, problem.center)
    searched = search(problem, forms[0].scaled(1 / size[:, 0]), limits)
    found.status[:], found.solver[:] = repeated(Status.INACCURATE, problem.size), NEWTON.name
    found.status[searched.none.numpy()] = Status.INFEASIBLE
    met, u = _met(problem, forms, searched.x) & searched.value.isfinite(), searched.u.unsqueeze(1) / size
    return dataclasses.replace(found, x=searched.x, value=searched.value, bound=searched.bound, met=met, u=u)


def _solve_scaled(problem: Problem, forms: list[ConicForm], limits: Limits) -> _Found:
    """Return what Clarabel finds where every constraint is divided by the size of its numbers at the centre."""
    sizes = _sizes(forms, problem.center)
    found = _solve(problem, [form.scaled(1 / sizes[:, k]) for k, form in enumerate(forms)], limits)
    return dataclasses.replace(found, u=found.u / sizes)


def _solve(problem: Problem, forms: list[ConicForm], limits: Limits) -> _Found:
    """Return what Clarabel finds of every instance; OPTIMAL is said where it is put (`put`).

    A point may be outside of a constraint by rounding; what that may bring is taken off the bound, which would be above
    the value otherwise.
    """
    assert isinstance(problem.feasible_set, FeasibleSet)
    lifted, found = _Lifted(problem, forms), _Found.nothing(problem, len(forms))
    u, status, solving = found.u, found.status, limits.sooner(FOR_BOUNDS)
    for row in range(problem.size):
        if solving.late:
            break
        status[row] = lifted.solve(row, found.x, u, solving)
    x = problem.feasible_set._project(torch.where(torch.isfinite(found.x), found.x, problem.center))
    value, u = problem.form.evaluate(x.unsqueeze(1)).squeeze(-1), u.nan_to_num(0.0)
    bound = _bounds(problem, forms, u, x, value, limits) - (u * _values(forms, x).clamp(min=0)).sum(dim=1)
    met = _met(problem, forms, x)
    value[torch.from_numpy(status == Status.TIME_LIMIT)] = torch.inf
    status[status == Status.OPTIMAL] = Status.INACCURATE
    said = status == Status.INFEASIBLE
    # near where constraints can just be met, what solvers say tells little
    for row in np.flatnonzero(said | ((status != Status.TIME_LIMIT) & ~met.numpy())):
        proved, weights = lifted.prove_infeasible(int(row), problem, forms, limits)
        if said[row] or proved == Status.INFEASIBLE:
            status[row], u[row] = proved, weights
    return dataclasses.replace(found, x=x, value=value, bound=bound, met=met, u=u)


def _met(problem: Problem, forms: list[ConicForm], x: Tensor) -> Tensor:
    """Return whether points (N, n) are in the set and satisfy the constraints, to `SATISFIED`, (N,).

    The sizes are those at the set's centre where they are larger: near where a constraint is least its numbers may be
    so small that no solver meets it to a share of them.
    """
    inside = torch.from_numpy(excess(problem.feasible_set, x)[1] <= SATISFIED)
    sizes = torch.maximum(_sizes(forms, x), _sizes(forms, problem.center))
    return inside & (_values(forms, x) <= SATISFIED * sizes).all(dim=1)


class _Lifted:
    """One parameterised program for all instances."""

    def __init__(self, problem: Problem, forms: list[ConicForm]) -> None:
        feasible_set = problem.feasible_set
        assert isinstance(feasible_set, FeasibleSet)
        self._coordinates = feasible_set.coordinates
        self._z, self._slack = cp.Variable(problem.dim), cp.Variable()
        objective = Moved.of(problem.form, self._coordinates, variation(problem))
        self._scale = objective.scale
        moved = [objective.form, *(Moved.of(form, self._coordinates).form for form in forms)]
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
        if status == Status.TIME_LIMIT or (status == Status.ITERATION_LIMIT and limits.late):
            return Status.TIME_LIMIT
        if status in (Status.OPTIMAL, Status.INACCURATE) and self._z.value is not None:
            x[row] = torch.from_numpy(self._coordinates.x_of(self._z.value))
            u[row] = _multipliers(self._limits) * self._scale[row]
        return Status.FAILED if status == Status.UNBOUNDED else status  # a set has an end

    def prove_infeasible(
        self, row: int, problem: Problem, forms: list[ConicForm], limits: Limits
    ) -> tuple[Status, Tensor]:
        """Return INFEASIBLE where a lower bound of a mean of the constraints proves it, and its weights (K,)."""
        unproved = Status.INACCURATE, torch.full((len(forms),), torch.nan)
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


def _sizes(forms: Sequence[ConicForm], x: Tensor) -> Tensor:
    """Return the sizes of the numbers that the forms' values at points (N, n) are sums of, 1 for none, (N, K)."""
    values = _values(forms, x)
    sizes = torch.stack([magnitude_of(form, x, values[:, k]) for k, form in enumerate(forms)], dim=1)
    return torch.where(sizes > 0, sizes, 1.0)


def _bounds(problem: Problem, forms: list[ConicForm], u: Tensor, x: Tensor, value: Tensor, limits: Limits) -> Tensor:
    """Return lower bounds of the minima over the set of f + sum_k u_k g_k, (N,).

    By tangent planes at x, which minimises it where x and u are right; by a search of its own where that is not enough,
    and between rows, where that is quicker than a linear programme for each plane.
    """
    total = problem.form
    for k, form in enumerate(forms):
        total = total.plus(form.scaled(u[:, k]))
    whole = Problem(total, problem.feasible_set, problem.unit)
    planes = whole.has_closed_forms or default_solver(whole) is not NEWTON
    bound = whole.bound_at(x, limits) if planes else torch.full_like(value, -torch.inf)
    rest = torch.nonzero(~(relative_gap(value, bound, problem.unit) <= limits.tol)).squeeze(1)
    if rest.numel() > 0 and not limits.late:
        part = whole.select(rest)
        again = default_solver(part).solve(part, Limits(0.1 * limits.tol, None, limits.deadline)).lower_bound
        bound[rest] = torch.maximum(bound[rest], again)
    return bound
