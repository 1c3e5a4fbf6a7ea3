"""Linear programmes over a polyhedron by HiGHS, and bounds of their values that do not trust it.

For any nu and any z >= 0 every x of the set has, with w = g + E'nu + G'z and any box lo <= x <= hi around the set,

    g'x >= -nu'f - z'h + sum_i min(w_i lo_i, w_i hi_i),

so that the solver's multipliers are turned into a lower bound of the minimum whatever their accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from soctk.lazy import optimize
from soctk.lazy import sparse as sp
from soctk.sets.implied import Ends, SingleRows, fill_by_multipliers
from soctk.sets.rows import Rows

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
METHODS = ("highs-ds", TIGHT), ("highs-ds", {}), ("highs-ds", {"presolve": False}), ("highs-ipm", {})
INTERIOR_POINTS = (("highs-ipm", TIGHT),)
EPS = float(np.finfo(float).eps)
IMPLICATIONS = 3
"""Rounds in which bounds may follow from others."""
LARGE_ENOUGH = 1e-3
"""Entries of unit rows from which bounds are concluded; by smaller ones they would be far off."""


@dataclass(frozen=True, eq=False)
class System:
    """The rows of a polyhedron as arrays, those of E and G of length one, in units in which no small set is tiny.

    Attributes:
        unit: what coordinates are divided by: the largest number of a set whose numbers are all below 1, else 1.
        rounding: how far a row may be off by the rounding of what was given.
        single_rows: [E; -E; G] row by row.
        equalities: the numbers of the rows of E; rows without entries are left out.
        inequalities: the same of G.
        given: the lengths of the rows of E and of G as given.
    """

    lower: np.ndarray
    upper: np.ndarray
    E: np.ndarray
    f: np.ndarray
    G: np.ndarray
    h: np.ndarray
    unit: float
    rounding: float
    single_rows: SingleRows
    equalities: np.ndarray
    inequalities: np.ndarray
    given: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, rows: Rows) -> System:
        """Return the system of rows.

        Raises:
            ValueError: a row without entries that does not hold.
        """
        E, f, equalities = _unit_rows(rows.E.numpy(), rows.f.numpy())
        G, h, inequalities = _unit_rows(rows.G.numpy(), rows.h.numpy())
        for name, kept, side in (("E", equalities, rows.f.abs()), ("G", inequalities, -rows.h)):
            wrong = np.setdiff1d(np.flatnonzero(side.numpy() > 0), kept)
            if wrong.size:
                raise ValueError(f"expected a set with a point, got an empty one: row {wrong[0]} of {name} is zero")
        lower, upper = rows.lower.numpy(), rows.upper.numpy()
        single_rows = SingleRows.of(np.vstack([E, -E, G]), LARGE_ENOUGH)
        largest = _largest(single_rows, np.concatenate([f, -f, h]), lower, upper)
        unit = min(1.0, largest) or 1.0
        given = np.linalg.norm(rows.E.numpy(), axis=1), np.linalg.norm(rows.G.numpy(), axis=1)
        sides = (side / unit for side in (f, h))
        f, h = sides
        return cls(
            lower / unit,
            upper / unit,
            E,
            f,
            G,
            h,
            unit,
            1e-9 + 1e-13 * largest,
            single_rows,
            equalities,
            inequalities,
            given,
        )

    def box(self) -> Ends:
        """Return a box that holds the set: the bounds where they are finite, else from rows, else from multipliers.

        Raises:
            ValueError: the set is not bounded; the message names a coordinate.
        """
        b = np.concatenate([self.f, -self.f, self.h])[None]
        lo, hi = self.single_rows.nearer(b, self.lower[None], self.upper[None], IMPLICATIONS)
        lo, hi = fill_by_multipliers((self.E, self.G), self._end_multipliers, (lo, hi), self.f[None], self.h[None])
        return lo[0].copy(), hi[0].copy()

    def end_multipliers(self, j: int, sign: float) -> tuple[np.ndarray, np.ndarray]:
        """Return nu, z >= 0 of the rows as given, with which sign x_j is bounded from below, largest that bound.

        Raises:
            ValueError: there is no end.
        """
        multipliers = self._end_multipliers(j, sign)
        nu, z = np.zeros(self.given[0].size), np.zeros(self.given[1].size)
        nu[self.equalities] = multipliers[0] / self.given[0][self.equalities]
        z[self.inequalities] = multipliers[1] / self.given[1][self.inequalities]
        return nu, z

    def _end_multipliers(self, j: int, sign: float) -> Ends:
        """Return the same of the system's own rows."""
        g = np.zeros(self.lower.size)
        g[j] = sign
        answer = self.solve(g)
        if answer.status != 0:
            side = "below" if sign > 0 else "above"
            raise ValueError(
                f"expected a bounded set, got one in which coordinate {j} has no end {side}: bounds and "
                "certificates need a compact set; give a finite bound, as large as it need be"
            )
        return _multipliers(answer)

    def minimum(self, g: np.ndarray, box: Ends) -> tuple[np.ndarray, float]:
        """Return a vertex argmin (n,) and a lower bound of the minimum of g'x.

        Raises:
            RuntimeError: HiGHS has no answer.
        """
        # HiGHS's tolerances are absolute, so that it is given what of g differs within the set, scaled to size one.
        shift = self._combining @ g
        within = g - shift @ self.E
        size = np.abs(within).max(initial=0.0) or 1.0
        answer = self.solve(within / size)
        if answer.status != 0:
            raise RuntimeError(f"a linear programme over the set was not solved ({answer.message})")
        nu, z = (size * multipliers for multipliers in _multipliers(answer))
        nu = nu - shift
        w = g + nu @ self.E + z @ self.G
        parts = np.concatenate([-nu * self.f, -z * self.h, np.minimum(w * box[0], w * box[1])])
        sizes = np.abs(g) + np.abs(nu) @ np.abs(self.E) + z @ np.abs(self.G)
        terms = np.abs(parts).sum() + sizes @ np.maximum(np.abs(box[0]), np.abs(box[1]))
        # Sums of k rounded numbers are off by k eps of what they add at worst.
        return self.unit * answer.x, self.unit * float(parts.sum() - EPS * parts.size * terms)

    @cached_property
    def _combining(self) -> np.ndarray:
        """Which combination of the rows of E is nearest to a vector, (k, n)."""
        return np.linalg.pinv(self.E.T)

    def solve(self, g: np.ndarray) -> Any:
        """Return SciPy's answer to min g'x over the set, in the system's units."""
        return linear_program(g, self.G, self.h, self.E, self.f, np.stack([self.lower, self.upper], axis=1))


