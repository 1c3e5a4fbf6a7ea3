"""Bounds that are far from where the decision is: searched again between bounds that are near.

A lower bound adds what rounding leaves of the slope, times the width of the set: with bounds of 1e9 that nobody meant,
1e-16 times 1e9 and more. Where f has quadratic terms, of curvature at least l > 0 in every direction, the minimum x* of
f over the set S has

    f(x) >= f(x*) + l/2 ||x - x*||^2    for all x in S,

so that a point x of S with a gap g lies within ||x - x*||^2 <= 2 g / l. The minimum over S is that between bounds at
such a distance from x, and a lower bound over what these leave of S is one over S. Distances are square roots of what
widths leave: from 1e100 it takes three such searches, each within the last.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result
from soctk.decide.solver import Solver, merge
from soctk.sets import Polyhedron, SetAt
from soctk.status import Status

MUCH = 1e3
"""Bounds come nearer where that makes the longest side of the set shorter by this factor."""
LEAST = 1e-3
"""Of 1 + |x|: bounds come no nearer than this, or rounding would put x outside."""
ROOM = 1 + 1e-6
"""Distances are enlarged by rounding's share."""
INSIDE = 1e-12
"""As a share of what a row adds: points further outside may have gaps that say too little."""


def search_nearby(solver: Solver, problem: Problem, limits: Limits, result: Result, rows: np.ndarray) -> None:
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
    nearer = _nearer(problem, result, torch.from_numpy(rows).to(result.x.device))
    if nearer is None:
        return
    near, index = nearer
    found = solver.solve(near, limits, result.x[index].cpu()).to(result.x.device)
    found.status[found.status == Status.INFEASIBLE] = Status.STALLED  # x is outside by rounding
    merge(result, index, found, limits.tol)


def _nearer(problem: Problem, result: Result, rows: Tensor) -> tuple[Problem, Tensor] | None:
    """Return those instances of `rows` whose bounds can come nearer, with such bounds, and their indices, if any."""
    part = problem.select(rows).on_processor()
    given, form = part.feasible_set, part.form
    if not isinstance(given, SetAt | Polyhedron) or not form.quadratics:
        return None
    sets = given if isinstance(given, SetAt) else given.at()
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
