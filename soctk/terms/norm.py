"""The conic branch: sum_g lambda_g || (A_g x + d_g, kappa_g) ||_2.

kappa_g = 0 is the paper's norm branch. kappa_g > 0 appends a constant row to the group ("hyperbolic" branch,
sqrt(||A_g x + d_g||^2 + kappa_g^2)): the same second-order cone with one fixed coordinate, and smooth.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from soctk.checks import check_finite
from soctk.lazy import cvxpy as cp
from soctk.maps.linear import add_product
from soctk.simd import any_of, choose, fill, view
from soctk.terms.base import SMALLEST_WEIGHT, Coefficient, Convex, Recognised, Smoothed, Term, group_count, group_norms
from soctk.terms.cones import Affine, ConeBuilder, interleave
from soctk.terms.kernel import EPS, TINY, Kernel, Packs, Structure
from soctk.terms.norm_piece import NormsPiece
from soctk.terms.piece import Piece
from soctk.terms.quadratic import exponent

SLACK_ERROR = 8
"""Roundings of lambda^2 - ||y||^2 beside one for each row."""
NEAR_APEX = 1e-2
"""The share that smoothing has in the curvature of a group from which on its apex may hold it."""


@dataclass(frozen=True, eq=False)
class Norms(Term):
    """sum_g lambda_g sqrt(||u_g||^2 + kappa_g^2), groups of `size` consecutive rows of u = A x + d.

    Dual: ||y_g|| <= lambda_g, phi*(y) = -sum_g kappa_g sqrt(lambda_g^2 - ||y_g||^2); at u_g = 0 = kappa_g every
    point of the ball is a subgradient and 0 is returned.

    Attributes:
        kappa: (N or 1, 1, G) constants.
        size: rows in each group.
    """

    kappa: Tensor
    size: int
    weights_name = "lambda"
    packs: ClassVar = Packs(("weights", "kappa"))
    atoms: ClassVar = ("Pnorm", "PnormApprox", "norm2", "norm1", "abs")

    def check(self) -> None:
        """Raise ValueError naming the tensor that is not finite or that must not be negative."""
        super().check()
        check_finite(self.kappa, "norms.kappa")

    def coefficients(self) -> dict[str, Tensor]:
        """Return the named tensors that a CVXPY form needs."""
        return super().coefficients() | {"kappa": self.kappa[:, 0].abs()}

    def _lengths(self, u: Tensor, extra: Tensor | float = 0.0) -> Tensor:
        squares = u.square() if self.size == 1 else u.unflatten(-1, (-1, self.size)).square().sum(dim=-1)
        # The clamp gives the square root the subgradient 0 at an apex, where its own would be infinite.
        return (squares + self.kappa.square() + extra).clamp(min=torch.finfo(u.dtype).tiny).sqrt()

    def _spread(self, per_group: Tensor) -> Tensor:
        """Repeat a group's number over its rows."""
        return per_group if self.size == 1 else per_group.repeat_interleave(self.size, dim=-1)

    def _dot(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the inner products group by group."""
        return (left * right).unflatten(-1, (-1, self.size)).sum(dim=-1)

    def value(self, u: Tensor) -> Tensor:
        """Return phi(u); its gradient at a norm's apex is 0, a subgradient."""
        return (self.weights * self._lengths(u)).sum(dim=-1)

    def subgradient(self, u: Tensor) -> Tensor:
        """Return lambda_g u_g / length_g, 0 at an apex."""
        return self._spread(self.weights / self._lengths(u)) * u

    def nearest_dual(self, y: Tensor) -> Tensor:
        """Return y with every group projected to its ball."""
        norms = group_norms(y, self.size)
        shrink = torch.where(norms > self.weights, self.weights / torch.where(norms > 0, norms, 1.0), 1.0)
        return self._spread(shrink) * y

    def dual_violation(self, y: Tensor) -> Tensor:
        """Return the largest ||y_g|| - lambda_g above zero."""
        return (group_norms(y, self.size) - self.weights).amax(dim=-1).clamp(min=0)

    def nonsmooth(self, u: Tensor) -> Tensor:
        """Return whether any group is at its apex."""
        return (group_norms(u, self.size).square() + self.kappa.square() == 0).any(dim=-1)

    def slope_range(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the box around the ball of radius lambda."""
        weights = self._spread(self.weights)
        return -weights, weights

    def slope_ball(self) -> Tensor:
        """Return sum_g lambda_g ||A_g||_F."""
        lengths = self.map.row_squares(self.weights).unflatten(-1, (-1, self.size)).sum(dim=-1).sqrt()
        return (self.weights[:, 0] * lengths).sum(dim=-1)

    def conjugate(self, y: Tensor) -> Tensor:
        """Return -sum kappa sqrt(lambda^2 - ||y||^2), of the difference what is left when rounding is taken off.

        The root of a rounding error of eps lambda^2 would be 1e-8 lambda; that error under the root costs no more than
        eps times the term's value.
        """
        error = (self.size + SLACK_ERROR) * torch.finfo(y.dtype).eps
        slack = (1 - error) * self.weights.square() - group_norms(y, self.size).square()
        return -(self.kappa.abs() * slack.clamp(min=0).sqrt()).sum(dim=-1)

    def smooth(self, u: Tensor, mu: Tensor) -> Smoothed:
        """Return lambda sqrt(||u||^2 + kappa^2 + eps^2), eps = 2 mu / (largest lambda)."""
        eps = 2 * mu / self.weights.amax(dim=-1).clamp(min=SMALLEST_WEIGHT)
        tau = self._lengths(u, eps.square().unsqueeze(-1))
        return Smoothed((self.weights * tau).sum(dim=-1), self._spread(self.weights / tau) * u, (u, tau))

    def initial_lag(self, smoothed: Smoothed) -> Tensor:
        """Return rho = lambda u / tau."""
        return smoothed.dual

    def add_hessian(self, total: Tensor, smoothed: Smoothed, lag: Tensor) -> None:
        """Add sum_g (lambda/tau) A'A - (A'u (A'rho)' + A'rho (A'u)') / (2 tau^2)  (Chan, Golub and Mulet 1999)."""
        u, tau = (part[:, 0] for part in smoothed.cache)
        rho, weight = lag[:, 0], self.weights[:, 0] / tau
        if self.size == 1:
            self.map.add_gram(total, weight - rho * u / tau.square())
            return
        primal = self.map.group_adjoint(u, self.size)
        dual = self.map.group_adjoint(rho, self.size) / (2 * tau.square()).unsqueeze(-1)
        self.map.add_gram(total, self._spread(weight))
        add_product(total, torch.cat([primal, dual], dim=1), torch.cat([dual, primal], dim=1), sign=-1.0)

    def add_hessians(self, kinks: Tensor, rest: Tensor, smoothed: Smoothed, lag: Tensor) -> None:
        """Add to `kinks` all of absolute values and of groups near their apex, of others what is too much along u.

        Along u the curvature is lambda / tau - rho'u / tau^2, where in the end rho = lambda u / tau; phi's own is
        lambda kappa^2 / tau^3.
        """
        u, tau = smoothed.cache
        along = self._dot(lag, u) / (self.weights.clamp(min=SMALLEST_WEIGHT) * tau)
        along = along.minimum(self._dot(u, u) / tau.square())
        share = (1 - along - (self.kappa / tau).square()).clamp(min=0)
        near = (share > NEAR_APEX) | ((self.kappa == 0) & (self.size == 1))
        if bool(near.any()):
            for total, part in ((kinks, near), (rest, ~near)):
                some = dataclasses.replace(self, weights=torch.where(part, self.weights, 0.0))
                some.add_hessian(total, smoothed, torch.where(self._spread(part), lag, 0.0))
        else:
            self.add_hessian(rest, smoothed, lag)
        smoothing = torch.where(near, 0.0, self.weights / tau * share)[:, 0]
        if self.size == 1:
            self.map.add_gram(kinks, smoothing)
            self.map.add_gram(rest, -smoothing)
            return
        across = self.map.group_adjoint((u / self._spread(tau))[:, 0], self.size)
        add_product(kinks, across * smoothing.unsqueeze(2), across)
        add_product(rest, across * smoothing.unsqueeze(2), across, sign=-1.0)

    def curvature(self, smoothed: Smoothed, lag: Tensor, du: Tensor) -> Tensor:
        """Return (lambda/tau) du - (u (rho'du) + rho (u'du)) / (2 tau^2) for each group."""
        u, tau = smoothed.cache
        along, across = (self._dot(part, du) / (2 * tau.square()) for part in (lag, u))
        return self._spread(self.weights / tau) * du - self._spread(along) * u - self._spread(across) * lag

    def advance_lag(self, smoothed: Smoothed, lag: Tensor, du: Tensor) -> Tensor:
        """Return rho after the linearised optimality condition tau rho = lambda u, projected to the ball."""
        u, tau = smoothed.cache
        along = self._dot(u, du) / tau.square()
        return self.nearest_dual(self._spread(self.weights / tau) * (u + du) - self._spread(along) * lag)

    def lagged_dual(self, smoothed: Smoothed, lag: Tensor) -> Tensor:
        """Return rho."""
        return lag

    def implicit_dual(self, u: Tensor, smoothed: Smoothed, lag: Tensor) -> Tensor:
        """Return rho as tau(u, kappa) rho = lambda u moves it."""
        point, tau = smoothed.cache
        weights, kappa = self.weights.detach(), self.kappa.detach()
        longer = kappa * (self.kappa - kappa) / tau.square()
        own = self._spread((self.weights - weights) / tau) * point - self._spread(longer) * lag
        return lag + own + self.curvature(smoothed, lag, u - u.detach())

    def piece(self, smoothed: Smoothed, lag: Tensor) -> Piece:
        """Return which groups are at their apex."""
        return NormsPiece.of(self, smoothed, lag)

    def envelope(self, u: Tensor, smoothed: Smoothed, lag: Tensor) -> Tensor:
        """Return sum_g lambda_g (e_g'u_g + sqrt(1 - ||e_g||^2) |kappa_g|), e = rho / lambda held."""
        weights = self.weights.detach().clamp(min=SMALLEST_WEIGHT)
        share = lag / self._spread(weights)
        rest = (1 - group_norms(share, self.size).square()).clamp(min=0).sqrt()
        along = self._dot(share, u)
        return (self.weights * (along + rest * self.kappa.abs())).sum(dim=-1)

    def expression(self, u: cp.Expression, data: dict[str, Coefficient]) -> Convex:
        """Return phi(u) in CVXPY."""
        columns = cp.reshape(u, (self.size, u.size // self.size), order="F")
        kappa = data["kappa"]
        if isinstance(kappa, cp.Expression) or bool((kappa != 0).any()):
            columns = cp.vstack([columns, cp.reshape(kappa, (1, kappa.size), order="F")])
        return cp.sum(cp.multiply(data["weights"], cp.norm(columns, 2, axis=0)))

    def epigraph(self, u: cp.Expression, data: dict[str, Coefficient]) -> tuple[Convex, list[cp.Constraint]]:
        """Return phi(u) with variables for constants that are parameters, whose product with weights is not DPP."""
        kappa = data["kappa"]
        if not isinstance(kappa, cp.Expression):
            return super().epigraph(u, data)
        fixed = cp.Variable(kappa.shape)
        return self.expression(u, data | {"kappa": fixed}), [fixed == kappa]

    def cones(self, builder: ConeBuilder, u: Affine, data: dict[str, np.ndarray]) -> Affine:
        """Return sum_g lambda_g t_g over ||(u_g, kappa_g)|| <= t_g."""
        kappa, groups = data["kappa"], u.size // self.size
        t = builder.variable("t", groups)
        columns = [t, *(u[np.arange(k, u.size, self.size)] for k in range(self.size))]
        if bool((kappa != 0).any()):
            columns.append(Affine.of(kappa, groups))
        builder.require("norm", "soc", interleave(columns), len(columns))
        return t.times(data["weights"][None])

    def _shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        groups = group_count(self.size, rows)
        return {"weights": (1, groups), "kappa": (1, groups)}

    @classmethod
    def recognise(cls, atom: Any) -> Recognised | None:
        """Return a Euclidean norm of all entries; norm1 and abs entry by entry."""
        entries, single = atom.args[0].size, type(atom).__name__ in ("norm1", "abs")
        if getattr(atom, "axis", None) is not None or (not single and exponent(atom) != 2):
            return None
        kappa = torch.zeros(1, 1, entries if single else 1, dtype=torch.float64)
        return Recognised(atom.args[0], fields={"kappa": kappa, "size": 1 if single else entries})

    def structure(self) -> Structure:
        """Return that rows of a group share their curvature, and that their rank-one parts are subtracted."""
        groups = self.map.rows // self.size if self.size > 1 else 0
        return Structure(self.map.rows, self.size, shared=self.size, rank_ones=groups)

    def unpack_lag(self, rows: Tensor) -> Tensor:
        """Return rho."""
        return rows


def reference(t):
    largest, weights = SMALLEST_WEIGHT, t.weights
    for g in range(t.groups):
        largest = max(largest, weights[g])
    return largest


def value(t, mu, reference):
    total, size, weights, kappa, u, tau = 0.0, t.size, t.weights, t.kappa, t.u, t.z
    eps = 2 * mu / reference
    for g in range(t.groups):
        squares = kappa[g] * kappa[g] + eps * eps
        for k in range(g * size, (g + 1) * size):
            squares += u[k] * u[k]
        tau[g] = np.sqrt(max(squares, TINY))
        total += weights[g] * tau[g]
    return total


def dual(t):
    size, weights, u, y, inverse, tau = t.size, t.weights, t.u, t.y, t.inverse, t.z
    for g in range(t.groups):
        inverse[g] = 1 / tau[g]
        weight = weights[g] * inverse[g]
        for k in range(g * size, (g + 1) * size):
            y[k] = weight * u[k]
    into_balls(weights, y, size)


def into_balls(weights, y, size):
    for g in range(y.size // size):
        squares = 0.0
        for k in range(g * size, (g + 1) * size):
            squares += y[k] * y[k]
        outside = squares > weights[g] * weights[g]
        if any_of(outside):
            shrink = choose(outside, weights[g] / np.sqrt(squares), 1.0)
            for k in range(g * size, (g + 1) * size):
                y[k] *= shrink


def conjugate(t):
    total, size, weights, kappa, y = 0.0, t.size, t.weights, t.kappa, t.y
    for g in range(t.groups):
        if any_of(kappa[g] != 0):
            slack = (1 - (size + SLACK_ERROR) * EPS) * weights[g] * weights[g]
            for k in range(g * size, (g + 1) * size):
                slack -= y[k] * y[k]
            total -= choose(kappa[g] != 0, abs(kappa[g]) * np.sqrt(max(slack, 0.0)), 0.0)
    return total


def curvature(t, out):
    size, weights, inverse, u, rho = t.size, t.weights, t.inverse, t.u, t.lag
    if size > 1:
        for g in range(t.groups):
            fill(view(out, g * size, size), weights[g] * inverse[g])
    else:
        for k in range(t.rows):
            out[k] = (weights[k] - rho[k] * u[k] * inverse[k]) * inverse[k]


def rank_one(t, scales):
    inverse = t.inverse
    for g in range(t.groups):
        scales[g] = 0.5 * inverse[g] * inverse[g]
    return t.u, t.lag


def advance_lag(t, du, scratch):
    size, weights, inverse, u, rho = t.size, t.weights, t.inverse, t.u, t.lag
    for g in range(t.groups):
        along, weight = 0.0, weights[g] * inverse[g]
        for k in range(g * size, (g + 1) * size):
            along += u[k] * du[k]
        along *= inverse[g] * inverse[g]
        for k in range(g * size, (g + 1) * size):
            rho[k] = weight * (u[k] + du[k]) - along * rho[k]
    into_balls(weights, rho, size)


def lagged_dual(t):
    rho, y = t.lag, t.y
    for k in range(t.rows):
        y[k] = rho[k]


Norms.kernel = Kernel(
    value, dual, conjugate, curvature, reference, rank_one, advance_lag=advance_lag, lagged_dual=lagged_dual
)
