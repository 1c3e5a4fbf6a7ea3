"""Bounds that are far from where the decision is: searched again between bounds that are near.

A lower bound adds what rounding leaves of the slope, times the width of the set: with bounds of 1e9 that nobody meant,
1e-16 times 1e9 and more. The minimum over the set S is that between near bounds where these provably hold it.

Where f has quadratic terms, of curvature at least l > 0 in every direction, the minimum x* of f over S has

    f(x) >= f(x*) + l/2 ||x - x*||^2    for all x in S,

so that a point x of S with a gap g lies within ||x - x*||^2 <= 2 g / l. The minimum over S is that between bounds at
such a distance from x, and a lower bound over what these leave of S is one over S. Distances are square roots of what
widths leave: from 1e100 it takes three such searches, each within the last.

Any other f is searched between bounds of -r and r, r = 1e2, 1e4 and so on, where S has none that are nearer. Let z be
a point of S between them. The segment from z to a point x of S outside leaves them at a point y = z + t (x - z) of S,
0 < t <= 1, and f is convex:

    f(x) >= f(z) + (f(y) - f(z)) / t >= f(z)    where f(y) >= f(z).

So if f is at least f(z) at all points of S with y_i = -r or y_i = r for an i, the others between the bounds, then the
minimum over S is between the bounds. That is a convex problem for each face, solved with a face's inside: y_i from r to
2 r. It fails for functions that fall or stay level in a direction in which S has no near bound.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from soctk.decide.decision import relative_gap
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result
from soctk.decide.solver import FormSolver, Solver, merge
from soctk.sets import Polyhedron, SetAt
from soctk.status import Status

MUCH = 1e3
"""Bounds come nearer where that makes the longest side of the set shorter by this factor."""
LEAST = 1e-3
"""Of 1 + |x|: bounds come no nearer than this, or rounding would put x outside."""
ROOM = 1 + 1e-6
"""Distances are enlarged by rounding's share."""
FIRST, FURTHER, LAST = 1e2, 1e2, 1e16
"""What is tried as r: the first, the next ones' ratio, and the last; widths are `MUCH` times as large."""
INSIDE = 1e-12
"""As a share of what a row adds: points further outside may have gaps that say too little."""


def search_nearby(solver: FormSolver, problem: Problem, limits: Limits, result: Result, rows: np.ndarray) -> None:
    """Solve the instances `rows` again between bounds that are near, where that makes much of a difference.

    Args:
        solver: of forms over polyhedra with right-hand sides of their own.
        problem: the functions and their set.
        limits: how far the solver may go.
        result: what is known; what is found is merged into it.
        rows: indices.
    """
    if rows.size == 0 or limits.late:
        return
    rest = torch.from_numpy(rows).to(result.x.device)
    nearer = _nearer(problem, result, rest)
    if nearer is not None:
        near, index = nearer
        found = solver.solve(near, limits, result.x[index].cpu()).to(result.x.device)
        found.status[found.status == Status.INFEASIBLE] = Status.STALLED  # x is outside by rounding
        merge(result, index, found, limits.tol)
    alone = dataclasses.replace(solver, second=None)  # quick: what it leaves open stays so
    sets, reach = _sets_at(problem), FIRST
    widest = 0.0 if sets is None else float((sets.upper - sets.lower).max())
    while reach <= LAST and 2 * MUCH * reach < widest:
        rest = rest[~(result.relative_gap(rest) <= limits.tol)]
        if rest.numel() == 0 or limits.late:
            return
        _search_between(alone, problem, limits, result, rest, reach)
        reach *= FURTHER


def improve_bounds(solver: FormSolver, problem: Problem, result: Result, x: Tensor, tol: float) -> None:
    """Raise the lower bounds of the instances whose gap exceeds `tol` to what is found between near bounds.

    Args:
        solver: as `search_nearby`'s.
        problem: the functions and their set.
        result: of any method, its points perhaps in other coordinates; it keeps them.
        x: the points, (N, n).
        tol: in the problem's unit.
    """
    gap = relative_gap(result.value, result.lower_bound, problem.unit)
    rows = np.flatnonzero(~(gap <= tol).cpu().numpy())
    if rows.size == 0:
        return
    known = Result.unanswered(x, problem.unit)
    known.value, known.lower_bound = result.value.clone(), result.lower_bound.clone()
    search_nearby(solver, problem, Limits(tol), known, rows)
    result.lower_bound = torch.maximum(result.lower_bound, known.lower_bound)


