"""Log-sum-exp of groups of rows, over exponential cones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from soctk.lazy import cvxpy as cp
from soctk.maps.linear import add_product
from soctk.simd import choose, view
from soctk.terms.base import Coefficient, Convex, Recognised, Smoothed, Term, group_count, safe_divisor
from soctk.terms.cones import Affine, ConeBuilder, interleave
from soctk.terms.kernel import EPS, Kernel, Structure

SUM_ERROR = 8
"""Roundings of a sum of p log p beside one for each summand."""


@dataclass(frozen=True, eq=False)
class LogSumExp(Term):
    """sum_g beta_g log sum_k exp(u_gk). Dual: y_g = beta_g p_g, p_g in the simplex, phi* = sum beta p log p.

    Attributes:
        size: rows in each group.
    """

    size: int
    weights_name = "beta"
    atoms: ClassVar = ("log_sum_exp",)

    def value(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        return (self.weights * torch.logsumexp(u.unflatten(-1, (-1, self.size)), dim=-1)).sum(dim=-1)

    def _spread(self, per_group: Tensor) -> Tensor:
        return per_group.repeat_interleave(self.size, dim=-1)

    def _softmax(self, u: Tensor) -> Tensor:
        return torch.softmax(u.unflatten(-1, (-1, self.size)), dim=-1).flatten(-2)

    def subgradient(self, u: Tensor) -> Tensor:
        """Return beta softmax(u)."""
        return self._spread(self.weights) * self._softmax(u)

    def nearest_dual(self, y: Tensor) -> Tensor:
        """Return y made non-negative with group sums beta."""
        positive = y.clamp(min=0).unflatten(-1, (-1, self.size))
        total = positive.sum(dim=-1, keepdim=True)
        share = torch.where(total > 0, positive / safe_divisor(total), 1.0 / self.size)
        return self._spread(self.weights) * share.flatten(-2)

    def conjugate(self, y: Tensor) -> Tensor:
        """Return sum beta p log p; where a group's p add up to 1 to rounding alone, what that may change is added."""
        weights, error = self._spread(self.weights), (self.size + SUM_ERROR) * torch.finfo(y.dtype).eps
        p = y / safe_divisor(weights)
        return (weights * torch.xlogy(p, p)).sum(dim=-1) + error * self.weights.sum(dim=-1)

    def smooth(self, u: Tensor, mu: Tensor) -> Smoothed:
        """Return the term itself."""
        p = self._softmax(u)
        return Smoothed(self.value(u), self._spread(self.weights) * p, p)

    def add_hessian(self, total: Tensor, smoothed: Smoothed, lag: Any) -> None:
        """Add sum_g beta_g A_g'(diag(p_g) - p_g p_g') A_g."""
        p = smoothed.cache[:, 0]
        means = self.map.group_adjoint(p, self.size)
        self.map.add_gram(total, smoothed.dual[:, 0])
        add_product(total, means, means * self.weights[:, 0].unsqueeze(-1), sign=-1.0)

    def curvature(self, smoothed: Smoothed, lag: Any, du: Tensor) -> Tensor:
        """Return beta_g (p_g du_g - p_g (p_g'du_g)) for each group."""
        mean = (smoothed.cache * du).unflatten(-1, (-1, self.size)).sum(dim=-1)
        return smoothed.dual * (du - self._spread(mean))

    def expression(self, u: cp.Expression, data: dict[str, Coefficient]) -> Convex:
        """Return phi(u) in CVXPY."""
        columns = cp.reshape(u, (self.size, u.size // self.size), order="F")
        return cp.sum(cp.multiply(data["weights"], cp.log_sum_exp(columns, axis=0)))

    def slope_range(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the box [0, beta] around the simplex."""
        weights = self._spread(self.weights)
        return torch.zeros_like(weights), weights

    def cones(self, builder: ConeBuilder, u: Affine, data: dict[str, np.ndarray]) -> Affine:
        """Return sum_g beta_g t_g over sum_k exp(u_gk - t_g) <= 1."""
        groups = u.size // self.size
        t, p = builder.variable("t", groups), builder.variable("p", u.size)
        spread = np.repeat(np.eye(groups), self.size, axis=0)
        builder.require("sum", "nonneg", Affine.of(1.0, groups) - p.times(spread.T))
        rows = [u - t.times(spread), Affine.of(1.0, u.size), p]
        builder.require("exp", "exp", interleave(rows), 3)
        return t.times(data["weights"][None])

    def _shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        return {"weights": (1, group_count(self.size, rows))}

    @classmethod
    def recognise(cls, atom: Any) -> Recognised | None:
        """Return a log-sum-exp of all entries."""
        return Recognised(atom.args[0], fields={"size": atom.args[0].size}) if atom.axis is None else None

    def structure(self) -> Structure:
        """Return that of each group a multiple of p_g p_g' is subtracted; of one number the term is affine."""
        return Structure(self.map.rows, self.size, rank_ones=self.map.rows // self.size if self.size > 1 else 0)


def value(t, mu, reference):
    total, size, beta, u, p = 0.0, t.size, t.weights, t.u, t.p
    for g in range(t.groups):
        total += beta[g] * log_sum_exp(view(u, g * size, size), view(p, g * size, size))
    return total


def dual(t):
    size, beta, p, y = t.size, t.weights, t.p, t.y
    for g in range(t.groups):
        for k in range(g * size, (g + 1) * size):
            y[k] = beta[g] * p[k]


def conjugate(t):
    total, size, beta, p = 0.0, t.size, t.weights, t.p
    for g in range(t.groups):
        for k in range(g * size, (g + 1) * size):
            total += choose(p[k] > 0, beta[g] * p[k] * np.log(p[k]), 0.0)
        total += (size + SUM_ERROR) * EPS * beta[g]
    return total


def curvature(t, out):
    y, affine = t.y, t.size == 1
    for k in range(t.rows):
        out[k] = 0 * y[k] if affine else y[k]


def rank_one(t, scales):
    beta = t.weights
    for g in range(t.groups):
        scales[g] = 0.5 * beta[g]
    return t.p, t.p


def log_sum_exp(u, p):
    """Return log sum exp(u), and fill p with its gradient."""
    largest, mass = -np.inf, 0.0
    for k in range(u.size):
        largest = max(largest, u[k])
    for k in range(u.size):
        p[k] = np.exp(u[k] - largest)
        mass += p[k]
    for k in range(u.size):
        p[k] /= mass
    return largest + np.log(mass)


LogSumExp.kernel = Kernel(value, dual, conjugate, curvature, rank_one=rank_one)
