"""The logistic term, sum_k beta_k log(1 + exp(u_k)), over exponential cones."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from soctk.lazy import cvxpy as cp
from soctk.simd import choose
from soctk.terms.base import Coefficient, Convex, Recognised, Term, safe_divisor
from soctk.terms.cones import Affine, ConeBuilder
from soctk.terms.kernel import EPS, Kernel


class Logistic(Term):
    """sum_k beta_k log(1 + exp(u_k)). Dual: y = beta p, p in [0, 1], phi*(y) = sum beta (p log p + (1-p) log(1-p))."""

    weights_name = "beta"
    atoms: ClassVar = ("logistic",)

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

    def second_derivative(self, u: Tensor) -> Tensor:
        """Return beta p (1 - p)."""
        p = torch.sigmoid(u)
        return self.weights * p * (1 - p)

    def expression(self, u: cp.Expression, data: dict[str, Coefficient]) -> Convex:
        """Return phi(u) in CVXPY."""
        return cp.sum(cp.multiply(data["weights"], cp.logistic(u)))

    def cones(self, builder: ConeBuilder, u: Affine, data: dict[str, np.ndarray]) -> Affine:
        """Return sum_k beta_k t_k over t_k >= log(1 + exp(u_k))."""
        t = builder.variable("t", u.size)
        builder.above_log1p_exp("logistic", t, u)
        return t.times(data["weights"][None])

    @classmethod
    def recognise(cls, atom: Any) -> Recognised:
        """Return CVXPY's logistic."""
        return Recognised(atom.args[0])


def log1p_exp(u: Tensor) -> Tensor:
    """Return log(1 + exp(u)); torch's default is u itself from 20 on, which is exp(-20) = 2e-9 too little."""
    return functional.softplus(u, threshold=40.0)


ENTROPY_ERROR = 40
"""p, a quotient, is known to eps p, which moves its entropy by up to eps p log(p / (1 - p)), at most 37 eps p."""


def binary_entropy(p: Tensor) -> Tensor:
    """Return -p log p - (1 - p) log(1 - p), 0 at both ends: max over p of p a + entropy(p) is log(1 + exp(a)).

    Not above that of any number that p may have been rounded from.
    """
    error = ENTROPY_ERROR * torch.finfo(p.dtype).eps
    return torch.special.entr(p) - torch.special.xlog1py(1 - p, -p) - error * p


def value(t, mu, reference):
    total, beta, u, p = 0.0, t.weights, t.u, t.p
    for k in range(t.rows):
        z, p[k] = softplus(u[k])
        total += beta[k] * z
    return total


def dual(t):
    beta, p, y = t.weights, t.p, t.y
    for k in range(t.rows):
        y[k] = beta[k] * p[k]


def conjugate(t):
    total, beta, p = 0.0, t.weights, t.p
    for k in range(t.rows):
        total -= beta[k] * entropy(p[k])
    return total


def curvature(t, out):
    beta, p = t.weights, t.p
    for k in range(t.rows):
        out[k] = beta[k] * p[k] * (1 - p[k])


def softplus(a):
    """Return log(1 + exp(a)) and its slope."""
    small = np.exp(-abs(a))
    return max(a, 0.0) + np.log1p(small), choose(a >= 0, 1.0, small) / (1 + small)


def entropy(p):
    """Return the same as `binary_entropy`."""
    return choose((p > 0) & (p < 1), -p * np.log(p) - (1 - p) * np.log1p(-p) - ENTROPY_ERROR * EPS * p, 0.0)


Logistic.kernel = Kernel(value, dual, conjugate, curvature)
