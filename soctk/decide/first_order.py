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

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from soctk.decide.loop import State, iterate
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result
from soctk.decide.smoothing import first_width, smooth_at, smoothed_dual, smoothed_value
from soctk.decide.solver import FormSolver, Solver
from soctk.forms.conic_form import ConicForm
from soctk.sets import FeasibleSet
from soctk.status import Status

CHECK_EVERY = 10
SMOOTHING_FALL = 0.25
FIRST_SMOOTHING = 0.1
"""The first smoothing, all kinks together, as a share of the first gap."""
STEP_GROWTH = 0.9
"""The curvature estimate shrinks by this factor with each step, so that steps can grow again."""
BACKTRACKS = 60
PROGRESS = 0.9
PATIENCE = 2000
"""Steps in which the gap does not fall by a tenth before an instance is given up."""


@dataclass(frozen=True)
class FirstOrder(FormSolver):
    """Smoothing and accelerated projected gradients: certified, for thousands of variables on any set.

    Attributes:
        max_iter: the most gradient steps for each instance, where the limits say nothing.
        second: solves again what this one left short of the tolerance, unless an instance ran into a limit below
            `max_iter`; None for no other.
        patience: steps in which the gap does not fall by a tenth before an instance is given up.
    """

    name: ClassVar[str] = "first_order"
    max_iter: int = 20_000
    second: Solver | None = None
    patience: int = PATIENCE

    def _solve(self, problem: Problem, limits: Limits, max_iter: int, start: Tensor | None) -> Result:
        x = problem.center if start is None else start
        best = Result.unanswered(x, problem.unit)
        best.status.fill(Status.TIME_LIMIT)
        for some in problem.groups(torch.arange(problem.size, device=x.device), limits):
            if some.numel() == problem.size:
                return self._together(problem, limits, max_iter, x)
            found = self._together(problem.select(some), limits, max_iter, x[some])
            best.improve(some, found.x, found.value, found.lower_bound)
            best.iterations[some], best.status[some.cpu().numpy()] = found.iterations, found.status
        return best

    def _together(self, problem: Problem, limits: Limits, max_iter: int, x: Tensor) -> Result:
        """Minimise every function at once, from points (N, n)."""
        form, feasible_set, best = problem.form, problem.feasible_set, Result.unanswered(x, problem.unit)
        state = _State.initial(form, feasible_set, x, self.patience)
        return iterate(form, state, feasible_set, best, limits, max_iter=max_iter, every=CHECK_EVERY)


@dataclass
class _State(State):
    """The iterate of every active instance: points (N, n), numbers (N, 1)."""

    x: Tensor
    previous: Tensor
    momentum: Tensor
    curvature: Tensor
    mu: Tensor
    gap: Tensor
    since: Tensor
    patience: Tensor

    @classmethod
    def initial(cls, form: ConicForm, feasible_set: FeasibleSet, x: Tensor, patience: int) -> _State:
        mu = first_width(form, feasible_set, x, FIRST_SMOOTHING)
        one = torch.ones_like(mu)
        return cls(x.clone(), x.clone(), one, one, mu, torch.full_like(mu, torch.inf), 0 * mu, patience * one)

    def record(
        self, form: ConicForm, fixed: FeasibleSet, best: Result, rows: Tensor, iteration: int, last: bool
    ) -> Tensor:
        """Improve the best points and bounds; lower mu where smoothing holds the gap up; return which are stalled."""
        x = self.x
        value = form.evaluate(x.unsqueeze(1)).squeeze(-1)
        dual = smoothed_dual(smooth_at(form, x, self.mu))
        bound = form.bound(dual, fixed).squeeze(-1)
        slope = form.slope(dual).squeeze(1)
        movable = (slope * x).sum(dim=-1) - fixed.linear_minimum(slope.expand_as(x))
        settled = (movable < 0.5 * (value - bound)).unsqueeze(-1)
        best.improve(rows, x, value, bound)
        gap = (best.value[rows] - best.lower_bound[rows]).unsqueeze(-1)
        better = gap < PROGRESS * self.gap
        self.since = torch.where(better, 0.0, self.since + CHECK_EVERY)
        self.gap = torch.where(better, gap, self.gap)
        self.mu = torch.where(settled, SMOOTHING_FALL * self.mu, self.mu)
        self.momentum = torch.where(settled, 1.0, self.momentum)
        return (self.since >= self.patience).squeeze(-1)

    def advance(self, form: ConicForm, fixed: FeasibleSet) -> None:
        """Take one accelerated step on the smoothed objective."""
        following = 0.5 * (1 + (1 + 4 * self.momentum.square()).sqrt())
        y = self.x + (self.momentum - 1) / following * (self.x - self.previous)
        parts = smooth_at(form, y, self.mu)
        value, gradient = smoothed_value(form, y, parts), form.slope(smoothed_dual(parts)).squeeze(1).expand_as(y)
        curvature = STEP_GROWTH * self.curvature
        moved = self.x
        for _ in range(BACKTRACKS):
            moved = fixed._project(y - gradient / curvature)
            step = moved - y
            model = (
                value + (gradient * step).sum(-1, keepdim=True) + 0.5 * curvature * step.square().sum(-1, keepdim=True)
            )
            slack = 4 * torch.finfo(y.dtype).eps * value.abs().clamp(min=1.0)
            short = smoothed_value(form, moved, smooth_at(form, moved, self.mu)) > model + slack
            if not bool(short.any()):
                break
            curvature = torch.where(short, 2 * curvature, curvature)
        uphill = ((y - moved) * (moved - self.x)).sum(dim=-1, keepdim=True) > 0
        self.momentum = torch.where(uphill, 1.0, following)
        self.previous, self.x, self.curvature = torch.where(uphill, moved, self.x), moved, curvature
