"""The smoothing Newton method of `soctk.decide.newton` for a whole batch at a time, by PyTorch.

For any device, any precision and any kind of term; `soctk.decide.compiled` is quicker where it applies.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.decide.decision import Status
from soctk.decide.reduction import newton_rows
from soctk.decide.result import Final, Result, map_tensors
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
from soctk.forms.conic_form import ConicForm, Dual
from soctk.sets import FeasibleSet


@dataclass
class Bounds:
    """The finite bounds of the set in the working dtype, as masks and vectors (n,)."""

    lo: Tensor
    hi: Tensor
    has_hi: bool
    total: float | None

    @classmethod
    def of(cls, feasible_set: FeasibleSet, like: Tensor) -> Bounds:
        """Return the bounds of a set in the dtype and on the device of `like`."""
        rows = newton_rows(feasible_set)
        return cls(rows.lower.to(like), rows.upper.to(like), bool(torch.isfinite(rows.upper).all()), rows.total)

    @property
    def count(self) -> int:
        """The number of inequality constraints."""
        return self.lo.numel() * (2 if self.has_hi else 1)


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
    size, x = form.size, start
    schedule = schedule_for(form, keep_final=keep_final)
    bounds = Bounds.of(feasible_set, form.linear)
    best = Result.unanswered(x)
    active = torch.arange(size, device=x.device)
    state = _State.initial(form, feasible_set, bounds, x, schedule.first_share)
    best.final = Final.of(state) if keep_final else None
    for iteration in range(max_iter + 1):
        late = time.perf_counter() > deadline
        done, stalled = _record(
            best, active, form, feasible_set, state, bounds, tol, iteration, force=late or iteration == max_iter
        )
        for mask, status in ((done, Status.OPTIMAL), (stalled & ~done, Status.STALLED)):
            if bool(mask.any()):
                best.status[active[mask].cpu().numpy()] = status
        keep = ~(done | stalled)
        leaving = torch.nonzero(~keep | late | (iteration == max_iter)).squeeze(-1)
        if best.final is not None and leaving.numel() > 0:
            best.final.put(active[leaving], Final.of(state.select(leaving)))
        if not bool(keep.any()):
            break
        if late:
            best.status[active[keep].cpu().numpy()] = Status.TIME_LIMIT
            break
        if iteration == max_iter:
            break
        if not bool(keep.all()):
            index = torch.nonzero(keep).squeeze(-1)
            active, form, state = active[index], form.select(index), state.select(index)
        state.advance(form, bounds, tol, schedule)
    return best


def _record(
    best: Result,
    active: Tensor,
    form: ConicForm,
    feasible_set: FeasibleSet,
    state: _State,
    bounds: Bounds,
    tol: float,
    iteration: int,
    *,
    force: bool,
) -> tuple[Tensor, Tensor]:
    """Update the best points and bounds of the active instances; return which are done and which are stalled.

    While the barrier alone keeps the gap above `tol`, or the last Newton step was a long one, there is hardly anything
    to certify, and it is not tried unless `force` says that this is the last chance.
    """
    best.iterations[active] = iteration
    scale = tol * state.value.abs().clamp(min=1.0)
    settled = (state.decrement <= SETTLED * scale) | (iteration >= UNSETTLED)
    ready = (settled & (bounds.count * state.mu <= WORTH_CERTIFYING * scale)).squeeze(-1) | force
    done, stalled = torch.zeros_like(ready), torch.zeros_like(ready)
    index = torch.nonzero(ready).squeeze(-1)
    if index.numel() == 0:
        return done, stalled
    part, here, rows = form, state, active
    if index.numel() < ready.numel():
        part, here, rows = form.select(index), state.select(index), active[index]
    x = feasible_set._project(here.x)
    value = part.evaluate(x.unsqueeze(1)).squeeze(-1)
    previous = best.relative_gap(rows)
    best.improve(rows, x, value, here.bound(part, feasible_set))
    gap = best.relative_gap(rows)
    stuck = torch.where(gap < 0.9 * previous, 0, here.stuck + 1)
    state.stuck[index] = stuck
    done[index], stalled[index] = gap <= tol, stuck >= STALL_ITERATIONS
    return done, stalled


@dataclass
class _State:
    """The iterate of every active instance."""

    x: Tensor
    mu: Tensor
    s_lo: Tensor
    s_hi: Tensor | None
    u: list[Tensor]
    smoothed: list
    lags: list
    value: Tensor
    decrement: Tensor
    stuck: Tensor

    @classmethod
    def initial(cls, form: ConicForm, feasible_set: FeasibleSet, bounds: Bounds, x: Tensor, share: float) -> _State:
        """Start at x: mu a share of the gap of the linearisation there, multipliers mu / distance."""
        points = x.unsqueeze(1)
        value = form.evaluate(points)
        gap = (value - form.bound(form.subgradients(points), feasible_set)).clamp(min=0)
        mu = (share * gap / (bounds.count + form.dim)).clamp(min=1e-12)
        s_lo = mu / (x - bounds.lo)
        s_hi = mu / (bounds.hi - x) if bounds.has_hi else None
        stuck = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        state = cls(x, mu, s_lo, s_hi, [term.inner(points) for term in form.terms], [], [], value, 0 * mu, stuck)
        state._smooth(form)
        state.lags = [t.initial_lag(s) for t, s in zip(form.terms, state.smoothed, strict=True)]
        return state

    def select(self, index: Tensor) -> _State:
        """Return the state of the instances `index`."""
        pick = picker(self.x.shape[0], index)
        return _State(*(pick(getattr(self, name)) for name in self.__dataclass_fields__))

    def _smooth(self, form: ConicForm) -> None:
        self.smoothed = [t.smooth(u, self.mu) for t, u in zip(form.terms, self.u, strict=True)]
        self.value = form.constant + (self.x * form.linear[:, 0]).sum(dim=-1, keepdim=True)
        for part in self.smoothed:
            self.value = self.value + part.value

    def bound(self, form: ConicForm, feasible_set: FeasibleSet) -> Tensor:
        """Return the better lower bound of the smoothed slopes and of the lagged duals, (N,)."""
        both = (
            torch.cat([part.dual.expand_as(lagged), lagged], dim=1)
            for part, lagged in (
                (part, t.lagged_dual(part, lag))
                for t, part, lag in zip(form.terms, self.smoothed, self.lags, strict=True)
            )
        )
        return form.bound(Dual(tuple(both)), feasible_set).amax(dim=-1)

    def advance(self, form: ConicForm, bounds: Bounds, tol: float, schedule: Schedule) -> None:
        """Take one Newton step, update the duals, and lower mu where the iterate is near the path."""
        x, mu = self.x, self.mu
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
        dx = -solve_factored(factor_hessian(hessian), barrier_gradient, bounds.total is not None)
        decrement = self.decrement = -(barrier_gradient * dx).sum(dim=-1, keepdim=True)
        du = [term.map.forward(dx.unsqueeze(1)) for term in form.terms]
        step = self._line_search(form, bounds, dx, du, decrement)
        self._update_bound_multipliers(bounds, dx, step)
        self.lags = [
            t.advance_lag(s, lag, change)
            for t, s, lag, change in zip(form.terms, self.smoothed, self.lags, du, strict=True)
        ]
        factor = torch.ones_like(mu)
        for lowered_to, length, near in reversed(schedule.rules):
            factor = torch.where((step >= length) & (decrement <= near * bounds.count * mu), lowered_to, factor)
        floor = schedule.last_share * tol * self.value.abs().clamp(min=1.0) / (bounds.count + form.dim)
        self.mu = torch.maximum(factor * mu, torch.minimum(floor, mu))
        self._smooth(form)

    def _line_search(self, form: ConicForm, bounds: Bounds, dx: Tensor, du: list[Tensor], decrement: Tensor) -> Tensor:
        """Move x and u by the largest step (N, 1) found that satisfies Armijo's rule; 0 where none does."""
        room_lo = self.x - bounds.lo
        longest = _ratio(room_lo, -dx)
        if self.s_hi is not None:
            longest = torch.minimum(longest, _ratio(bounds.hi - self.x, dx))
        step = (TO_BOUNDARY * longest).clamp(max=1.0)
        merit = self._merit(form, bounds, self.x, self.value, self.mu)
        slack = 1e-14 * merit.abs().clamp(min=1.0)
        pending = torch.arange(self.x.shape[0], device=self.x.device)
        taken = torch.zeros_like(step)
        part_form, x, mu, u, change = form, self.x, self.mu, self.u, du
        for _ in range(LINE_SEARCH_TRIALS):
            trial = step[pending]
            moved = x + trial * dx[pending]
            shifted = [old + trial.unsqueeze(-1) * delta for old, delta in zip(u, change, strict=True)]
            value = _smooth_value(part_form, moved, shifted, mu)
            accepted = (
                self._merit(part_form, bounds, moved, value, mu)
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

    @staticmethod
    def _merit(form: ConicForm, bounds: Bounds, x: Tensor, value: Tensor, mu: Tensor) -> Tensor:
        """Return the smoothed objective minus mu times the log barrier, (N, 1)."""
        barrier = (x - bounds.lo).log().sum(dim=-1, keepdim=True)
        if bounds.has_hi:
            barrier = barrier + (bounds.hi - x).log().sum(dim=-1, keepdim=True)
        return value - mu * barrier

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


def _smooth_value(form: ConicForm, x: Tensor, u: list[Tensor], mu: Tensor) -> Tensor:
    value = form.constant + (x * form.linear[:, 0]).sum(dim=-1, keepdim=True)
    for term, inner in zip(form.terms, u, strict=True):
        value = value + term.smooth(inner, mu).value
    return value


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


def solve_factored(factor: Tensor, right: Tensor, has_sum: bool) -> Tensor:
    """Solve H y = right, or with the multiplier of sum(y) = 0 where there is an equality: (N, n) -> (N, n).

    There any multiple of 1 may be added to the right-hand side. At a vertex one coordinate has next to no curvature:
    H^-1 right would be huge there, only to be cancelled by a multiple of H^-1 1. So there it is made 0.
    """
    if not has_sum:
        return torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
    flattest = factor.square().sum(dim=-1).argmin(dim=-1, keepdim=True)
    right = right - right.gather(-1, flattest)
    solution = torch.cholesky_solve(torch.stack([right, torch.ones_like(right)], dim=-1), factor)
    ratio = solution[..., 0].sum(dim=-1, keepdim=True) / solution[..., 1].sum(dim=-1, keepdim=True)
    y = solution[..., 0] - solution[..., 1] * ratio
    # Rounding of the Schur step must not let sum(x) drift.
    return y - y.mean(dim=-1, keepdim=True)


def _ratio(room: Tensor, toward: Tensor) -> Tensor:
    """Return the longest step before `toward` uses up `room`, (N, 1); +inf where nothing shrinks."""
    return torch.where(toward > 0, room / toward, torch.inf).amin(dim=-1, keepdim=True)


def picker(size: int, index: Tensor):
    """Return a function that picks instances from tensors, and from tuples, lists and dataclasses of them."""

    def pick(tensor: Tensor) -> Tensor:
        return tensor if tensor.shape[0] != size or size == 1 else tensor[index]

    return lambda item: map_tensors(pick, item)
