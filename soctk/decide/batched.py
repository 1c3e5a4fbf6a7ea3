"""The smoothing Newton method of `soctk.decide.newton` for a whole batch at a time, by PyTorch.

For any device, any precision, any kind of term and any few equalities; `soctk.decide.compiled` is quicker where it
applies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from soctk.decide.loop import State, iterate
from soctk.decide.problem import Limits
from soctk.decide.result import Final, Result, picker
from soctk.decide.rules import (
    ARMIJO,
    BACKTRACK,
    LINE_SEARCH_TRIALS,
    MULTIPLIER_RANGE,
    SETTLED,
    STALL_ITERATIONS,
    TO_BOUNDARY,
    UNSETTLED,
    WORTH_CERTIFYING,
    Schedule,
    schedule_for,
)
from soctk.decide.smoothing import smooth, smoothed_value
from soctk.forms.conic_form import ConicForm, Dual
from soctk.sets import FeasibleSet
from soctk.terms import Network, Term
from soctk.terms.base import Smoothed

DEPENDENT = 1e-10
"""Rows of equalities whose part that others do not give is smaller than this share are left out."""


class HasRows(Protocol):
    """Equalities, as `Bounds` describes them."""

    @property
    def rows(self) -> Tensor | None:
        """(k, n), orthonormal; None where there are none."""

    @property
    def sums(self) -> bool:
        """Whether the only one is on the sum of x."""
        ...


@dataclass
class Bounds:
    """The bounds and equalities of a set in the working dtype.

    Attributes:
        lo: (n,), -inf where there is none.
        hi: (n,), inf where there is none.
        has_hi: whether any upper bound is finite.
        count: the number of finite bounds.
        rows: (k, n), orthonormal rows of the equalities, E x = f; None where there are none.
        sums: whether the only one is on the sum of x, beside bounds alone.
    """

    lo: Tensor
    hi: Tensor
    has_hi: bool
    count: int
    rows: Tensor | None
    sums: bool

    @classmethod
    def of(cls, feasible_set: FeasibleSet, like: Tensor) -> Bounds:
        """Return those of a set that has rows, in the dtype and on the device of `like`."""
        given = feasible_set.rows()
        assert given is not None
        finite_lo, finite_hi = torch.isfinite(given.lower), torch.isfinite(given.upper)
        basis = None
        if given.E.shape[0] > 0:
            _, sizes, directions = torch.linalg.svd(given.E, full_matrices=False)
            basis = directions[sizes > DEPENDENT * sizes[0]].to(like)
        return cls(
            given.lower.to(like),
            given.upper.to(like),
            bool(finite_hi.any()),
            int(finite_lo.sum() + finite_hi.sum()),
            basis,
            given.total is not None,
        )

    def barrier(self, x: Tensor) -> Tensor:
        """Return the sum of the logarithms of x - lo and hi - x, (N, 1)."""
        total = _logarithms(x - self.lo)
        return total + _logarithms(self.hi - x) if self.has_hi else total


def _logarithms(room: Tensor) -> Tensor:
    return torch.where(room < torch.inf, room, 1.0).log().sum(dim=-1, keepdim=True)


class Fixed(NamedTuple):
    """What no iteration changes."""

    feasible_set: FeasibleSet
    bounds: Bounds
    tol: float
    schedule: Schedule


def solve_batched(
    form: ConicForm,
    feasible_set: FeasibleSet,
    *,
    tol: float,
    max_iter: int,
    start: Tensor,
    deadline: float = float("inf"),
    keep_final: bool = False,
) -> Result:
    """Advance all instances together by PyTorch: any device, dtype and kind of term; arguments as `solve_newton`'s."""
    schedule = schedule_for(form, keep_final=keep_final)
    fixed = Fixed(feasible_set, Bounds.of(feasible_set, form.linear), tol, schedule)
    state = _State.initial(form, fixed, start)
    best = Result.unanswered(start)
    best.final = Final.of(state) if keep_final else None
    return iterate(form, state, fixed, best, Limits(tol, None, deadline), max_iter=max_iter)


