"""Huber's function, a second-order cone and linear rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from soctk.checks import check_positive
from soctk.lazy import cvxpy as cp
from soctk.simd import choose
from soctk.terms.base import Coefficient, Convex, Recognised, Term, safe_divisor
from soctk.terms.cones import Affine, ConeBuilder
from soctk.terms.kernel import Kernel, Packs
from soctk.terms.quadratic import conjugate


@dataclass(frozen=True, eq=False)
class Huber(Term):
    """sum_k beta_k h(u_k), h(r) = r^2/2 for |r| <= delta, delta (|r| - delta/2) beyond.

    Dual: |y_k| <= beta_k delta, phi*(y) = sum y_k^2 / (2 beta_k).

    Attributes:
        delta: the width of the quadratic part.
    """

    delta: float
    weights_name = "beta"
    packs: ClassVar = Packs(numbers=("delta",))
    atoms: ClassVar = ("huber",)
    curvature_kind: ClassVar = "jumps"

    def value(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        clipped = self._clipped(u)
        return (self.weights * clipped * (u - 0.5 * clipped)).sum(dim=-1)

    def subgradient(self, u: Tensor) -> Tensor:
        """Return beta clip(u, -delta, delta)."""
        return self.weights * self._clipped(u)

    def _clipped(self, u: Tensor) -> Tensor:
        delta = torch.tensor(self.delta, dtype=u.dtype, device=u.device)  # a number would be float32 in an ONNX graph
        return u.clamp(-delta, delta)

    def nearest_dual(self, y: Tensor) -> Tensor:
        """Return y clipped to [-beta delta, beta delta]."""
        bound = self.weights * self.delta
        return torch.maximum(torch.minimum(y, bound), -bound)

    def conjugate(self, y: Tensor) -> Tensor:
        """Return sum y^2 / (2 beta)."""
        return 0.5 * (y.square() / safe_divisor(self.weights)).sum(dim=-1)

    def second_derivative(self, u: Tensor) -> Tensor:
        """Return beta 1[|u| <= delta], an element of the generalised Hessian: Newton's method is semismooth."""
        return self.weights * (u.abs() <= self.delta)

    def expression(self, u: cp.Expression, data: dict[str, Coefficient]) -> Convex:
        """Return phi(u) in CVXPY, whose huber atom is twice ours."""
        twice = cp.huber(u, self.delta)  # pyright: ignore[reportArgumentType]
        return 0.5 * cp.sum(cp.multiply(data["weights"], twice))

    def _shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        check_positive(self.delta, "delta")
        if self.delta == float("inf"):
            raise ValueError("delta: expected a finite number, got inf; that would be a Quadratic")
        return super()._shapes(rows)

    @classmethod
    def recognise(cls, atom: Any) -> Recognised:
        """Return CVXPY's huber, which is twice ours."""
        return Recognised(atom.args[0], 2.0, {"delta": float(np.asarray(atom.M.value))})

    def nonsmooth(self, u: Tensor) -> Tensor:
        """Return whether any |u_k| is exactly delta, where the curvature jumps."""
        return (u.abs() == self.delta).any(dim=-1)

    def cones(self, builder: ConeBuilder, u: Affine, data: dict[str, np.ndarray]) -> Affine:
        """Return sum_k beta_k (s_k + delta t_k) over s_k >= w_k^2 / 2 and t_k >= |u_k - w_k|."""
        w, s, t = (builder.variable(name, u.size) for name in ("w", "s", "t"))
        builder.above_half_square("huber", s, w, (1,) * u.size)
        builder.require("above", "nonneg", t - (u - w))
        builder.require("below", "nonneg", t + (u - w))
        return (s + t.scaled(self.delta)).times(data["weights"][None])


def value(t, mu, reference):
    total, delta, beta, u = 0.0, t.delta, t.weights, t.u
    for k in range(t.rows):
        clipped = min(max(u[k], -delta), delta)
        total += beta[k] * clipped * (u[k] - 0.5 * clipped)
    return total


def dual(t):
    delta, beta, u, y = t.delta, t.weights, t.u, t.y
    for k in range(t.rows):
        y[k] = beta[k] * min(max(u[k], -delta), delta)


def curvature(t, out):
    delta, beta, u = t.delta, t.weights, t.u
    for k in range(t.rows):
        out[k] = choose(abs(u[k]) <= delta, beta[k], 0.0)


Huber.kernel = Kernel(value, dual, conjugate, curvature)
