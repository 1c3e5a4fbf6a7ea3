"""The unit of the gap where f hardly varies over the set: measured, not assumed.

Gaps are relative to max(1, |value|) unless a unit is given. Where f varies over the set by much less than that, every
point has a small gap and is optimal as soon as it is looked at. The range of f is therefore measured: by the gap of its
linearisation where a solver begins, over polyhedra, of whose rows that knows nothing, by its values inside and along
two chords (`soctk.decide.chords`); and where that is small, by its values at the centre and at two vertices. Where a
thousand times the range is less than max(1, |value|), that is the unit: a gap of 1e-6 is 0.1 % of the range. It is
never so small that `tol` of it would be less than rounding.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from soctk.checks import as_array, to_numpy
from soctk.decide.chords import chord_ends, narrow
from soctk.decide.decision import ROUNDING, relative_gap
from soctk.decide.exact import magnitude
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result
from soctk.decide.solver import Solver, merge
from soctk.forms.conic_form import ConicForm
from soctk.forms.rounding import rounding
from soctk.sets import FeasibleSet, SetAt
from soctk.status import Status

SMALL_RANGE = 100.0
"""A function that varies by less than max(1, |value|) divided by this is rescaled before it is differentiated."""
LARGEST_SHARE = 1000.0
"""The largest unit that is not given, as a multiple of the range."""
RESOLVED = {torch.float64: 1e-13, torch.float32: 1e-5}
"""What values without a conic form are taken to be off by, as a share of themselves: sums of a few hundred products."""
ROUNDED = 8.0
"""Bounds add numbers that are larger over the set than at the point, and the value is off as well."""
SMALLEST_UNIT = {torch.float64: 1e-100, torch.float32: 1e-30}
"""A function that varies by less is as good as constant."""


def solve_in_range(
    solver: Solver,
    problem: Problem,
    limits: Limits,
    start: Tensor | None,
    result: Result,
    dtype: torch.dtype | None = None,
) -> None:
    """Set the unit where f hardly varies, and solve again the instances whose gap is not small in it.

    After the deadline these are said to have run into it. `dtype` is what the answer is to be rounded to.
    """
    if problem.unit is not None:
        return
    known, started = (result.first_gap, result.seen), start is not None
    result.unit = unit_in_range(problem, result.x, result.value, limits, *known, started=started, dtype=dtype)
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
    seen: Tensor | None = None,
    *,
    started: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    """Return max(1, |value|), and where f varies by a thousandth of it or less a thousand times that, (N,).

    None where no f varies so little.

    Args:
        problem: without a unit.
        x: points (N, n), about where f is least.
        value: of them, (N,).
        limits: after their deadline the set is not asked for vertices, which may take it long; chords and gaps will
            have to do.
        first_gap: `problem.first_gap` where a solver began, (N,), inf where it did not; at the centre by default.
        seen: `Result.seen`.
        started: it began where it was told to, which may have been the minimum.
        dtype: that values and bounds are to be rounded to; theirs by default.
    """
    varied, inside = _varied(problem, value, first_gap, seen)
    hardly = LARGEST_SHARE * as_array(varied) < np.maximum(np.abs(as_array(value)), 1.0)
    if not hardly.any():  # nearly always
        return None
    index = torch.from_numpy(np.flatnonzero(hardly)).to(value.device)
    usual, part, x = value.abs().clamp(min=1.0), problem.select(index), x[index]
    known, found = inside[index], varied.to(value)[index]
    found = torch.maximum(found, torch.where(known, _along_chords(part, x), 0.0))
    if not isinstance(part.feasible_set, SetAt):
        still = torch.nonzero(LARGEST_SHARE * found < usual[index]).squeeze(1)
        for some in part.groups(still[:0] if limits.late else still, limits):
            found[some] = torch.maximum(found[some], _range(part.select(some), x[some]))
    else:  # a set of each one's own is not asked for vertices
        unseen = torch.nonzero(~known).squeeze(1)
        if started and unseen.numel() > 0:  # the gap at the start says little
            some = part.select(unseen)
            found[unseen] = torch.maximum(found[unseen], some.first_gap(some.center).to(found))
        found[~known & (found <= ROUNDING[found.dtype] * usual[index])] = torch.inf  # as over a point
    if isinstance(rows := part.by_rows().feasible_set, SetAt):
        found[torch.from_numpy(rows.arrays.single()).to(found.device).expand_as(found)] = torch.inf
    least = resolved(part, x, value[index])
    if dtype == torch.float32:
        least = torch.maximum(least, 2 * torch.finfo(dtype).eps * value[index].abs())
    found[found <= least] = torch.inf  # constant, as far as can be told
    unit = torch.maximum(LARGEST_SHARE * found, least / limits.tol)
    unit = torch.where(unit > SMALLEST_UNIT[dtype or value.dtype], torch.minimum(usual[index], unit), usual[index])
    unit = usual.index_copy(0, index, unit)
    return unit if bool((unit < usual).any()) else None


def _varied(problem: Problem, value: Tensor, first_gap: Tensor | None, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what is known of how much each f varies, (N,), and whether that is from inside of a polyhedron, bool (N,).

    Else it is the gap where the solver began, that at the centre where it did not begin but left a value.
    """
    if seen is not None and np.isfinite(as_array(seen)).all():
        return seen.to(value), torch.ones_like(value, dtype=torch.bool)
    rows = problem.by_rows()
    if seen is None:
        seen = _seen(rows, value) if isinstance(rows.feasible_set, SetAt) else torch.full_like(value, torch.nan)
    inside = seen.isfinite()
    gap = torch.full_like(value, torch.inf) if first_gap is None else first_gap.to(value)
    unknown = torch.nonzero(gap.isinf() & value.isfinite() & ~inside).squeeze(1)
    if unknown.numel() > 0:
        part = rows.select(unknown)
        gap = gap.index_copy(0, unknown, part.first_gap(part.center).to(gap))
    return torch.where(inside, seen.to(gap), gap), inside