def _nearer(problem: Problem, result: Result, rows: Tensor) -> tuple[Problem, Tensor] | None:
    """Return those instances of `rows` whose bounds can come nearer, with such bounds, and their indices, if any."""
    part = problem.select(rows).on_processor()
    sets, form = _sets_at(part), part.form
    if sets is None or not form.quadratics:
        return None
    x, gap = result.x[rows].cpu(), (result.value[rows] - result.lower_bound[rows]).cpu()
    distance = ROOM * (2 * gap.clamp(min=0) / form.strong_convexity()).sqrt()
    distance = torch.maximum(distance, LEAST * (1 + x.abs().amax(dim=-1))).unsqueeze(-1)
    lower, upper = torch.maximum(sets.lower, x - distance), torch.minimum(sets.upper, x + distance)
    before, after = ((high - low).amax(dim=-1) for low, high in ((sets.lower, sets.upper), (lower, upper)))
    inside = torch.from_numpy(sets.arrays.excess(x.numpy())[1] <= INSIDE)
    chosen = (inside & torch.isfinite(distance[:, 0]) & (MUCH * after < before)).nonzero().flatten()
    if chosen.numel() == 0:
        return None
    near = dataclasses.replace(sets.select(chosen), lower=lower[chosen], upper=upper[chosen])
    unit = None if part.unit is None else part.unit[chosen]
    return Problem(form.select(chosen), near, unit), rows[chosen.to(rows.device)]


def _search_between(
    solver: Solver, problem: Problem, limits: Limits, result: Result, rows: Tensor, reach: float
) -> None:
    """Solve instances between bounds of -reach and reach, and merge what is found: its bounds where they hold for S."""
    part = problem.select(rows).on_processor()
    sets = _sets_at(part)
    assert sets is not None
    lo, hi = (end.expand(part.size, -1) for end in sets.box)
    far = (sets.upper - sets.lower).amax(dim=-1) > 2 * MUCH * reach
    new = torch.maximum(-lo, hi).amax(dim=-1) > (reach / FURTHER if reach > FIRST else -torch.inf)
    chosen = (far & new & ((lo <= reach) & (hi >= -reach)).all(dim=-1)).nonzero().flatten()
    if chosen.numel() == 0:
        return
    part, sets, lo, hi = part.select(chosen), sets.select(chosen), lo[chosen], hi[chosen]
    near = dataclasses.replace(sets, lower=lo.clamp(min=-reach), upper=hi.clamp(max=reach))
    found = solver.solve(Problem(part.form, near, part.unit), limits)
    inside = torch.from_numpy(sets.arrays.excess(found.x.numpy())[1] <= INSIDE)
    held = inside & torch.from_numpy(found.status == Status.OPTIMAL)
    index = held.nonzero().flatten()
    held[index] = _above_on_faces(solver, part.select(index), limits, found.value[index], reach)
    found.value[~inside], found.lower_bound[~held] = torch.inf, -torch.inf
    found.status[(found.status != Status.TIME_LIMIT) & ~held.numpy()] = Status.STALLED
    merge(result, rows[chosen.to(rows.device)], found.to(result.x.device), limits.tol)


def _above_on_faces(solver: Solver, problem: Problem, limits: Limits, value: Tensor, reach: float) -> Tensor:
    """Return which functions are proved to be above a value on all faces of the bounds -reach and reach, bool (N,)."""
    sets = _sets_at(problem)
    assert sets is not None
    lo, hi = (end.expand(problem.size, -1) for end in sets.box)
    above = torch.ones(problem.size, dtype=torch.bool)
    faces = (torch.stack([-lo, hi], dim=-1) > reach).nonzero()
    for function, entry, side in (some.unbind(dim=1) for some in faces.split(solver.at_once(problem))):
        rest = above[function]
        function, entry, side = function[rest], entry[rest], side[rest]
        if function.numel() == 0:
            continue
        if limits.late:
            above[function] = False
            continue
        lower, upper = (end[function].clamp(-reach, reach) for end in (lo, hi))
        beyond, here = 2 * reach * (2 * side - 1).to(lo.dtype), torch.arange(len(function))
        lower[here, entry] = torch.where(side == 1, reach, torch.maximum(lo[function, entry], beyond))
        upper[here, entry] = torch.where(side == 1, torch.minimum(hi[function, entry], beyond), -reach)
        slabs = dataclasses.replace(sets.select(function), lower=lower, upper=upper)
        found = solver.solve(Problem(problem.form.select(function), slabs), limits)
        least = value[function] + limits.tol * value[function].abs().clamp(min=1)  # z is in S to `INSIDE` alone
        proved = (found.lower_bound >= least) | torch.from_numpy(found.status == Status.INFEASIBLE)
        above[function[~proved]] = False
    return above


def _sets_at(problem: Problem) -> SetAt | None:
    """Return the sets of a problem with right-hand sides of their own; None of those that have no rows."""
    given = problem.feasible_set
    if isinstance(given, SetAt):
        return given
    return given.at() if isinstance(given, Polyhedron) else None
