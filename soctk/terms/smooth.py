"""Smooth terms: logistic, log-sum-exp and Huber. Their value functions are conic too (exponential cone, SOC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from soctk.maps.linear import add_product
from soctk.terms.base import Coefficient, Convex, Smoothed, Term
from soctk.terms.cones import Affine, ConeBuilder, interleave


class Logistic(Term):
    """sum_k beta_k log(1 + exp(u_k)). Dual: y = beta p, p in [0, 1], phi*(y) = sum beta (p log p + (1-p) log(1-p))."""

    weights_name = "beta"

    def value(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        return (self.weights * log1p_exp(u)).sum(dim=-1)

    def subgradient(self, u: Tensor) -> Tensor:
        """Return beta sigmoid(u)."""
        return self.weights * torch.sigmoid(u)

    def nearest_dual(self, y: Tensor) -> Tensor:
        """Return y clipped to [0, beta]."""
        return torch.minimum(y.clamp(min=0), self.weights)

    def conjugate(self, y: Tensor) -> Tensor:
        """Return the negative binary entropy of y / beta, weighted by beta."""
        return -(self.weights * binary_entropy(y / safe_divisor(self.weights))).sum(dim=-1)

    def smooth(self, u: Tensor, mu: Tensor) -> Smoothed:
        """Return the term itself."""
        p = torch.sigmoid(u)
        return Smoothed(self.value(u), self.weights * p, p)

    def add_hessian(self, total: Tensor, smoothed: Smoothed, lag: Any) -> None:
        """Add A' diag(beta p (1 - p)) A."""
        p = smoothed.cache
        self.map.add_gram(total, (self.weights * p * (1 - p))[:, 0])

    def curvature(self, smoothed: Smoothed, lag: Any, du: Tensor) -> Tensor:
        """Return beta p (1 - p) du."""
        p = smoothed.cache
        return self.weights * p * (1 - p) * du

    def expression(self, u: cp.Expression, data: dict[str, Coefficient]) -> Convex:
        """Return phi(u) in CVXPY."""
        return cp.sum(cp.multiply(data["weights"], cp.logistic(u)))

    def cones(self, builder: ConeBuilder, u: Affine, data: dict[str, np.ndarray]) -> Affine:
        """Return sum_k beta_k t_k over t_k >= log(1 + exp(u_k))."""
        t = builder.variable("t", u.size)
        builder.above_log1p_exp("logistic", t, u)
        return t.times(data["weights"][None])


@dataclass(frozen=True, eq=False)
class LogSumExp(Term):
    """sum_g beta_g log sum_k exp(u_gk). Dual: y_g = beta_g p_g, p_g in the simplex, phi* = sum beta p log p.

    Attributes:
        size: rows in each group.
    """

    size: int
    weights_name = "beta"

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
        """Return sum beta p log p."""
        weights = self._spread(self.weights)
        p = y / safe_divisor(weights)
        return (weights * torch.xlogy(p, p)).sum(dim=-1)

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


@dataclass(frozen=True, eq=False)
class Huber(Term):
    """sum_k beta_k h(u_k), h(r) = r^2/2 for |r| <= delta, delta (|r| - delta/2) beyond.

    Dual: |y_k| <= beta_k delta, phi*(y) = sum y_k^2 / (2 beta_k).

    Attributes:
        delta: the width of the quadratic part.
    """

    delta: float
    weights_name = "beta"

    def value(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        clipped = u.clamp(-self.delta, self.delta)
        return (self.weights * clipped * (u - 0.5 * clipped)).sum(dim=-1)

    def subgradient(self, u: Tensor) -> Tensor:
        """Return beta clip(u, -delta, delta)."""
        return self.weights * u.clamp(-self.delta, self.delta)

    def nearest_dual(self, y: Tensor) -> Tensor:
        """Return y clipped to [-beta delta, beta delta]."""
        bound = self.weights * self.delta
        return torch.maximum(torch.minimum(y, bound), -bound)

    def conjugate(self, y: Tensor) -> Tensor:
        """Return sum y^2 / (2 beta)."""
        return 0.5 * (y.square() / safe_divisor(self.weights)).sum(dim=-1)

    def smooth(self, u: Tensor, mu: Tensor) -> Smoothed:
        """Return the term itself: its gradient is Lipschitz, and Newton's method semismooth."""
        return Smoothed(self.value(u), self.subgradient(u), u)

    def add_hessian(self, total: Tensor, smoothed: Smoothed, lag: Any) -> None:
        """Add A' diag(beta 1[|u| <= delta]) A, an element of the generalised Hessian."""
        self.map.add_gram(total, (self.weights * (smoothed.cache.abs() <= self.delta))[:, 0])

    def curvature(self, smoothed: Smoothed, lag: Any, du: Tensor) -> Tensor:
        """Return beta 1[|u| <= delta] du."""
        return self.weights * (smoothed.cache.abs() <= self.delta) * du

    def expression(self, u: cp.Expression, data: dict[str, Coefficient]) -> Convex:
        """Return phi(u) in CVXPY, whose huber atom is twice ours."""
        twice = cp.huber(u, self.delta)  # pyright: ignore[reportArgumentType]
        return 0.5 * cp.sum(cp.multiply(data["weights"], twice))

    def kinked(self, u: Tensor) -> Tensor:
        """Return whether any |u_k| is exactly delta, where the curvature jumps."""
        return (u.abs() == self.delta).any(dim=-1)

    def cones(self, builder: ConeBuilder, u: Affine, data: dict[str, np.ndarray]) -> Affine:
        """Return sum_k beta_k (s_k + delta t_k) over s_k >= w_k^2 / 2 and t_k >= |u_k - w_k|."""
        w, s, t = (builder.variable(name, u.size) for name in ("w", "s", "t"))
        builder.above_half_square("huber", s, w, (1,) * u.size)
        builder.require("above", "nonneg", t - (u - w))
        builder.require("below", "nonneg", t + (u - w))
        return (s + t.scaled(self.delta)).times(data["weights"][None])


def log1p_exp(u: Tensor) -> Tensor:
    """Return log(1 + exp(u)); torch's default is u itself from 20 on, which is exp(-20) = 2e-9 too little."""
    return softplus(u, threshold=40.0)


def safe_divisor(tensor: Tensor) -> Tensor:
    """Return `tensor` with zeros replaced by ones: what is divided there is zero as well."""
    return torch.where(tensor > 0, tensor, 1.0)


def binary_entropy(p: Tensor) -> Tensor:
    """Return -p log p - (1 - p) log(1 - p), 0 at both ends: max over p of p a + entropy(p) is log(1 + exp(a))."""
    return torch.special.entr(p) + torch.special.entr(1 - p)