@dataclass
class _State(State):
    """The iterate of every active instance."""

    x: Tensor
    mu: Tensor
    s_lo: Tensor
    s_hi: Tensor | None
    u: list[Tensor]
    smoothed: list
    lags: list
    balanced: list
    value: Tensor
    decrement: Tensor
    stuck: Tensor

    @classmethod
    def initial(cls, form: ConicForm, fixed: Fixed, x: Tensor) -> _State:
        """Start at x: mu a share of the gap of the linearisation there, multipliers mu / distance."""
        points, bounds = x.unsqueeze(1), fixed.bounds
        value = form.evaluate(points)
        gap = (value - form.bound(form.subgradients(points), fixed.feasible_set)).clamp(min=0)
        mu = (fixed.schedule.first_share * gap / (bounds.count + form.dim)).clamp(min=1e-12)
        s_lo = mu / (x - bounds.lo)
        s_hi = mu / (bounds.hi - x) if bounds.has_hi else None
        stuck = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        state = cls(x, mu, s_lo, s_hi, [term.inner(points) for term in form.terms], [], [], [], value, 0 * mu, stuck)
        state._smooth(form)
        state.lags = [t.initial_lag(s) for t, s in zip(form.terms, state.smoothed, strict=True)]
        state.balanced = list(state.lags)
        return state

    def record(self, form: ConicForm, fixed: Fixed, best: Result, rows: Tensor, iteration: int, last: bool) -> Tensor:
        """Improve the best points and bounds, where that is likely to succeed; return which are stalled.

        While the barrier alone keeps the gap above `tol`, or the last Newton step was a long one, there is hardly
        anything to certify, and it is not tried before the last chance.
        """
        scale = fixed.tol * self.value.abs().clamp(min=1.0)
        settled = (self.decrement <= SETTLED * scale) | (iteration >= UNSETTLED)
        ready = (settled & (fixed.bounds.count * self.mu <= WORTH_CERTIFYING * scale)).squeeze(-1) | last
        stalled = torch.zeros_like(ready)
        index = torch.nonzero(ready).squeeze(-1)
        if index.numel() == 0:
            return stalled
        part, here = form, self
        if index.numel() < ready.numel():
            part, here, rows = form.select(index), self.select(index, ready.numel()), rows[index]
        x = fixed.feasible_set._project(here.x)
        previous = best.relative_gap(rows)
        best.improve(rows, x, part.evaluate(x.unsqueeze(1)).squeeze(-1), here.bound(part, fixed.feasible_set))
        self.stuck[index] = torch.where(best.relative_gap(rows) < 0.9 * previous, 0, here.stuck + 1)
        stalled[index] = self.stuck[index] >= STALL_ITERATIONS
        return stalled

    def _smooth(self, form: ConicForm) -> None:
        self.smoothed = smooth(form, self.u, self.mu)
        self.value = smoothed_value(form, self.x, self.smoothed)

    def bound(self, form: ConicForm, feasible_set: FeasibleSet) -> Tensor:
        """Return the better lower bound of the smoothed slopes and of the dual iterates, (N,)."""
        both = (
            torch.cat([part.dual.expand_as(lagged), lagged], dim=1)
            for part, lagged in (
                (part, t.lagged_dual(part, lag))
                for t, part, lag in zip(form.terms, self.smoothed, self.balanced, strict=True)
            )
        )
        return form.bound(Dual(tuple(both)), feasible_set).amax(dim=-1)

    def advance(self, form: ConicForm, fixed: Fixed) -> None:
        """Take one Newton step, update the duals, and lower mu where the iterate is near the path."""
        x, mu, bounds, schedule = self.x, self.mu, fixed.bounds, fixed.schedule
        room_lo = x - bounds.lo
        gradient = form.linear[:, 0].expand_as(x)
        for term, part in zip(form.terms, self.smoothed, strict=True):
            gradient = gradient + term.map.adjoint(part.dual)[:, 0]
        barrier_gradient = gradient - mu / room_lo
        diagonal = self.s_lo / room_lo
        if self.s_hi is not None:
            room_hi = bounds.hi - x
            barrier_gradient = barrier_gradient + mu / room_hi
            diagonal = diagonal + self.s_hi / room_hi
        hessian = torch.diag_embed(diagonal)
        for term, part, lag in zip(form.terms, self.smoothed, self.lags, strict=True):
            term.add_hessian(hessian, part, lag)
        dx = -solve_factored(factor_hessian(hessian), barrier_gradient, bounds)
        decrement = self.decrement = -(barrier_gradient * dx).sum(dim=-1, keepdim=True)
        du = [term.map.forward(dx.unsqueeze(1)) for term in form.terms]
        step = self._line_search(form, bounds, dx, du, decrement)
        self._update_bound_multipliers(bounds, dx, step)
        self.lags = [
            t.advance_lag(s, lag, change)
            for t, s, lag, change in zip(form.terms, self.smoothed, self.lags, du, strict=True)
        ]
        self.balanced = [balance(t, s, lag) for t, s, lag in zip(form.terms, self.smoothed, self.lags, strict=True)]
        factor = torch.ones_like(mu)
        for lowered_to, length, near in reversed(schedule.rules):
            factor = torch.where((step >= length) & (decrement <= near * bounds.count * mu), lowered_to, factor)
        floor = schedule.last_share * fixed.tol * self.value.abs().clamp(min=1.0) / (bounds.count + form.dim)
        self.mu = torch.maximum(factor * mu, torch.minimum(floor, mu))
        self._smooth(form)

    def _line_search(self, form: ConicForm, bounds: Bounds, dx: Tensor, du: list[Tensor], decrement: Tensor) -> Tensor:
        """Move x and u by the largest step (N, 1) found that satisfies Armijo's rule; 0 where none does."""
        room_lo = self.x - bounds.lo
        longest = _ratio(room_lo, -dx)
        if self.s_hi is not None:
            longest = torch.minimum(longest, _ratio(bounds.hi - self.x, dx))
        step = (TO_BOUNDARY * longest).clamp(max=1.0)
        merit = self.value - self.mu * bounds.barrier(self.x)
        slack = 1e-14 * merit.abs().clamp(min=1.0)
        pending = torch.arange(self.x.shape[0], device=self.x.device)
        taken = torch.zeros_like(step)
        part_form, x, mu, u, change = form, self.x, self.mu, self.u, du
        for _ in range(LINE_SEARCH_TRIALS):
            trial = step[pending]
            moved = x + trial * dx[pending]
            shifted = [old + trial.unsqueeze(-1) * delta for old, delta in zip(u, change, strict=True)]
            value = smoothed_value(part_form, moved, smooth(part_form, shifted, mu))
            accepted = (
                value - mu * bounds.barrier(moved)
                <= merit[pending] - ARMIJO * trial * decrement[pending] + slack[pending]
            ).squeeze(-1)
            taken[pending[accepted]] = trial[accepted]
            failed = torch.nonzero(~accepted).squeeze(-1)
            if failed.numel() == 0:
                break
            pick = picker(pending.numel(), failed)
            pending = pending[failed]
            step[pending] = BACKTRACK * step[pending]
            part_form, x, mu, u, change = (
                part_form.select(failed),
                x[failed],
                mu[failed],
                pick(u),
                pick(change),
            )
        self.x = self.x + taken * dx
        self.u = [old + taken.unsqueeze(-1) * delta for old, delta in zip(self.u, du, strict=True)]
        return taken

    def _update_bound_multipliers(self, bounds: Bounds, dx: Tensor, step: Tensor) -> None:
        """Move s by the linearised complementarity s (x - lo) = mu, kept within a range of mu / (x - lo)."""
        before = self.x - step * dx

        def moved(s: Tensor, room: Tensor, toward: Tensor, room_after: Tensor) -> Tensor:
            target = self.mu / room_after
            return torch.maximum(
                torch.minimum(self.mu / room + s / room * toward, MULTIPLIER_RANGE * target),
                target / MULTIPLIER_RANGE,
            )

        self.s_lo = moved(self.s_lo, before - bounds.lo, -dx, self.x - bounds.lo)
        if self.s_hi is not None:
            self.s_hi = moved(self.s_hi, bounds.hi - before, dx, bounds.hi - self.x)


