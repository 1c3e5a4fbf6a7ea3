"""The conic form of a surrogate: the paper's objects at a context, as users hold them."""

from __future__ import annotations

import dataclasses
from typing import Self

import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor, check_last_dim
from soctk.forms import geometry
from soctk.forms.cone_program import ConeProgram, cone_program
from soctk.forms.embedding import expression
from soctk.forms.sum_of_terms import SumOfTerms
from soctk.lazy import cvxpy as cp
from soctk.maps.linear import DenseMap
from soctk.sets import FeasibleSet
from soctk.terms.base import Dual


class ConicForm(SumOfTerms):
    """A batch of convex functions b0 + v'x + sum of terms, with everything that can be asked of them.

    Points are checked, and points and answers have the contexts' batch shape: x (*batch, n) -> (*batch). A form of one
    function takes points of any batch shape.
    """

    # -- value, dual and bound -------------------------------------------------------------------------

    def value(self, x: ArrayLike) -> Tensor:
        """Return f(x).

        Args:
            x: (*batch, n); for a form of one function any batch shape.

        Returns:
            (*batch).

        Raises:
            ValueError: x has a wrong last dimension or batch shape, a NaN or an infinity.
        """
        points, shape = self._points(x)
        return self.evaluate(points).reshape(shape)

    def gradient(self, x: ArrayLike) -> Tensor:
        """Return a subgradient of f at x, the gradient where f is differentiable: (*batch, n) -> (*batch, n)."""
        points, shape = self._points(x)
        return self.slope(self.subgradients(points)).expand_as(points).reshape(*shape, self.dim)

    def dual(self, x: ArrayLike) -> Dual:
        """Return the closed-form dual optimum at x: the nu chain, alpha (Bx + e) and lambda u / ||u||."""
        return self.subgradients(self._points(x)[0])

    def dual_value(self, dual: Dual, x: ArrayLike) -> Tensor:
        """Return b0 + v'x + sum_j [y_j'(A_j x + d_j) - phi_j*(y_j)], (*batch): at most f(x) for a feasible dual point.

        For the paper's model that is v'x + b0 + sum_l nu_l'(W_l x + b_l) + sum_h [y_h'(B_h x + e_h)
        - ||y_h||^2 / (2 alpha_h)] + sum_g mu_g'(A_g x + d_g), and `dual(x)` attains f(x).
        """
        points, shape = self._points(x)
        total = self.constant + (points * self.linear).sum(dim=-1)
        for term, y in zip(self.terms, dual.parts, strict=True):
            total = total + (y * term.inner(points)).sum(dim=-1) - term.conjugate(y)
        return total.reshape(shape)

    def dual_violation(self, dual: Dual) -> Tensor:
        """Return the largest violation of dual feasibility, (N, M): of the nu chain, the balls, y = 0 for alpha = 0."""
        parts = [term.dual_violation(y) for term, y in zip(self.terms, dual.parts, strict=True)]
        none = self.constant.new_zeros(self.size, 1)
        return torch.stack(torch.broadcast_tensors(none, *parts)).amax(dim=0)

    def complementarity(self, dual: Dual, x: ArrayLike) -> Tensor:
        """Return the largest phi_j(u_j) + phi_j*(y_j) - y_j'u_j of all terms, (*batch): 0 where the pair is optimal."""
        points, shape = self._points(x)
        total = self.constant.expand(-1, points.shape[1]) * 0
        for term, y in zip(self.terms, dual.parts, strict=True):
            u = term.inner(points)
            total = torch.maximum(total, term.value(u) + term.conjugate(y) - (y * u).sum(dim=-1))
        return total.reshape(shape)

    def lower_bound(self, dual: Dual, feasible_set: FeasibleSet) -> Tensor:
        """Return a lower bound of min f over the set from any dual point, (*batch): see `SumOfTerms.bound`."""
        return self.bound(dual, feasible_set).amax(dim=-1).reshape(self.batch_shape)

    # -- geometry --------------------------------------------------------------------------------------

    def hessian(self, x: ArrayLike) -> Tensor:
        """Return the Hessian at x, NaN where f is not twice differentiable: (*batch, n) -> (*batch, n, n)."""
        points, shape = self._points(x)
        return geometry.hessian(self, points).expand(-1, points.shape[1], -1, -1).reshape(*shape, self.dim, self.dim)

    def strong_convexity(self) -> Tensor:
        """Return a modulus of strong convexity, the smallest eigenvalue of sum_h alpha_h B_h'B_h: (*batch)."""
        return geometry.strong_convexity(self).reshape(self.batch_shape)

    def lipschitz(self, feasible_set: FeasibleSet) -> Tensor:
        """Return a Lipschitz constant of f on the set, (*batch): rigorous, by interval arithmetic; not the smallest.

        Raises:
            ValueError: the set has another dimension.
        """
        if feasible_set.dim != self.dim:
            raise ValueError(f"feasible_set: expected dimension {self.dim} as the form's, got {feasible_set.dim}")
        return geometry.lipschitz(self, feasible_set).reshape(self.batch_shape)

    def conjugate(self, y: ArrayLike) -> Tensor:
        """Return f*(y) = sup_x y'x - f(x), (*batch, n) -> (*batch): for affine and quadratic terms alone.

        Raises:
            NotImplementedError: f has other terms; its conjugate has no closed form.
        """
        points, shape = self._points(y)
        return geometry.conjugate(self, points).reshape(shape)

    def composed(self, basis: ArrayLike, origin: ArrayLike) -> Self:
        """Return the form on a subspace, w -> f(origin + basis w).

        Args:
            basis: (n, k).
            origin: (n,), or (N, n) for an origin of its own for each function.

        Raises:
            ValueError: a wrong shape, a NaN or an infinity.
        """
        matrix, start = as_tensor(basis, "basis").to(self.linear), as_tensor(origin, "origin").to(self.linear)
        known = (
            start.ndim in (1, 2) and start.shape[-1] == self.dim and start.numel() in (self.dim, self.size * self.dim)
        )
        if matrix.ndim != 2 or matrix.shape[0] != self.dim or not known:
            raise ValueError(
                f"expected a basis ({self.dim}, k) and an origin ({self.dim},) or ({self.size}, {self.dim}), "
                f"got {tuple(matrix.shape)} and {tuple(start.shape)}"
            )
        start = start.reshape(-1, 1, self.dim)
        terms = (
            dataclasses.replace(
                t,
                map=DenseMap(t.map.forward(matrix.mT.unsqueeze(0)).mT),
                offset=t.offset + t.map.forward(start),
            )
            for t in self.terms
        )
        constant = self.constant + (self.linear * start).sum(dim=-1)
        return dataclasses.replace(self, constant=constant, linear=self.linear @ matrix, terms=tuple(terms))

    # -- cone programs and CVXPY -----------------------------------------------------------------------

    def lift(self, x: ArrayLike) -> cp.Problem:
        """Return the SOCP whose minimum is f(x), with the theorem's variables z1, ..., zL, s and t.

        The variables are `problem.var_dict["z1"]` and so on; terms of the same kind add s_2, t_2. Softplus, logistic
        and log-sum-exp terms add exponential cones. Source: paper, Theorem "SOC-ICNN as an SOCP value function".

        Args:
            x: (n,); the form must hold one function.

        Raises:
            ValueError: several functions, or a bad x.
        """
        return self.cone_program(x).to_cvxpy()

    def cone_program(self, x: ArrayLike | None = None, feasible_set: FeasibleSet | None = None) -> ConeProgram:
        """Return the lift as sparse data that Clarabel and SCS take directly.

        Args:
            x: (n,), the point to evaluate at; None to minimise over x.
            feasible_set: what a free x is constrained to.

        Raises:
            ValueError: several functions, a bad x, or both x and a set.
        """
        return cone_program(self, x, feasible_set)

    def expression(self, x: cp.Expression) -> cp.Expression:
        """Return f(x) as a DCP-convex CVXPY expression; the form must hold one function."""
        return expression(self, x)

    def _points(self, x: ArrayLike) -> tuple[Tensor, tuple[int, ...]]:
        """Check public points and bring them to the internal shape."""
        points = as_tensor(x, "x").to(device=self.linear.device)
        points = points.to(torch.promote_types(points.dtype, self.dtype))
        check_last_dim(points, self.dim, "x")
        shape = tuple(points.shape[:-1])
        if self.batch_shape == ():
            return points.reshape(1, -1, self.dim), shape
        if shape != self.batch_shape:
            raise ValueError(f"x: expected batch shape {self.batch_shape} as the contexts', got {shape}")
        return points.reshape(-1, 1, self.dim), shape
