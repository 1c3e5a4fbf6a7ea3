"""Euclidean projection onto a polyhedron with an interior: min ||w - v||^2 / 2 subject to R w <= r.

The dual method of Goldfarb and Idnani (1983): w minimises on a working set of rows with multipliers u >= 0. The row
that is violated most is added, along a step on which multipliers of other rows may reach zero and leave the set. The
dual objective grows at every step, so that the method ends, at a point as exact as one factorisation. Clarabel's answer
to the same problem names the rows to begin with, which saves nearly all steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soctk.lazy import clarabel, linalg
from soctk.lazy import sparse as sp

EPS = float(np.finfo(float).eps)
INDEPENDENT = 1e-9
"""A unit row of which less than this lies across the working set is a combination of it."""


@dataclass(frozen=True, eq=False)
class _Working:
    """The minimiser on rows that hold with equality.

    Attributes:
        rows: their numbers, independent rows.
        w: (d,), the minimiser.
        u: their multipliers.
        Q, R: the factors of the transposed rows.
    """

    rows: list[int]
    w: np.ndarray
    u: np.ndarray
    Q: np.ndarray
    R: np.ndarray


class Projector:
    """Projections onto {R w <= r}, R (m, d), which has a point."""

    def __init__(self, R: np.ndarray, r: np.ndarray) -> None:
        lengths = np.linalg.norm(R, axis=1)
        kept = lengths > INDEPENDENT  # the others hold wherever w is
        self.normals, self.heights = R[kept] / lengths[kept, None], r[kept] / lengths[kept]

    def project(self, v: np.ndarray) -> np.ndarray:
        """Return the projection of one point (d,).

        Raises:
            RuntimeError: rounding keeps the method from ending.
        """
        if self._excess(v).max(initial=0.0) <= 0:
            return v
        here = self._begin(v)
        for _ in range(10 * len(self.normals) + 100):
            excess = self._excess(here.w)
            excess[here.rows] = 0.0
            worst = int(excess.argmax())
            if excess[worst] <= 0:
                return here.w
            here = self._add(here, v, worst)
        raise RuntimeError("a projection onto the set did not end; scale the set's rows to size one")

    def _excess(self, w: np.ndarray) -> np.ndarray:
        """Return by how much rows are violated beyond their rounding, (m,)."""
        return self.normals @ w - self.heights - 32 * EPS * (np.abs(self.heights) + np.linalg.norm(w))

    def _on(self, rows: list[int], v: np.ndarray) -> _Working:
        """Minimise on a working set."""
        Q, R = linalg.qr(self.normals[rows].T, mode="economic")
        w = v
        for _ in range(2):  # the second time for what v's size left of rounding
            missed = self.heights[rows] - self.normals[rows] @ w
            w = w + Q @ linalg.solve_triangular(R, missed, trans="T")
        return _Working(rows, w, linalg.solve_triangular(R, Q.T @ (v - w)), Q, R)

    def _begin(self, v: np.ndarray) -> _Working:
        """Begin with Clarabel's rows, less those that combine others and those whose multipliers are negative."""
        rows = self._guess(v)
        if len(rows):
            R, order = linalg.qr(self.normals[rows].T, mode="r", pivoting=True)
            diagonal = np.abs(np.diag(R))
            rows = rows[order[: len(diagonal)][diagonal > INDEPENDENT]]
        while True:
            here = self._on([int(row) for row in rows], v)
            if (here.u >= 0).all():
                return here
            rows = rows[here.u >= 0]

    def _guess(self, v: np.ndarray) -> np.ndarray:
        m, d = self.normals.shape
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        unit = max(1.0, float(np.abs(v).max()))
        problem = sp.identity(d, format="csc"), -v / unit, sp.csc_matrix(self.normals), self.heights / unit
        answer = clarabel.DefaultSolver(*problem, [clarabel.NonnegativeConeT(m)], settings).solve()
        return np.flatnonzero(np.asarray(answer.z) > np.asarray(answer.s))

    def _add(self, here: _Working, v: np.ndarray, row: int) -> _Working:
        """Add one violated row, dropping rows whose multipliers reach zero on the way."""
        normal, rows, w, u = self.normals[row], list(here.rows), here.w, here.u
        Q, R = here.Q, here.R
        while True:
            share = linalg.solve_triangular(R, Q.T @ normal)
            across = normal - Q @ (Q.T @ normal)
            across -= Q @ (Q.T @ across)
            length = float(across @ across)
            falling = np.flatnonzero(share > 0)
            ratios = u[falling] / share[falling]
            longest = float(ratios.min(initial=np.inf))
            full = np.inf if length < INDEPENDENT**2 else float(normal @ w - self.heights[row]) / length
            if full <= longest:
                if not np.isfinite(full):
                    raise RuntimeError("a projection found the set empty; scale the set's rows to size one")
                return self._on([*rows, row], v)
            w, u = w - (longest * across if np.isfinite(full) else 0.0), u - longest * share
            gone = int(falling[ratios.argmin()])
            rows.pop(gone)
            u = np.delete(np.maximum(u, 0.0), gone)
            Q, R = linalg.qr(self.normals[rows].T, mode="economic")
