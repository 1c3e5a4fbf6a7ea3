"""Decisions over polyhedra with right-hand sides of their own: elimination, Newton steps, and a proof in the original.

The iterations work in the free coordinates (`soctk.decide.free_coordinates`), with directions l <= R w <= u. What they
find is not believed but turned into the original rows: x, a dual point y of the terms, multipliers nu of E x = f and
z >= 0 of G x <= h. With q the slope v + A'y and w = q + E'nu + G'z every x of the set has

    f(x) >= b0 + sum_j [y_j'd_j - phi_j*(y_j)] - nu'f - z'h + sum_i min(w_i lo_i, w_i hi_i),

and with the zero function in place of f (q = 0) a positive right-hand side proves that the set is empty (Farkas).
Rounding is taken off both. The derivatives of the optimal value are -nu in f, -z in h, w+ in lo and -w- in hi.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from soctk.decide.compiled.form import Packed, substituted
from soctk.decide.free_coordinates import Reduction
from soctk.decide.result import Result, RowMultipliers
from soctk.forms.conic_form import ConicForm
from soctk.sets import SetAt
from soctk.sets.arrays import SetArrays
from soctk.sets.elastic import nearest
from soctk.status import Status
from soctk.terms.base import Dual

RELAXED = 2e-10
"""By how much, relative to it, every end is moved out where there is no interior and the first search fails."""
ROUNDING = 1e-13
"""What rounding may put a point outside of its set by, as such a share."""


def bound_by_rows(form: ConicForm, sets: SetAt, dual: Dual, y: np.ndarray) -> tuple[Tensor, RowMultipliers]:
    """Return lower bounds (N,) of the minima over the sets from any dual point and any multipliers y = (nu, z), z >= 0.

    Args:
        form: the functions.
        sets: flat and detached.
        dual: of the terms.
        y: (N, k + m).
    """
    level, slope = form.minorant(dual, sets)
    found = RowMultipliers.of(sets.arrays, slope.squeeze(1).expand(form.size, -1).numpy(), y)
    return level.squeeze(1) + torch.from_numpy(found.level(sets.arrays)), found


def prove_empty(result: Result, sets: SetAt, rows: np.ndarray, deadline: float = float("inf")) -> None:
    """Say that the sets of the instances `rows` are empty where a linear programme proves it.

    INACCURATE where it does not, TIME_LIMIT where the deadline came before it.
    """
    if rows.size == 0:
        return
    _, moved, nu, z = nearest(sets.select(torch.from_numpy(rows)), deadline)
    y = np.broadcast_to(np.concatenate([nu, z], axis=1), (rows.size, nu.shape[1] + z.shape[1]))
    proved = put_proofs(result, sets.arrays.select(rows), rows, y)
    result.status[rows[~proved]] = Status.INACCURATE
    result.status[rows[~proved & moved.isnan().numpy()]] = Status.TIME_LIMIT


def put_proofs(result: Result, some: SetArrays, rows: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Say that `some` sets, those of the instances `rows`, are empty where multipliers prove it; return where, bool."""
    assert result.rows is not None
    proof = RowMultipliers.of(some, np.zeros((rows.size, some.lower.shape[1])), y)
    proved = (proof.level(some) > 0) | some.crossed()
    result.rows.put(rows[proved], proof.select(proved))
    result.refuse(torch.from_numpy(rows[proved]))
    return proved


def solve_polyhedral(
    packed: Packed | None,
    sets: SetAt,
    *,
    size: int,
    tol: float,
    max_iter: int,
    deadline: float = float("inf"),
    start: Tensor | None = None,
    again: bool = True,
    project: bool = True,
) -> Result:
    """Minimise N functions, each over its own set.

    Args:
        packed: the functions; None where they cannot be packed, so that nothing is found but contradictions.
        sets: flat and detached.
        size: N.
        tol, max_iter, deadline, start: as `solve_newton`'s.
        again: whether to search again, with ends moved out, for what the first search leaves.
        project: whether points that are outside of their sets by more than rounding are projected.
    """
    search = _Search(packed, sets, size, tol, max_iter, deadline)
    rest = search.rest()
    for share in (0.0, RELAXED) if again else (0.0,):
        if packed is None or rest.size == 0:
            break
        if time.perf_counter() > deadline:
            search.result.status[rest] = Status.TIME_LIMIT
            break
        search.solve(rest, share, None if start is None else start.numpy()[rest])
        rest = search.rest()
    if project:
        search.project()
    search.look_inside()
    return search.result