def _largest(rows: SingleRows, b: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """Return the largest finite number of a set: of its ends, and of the sides of rows as far as points reach.

    So neither a row that never binds nor a bound that is given to have one counts, however large they are.
    """
    lo, hi = (end[0] for end in rows.nearer(b[None], lower[None], upper[None], IMPLICATIONS))
    sides = np.minimum(np.abs(b), rows.reach(np.maximum(np.abs(lo), np.abs(hi))))
    numbers = np.abs(np.concatenate([lo, hi, sides]))
    return float(np.max(numbers[np.isfinite(numbers)], initial=0.0))


def linear_program(
    g: np.ndarray, G: np.ndarray, h: np.ndarray, E: np.ndarray, f: np.ndarray, bounds: Any, *, simplex: bool = True
) -> Any:
    """Return SciPy's answer to min g'x, G x <= h, E x = f between bounds: a vertex, with multipliers.

    Args:
        g: (n,).
        G: (m, n).
        h: (m,).
        E: (k, n).
        f: (k,).
        bounds: as SciPy takes them.
        simplex: whether to begin with the dual simplex method; else with interior points, then a vertex near them.
    """
    answer: Any = None
    rows = sparse_if_large(G), h, sparse_if_large(E), f
    for method, options in (*(() if simplex else INTERIOR_POINTS), *METHODS):
        answer = optimize.linprog(g, *rows, bounds, method=method, options=options)
        if answer.status in (0, 2, 3):
            break
    return answer


def _multipliers(answer: Any) -> tuple[np.ndarray, np.ndarray]:
    return -answer.eqlin.marginals, np.maximum(-answer.ineqlin.marginals, 0.0)


def _unit_rows(matrix: np.ndarray, side: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows with entries, of length one, their right-hand sides and their numbers."""
    lengths = np.linalg.norm(matrix, axis=1)
    kept = np.flatnonzero(lengths)
    return matrix[kept] / lengths[kept, None], side[kept] / lengths[kept], kept


def sparse_if_large(rows: np.ndarray) -> Any:
    """Return large matrices with few entries as sparse ones."""
    return sp.csr_array(rows) if rows.size > 2000 and np.count_nonzero(rows) < 0.2 * rows.size else rows
