"""Polyhedra cut by second-order cones: risk limits ||F x + g|| <= c'x + d beside bounds and rows.

For any nu, z >= 0 and (z0, v) with ||v|| <= z0 for each cone, every x of the set has

    g'x >= -nu'f - z'h - sum (z0 d + v'g_c) + w'x,    w = g + E'nu + G'z - sum (z0 c + F'v),

and w'x is at least its minimum over a box around the polyhedron. So Clarabel's multipliers, moved into their cones, are
turned into a lower bound of a linear function whatever their accuracy; decisions and certificates rest on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor
from soctk.lazy import clarabel
from soctk.lazy import cvxpy as cp
from soctk.lazy import sparse as sp
from soctk.sets.base import FeasibleSet
from soctk.sets.polyhedron import Polyhedron

TIGHT = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
SOLVED = ("Solved", "AlmostSolved", "InsufficientProgress")
PULLED = 1e-9
"""A point that lies outside by rounding is moved towards the middle by this share more than it needs."""
NEAR = 1e-7
"""A point that violates the set by less, relative to its numbers, is moved towards the middle in place of projected."""


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

    def __init__(self, polyhedron: Polyhedron, cones: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike, float]]) -> None:
        if not isinstance(polyhedron, Polyhedron):
            raise TypeError(f"polyhedron: expected a soctk.Polyhedron, got {type(polyhedron).__name__}")
        self.dim, self.polyhedron = polyhedron.dim, polyhedron
        self.cones = tuple(_cone(cone, number, self.dim) for number, cone in enumerate(cones))
        if not self.cones:
            raise ValueError("cones: expected at least one; a polyhedron without cones is a set by itself")
        lo, hi = polyhedron.at().box
        self._box = lo.numpy(), hi.numpy()
        self._rows = _stacked(polyhedron, self.cones)
        self._middle = self._inside()

    # -- what is required --------------------------------------------------------------------------------

    def _project(self, y: Tensor) -> Tensor:
        outside = self._violation(y).reshape(-1).cpu().double().numpy()
        found = y.detach().cpu().double().reshape(-1, self.dim).numpy().copy()
        for k in np.flatnonzero(outside > 0):
            near = outside[k] <= NEAR * self.polyhedron.magnitude
            found[k] = self._pulled(found[k] if near else self._solve(-found[k], quadratic=True).x)
        return torch.from_numpy(found).reshape(y.shape).to(y)

    def _linear_minimizer(self, g: Tensor) -> Tensor:
        slopes = g.detach().cpu().double().reshape(-1, self.dim).numpy()
        points = [self._pulled(self._solve(slope).x) for slope in slopes]
        return torch.from_numpy(np.array(points).reshape(g.shape)).to(g)

    def linear_minimum(self, g: Tensor) -> Tensor:
        """Return a lower bound of min g'x from multipliers, within about 1e-9 of it: (*batch, n) -> (*batch)."""
        slopes = g.detach().cpu().double().reshape(-1, self.dim).numpy()
        least = torch.tensor([self._least(slope) for slope in slopes], dtype=torch.float64).reshape(g.shape[:-1])
        rounded = least.to(g)
        down = torch.nextafter(rounded, torch.full_like(rounded, -torch.inf))
        return torch.where(rounded.double().cpu() > least, down.cpu(), rounded.cpu()).to(g)

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
        cones = [cp.SOC(cone.c @ x + cone.d, cone.F @ x + cone.g) for cone in self.cones]
        return [*self.polyhedron.constraints(x), *cones]

    # -- Clarabel ------------------------------------------------------------------------------------------

    def _solve(self, q: np.ndarray, *, quadratic: bool = False) -> Any:
        """Return Clarabel's answer to min q'x, or |x|^2 / 2 + q'x, over the set, its numbers as arrays."""
        matrix, side, cones = self._rows
        unit = max(1.0, float(np.abs(q).max())) if not quadratic else 1.0
        P = sp.csc_matrix(sp.identity(self.dim) if quadratic else (self.dim, self.dim))
        answer = clarabel.DefaultSolver(P, q / unit, matrix, side, cones(), _settings()).solve()
        if str(answer.status) not in SOLVED:
            raise RuntimeError(f"a cone program over the set was not solved ({answer.status})")
        return _Answer(np.asarray(answer.x), unit * np.asarray(answer.z))

    def _least(self, g: np.ndarray) -> float:
        """Return the bound that stands above."""
        z, rows = self._solve(g).z, self.polyhedron.rows()
        k, count = len(rows.E), len(self._rows[1]) - sum(1 + len(cone.g) for cone in self.cones)
        matrix, side, _ = self._rows
        z = z.copy()
        z[k:count] = np.maximum(z[k:count], 0.0)
        first = count
        for cone in self.cones:
            last = first + 1 + len(cone.g)
            z[first] = max(z[first], float(np.linalg.norm(z[first + 1 : last])) * (1 + 1e-15))
            first = last
        w = g + z @ matrix
        parts = np.concatenate([-z * side, np.minimum(w * self._box[0], w * self._box[1])])
        largest = np.maximum(np.abs(self._box[0]), np.abs(self._box[1]))
        sizes = (np.abs(g) + np.abs(z) @ np.abs(matrix)) @ largest
        return float(parts.sum() - np.finfo(float).eps * (parts.size + 2) * (np.abs(parts).sum() + sizes))

    def _inside(self) -> np.ndarray:
        """Return argmax s with ||F x + g|| + s <= c'x + d for all cones, s > 0 and at most 1, in the polyhedron."""
        matrix, side, cones = self._rows
        first = matrix.shape[0] - sum(1 + len(cone.g) for cone in self.cones)
        extra, place = np.zeros(matrix.shape[0]), first
        for cone in self.cones:
            extra[place], place = 1.0, place + 1 + len(cone.g)
        wide = sp.csc_matrix(
            sp.vstack(
                [sp.hstack([matrix, extra[:, None]]), sp.csr_matrix(([1.0], ([0], [self.dim])), (1, self.dim + 1))]
            )
        )
        q = np.append(np.zeros(self.dim), -1.0)
        kinds = [*cones(), clarabel.NonnegativeConeT(1)]
        P = sp.csc_matrix((self.dim + 1, self.dim + 1))
        answer = clarabel.DefaultSolver(P, q, wide, np.append(side, 1.0), kinds, _settings()).solve()
        if str(answer.status) not in SOLVED or answer.x[-1] <= 1e-9:
            raise ValueError("cones: expected a set with a point strictly inside of all cones, got one without")
        return self._of_rows(np.asarray(answer.x)[:-1])

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


