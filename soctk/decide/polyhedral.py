"""Decisions over polyhedra with right-hand sides of their own: elimination, Newton steps, and a proof in the original.

The iterations work in the free coordinates of `soctk.sets.elimination`, with directions l <= R w <= u. What they find
is not believed but turned into the original rows: x, a dual point y of the terms, multipliers nu of E x = f and z >= 0
of G x <= h. With q the slope v + A'y and w = q + E'nu + G'z every x of the set has

    f(x) >= b0 + sum_j [y_j'd_j - phi_j*(y_j)] - nu'f - z'h + sum_i min(w_i lo_i, w_i hi_i),

and with the zero function in place of f (q = 0) a positive right-hand side proves that the set is empty (Farkas).
Rounding is taken off both. The derivatives of the optimal value are -nu in f, -z in h, w+ in lo and -w- in hi.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.decide.active_set import Ends
from soctk.decide.compiled.form import kinds_of, supported
from soctk.decide.decision import relative_gap
from soctk.decide.result import Result, RowMultipliers, repeated
from soctk.forms.conic_form import ConicForm
from soctk.sets import SetAt
from soctk.sets.elastic import nearest
from soctk.sets.elimination import Elimination
from soctk.status import Status
from soctk.terms.base import Dual

NARROW = 1e-9
"""Directions with less than this between their ends, relative to them, are widened to it: barriers need an interior."""
RELAXED = 2e-10
"""By how much, relative to it, every end is moved out where there is no interior and the first search fails."""
ROUNDING = 1e-13
"""What rounding may put a point outside of its set by, in units of the set's numbers."""
MOST_MEANWHILE = 100
"""Instances that an outside solver decides sooner than the method is compiled."""
WIDER = 0.25
"""Finite ends in place of infinite bounds lie this share of their distance outside of what rows imply."""
CROSSED = 1e-9
"""Ends that cross by more than this, relative to them, leave nothing between them; below it is rounding."""
FEASIBLE = 1e-9
"""What a point may violate its set by, in units of the set's numbers."""
WARM_SHARE = 0.02
"""A warm start keeps this share of the distance between the bounds from each."""


