"""Projections of many points at once: min ||w - v||^2 / 2 subject to A w <= b, rows of length one.

Which rows hold with equality is guessed, and the guess is made exact. A guess comes from the alternating direction
method of multipliers (Boyd et al. 2011), min ||w - v||^2 / 2 with A w = z, z <= b, scaled multipliers u, penalty rho:

    w = (I + rho A'A)^-1 (v + rho A'(z - u)),    z = min(A w + u, b),    u = u + A w - z,

over-relaxed, and in the eigenvectors of A'A, where each point may have a penalty of its own. Rows with u > 0 are then
corrected as in a primal-dual active set (Hintermueller, Ito and Kunisch 2002): with equality on the rows of the guess
the multipliers solve A A'u = A v - b, rows with negative ones leave, violated rows enter.

An answer counts only if it satisfies every row, and those of the guess with equality, to rounding, and no multiplier
is negative: as w = v - A'u, it is then the projection. Points without such an answer are left to a method that ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

EPS = float(np.finfo(float).eps)
ROUNDING = 32 * EPS
CHUNK = 1024
"""Points that are worked on at once, whose numbers fit into a cache."""
SOLVED = 128
"""The same where each has a matrix of its own."""
CORRECTIONS = 3
"""After every round of multipliers."""
ROUNDS, STEPS = 25, 40
RELAXATION = 1.6
REGULAR = 1e-13
"""Added to A A' where rows may depend on one another; what it changes is taken back by refinement."""
REFINEMENTS = 2
LARGE = 1e5
"""Multipliers that add up to more than so many times the point come from rows that nearly depend on one another."""
LEAST_PENALTY = 1e-3
"""Of points that are hardly outside."""
CHANGE = 10.0
"""By how much a penalty may grow or fall in one round."""


@dataclass(frozen=True, eq=False)
class Corrected:
    """Minimisers with equality on the rows of guesses.

    Attributes:
        w: (B, n).
        exact: (B,), which of them are projections.
        active: (B, m), better guesses.
    """

    w: Tensor
    exact: Tensor
    active: Tensor


