"""The convex program a surrogate is at a fixed context.

    f(x) = b0 + v'x + sum_j phi_j(A_j x + d_j)

The terms of the paper's SOC-ICNN (eq. unified_soc_icnn) are one ReLU network, quadratics and norms; f is
then the value function of an SOCP (Theorem "SOC-ICNN as an SOCP value function"). Softplus networks,
logistic, log-sum-exp and Huber terms have the same structure over other cones, so values, duals,
certificates, the CVXPY forms and the decision solver are written once, here and in `soctk.decide`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor, check_finite, check_last_dim, to_numpy
from soctk.forms import geometry
from soctk.forms.cone_program import ConeProgram, cone_program
from soctk.forms.rounding import rounding_margin
from soctk.maps.linear import DenseMap
from soctk.sets import FeasibleSet
from soctk.terms import Network, Norms, Quadratic, Term
from soctk.terms.base import Coefficient, Dual

TermType = type[Term]


@dataclass(frozen=True, eq=False)
class ConicForm:
    """A batch of convex functions b0 + v'x + sum of terms, one function for each context.

    Internally contexts are flattened to one dimension of size N (or 1, shared by all); points have the shape
    (N or 1, M, n). The public methods take and return (*batch, ...).

    Attributes:
        constant: b0, (N or 1, 1).
        linear: v, (N or 1, 1, n).
        terms: the convex terms.
        batch_shape: the contexts' batch shape; () is one function.
    """

    constant: Tensor
    linear: Tensor
    terms: tuple[Term, ...] = ()
    batch_shape: tuple[int, ...] = ()

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """The decision dimension n."""
        return self.linear.shape[-1]

    @property
    def size(self) -> int:
        """The number N of functions in the batch."""
        return int(np.prod(self.batch_shape))

    @property
    def dtype(self) -> torch.dtype:
        """The coefficients' dtype."""
        return self.linear.dtype

    def of_type(self, kind: TermType) -> list[Term]:
        """Return the terms of one kind, e.g. `soctk.terms.Norms`."""
        return [term for term in self.terms if isinstance(term, kind)]

    @property
    def network(self) -> Network | None:
        """The backbone term (W, U, b, c), or None."""
        found = self.of_type(Network)
        return found[0] if found else None  # type: ignore[return-value]

    @property
    def quadratics(self) -> list[Quadratic]:
        """The quadratic terms (B, e, alpha)."""
        return self.of_type(Quadratic)  # type: ignore[return-value]

    @property
    def norms(self) -> list[Norms]:
        """The conic terms (A, d, lambda, kappa)."""
        return self.of_type(Norms)  # type: ignore[return-value]

    def check(self) -> ConicForm:
        """Return the form itself, or raise ValueError naming the tensor that is not finite or negative."""
        if self._plausible():
            return self
        check_finite(self.linear, "v")  # before b0, which v enters when units are folded in
        check_finite(self.constant, "b0")
        for term in self.terms:
            term.check()
        return self

    def _plausible(self) -> bool:
        """Whether all tensors together are finite and the weights together not negative: one test in place of many."""
        parts: list[Tensor] = []
        self.apply(lambda tensor: parts.append(tensor.reshape(-1)) or tensor)
        signs = [tensor.reshape(-1) for term in self.terms for tensor in term.nonnegative()]
        finite = bool(torch.isfinite(torch.cat(parts)).all())
        return finite and (not signs or not bool((torch.cat(signs) < 0).any()))

    # -- values ----------------------------------------------------------------------------------------

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
        return torch.stack(torch.broadcast_tensors(*parts)).amax(dim=0) if parts else torch.zeros(self.size, 1)

    def complementarity(self, dual: Dual, x: ArrayLike) -> Tensor:
        """Return the largest phi_j(u_j) + phi_j*(y_j) - y_j'u_j of all terms, (*batch): 0 where the pair is optimal."""
        points, shape = self._points(x)
        total = self.constant.expand(-1, points.shape[1]) * 0
        for term, y in zip(self.terms, dual.parts, strict=True):
            u = term.inner(points)
            total = torch.maximum(total, term.value(u) + term.conjugate(y) - (y * u).sum(dim=-1))
        return total.reshape(shape)

    def lower_bound(self, dual: Dual, feasible_set: FeasibleSet) -> Tensor:
        """Return a lower bound of min f over the set from any dual point, (*batch): see `bound`."""
        return self.bound(dual, feasible_set).amax(dim=-1).reshape(self.batch_shape)

    def evaluate(self, x: Tensor) -> Tensor:
        """Return f(x) for internal points: (N or 1, M, n) -> (N, M). Differentiable by autograd."""
        total = self.constant + (x * self.linear).sum(dim=-1)
        for term in self.terms:
            total = total + term.value(term.inner(x))
        return total

    def subgradients(self, x: Tensor) -> Dual:
        """Return a subgradient y of every term at its own u = A x + d."""
        return Dual(tuple(term.subgradient(term.inner(x)) for term in self.terms))

    def slope(self, dual: Dual) -> Tensor:
        """Return v + sum_j A_j'y_j, (N, M, n)."""
        total = self.linear
        for term, y in zip(self.terms, dual.parts, strict=True):
            total = total + term.map.adjoint(y)
        return total

    def bound(self, dual: Dual, feasible_set: FeasibleSet) -> Tensor:
        """Return a lower bound of min f over the set from any dual point, (N, M).

        Each y_j is first moved into the domain of phi_j*, so that Fenchel's inequality holds term by term:

            f(x) >= b0 + v'x + sum_j [y_j'(A_j x + d_j) - phi_j*(y_j)]

        and the affine right-hand side is minimised over the set in closed form. What rounding may have added is taken
        off (`soctk.forms.rounding`).
        """
        duals = tuple(term.nearest_dual(y) for term, y in zip(self.terms, dual.parts, strict=True))
        conjugates = [term.conjugate(y) for term, y in zip(self.terms, duals, strict=True)]
        bound = self.constant + feasible_set.linear_minimum(self.slope(Dual(duals)))
        for term, y, conjugate in zip(self.terms, duals, conjugates, strict=True):
            bound = bound + (y * term.offset).sum(dim=-1) - conjugate
        return bound - rounding_margin(self.linear, self.terms, duals, [self.constant, *conjugates], feasible_set)

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
        if self.size != 1:
            raise ValueError(f"expected one context for a CVXPY expression, got batch shape {self.batch_shape}")
        if x.shape != (self.dim,):
            raise ValueError(f"x: expected a CVXPY expression of shape ({self.dim},), got {x.shape}")
        total = float(self.constant[0, 0].detach()) + to_numpy(self.linear[0, 0]) @ x
        for term in self.terms:
            data: dict[str, Coefficient] = {name: to_numpy(tensor[0]) for name, tensor in term.coefficients().items()}
            total = total + term.expression(term.inner_expression(x, data), data)
        return total

    # -- rewriting -------------------------------------------------------------------------------------

    def transformed(
        self, *, scale: Tensor | float, shift: Tensor | float, x_scale: Tensor, x_mean: Tensor
    ) -> ConicForm:
        """Return scale * f((x - x_mean) / x_scale) + shift: what standardisation is folded back with."""
        factor = 1.0 / x_scale
        moved = (-x_mean * factor).expand(1, 1, self.dim)
        constant = self.constant + (self.linear * moved).sum(dim=-1)
        return dataclasses.replace(
            self,
            constant=scale * constant + shift,
            linear=scale * factor * self.linear,
            terms=tuple(term.substituted(factor, moved).scaled(scale) for term in self.terms),
        )

    def restricted(self, free: Tensor, fixed_point: Tensor) -> ConicForm:
        """Return the form as a function of the coordinates `free`, the others held at `fixed_point` (n,)."""
        held = fixed_point.clone()
        held[free] = 0.0
        held = held.expand(1, 1, self.dim)
        terms = (
            dataclasses.replace(t, map=t.map.restrict(free), offset=t.offset + t.map.forward(held)) for t in self.terms
        )
        constant = self.constant + (self.linear * held).sum(dim=-1)
        return dataclasses.replace(self, constant=constant, linear=self.linear[:, :, free], terms=tuple(terms))

    def composed(self, basis: ArrayLike, origin: ArrayLike) -> ConicForm:
        """Return the form on a subspace, w -> f(origin + basis w).

        Args:
            basis: (n, k).
            origin: (n,).

        Raises:
            ValueError: a wrong shape, a NaN or an infinity.
        """
        matrix, start = as_tensor(basis, "basis").to(self.linear), as_tensor(origin, "origin").to(self.linear)
        if matrix.ndim != 2 or matrix.shape[0] != self.dim or start.shape != (self.dim,):
            raise ValueError(
                f"expected a basis ({self.dim}, k) and an origin ({self.dim},), "
                f"got {tuple(matrix.shape)} and {tuple(start.shape)}"
            )
        start = start.reshape(1, 1, -1)
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

    def apply(self, fn: Callable[[Tensor], Tensor], batch_shape: Sequence[int] | None = None) -> ConicForm:
        """Return the form with `fn` applied to every tensor, each with its leading batch dimension."""
        return ConicForm(
            fn(self.constant),
            fn(self.linear),
            tuple(term.apply(fn) for term in self.terms),
            self.batch_shape if batch_shape is None else tuple(batch_shape),
        )

    def select(self, index: Tensor) -> ConicForm:
        """Return the functions `index` of the flattened batch as a form with batch shape (len(index),)."""
        return self.apply(lambda t: t if t.shape[0] == 1 else t[index], (index.numel(),))

    def to(self, dtype: torch.dtype) -> ConicForm:
        """Return the form in another floating-point dtype."""
        return self.apply(lambda t: t.to(dtype))

    @property
    def requires_grad(self) -> bool:
        """Whether any coefficient is part of an autograd graph."""
        found: list[bool] = []
        self.apply(lambda tensor: found.append(tensor.requires_grad) or tensor)  # type: ignore[func-returns-value]
        return any(found)

    def detach(self) -> ConicForm:
        """Return the form cut from autograd."""
        return self.apply(Tensor.detach)

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
