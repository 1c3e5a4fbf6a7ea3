"""The relative interior of a polyhedron: a point, and the rows that hold with equality throughout.

The centre of the largest ball: max s, a_i'x + s <= b_i with |a_i| = 1, E x = f. Where s is 0 no point is strictly
inside of all rows. Rows with a positive multiplier then hold with equality on the whole set (the multipliers of the
optimum combine the rows to 0 <= 0), are counted to the equalities, and the ball is looked for again: facial reduction
(Borwein and Wolkowicz 1981), which ends because every round takes at least one row. The ball may lie anywhere along a
long set; from its centre damped Newton steps lead to the analytic centre, which does not depend on units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soctk.lazy import linalg
from soctk.lazy import sparse as sp
from soctk.sets.arrays import CROSSED
from soctk.sets.elimination import independent_columns
from soctk.sets.linear_programs import System, linear_program, sparse_if_large

OPPOSITE = -1.0 + 1e-12
"""Cosines of normals below it are of two sides that face each other."""
DEPENDENT = 1e-9
"""Singular values of unit rows below this are none."""
NOT_AT_ALL, HARDLY = 1e-14, 1e-6
"""Between them rows of length one differ, but by no more than a solver's tolerances make of their sides."""
HOLDS = 1e-7
"""Multipliers, which sum to one, above this are positive."""
FEW_NUMBERS = 100_000
"""Of rows, bounds among them: beyond, the dual simplex method, for which most of them tie, takes up to minutes."""
CENTERING_STEPS = 100
CENTERED = 0.1


