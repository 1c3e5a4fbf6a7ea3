"""Finite boxes around polyhedra with right-hand sides of their own, some of whose bounds are infinite.

First what follows from single rows: a'x <= b leaves x_j <= (b - sum_{i != j} min a_i x_i) / a_j where a_j > 0, and
x_j >= the same where a_j < 0. Where that does not suffice, multipliers found once for the matrices bound x_j for every
right-hand side: with e_j + E'nu + G'z = w, z >= 0,

    x_j >= -nu'f - z'h + sum_i min(w_i lo_i, w_i hi_i),

w being zero, to rounding, where the bound that it needs is infinite.

Of an empty set a row may leave an end on the wrong side of its bound. Any box is around such a set; that end is put at
the bound, so that the box has points and multipliers that prove the set empty go on proving it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from soctk.sets.batches import size_of
from soctk.sets.rows import Rows

ROUNDS = 5
LARGE_ENOUGH = 1e-9
"""Entries below this share of a row's length bound nothing."""
ROUNDING = 1e-12
"""Ends are moved outwards by this share of what they add: rounding errs by less for rows of 1,000 entries."""
FAR = 1e6
"""Bounds beyond are most often none, but for sets that lie there."""
Ends = tuple[np.ndarray, np.ndarray]


class Matrices(Protocol):
    """What is asked of a polyhedron besides its right-hand sides."""

    def rows(self) -> Rows:
        """Return the matrices, with right-hand sides of which none is used here."""
        ...

    def single_rows(self) -> SingleRows:
        """Return [E; -E; G] row by row."""
        ...

    def end_multipliers(self, j: int, sign: float) -> tuple[np.ndarray, np.ndarray]:
        """Return nu (k,), z >= 0 (m,) with sign e_j + E'nu + G'z zero where bounds are infinite."""
        ...


class Entries(NamedTuple):
    """The entries of one sign that are large enough, column after column: their rows, columns and numbers."""

    row: np.ndarray
    column: np.ndarray
    number: np.ndarray

    @classmethod
    def of(cls, A: np.ndarray, wanted: np.ndarray) -> Entries:
        """Return those of A that are wanted, bool like A."""
        column, row = np.nonzero(wanted.T)
        return cls(row, column, A[row, column])


