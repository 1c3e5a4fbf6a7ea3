"""The compiled smoothing Newton method behind the interface of `soctk.decide.newton`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from soctk.decide.compiled.arrays import RUNNING
from soctk.decide.compiled.first_use import method_for
from soctk.decide.compiled.form import Packed, pack, substituted
from soctk.decide.decision import Status
from soctk.decide.result import Final, Result
from soctk.decide.rules import WARM_SHARE, share_of_centre
from soctk.forms.conic_form import ConicForm
from soctk.forms.rounding import rounding
from soctk.sets import FeasibleSet
from soctk.sets.batches import joined, whole
from soctk.simd.lanes import WIDTH, aligned_zeros
from soctk.terms.kernel import EPS

WORK_BETWEEN_CHECKS = 2e8
"""Products of a compiled call, about 50 ms, more in lanes: time limits and Ctrl-C are looked at between calls."""
USUAL_STEPS = 15
TO_THE_END = 2**40
FEWEST_IN_LANES = 32
"""Instances for which code for several in SIMD lanes is worth compiling: as long again as the code for one."""
MOST_IN_LANES = 2**22
"""Numbers in work for all lanes: 32 megabytes, 300 variables in sixteen. There they take half of the time still."""
OUTCOMES = np.empty(5, dtype=object)
OUTCOMES[:] = [Status.TIME_LIMIT, Status.OPTIMAL, Status.STALLED, Status.ITERATION_LIMIT, Status.INFEASIBLE]
"""What an instance's `outcome` says; one that is still running has met the time limit."""


@dataclass(frozen=True, eq=False)
class Region:
    """A set as the compiled method takes it: {lo <= x <= hi, sum(x) = total, R_lo <= R x <= R_hi}.

    Attributes:
        lo: (1 or N, n).
        hi: (1 or N, n), all finite, or without constraints none of them.
        total: None without a sum; beside constraints there is none.
        R: (m, n), m may be 0.
        R_lo: (1 or N, m), -inf where there is no such side.
        R_hi: (1 or N, m), +inf where there is none.
        largest: |x_i| at most, (n,).
        most: |x|_1 at most.
        start: (1 or N, n), strictly between the bounds, its sum the total.
    """

    lo: np.ndarray
    hi: np.ndarray
    total: float | None
    R: np.ndarray
    R_lo: np.ndarray
    R_hi: np.ndarray
    largest: np.ndarray
    most: float
    start: np.ndarray

    @classmethod
    def of(cls, feasible_set: FeasibleSet) -> Region:
        """Return a set of bounds and at most a sum, to begin at its centre."""
        rows, (largest, most) = feasible_set.rows(), feasible_set.reach
        assert rows is not None
        assert rows.at_most_a_sum
        lo, hi = rows.lower.numpy()[None], rows.upper.numpy()[None]
        none = np.zeros((1, 0))
        center = feasible_set.center().numpy()[None]
        return cls(lo, hi, rows.total, np.zeros((0, lo.shape[1])), none, none, largest.numpy(), most, center)

    @property
    def has_hi(self) -> bool:
        """Whether there are upper bounds."""
        return math.isfinite(self.hi[0, 0])


def solve_compiled(
    form: ConicForm,
    region: Region,
    *,
    tol: float,
    max_iter: int,
    deadline: float = float("inf"),
    start: np.ndarray | None = None,
    keep_final: bool = False,
) -> Result:
    """Minimise every function of `form` over a region: arguments as `solve_newton`'s.

    Computed in float64, whatever the form's precision.
    """
    packed = pack(form, keep_final=keep_final)
    if len(region.R) > 0:
        n = packed.layout.sizes["n"]
        packed = substituted(packed, np.eye(n), np.zeros((1, n)), len(region.R))
    state = _solve(packed, region, tol, max_iter, deadline, start, keep_final)
    result = _result(packed, state)
    if keep_final:
        result.final = _final(form, packed, state, region.has_hi)
    return result


def solve_packed(
    packed: Packed,
    region: Region,
    *,
    tol: float,
    max_iter: int,
    deadline: float = float("inf"),
    start: np.ndarray | None = None,
) -> Result:
    """Minimise functions that are packed already: arguments as `solve_newton`'s."""
    return _result(packed, _solve(packed, region, tol, max_iter, deadline, start))