def both_sides(
    held: np.ndarray, normals: np.ndarray, heights: np.ndarray, rounding: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which rows become equalities, which go with them, and the levels of the first.

    Of two sides that face each other with no more than rounding between them, one is kept, half-way: as two equalities
    of different levels they would contradict one another.

    Args:
        held: rows that hold with equality, bool (m,).
        normals: of length one (m, n).
        heights: (m,).
        rounding: of distances.
    """
    held, gone, levels = held.copy(), np.zeros(held.size, dtype=bool), heights.copy()
    for row in np.flatnonzero(held):
        if held[row]:
            near = heights[row] + heights <= 2 * rounding
            for other in np.flatnonzero(near & ~gone & (normals @ normals[row] < OPPOSITE)):
                levels[row] = 0.5 * (levels[row] - heights[other])
                held[other], gone[other] = False, True
    return held, gone, levels[held]


def _nearly_dependent(rows: np.ndarray) -> bool:
    """Return whether rows of length one are so near to depending on each other that a solver cannot tell."""
    sizes = np.linalg.svd(rows, compute_uv=False)
    return bool(((sizes > NOT_AT_ALL) & (sizes < HARDLY)).any())


def _meeting(rows: np.ndarray, levels: np.ndarray) -> np.ndarray | None:
    """Return a point where rows x = levels to rounding, by the size of their numbers; None where there is none."""
    point = np.linalg.lstsq(rows, levels, rcond=DEPENDENT)[0]
    size = np.abs(rows) @ np.abs(point) + np.abs(levels)
    return point if bool((np.abs(rows @ point - levels) <= CROSSED * size).all()) else None


def _refuted(system: System, w: np.ndarray, level: float) -> bool:
    """Return whether w'x <= level, which follows from the rows, holds nowhere between the bounds (Farkas)."""
    w = np.where(np.abs(w) > NOT_AT_ALL, w, 0.0)
    ends = np.where(w > 0, system.lower, system.upper)
    return bool(np.sum(w[w != 0] * ends[w != 0]) > level)


@dataclass(frozen=True, eq=False)
class Interior:
    """The relative interior, in the units of the system.

    Attributes:
        point: (n,), strictly inside of every row of `normals`.
        span: (k, n), orthonormal: the directions in which no point of the set differs from another.
        normals: (m, n), the rows that do not hold with equality throughout, bounds among them.
        heights: (m,), normals x <= heights.
    """

    point: np.ndarray
    span: np.ndarray
    normals: np.ndarray
    heights: np.ndarray

    @classmethod
    def of(cls, system: System) -> Interior:
        """Find it.

        Raises:
            ValueError: the set is empty; the message names rows that contradict one another, or it is not bounded.
        """
        normals, heights, names = inequalities(system)
        fixed = system.lower == system.upper
        equal, levels = np.vstack([system.E, np.eye(fixed.size)[fixed]]), np.append(system.f, system.lower[fixed])
        near: np.ndarray | None = None  # a point within rounding of the rows that hold with equality
        as_found = True  # those rows, that is, and not only independent ones of them
        while len(normals):
            m, n = normals.shape
            rows, more = np.column_stack([normals, np.ones(m)]), np.column_stack([equal, np.zeros(len(equal))])
            goal = np.append(np.zeros(n), -1.0)
            simplex = rows.size <= FEW_NUMBERS
            answer = linear_program(goal, rows, heights, more, levels, (None, None), simplex=simplex)
            if answer.status == 2 and as_found:  # rows that others imply meet where rounding lets them
                near, as_found = _meeting(equal, levels) if near is None else near, False
                if near is not None:
                    equal = equal[independent_columns(equal.T)]
                    levels = equal @ near
                    continue
            if answer.status == 2:
                if _nearly_dependent(equal):
                    raise ValueError(
                        "no point of the set was found: its equalities contradict one another, or hardly differ, so "
                        "that rounding decides; give variables units in which the entries of a row are of one size, "
                        "and leave out rows that others imply"
                    )
                raise ValueError("expected a set with a point, got an empty one: its equalities contradict one another")
            if answer.status != 0:
                system.box()  # says which coordinate has no end
                raise RuntimeError(f"no point of the set was found ({answer.message}); scale its rows to size one")
            point, radius, z = answer.x[:-1], answer.x[-1], -answer.ineqlin.marginals
            if radius < -system.rounding:
                worst = ", ".join(names[i] for i in np.argsort(-z)[:4] if z[i] > HOLDS)
                combined = z @ normals - answer.eqlin.marginals @ equal
                if _refuted(system, combined, z @ heights - answer.eqlin.marginals @ levels):
                    raise ValueError(f"expected a set with a point, got an empty one: {worst} cannot all hold")
                raise ValueError(
                    f"no point of the set was found: {worst} cannot all hold, or rounding decides; give variables "
                    "units in which the entries of a row are of one size"
                )
            if radius > system.rounding:
                return cls._at(point, equal, levels, normals, heights)
            held = z > min(HOLDS, z.max())
            held[z.argmax()] = True
            held, gone, level = both_sides(held, normals, heights, system.rounding)
            equal, levels = np.vstack([equal, normals[held]]), np.append(levels, level)
            near, as_found = point, True
            left = ~(held | gone)
            normals, heights, names = normals[left], heights[left], [n for n, k in zip(names, left, strict=True) if k]
        return cls._at(np.zeros(fixed.size), equal, levels, normals, heights)

    @classmethod
    def _at(
        cls, point: np.ndarray, equal: np.ndarray, levels: np.ndarray, normals: np.ndarray, heights: np.ndarray
    ) -> Interior:
        """Take independent ones of the equalities, and make the point exact on them."""
        u, sizes, axes = np.linalg.svd(equal, full_matrices=False)
        rank = int((sizes > DEPENDENT).sum())
        missed = (u.T @ (levels - equal @ point))[:rank] / sizes[:rank]
        return cls(point + missed @ axes[:rank], axes[:rank], normals, heights)

    def across(self, directions: np.ndarray) -> np.ndarray:
        """Return the parts of directions (..., n) within the affine hull."""
        return directions - (directions @ self.span.T) @ self.span

    def analytic_center(self) -> np.ndarray:
        """Return argmin -sum log(heights - normals x) in the affine hull, to a tenth of the rows' distances.

        Each step solves H dx + span'nu = -g, span dx = 0 by Cholesky factors of H + rho span'span.
        """
        x, normals = self.point, sparse_if_large(self.normals)
        for _ in range(CENTERING_STEPS if len(self.normals) else 0):
            inverse = 1.0 / (self.heights - normals @ x)
            scaled = normals * inverse[:, None]
            product = scaled.T @ scaled
            hessian = product.toarray() if sp.issparse(product) else product
            gradient, rho = normals.T @ inverse, float(np.trace(hessian)) / x.size
            try:
                factor = linalg.cho_factor(hessian + rho * self.span.T @ self.span)
            except np.linalg.LinAlgError:
                break  # as far as rounding allows; every iterate is inside
            step, held = linalg.cho_solve(factor, -gradient), linalg.cho_solve(factor, self.span.T)
            step = self.across(step - held @ np.linalg.solve(self.span @ held, self.span @ step))
            decrement = float(np.linalg.norm(scaled @ step))
            x = x + step / (1.0 + decrement)  # inside, as the barrier is self-concordant
            if decrement < CENTERED:
                break
        return x


def inequalities(system: System) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the rows of G and the finite bounds that leave room, as unit normals, heights and names."""
    room = system.lower < system.upper
    low, high = (np.flatnonzero(np.isfinite(side) & room) for side in (system.lower, system.upper))
    axes = np.eye(room.size)
    names = [
        *(f"row {i} of G" for i in system.inequalities),
        *(f"lower[{i}]" for i in low),
        *(f"upper[{i}]" for i in high),
    ]
    heights = np.concatenate([system.h, -system.lower[low], system.upper[high]])
    return np.vstack([system.G, -axes[low], axes[high]]), heights, names