@dataclass(frozen=True, eq=False)
class SingleRows:
    """Rows a'x <= b of which each by itself may leave a coordinate an end.

    Attributes:
        positive: max(A, 0), (n, rows).
        negative: min(A, 0), (n, rows).
        upward: entries that give upper ends.
        downward: entries that give lower ends.
    """

    positive: np.ndarray
    negative: np.ndarray
    upward: Entries
    downward: Entries

    @classmethod
    def of(cls, A: np.ndarray, least: float = LARGE_ENOUGH) -> SingleRows:
        """Return the rows of a matrix; entries below `least` times a row's length bound nothing."""
        large = np.abs(A) > least * np.linalg.norm(A, axis=1, keepdims=True)
        ends = Entries.of(A, large & (A > 0)), Entries.of(A, large & (A < 0))
        return cls(np.maximum(A, 0.0).T.copy(), np.minimum(A, 0.0).T.copy(), *ends)

    def fill(self, b: np.ndarray, lo: np.ndarray, hi: np.ndarray, rounds: int = ROUNDS) -> Ends:
        """Return the ends with infinite ones filled in where rows and other ends imply them, (N, n) each.

        Args:
            b: (N, rows).
            lo, hi: (N, n).
            rounds: in which ends may follow from others.
        """
        for _ in range(rounds if b.shape[1] > 0 else 0):
            if np.isfinite(lo).all() and np.isfinite(hi).all():
                break
            lo, hi = self._once(b, lo, hi)
        return lo, hi

    def nearer(self, b: np.ndarray, lo: np.ndarray, hi: np.ndarray, rounds: int = ROUNDS) -> Ends:
        """Return the ends as `fill` does, and for those beyond `FAR` what rows imply where it is nearer."""
        low, high = self.fill(b, np.where(lo < -FAR, -np.inf, lo), np.where(hi > FAR, np.inf, hi), rounds)
        low = np.maximum(low, lo)
        return low, np.maximum(np.minimum(high, hi), low)

    def reach(self, largest: np.ndarray) -> np.ndarray:
        """Return the most that |a'x| can be, (rows,), where |x_j| is at most `largest`, (n,), which may be infinite."""
        sizes = self.positive - self.negative
        with np.errstate(invalid="ignore"):  # 0 times infinity
            return np.where(sizes == 0, 0.0, sizes * largest[:, None]).sum(axis=0)

    def _once(self, b: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> Ends:
        """Fill infinite ends by the rows that have no other endless entry."""
        no_lo, no_hi = np.isinf(lo), np.isinf(hi)
        held_lo, held_hi = np.where(no_lo, 0.0, lo), np.where(no_hi, 0.0, hi)
        total = held_lo @ self.positive + held_hi @ self.negative
        size = np.abs(b) + np.abs(held_lo) @ self.positive - np.abs(held_hi) @ self.negative
        slack = b + ROUNDING * size - total
        endless = no_lo.astype(float) @ (self.positive > 0) + no_hi.astype(float) @ (self.negative < 0)
        above = _tightest(self.upward, slack, endless, (no_lo, held_lo), no_hi, 1.0)
        below = _tightest(self.downward, slack, endless, (no_hi, held_hi), no_lo, -1.0)
        return _filled(-below, above, lo, hi)


def _filled(low: np.ndarray, high: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> Ends:
    """Return the ends `lo` and `hi` with infinite ones replaced by `low` and `high`, of which none crosses another."""
    hi = np.where(np.isinf(hi), np.maximum(high, lo), hi)
    return np.where(np.isinf(lo), np.minimum(low, hi), lo), hi


def _tightest(
    entries: Entries,
    slack: np.ndarray,
    endless: np.ndarray,
    other: tuple[np.ndarray, np.ndarray],
    missing: np.ndarray,
    sign: float,
) -> np.ndarray:
    """Return the least of the ends, times `sign`, that rows leave each coordinate, (N, n); +inf where they leave none.

    Args:
        entries: those of the rows.
        slack: b less what the row's entries add at least, the endless ones left out, (N, rows).
        endless: how many entries of each row are endless, (N, rows).
        other: whether the coordinate's opposite end is infinite, and that end or 0, (N, n) each.
        missing: whether an end is wanted, bool (N, n).
        sign: of the entries.
    """
    found = np.full(missing.shape, np.inf)
    wanted = missing.any(axis=0)[entries.column]
    row, column, number = (part[wanted] for part in entries)
    if row.size == 0:
        return found
    alone = endless[:, row] == other[0][:, column]  # no other entry is endless
    end = sign * (slack[:, row] + number * other[1][:, column]) / number
    first = np.flatnonzero(np.diff(column, prepend=-1))
    found[:, column[first]] = np.minimum.reduceat(np.where(alone, end, np.inf), first, axis=1)
    return found


def implied_box(base: Matrices, lower: np.ndarray, upper: np.ndarray, f: np.ndarray, h: np.ndarray) -> Ends:
    """Return lo and hi, (1 or N, n), finite: bounds, or ends that rows imply where these are far.

    A bound beyond `FAR`, given to have one, would let the rounding of a slope weigh as much as it is away.

    Args:
        base: the matrices.
        lower, upper, f, h: right-hand sides, (1 or N, any) each.

    Raises:
        ValueError: a coordinate has no end.
    """
    if (lower >= -FAR).all() and (upper <= FAR).all():
        return lower, upper
    size = size_of(lower, upper, f, h)
    f, h = (np.broadcast_to(side, (size, side.shape[1])) for side in (f, h))
    lower, upper = (np.broadcast_to(side, (size, side.shape[1])) for side in (lower, upper))
    lo, hi = base.single_rows().nearer(np.concatenate([f, -f, h], axis=1), lower, upper)
    if np.isfinite(lo).all() and np.isfinite(hi).all():
        return lo, hi
    rows = base.rows()
    return fill_by_multipliers((rows.E.numpy(), rows.G.numpy()), base.end_multipliers, (lo, hi), f, h)


def fill_by_multipliers(
    matrices: tuple[np.ndarray, np.ndarray],
    multipliers: Callable[[int, float], tuple[np.ndarray, np.ndarray]],
    ends: Ends,
    f: np.ndarray,
    h: np.ndarray,
) -> Ends:
    """Return the ends with infinite ones filled in by multipliers.

    If all constants and all finite ends are at most C, and what is left of w where it should be zero sums to at most
    R < 1, then no coordinate exceeds C / (1 - R).

    Args:
        matrices: E (k, n) and G (m, n).
        multipliers: those of a coordinate and a sign (`Matrices.end_multipliers`).
        ends: (N, n) each.
        f, h: (N, k) and (N, m).

    Raises:
        ValueError: a coordinate has no end.
    """
    (E, G), (lo, hi), found = matrices, ends, []
    low, high = lo.copy(), hi.copy()
    for sign, side in ((1.0, lo), (-1.0, hi)):
        for j in np.flatnonzero(np.isinf(side).any(axis=0)).tolist():
            nu, z = multipliers(j, sign)
            w = nu @ E + z @ G
            w[j] += sign
            with np.errstate(invalid="ignore"):  # 0 times infinity, where there is nothing to hold
                parts = np.where(w > 0, w * lo, w * hi)
            finite = np.isfinite(parts) & (w != 0)
            held = np.where(finite, parts, 0.0)
            constant = -(f @ nu) - h @ z + held.sum(axis=1)
            size = np.abs(f) @ np.abs(nu) + np.abs(h) @ z + np.abs(held).sum(axis=1)
            found.append((j, sign, constant, size, np.where(finite, 0.0, np.abs(w)).sum(axis=1)))
    most = np.max([_largest_finite(lo), _largest_finite(hi), *(np.abs(each[2]) for each in found)], axis=0)
    for j, sign, constant, size, left in found:
        if (left > 0.5).any():
            one, name = int(np.flatnonzero(left > 0.5)[0]), "lower" if sign > 0 else "upper"
            which = "the set" if len(lo) == 1 else f"set {one}"
            remedy = "give a finite bound, as large as need be"
            raise ValueError(f"{name}: {which} has no end in coordinate {j} that could be found: {remedy}")
        (low if sign > 0 else high)[:, j] = sign * (constant - ROUNDING * size - 2 * left * most)
    return _filled(low, high, lo, hi)


def _largest_finite(side: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(side), np.abs(side), 0.0).max(axis=1)