def _settings() -> Any:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    for name, value in TIGHT.items():
        setattr(settings, name, value)
    return settings


def _stacked(polyhedron: Polyhedron, cones: Sequence[ConeRow]) -> tuple[Any, np.ndarray, Any]:
    """Return the matrix, the right-hand sides and a maker of the cones of b - A x in K: zero, nonnegative, cones."""
    rows, n = polyhedron.rows(), polyhedron.dim
    eye, parts, sides, count = np.eye(n), [rows.E.numpy()], [rows.f.numpy()], 0
    for matrix, side in ((rows.G.numpy(), rows.h.numpy()), (eye, rows.upper.numpy()), (-eye, -rows.lower.numpy())):
        finite = np.isfinite(side)
        parts, sides, count = [*parts, matrix[finite]], [*sides, side[finite]], count + int(finite.sum())
    for F, g, c, d in cones:
        parts, sides = [*parts, -c[None], -F], [*sides, np.array([d]), g]

    sizes = [len(rows.E), count, *(1 + len(cone.g) for cone in cones)]
    return sp.csc_matrix(np.vstack(parts)), np.concatenate(sides), partial(_kinds, sizes)


def _kinds(sizes: Sequence[int]) -> list[Any]:
    """Return the cones of so many rows: zero and nonnegative ones, where there are any, then second-order cones."""
    makers = [clarabel.ZeroConeT, clarabel.NonnegativeConeT, *[clarabel.SecondOrderConeT] * (len(sizes) - 2)]
    return [make(size) for make, size in zip(makers, sizes, strict=True) if size > 0]


def _cone(cone: tuple[ArrayLike, ArrayLike, ArrayLike, float], number: int, dim: int) -> ConeRow:
    """Return a checked cone."""
    if not isinstance(cone, Sequence) or len(cone) != 4:
        raise ValueError(f"cones[{number}]: expected (F, g, c, d), got {cone!r}")
    names = [f"cones[{number}].{name}" for name in "Fgcd"]
    F, g, c, d = (as_tensor(part, name).detach().double().numpy() for part, name in zip(cone, names, strict=True))
    F = np.atleast_2d(F)
    if F.ndim != 2 or F.shape[1] != dim:
        raise ValueError(f"{names[0]}: expected shape (rows, {dim}), got {F.shape}")
    for part, name, size in ((g, names[1], len(F)), (c, names[2], dim)):
        if part.shape not in ((), (size,)):
            raise ValueError(f"{name}: expected a number or {size} numbers, got shape {part.shape}")
    if d.shape != ():
        raise ValueError(f"{names[3]}: expected a number, got shape {d.shape}")
    return ConeRow(F, np.broadcast_to(g, len(F)).copy(), np.broadcast_to(c, dim).copy(), float(d))
