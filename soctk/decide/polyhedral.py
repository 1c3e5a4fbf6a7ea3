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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.decide.compiled.form import Packed, kinds_of, substituted, supported
from soctk.decide.decision import relative_gap
from soctk.decide.free_coordinates import Reduction
from soctk.decide.result import Result, RowMultipliers, repeated
from soctk.forms.conic_form import ConicForm
from soctk.sets import SetAt
from soctk.sets.elastic import nearest
from soctk.status import Status
from soctk.terms import Term
from soctk.terms.base import Dual

RELAXED = 2e-10
"""By how much, relative to it, every end is moved out where there is no interior and the first search fails."""
FEASIBLE = 1e-9
"""What a point may violate its set by, as a share of what a row adds (`SetAt.outside`)."""
ROUNDING = 1e-13
"""What rounding may put a point outside of its set by, as such a share."""
MOST_MEANWHILE = 100
"""Instances that an outside solver decides sooner than the method is compiled."""


def bound_by_rows(form: ConicForm, sets: SetAt, dual: Dual, nu: Tensor, z: Tensor) -> tuple[Tensor, RowMultipliers]:
    """Return lower bounds (N,) of the minima over the sets from any dual point and any multipliers, z not negative."""
    level, slope = form.minorant(dual, sets)
    found = RowMultipliers.of(sets, slope.squeeze(1).expand(form.size, -1), nu, z)
    return level.squeeze(1) + found.level, found


def prove_empty(result: Result, sets: SetAt, rows: Tensor) -> None:
    """Say that the sets of the instances `rows` are empty where a linear programme proves it, INACCURATE elsewhere."""
    if rows.numel() == 0:
        return
    _, _, nu, z = nearest(sets.select(rows))
    nu, z = (part.expand(rows.numel(), -1) for part in (nu, z))  # one set may be all contexts'
    proved = put_proofs(result, sets, rows, nu, z)
    result.status[rows[~proved].numpy()] = Status.INACCURATE


def put_proofs(result: Result, sets: SetAt, rows: Tensor, nu: Tensor, z: Tensor) -> Tensor:
    """Say that the sets of the instances `rows` are empty where multipliers prove it; return where, bool."""
    assert result.rows is not None
    some = sets.select(rows)
    proof = RowMultipliers.of(some, torch.zeros(rows.numel(), sets.dim, dtype=torch.float64), nu, z)
    proved = (proof.level > 0) | some.crossed
    result.rows.put(rows[proved], proof.select(proved))
    result.refuse(rows[proved])
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
) -> Result:
    """Minimise N functions, each over its own set.

    Args:
        packed: the functions; None where they cannot be packed, so that nothing is found but contradictions.
        sets: flat and detached.
        size: N.
        tol, max_iter, deadline, start: as `solve_newton`'s.
        again: whether to search again, with ends moved out, for what the first search leaves.
    """
    search = _Search(packed, sets, size, tol, max_iter, deadline)
    rest = search.rest()
    for share in (0.0, RELAXED) if again else (0.0,):
        if packed is None or rest.numel() == 0:
            break
        if time.perf_counter() > deadline:
            search.result.status[rest.numpy()] = Status.TIME_LIMIT
            break
        search.solve(rest, share, None if start is None else start[rest])
        rest = search.rest()
    search.project()
    return search.result


