"""Decisions in thousands of variables: smoothing and accelerated projected gradients, with the same certificate.

    min f(x) over the set,  f_mu the smoothed f (`Term.smooth`),  0 <= |f_mu - f| = O(mu).

Accelerated projected gradient steps (Beck and Teboulle 2009) on f_mu with a step size found by backtracking and the
momentum dropped when it points uphill (O'Donoghue and Candes 2015). The dual point of the smoothed slopes gives the
rigorous bound of `ConicForm.bound`; the gap to it is

    f(x) - bound = [g'x - min over the set of g's]  +  [what smoothing costs at x],   g the gradient of f_mu,

and mu is lowered when the first part, which iterations can lower, has become smaller than the second, which they
cannot. It needs forward, adjoint and projection only: no matrix in n by n.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.decide.batched import picker
from soctk.decide.decision import Status
from soctk.decide.result import Result
from soctk.forms.conic_form import ConicForm, Dual
from soctk.sets import FeasibleSet

DEFAULT_STEPS = 20_000
CHECK_EVERY = 10
SMOOTHING_FALL = 0.25
FIRST_SMOOTHING = 0.1
"""The first smoothing, all kinks together, as a share of the first gap."""
STEP_GROWTH = 0.9
"""The curvature estimate shrinks by this factor with each step, so that steps can grow again."""
BACKTRACKS = 60


def solve_first_order(
    form: ConicForm,
    feasible_set: FeasibleSet,
    *,
    tol: float,
    max_iter: int = DEFAULT_STEPS,
    deadline: float = float("inf"),
    start: Tensor | None = None,
    scale: Tensor | None = None,
) -> Result:
    """Minimise every function of `form` over the set.

    Args:
        form: N functions, detached.
        feasible_set: the set.
        tol: gap to reach, in units of `scale`.
        max_iter: gradient steps for each instance.
        deadline: `time.perf_counter()` value to stop at.
        start: (N, n) feasible starting points; the centre by default.
        scale: (N,), the unit of the gap; max(1, |value|) by default.
    """
    size = form.size
    x = feasible_set.center(form.dtype, form.linear.device).expand(size, form.dim) if start is None else start
    best = Result.unanswered(x, scale)
    active = torch.arange(size, device=x.device)
    state = _State.initial(form, feasible_set, x)
    for iteration in range(max_iter + 1):
        if iteration % CHECK_EVERY == 0 or iteration == max_iter:
            done = _record(best, active, form, feasible_set, state, tol, iteration)
            best.status[active[done].cpu().numpy()] = Status.OPTIMAL
            if bool(done.all()) or iteration == max_iter:
                break
            if time.perf_counter() > deadline:
                best.status[active[~done].cpu().numpy()] = Status.TIME_LIMIT
                break
            if bool(done.any()):
                index = torch.nonzero(~done).squeeze(-1)
                active, form, state = active[index], form.select(index), picker(done.numel(), index)(state)
        state.advance(form, feasible_set)
    return best


@dataclass
class _State:
    """The iterate of every active instance: points (N, n), numbers (N, 1)."""

    x: Tensor
    previous: Tensor
    momentum: Tensor
    curvature: Tensor
    mu: Tensor

    @classmethod
    def initial(cls, form: ConicForm, feasible_set: FeasibleSet, x: Tensor) -> _State:
        points = x.unsqueeze(1)
        gap = form.evaluate(points) - form.bound(form.subgradients(points), feasible_set)
        kinks = max(1, sum(term.offset.shape[-1] for term in form.terms))
        mu = (FIRST_SMOOTHING * gap / kinks).clamp(min=1e-12)
        return cls(x.clone(), x.clone(), torch.ones_like(mu), torch.ones_like(mu), mu)

    def advance(self, form: ConicForm, feasible_set: FeasibleSet) -> None:
        """Take one accelerated step on the smoothed objective."""
        following = 0.5 * (1 + (1 + 4 * self.momentum.square()).sqrt())
        y = self.x + (self.momentum - 1) / following * (self.x - self.previous)
        value, dual = smoothed(form, y, self.mu)
        gradient = form.slope(dual).squeeze(1).expand_as(y)
        curvature = STEP_GROWTH * self.curvature
        moved = self.x
        for _ in range(BACKTRACKS):
            moved = feasible_set._project(y - gradient / curvature)
            step = moved - y
            model = (
                value + (gradient * step).sum(-1, keepdim=True) + 0.5 * curvature * step.square().sum(-1, keepdim=True)
            )
            slack = 4 * torch.finfo(y.dtype).eps * value.abs().clamp(min=1.0)
            short = smoothed(form, moved, self.mu)[0] > model + slack
            if not bool(short.any()):
                break
            curvature = torch.where(short, 2 * curvature, curvature)
        uphill = ((y - moved) * (moved - self.x)).sum(dim=-1, keepdim=True) > 0
        self.momentum = torch.where(uphill, 1.0, following)
        self.previous, self.x, self.curvature = torch.where(uphill, moved, self.x), moved, curvature


def smoothed(form: ConicForm, x: Tensor, mu: Tensor) -> tuple[Tensor, Dual]:
    """Return f_mu(x), (N, 1), and its dual point."""
    points = x.unsqueeze(1)
    parts = [term.smooth(term.inner(points), mu) for term in form.terms]
    value = form.constant + (points * form.linear).sum(dim=-1)
    for part in parts:
        value = value + part.value
    return value, Dual(tuple(part.dual for part in parts))


def _record(
    best: Result,
    active: Tensor,
    form: ConicForm,
    feasible_set: FeasibleSet,
    state: _State,
    tol: float,
    iteration: int,
) -> Tensor:
    """Update the best points and bounds; lower mu where smoothing holds the gap up; return which are done."""
    x = state.x
    value = form.evaluate(x.unsqueeze(1)).squeeze(-1)
    dual = smoothed(form, x, state.mu)[1]
    bound = form.bound(dual, feasible_set).squeeze(-1)
    slope = form.slope(dual).squeeze(1)
    movable = (slope * x).sum(dim=-1) - feasible_set.linear_minimum(slope.expand_as(x))
    settled = movable < 0.5 * (value - bound)
    state.mu = torch.where(settled.unsqueeze(-1), SMOOTHING_FALL * state.mu, state.mu)
    state.momentum = torch.where(settled.unsqueeze(-1), 1.0, state.momentum)
    best.improve(active, x, value, bound)
    best.iterations[active] = iteration
    return best.relative_gap(active) <= tol
