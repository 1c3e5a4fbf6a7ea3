"""Clarabel's tight optimum: the reference that decisions and bounds are measured with."""

from __future__ import annotations

import warnings

import cvxpy as cp
from tolerances import TIGHT_OPTIONS
from torch import Tensor

from soctk import ConvexSurrogate, FeasibleSet


def clarabel_optimum(model: ConvexSurrogate, feasible_set: FeasibleSet, context: Tensor | None = None) -> float:
    """Return min f over the set from the model's own CVXPY expression, without lift or certificate."""
    x = cp.Variable(model.dim)
    problem = cp.Problem(cp.Minimize(model.to_cvxpy(x, context)), feasible_set.constraints(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 1e-10 is at the edge of what it reaches
        problem.solve(solver="CLARABEL", **TIGHT_OPTIONS)
    assert problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
    return float(problem.value)
