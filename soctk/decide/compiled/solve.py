"""The compiled smoothing Newton method behind the interface of `soctk.decide.newton`."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from soctk.decide.compiled.arrays import RUNNING
from soctk.decide.compiled.first_use import method_for
from soctk.decide.compiled.form import Packed, pack
from soctk.decide.decision import Status
from soctk.decide.reduction import newton_rows
from soctk.decide.result import Final, Result
from soctk.forms.conic_form import ConicForm
from soctk.forms.rounding import rounding
from soctk.sets import FeasibleSet
from soctk.simd.lanes import WIDTH, aligned_zeros
from soctk.terms import Term
from soctk.terms.kernel import EPS

WORK_BETWEEN_CHECKS = 2e8
"""Products of a compiled call, about 50 ms, more in lanes: time limits and Ctrl-C are looked at between calls."""
USUAL_STEPS = 15
FEWEST_IN_LANES = 32
"""Instances for which code for several in SIMD lanes is worth compiling: as long again as the code for one."""
MOST_IN_LANES = 2**22
"""Numbers in work for all lanes: 32 megabytes, 300 variables in sixteen. There they take half of the time still."""
MOST_MEANWHILE = 4096
"""Instances that PyTorch decides sooner than the method is compiled."""
_OUTCOMES = np.empty(4, dtype=object)
_OUTCOMES[:] = [Status.TIME_LIMIT, Status.OPTIMAL, Status.STALLED, Status.ITERATION_LIMIT]


def is_ready(kinds: tuple[type[Term], ...], size: int) -> bool:
    """Whether compiled code decides for `size` forms of some kinds of terms now; else PyTorch, while it is compiled."""
    return method_for(kinds).ready(several=False, wait=size > MOST_MEANWHILE)


def solve_compiled(
    form: ConicForm,
    feasible_set: FeasibleSet,
    *,
    tol: float,
    max_iter: int,
    deadline: float = float("inf"),
    start: Tensor | None = None,
    keep_final: bool = False,
) -> Result:
    """Minimise every function of `form`, `start` strictly inside the bounds: arguments as `solve_newton`'s.

    Computed in float64, whatever the form's precision.
    """
    packed = pack(form, keep_final=keep_final)
    points = None if start is None else start.numpy()
    state = _solve(packed, feasible_set, tol, max_iter, deadline, points)
    result = _result(packed, state)
    if keep_final:
        has_hi = bool(torch.isfinite(newton_rows(feasible_set).upper).all())
        result.final = _final(form, packed, state, has_hi)
    return result


def solve_packed(
    packed: Packed, feasible_set: FeasibleSet, *, tol: float, max_iter: int, deadline: float = float("inf")
) -> Result:
    """Minimise functions that are packed already: arguments as `solve_newton`'s."""
    return _result(packed, _solve(packed, feasible_set, tol, max_iter, deadline, None))


def _solve(
    packed: Packed,
    feasible_set: FeasibleSet,
    tol: float,
    max_iter: int,
    deadline: float,
    start: np.ndarray | None,
) -> np.ndarray:
    """Return the state of all instances when they are finished or the deadline has passed."""
    schedule, rows = packed.schedule, newton_rows(feasible_set)
    lo, hi, total = rows.lower.numpy(), rows.upper.numpy(), rows.total
    sizes, at = packed.layout.sizes, packed.layout.common
    common = np.zeros(sizes["common_size"])
    common[at.lo], common[at.hi], common[at.has_hi] = lo, hi, np.isfinite(hi).all()
    common[at.total], common[at.has_sum] = total or 0.0, total is not None
    common[at.largest], common[at.most] = feasible_set.reach[0].numpy(), feasible_set.reach[1]
    common[at.rounding] = rounding(sizes["rows"], sizes["n"], EPS)
    common[at.tol], common[at.max_iter], common[at.first_share] = tol, max_iter, schedule.first_share
    common[at.last_share], common[at.rules] = schedule.last_share, np.ravel(schedule.rules)
    state, at = np.zeros((packed.data.shape[0], sizes["state_size"])), packed.layout.state
    state[:, at.x] = state[:, at.best_x] = feasible_set.center().numpy() if start is None else start
    state[:, at.best_value], state[:, at.best_bound] = np.inf, -np.inf
    _iterate(packed, common, state, deadline)
    return state


def _iterate(packed: Packed, common: np.ndarray, state: np.ndarray, deadline: float) -> None:
    """Advance all instances, some at a time, until they are finished or the deadline has passed."""
    size, outcome, sizes = state.shape[0], state[:, packed.layout.state.outcome], packed.layout.sizes
    each = sizes["n"] ** 2 * (sizes["n"] + sizes["rows"] + 10)
    method = method_for(packed.kinds)
    method.ready(several=False, wait=True)
    several = _in_lanes(packed) and method.ready(several=True)
    work = WORK_BETWEEN_CHECKS * (WIDTH // 2 if several else 1)
    piece = max(1, int(work / (USUAL_STEPS * each)))
    steps = 2**40 if piece > 1 else max(1, int(work / each))
    scratch = memory = np.zeros(sizes["memory_size"])
    if several:
        memory, piece = aligned_zeros(scratch.size), -(-piece // WIDTH) * WIDTH
    places = np.zeros(WIDTH, dtype=np.int64)
    arrays = packed.layout.numbers, packed.shared, common, packed.data, state, scratch, memory, places
    if size > 0 and deadline < float("inf"):
        method(*arrays, 0, size, 0)  # so that every instance has an answer
    for first in range(0, size, piece):
        last = min(first + piece, size)
        while (outcome[first:last] == RUNNING).any():
            if time.perf_counter() > deadline:
                return
            method(*arrays, first, last, steps)


def _in_lanes(packed: Packed) -> bool:
    """Whether several instances are to be treated at a time; those with matrices of their own cannot be."""
    fits = packed.layout.sizes["memory_size"] * WIDTH <= MOST_IN_LANES
    return fits and packed.data.shape[0] >= FEWEST_IN_LANES and packed.shared.shape[0] == 1


def _result(packed: Packed, state: np.ndarray) -> Result:
    at = packed.layout.state
    return Result(
        x=torch.from_numpy(state[:, at.best_x].copy()),
        value=torch.from_numpy(state[:, at.best_value].copy()),
        lower_bound=torch.from_numpy(state[:, at.best_bound].copy()),
        iterations=torch.from_numpy(state[:, at.iterations].astype(np.int64)),
        first_gap=torch.from_numpy(state[:, at.first_gap].copy()),
        status=_OUTCOMES[state[:, at.outcome].astype(np.int64)],
    )


def _final(form: ConicForm, packed: Packed, state: np.ndarray, has_hi: bool) -> Final:
    """Return where the iterations ended, the lagged duals as each term keeps them."""
    tensor, at = torch.from_numpy(state), packed.layout.state
    x, s_lo, s_hi, lag = (tensor[:, part] for part in (at.x, at.s_lo, at.s_hi, at.lag))
    rows = lag.unsqueeze(1).split([term.map.rows for term in form.terms], dim=-1)
    lags = [term.unpack_lag(part) for term, part in zip(form.terms, rows, strict=True)]
    return Final(x, tensor[:, at.mu : at.mu + 1], s_lo, s_hi if has_hi else None, lags)
