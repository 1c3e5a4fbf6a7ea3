"""The unit of the gap where f hardly varies over the set: measured, not assumed.

Gaps are relative to max(1, |value|) unless a unit is given. Where f varies over the set by much less than that, every
point has a small gap and is optimal as soon as it is looked at. The range of f is therefore measured, by the gap
of its linearisation where a solver begins and, where that is small, by its values at the centre and at two vertices;
where a thousand times the range is less than max(1, |value|), that is the unit: a gap of 1e-6 is 0.1 % of the range.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from soctk.checks import as_array
from soctk.decide.decision import ROUNDING, relative_gap
from soctk.decide.exact import magnitude
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result
from soctk.decide.solver import Solver, merge
from soctk.forms.conic_form import ConicForm
from soctk.sets import FeasibleSet, SetAt
from soctk.status import Status

SMALL_RANGE = 100.0
"""A function that varies by less than max(1, |value|) divided by this is rescaled before it is differentiated."""
LARGEST_SHARE = 1000.0
"""The largest unit that is not given, as a multiple of the range."""
BEFORE_THE_CLOCK = 16
"""Ranges are measured for so many functions before the deadline is looked at: 10 to 100 ms by linear programmes."""


def solve_in_range(solver: Solver, problem: Problem, limits: Limits, start: Tensor | None, result: Result) -> None:
    """Set the unit where f hardly varies, and solve again the instances whose gap is not small in it.

    After the deadline these are said to have run into it.
    """
    if problem.unit is not None:
        return
    given = None if result.first_gap is None else torch.as_tensor(result.first_gap)
    result.unit = unit_in_range(problem, result.x, result.value, limits, given, start is not None)
    if result.unit is None:
        return
    gap = relative_gap(result.value, result.lower_bound, result.unit)
    index = torch.nonzero((result.unit < result.value.abs().clamp(min=1.0)) & (gap > limits.tol)).squeeze(1)
    rows = index.cpu().numpy()
    if limits.late:
        result.status[rows[result.status[rows] == Status.OPTIMAL]] = Status.TIME_LIMIT
    elif rows.size > 0:
        part = problem.select(index)
        part.unit = result.unit[index]
        again = solver.solve(part, limits, None if start is None else start[index])
        result.status[rows] = again.status
        merge(result, index, again, limits.tol)


def unit_in_range(
    problem: Problem,
    x: Tensor,
    value: Tensor,
    limits: Limits,
    first_gap: Tensor | None = None,
    started: bool = False,
) -> Tensor | None:
    """Return max(1, |value|), and where f varies by a thousandth of it or less a thousand times that, (N,).

    None where no f varies so little.

    Args:
        problem: without a unit.
        x: points (N, n), about where f is least.
        value: of them, (N,).
        limits: after their deadline the set is not asked for vertices, which may take it long; gaps will have to do.
        first_gap: `problem.first_gap` where a solver began, (N,), inf where it did not; at the centre by default.
        started: it began where it was told to, which may have been the minimum.
    """
    gap = _known(problem, value, first_gap)
    hardly = LARGEST_SHARE * as_array(gap) < np.maximum(np.abs(as_array(value)), 1.0)
    if not hardly.any():
        return None
    index = torch.from_numpy(np.flatnonzero(hardly)).to(value.device)
    usual, found, part, x = value.abs().clamp(min=1.0), gap.to(value)[index], problem.select(index), x[index]
    several = isinstance(part.feasible_set, SetAt)  # over a set of each one's own gaps will have to do
    if several and started:
        found = torch.maximum(found, part.first_gap(part.center).to(found))
    gap, found = found, _beyond_rounding(part, x, value[index], found)
    if not several:
        at_once = part.size if math.isinf(limits.deadline) else BEFORE_THE_CLOCK
        for some in torch.arange(part.size, device=index.device).split(at_once):
            if limits.late:
                break
            found[some] = torch.maximum(gap[some], _range(part.select(some), x[some]))
    return usual.index_copy(0, index, torch.minimum(usual[index], LARGEST_SHARE * found))


def _known(problem: Problem, value: Tensor, first_gap: Tensor | None) -> Tensor:
    """Return the gaps where a solver began, (N,), those at the centre where it did not begin but left a value."""
    if first_gap is None:
        return problem.first_gap(problem.center)
    gap = first_gap.to(value.device)
    unknown = torch.nonzero(gap.isinf() & value.isfinite()).squeeze(1)
    if unknown.numel() == 0:
        return gap
    part = problem.by_rows().select(unknown)
    return gap.index_copy(0, unknown, part.first_gap(part.center).to(gap))


def _beyond_rounding(problem: Problem, x: Tensor, value: Tensor, gap: Tensor) -> Tensor:
    """Return gaps (N,), inf where they are no more than rounding, as over a set that is a single point."""
    size = magnitude_of(problem.form, x, value) if problem.has_form else value.abs()
    beyond = gap > ROUNDING[gap.dtype] * size
    if isinstance(problem.feasible_set, SetAt):
        beyond &= ~torch.from_numpy(problem.feasible_set.arrays.single()).to(gap.device)
    return torch.where(beyond, gap, torch.inf)


@torch.no_grad()
def units_of_range(form: ConicForm, feasible_set: FeasibleSet | SetAt, result: Result) -> tuple[Tensor, Tensor] | None:
    """Return s and a, (N,), so that (f - a) / s varies over the set by about 1; None where every f varies enough.

    Tolerances relative to max(1, |value|) then mean something. s is a power of two; 1, and a 0, where f varies enough.

    Args:
        form: detached.
        feasible_set: the set, or one for each function.
        result: what a solver has found.
    """
    problem = Problem(form, feasible_set)
    gap = problem.first_gap(problem.center) if result.first_gap is None else torch.as_tensor(result.first_gap)
    gap, value = gap.to(result.value), result.value
    low = (SMALL_RANGE * gap < value.abs().clamp(min=1.0)) & (gap > ROUNDING[gap.dtype] * value.abs())
    if not bool(low.any()):
        return None
    scale = torch.where(low, torch.ldexp(torch.ones_like(gap), torch.frexp(gap).exponent), 1.0)
    return scale, torch.where(low, value, 0.0)


def in_units(form: ConicForm, scale: Tensor, level: Tensor) -> ConicForm:
    """Return (f - level) / scale, differentiable in what the form is."""
    return dataclasses.replace(form, constant=form.constant - level.unsqueeze(-1)).scaled(1 / scale)


def variation(problem: Problem) -> Tensor:
    """Return about how much each function varies over the set, (N,); 1 where that is no more than rounding."""
    found = torch.maximum(problem.first_gap(problem.center), _range(problem, problem.center))
    return torch.where(found.isfinite() & (found > 0), found, 1.0)


def magnitude_of(form: ConicForm, x: Tensor, value: Tensor) -> Tensor:
    """Return the size of the numbers that the values (N,) of a form at points (N, n) are sums of, (N,)."""
    constant, products = form.constant.squeeze(-1), form.linear.squeeze(1) * x
    return magnitude(constant, products.abs().sum(dim=1), products.sum(dim=1), value)


def _range(problem: Problem, x: Tensor) -> Tensor:
    """Return how much f varies between x (N, n), the centre and two vertices, (N,); inf where that is rounding."""
    slope = problem.slope_at(problem.center)
    vertices = [problem.feasible_set._linear_minimizer(sign * slope) for sign in (1, -1)]
    values = problem.evaluate(torch.stack([x, problem.center, *vertices], dim=1))
    found = values.amax(dim=1) - values.amin(dim=1)
    return torch.where(found > ROUNDING[found.dtype] * values.abs().amax(dim=1), found, torch.inf)
