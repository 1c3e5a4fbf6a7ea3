"""The optimal value as a function of what a problem depends on: the envelope theorem at multipliers that prove it.

With x and all multipliers held where they are at a solution, the derivative of min f is that of the Lagrangian,

    L(x, y, s; w) = b0 + v'x + sum_j [y_j'(A_j x + d_j) - phi_j*(y_j)] + s_lo'(lo - x) + s_hi'(x - hi)

in w, everything it depends on (Fiacco 1983, section 2.4). It is as good as these multipliers are. A value is certified
by the best bound of all iterates, and the multipliers where the iterations ended may be none of those: at vertices of
models without curvature the last steps can leave the path. So the bound of the multipliers that are held is computed,
and has to meet the value itself. Where it does not, iterations that end earlier, at a larger tolerance, stand in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from soctk.decide.ends import Ends
from soctk.decide.implicit import check_gaps
from soctk.decide.result import Final, map_tensors, picker
from soctk.forms.conic_form import ConicForm, Dual
from soctk.sets import FeasibleSet

PROVED = 1e-4
"""The relative gap of the multipliers held up to which a derivative is given: it is then off by about as much."""
EARLIER = (1e-10, 1e-9, 1e-8, 1e-7)
"""Tolerances of the iterations that may stand in; only those larger than the tolerance given are tried."""


def lagrangian(form: ConicForm, final: Final, ends: Ends | None = None) -> Tensor:
    """Return L at the last iterate, its multipliers held, (N,), as a function of what form and ends depend on."""
    fixed, points = form.detach(), final.x.unsqueeze(1)
    value = form.constant + (points * form.linear).sum(dim=-1)
    for term, plain, lag in zip(form.terms, fixed.terms, final.lags, strict=True):
        value = value + term.envelope(term.inner(points), plain.smooth_at(plain.inner(points), final.mu), lag)
    value = value.squeeze(-1)
    return value if ends is None else value + _of_ends(ends, final)


def _of_ends(ends: Ends, final: Final) -> Tensor:
    """Return s_lo'lo - s_hi'hi of all directions, the multipliers held, (N,)."""
    assert final.high is not None
    low, high = (torch.where(torch.isfinite(end), end, 0.0) for end in (ends.low, ends.high))
    return (final.low * low - final.high * high).sum(dim=1)


@torch.no_grad()
def gap_held(form: ConicForm, ends: Ends, final: Final, value: Tensor, sets: FeasibleSet | None = None) -> Tensor:
    """Return by how much values exceed what the multipliers where iterations ended prove near there, (N,).

    With q = v + sum_j A_j'y_j and r = q - D'(s_lo - s_hi) + E'nu, D the axes and R, every point z of the set has

        L(z, y) = L(x, y) + q'(z - x) >= L(x, y) - s_lo'(x - lo) - s_hi'(hi - x) - sum_i |r_i| |z_i - x_i|.

    It is a bound within 1 + |x_i| of x, which is enough: the value is certified, and f is convex. Bounds that nobody
    meant would let rounding of r count by their width. At a vertex s may be far off but y right: there the least of q
    over the set itself says more.

    Args:
        form: detached.
        ends: of the set, detached.
        final: where the iterations ended.
        value: (N,).
        sets: the set, where it is one for all.
    """
    x = final.x
    points, duals = x.unsqueeze(1), []
    for term, lag in zip(form.terms, final.lags, strict=True):
        u = term.inner(points)
        duals.append(term.implicit_dual(u, term.smooth_at(u, final.mu), lag))
    q = form.slope(Dual(tuple(duals))).squeeze(1).expand_as(x)
    high = torch.zeros_like(final.low) if final.high is None else final.high
    r = ends.imbalance(q, final)
    room = [torch.where(torch.isfinite(end), end - final.values, 0.0).abs() for end in (ends.low, ends.high)]
    reach = torch.minimum(1 + x.abs(), (ends.high - ends.low)[:, : x.shape[1]])
    below = (final.low * room[0] + high * room[1]).sum(dim=1) + (r.abs() * reach).sum(dim=1)
    if sets is not None:
        below = torch.minimum(below, (q * x).sum(dim=1) - sets.linear_minimum(q))
    gap = (value - lagrangian(form, final)).abs() + below
    return torch.where(gap.isnan(), torch.inf, gap)


@torch.no_grad()
def best_final(
    final: Final,
    tol: float,
    gap_of: Callable[[Tensor, Final], Tensor],
    solve: Callable[[Tensor, float], Final | None],
    most: float,
) -> tuple[Final, Tensor]:
    """Return where iterations ended whose multipliers prove the values, where there are any, and their gaps, (N,).

    Args:
        final: where those to the tolerance given ended.
        tol: that tolerance.
        gap_of: instances (M,) and where iterations on them ended -> relative gaps of these multipliers, (M,).
        solve: instances (M,) and a tolerance -> where iterations on them end.
        most: a gap that is small enough.
    """
    kept, gap = final, gap_of(torch.arange(final.x.shape[0], device=final.x.device), final)
    for larger in EARLIER:
        rows = torch.nonzero(~(gap <= most)).squeeze(1)
        if rows.numel() == 0:
            break
        earlier = solve(rows, larger) if larger > tol else None
        if earlier is None:
            continue
        found = gap_of(rows, earlier)
        better = torch.nonzero(~(found >= gap[rows])).squeeze(1)
        if kept is final:
            kept = map_tensors(torch.clone, final)
        if better.numel() > 0:
            kept.put(rows[better], picker(rows.numel(), better)(earlier))
            gap[rows[better]] = found[better]
    return kept, gap


class Once(torch.autograd.Function):
    """Values with the derivatives of a Lagrangian, whose own are not those of the values: its multipliers are held."""

    @staticmethod
    def forward(ctx: Any, lagrangian: Tensor, value: Tensor, gap: Tensor, max_gap: float, skip: bool) -> Tensor:
        ctx.save_for_backward(gap)
        ctx.max_gap, ctx.skip = max_gap, skip
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: second derivatives of an optimal value are not available")
        (gap,), (incoming,) = ctx.saved_tensors, outer
        if not ctx.skip:
            of = "optimal values, or the multipliers that their derivatives are taken at,"
            check_gaps(torch.arange(gap.numel(), device=gap.device), gap, incoming != 0, ctx.max_gap, of)
        return torch.where(gap <= ctx.max_gap, incoming, 0.0), *(None,) * 4