def balance(term: Term, smoothed: Smoothed, lag: Any) -> Any:
    """Return dual iterates, advanced from `smoothed`, that balance Newton's equations (`balance_lags` tells how)."""
    if not isinstance(term, Network) or lag is None:
        return lag
    agreed, here, found = term.initial_lag(smoothed), smoothed.cache[2], lag
    assert agreed is not None
    for _ in lag[1:]:  # each time another layer is right
        there = term.chain([0.5 * (1 + t) for t in found])[1]
        shares = [torch.where(new > 0, old / new, 1.0) for old, new in zip(here, there, strict=True)]
        found = tuple((a + share * (t - a)).clamp(-1, 1) for a, share, t in zip(agreed, shares, lag, strict=True))
    return found


def factor_hessian(hessian: Tensor) -> Tensor:
    """Return the Cholesky factor of positive definite matrices (N, n, n)."""
    scale = hessian.diagonal(dim1=-2, dim2=-1)
    factor, info = torch.linalg.cholesky_ex(hessian)
    ridge = 1e-14
    while bool((info > 0).any()) and ridge < 1:
        # Rounding can make a positive definite matrix fail; a ridge relative to the diagonal repairs it.
        damped = hessian + torch.diag_embed(scale * torch.where(info > 0, ridge, 0.0).unsqueeze(-1))
        factor, info = torch.linalg.cholesky_ex(damped)
        ridge *= 100
    return factor