def _seen(problem: Problem, value: Tensor) -> Tensor:
    """Return how much f differs between points of these values and one inside each set, (N,); NaN where none is known.

    Args:
        problem: over a polyhedron's rows.
        value: (N,).
    """
    return (problem.evaluate(_inside(problem).unsqueeze(1)).squeeze(1) - value).abs()


def _inside(problem: Problem) -> Tensor:
    """Return a point inside each polyhedron, (N, n), NaN where none is known."""
    assert isinstance(problem.feasible_set, SetAt)
    inside = torch.from_numpy(problem.feasible_set.arrays.inside)
    return inside.to(dtype=problem.dtype, device=problem.device).expand(problem.size, -1)


def _along_chords(problem: Problem, x: Tensor) -> Tensor:
    """Return how much f varies along two chords through points x (N, n) of polyhedra, (N,); 0 where none are known.

    inf where these are points but for rounding.
    """
    sets = problem.by_rows().feasible_set
    if not isinstance(sets, SetAt):
        return x.new_zeros(problem.size)
    sets, points = sets.arrays, to_numpy(x)
    inside = np.broadcast_to(sets.inside, points.shape)
    held = tuple(map(int, np.flatnonzero((sets.lower == sets.upper).all(axis=0))))
    basis, k = sets.base.elimination(held).basis, sets.f.shape[1]
    ends = chord_ends(points, inside, basis, sets.lower, sets.upper, sets.rows.stacked[k:], sets.h)
    every = np.concatenate([points[:, None], inside[:, None], ends], axis=1)
    values = problem.evaluate(torch.from_numpy(every).to(x))
    found = torch.nan_to_num(values.amax(dim=1) - values.amin(dim=1), nan=0.0)
    return found.masked_fill(torch.from_numpy(narrow(every)).to(found.device), torch.inf)


