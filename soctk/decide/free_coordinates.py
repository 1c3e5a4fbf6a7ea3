"""Polyhedra with right-hand sides of their own in the coordinates that their equalities leave free.

The matrices are those of `soctk.sets.elimination`; here are the right-hand sides, what the Newton method is given, and
the way back from its multipliers to those of the rows as given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from soctk.decide.active_set import Ends
from soctk.forms.conic_form import ConicForm
from soctk.sets import SetAt
from soctk.sets.at import CROSSED
from soctk.sets.elimination import Elimination

NARROW = 1e-9
"""Directions with less than this between their ends, relative to them, are widened to it: barriers need an interior."""
WIDER = 0.25
"""Finite ends in place of infinite bounds lie this share of their distance outside of what rows imply."""
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
            f = torch.cat(wide(f, lower[:, fixed]), dim=1)
        origin = elimination.origin(f)
        sides = elimination.sides(lower, upper, h, sets.rows.G, origin)
        low, high = elimination.ends(sides)
        d, (lo, hi) = elimination.dim, (torch.atleast_2d(end)[:, elimination.free] for end in sets.box)
        beyond = WIDER * (1 + hi - lo)  # an end that only follows from rows is not to bind: they have the multipliers
        lo, hi = lo - beyond, hi + beyond
        low = torch.cat(wide(torch.where(torch.isinf(low[:, :d]), lo, low[:, :d]), low[:, d:]), dim=1)
        high = torch.cat(wide(torch.where(torch.isinf(high[:, :d]), hi, high[:, :d]), high[:, d:]), dim=1)
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
        return Region(*arrays[:2], None, *arrays[2:6], float(largest.sum()), arrays[6])

    def around_point(self) -> Any:
        """Return a narrow box around the only point, of all coordinates, as the compiled method takes it."""
        from soctk.decide.compiled.solve import Region  # Numba is loaded when it is needed

        x, none = self.expand(self.origin[:, :0]).numpy(), self.origin[:1, :0].numpy()
        room, R = NARROW * (1 + abs(x)), none.reshape(0, 1).repeat(x.shape[1], axis=1)
        largest = (abs(x) + room).max(axis=0)
        return Region(x - room, x + room, None, R, none, none, largest, float(largest.sum()), x)

    def ends(self) -> Ends:
        """Return the ends of all directions as functions of the right-hand sides."""
        lower, upper, f, h = (side.requires_grad for side in self.sets.sides)
        n = self.sets.dim
        moving = torch.tensor([upper or f] * n + [lower or f] * n + [h or f] * self.sets.h.shape[-1])
        several = self.elimination.met_by_several(self.sides.detach(), moving)
        return Ends(self.low, self.high, self.elimination.R, several=several)

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

        Either bounds cross, which needs no multipliers, or dependent equalities do not agree, or a constraint that is
        the same for every w is violated, or the ends of a direction cross.
        """
        e, k = self.elimination, self.sets.f.shape[-1]
        crossed = self.low - self.high - CROSSED * (1 + torch.minimum(self.low.abs(), self.high.abs()))
        excess = -self.sides[:, e.constant] - CROSSED * self._added()[:, e.constant]
        off = self.f @ e.null.T
        off = torch.where(off.abs() > CROSSED * (self.f.abs() @ e.null.abs().T + e.null.abs().sum(dim=1)), off, 0.0)
        known = self.sets.crossed.expand(size).clone()
        if not any(bool((part > 0).any()) for part in (crossed, excess, off.abs(), known)):
            return None
        constraints = torch.zeros(size, self.sides.shape[-1], dtype=torch.float64)
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

    def _added(self) -> Tensor:
        """Return the size of what each constraint adds at x_p, (1 or N, any); coordinates count as at least 1."""
        size, G, h = self.origin.abs().clamp(min=1.0), self.sets.rows.G, torch.atleast_2d(self.sets.h)
        return torch.cat(wide(size, size, size @ G.abs().T + h.abs()), dim=1)

    def _cross(self, constraints: Tensor, index: Tensor, place: Tensor) -> None:
        """Give the two constraints whose ends cross their multipliers."""
        unit = torch.zeros(index.numel(), self.low.shape[1], dtype=torch.float64)
        unit[torch.arange(index.numel()), place] = 1.0
        sides = self.sides.expand(constraints.shape[0], -1)[index]
        constraints[index] = self.elimination.attribute(unit, sides) + self.elimination.attribute(-unit, sides)

    def _violate(self, constraints: Tensor, index: Tensor, place: Tensor) -> None:
        """Give the constraint that is violated a multiplier."""
        constraints[index, torch.nonzero(self.elimination.constant).flatten()[place]] = 1.0


def wide(*parts: Tensor) -> list[Tensor]:
    """Return matrices with leading sizes 1 or N, all N where one is."""
    size = max(len(part) for part in parts)
    return [part.expand(size, -1) for part in parts]