class _Search:
    """Where the search for N decisions stands."""

    def __init__(
        self, packed: Packed | None, sets: SetAt, size: int, tol: float, max_iter: int, deadline: float
    ) -> None:
        self.packed, self.given, self.size, self.tol = packed, sets, size, tol
        self.limits = {"tol": tol, "max_iter": max_iter, "deadline": deadline}
        self.sets = sets.arrays
        self.reduction = Reduction.of(self.sets)
        self.share = np.zeros(size)
        """By how much the points violate their sets (`SetArrays.excess`)."""
        self._result: Result | None = None
        known = self.reduction.contradictions(size)
        if known is not None:
            rows, nu, z = known
            put_proofs(self.result, self.sets.select(rows), rows, np.concatenate([nu, z], axis=1))

    @property
    def result(self) -> Result:
        """What is known; that of the first search, where it is one for all instances."""
        if self._result is None:
            self._result = Result.unanswered(torch.zeros(self.size, self.given.dim, dtype=torch.float64))
            self._result.first_gap = torch.full((self.size,), torch.inf, dtype=torch.float64)
            self._result.rows = RowMultipliers.zero(self.sets, self.size)
        return self._result

    def rest(self) -> np.ndarray:
        """Return the instances that are neither solved nor known to be empty."""
        if self._result is None:
            return np.arange(self.size)
        if self._result.all_optimal:
            return np.zeros(0, dtype=np.int64)
        status = self._result.status
        return np.flatnonzero((status != Status.OPTIMAL) & (status != Status.INFEASIBLE))

    def solve(self, rows: np.ndarray, share: float, start: np.ndarray | None) -> None:
        """Solve the instances `rows`, ends moved out by a share, and put what is proved into the result."""
        assert self.packed is not None
        packed, reduction, sets = self.packed, self.reduction, self.sets
        if rows.size < self.size:
            packed, sets = packed.select(rows), sets.select(rows)
            reduction = Reduction.of(sets)
        found = self._iterate(packed, reduction, start, share)
        empty = found.status == Status.INFEASIBLE
        found, violated = self._certified(packed, reduction, found, empty)
        assert found.rows is not None
        if self._result is None:
            self._result, self.share = found, violated
        else:
            self._merge(rows, found, violated)
        self.result.judge(self.tol)
        if empty.any():
            proved = empty & (found.rows.level(sets) > 0)
            assert self.result.rows is not None
            self.result.rows.put(rows[proved], found.rows.select(proved))
            self.result.refuse(torch.from_numpy(rows[proved]))

    @staticmethod
    def _certified(packed: Packed, reduction: Reduction, found: Result, empty: np.ndarray) -> tuple[Result, np.ndarray]:
        """Return what iterations found as points, values and bounds over the sets as given; the points' violations.

        Where the iterations call a set `empty`, with the multipliers that may prove it in place of a bound's.
        """
        found.status[empty] = Status.STALLED  # unless it is proved
        x, rows, numbers = proved(packed, reduction, found, empty)
        value, bound = torch.from_numpy(numbers[0]), torch.from_numpy(numbers[1])
        answers = torch.from_numpy(x), value, bound, found.iterations, found.status
        return Result(*answers, first_gap=found.first_gap, rows=rows), numbers[3]

    def _merge(self, index: np.ndarray, found: Result, violated: np.ndarray) -> None:
        """Keep, for the instances `index`, whatever point and whatever bound are better."""
        result, rows = self.result, torch.from_numpy(index)
        assert result.rows is not None
        assert found.rows is not None
        assert result.first_gap is not None
        assert found.first_gap is not None
        higher = (found.lower_bound > result.lower_bound[rows]).numpy()
        result.rows.put(index[higher], found.rows.select(higher))
        # A point of the set itself is better than one of the set with its ends moved out, whatever these cost.
        inside = torch.isfinite(result.value[rows]).numpy() & (self.share[index] <= ROUNDING)
        value = torch.where(torch.from_numpy(inside & (violated > ROUNDING)), torch.inf, found.value)
        better = result.improve(rows, found.x, value, found.lower_bound).numpy()
        self.share[index[better]] = violated[better]
        result.status[index] = found.status
        result.iterations[rows] += found.iterations
        result.first_gap[rows] = found.first_gap

    def _iterate(self, packed: Packed, reduction: Reduction, start: np.ndarray | None, share: float) -> Result:
        """Take Newton steps in the free coordinates."""
        from soctk.decide.compiled.solve import solve_packed  # Numba is loaded when it is needed

        e = reduction.elimination
        if e.dim > 0:
            inner = substituted(packed, e.basis, reduction.origin, len(e.R))
            return solve_packed(inner, reduction.region(start, share), **self.limits)
        # one point is left, and what is wanted is a dual point there
        n = self.given.dim
        inner = substituted(packed, np.eye(n), np.zeros((1, n)), 0)
        found = solve_packed(inner, reduction.around_point(), **self.limits)
        found.x = found.x[:, :0]
        return found

    def project(self) -> None:
        """Leave no point that is none of its set: those that violate it by more than rounding are projected.

        Ends were moved out where there is no interior.
        """
        result = self.result
        if result.all_optimal and not (self.share > ROUNDING).any():
            return
        unknown = ~np.isfinite(result.value.numpy())
        if unknown.any():
            result.x.numpy()[unknown] = np.nan  # no point of the set is known

        def value(index: Tensor, x: Tensor) -> Tensor:
            assert self.packed is not None
            return torch.from_numpy(value_of(self.packed.select(index.numpy()), x.numpy()))

        off = np.flatnonzero((self.share > ROUNDING) & ~unknown)
        project_points(value, self.given, result, off)

    def look_inside(self) -> None:
        """Say how much the values differ from those inside the sets."""
        if self.packed is not None:
            known, inside = np.isfinite(self.sets.inside[:, 0]), np.nan_to_num(self.sets.inside)
            value = value_of(self.packed, np.repeat(inside, self.size // len(inside), axis=0))
            self.result.seen = torch.from_numpy(np.abs(np.where(known, value, np.nan) - self.result.value.numpy()))


def proved(
    packed: Packed, reduction: Reduction, found: Result, empty: np.ndarray
) -> tuple[np.ndarray, RowMultipliers, np.ndarray]:
    """Return points x (N, n) of the sets as given, multipliers of their rows, and values, bounds, what these add.

    Last the violations (`SetArrays.excess`), (4, N) in all.

    Args:
        packed: the functions.
        reduction: of the sets.
        found: points, passes and multipliers of the iterations in free coordinates.
        empty: where the multipliers may prove that there is no point, bool (N,).
    """
    from soctk.decide.compiled.solve import prove  # Numba is loaded when it is needed

    assert found.multipliers is not None
    assert found.passes is not None
    e, size, (k, m) = reduction.elimination, len(empty), (side.shape[1] for side in reduction.given[2:])
    n = len(e.basis)
    x, w, y, numbers = np.empty((size, n)), np.empty((size, n)), np.empty((size, k + m)), np.empty((4, size))
    matrices = e.basis, e.R, e.inverse, e.length, reduction.sets.rows.stacked
    ends, given = (reduction.origin, reduction.sides), (*reduction.given, *reduction.box)
    sets, scratch = (matrices, (e.basic, e.above, e.below), ends, given), (np.empty(e.length.size), np.empty(e.dim))
    points = found.x.numpy(), found.passes, found.multipliers
    prove(packed, sets, points, empty, scratch, (x, y, w, numbers))
    return x, RowMultipliers(y[:, :k], y[:, k:], w, numbers[2]), numbers


def value_of(packed: Packed, x: np.ndarray) -> np.ndarray:
    """Return N functions' values at points (N, n), (N,): a proof for a set without rows, of which x is the origin."""
    from soctk.decide.compiled.solve import prove  # Numba is loaded when it is needed

    (size, n), none = x.shape, np.zeros((1, 0))
    matrices = np.zeros((n, 0)), none, none, none[0], np.zeros((0, n))
    places, endless = np.zeros((1, 0), dtype=np.int64), np.full((1, n), np.inf)
    given = -endless, endless, none, none, 0 * x, 0 * x
    sets = matrices, (places[0], places, places), (x, np.zeros((1, 1))), given
    found = np.zeros((size, 0)), np.zeros((size, packed.layout.sizes["cache_size"])), np.zeros((size, 0))
    answers = 0 * x, np.zeros((size, 0)), 0 * x, np.zeros((4, size))
    prove(packed, sets, found, np.zeros(size, dtype=bool), (np.zeros(n), none[0]), answers)
    return answers[-1][0]


def project_points(value: Callable[[Tensor, Tensor], Tensor], sets: SetAt, result: Result, rows: np.ndarray) -> None:
    """Project the points of the instances `rows`; `value` of instances (1,) and points (1, n)."""
    for row in rows.tolist():
        index = torch.tensor([row])
        try:
            x = sets.select(index)._project(result.x[index])
        except (ValueError, RuntimeError):  # empty but for rounding
            continue
        result.x[index], result.value[index] = x, value(index, x)
