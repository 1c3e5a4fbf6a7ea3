"""Decisions as functions of what their problems depend on: the implicit function theorem at the last iterate.

At the solution of the smoothed barrier problem (soctk.decide.newton)

    g(x, w) - s_lo + s_hi + E'nu = 0,    s_lo (x - lo) = mu,    s_hi (hi - x) = mu,    E x = f,

g the gradient of f and w everything it depends on. So dx = -K dg, dg the change of g at fixed x and K the inverse of
H + diag(s / room) on {E dx = 0}. H is the Hessian with dual iterates that the Newton steps use, and dg comes from
autograd through the same dual iterates (`Term.implicit_dual`): at a kink the smoothed curvature is a quotient of two
numbers that are nearly zero, the dual variable is not.

An end or kink that holds a decision is infinitely stiff, one that does not is not there. In H + diag(s / room) = C + B,
C the curvature of f itself, B is made of their stiffnesses, which are large or small. Where C = 1 and B = b, K is
1 / (1 + b), which were 0 if what b stands for held and 1 if it did not: from one of them it is off by twice
K B K = b / (1 + b)^2 at most, and so it is in any dimension, along common eigenvectors of C and B. Where that is
little, K is right and f has curvature of its own in every direction that is left. Elsewhere the solution is taken for
what it is, a vertex or nearly one (soctk.decide.active_set).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from soctk.decide.active_set import find_active_set, largest_parts
from soctk.decide.batched import inverse_of
from soctk.decide.decision import relative_gap
from soctk.decide.ends import Ends, dependent, sides, turns
from soctk.decide.result import Final, Result, map_tensors, picker
from soctk.decide.rules import is_polyhedral
from soctk.forms.conic_form import ConicForm, Dual
from soctk.terms.base import Smoothed

LEAST_PIVOT = 1e-11
"""Of the Cholesky factorisation, relative to the diagonal: what is left of 16 digits is then 5."""
LARGEST_ERROR = 1e-3
"""Of what a coordinate gives way by, by which the system may be off."""
LARGEST_RESIDUAL = 5e-3
"""Of the gradient, in units of the numbers that it is the sum of: derivatives in matrices are off by as much."""
ROUNDED_AWAY = 1e-12
"""Of f's curvature beside the weight of a row, whose rounding errors reach what is flat across it: a ten-thousandth."""
NAMED = 5
"""Instances that a refusal names."""


class System(Protocol):
    """Equations that hold at N solutions and determine them.

    Attributes:
        verified: whether they do, as far as numbers can tell, bool (N,).
    """

    verified: Tensor

    def equations(self, form: ConicForm, ends: Ends) -> Tensor:
        """Return what is zero at the solutions as a function of what form and ends depend on, (N, m)."""
        ...

    def solve(self, incoming: Tensor) -> Tensor:
        """Return minus the derivative of <incoming, x> in the equations, (N, n) -> (N, m)."""
        ...


def settle(form: ConicForm, result: Result) -> Result:
    """Return a result whose `Final`, if any, is finite; where it was not, the lower bound is -inf and others stand in.

    No derivative is given there. It counts as zero in a batch, and zero times NaN would be NaN.
    """
    final = result.final
    if final is None or bool((ended := final.ended).all()):
        return result
    rows, size = torch.nonzero(~ended).squeeze(1), form.size
    plain, points = part_of(form.detach(), rows), result.x[rows].unsqueeze(1)
    mu = torch.ones_like(final.mu[rows])
    lags = [term.initial_lag(term.smooth(term.inner(points), mu)) for term in plain.terms]
    none = picker(size, rows)(map_tensors(torch.zeros_like, final))
    final.put(rows, replace(none, x=result.x[rows], mu=mu, lags=lags))
    lower_bound = torch.where(ended, result.lower_bound, -torch.inf)
    return replace(result, lower_bound=lower_bound)


