"""A term as a package of its own would bring it, complete in one file: sum_k beta_k max(u_k, 0)^2 / 2, beta >= 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import cvxpy as cp
import torch

from soctk.simd import choose
from soctk.terms import Recognised, Term
from soctk.terms.kernel import Kernel


@dataclass(frozen=True, eq=False)
class SquaredHinge(Term):
    """sum_k beta_k max(u_k, 0)^2 / 2. Dual: y = beta max(u, 0), y >= 0, phi*(y) = sum y^2 / (2 beta)."""

    weights_name = "beta"
    atoms: ClassVar = ("power", "Power", "PowerApprox")
    curvature_kind: ClassVar = "jumps"

    def value(self, u):
        return 0.5 * (self.weights * u.clamp(min=0).square()).sum(dim=-1)

    def subgradient(self, u):
        return self.weights * u.clamp(min=0)

    def nearest_dual(self, y):
        return torch.where(self.weights > 0, y.clamp(min=0), 0.0)

    def conjugate(self, y):
        return 0.5 * (y.square() / torch.where(self.weights > 0, self.weights, 1.0)).sum(dim=-1)

    def second_derivative(self, u):
        return self.weights * (u > 0)

    def nonsmooth(self, u):
        return (u == 0).any(dim=-1)

    def expression(self, u, data):
        return 0.5 * cp.sum(cp.multiply(data["weights"], cp.square(cp.pos(u))))

    def cones(self, builder, u, data):
        """sum_k beta_k s_k over s_k >= w_k^2 / 2, w >= u, w >= 0."""
        w, s = builder.variable("w", u.size), builder.variable("s", u.size)
        builder.require("above", "nonneg", w - u)
        builder.require("positive", "nonneg", w)
        builder.above_half_square("hinge", s, w, (1,) * u.size)
        return s.times(data["weights"][None])

    @classmethod
    def recognise(cls, atom):
        """CVXPY's square(pos(.))."""
        inner = atom.args[0]
        positive = type(inner).__name__ == "maximum" and len(inner.args) == 2 and inner.args[1].is_zero()
        return Recognised(inner.args[0], 2.0) if positive and float(getattr(atom.p, "value", atom.p)) == 2 else None


def value(t, mu, reference):
    total, beta, u = 0.0, t.weights, t.u
    for k in range(t.rows):
        positive = max(u[k], 0.0)
        total += 0.5 * beta[k] * positive * positive
    return total


def dual(t):
    beta, u, y = t.weights, t.u, t.y
    for k in range(t.rows):
        y[k] = beta[k] * max(u[k], 0.0)


def conjugate(t):
    total, beta, y = 0.0, t.weights, t.y
    for k in range(t.rows):
        total += choose(beta[k] > 0, 0.5 * y[k] * y[k] / beta[k], 0.0)
    return total


def curvature(t, out):
    beta, u = t.weights, t.u
    for k in range(t.rows):
        out[k] = choose(u[k] > 0, beta[k], 0.0)


SquaredHinge.kernel = Kernel(value, dual, conjugate, curvature)
