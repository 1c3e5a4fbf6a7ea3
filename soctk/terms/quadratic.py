"""The quadratic branch: sum_k alpha_k / 2 (B x + e)_k^2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from soctk.checks import as_counts
from soctk.lazy import cvxpy as cp
from soctk.simd import choose
from soctk.terms.base import Coefficient, Convex, Recognised, Term, safe_divisor
from soctk.terms.cones import Affine, ConeBuilder
from soctk.terms.kernel import Kernel, Structure


@dataclass(frozen=True, eq=False)
class Quadratic(Term):
    """sum_k alpha_k / 2 u_k^2, u = B x + e. Several blocks are stacked; a block's rows share its alpha.

    Dual (paper, Section 3): y = alpha u, phi*(y) = sum_k y_k^2 / (2 alpha_k), finite where alpha_k = 0 only
    for y_k = 0.

    Attributes:
        blocks: the rows of each block, where the lift is to have the paper's cone for every block; one cone otherwise.
    """

    blocks: tuple[int, ...] = ()
    weights_name = "alpha"
    atoms: ClassVar = ("power", "Power", "PowerApprox", "quad_over_lin")

    def value(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        return 0.5 * (self.weights * u.square()).sum(dim=-1)

    def subgradient(self, u: Tensor) -> Tensor:
        """Return alpha u."""
        return self.weights * u

    def nearest_dual(self, y: Tensor) -> Tensor:
        """Return y with zeros where alpha is zero."""
        return torch.where(self.weights > 0, y, 0.0)

    def conjugate(self, y: Tensor) -> Tensor:
        """Return sum y^2 / (2 alpha)."""
        return 0.5 * (y.square() / safe_divisor(self.weights)).sum(dim=-1)

    def second_derivative(self, u: Tensor) -> Tensor:
        """Return alpha."""
        return self.weights

    def expression(self, u: cp.Expression, data: dict[str, Coefficient]) -> Convex:
        """Return phi(u) in CVXPY."""
        return 0.5 * cp.sum(cp.multiply(data["weights"], cp.square(u)))

    def cones(self, builder: ConeBuilder, u: Affine, data: dict[str, np.ndarray]) -> Affine:
        """Return sum_h alpha_h s_h over s_h >= ||u_h||^2 / 2, a rotated cone for every block."""
        alpha = data["weights"]
        if not self.blocks:
            s = builder.variable("s", 1)
            builder.above_half_square("quadratic", s, u.scaled(np.sqrt(alpha)), (u.size,))
            return s
        s = builder.variable("s", len(self.blocks))
        builder.above_half_square("quadratic", s, u, self.blocks)
        first = np.cumsum([0, *self.blocks[:-1]])
        return s.times(alpha[first][None])

    def _shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        if as_counts(self.blocks, "blocks") and sum(self.blocks) != rows:
            raise ValueError(f"blocks: expected sizes with the sum {rows}, the term's rows, got {list(self.blocks)}")
        return super()._shapes(rows)

    @classmethod
    def recognise(cls, atom: Any) -> Recognised | None:
        """Return a square, or a sum of squares over a constant."""
        if type(atom).__name__ == "quad_over_lin":
            divisor, axis = atom.args[1], getattr(atom, "axis", None)
            known = divisor.is_constant() and axis is None
            return Recognised(atom.args[0], 2 / float(divisor.value)) if known else None
        return Recognised(atom.args[0], 2.0) if exponent(atom) == 2 else None

    def structure(self) -> Structure:
        """Return that the Hessian never changes."""
        return Structure(self.map.rows, constant=True)


def exponent(power: Any) -> float:
    """Return the exponent of a CVXPY power or norm."""
    p = getattr(power, "p", 2)
    return float(np.asarray(getattr(p, "value", p)))


def value(t, mu, reference):
    total, alpha, u = 0.0, t.weights, t.u
    for k in range(t.rows):
        total += 0.5 * alpha[k] * u[k] * u[k]
    return total


def dual(t):
    alpha, u, y = t.weights, t.u, t.y
    for k in range(t.rows):
        y[k] = alpha[k] * u[k]


def conjugate(t):
    total, alpha, y = 0.0, t.weights, t.y
    for k in range(t.rows):
        total += choose(alpha[k] > 0, 0.5 * y[k] * y[k] / alpha[k], 0.0)
    return total


def curvature(t, out):
    alpha = t.weights
    for k in range(t.rows):
        out[k] = alpha[k]


Quadratic.kernel = Kernel(value, dual, conjugate, curvature)
