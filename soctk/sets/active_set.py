"""Euclidean projection onto a polyhedron: min ||x - y||^2 / 2 subject to rows a_i'x <= b_i, in its affine hull.

The dual method of Goldfarb and Idnani (1983): x minimises on a working set of rows with multipliers u >= 0. The row
that is violated most is added, along a step on which multipliers of other rows may reach zero and leave the set. The
dual objective grows at every step, so that the method ends, at a point as exact as one factorisation.

Two guesses save nearly all steps: for points near the set the rows that they violate, corrected a few times (a
primal-dual active set, Hintermueller, Ito and Kunisch 2002), for others the rows that Clarabel finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from soctk.lazy import clarabel, linalg
from soctk.lazy import sparse as sp
from soctk.sets.batched_projection import Together
from soctk.sets.interior import Interior

EPS = float(np.finfo(float).eps)
INDEPENDENT = 1e-9
"""A unit row of which less than this lies across the working set is a combination of it."""
CORRECTIONS = 5
FEW = 32
"""So many points are projected one at a time."""


@dataclass(frozen=True, eq=False)
class _Working:
    """The minimiser on rows that hold with equality.

    Attributes:
        rows: their numbers, independent rows.
        w: (n,), the minimiser.
        u: their multipliers.
        Q, R: the factors of the transposed rows.
    """

    rows: np.ndarray
    w: np.ndarray
    u: np.ndarray
    Q: np.ndarray
    R: np.ndarray


class Projector:
    """Projections onto one polyhedron. Inside, points are w = x - point in the directions of the affine hull."""

    def __init__(self, inside: Interior) -> None:
        self.inside = inside
        rows = inside.across(inside.normals)
        lengths = np.linalg.norm(rows, axis=1)
        kept = lengths > INDEPENDENT  # the others are the same throughout
        self.given, self.levels = sp.csc_matrix(inside.normals[kept]), inside.heights[kept]
        self.normals = rows[kept] / lengths[kept, None]
        self.heights = (self.levels - self.given @ inside.point) / lengths[kept]

    def project(self, points: np.ndarray) -> np.ndarray:
        """Return the projections of points (B, n); many are found together, what is not found so one at a time.

        Raises:
            RuntimeError: rounding keeps the method from ending.
        """
        answers, left = np.empty_like(points), np.arange(len(points))
        if len(points) > FEW:
            w, found = self._together.project(torch.from_numpy(self.inside.across(points - self.inside.point)))
            answers, left = self.inside.point + w.numpy(), np.flatnonzero(~found.numpy())
        for place in left:
            answers[place] = self._one(points[place])
        return answers

    @cached_property
    def _together(self) -> Together:
        return Together(self.normals, self.heights, self.inside.span)

    def _one(self, y: np.ndarray) -> np.ndarray:
        """Return the projection of one point (n,)."""
        v = self.inside.across(y - self.inside.point)
        here = self._correct(v) or self._dual_feasible(self._rows_of_clarabel(y), v)
        for _ in range(10 * len(self.normals) + 100):
            violated = self._violated(here)
            if not violated.any():
                return self.inside.point + here.w
            here = self._add(here, v, int(violated.argmax()))
        raise RuntimeError("a projection onto the set did not end; scale the set's rows to size one")

    def _violated(self, here: _Working) -> np.ndarray:
        """Return by how much other rows are violated beyond their rounding, (m,)."""
        excess = self.normals @ here.w - self.heights
        excess -= 32 * EPS * (np.abs(self.heights) + np.linalg.norm(here.w))
        excess[here.rows] = 0.0
        return np.maximum(excess, 0.0)

    def _on(self, rows: np.ndarray, v: np.ndarray) -> _Working:
        """Minimise on independent rows."""
        Q, R = linalg.qr(self.normals[rows].T, mode="economic")
        w = v
        for _ in range(2):  # the second time for what v's size left of rounding
            missed = self.heights[rows] - self.normals[rows] @ w
            w = self.inside.across(w + Q @ linalg.solve_triangular(R, missed, trans="T"))
        return _Working(rows, w, linalg.solve_triangular(R, Q.T @ (v - w)), Q, R)

    def _independent(self, rows: np.ndarray) -> np.ndarray:
        if len(rows) == 0:
            return rows
        R, order = linalg.qr(self.normals[rows].T, mode="r", pivoting=True)
        diagonal = np.abs(np.diag(R))
        return rows[order[: len(diagonal)][diagonal > INDEPENDENT]]

    # -- where to begin ------------------------------------------------------------------------------------

    def _correct(self, v: np.ndarray) -> _Working | None:
        """Return the minimiser if a few corrections of the violated rows find it."""
        here = self._on(np.zeros(0, dtype=int), v)
        for _ in range(CORRECTIONS):
            kept, violated = here.u >= 0, np.flatnonzero(self._violated(here))
            if kept.all() and len(violated) == 0:
                return here
            here = self._on(self._independent(np.append(here.rows[kept], violated)), v)
        return None

    def _rows_of_clarabel(self, y: np.ndarray) -> np.ndarray:
        span, (m, n) = self.inside.span, self.given.shape
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        unit = max(1.0, float(np.abs(y).max()))
        sides = np.append(span @ self.inside.point, self.levels) / unit
        rows = sp.csc_matrix(sp.vstack([sp.csc_matrix(span), self.given]))
        cones = [clarabel.ZeroConeT(len(span)), clarabel.NonnegativeConeT(m)]
        answer = clarabel.DefaultSolver(sp.identity(n, format="csc"), -y / unit, rows, sides, cones, settings).solve()
        return np.flatnonzero(np.asarray(answer.z)[-m:] > np.asarray(answer.s)[-m:])

    def _dual_feasible(self, rows: np.ndarray, v: np.ndarray) -> _Working:
        """Leave out rows that combine others, and rows with negative multipliers until there is none."""
        here = self._on(self._independent(rows), v)
        while (here.u < 0).any():
            here = self._on(here.rows[here.u >= 0], v)
        return here

    # -- one step ------------------------------------------------------------------------------------------

    def _add(self, here: _Working, v: np.ndarray, row: int) -> _Working:
        """Add one violated row, dropping rows whose multipliers reach zero on the way."""
        normal, rows, w, u, Q, R = self.normals[row], here.rows, here.w, here.u, here.Q, here.R
        while True:
            share = linalg.solve_triangular(R, Q.T @ normal)
            beyond = normal - Q @ (Q.T @ normal)
            beyond -= Q @ (Q.T @ beyond)
            length = float(beyond @ beyond)
            falling = np.flatnonzero(share > 0)
            ratios = u[falling] / share[falling]
            longest = float(ratios.min(initial=np.inf))
            full = np.inf if length < INDEPENDENT**2 else float(normal @ w - self.heights[row]) / length
            if full <= longest:
                if not np.isfinite(full):
                    raise RuntimeError("a projection found the set empty; scale the set's rows to size one")
                return self._on(np.append(rows, row), v)
            w, u = w - (longest * beyond if np.isfinite(full) else 0.0), u - longest * share
            gone = int(falling[ratios.argmin()])
            rows, u = np.delete(rows, gone), np.delete(np.maximum(u, 0.0), gone)
            Q, R = linalg.qr(self.normals[rows].T, mode="economic")
