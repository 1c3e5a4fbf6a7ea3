"""Decisions in thousands of variables where only bounds hold: smoothing Newton steps by conjugate gradients.

    min f(x) over lo <= x <= hi,   f_mu the smoothed f (`Term.smooth`),   0 <= |f_mu - f| = O(mu).

A projected Newton method (Bertsekas 1982): coordinates at a bound that the gradient holds there are left out, the
others move along the solution of H d = -g, by conjugate gradients to a residual that falls with the gradient (Dembo,
Eisenstat and Steihaug 1982), and a backtracking search follows the projected arc. H is the Hessian with *dual iterates*
of `soctk.decide.newton` (Chan, Golub and Mulet 1999), so that steps stay long while mu is small. The smoothed slopes
and the dual iterates both give the rigorous bound of `ConicForm.bound`; mu is lowered where it, and no longer the
iterations, holds up the gap. It needs forward, adjoint and products with each term's Hessian: no matrix in n by n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from soctk.decide.first_order import FirstOrder
from soctk.decide.loop import State, iterate
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result
from soctk.decide.smoothing import first_width, smooth_at, smoothed_dual, smoothed_value
from soctk.decide.solver import FormSolver, Solver
from soctk.forms.conic_form import ConicForm, Dual
from soctk.sets import FeasibleSet
from soctk.terms.base import Smoothed

CG_STEPS = 250
LARGEST_RESIDUAL = 0.1
FIRST_SMOOTHING = 0.5
"""The first smoothing, all kinks together, as a share of the first gap."""
SMOOTHING_FALL = 0.1
SETTLED = 0.5
"""The share of the gap that steps can still close, below which mu is lowered."""
NEAR_BOUND = 1e-3
"""Coordinates within this share of their range, or within the projected step, count as being at a bound."""
ARMIJO = 1e-4
BACKTRACK = 0.4
TRIALS = 15
PROGRESS = 0.9
STALLED_STEPS = 12
"""Steps in which neither the gap nor its movable part falls by a tenth, nor mu, before an instance is given up."""

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class NewtonCG(FormSolver):
    """Newton steps by conjugate gradients between bounds: certified, for thousands of variables.

    Attributes:
        max_iter: the most Newton steps for each instance, where the limits say nothing.
        second: solves again what this one left short of the tolerance, unless an instance ran into a limit below
            `max_iter`; None for no other.
    """

    name: ClassVar[str] = "newton_cg"
    max_iter: int = 200
    second: Solver | None = field(default_factory=FirstOrder)

    def refuses(self, problem: Problem) -> str | None:
        """Return why it cannot solve the problem, None where it can."""
        rows = problem.presolved.reduced.rows()
        if rows is None or not rows.at_most_a_sum or rows.total is not None:
            return 'method: "newton_cg" works between finite bounds alone; use "first_order"'
        return super().refuses(problem)

    def _solve(self, problem: Problem, limits: Limits, max_iter: int, start: Tensor | None) -> Result:
        form = problem.form
        x = problem.center if start is None else start
        state = _State.initial(form, problem.feasible_set, x)
        best = Result.unanswered(x, problem.unit)
        return iterate(form, state, problem.feasible_set, best, limits, max_iter=max_iter)


@dataclass
class _State(State):
    """The iterate of every active instance: points (N, n), numbers (N, 1), the duals of the last pass."""

    x: Tensor
    mu: Tensor
    first_norm: Tensor
    gap: Tensor
    movable: Tensor
    waiting: Tensor
    lags: list[Any]
    parts: list[Smoothed]

    @classmethod
    def initial(cls, form: ConicForm, feasible_set: FeasibleSet, x: Tensor) -> _State:
        mu = first_width(form, feasible_set, x, FIRST_SMOOTHING)
        parts = smooth_at(form, x, mu)
        lags = [term.initial_lag(part) for term, part in zip(form.terms, parts, strict=True)]
        endless = torch.full_like(mu, torch.inf)
        return cls(x.clone(), mu, torch.zeros_like(mu), endless, endless, torch.zeros_like(mu), lags, parts)

    def record(
        self, form: ConicForm, fixed: FeasibleSet, best: Result, rows: Tensor, iteration: int, last: bool
    ) -> Tensor:
        """Improve the best points and bounds; lower mu where it holds up the gap; return which are stalled."""
        x, (smooth, lagged) = self.x, self.duals(form)
        value = form.evaluate(x.unsqueeze(1)).squeeze(-1)
        bound = form.bound(smooth, fixed).squeeze(-1)
        best.improve(rows, x, value, torch.maximum(bound, form.bound(lagged, fixed).squeeze(-1)))
        gap = (best.value[rows] - best.lower_bound[rows]).unsqueeze(-1)
        slope = form.slope(smooth).squeeze(1).expand_as(x)
        movable = ((slope * x).sum(dim=-1) - fixed.linear_minimum(slope)).unsqueeze(-1)
        settled = movable < SETTLED * (value - bound).unsqueeze(-1)
        better = settled | (gap < PROGRESS * self.gap) | (movable < PROGRESS * self.movable)
        self.waiting = torch.where(better, 0.0, self.waiting + 1)
        self.gap = torch.where(better, torch.minimum(gap, self.gap), self.gap)
        self.movable = torch.where(settled, torch.inf, torch.where(better, movable, self.movable))
        if bool(settled.any()):
            self.mu = torch.where(settled, SMOOTHING_FALL * self.mu, self.mu)
            self.parts = smooth_at(form, x, self.mu)
        return (self.waiting >= STALLED_STEPS).squeeze(-1)

    def duals(self, form: ConicForm) -> tuple[Dual, Dual]:
        """Return the smoothed slopes and the dual iterates."""
        pairs = zip(form.terms, self.parts, self.lags, strict=True)
        return smoothed_dual(self.parts), Dual(tuple(t.lagged_dual(p, lag) for t, p, lag in pairs))

    def advance(self, form: ConicForm, fixed: FeasibleSet) -> None:
        """Take one projected Newton step on the smoothed objective."""
        lo, hi = fixed.hull(self.x.dtype, self.x.device)
        gradient = form.slope(self.duals(form)[0]).squeeze(1).expand_as(self.x)
        product = self._hessian(form)
        free = self._free(gradient, product, lo, hi)
        norm = (gradient * free).norm(dim=-1, keepdim=True)
        self.first_norm = torch.where(self.first_norm > 0, self.first_norm, norm)
        wanted = (norm / self.first_norm.clamp(min=torch.finfo(norm.dtype).tiny)).sqrt().clamp(max=LARGEST_RESIDUAL)
        direction = conjugate_gradients(lambda d: free * product(free * d), -gradient * free, wanted)
        bound = torch.where(gradient > 0, lo, hi) - self.x
        flat = (direction * gradient).sum(dim=-1, keepdim=True) == 0  # no curvature at all along the gradient
        direction = torch.where(free & ~flat, direction, bound)
        moved = self._search(form, gradient, direction, lo, hi)
        self._move(form, moved, direction * free)

    def _hessian(self, form: ConicForm) -> Product:
        """Return d -> H d, (N, n) -> (N, n)."""

        def product(d: Tensor) -> Tensor:
            total = torch.zeros_like(d)
            for term, part, lag in zip(form.terms, self.parts, self.lags, strict=True):
                du = term.map.forward(d.unsqueeze(1))
                total = total + term.map.adjoint(term.curvature(part, lag, du)).squeeze(1)
            return total

        return product

    def _free(self, gradient: Tensor, product: Product, lo: Tensor, hi: Tensor) -> Tensor:
        """Return which coordinates are not held at a bound by the gradient."""
        squared = gradient.square().sum(dim=-1, keepdim=True)
        curvature = (gradient * product(gradient)).sum(dim=-1, keepdim=True)
        step = squared / curvature.clamp(min=torch.finfo(squared.dtype).tiny)
        shift = (self.x - torch.clamp(self.x - step * gradient, lo, hi)).abs().amax(dim=-1, keepdim=True)
        near = torch.minimum(NEAR_BOUND * (hi - lo), shift)
        return ~(((self.x <= lo + near) & (gradient > 0)) | ((self.x >= hi - near) & (gradient < 0)))

    def _search(self, form: ConicForm, gradient: Tensor, direction: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
        """Return the first point of the projected arc with enough decrease; where there is none, the point itself."""
        value = smoothed_value(form, self.x, self.parts)
        slack = 8 * torch.finfo(value.dtype).eps * value.abs()
        length, moved = torch.ones_like(value), self.x
        pending = torch.ones_like(value, dtype=torch.bool)
        for _ in range(TRIALS):
            trial = torch.clamp(self.x + length * direction, lo, hi)
            decrease = (gradient * (trial - self.x)).sum(dim=-1, keepdim=True)
            good = smoothed_value(form, trial, smooth_at(form, trial, self.mu)) <= value + ARMIJO * decrease + slack
            moved = torch.where(pending & good, trial, moved)
            pending = pending & ~good
            if not bool(pending.any()):
                break
            length = torch.where(pending, BACKTRACK * length, length)
        return moved

    def _move(self, form: ConicForm, moved: Tensor, direction: Tensor) -> None:
        """Advance the dual iterates along the Newton direction and the point to `moved`."""
        steps = [term.map.forward(direction.unsqueeze(1)) for term in form.terms]
        triples = zip(form.terms, self.parts, self.lags, steps, strict=True)
        self.lags = [term.advance_lag(part, lag, du) for term, part, lag, du in triples]
        self.x, self.parts = moved, smooth_at(form, moved, self.mu)


def conjugate_gradients(product: Product, right: Tensor, tolerance: Tensor) -> Tensor:
    """Return d with ||H d - b|| <= tolerance ||b|| for every instance, H positive semidefinite: (N, n) -> (N, n)."""
    d, residual, p = torch.zeros_like(right), right, right
    squared = residual.square().sum(dim=-1, keepdim=True)
    goal = tolerance.square() * squared
    tiny = torch.finfo(right.dtype).tiny
    for _ in range(CG_STEPS):
        going = squared > goal
        if not bool(going.any()):
            break
        image = product(p)
        curvature = (p * image).sum(dim=-1, keepdim=True)
        going = going & (curvature > tiny)
        length = torch.where(going, squared / curvature.clamp(min=tiny), 0.0)
        d, residual = d + length * p, residual - length * image
        following = residual.square().sum(dim=-1, keepdim=True)
        p = residual + torch.where(going, following / squared.clamp(min=tiny), 0.0) * p
        squared = torch.where(going, following, 0.0)
    return d