def resolved(problem: Problem, x: Tensor, value: Tensor) -> Tensor:
    """Return what rounding may put between values (N,) at points (N, n) and bounds, (N,)."""
    if not problem.has_form:
        return RESOLVED[value.dtype] * value.abs()
    rows = sum(term.map.rows for term in problem.form.terms)
    return resolved_share(rows, problem.dim, value.dtype) * magnitude_of(problem.form, x, value)


def resolved_share(rows: int, dim: int, dtype: torch.dtype = torch.float64) -> float:
    """Return that as a share of the numbers that a value is a sum of, for a form with K rows in n variables."""
    return ROUNDED * rounding(rows, dim, torch.finfo(dtype).eps)


@torch.no_grad()
def units_of_range(form: ConicForm, feasible_set: FeasibleSet | SetAt, result: Result) -> tuple[Tensor, Tensor] | None:
    """Return s and a, (N,), so that (f - a) / s varies over the set by about 1; None where every f varies enough.

    Tolerances relative to max(1, |value|) then mean something. s is a power of two; 1, and a 0, where f varies enough.

    Args:
        form: detached.
        feasible_set: the set, or one for each function.
        result: what a solver has found.
    """
    problem, value = Problem(form, feasible_set), result.value
    (varied, inside), usual = _varied(problem, value, result.first_gap, result.seen), value.abs().clamp(min=1.0)
    low = SMALL_RANGE * varied < usual
    index = torch.nonzero(inside & low).squeeze(1)
    if index.numel() > 0:
        part = problem.select(index)  # their points are known in other coordinates
        varied[index] = torch.maximum(varied[index], _along_chords(part, _inside(part.by_rows())))
        low = SMALL_RANGE * varied < usual
    if not bool(low.any()):
        return None
    low &= varied > resolved(problem, problem.center, problem.evaluate(problem.center.unsqueeze(1)).squeeze(1))
    if not bool(low.any()):
        return None
    scale = torch.where(low, torch.ldexp(torch.ones_like(varied), torch.frexp(varied).exponent), 1.0)
    return scale, torch.where(low, value, 0.0)


def in_units(form: ConicForm, scale: Tensor, level: Tensor) -> ConicForm:
    """Return (f - level) / scale, differentiable in what the form is."""
    return dataclasses.replace(form, constant=form.constant - level.unsqueeze(-1)).scaled(1 / scale)


def variation(problem: Problem) -> Tensor:
    """Return about how much each function varies over the set of all, (N,); 1 where that is near rounding."""
    assert isinstance(problem.feasible_set, FeasibleSet)
    center = problem.center
    size = problem.evaluate(center.unsqueeze(1)).squeeze(1).abs()
    if isinstance(problem.by_rows().feasible_set, SetAt):
        found = _along_chords(problem, center)
    else:
        found = torch.maximum(problem.first_gap(center), _range(problem, center))
    return torch.where(found.isfinite() & (found > ROUNDING[found.dtype] * size), found, 1.0)


def magnitude_of(form: ConicForm, x: Tensor, value: Tensor) -> Tensor:
    """Return the size of the numbers that the values (N,) of a form at points (N, n) are sums of, (N,)."""
    constant, products = form.constant.squeeze(-1), form.linear.squeeze(1) * x
    return magnitude(constant, products.abs().sum(dim=1), products.sum(dim=1), value)


def _range(problem: Problem, x: Tensor) -> Tensor:
    """Return how much f varies between x (N, n), the centre and two vertices, (N,)."""
    slope = problem.slope_at(problem.center)
    vertices = [problem.feasible_set._linear_minimizer(sign * slope) for sign in (1, -1)]
    values = problem.evaluate(torch.stack([x, problem.center, *vertices], dim=1))
    return values.amax(dim=1) - values.amin(dim=1)
