"""Polyhedra with right-hand sides of their own as arrays: what solvers compute with, in NumPy for one set or many.

These computations have no derivatives and few numbers, for which an operation of NumPy takes a fraction of PyTorch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from torch import Tensor

from soctk.sets.batches import joined
from soctk.sets.elimination import Elimination
from soctk.sets.implied import Ends, Matrices, implied_box
from soctk.sets.rounding import FEASIBLE, eps_of, rounded_down
from soctk.sets.rows import Rows

CROSSED = 1e-9
"""Ends that cross by more than this, relative to them, leave nothing between them; below it is rounding."""
TINY = 1e-300


class Eliminated(Matrices, Protocol):
    """The polyhedron that the matrices come from."""

    dim: int

    def elimination(self, fixed: tuple[int, ...] = ()) -> Elimination:
        """Return its elimination, some coordinates held by equalities."""
        ...

    def center(self) -> Tensor:
        """Return a point of its relative interior, (n,)."""
        ...


@dataclass(frozen=True, eq=False)
class SetArrays:
    """{lower <= x <= upper, E x = f, G x <= h} for right-hand sides (1 or N, any) each, where 1 stands for all.

    Attributes:
        base: the polyhedron that E and G are those of.
        lower: (1 or N, n).
        upper: (1 or N, n).
        f: (1 or N, k).
        h: (1 or N, m).
    """

    base: Eliminated
    lower: np.ndarray
    upper: np.ndarray
    f: np.ndarray
    h: np.ndarray

    @property
    def sides(self) -> tuple[np.ndarray, ...]:
        """lower, upper, f and h."""
        return self.lower, self.upper, self.f, self.h

    @property
    def rows(self) -> Rows:
        """The matrices, and the right-hand sides of `base`."""
        return self.base.rows()

    def select(self, index: np.ndarray) -> SetArrays:
        """Return the sets of the instances `index`."""
        return SetArrays(self.base, *(side if len(side) == 1 else side[index] for side in self.sides))

    @cached_property
    def box(self) -> Ends:
        """(lo, hi), finite, (1 or N, n): boxes around the sets; the bounds where they are finite."""
        return implied_box(self.base, *self.sides)

    @cached_property
    def largest(self) -> np.ndarray:
        """The largest |x_i| in each box, (1 or N, n)."""
        lo, hi = self.box
        return np.maximum(np.abs(lo), np.abs(hi))

    @cached_property
    def right(self) -> np.ndarray:
        """f and h one after the other, (1 or N, k + m)."""
        return joined(self.f, self.h)

    @cached_property
    def inside(self) -> np.ndarray:
        """A point of each set, (1 or N, n), in its relative interior but for chance; NaN where none is known.

        The centre of `base`, moved onto the equalities.
        """
        e = self.base.elimination()
        try:
            center = self.base.center().numpy()
        except (ValueError, RuntimeError):  # the set that this is made from may be empty
            return np.full((1, self.lower.shape[1]), np.nan)
        x = self.f @ e.lift.T + e.basis @ center[e.free]
        outside = self.excess(x)[1] > FEASIBLE
        return np.where(outside[:, None], np.nan, x)

    def crossed(self) -> np.ndarray:
        """Return whether a lower bound lies above its upper one by more than rounding, bool (1 or N,)."""
        size = 1 + np.minimum(np.abs(self.lower), np.abs(self.upper))
        return (self.lower - self.upper > CROSSED * size).any(axis=1)

    def single(self) -> np.ndarray:
        """Return whether equalities and coordinates without room leave each set a point at most, bool (1 or N,)."""
        patterns, which = np.unique(self.lower >= self.upper, axis=0, return_inverse=True)
        free = [self.base.elimination(tuple(map(int, np.flatnonzero(held)))).dim for held in patterns]
        return np.array([count == 0 for count in free], dtype=bool)[which.reshape(-1)]

    def excess(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much points (N, n) violate their set at most, and as a share of what a row adds, (N,) each.

        In the share coordinates count as at least 1: it does not depend on the units of rows. Neither depends on the
        other sets of the batch, and both are NaN where a point has a NaN. In the set both are 0.
        """
        beyond, size = np.maximum(self.lower - x, x - self.upper), np.maximum(np.abs(x), 1.0)
        worst = share = np.zeros(x.shape[0])
        if not beyond.max(initial=0.0) <= 0.0:  # the largest of a few numbers in each of many rows takes long
            worst, share = beyond.max(axis=1), (beyond / size).max(axis=1)
        matrix, k = self.rows.transposed, self.f.shape[1]
        if matrix.shape[1] > 0:
            past = x @ matrix - self.right
            np.abs(past[:, :k], out=past[:, :k])
            added = np.maximum(size @ self.rows.sizes + np.abs(self.right), TINY)
            worst, share = np.maximum(worst, past.max(axis=1)), np.maximum(share, (past / added).max(axis=1))
        return np.maximum(worst, 0.0), np.maximum(share, 0.0)

    def priced(self, slope: np.ndarray | float, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return w = slope + E'nu + G'z, (N, n), and the products of y = (nu, z) with f and h, (N, k + m).

        Every x of a set has slope'x >= w'x - nu'f - z'h where z is not negative.
        """
        return slope + y @ self.rows.transposed.T, y * self.right

    def margin(self, products: np.ndarray, y: np.ndarray, slope: np.ndarray | float) -> np.ndarray:
        """Return what rounding may have added to the sum of `products` and, over the set, to w'x, (N,).

        Each of their numbers is a sum of at most n + k + m products (`soctk.sets.rounding`); `priced` has both.
        """
        size = np.abs(products).sum(axis=1)
        size = size + ((np.abs(slope) + np.abs(y) @ self.rows.sizes.T) * self.largest).sum(axis=1)
        return (self.lower.shape[1] + y.shape[1] + 8) * eps_of(products.dtype) * size

    def refutes(self, nu: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return -nu'f - z'h + min over lower <= x <= upper of (E'nu + G'z)'x, (N,): positive where a set is empty.

        Less what rounding may have added to it. inf where a lower bound lies above its upper one.
        """
        y = joined(nu, z)
        w, products = self.priced(0.0, y)
        margin = self.margin(products, y, 0.0)
        amount = rounded_down(np.minimum(w * self.box[0], w * self.box[1])) - products.sum(axis=1) - margin
        return np.where((self.lower > self.upper).any(axis=1), np.inf, amount)
