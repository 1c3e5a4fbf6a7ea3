"""Decisions whose bounds come from a cone program's optimal value."""

from __future__ import annotations

import time

import numpy as np
from torch import Tensor

from soctk import Decision
from soctk.decide.result import Result, repeated
from soctk.status import Status


def decision_of(
    x: Tensor,
    value: Tensor,
    bound: Tensor,
    violation: Tensor,
    *,
    error: float,
    tol: float,
    batch: tuple[int, ...],
    started: float,
) -> Decision:
    """Return a decision, "optimal" where value and bound are within `tol`, "inaccurate" elsewhere.

    Args:
        x: (N, n).
        value: (N,), its true values.
        bound: (N,), optimal values of relaxations as the solver gives them.
        violation: (N,).
        error: by how much, relative to it, a bound is lowered for what the solver leaves.
        tol: the relative gap.
        batch: the contexts' batch shape, of N instances.
        started: the `time.perf_counter()` value at the call.
    """
    result = Result.unanswered(x)
    result.value, result.status = value, repeated(Status.INACCURATE, len(x))
    result.lower_bound = bound - error * bound.abs().clamp(min=1.0)
    result.judge(tol)
    return Decision(
        x=x.reshape(*batch, x.shape[1]),
        value=value.reshape(batch),
        lower_bound=result.lower_bound.reshape(batch),
        status=result.status.reshape(batch),
        iterations=result.iterations.reshape(batch),
        seconds=time.perf_counter() - started,
        scale=None,
        solver=np.full(batch, "cone program", dtype=object),
        violation=violation.reshape(batch),
    )