@dataclass(frozen=True, eq=False)
class Reduction:
    """The sets of N functions in the coordinates that the equalities leave free.

    Attributes:
        sets: flat and detached.
        elimination: of their matrices; coordinates that are fixed in all of them are held by equalities.
        f: right-hand sides of these equalities, (1 or N, any).
        origin: x_p, (1 or N, n).
        sides: b of every constraint, (1 or N, any).
        low, high: the ends of all directions, finite along the axes, (1 or N, d + m).
    """

    sets: SetAt
    elimination: Elimination
    f: Tensor
    origin: Tensor
    sides: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, sets: SetAt) -> Reduction:
        """Return the reduction of flat and detached sets."""
        lower, upper, f, h = (torch.atleast_2d(side) for side in sets.sides)
        fixed = torch.nonzero((lower == upper).all(dim=0)).flatten()
        elimination = sets.base.elimination(tuple(fixed.tolist()))
        if fixed.numel() > 0:
            f = torch.cat(_wide(f, lower[:, fixed]), dim=1)
        origin = elimination.origin(f)
        sides = elimination.sides(lower, upper, h, sets.rows.G, origin)
        low, high = elimination.ends(sides)
        d, (lo, hi) = elimination.dim, (torch.atleast_2d(end)[:, elimination.free] for end in sets.box)
        beyond = WIDER * (1 + hi - lo)  # an end that only follows from rows is not to bind: they have the multipliers
        lo, hi = lo - beyond, hi + beyond
        low = torch.cat(_wide(torch.where(torch.isinf(low[:, :d]), lo, low[:, :d]), low[:, d:]), dim=1)
        high = torch.cat(_wide(torch.where(torch.isinf(high[:, :d]), hi, high[:, :d]), high[:, d:]), dim=1)
        return cls(sets, elimination, f, origin, sides, low, high)

    def form(self, form: ConicForm) -> ConicForm:
        """Return the functions of w: f(x_p + Z w)."""
        if self.elimination.basic.numel() == 0:
            return form
        return form.composed(self.elimination.basis, self.origin)

    def expand(self, w: Tensor) -> Tensor:
        """Return x, (N, n), within its bounds."""
        x = self.origin + w @ self.elimination.basis.T
        with torch.no_grad():  # what rounding adds has no derivative
            excess = x - torch.maximum(torch.minimum(x, self.sets.upper), self.sets.lower)
        return x - excess

    def region(self, start: Tensor | None, share: float) -> Any:
        """Return the sets as the compiled method takes them, each end moved out by a share of its size.

        Args:
            start: (N, n) points to start from; the middle of the bounds by default.
            share: see above.
        """
        from soctk.decide.compiled.solve import Region  # Numba is loaded when it is needed

        low, high = self.low, self.high
        if share > 0:
            low, high = low - share * (1 + low.abs()), high + share * (1 + high.abs())
        middle, room = 0.5 * (low + high), NARROW * (1 + torch.minimum(low.abs(), high.abs()))
        narrow = high - low < room
        low, high = torch.where(narrow, middle - 0.5 * room, low), torch.where(narrow, middle + 0.5 * room, high)
        d = self.elimination.dim
        lo, hi = low[:, :d], high[:, :d]
        first = 0.5 * (lo + hi)
        if start is not None:
            kept = WARM_SHARE * (hi - lo)
            first = torch.maximum(torch.minimum(start[:, self.elimination.free], hi - kept), lo + kept)
        largest = torch.maximum(lo.abs(), hi.abs()).amax(dim=0)
        arrays = [part.numpy() for part in (lo, hi, self.elimination.R, low[:, d:], high[:, d:], largest, first)]
        return Region(*arrays[:2], None, *arrays[2:6], float(largest.sum()), arrays[6], keep_duals=True)

    def ends(self) -> Ends:
        """Return the ends of all directions as functions of the right-hand sides."""
        return Ends(self.low, self.high, self.elimination.R)

    # -- multipliers ---------------------------------------------------------------------------------------

    def originals(self, slope: Tensor, constraints: Tensor) -> tuple[Tensor, Tensor]:
        """Return nu and z from a slope (N, n) and multipliers >= 0 of the constraints (N, any).

        nu makes w the negative of the bounds' own multipliers on the basic coordinates.
        """
        n, k = self.sets.dim, self.sets.f.shape[-1]
        above, below, z = constraints[:, :n], constraints[:, n : 2 * n], constraints[:, 2 * n :]
        wanted = (slope + z @ self.sets.rows.G + above - below)[:, self.elimination.basic]
        return -(wanted @ self.elimination.inverse)[:, :k], z

    def of_directions(self, slope: Tensor, multipliers: Tensor) -> Tensor:
        """Return the constraints' multipliers from those of the directions besides the axes, (N, m).

        Along the axes they are what is left of the slope.
        """
        left = slope @ self.elimination.basis + multipliers @ self.elimination.R
        return self.elimination.attribute(torch.cat([-left, multipliers], dim=1), self.sides)

    def contradictions(self, size: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return which of `size` instances contradict themselves on sight, and nu and z that prove it; None for none.

        Either dependent equalities do not agree, or a constraint that is the same for every w is violated, or the ends
        of a direction cross.
        """
        e, k = self.elimination, self.sets.f.shape[-1]
        crossed = self.low - self.high - CROSSED * (1 + torch.minimum(self.low.abs(), self.high.abs()))
        excess = -self.sides[:, e.constant] - CROSSED * self.sets.magnitude
        off = self.f @ e.null.T
        off = torch.where(off.abs() > CROSSED * (self.f.abs() @ e.null.abs().T + e.null.abs().sum(dim=1)), off, 0.0)
        if not any(bool((part > 0).any()) for part in (crossed, excess, off.abs())):
            return None
        constraints = torch.zeros(size, self.sides.shape[-1], dtype=torch.float64)
        known = torch.zeros(size, dtype=torch.bool)
        for amounts, put in ((crossed, self._cross), (excess, self._violate)):
            if amounts.shape[1] > 0:
                most, place = (part.expand(size) for part in amounts.max(dim=1))
                index = torch.nonzero((most > 0) & ~known).flatten()
                put(constraints, index, place[index])
                known[index] = True
        nu, z = self.originals(torch.zeros(size, self.sets.dim, dtype=torch.float64), constraints)
        if off.shape[1] > 0:
            most, place = (part.expand(size) for part in off.abs().max(dim=1))
            index = torch.nonzero((most > 0) & ~known).flatten()
            signs = -torch.sign(off.expand(size, -1)[index, place[index]])
            nu[index] = (signs.unsqueeze(1) * e.null[place[index]])[:, :k]
            known[index] = True
        rows = torch.nonzero(known).flatten()
        return rows, nu[rows], z[rows]

    def _cross(self, constraints: Tensor, index: Tensor, place: Tensor) -> None:
        """Give the two constraints whose ends cross their multipliers."""
        unit = torch.zeros(index.numel(), self.low.shape[1], dtype=torch.float64)
        unit[torch.arange(index.numel()), place] = 1.0
        sides = self.sides.expand(constraints.shape[0], -1)[index]
        constraints[index] = self.elimination.attribute(unit, sides) + self.elimination.attribute(-unit, sides)

    def _violate(self, constraints: Tensor, index: Tensor, place: Tensor) -> None:
        """Give the constraint that is violated a multiplier."""
        constraints[index, torch.nonzero(self.elimination.constant).flatten()[place]] = 1.0


def _wide(*parts: Tensor) -> list[Tensor]:
    """Return matrices with leading sizes 1 or N, all N where one is."""
    size = max(len(part) for part in parts)
    return [part.expand(size, -1) for part in parts]


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
    proved = _put_proofs(result, sets, rows, nu, z)
    result.status[rows[~proved].numpy()] = Status.INACCURATE


def _put_proofs(result: Result, sets: SetAt, rows: Tensor, nu: Tensor, z: Tensor) -> Tensor:
    """Say that the sets of the instances `rows` are empty where multipliers prove it; return where, bool."""
    assert result.rows is not None
    proof = RowMultipliers.of(sets.select(rows), torch.zeros(rows.numel(), sets.dim, dtype=torch.float64), nu, z)
    proved = proof.level > 0
    result.rows.put(rows[proved], proof.select(proved))
    result.refuse(rows[proved])
    return proved


def solve_polyhedral(
    form: ConicForm,
    sets: SetAt,
    *,
    tol: float,
    max_iter: int,
    deadline: float = float("inf"),
    start: Tensor | None = None,
) -> Result:
    """Minimise every function of a detached form over its own set: arguments as `solve_newton`'s, sets flat."""
    reduction = Reduction.of(sets)
    result = Result.unanswered(form.linear.new_zeros(form.size, sets.dim))
    zero = torch.zeros(form.size, dtype=torch.float64)
    counts = sets.f.shape[-1], sets.h.shape[-1], sets.dim
    result.rows = RowMultipliers(*(zero.new_zeros(form.size, count) for count in counts), zero)
    rest = torch.arange(form.size)
    known = reduction.contradictions(form.size)
    if known is not None:
        _put_proofs(result, sets, *known)
        rest = torch.from_numpy(np.flatnonzero(result.status != Status.INFEASIBLE))
    for share in (0.0, RELAXED):
        if rest.numel() == 0 or time.perf_counter() > deadline:
            break
        whole = rest.numel() == form.size
        part = (form, reduction) if whole else (form.select(rest), Reduction.of(sets.select(rest)))
        begin = None if start is None else start[rest]
        _solve_part(*part, share, begin, rest, result, tol=tol, max_iter=max_iter, deadline=deadline)
        unsettled = ~np.isin(result.status[rest.numpy()], [Status.OPTIMAL, Status.INFEASIBLE])
        rest = rest[torch.from_numpy(unsettled)]
    result.x[torch.isinf(result.value)] = torch.nan  # no point of the set is known
    project_points(form, sets, result, tol)
    return result


def project_points(form: ConicForm, sets: SetAt, result: Result, tol: float) -> None:
    """Project points that violate their set by more than rounding: ends were moved out where there is no interior."""
    off = torch.nonzero(sets._violation(result.x) > ROUNDING * sets.magnitude).flatten()
    for row in off.tolist():
        index = torch.tensor([row])
        try:
            x = sets.select(index)._project(result.x[index])
        except (ValueError, RuntimeError):  # empty but for rounding
            continue
        value = form.select(index).evaluate(x.unsqueeze(1)).squeeze(-1)
        if float(relative_gap(value, result.lower_bound[index])) <= tol:
            result.x[index], result.value[index] = x, value


def _solve_part(
    form: ConicForm,
    reduction: Reduction,
    share: float,
    start: Tensor | None,
    rows: Tensor,
    result: Result,
    **limits: Any,
) -> None:
    """Solve the instances `rows`, and put what is proved about them into the result."""
    sets, names = reduction.sets, rows.numpy()
    result.first_gap = torch.full_like(result.value, torch.inf) if result.first_gap is None else result.first_gap
    if reduction.elimination.dim == 0:
        x = reduction.expand(form.linear.new_zeros(form.size, 0))
        dual, multipliers = form.subgradients(x.unsqueeze(1)), x.new_zeros(form.size, 0)
        empty = torch.zeros(form.size, dtype=torch.bool)
    else:
        found = _iterate(reduction.form(form), reduction.region(start, share), **limits)
        if found is None:
            return
        assert found.multipliers is not None
        assert found.duals is not None
        x, dual, multipliers = reduction.expand(found.x), Dual(tuple(found.duals)), found.multipliers
        empty = torch.from_numpy(found.status == Status.INFEASIBLE)
        assert found.first_gap is not None
        result.first_gap[rows] = found.first_gap
        result.status[names], result.iterations[rows] = found.status, result.iterations[rows] + found.iterations
        result.status[names[empty.numpy()]] = Status.STALLED  # unless it is proved
    slope = torch.where(empty.unsqueeze(-1), 0.0, form.slope(dual).squeeze(1))
    nu, z = reduction.originals(slope, reduction.of_directions(slope, multipliers))
    bound, multiplied = bound_by_rows(form, sets, dual, nu, z)
    usable = (sets._violation(x) <= FEASIBLE * sets.magnitude) & ~empty
    value = torch.where(usable, form.evaluate(x.unsqueeze(1)).squeeze(-1), torch.inf)
    bound = torch.where(empty | torch.isnan(bound), -torch.inf, bound)
    higher = bound > result.lower_bound[rows]
    result.improve(rows, x, value, bound)
    assert result.rows is not None
    result.rows.put(rows[higher], multiplied.select(higher))
    result.judge(limits["tol"])
    if bool(empty.any()):
        proof = RowMultipliers.of(sets, torch.zeros_like(x), nu, z)
        proved = empty & (proof.level > 0)
        result.rows.put(rows[proved], proof.select(proved))
        result.refuse(rows[proved])


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
    if reduction.elimination.dim == 0:
        w = form.linear.new_zeros(form.size, 0)
        value = form.evaluate(reduction.expand(w).unsqueeze(1)).squeeze(-1)
        return Result(w, value, value, torch.zeros_like(value), repeated(Status.OPTIMAL, form.size))
    result = _iterate(
        reduction.form(form), reduction.region(None, 0.0), tol=tol, max_iter=max_iter, keep_final=keep_final
    )
    if result is None:
        raise RuntimeError("decisions over this set have no derivatives: a term without a compiled kernel")
    _refuse_empty(torch.from_numpy(np.flatnonzero(result.status == Status.INFEASIBLE)), form.size)
    return result


def _refuse_empty(empty: Tensor, size: int) -> None:
    if empty.numel() > 0:
        named = ", ".join(str(row) for row in empty[:5].tolist())
        raise RuntimeError(
            f"{empty.numel()} of {size} sets are empty (instances {named}): there is no decision to "
            "differentiate; soctk.minimize says why, and what the nearest sets are"
        )


def _iterate(form: ConicForm, region: Any, **limits: Any) -> Result | None:
    """Take Newton steps in the free coordinates; None where there is nothing that can."""
    if not supported(form):
        return None
    from soctk.decide.compiled.first_use import method_for  # Numba is loaded when it is needed
    from soctk.decide.compiled.solve import solve_compiled

    if not method_for(kinds_of(form.terms)).ready(several=False, wait=form.size > MOST_MEANWHILE):
        return None
    return solve_compiled(form, region, **limits)
