"""Polyhedra cut by second-order cones: risk limits ||F x + g|| <= c'x + d beside bounds and rows.

For any nu, z >= 0 and (z0, v) with ||v|| <= z0 for each cone, every x of the set has

    g'x >= -nu'f - z'h - sum (z0 d + v'g_c) + w'x,    w = g + E'nu + G'z - sum (z0 c + F'v),

and w'x is at least its minimum over a box around the polyhedron. So Clarabel's multipliers, moved into their cones, are
turned into a lower bound of a linear function whatever their accuracy; decisions and certificates rest on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor, check_kind, to_numpy
from soctk.lazy import clarabel
from soctk.lazy import cvxpy as cp
from soctk.lazy import sparse as sp
from soctk.sets.base import FeasibleSet
from soctk.sets.coordinates import Coordinates, powers_of_two
from soctk.sets.polyhedron import Polyhedron
from soctk.sets.rounding import directed

TIGHT = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
SOLVED = ("Solved", "AlmostSolved", "InsufficientProgress")
PULLED = 1e-9
"""A point that lies outside by rounding is moved towards the middle by this share more than it needs."""
BESIDE = 0.1
"""A point that is nearer than this, in units of the set's coordinates, is projected onto tangent planes."""
ROUNDS, SETTLED = 8, 1e-6
"""How often, until the projection moves by less than this share of the distance."""
NEAR = 1e-7
"""A point that violates the set by less, in its coordinates, is moved towards the middle in place of projected."""


class ConeRow(NamedTuple):
    """||F x + g|| <= c'x + d, arrays."""

    F: np.ndarray
    g: np.ndarray
    c: np.ndarray
    d: float