class Together:
    """The projections of many points onto {w : A w <= b} in an affine hull through 0.

    Args:
        normals: (m, n), rows of length one in the hull.
        heights: (m,).
        span: (k, n), orthonormal directions across the hull.
    """

    def __init__(self, normals: np.ndarray, heights: np.ndarray, span: np.ndarray) -> None:
        self.A, self.b, self.span = (torch.from_numpy(part) for part in (normals, heights, span))
        self.gram = self.A @ self.A.T
        self.sizes, self.axes = torch.linalg.eigh(self.A.T @ self.A)
        self.across_axes = self.A @ self.axes
        self.width = self.b.abs().median()

    def project(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return points (B, n), and for which of them, bool (B,), they are the projections of v (B, n)."""
        parts = [self._project(self._within(part)) for part in v.split(CHUNK)]
        return torch.cat([w for w, _ in parts]), torch.cat([found for _, found in parts])

    def _project(self, v: Tensor) -> tuple[Tensor, Tensor]:
        no_rows = torch.zeros(len(v), len(self.b), dtype=torch.bool)
        w, found = v.clone(), self._judge(v, no_rows.to(v.dtype), no_rows).exact
        left = torch.nonzero(~found).squeeze(1)
        if len(left) == 0:
            return w, found
        guess = Multipliers.start(self, v[left])
        for _ in range(ROUNDS):
            guess = guess.round(self)
            active, places = guess.u > 0, torch.arange(len(left))
            for _ in range(CORRECTIONS):
                if len(places) == 0:
                    break
                answer = self._correct(v[left[places]], active)
                done = left[places[answer.exact]]
                w[done], found[done] = answer.w[answer.exact], True
                places, active = places[~answer.exact], answer.active[~answer.exact]
            left, guess = left[places], guess.of(places)
            if len(left) == 0:
                break
        return w, found

    def _correct(self, v: Tensor, active: Tensor) -> Corrected:
        """Correct guesses (B, m); points with about as many rows are solved for together."""
        counts = active.sum(dim=1)
        w, u = torch.empty_like(v), torch.zeros_like(active, dtype=v.dtype)
        for part in torch.argsort(counts).split(SOLVED):
            w[part], u[part] = self._on(v[part], active[part], int(counts[part].max()))
        answer = self._judge(w, u, active)
        steady = u.sum(dim=1) <= LARGE * v.norm(dim=1)
        return Corrected(w, answer.exact & steady, answer.active)

    def _on(self, v: Tensor, active: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """Return minimisers with equality on rows (B, m), of which a point has `most` at most, and multipliers.

        Matrices are as large as the largest; where a point has fewer rows the rest is the identity.
        """
        rows = torch.argsort(~active, dim=1, stable=True)[:, :most]
        real = active.gather(1, rows)
        gram = self.gram[rows[:, :, None], rows[:, None, :]] * (real[:, :, None] & real[:, None, :])
        gram.diagonal(dim1=1, dim2=2).add_(torch.where(real, REGULAR, 1.0))
        factor, _ = torch.linalg.cholesky_ex(gram)  # where it fails the answer is not exact
        w, u = v, torch.zeros_like(active, dtype=v.dtype)
        for _ in range(1 + REFINEMENTS):
            missed = (w @ self.A.T - self.b).gather(1, rows) * real
            more = torch.cholesky_solve(missed.unsqueeze(-1), factor).squeeze(-1) * real
            step = torch.zeros_like(u).scatter_(1, rows, more)
            u, w = u + step, w - step @ self.A
            w = self._within(w)
        return w, u

    def _within(self, w: Tensor) -> Tensor:
        """Take off what rounding left across the hull."""
        return w - (w @ self.span.T) @ self.span

    def _judge(self, w: Tensor, u: Tensor, active: Tensor) -> Corrected:
        """Say which minimisers are projections."""
        excess = w @ self.A.T - self.b
        rounding = ROUNDING * (self.b.abs() + w.norm(dim=1, keepdim=True))
        violated, negative = excess > rounding, active & ~(u >= 0)
        missed = active & ~(excess.abs() <= rounding)
        exact = ~(violated | negative | missed).any(dim=1)
        return Corrected(w, exact, torch.where(active, ~negative, violated))


@dataclass(frozen=True, eq=False)
class Multipliers:
    """The alternating direction method for many points.

    Attributes:
        v: (B, n), the points in the eigenvectors of A'A.
        z: (B, m), A w between the heights.
        u: (B, m), multipliers divided by the penalties.
        rho: (B, 1), the penalties.
    """

    v: Tensor
    z: Tensor
    u: Tensor
    rho: Tensor

    @classmethod
    def start(cls, rows: Together, v: Tensor) -> Multipliers:
        """Begin without multipliers; penalties are as multipliers are, how far points are outside, per width."""
        v = v @ rows.axes
        at = v @ rows.across_axes.T
        outside = (at - rows.b).amax(dim=1, keepdim=True)
        return cls(v, torch.minimum(at, rows.b), torch.zeros_like(at), (outside / rows.width).clamp(min=LEAST_PENALTY))

    def of(self, places: Tensor) -> Multipliers:
        """Return the method for some of the points."""
        return Multipliers(self.v[places], self.z[places], self.u[places], self.rho[places])

    def round(self, rows: Together) -> Multipliers:
        """Take steps, then balance the residuals of the two constraints (section 3.4.1 of the reference)."""
        A, b, rho, z, u = rows.across_axes, rows.b, self.rho, self.z, self.u
        inverse = 1.0 / (1.0 + rho * rows.sizes)
        for _ in range(STEPS):
            before = z
            at = ((self.v + rho * ((z - u) @ A)) * inverse) @ A.T
            u = u + RELAXATION * at + (1 - RELAXATION) * z
            z = torch.minimum(u, b)
            u = u - z
        primal = (at - z).norm(dim=1) / torch.maximum(at.norm(dim=1), z.norm(dim=1))
        dual = ((z - before) @ A).norm(dim=1) / (u @ A).norm(dim=1)
        change = (primal / dual).sqrt().nan_to_num(1.0).clamp(min=1 / CHANGE, max=CHANGE).unsqueeze(1)
        return Multipliers(self.v, z, u / change, rho * change)
