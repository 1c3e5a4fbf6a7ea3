"""Decisions under one learned constraint, for all contexts at once: a search for its multiplier.

    L(u) = min over the set of f + u g,   u >= 0

is concave and nowhere above the optimal value, and f + u g is again one conic form, minimised with a certified lower
bound as any other. Where x(u) attains it, g(x(u)) is a slope of L: it is positive left of the best multiplier and not
positive right of it. Let x1 and x2 belong to one on either side. The two tangents of L meet at

    u = (f2 - f1) / (g1 - g2),

where L is looked at next, and the height at which they meet, an upper bound of L, is the value that the chord from
(g1, f1) to (g2, f2) has at 0. By convexity the point of the segment from x1 to x2 where the chord is 0 satisfies
g <= 0 and has at most that value. So the point found and the bound come together as the tangents do, kinks or not
(Kelley 1960, in one variable; where L consists of a few lines in about as many steps). Left of all is u = 0, where x
minimises f; right of all is the point that minimises g: if its least value is proved to be positive, there is nothing
that satisfies the constraint.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.decide.choice import NEWTON
from soctk.decide.decision import relative_gap
from soctk.decide.problem import Limits, Problem
from soctk.forms.conic_form import ConicForm
from soctk.sets import SetAt
from soctk.status import Status

STEPS = 60
"""Multipliers that are tried for a context at most; about ten are enough for most."""
SHARE = 0.1
"""Of the tolerance, for the minima that L consists of."""
SPLITS, ROUNDS = 16, 2
"""A segment is divided into so many parts, so many times, to find where the constraint is met."""
PULLED = 1e-10
"""By this share of what is left of a segment a point is moved inside, so that rounding does not put it outside."""
LEAST = 1e-9
"""The tolerance of the least value of a constraint, whatever that of decisions."""
TOUCHED = 1e-8
"""A least value up to this is taken for 0, in units of the numbers that the constraint is a sum of."""


@dataclass(frozen=True, eq=False)
class Side:
    """Points x (N, n) that minimise f + u g, with u, f(x) and g(x), each (N,)."""

    x: Tensor
    u: Tensor
    f: Tensor
    g: Tensor

    def with_those(self, where: Tensor, other: Side) -> Side:
        """Return the other's where it says so, (N,), and these elsewhere."""
        x = torch.where(where.unsqueeze(1), other.x, self.x)
        return Side(x, *(torch.where(where, getattr(other, k), getattr(self, k)) for k in ("u", "f", "g")))

    def select(self, index: Tensor) -> Side:
        """Return those of the instances `index`."""
        return Side(self.x[index], self.u[index], self.f[index], self.g[index])


@dataclass(eq=False)
class Found:
    """What is known of N instances.

    Attributes:
        x: points, (N, n).
        value: of them, (N,); inf where there is none.
        bound: lower bounds of the optimal values, (N,).
        u: the multipliers of the bounds, (N,); 1 where the constraint cannot be met, NaN where the set is empty.
        none: where it is proved that no point of the set satisfies the constraint, (N,).
    """

    x: Tensor
    value: Tensor
    bound: Tensor
    u: Tensor
    none: Tensor


def search(problem: Problem, constraint: ConicForm, limits: Limits) -> Found:
    """Minimise f subject to g <= 0 as far as the search comes.

    Args:
        problem: with a conic form, over a set that Newton steps know, on the processor.
        constraint: g at the same contexts, divided by the numbers that it is a sum of.
        limits: the tolerance and the deadline.
    """
    inner = Limits(SHARE * limits.tol, None, limits.deadline)
    first = NEWTON.solve(problem, inner)
    empty = torch.from_numpy(first.status == Status.INFEASIBLE)
    g0 = _at(constraint, first.x)
    met = g0 <= 0
    found = Found(
        x=first.x.clone(),
        value=torch.where(met, first.value, torch.inf),
        bound=first.lower_bound.clone(),
        u=torch.where(empty, torch.nan, torch.zeros_like(first.value)),
        none=empty,
    )
    left = torch.nonzero(~met & ~empty & first.lower_bound.isfinite()).squeeze(1)
    if left.numel() == 0 or limits.late:
        return found
    some, finest = constraint.select(left), Limits(min(inner.tol, LEAST), None, limits.deadline)
    least = NEWTON.solve(Problem(some, problem.select(left).feasible_set), finest)
    touched = least.value <= TOUCHED
    none = (least.lower_bound > 0) & ~touched
    found.none[left], found.u[left[none]] = none, 1.0
    # where the least value is 0 but for rounding, the constraint is relaxed to it: a bound of that is one of less
    past = least.value.clamp(min=0)
    some = dataclasses.replace(some, constant=some.constant - past.unsqueeze(-1))
    kept = torch.nonzero(touched).squeeze(1)
    left, some, past = left[kept], some.select(kept), past[kept]
    if left.numel() > 0:
        low = Side(first.x[left], torch.zeros_like(past), first.value[left], g0[left] - past)
        f = _at(problem.form.select(left), least.x[kept])
        high = Side(least.x[kept], torch.full_like(f, torch.inf), f, least.value[kept] - past)
        _close_in(problem, some, limits, found, left, low, high)
    return found