class ConicSet(FeasibleSet):
    """{x in a polyhedron : ||F_i x + g_i|| <= c_i'x + d_i for all i}, compact, with points strictly inside the cones.

    Decided by an outside solver and certified by our own bound; projected and minimised over by Clarabel, one point at
    a time.

    Args:
        polyhedron: bounds, equalities and inequalities.
        cones: (F, g, c, d) each: F (k, n), g (k,), c (n,), d a number; g and c may be numbers for vectors of them.

    Raises:
        TypeError: something that is not numeric.
        ValueError: wrong shapes, NaN, no cone, no point strictly inside the cones.
    """

    trusted = True

    def __init__(self, polyhedron: Polyhedron, cones: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike, float]]) -> None:
        check_kind(polyhedron, Polyhedron, "polyhedron")
        self.dim, self.polyhedron = polyhedron.dim, polyhedron
        self.cones = tuple(_cone(cone, number, self.dim) for number, cone in enumerate(cones))
        if not self.cones:
            raise ValueError("cones: expected at least one; a polyhedron without cones is a set by itself")
        lo, hi = polyhedron.at().box
        self._box = lo.numpy(), hi.numpy()
        self._program = _Program.of(polyhedron, self.cones)
        self._scaled = self._program.scaled(self.coordinates)
        self._middle = self._inside()

    # -- what is required --------------------------------------------------------------------------------

    def _project(self, y: Tensor) -> Tensor:
        outside = self._violation(y).reshape(-1).cpu().double().numpy()
        found = y.detach().cpu().double().reshape(-1, self.dim).numpy().copy()
        for k in np.flatnonzero(outside > 0):
            near = self._scaled[0].excess(self.coordinates.z_of(found[k])) <= NEAR
            found[k] = self._pulled(found[k] if near else self._nearest(found[k]))
        return torch.from_numpy(found).reshape(y.shape).to(y)

    def _linear_minimizer(self, g: Tensor) -> Tensor:
        slopes = g.detach().cpu().double().reshape(-1, self.dim).numpy()
        points = [self._pulled(self._solve(slope).x) for slope in slopes]
        return torch.from_numpy(np.array(points).reshape(g.shape)).to(g)

    def linear_minimum(self, g: Tensor) -> Tensor:
        """Return a lower bound of min g'x from multipliers, within about 1e-9 of it: (*batch, n) -> (*batch)."""
        slopes = g.detach().cpu().double().reshape(-1, self.dim).numpy()
        least = torch.tensor([self._least(slope) for slope in slopes], dtype=torch.float64).reshape(g.shape[:-1])
        return directed(least, g.dtype, -torch.inf).to(g.device)

    def _violation(self, x: Tensor) -> Tensor:
        worst = self.polyhedron._violation(x)
        for F, g, c, d in self.cones:
            matrix, offset, slope = (torch.from_numpy(part).to(x) for part in (F, g, c))
            worst = torch.maximum(worst, (x @ matrix.mT + offset).norm(dim=-1) - x @ slope - d)
        return worst

    def constraints(self, x: cp.Expression) -> list[cp.Constraint]:
        """Return the polyhedron's constraints and the cones as CVXPY constraints on `x`, an expression of shape (n,).

        Raises:
            ValueError: another shape.
        """
        if x.shape != (self.dim,):
            raise ValueError(f"x: expected a CVXPY expression of shape ({self.dim},), got {x.shape}")
        cones = []
        for cone, (first, _) in zip(self.cones, self._program.cones, strict=True):
            unit = self._scaled[1][first]
            cones.append(cp.SOC((cone.c @ x + cone.d) / unit, (cone.F @ x + cone.g) / unit))
        return [*self.polyhedron.constraints(x), *cones]

    # -- Clarabel ------------------------------------------------------------------------------------------

    @cached_property
    def coordinates(self) -> Coordinates:
        return Coordinates.of(*self._box)

    def _solve(self, q: np.ndarray, *, quadratic: bool = False) -> _Answer:
        """Return Clarabel's answer to min q'x, or |x|^2 / 2 + q'x, over the set: x, and multipliers of its rows.

        In the set's coordinates x = m + S z, with an objective and rows that are about 1 in size.
        """
        program, divisor = self._scaled
        middle, unit = self.coordinates.middle, self.coordinates.unit
        slope = unit * (q + middle if quadratic else q)
        squares = unit**2 if quadratic else np.zeros(self.dim)
        size = float(powers_of_two(max(np.abs(slope).max(), squares.max())))
        answer = program.solve(squares / size, slope / size)
        if str(answer.status) not in SOLVED:
            raise RuntimeError(f"a cone program over the set was not solved ({answer.status})")
        return _Answer(self.coordinates.x_of(np.asarray(answer.x)), size * np.asarray(answer.z) / divisor)

    def _nearest(self, y: np.ndarray) -> np.ndarray:
        """Return the nearest point to y.

        The squares of a distance that is small beside the set are smaller than a solver's tolerances. Such a point is
        looked for in coordinates of that distance, the cones replaced by their tangent planes where it was found last:
        a few small quadratic programmes.
        """
        x = self._pulled(y)
        for _ in range(ROUNDS):
            distance, before = float(np.linalg.norm(x - y)), x
            if not 0 < distance < BESIDE * self.coordinates.unit.max():
                break
            around = Coordinates(y, np.full(self.dim, powers_of_two(distance)))
            program = self._program.flattened(x, y, 2 * distance)
            answer = program.scaled(around)[0].solve(np.ones(self.dim), np.zeros(self.dim))
            if str(answer.status) != SOLVED[0]:
                break
            x = around.x_of(np.asarray(answer.x))
            if float(np.linalg.norm(x - before)) <= SETTLED * distance:
                return x
        return self._solve(-y, quadratic=True).x

    def _least(self, g: np.ndarray) -> float:
        """Return the bound that stands above."""
        z, program = self._solve(g).z, self._program
        rows = slice(program.sizes[0], program.sizes[0] + program.sizes[1])
        z[rows] = np.maximum(z[rows], 0.0)
        for first, last in program.cones:
            z[first] = max(z[first], float(np.linalg.norm(z[first + 1 : last])) * (1 + 1e-15))
        w = g + z @ program.matrix
        parts = np.concatenate([-z * program.side, np.minimum(w * self._box[0], w * self._box[1])])
        largest = np.maximum(np.abs(self._box[0]), np.abs(self._box[1]))
        sizes = (np.abs(g) + np.abs(z) @ np.abs(program.matrix)) @ largest
        return float(parts.sum() - np.finfo(float).eps * (parts.size + 2) * (np.abs(parts).sum() + sizes))

    def _inside(self) -> np.ndarray:
        """Return argmax s with ||F x + g|| + s <= c'x + d for all cones, s at most 1, each in its own unit."""
        program, _ = self._scaled
        extra = np.zeros((len(program.side), 1))
        extra[[first for first, _ in program.cones]] = 1.0
        last = np.append(np.zeros(self.dim), 1.0)
        k, count, *cones = program.sizes
        place = k + count
        matrix = np.insert(np.hstack([program.matrix, extra]), place, last, axis=0)
        wide = _Program(matrix, np.insert(program.side, place, 1.0), (k, count + 1, *cones))
        answer = wide.solve(np.zeros(self.dim + 1), -last)
        if str(answer.status) not in SOLVED or answer.x[-1] <= 1e-9:
            raise ValueError("cones: expected a set with a point strictly inside of all cones, got one without")
        return self._of_rows(self.coordinates.x_of(np.asarray(answer.x)[:-1]))

    def _of_rows(self, x: np.ndarray) -> np.ndarray:
        """Return the point of the polyhedron nearest to a solver's, which meets the rows but for its accuracy."""
        return self.polyhedron._project(torch.from_numpy(np.asarray(x, dtype=float))).numpy()

    def _pulled(self, x: np.ndarray) -> np.ndarray:
        """Return a point moved into the cones where rounding left it outside, towards the middle."""
        x, share = self._of_rows(x), 0.0
        for F, g, c, d in self.cones:
            excess = float(np.linalg.norm(F @ x + g) - c @ x - d)
            room = float(c @ self._middle + d - np.linalg.norm(F @ self._middle + g))
            share = max(share, excess / (excess + room)) if excess > 0 else share
        return x + min(share * (1 + PULLED), 1.0) * (self._middle - x) if share > 0 else x