def prove(packed: Packed, *arrays: Any) -> None:
    """Fill points, values and bounds over polyhedra (`soctk.decide.compiled.proof`), N functions' in float64.

    Args:
        packed: the functions.
        arrays: what the compiled function takes from the matrices of the sets on.
    """
    common, memory = of_proof(packed)
    functions = packed.layout.numbers, packed.shared, common, packed.data, memory
    method_for(packed.kinds).prove(*functions, *arrays)


def of_proof(packed: Packed) -> tuple[np.ndarray, np.ndarray]:
    """Return `common` and `memory` (`soctk.decide.compiled.arrays`) for proofs."""
    sizes, at = packed.layout.sizes, packed.layout.common
    common = np.zeros(sizes["common_size"])
    common[at.has_hi], common[at.rounding] = 1.0, rounding(sizes["rows"], sizes["n"], EPS)
    return common, np.zeros(sizes["memory_size"])


def _solve(
    packed: Packed,
    region: Region,
    tol: float,
    max_iter: int,
    deadline: float,
    start: np.ndarray | None = None,
    keep_final: bool = False,
) -> np.ndarray:
    """Return the state of all instances when they are finished or the deadline has passed."""
    common, sides, state = arguments(packed, region, tol, max_iter, keep_final)
    if start is not None:
        state = _from_start(packed, region, start, common, sides, state)
    _iterate(packed, common, sides, state, deadline)
    return state


def _from_start(
    packed: Packed, region: Region, start: np.ndarray, common: np.ndarray, sides: np.ndarray, state: np.ndarray
) -> np.ndarray:
    """Return the state of instances that begin at feasible points (N, n), moved to the interior, or have begun there.

    How far they are moved follows from values and bounds before the first step, there and at the centre
    (`rules.share_of_centre`).
    """
    at, least, size, center = packed.layout.state, WARM_SHARE[0], len(start), region.start
    twice = [part if len(part) == 1 else np.concatenate([part, part]) for part in (packed.shared, sides)]
    both = replace(packed, shared=twice[0], data=np.concatenate([packed.data, packed.data]))
    state = np.concatenate([_fresh(packed, (1 - least) * start + least * center), state])
    method, arrays, _ = _method(both, common, twice[1], state)
    method(*arrays, 0, 2 * size, 0)
    near, middle = state[:size], state[size:]
    bound = np.maximum(near[:, at.best_bound], middle[:, at.best_bound])
    share = share_of_centre(near[:, at.best_value] - bound, middle[:, at.best_value] - bound)
    further = share > least
    share, center = share[further, None], np.broadcast_to(center, start.shape)[further]
    near[further] = _fresh(packed, (1 - share) * start[further] + share * center)
    return near


