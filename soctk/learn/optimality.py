"""Learning from known optima: the conditions of optimality as residuals.

x* minimises f over {lo <= x <= hi, sum(x) = s} if and only if there is a nu (0 without the sum) with

    g_i = nu where lo_i < x*_i < hi_i,   g_i >= nu where x*_i = lo_i,   g_i <= nu where x*_i = hi_i,   g = grad f(x*).

The residual of a coordinate is how far g_i - nu is from that; for sets with other rows see `NormalCones`. Each optimum
may be that of a set of its own (`Polyhedron.at`), of which the conditions know what holds with equality. No inner
problem is solved, and the mean square over known optima is a loss that says what the values of candidates say least
clearly: where the minimum is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor, check_kind
from soctk.decide.minimize import minimize
from soctk.learn.data import ValueData, groups_of, split_groups
from soctk.learn.normal_cone import NormalCones
from soctk.learn.units import Standardized, mean_and_spread
from soctk.sets import Box, Budget, FeasibleSet, Rows, SetAt
from soctk.surrogate import ConvexSurrogate

NEAR = 1e-3
"""Solvers stop a little before a bound, and files hold few digits. In units of a coordinate's range or of x's spread,
the smaller: an optimum this close to a bound is taken to be at it, one outside by less is moved onto the set. Optima
whose sums differ by less, relative to their size, are taken to share one."""
TINY = torch.finfo(torch.float64).tiny
ON_SET = 1e-9
"""Points no further outside of a set of their own, in units of its numbers, are left where they are."""


@dataclass(frozen=True, eq=False)
class Optima:
    """Known optimal decisions x (N, n) at contexts (N, p), and what they are optimal in: one set, or one for each."""

    context: Tensor
    x: Tensor
    feasible_set: FeasibleSet | SetAt

    @classmethod
    def of(cls, data: ValueData, optima: ArrayLike, feasible_set: FeasibleSet | SetAt | None) -> Optima:
        """Return the optima of the instances of `data`, checked: see `at`."""
        return cls.at(data.context, optima, feasible_set, mean_and_spread(data.x)[1])

    @classmethod
    def at(cls, context: Tensor, optima: ArrayLike, feasible_set: FeasibleSet | SetAt | None, spread: Tensor) -> Optima:
        """Return optima at contexts (N, p), checked.

        Args:
            context: see above.
            optima: (N, n).
            feasible_set: what they are optimal in; what they span by default.
            spread: of decisions, (n,). Optima alone do not show it: at a bound they spread by rounding.

        Raises:
            ValueError: a shape other than (N, n), a value that is not finite, a set of another dimension, right-hand
                sides of another batch shape than (N,), or an optimum outside the set.
            TypeError: no set.
            NotImplementedError: a set without rows.
        """
        x = as_tensor(optima, "optima").double().cpu()
        expected = (context.shape[0], spread.numel())
        if tuple(x.shape) != expected:
            raise ValueError(f"optima: expected shape {expected}, one for each instance, got {tuple(x.shape)}")
        if feasible_set is None:
            feasible_set = spanned_set(x)
        check_kind(feasible_set, (FeasibleSet, SetAt), "feasible_set")
        if feasible_set.dim != spread.numel():
            raise ValueError(f"feasible_set: expected dimension {spread.numel()} as the data's, got {feasible_set.dim}")
        if isinstance(feasible_set, SetAt):
            feasible_set = feasible_set.flat((context.shape[0],)).detach()
        known = cls(context, x, feasible_set)
        return known._moved_onto_the_set(known.near(spread))

    def _moved_onto_the_set(self, near: Tensor) -> Optima:
        """Return optima that lie in the set.

        Raises:
            ValueError: one is further outside than `near`, (n,) or (N, n).
        """
        feasible_set, on_set = self.feasible_set, self.x.clone()
        if isinstance(feasible_set, SetAt):  # the projection is one of single points, and empty sets have none
            off = (feasible_set.violation(self.x) > ON_SET * feasible_set.magnitude).nonzero().flatten()
            for row in off:
                on_set[row] = self._projection(feasible_set, row)
        else:
            on_set = feasible_set.project(self.x)
        moved = (on_set - self.x).abs()
        far = (moved > near).any(dim=-1)
        if bool(far.any()):
            first = int(far.nonzero()[0])
            name = type(feasible_set.base if isinstance(feasible_set, SetAt) else feasible_set).__name__
            raise ValueError(
                f"optima: expected points of {name}, got one that lies "
                f"{float(moved[first].max()):.2g} outside (instance {first})"
            )
        return replace(self, x=on_set)

    def _projection(self, sets: SetAt, row: Tensor) -> Tensor:
        try:
            return sets.select(row.reshape(1)).project(self.x[row].unsqueeze(0))[0]
        except ValueError as error:
            raise ValueError(f"feasible_set: instance {int(row)} has no point: {error}") from None

    @property
    def rows(self) -> Rows:
        """The set's rows; their right-hand sides are those of `sides`.

        Raises:
            NotImplementedError: it has none.
        """
        rows = self.feasible_set.rows if isinstance(self.feasible_set, SetAt) else self.feasible_set.rows()
        if rows is None:
            raise NotImplementedError(
                "feasible_set: expected one with rows, whose multipliers optima have, got "
                f"{type(self.feasible_set).__name__}; leave it out to learn on the box that the optima span"
            )
        return rows

    @property
    def sides(self) -> tuple[Tensor, Tensor, Tensor]:
        """lower and upper, (n,) or (N, n), and h, (m,) or (N, m)."""
        given = self.feasible_set if isinstance(self.feasible_set, SetAt) else self.rows
        return given.lower, given.upper, given.h

    def near(self, spread: Tensor) -> Tensor:
        """Return for each coordinate, (n,) or (N, n), how close is close, where x spreads by so much, (n,)."""
        lower, upper, _ = self.sides
        return NEAR * torch.where(upper > lower, upper - lower, torch.inf).clamp(max=spread)

    def split(self, seed: int) -> tuple[Optima, Optima]:
        """Return the optima to learn from and a fifth to judge by; of a single one, the same twice."""
        if len(self.x) == 1:
            return self, self
        learned, judged = split_groups(groups_of(self.context), seed=seed)
        return self._rows(learned), self._rows(judged)

    def _rows(self, index: Tensor) -> Optima:
        given = self.feasible_set
        own = given.select(index) if isinstance(given, SetAt) else given
        return Optima(self.context[index], self.x[index], own)

    @torch.no_grad()
    def decision_errors(self, model: ConvexSurrogate) -> tuple[float, float]:
        """Return the mean distance of the model's decisions from the optima, in its units and in the user's."""
        context = self.context.to(dtype=model.dtype, device=model.device)
        x = minimize(model, self.feasible_set, context).x
        offsets = x.double().cpu() - self.x
        own, users = (each.norm(dim=-1).mean() for each in (offsets / model.x_scale.double().cpu(), offsets))
        return float(own), float(users)


def spanned_set(optima: Tensor, what: str = "optima") -> FeasibleSet:
    """Return the smallest box around optima (N, n), with their common sum where they have one.

    What a box around all feasible points would add are bounds that no optimum reaches.

    Args:
        optima: see above, or other decisions.
        what: they are, in messages.

    Raises:
        ValueError: they are all the same point.
    """
    if not bool((optima != optima[:1]).any()):
        raise ValueError(
            f"feasible_set: expected the set of decisions; the {what} are one point, which does not show it"
        )
    lower, upper = (bound.tolist() for bound in optima.aminmax(dim=0))
    sums = optima.sum(dim=1)
    total = float(sums.mean())
    if float((sums - total).abs().max()) > NEAR * float(optima.abs().sum(dim=1).max()):
        return Box(optima.shape[1], lower, upper)
    return Budget(optima.shape[1], min(max(total, sum(lower)), sum(upper)), lower, upper)


class OptimalityResiduals:
    """The conditions of optimality at known optima, in a model's units: a residual for each coordinate."""

    def __init__(self, model: ConvexSurrogate, optima: Optima) -> None:
        x = optima.x.unsqueeze(1)
        part = Standardized.of(model, ValueData(optima.context, x, torch.zeros_like(x[..., 0])), torch.float64)
        self.x, self.context = part.x, part.context
        unit = model.x_scale.double().cpu()
        rows, near = optima.rows, optima.near(unit)
        lower, upper, _ = optima.sides
        at_lower, at_upper = optima.x <= lower + near, optima.x >= upper - near
        self.lower, self.upper = at_lower.to(self.x.device), at_upper.to(self.x.device)
        self.has_sum = rows.total is not None
        # In the model's units, x = unit z + mean, the sum's gradient is `unit`, up to a factor.
        self.normal = (unit / unit[0]).to(self.x.device)
        self.cones = None if rows.at_most_a_sum else NormalCones.of(rows, optima.sides, optima.x, near, self.normal)

    def residual(self, model: ConvexSurrogate) -> Tensor:
        """Return the residuals at the model's weights, (N, n); differentiable."""
        x = self.x.detach().requires_grad_()
        with torch.enable_grad():
            total = model._value(x, self.context).sum()
            g = torch.autograd.grad(total, x, create_graph=True)[0].squeeze(1)
        if self.cones is not None:
            return self.cones.distance(g)
        if self.has_sum:
            g = g - self._multiplier(g).unsqueeze(-1) * self.normal
        # At both bounds (lo = hi) there is nothing to satisfy.
        g = torch.where(self.lower, g.clamp(max=0.0), g)
        return torch.where(self.upper, g.clamp(min=0.0), g)

    def _multiplier(self, g: Tensor) -> Tensor:
        """Return nu: of least squares over free coordinates, between the two groups of bounds where none is free."""
        free = ~(self.lower | self.upper)
        mean = (g * self.normal * free).sum(dim=-1) / (self.normal.square() * free).sum(dim=-1).clamp(min=TINY)
        g = g / self.normal
        above = torch.where(self.lower & ~self.upper, g, torch.inf).amin(dim=-1)
        below = torch.where(self.upper & ~self.lower, g, -torch.inf).amax(dim=-1)
        # Where one group is empty any nu on the other's side will do.
        middle = 0.5 * (torch.where(above.isinf(), below, above) + torch.where(below.isinf(), above, below))
        return torch.where(free.any(dim=-1), mean, torch.nan_to_num(middle, posinf=0.0, neginf=0.0))

    def loss(self, model: ConvexSurrogate) -> Tensor:
        """Return the mean over the optima of the squared norm of their residuals."""
        return self.residual(model).square().sum(dim=-1).mean()
