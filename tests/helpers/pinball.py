"""A term with kinks and nothing beyond what CONTRIBUTING asks of one: sum_k w_k max(tau u_k, (tau - 1) u_k), w >= 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import cvxpy as cp
import torch

from soctk.terms import Term
from soctk.terms.base import SMALLEST_WEIGHT, Smoothed


@dataclass(frozen=True, eq=False)
class Pinball(Term):
    """Quantile regression's loss. Dual: (tau - 1) w <= y <= tau w, phi*(y) = 0."""

    tau: float = 0.5

    curvature_kind: ClassVar = "none"

    def value(self, u):
        return (self.weights * ((self.tau - 0.5) * u + 0.5 * u.abs())).sum(dim=-1)

    def subgradient(self, u):
        return self.weights * (self.tau - 0.5 + 0.5 * u.sign())

    def nearest_dual(self, y):
        return torch.maximum(torch.minimum(y, self.tau * self.weights), (self.tau - 1) * self.weights)

    def conjugate(self, y):
        return torch.zeros_like(y).sum(dim=-1)

    def nonsmooth(self, u):
        return (u == 0).any(dim=-1)

    def smooth(self, u, mu):
        e = 2 * mu.unsqueeze(-1) / self.weights.clamp(min=SMALLEST_WEIGHT)
        root = (u.square() + e.square()).sqrt()
        value = (self.weights * ((self.tau - 0.5) * u + 0.5 * root)).sum(dim=-1)
        slope = torch.where(root > 0, u / torch.where(root > 0, root, 1.0), 0.0)
        return Smoothed(value, self.weights * (self.tau - 0.5 + 0.5 * slope), (e, root))

    def second_derivative(self, cache):
        e, root = cache
        return 0.5 * self.weights * e.square() / root**3

    def expression(self, u, data):
        return cp.sum(cp.multiply(data["weights"], cp.maximum(self.tau * u, (self.tau - 1) * u)))

    def cones(self, builder, u, data):
        """sum_k w_k (t_k - u_k / 2 + tau u_k) over t_k >= |u_k| / 2."""
        t = builder.variable("t", u.size)
        builder.require("above", "nonneg", t - u.scaled(0.5))
        builder.require("below", "nonneg", t + u.scaled(0.5))
        return (t + u.scaled(self.tau - 0.5)).times(data["weights"][None])