class _Answer(NamedTuple):
    x: np.ndarray
    z: np.ndarray


@dataclass(frozen=True, eq=False)
class _Program:
    """side - matrix x in a product of cones: zeros, numbers that are not negative, second-order cones.

    Attributes:
        matrix: (rows, n).
        side: (rows,).
        sizes: how many rows are zeros and how many not negative, and the rows of each cone.
    """

    matrix: np.ndarray
    side: np.ndarray
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, polyhedron: Polyhedron, cones: Sequence[ConeRow]) -> _Program:
        """Return the rows of a polyhedron, its finite bounds and the cones."""
        rows, eye = polyhedron.rows(), np.eye(polyhedron.dim)
        parts, sides, count = [rows.E.numpy()], [rows.f.numpy()], 0
        for matrix, side in ((rows.G.numpy(), rows.h.numpy()), (eye, rows.upper.numpy()), (-eye, -rows.lower.numpy())):
            finite = np.isfinite(side)
            parts, sides, count = [*parts, matrix[finite]], [*sides, side[finite]], count + int(finite.sum())
        for F, g, c, d in cones:
            parts, sides = [*parts, -c[None], -F], [*sides, np.array([d]), g]
        return cls(np.vstack(parts), np.concatenate(sides), (len(rows.E), count, *(1 + len(cone.g) for cone in cones)))

    @property
    def cones(self) -> list[tuple[int, int]]:
        """The first row of each cone, and the one after its last."""
        ends = np.cumsum(self.sizes)
        return [(int(first), int(last)) for first, last in pairwise(ends[1:])]

    def scaled(self, coordinates: Coordinates) -> tuple[_Program, np.ndarray]:
        """Return the same for z, where x = m + S z, and what its rows were divided by, one number for a cone."""
        matrix = self.matrix * coordinates.unit
        sizes = np.abs(matrix).max(axis=1)
        for first, last in self.cones:
            sizes[first:last] = sizes[first:last].max()
        divisor = powers_of_two(sizes)
        side = (self.side - self.matrix @ coordinates.middle) / divisor
        return _Program(matrix / divisor[:, None], side, self.sizes), divisor

    def flattened(self, x: np.ndarray, y: np.ndarray, reach: float) -> _Program:
        """Return the same within a distance of y (n,), a tangent plane at x (n,) in place of each cone around it."""
        slack, (k, count, *_) = self.side - self.matrix @ x, self.sizes
        keep, planes = k + count, []
        for first, last in self.cones:
            length = float(np.linalg.norm(slack[first + 1 : last]))
            across = np.append(1.0, -slack[first + 1 : last] / length if length > 0 else np.zeros(last - first - 1))
            planes.append((across @ self.matrix[first:last], across @ self.side[first:last]))
        matrix = np.vstack([self.matrix[:keep], *(plane[None] for plane, _ in planes)])
        side = np.append(self.side[:keep], [height for _, height in planes])
        near = side - matrix @ y <= reach * np.linalg.norm(matrix, axis=1)
        near[:k] = True
        return _Program(matrix[near], side[near], (k, int(near[k:].sum())))

    def excess(self, x: np.ndarray) -> float:
        """Return by how much a point (n,) is outside, at least 0."""
        slack, (k, count, *_) = self.side - self.matrix @ x, self.sizes
        worst = max(np.abs(slack[:k]).max(initial=0.0), -slack[k : k + count].min(initial=0.0))
        lengths = (float(np.linalg.norm(slack[first + 1 : last]) - slack[first]) for first, last in self.cones)
        return max(float(worst), *lengths)

    def solve(self, squares: np.ndarray, slope: np.ndarray) -> Any:
        """Return Clarabel's answer to min sum_i squares_i x_i^2 / 2 + slope'x."""
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        for name, value in TIGHT.items():
            setattr(settings, name, value)
        makers = [clarabel.ZeroConeT, clarabel.NonnegativeConeT, *[clarabel.SecondOrderConeT] * len(self.cones)]
        kinds = [make(size) for make, size in zip(makers, self.sizes, strict=True) if size > 0]
        P = sp.csc_matrix(sp.diags(squares)) if squares.any() else sp.csc_matrix((len(slope), len(slope)))
        return clarabel.DefaultSolver(P, slope, sp.csc_matrix(self.matrix), self.side, kinds, settings).solve()


def _cone(cone: tuple[ArrayLike, ArrayLike, ArrayLike, float], number: int, dim: int) -> ConeRow:
    """Return a checked cone."""
    if not isinstance(cone, Sequence) or len(cone) != 4:
        raise ValueError(f"cones[{number}]: expected (F, g, c, d), got {cone!r}")
    names = [f"cones[{number}].{name}" for name in "Fgcd"]
    F, g, c, d = (to_numpy(as_tensor(part, name)) for part, name in zip(cone, names, strict=True))
    F = np.atleast_2d(F).copy()  # the caller may go on writing into it
    if F.ndim != 2 or F.shape[1] != dim:
        raise ValueError(f"{names[0]}: expected shape (rows, {dim}), got {F.shape}")
    for part, name, size in ((g, names[1], len(F)), (c, names[2], dim)):
        if part.shape not in ((), (size,)):
            raise ValueError(f"{name}: expected a number or {size} numbers, got shape {part.shape}")
    if d.shape != ():
        raise ValueError(f"{names[3]}: expected a number, got shape {d.shape}")
    return ConeRow(F, np.broadcast_to(g, len(F)).copy(), np.broadcast_to(c, dim).copy(), float(d))