class _Search:
    """Where the search for N decisions stands."""

    def __init__(
        self, packed: Packed | None, sets: SetAt, size: int, tol: float, max_iter: int, deadline: float
    ) -> None:
        self.packed, self.sets, self.size, self.tol = packed, sets, size, tol
        self.limits = {"tol": tol, "max_iter": max_iter, "deadline": deadline}
        self.reduction = Reduction.of(sets)
        zero = torch.zeros(size, dtype=torch.float64)
        self.result = Result.unanswered(zero.new_zeros(size, sets.dim))
        self.result.first_gap = torch.full_like(zero, torch.inf)
        counts = sets.f.shape[-1], sets.h.shape[-1], sets.dim
        self.result.rows = RowMultipliers(*(zero.new_zeros(size, count) for count in counts), zero, zero.clone())
        known = self.reduction.contradictions(size)
        if known is not None:
            put_proofs(self.result, sets, *known)

    def rest(self) -> Tensor:
        """Return the instances that are neither solved nor known to be empty."""
        status = self.result.status
        return torch.from_numpy(np.flatnonzero((status != Status.OPTIMAL) & (status != Status.INFEASIBLE)))

    def solve(self, rows: Tensor, share: float, start: Tensor | None) -> None:
        """Solve the instances `rows`, ends moved out by a share, and put what is proved into the result."""
        assert self.packed is not None
        result, packed, reduction, sets = self.result, self.packed, self.reduction, self.sets
        if rows.numel() < self.size:
            packed, sets = packed.select(rows.numpy()), sets.select(rows)
            reduction = Reduction.of(sets)
        found = self._iterate(packed, reduction, start, share)
        x, empty = reduction.expand(found.x), torch.from_numpy(found.status == Status.INFEASIBLE)
        assert found.multipliers is not None
        assert found.passes is not None
        assert result.rows is not None
        names = rows.numpy()
        result.status[names] = found.status
        result.status[names[empty.numpy()]] = Status.STALLED  # unless it is proved
        result.iterations[rows] += found.iterations
        assert result.first_gap is not None
        assert found.first_gap is not None
        result.first_gap[rows] = found.first_gap
        points, box = np.ascontiguousarray(x.numpy()), [np.atleast_2d(end.numpy()) for end in sets.box]
        slope = self._prove(packed, box, points, found.passes, np.zeros_like(points)).slope
        held = torch.from_numpy(np.where(empty.numpy()[:, None], 0.0, slope))
        nu, z = reduction.originals(held, reduction.of_directions(held, torch.from_numpy(found.multipliers)))
        multiplied = RowMultipliers.of(sets, held, nu, z)
        proved = self._prove(packed, box, points, found.passes, (multiplied.w - held).numpy())
        bound = torch.from_numpy(proved.bound) + multiplied.beside
        usable = ~sets.outside(x, FEASIBLE) & ~empty
        value = torch.where(usable, torch.from_numpy(proved.value), torch.inf)
        bound = torch.where(empty | torch.isnan(bound), -torch.inf, bound)
        higher = bound > result.lower_bound[rows]
        result.improve(rows, x, value, bound)
        result.rows.put(rows[higher], multiplied.select(higher))
        result.judge(self.tol)
        proofs = empty & (multiplied.level > 0)  # slopes are zero there
        result.rows.put(rows[proofs], multiplied.select(proofs))
        result.refuse(rows[proofs])

    def _iterate(self, packed: Packed, reduction: Reduction, start: Tensor | None, share: float) -> Result:
        """Take Newton steps in the free coordinates."""
        from soctk.decide.compiled.solve import solve_packed  # Numba is loaded when it is needed

        e = reduction.elimination
        if e.dim > 0:
            inner = substituted(packed, e.basis.numpy(), reduction.origin.numpy(), len(e.R))
            return solve_packed(inner, reduction.region(start, share), **self.limits)
        # one point is left, and what is wanted is a dual point there
        inner = substituted(packed, np.eye(self.sets.dim), np.zeros((1, self.sets.dim)), 0)
        found = solve_packed(inner, reduction.around_point(), **self.limits)
        found.x = found.x[:, :0]
        return found

    @staticmethod
    def _prove(packed: Packed, box: list[np.ndarray], x: np.ndarray, passes: np.ndarray, shift: np.ndarray) -> Any:
        from soctk.decide.compiled.solve import prove  # Numba is loaded when it is needed

        return prove(packed, (box[0], box[1]), x, passes, shift)

    def project(self) -> None:
        """Leave no point that is none of its set: those that violate it by more than rounding are projected.

        Ends were moved out where there is no interior.
        """
        result = self.result
        result.x[torch.isinf(result.value)] = torch.nan  # no point of the set is known

        def value(index: Tensor, x: Tensor) -> Tensor:
            assert self.packed is not None
            part = self.packed.select(index.numpy())
            passes = np.zeros((1, part.layout.sizes["cache_size"]))
            box = [np.atleast_2d(end.numpy()) for end in self.sets.select(index).box]
            return torch.from_numpy(self._prove(part, box, x.numpy(), passes, np.zeros_like(x.numpy())).value)

        project_points(value, self.sets, result, self.tol)


def project_points(value: Callable[[Tensor, Tensor], Tensor], sets: SetAt, result: Result, tol: float) -> None:
    """Project points that violate their set by more than rounding; `value` of instances (1,) and points (1, n)."""
    off = torch.nonzero(sets.outside(result.x, ROUNDING)).flatten()
    for row in off.tolist():
        index = torch.tensor([row])
        try:
            x = sets.select(index)._project(result.x[index])
        except (ValueError, RuntimeError):  # empty but for rounding
            continue
        there = value(index, x)
        if float(relative_gap(there, result.lower_bound[index])) <= tol:
            result.x[index], result.value[index] = x, there


def is_ready(kinds: tuple[type[Term], ...], size: int) -> bool:
    """Whether compiled code decides for `size` instances now; it is waited for where an outside solver takes longer."""
    from soctk.decide.compiled.first_use import method_for  # Numba is loaded when it is needed

    return method_for(kinds).ready(several=False, wait=size > MOST_MEANWHILE)


def minimise_in_free_coordinates(
    form: ConicForm, sets: SetAt, *, tol: float, max_iter: int, keep_final: bool
) -> Result:
    """Return the answers w to detached forms over detached sets, with `Final` where that is asked for.

    Raises:
        RuntimeError: a set is empty, or no Newton steps can be taken.
    """
    reduction = Reduction.of(sets)
    known = reduction.contradictions(form.size)
    if known is not None:
        _refuse_empty(known[0], form.size)
    if form.size == 0 or reduction.elimination.dim == 0:
        w = form.linear.new_zeros(form.size, reduction.elimination.dim)
        value = form.evaluate(reduction.expand(w).unsqueeze(1)).squeeze(-1)
        return Result(w, value, value, torch.zeros_like(value), repeated(Status.OPTIMAL, form.size))
    inner = reduction.form(form)
    if not (supported(inner) and is_ready(kinds_of(inner.terms), MOST_MEANWHILE + 1)):
        raise RuntimeError("decisions over this set have no derivatives: a term of the model has no compiled kernel")
    from soctk.decide.compiled.solve import solve_compiled  # Numba is loaded when it is needed

    region = reduction.region(None, 0.0)
    result = solve_compiled(inner, region, tol=tol, max_iter=max_iter, keep_final=keep_final)
    _refuse_empty(torch.from_numpy(np.flatnonzero(result.status == Status.INFEASIBLE)), form.size)
    return result


def _refuse_empty(empty: Tensor, size: int) -> None:
    if empty.numel() > 0:
        named = ", ".join(str(row) for row in empty[:5].tolist())
        raise RuntimeError(
            f"{empty.numel()} of {size} sets are empty (instances {named}): there is no decision to "
            "differentiate; soctk.minimize says why, and what the nearest sets are"
        )