def _close_in(
    problem: Problem, g: ConicForm, limits: Limits, found: Found, left: Tensor, low: Side, high: Side
) -> None:
    """Move both sides of the instances `left`, whose constraint is g, together until point and bound meet."""
    inner, part = Limits(SHARE * limits.tol, None, limits.deadline), problem.select(left)
    f, sets = part.form, part.feasible_set
    for _ in range(STEPS):
        x = _crossing(g, low, high)
        value = _at(f, x)
        better = value < found.value[left]
        found.x[left] = torch.where(better.unsqueeze(1), x, found.x[left])
        found.value[left] = torch.where(better, value, found.value[left])
        unit = None if problem.unit is None else problem.unit[left]
        open_ = ~(relative_gap(found.value[left], found.bound[left], unit) <= limits.tol)
        if not bool(open_.any()) or limits.late:
            return
        if not bool(open_.all()):
            kept = open_.nonzero().squeeze(1)
            left, f, g = left[kept], f.select(kept), g.select(kept)
            low, high, unit = low.select(kept), high.select(kept), None if unit is None else unit[kept]
            sets = sets.select(kept) if isinstance(sets, SetAt) else sets
        meeting = (high.f - low.f) / (low.g - high.g)
        u = torch.minimum(torch.maximum(meeting, low.u), high.u)
        part = Problem(f.plus(g.scaled(u)), sets, unit)
        # From its centre: near the kinks of the last decision steps would be short.
        result = NEWTON.solve(part, inner)
        higher = result.lower_bound > found.bound[left]
        found.u[left] = torch.where(higher, u, found.u[left])
        found.bound[left] = torch.where(higher, result.lower_bound, found.bound[left])
        slope = _at(g, result.x)
        side = Side(result.x, u, result.value - u * slope, slope)
        low, high = low.with_those(side.g > 0, side), high.with_those(side.g <= 0, side)


def _crossing(g: ConicForm, low: Side, high: Side) -> Tensor:
    """Return, of the segments from low to high, where g <= 0, the points nearest to low that satisfy it, (N, n).

    Segments are divided, and the parts in which g becomes 0; where the chord of what is left is 0 the constraint is
    met, by convexity.
    """
    steps = torch.linspace(0, 1, SPLITS + 1, dtype=low.x.dtype).unsqueeze(0)
    shares = steps.expand(len(low.u), -1)
    above = torch.stack([low.g, high.g], dim=1)
    for _ in range(ROUNDS):
        values = torch.cat([above[:, :1], g.evaluate(_between(low, high, shares[:, 1:-1])), above[:, 1:]], dim=1)
        cell = (values[:, 1:-1] > 0).sum(dim=1, keepdim=True)
        cell = torch.cat([cell, cell + 1], dim=1)
        above, ends = values.gather(1, cell), shares.gather(1, cell)
        shares = torch.lerp(ends[:, :1], ends[:, 1:], steps)
    root = above[:, :1] / (above[:, :1] - above[:, 1:])
    points = _between(low, high, torch.lerp(ends[:, :1], ends[:, 1:], (root + PULLED).clamp(max=1)))[:, 0]
    met = (_at(g, points) <= 0).unsqueeze(1)
    return torch.where(met, points, torch.where(ends[:, 1:] == 1, high.x, _between(low, high, ends[:, 1:])[:, 0]))


def _between(low: Side, high: Side, shares: Tensor) -> Tensor:
    """Return points of the segments, (N, M) -> (N, M, n)."""
    return torch.lerp(low.x.unsqueeze(1), high.x.unsqueeze(1), shares.unsqueeze(2))


def _at(form: ConicForm, x: Tensor) -> Tensor:
    """Return the values at one point of each function, (N, n) -> (N,)."""
    return form.evaluate(x.unsqueeze(1)).squeeze(-1)
