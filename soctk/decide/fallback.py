"""A point for decisions whose search ended before it had one: where it began, or the centre of the set, if it is in it.

Of one set for all contexts the centre is known. Over sets of their own it is that of the set without changes, which
today's right-hand sides may exclude; where they do, no point is known and x is NaN.

Over polyhedra the tangent plane there, least over the bounds of x alone, costs no search and makes the gap finite.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from soctk.checks import as_array
from soctk.decide.polyhedral import ROUNDING, bound_by_rows
from soctk.decide.problem import Problem
from soctk.decide.result import Result
from soctk.sets import SetAt
from soctk.status import Status

NO_POINT = (Status.INFEASIBLE, Status.UNBOUNDED, Status.FAILED)
"""How searches end that have no point to give."""


def put_points(result: Result, problem: Problem, start: Tensor | None) -> None:
    """Put starts (N, n), or centres, in the place of points that were not found, and a bound where none was."""
    missing = ~np.isfinite(as_array(result.value))
    if not missing.any():
        return
    missing &= ~np.isin(result.status, NO_POINT)
    index, sets = torch.from_numpy(np.flatnonzero(missing)), problem.feasible_set
    if isinstance(sets, SetAt):
        x = sets.base.center(problem.dtype, problem.device).expand(problem.size, -1) if start is None else start
        x = x[index]
        inside = sets.select(index).arrays.excess(as_array(x))[1] <= ROUNDING
        index, x = index[torch.from_numpy(inside)], x[torch.from_numpy(inside)]
    else:
        x = (problem.center if start is None else start)[index]
    if index.numel() == 0:
        return
    result.x[index] = x.to(result.x)
    part = problem.select(index.to(x.device))
    result.value[index] = part.evaluate(x.unsqueeze(1)).squeeze(-1).to(result.value)
    _put_bounds(result, part.by_rows(), index, x)


def _put_bounds(result: Result, part: Problem, index: Tensor, x: Tensor) -> None:
    """Put the bounds by tangent planes at points (M, n) in the place of -inf, for the instances `index`, (M,)."""
    if not isinstance(part.feasible_set, SetAt) or not part.has_form:
        return
    none = torch.nonzero(result.lower_bound[index].cpu() == -torch.inf).squeeze(1)
    if none.numel() == 0:
        return
    part, index, points = part.on_processor().select(none), index[none], x[none].cpu().unsqueeze(1)
    zero = np.zeros((index.numel(), sum(side.shape[1] for side in part.feasible_set.arrays.sides[2:])))
    bound, rows = bound_by_rows(part.form, part.feasible_set, part.form.subgradients(points), zero)
    result.lower_bound[index] = bound.to(result.lower_bound)
    if result.rows is not None:
        result.rows.put(index.numpy(), rows)
