"""A polyhedron in coordinates that its equalities leave free, its constraints by direction.

{lo <= x <= hi, E x = f, G x <= h}: r columns of E, chosen by pivoting, give the *basic* coordinates as a function of
the others, w = x_free:

    x_basic = c - T w,    c = B+ f,  T = B+ N,    E = [B N].

In w every constraint is one-sided, a'w <= b with b affine in (lo, hi, f, h). Those along the same line belong to one
direction and become l <= d'w <= u, with the smallest and the largest of their sides: two bounds of a basic coordinate,
a row and its negative, a row with one entry and a bound. The first directions are the axes of w, the bounds of free
coordinates; the others, of length one, are the rows of R. So only the right-hand sides differ from context to context.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from soctk.checks import to_numpy
from soctk.lazy import linalg
from soctk.sets.batches import size_of
from soctk.sets.rows import Rows

DEPENDENT = 1e-10
"""Pivots of rows of length one below this, relative to the first, are none."""
NO_LENGTH = 1e-11
"""A constraint shorter than this in w, where its row has length one, is the same for every w."""
TOGETHER = 1e-9
"""Constraints whose sides differ by less than this, relative to them, give an end together."""
DIGITS = 11
"""Directions that agree to so many digits are one."""


@dataclass(frozen=True, eq=False)
class Elimination:
    """What does not change with the right-hand sides. Constraints are numbered: upper bounds, lower bounds, rows of G.

    Attributes:
        basic: (r,), coordinates that the equalities give.
        free: (d,), the others.
        inverse: B+, (r, k).
        lift: B+ on the basic coordinates and 0 on the others, (n, k).
        basis: Z, (n, d): x = x_p + Z w with x_p = c on the basic coordinates and 0 on the others.
        null: (k - r, k), orthonormal combinations of the rows of E that are zero: f must be so too.
        R: (m, d), the directions besides the axes, of length one.
        G: rows of G, (any, n).
        length: of every constraint's row in w, (2 n + rows of G,); 1 where it has none.
        constant: the constraints that are the same for every w.
        above: (any, d + m): the constraints that bound each direction from above, a column each, padded by 2 n + rows
            of G.
        below: the same from below.
    """

    basic: np.ndarray
    free: np.ndarray
    inverse: np.ndarray
    lift: np.ndarray
    basis: np.ndarray
    null: np.ndarray
    R: np.ndarray
    G: np.ndarray
    length: np.ndarray
    constant: np.ndarray
    above: np.ndarray
    below: np.ndarray

    @classmethod
    def of(cls, rows: Rows) -> Elimination:
        """Return the elimination for the matrices of a set."""
        E, G = to_numpy(rows.E), to_numpy(rows.G)
        n, lengths = E.shape[1], np.linalg.norm(E, axis=1)
        lengths[lengths == 0] = 1.0
        unit = E / lengths[:, None]
        basic = independent_columns(unit)
        free = np.setdiff1d(np.arange(n), basic)
        inverse = np.linalg.pinv(unit[:, basic]) / lengths
        lift, basis = np.zeros((n, len(E))), np.zeros((n, len(free)))
        lift[basic] = inverse
        basis[free, np.arange(len(free))] = 1.0
        basis[basic] = -inverse @ E[:, free]
        basis[np.abs(basis) < NO_LENGTH] = 0.0
        left = np.linalg.svd(unit, full_matrices=True)[0] if len(E) else np.zeros((0, 0))
        null = left[:, len(basic) :].T / lengths
        constraints = np.vstack([basis, -basis, G @ basis])
        whole = np.concatenate([np.ones(2 * n), np.linalg.norm(G, axis=1)])
        length = np.linalg.norm(constraints, axis=1)
        constant = length <= NO_LENGTH * np.maximum(whole, np.finfo(float).tiny)
        length[constant] = 1.0
        R, above, below = _directions(constraints / length[:, None], constant, len(free))
        arrays = basic, free, inverse, lift, basis, null, R, G, length, np.flatnonzero(constant), above.T, below.T
        return cls(*map(np.ascontiguousarray, arrays))

    @property
    def dim(self) -> int:
        """The number d of free coordinates."""
        return self.free.size

    def origin(self, f: np.ndarray) -> np.ndarray:
        """Return x_p, (N, n), for right-hand sides f (N, k)."""
        return f @ self.lift.T

    def sides(self, lower: np.ndarray, upper: np.ndarray, h: np.ndarray, origin: np.ndarray) -> np.ndarray:
        """Return b of every constraint divided by its length, and +inf, (N, 2 n + rows of G + 1).

        Args:
            lower, upper, h, origin: (1 or N, any) each.
        """
        n, size = lower.shape[1], size_of(lower, upper, h, origin)
        found = np.empty((size, self.length.size + 1))
        np.subtract(upper, origin, out=found[:, :n])
        np.subtract(origin, lower, out=found[:, n : 2 * n])
        np.subtract(h, origin @ self.G.T, out=found[:, 2 * n : -1])
        found[:, :-1] /= self.length
        found[:, -1] = np.inf
        return found

    def ends(self, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return l and u of every direction, (N, d + m) each."""
        low, high = (_least(sides, group) for group in (self.below, self.above))
        return np.negative(low, out=low), high

    def met_by_several(self, sides: np.ndarray, moving: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which lower and upper ends several constraints give, one of `moving` (2 n + rows of G,) among them."""
        moving, found = np.append(moving, False), []
        for group in (self.below, self.above):
            members = sides[:, group]
            least = members.min(axis=1, keepdims=True)
            there = np.isfinite(members) & (members <= least + TOGETHER * (1 + np.abs(least)))
            found.append((there.sum(axis=1) > 1) & (there & moving[group]).any(axis=1))
        return found[0], found[1]

    def attribute(self, low: np.ndarray, high: np.ndarray, sides: np.ndarray) -> np.ndarray:
        """Return numbers of the constraints, (N, 2 n + rows of G), from those of low and high ends, (N, d + m) each.

        Each belongs to the constraint that gives the direction that end.
        """
        found = np.zeros((len(low), sides.shape[1]))
        for group, part in ((self.above, high), (self.below, low)):
            chosen = 0 if len(group) == 1 else sides[:, group].argmin(axis=1)
            for place, column in enumerate(group):
                found[:, column] = np.where(chosen == place, part, 0.0)
        return found[:, :-1] / self.length


def _least(sides: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the least of the sides that each column of `group` names, (N, d + m)."""
    least = sides[:, group[0]]
    for column in group[1:]:
        np.minimum(least, sides[:, column], out=least)
    return least


def independent_columns(E: np.ndarray) -> np.ndarray:
    """Return the numbers of columns that span those of E, well conditioned, by QR with pivoting."""
    if E.size == 0:
        return np.zeros(0, dtype=np.int64)
    R, order = linalg.qr(E, mode="r", pivoting=True)
    pivots = np.abs(np.diag(R))
    rank = int((pivots > DEPENDENT * max(pivots[0], DEPENDENT)).sum())
    return np.sort(order[:rank]).astype(np.int64)


def _directions(unit: np.ndarray, constant: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return R, and which constraints bound each direction from above and from below."""
    members: defaultdict[bytes, tuple[int, list[int], list[int]]] = defaultdict(lambda: (len(members), [], []))
    rows = []
    for j in range(dim):
        members[_key(np.eye(dim)[j])]
    for i in np.flatnonzero(~constant):
        first = unit[i][np.argmax(np.abs(np.round(unit[i], DIGITS)) > 0)]
        known = len(members)
        number, above, below = members[_key(unit[i] * np.sign(first))]
        if number == known:
            rows.append(unit[i] * np.sign(first))
        (above if first > 0 else below).append(i)
    found = sorted(members.values())
    R = np.array(rows).reshape(len(rows), dim)
    return R, _padded([each[1] for each in found], len(unit)), _padded([each[2] for each in found], len(unit))


def _key(direction: np.ndarray) -> bytes:
    return (np.round(direction, DIGITS) + 0.0).tobytes()


def _padded(lists: list[list[int]], filler: int) -> np.ndarray:
    width = max(1, *map(len, lists)) if lists else 1
    return np.array([each + [filler] * (width - len(each)) for each in lists], dtype=np.int64).reshape(-1, width)
