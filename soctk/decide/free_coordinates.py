"""Polyhedra with right-hand sides of their own in the coordinates that their equalities leave free.

The matrices are those of `soctk.sets.elimination`; here are the right-hand sides, what the Newton method is given, and
the way back from its multipliers to those of the rows as given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from soctk.decide.narrow import NARROW, widened
from soctk.sets.arrays import CROSSED, SetArrays
from soctk.sets.batches import joined, size_of, whole
from soctk.sets.elimination import Elimination

WIDER = 0.25
"""Finite ends in place of infinite bounds lie this share of their distance outside of what rows imply."""
WARM_SHARE = 0.02
"""A warm start keeps this share of the distance between the bounds from each."""
NONE = np.zeros(0, dtype=np.int64)
Contradictions = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Reduction:
    """The sets of N functions in the coordinates that the equalities leave free.

    Attributes:
        sets: as arrays.
        given: their lower, upper, f and h, as compiled code takes them.
        fixed: coordinates that are held by equalities, as they are fixed in all of them.
        elimination: of their matrices and these equalities.
        f: right-hand sides of all equalities, (1 or N, any).
        origin: x_p, (1 or N, n).
        sides: b of every constraint, and +inf, (1 or N, any).
        low, high: the ends of all directions, finite along the axes, (1 or N, d + m).
        middle, largest: of the ends of the axes, (1 or N, d), and their largest absolute values, (d,), as long as no
            flag says otherwise.
        flags: what may need a closer look, those of `soctk.decide.compiled.free_rows`.
    """

    sets: SetArrays
    given: tuple[np.ndarray, ...]
    fixed: np.ndarray
    elimination: Elimination
    f: np.ndarray
    origin: np.ndarray
    sides: np.ndarray
    low: np.ndarray
    high: np.ndarray
    middle: np.ndarray
    largest: np.ndarray
    flags: int

    @classmethod
    def of(cls, sets: SetArrays, fixed: np.ndarray | None = None) -> Reduction:
        """Return the reduction of sets.

        Args:
            sets: as arrays.
            fixed: coordinates to hold, fixed in all of them; those are, by default. Some of the sets of another
                reduction have its coordinates if they hold what it holds.
        """
        from soctk.decide.compiled.free_rows import ENDLESS, TOO_NARROW, reduce  # Numba is loaded when it is needed

        lower, upper, f, h = sets.sides
        if fixed is None:
            met = lower == upper
            fixed = np.flatnonzero(met.all(axis=0)) if met.any() else NONE
        e = sets.base.elimination(tuple(fixed.tolist()))
        if fixed.size > 0:
            f = joined(f, lower[:, fixed])
        size = size_of(lower, upper, f, h)
        origin, sides = np.empty((len(f), lower.shape[1])), np.empty((size, e.length.size + 1))
        low, high = np.empty((size, e.below.shape[1])), np.empty((size, e.below.shape[1]))
        middle, largest = np.empty((size, e.dim)), np.zeros(e.dim)
        given = tuple(map(whole, sets.sides))
        groups = e.below, e.above, e.constant
        flags = reduce()(
            *((e.lift, e.G, e.length), groups, (*given[:2], whole(f), given[3]), e.dim, NARROW, np.empty(len(e.G))),
            *(origin, sides, low, high, middle, largest),
        )
        if flags & ENDLESS:
            # An end that only follows from rows is not to bind: they have the multipliers.
            axes = slice(e.dim)
            endless = np.isinf(low[:, axes]), np.isinf(high[:, axes])
            flags |= TOO_NARROW
            lo, hi = (end[:, e.free] for end in sets.box)
            beyond = WIDER * (1 + hi - lo)
            low[:, axes] = np.where(endless[0], lo - beyond, low[:, axes])
            high[:, axes] = np.where(endless[1], hi + beyond, high[:, axes])
        return cls(sets, given, fixed, e, f, origin, sides, low, high, middle, largest, flags)

    @property
    def box(self) -> tuple[np.ndarray, np.ndarray]:
        """(lo, hi), finite, (1 or N, n), as compiled code takes them: boxes around the sets."""
        from soctk.decide.compiled.free_rows import UNBOUNDED  # Numba is loaded when it is needed

        if not self.flags & UNBOUNDED:
            return self.given[:2]
        lo, hi = self.sets.box
        return whole(lo), whole(hi)

    def expand(self, w: np.ndarray) -> np.ndarray:
        """Return x, (N, n), within its bounds."""
        x = self.origin + w @ self.elimination.basis.T
        return np.maximum(np.minimum(x, self.sets.upper), self.sets.lower)

    def region(self, start: np.ndarray | None, share: float) -> Any:
        """Return the sets as the compiled method takes them, each end moved out by a share of its size.

        Args:
            start: (N, n) points to start from; the middle of the bounds by default.
            share: see above.
        """
        from soctk.decide.compiled.free_rows import TOO_NARROW
        from soctk.decide.compiled.solve import Region  # Numba is loaded when it is needed

        low, high, d, R = self.low, self.high, self.elimination.dim, self.elimination.R
        if start is None and share == 0 and not self.flags & TOO_NARROW:
            sides, most = (low[:, :d], high[:, :d], None, R, low[:, d:], high[:, d:]), float(self.largest.sum())
            return Region(*sides, self.largest, most, self.middle)
        if share > 0 or self.flags & TOO_NARROW:
            size = np.abs(low), np.abs(high)
            if share > 0:
                low, high = low - share * (1 + size[0]), high + share * (1 + size[1])
            low, high = widened(low, high, np.minimum(*size))
        lo, hi = low[:, :d], high[:, :d]
        first = 0.5 * (lo + hi)
        if start is not None:
            kept = WARM_SHARE * (hi - lo)
            first = np.maximum(np.minimum(start[:, self.elimination.free], hi - kept), lo + kept)
        largest = np.maximum(np.abs(lo), np.abs(hi)).max(axis=0, initial=0.0)
        return Region(lo, hi, None, R, low[:, d:], high[:, d:], largest, float(largest.sum()), first)

    def around_point(self) -> Any:
        """Return a narrow box around the only point, of all coordinates, as the compiled method takes it."""
        from soctk.decide.compiled.solve import Region  # Numba is loaded when it is needed

        x, none = self.expand(self.origin[:, :0]), np.zeros((1, 0))
        room, R = NARROW * (1 + np.abs(x)), np.zeros((0, x.shape[1]))
        largest = (np.abs(x) + room).max(axis=0)
        return Region(x - room, x + room, None, R, none, none, largest, float(largest.sum()), x)

    # -- multipliers ---------------------------------------------------------------------------------------

    def originals(self, slope: np.ndarray, constraints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return nu, of the fixed coordinates as well, and z from a slope (N, n) and the constraints' multipliers.

        nu makes w the negative of the bounds' own multipliers on the basic coordinates.
        """
        e, n = self.elimination, slope.shape[1]
        z = constraints[:, 2 * n :]
        if e.basic.size == 0:
            return np.zeros((len(slope), self.f.shape[1])), z
        wanted = slope + z @ e.G + constraints[:, :n] - constraints[:, n : 2 * n]
        return -(wanted[:, e.basic] @ e.inverse), z

    def contradictions(self, size: int) -> Contradictions | None:
        """Return which of `size` instances contradict themselves on sight, and nu and z that prove it; None for none.

        Either bounds cross, which needs no multipliers, or dependent equalities do not agree, or a constraint that is
        the same for every w is violated, or the ends of a direction cross.
        """
        from soctk.decide.compiled.free_rows import SUSPECT  # Numba is loaded when it is needed

        e, sets, off = self.elimination, self.sets, self.f[:, :0]
        if len(e.null) == 0 and not self.flags & SUSPECT:
            return None
        if len(e.null) > 0:
            off = self.f @ e.null.T
            least = CROSSED * (np.abs(self.f) @ np.abs(e.null).T + np.abs(e.null).sum(axis=1))
            off = np.where(np.abs(off) > least, off, 0.0)
        suspects = self.low > self.high, sets.lower > sets.upper, self.sides[:, e.constant] < 0, off
        if not any(part.any() for part in suspects):
            return None
        crossed = self.low - self.high - CROSSED * (1 + np.minimum(np.abs(self.low), np.abs(self.high)))
        excess = -self.sides[:, e.constant] - CROSSED * self._added()[:, e.constant]
        known = np.broadcast_to(sets.crossed(), (size,)).copy()
        constraints = np.zeros((size, e.length.size))
        for amounts, put in ((crossed, self._cross), (excess, self._violate)):
            index, place = _worst(amounts, known)
            put(constraints, index, place)
        nu, z = self.originals(np.zeros((size, sets.lower.shape[1])), constraints)
        index, place = _worst(np.abs(off), known)
        signs = -np.sign(np.broadcast_to(off, (size, off.shape[1]))[index, place])
        nu[index] = signs[:, None] * e.null[place]
        rows = np.flatnonzero(known)
        return (rows, nu[rows, : sets.f.shape[1]], z[rows]) if rows.size > 0 else None

    def _added(self) -> np.ndarray:
        """Return the size of what each constraint adds at x_p, (1 or N, any); coordinates count as at least 1."""
        size = np.maximum(np.abs(self.origin), 1.0)
        return joined(size, size, size @ np.abs(self.elimination.G).T + np.abs(self.sets.h))

    def _cross(self, constraints: np.ndarray, index: np.ndarray, place: np.ndarray) -> None:
        """Give the two constraints whose ends cross their multipliers."""
        unit = np.zeros((len(index), self.low.shape[1]))
        unit[np.arange(len(index)), place] = 1.0
        sides = np.broadcast_to(self.sides, (len(constraints), self.sides.shape[1]))[index]
        constraints[index] = self.elimination.attribute(unit, unit, sides)

    def _violate(self, constraints: np.ndarray, index: np.ndarray, place: np.ndarray) -> None:
        """Give the constraint that is violated a multiplier."""
        constraints[index, self.elimination.constant[place]] = 1.0


def _worst(amounts: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the unknown instances with a positive amount (1 or N, any) and where it is largest, and mark them."""
    if amounts.shape[1] == 0:
        none = np.zeros(0, dtype=np.int64)
        return none, none
    most, place = (np.broadcast_to(part, known.shape) for part in (amounts.max(axis=1), amounts.argmax(axis=1)))
    index = np.flatnonzero((most > 0) & ~known)
    known[index] = True
    return index, place[index]