def solve_factored(factor: Tensor, right: Tensor, bounds: HasRows) -> Tensor:
    """Solve H y = right, or with multipliers of E y = 0 where there are equalities: (N, n) -> (N, n)."""

    def solve(right: Tensor) -> Tensor:
        return torch.cholesky_solve(right, factor)

    return _solve_columns(solve, factor, right.unsqueeze(-1), bounds).squeeze(-1)


def inverse_of(factor: Tensor, bounds: HasRows) -> Tensor:
    """Return what `solve_factored` multiplies right-hand sides by, (N, n, n); in a third of its time for as many."""
    every = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device).expand_as(factor)
    half = torch.linalg.solve_triangular(factor, every, upper=False)
    if bounds.rows is None:
        return half.mT @ half
    return _solve_columns(lambda right: half.mT @ (half @ right), factor, every, bounds)


def _solve_columns(solve: Callable[[Tensor], Tensor], factor: Tensor, right: Tensor, bounds: HasRows) -> Tensor:
    """Solve H y = right, or with multipliers of E y = 0 where there are equalities: (N, n, R) -> (N, n, R).

    There any combination of rows of E may be added to the right-hand side. At a vertex some coordinates have next to no
    curvature: H^-1 right would be huge there, only to be cancelled by H^-1 times such a combination. So the right-hand
    side is made small there: 0 at the flattest coordinate, or small by least squares, weighted by inverse curvatures.
    """
    if bounds.rows is None:
        return solve(right)
    curvature, last = factor.square().sum(dim=-1), right.shape[-1]
    if bounds.sums:
        flattest = curvature.argmin(dim=-1)[:, None, None].expand(-1, 1, last)
        right = right - right.gather(1, flattest)
        solution = solve(torch.cat([right, torch.ones_like(right[..., :1])], dim=-1))
        sums = solution.sum(dim=1, keepdim=True)
        y = solution[..., :last] - solution[..., last:] * (sums[..., :last] / sums[..., last:])
        # Rounding of the Schur step must not let sum(x) drift.
        return y - y.mean(dim=1, keepdim=True)
    rows = bounds.rows
    weighted = rows / curvature.unsqueeze(-2)
    right = right - rows.mT @ _solve_symmetric(weighted @ rows.mT, weighted @ right)
    columns = rows.mT.expand(right.shape[0], -1, -1)
    solution = solve(torch.cat([right, columns], dim=-1))
    product = rows @ solution
    multipliers = _solve_symmetric(product[..., last:], product[..., :last])
    y = solution[..., :last] - solution[..., last:] @ multipliers
    return y - rows.mT @ (rows @ y)


def _solve_symmetric(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve positive semidefinite systems, by the smallest solution where they are singular to rounding.

    (N, k, k), (N, k, R) -> (N, k, R).
    """
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
    least = 4 * torch.finfo(right.dtype).eps * values[..., -1:]
    return vectors @ torch.where((values > least).unsqueeze(-1), vectors.mT @ right / values.unsqueeze(-1), 0.0)


def _ratio(room: Tensor, toward: Tensor) -> Tensor:
    """Return the longest step before `toward` uses up `room`, (N, 1); +inf where nothing shrinks."""
    return torch.where(toward > 0, room / toward, torch.inf).amin(dim=-1, keepdim=True)