def differentiable(
    form: ConicForm, ends: Ends, result: Result, max_gap: float, *, skip: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the points of a result with a `Final` as a function of what form and ends depend on, (N, n).

    With `skip` those that cannot be differentiated are constants of the derivative, instead of an error.

    Returns:
        The points; and which of them have a derivative, bool (N,).
    """
    final, size = result.final, form.size
    if final is None or size == 0:
        return result.x + 0.0 * form.constant, torch.ones(size, dtype=torch.bool, device=result.x.device)
    gap, turning, moving = relative_gap(result.value, result.lower_bound), turns(ends, final), ends.requires_grad
    plain, fixed, rest, systems = form.detach(), ends.detach(), torch.arange(size, device=gap.device), []
    if not is_polyhedral(form):
        barrier = Barrier.of(plain, fixed, final, moving=moving)
        sound, rest = torch.nonzero(barrier.verified).squeeze(-1), torch.nonzero(~barrier.verified).squeeze(-1)
        if sound.numel() > 0:
            systems.append((sound, barrier.select(sound)))
    if rest.numel() > 0:
        part = fixed.select(rest, size)
        systems.append((rest, find_active_set(part_of(plain, rest), part, picker(size, rest)(final), moving=moving)))
    points, given = [], []
    for rows, system in systems:
        equations = system.equations(part_of(form, rows), ends.select(rows, size))
        verified = system.verified & ~turning[rows]
        given.append(verified & (gap[rows] <= max_gap))
        points.append(_Implicit.apply(equations, result.x[rows], system, rows, verified, given[-1], gap, max_gap, skip))
    if len(systems) == 1:
        return points[0], given[0]
    order = torch.cat([rows for rows, _ in systems]).argsort()
    return torch.cat(points)[order], torch.cat(given)[order]


def part_of(form: ConicForm, rows: Tensor) -> ConicForm:
    """Return the functions of some instances, in order; the form itself for all of them."""
    return form if rows.numel() == form.size else form.select(rows)


@dataclass(frozen=True, eq=False)
class Barrier:
    """The system above.

    Attributes:
        point: the last iterate, (N, n).
        hessian, inverse: C + B and K, (N, n, n).
        smoothed: the terms at the last iterate.
        lags: their dual iterates.
        low, high: s / room of the ends of all directions, (N, n + m); 0 where there is none.
        bounds: of the set.
        verified: see `System`.
    """

    point: Tensor
    hessian: Tensor
    inverse: Tensor
    smoothed: list[Smoothed]
    lags: list
    low: Tensor
    high: Tensor
    bounds: Ends
    verified: Tensor

    @classmethod
    def of(cls, form: ConicForm, bounds: Ends, final: Final, *, moving: bool) -> Barrier:
        """Return the system of a detached form; `moving` if decisions are a function of the ends too."""
        n = final.x.shape[1]
        low = final.low / (final.values - bounds.low)
        high = torch.zeros_like(low) if final.high is None else final.high / (bounds.high - final.values)
        weights = low + high
        stiff, smoothed = torch.diag_embed(weights[:, :n]), []
        curvature = torch.zeros_like(stiff)
        if weights.shape[1] > n:
            stiff = stiff + bounds.R.mT @ (weights[:, n:].unsqueeze(-1) * bounds.R)
        for term, lag in zip(form.terms, final.lags, strict=True):
            smoothed.append(term.smooth_at(term.inner(final.x.unsqueeze(1)), final.mu))
            term.add_hessians(stiff, curvature, smoothed[-1], lag)
        hessian = stiff + curvature
        factor, failed = torch.linalg.cholesky_ex(hessian)
        pivots = factor.diagonal(dim1=1, dim2=2).square()
        verified = (failed == 0) & (pivots >= LEAST_PIVOT * hessian.diagonal(dim1=1, dim2=2)).all(dim=1)
        if weights.shape[1] > n:
            verified &= pivots.amin(dim=1) >= ROUNDED_AWAY * weights[:, n:].amax(dim=1)
        if moving:  # one that moves parts what meets there; as long as all stay, all that are held hold
            verified &= ~dependent(bounds, sides(bounds, final) == 0)
        # Dual iterates that the last step has left behind are not those of the solution.
        terms = zip(form.terms, smoothed, final.lags, strict=True)
        duals = tuple(term.lagged_dual(smooth, lag) for term, smooth, lag in terms)
        left = bounds.imbalance(form.slope(Dual(duals)).squeeze(1).expand_as(final.x), final)
        verified &= (left.abs() <= LARGEST_RESIDUAL * largest_parts(form, duals)).all(dim=1)
        inverse = inverse_of(factor, bounds)
        moves, most = inverse.diagonal(dim1=1, dim2=2), curvature.diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True)
        off = ((stiff @ inverse) * inverse).sum(dim=1)
        least = torch.where(most > 0, 1 / most, 0.0)  # what f leaves of a move where it is most curved
        verified &= (off <= LARGEST_ERROR * moves.maximum(least)).all(dim=1)
        return cls(final.x, hessian, inverse, smoothed, final.lags, low, high, bounds, verified)

    def select(self, rows: Tensor) -> Barrier:
        """Return the system of the instances `rows`, in order; the system itself for all of them."""
        if rows.numel() == self.verified.numel():
            return self
        pick = picker(self.inverse.shape[0], rows)
        parts = (self.point, self.hessian, self.inverse, self.smoothed, self.lags, self.low, self.high)
        tensors = (pick(part) for part in parts)
        return Barrier(*tensors, self.bounds.select(rows, self.inverse.shape[0]), pick(self.verified))

    def equations(self, form: ConicForm, ends: Ends) -> Tensor:
        """Return g - D'(s_lo / room lo + s_hi / room hi), (N, n): what moves an end moves the multiplier on it."""
        terms, x = zip(form.terms, self.smoothed, self.lags, strict=True), self.point
        duals = tuple(term.implicit_dual(term.inner(x.unsqueeze(1)), smoothed, lag) for term, smoothed, lag in terms)
        g = form.slope(Dual(duals)).squeeze(1).expand_as(x)
        if not ends.requires_grad:
            return g
        moved = torch.zeros_like(self.low)
        for weights, end in ((self.low, ends.low), (self.high, ends.high)):
            moved = moved + weights * torch.where(torch.isfinite(end), end, 0.0)
        return g - moved[:, : x.shape[1]] - moved[:, x.shape[1] :] @ ends.R

    def solve(self, incoming: Tensor) -> Tensor:
        """Return K incoming, refined: what stiff kinks move by is large, and cancels."""
        incoming = incoming.unsqueeze(-1)
        found = self.inverse @ incoming
        return (found + self.inverse @ (incoming - self.hessian @ found)).squeeze(-1)


class _Implicit(torch.autograd.Function):
    """Decisions as a function of equations that hold there."""

    @staticmethod
    def forward(
        ctx: Any,
        equations: Tensor,
        x: Tensor,
        system: System,
        rows: Tensor,
        verified: Tensor,
        given: Tensor,
        gap: Tensor,
        max_gap: float,
        skip: bool,
    ) -> Tensor:
        ctx.save_for_backward(rows, verified, given, gap)
        ctx.system, ctx.max_gap, ctx.skip = system, max_gap, skip
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: second derivatives of a decision are not available")
        (rows, verified, given, gap), (incoming,) = ctx.saved_tensors, outer
        if not ctx.skip:
            weighty = (incoming != 0).any(dim=-1)
            check_gaps(rows, gap, weighty, ctx.max_gap)
            _check_verified(rows, gap.numel(), ~verified & weighty)
        return torch.where(given.unsqueeze(-1), -ctx.system.solve(incoming), 0.0), *(None,) * 8


def check_gaps(rows: Tensor, gap: Tensor, weighty: Tensor, max_gap: float, of: str = "decisions") -> None:
    """Raise RuntimeError where decisions, or whose gaps they are, have a weight in the loss and too large a gap."""
    refused = ~(gap[rows] <= max_gap) & weighty
    if bool(refused.any()):
        raise RuntimeError(
            f"{int(refused.sum())} of {gap.numel()} {of} have a relative gap above max_gap = {max_gap:g} "
            f"(the largest is {float(gap[rows][refused].max()):.1e}; {named(rows[refused])}): their derivatives would "
            "mean nothing. Raise max_iter, tol or max_gap, or give these no weight in the loss"
        )


def _check_verified(rows: Tensor, size: int, refused: Tensor) -> None:
    """Raise RuntimeError where decisions with a weight in the loss jump or turn with the smallest change."""
    if bool(refused.any()):
        raise RuntimeError(
            f"{int(refused.sum())} of {size} decisions have no derivative ({named(rows[refused])}): other decisions "
            "are as good (then give the model curvature, a quadratic branch), or they turn with the smallest change: "
            "at a kink or bound that holds them by nothing (a multiplier of zero), as where f is flat, or where more "
            "of those that move meet than determine a decision. Give them no weight in the loss, or leave them out: "
            "skip_undefined=True"
        )


def named(rows: Tensor) -> str:
    """Return which instances of the flattened batch are meant, the first few of them."""
    names = ", ".join(str(row) for row in rows[:NAMED].tolist())
    return f"instance{'s' if rows.numel() > 1 else ''} {names}{', ...' if rows.numel() > NAMED else ''}"