def arguments(
    packed: Packed, region: Region, tol: float, max_iter: int, keep_final: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `common`, `sides` and `state` (`soctk.decide.compiled.arrays`) before the first step."""
    at = packed.layout.common
    common = _common(packed, region.R).copy()
    common[at.has_hi], common[at.has_sum] = region.has_hi, region.total is not None
    common[at.total] = region.total or 0.0
    common[at.largest], common[at.most] = region.largest, region.most
    common[at.tol], common[at.max_iter], common[at.keep_final] = tol, max_iter, keep_final
    sides = joined(region.lo, region.hi, region.R_lo, region.R_hi)
    return common, sides, _fresh(packed, np.broadcast_to(region.start, (packed.data.shape[0], region.start.shape[1])))


def _fresh(packed: Packed, start: np.ndarray) -> np.ndarray:
    """Return the state of instances that begin at (N, n)."""
    state, at = np.zeros((len(start), packed.layout.sizes["state_size"])), packed.layout.state
    state[:, at.x] = state[:, at.best_x] = start
    state[:, at.best_value], state[:, at.best_bound] = np.inf, -np.inf
    return state


def _common(packed: Packed, R: np.ndarray) -> np.ndarray:
    """Return what of the vector `common` only the functions' matrices and R decide; kept, not to be changed."""
    for matrix, common in packed.common:
        if matrix is R:
            return common
    schedule, sizes, at = packed.schedule, packed.layout.sizes, packed.layout.common
    common = np.zeros(sizes["common_size"])
    if len(R) > 0:
        common[at.R], common[at.R_transposed] = R.ravel(), R.T.ravel()
    common[at.rounding] = rounding(sizes["rows"], sizes["n"], EPS)
    common[at.first_share], common[at.last_share] = schedule.first_share, schedule.last_share
    common[at.rules] = [*schedule.rules[0], *schedule.rules[1]]
    packed.common[:] = [(R, common)]
    return common


def _iterate(packed: Packed, common: np.ndarray, sides: np.ndarray, state: np.ndarray, deadline: float) -> None:
    """Advance all instances, some at a time, until they are finished or the deadline has passed."""
    size, outcome = state.shape[0], state[:, packed.layout.state.outcome]
    method, arrays, several = _method(packed, common, sides, state)
    piece, steps = between_checks(packed, WIDTH // 2 if several else 1)
    if several:
        piece = -(-piece // WIDTH) * WIDTH
    if size > 0 and deadline < float("inf"):
        method(*arrays, 0, size, 0)  # so that every instance has an answer
    for first in range(0, size, piece):
        last = min(first + piece, size)
        while True:
            if time.perf_counter() > deadline:
                return
            method(*arrays, first, last, steps)
            if steps == TO_THE_END or not (outcome[first:last] == RUNNING).any():
                break


def _method(packed: Packed, common: np.ndarray, sides: np.ndarray, state: np.ndarray) -> tuple[Any, tuple, bool]:
    """Return the compiled method, its arrays and whether it takes several instances at a time."""
    method = method_for(packed.kinds)
    method.ready(several=False, wait=True)
    scratch = memory = np.zeros(packed.layout.sizes["memory_size"])
    several = _in_lanes(packed) and method.ready(several=True)
    if several:
        memory = aligned_zeros(scratch.size)
    places = np.zeros(WIDTH, dtype=np.int64)
    arrays = (packed.layout.numbers, packed.shared, common, sides, packed.data, state, scratch, memory, places)
    return method, arrays, several


def between_checks(packed: Packed, at_once: int = 1) -> tuple[int, int]:
    """Return how many instances, and how many steps of each, a compiled call is for, so many of them in one's time."""
    sizes = packed.layout.sizes
    each = sizes["n"] ** 2 * (sizes["n"] + sizes["rows"] + sizes["constraints"] + 10)
    work = WORK_BETWEEN_CHECKS * at_once
    piece = max(1, int(work / (USUAL_STEPS * each)))
    return piece, TO_THE_END if piece > 1 else max(1, int(work / each))


def _in_lanes(packed: Packed) -> bool:
    """Whether several instances are to be treated at a time; those with matrices of their own cannot be."""
    fits = packed.layout.sizes["memory_size"] * WIDTH <= MOST_IN_LANES
    return fits and packed.data.shape[0] >= FEWEST_IN_LANES and packed.shared.shape[0] == 1


def _result(packed: Packed, state: np.ndarray) -> Result:
    at = packed.layout.state
    kept = {}
    sizes = packed.layout.sizes
    if sizes["kept"] > 0 or sizes["constraints"] > 0 or sizes["rows"] == 0:  # without terms there is nothing to keep
        kept = {"multipliers": whole(state[:, at.best_multiplier]), "passes": whole(state[:, at.best_cache])}
    return Result(
        x=torch.from_numpy(state[:, at.best_x].copy()),
        value=torch.from_numpy(state[:, at.best_value].copy()),
        lower_bound=torch.from_numpy(state[:, at.best_bound].copy()),
        iterations=torch.from_numpy(state[:, at.iterations].astype(np.int64)),
        first_gap=torch.from_numpy(whole(state[:, at.first_gap])),
        status=OUTCOMES[state[:, at.outcome].astype(np.int64)],
        **kept,
    )


def _final(form: ConicForm, packed: Packed, state: np.ndarray, has_hi: bool) -> Final:
    """Return where the iterations ended, the dual iterates as each term keeps them."""
    tensor, at = torch.from_numpy(state), packed.layout.state
    x, s_lo, s_hi, lag = (tensor[:, part] for part in (at.x, at.s_lo, at.s_hi, at.balanced))
    rows = lag.unsqueeze(1).split([term.map.rows for term in form.terms], dim=-1)
    lags = [term.unpack_lag(part) for term, part in zip(form.terms, rows, strict=True)]
    slacks = [tensor[:, part] for part in (at.t, at.z_lo, at.z_hi)] if packed.layout.sizes["constraints"] else []
    return Final(x, tensor[:, at.mu : at.mu + 1], s_lo, s_hi if has_hi else None, lags, *slacks)
