"""The convex function that a surrogate is at a context, as what every computation works on.

    f(x) = b0 + v'x + sum_j phi_j(A_j x + d_j)

The terms of the paper's SOC-ICNN (eq. unified_soc_icnn) are one ReLU network, quadratics and norms; f is
then the value function of an SOCP (Theorem "SOC-ICNN as an SOCP value function"). Softplus networks,
logistic, log-sum-exp and Huber terms have the same structure over other cones, so values, duals,
certificates, the CVXPY forms and the decision solver are written once, over this sum.

Here are its data, value, dual and bound, unchecked and in internal shapes: N functions (or 1, shared by all) and points
(N or 1, M, n). `soctk.forms.geometry`, `cone_program` and `embedding` are functions of it; `ConicForm` is what users
hold.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
from torch import Tensor

from soctk.checks import check_finite
from soctk.forms.rounding import rounding_margin
from soctk.maps.linear import DenseMap
from soctk.sets import FeasibleSet, SetAt
from soctk.terms import Network, Norms, Quadratic, Term
from soctk.terms.base import Dual

TermType = TypeVar("TermType", bound=Term)


@dataclass(frozen=True, eq=False)
class SumOfTerms:
    """A batch of convex functions b0 + v'x + sum of terms, one function for each context.

    Attributes:
        constant: b0, (N or 1, 1).
        linear: v, (N or 1, 1, n).
        terms: the convex terms.
        batch_shape: the contexts' batch shape, flattened to N; () is one function.
    """

    constant: Tensor
    linear: Tensor
    terms: tuple[Term, ...] = ()
    batch_shape: tuple[int, ...] = ()

    # -- data ------------------------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """The decision dimension n."""
        return self.linear.shape[-1]

    @property
    def size(self) -> int:
        """The number N of functions in the batch."""
        return math.prod(self.batch_shape)

    @property
    def dtype(self) -> torch.dtype:
        """The coefficients' dtype."""
        return self.linear.dtype

    @property
    def requires_grad(self) -> bool:
        """Whether any coefficient is part of an autograd graph."""
        return any(tensor.requires_grad for tensor in self._tensors())

    def of_type(self, kind: type[TermType]) -> list[TermType]:
        """Return the terms of one kind, e.g. `soctk.terms.Norms`."""
        return [term for term in self.terms if isinstance(term, kind)]

    @property
    def network(self) -> Network | None:
        """The backbone term (W, U, b, c), or None."""
        return next(iter(self.of_type(Network)), None)

    @property
    def quadratics(self) -> list[Quadratic]:
        """The quadratic terms (B, e, alpha)."""
        return self.of_type(Quadratic)

    @property
    def norms(self) -> list[Norms]:
        """The conic terms (A, d, lambda, kappa)."""
        return self.of_type(Norms)

    def check(self) -> Self:
        """Return the form itself, or raise ValueError naming the tensor that is not finite or negative."""
        if self.convex and bool(torch.isfinite(torch.cat([tensor.reshape(-1) for tensor in self._tensors()])).all()):
            return self  # one test in place of many
        check_finite(self.linear, "v")  # before b0, which v enters when units are folded in
        check_finite(self.constant, "b0")
        for term in self.terms:
            term.check()
        return self

    def check_shapes(self, dim: int, size: int, *, mixed: bool = False) -> None:
        """Raise naming what has another shape than in forms of `size` functions of `dim` variables.

        PyTorch would stretch or refuse it somewhere else, and compiled code reads numbers by their places.

        Args:
            dim: of x.
            size: contexts.
            mixed: take tensors of several dtypes, as where constants of float64 stand beside weights of float32.

        Raises:
            TypeError: what should be a tensor or a term is none, or is of another dtype than the rest.
            ValueError: a wrong shape.
        """
        if not isinstance(self.terms, tuple):
            raise TypeError(f"terms: expected a tuple of terms, got {type(self.terms).__name__}")
        for name, tensor, shape in (("constant", self.constant, (1,)), ("linear", self.linear, (1, dim))):
            self._check_tensor(name, tensor, size, mixed=mixed)
            if tuple(tensor.shape[1:]) != shape:
                sizes = ", ".join(map(str, ("N or 1", *shape)))
                raise ValueError(f"{name}: expected shape [{sizes}], got {list(tensor.shape)}")
        for number, term in enumerate(self.terms):
            name = f"terms[{number}] ({type(term).__name__})"
            if not isinstance(term, Term):
                raise TypeError(f"{name}: expected one that derives from soctk.terms.Term")
            try:
                term.check_shapes(dim)
            except ValueError as error:
                raise ValueError(f"{name}.{error}, after a first dimension of N or 1") from None
            for field in dataclasses.fields(term):
                value = getattr(term, field.name)
                if isinstance(value, DenseMap):
                    self._check_tensor(f"{name}.A", value.matrix, size, mixed=mixed)
                elif isinstance(value, Tensor):
                    self._check_tensor(f"{name}.{field.name}", value, size, mixed=mixed)

    def _check_tensor(self, name: str, tensor: Tensor, size: int, *, mixed: bool) -> None:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
        if tensor.dtype != self.linear.dtype and not mixed:
            raise TypeError(f"{name}: expected {self.linear.dtype} as `linear`, got {tensor.dtype}")
        if tensor.ndim > 0 and tensor.shape[0] not in (1, size):
            raise ValueError(f"{name}: expected a first dimension of 1 or {size}, the contexts, got {tensor.shape[0]}")

    @property
    def convex(self) -> bool:
        """Whether no number that must not be negative is so, NaN aside."""
        signs = [tensor.reshape(-1) for term in self.terms for tensor in term.nonnegative()]
        return not signs or not bool((torch.cat(signs) < 0).any())

    def _tensors(self) -> list[Tensor]:
        found: list[Tensor] = []
        self.apply(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found

    # -- value, dual and bound -------------------------------------------------------------------------

    def evaluate(self, x: Tensor) -> Tensor:
        """Return f(x): (N or 1, M, n) -> (N, M). Differentiable by autograd."""
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

    def bound(self, dual: Dual, feasible_set: FeasibleSet | SetAt) -> Tensor:
        """Return a lower bound of min f over the set from any dual point, (N, M): its minorant is minimised."""
        level, slope = self.minorant(dual, feasible_set)
        return level + feasible_set.linear_minimum(slope)

    def minorant(self, dual: Dual, feasible_set: FeasibleSet | SetAt) -> tuple[Tensor, Tensor]:
        """Return an affine function below f from any dual point: its level (N, M) and its slope (N, M, n).

        Each y_j is first moved into the domain of phi_j*, so that Fenchel's inequality holds term by term:

            f(x) >= b0 + v'x + sum_j [y_j'(A_j x + d_j) - phi_j*(y_j)]

        What rounding may have added within the set is taken off the level (`soctk.forms.rounding`).
        """
        duals = tuple(term.nearest_dual(y) for term, y in zip(self.terms, dual.parts, strict=True))
        conjugates = [term.conjugate(y) for term, y in zip(self.terms, duals, strict=True)]
        level = self.constant
        for term, y, conjugate in zip(self.terms, duals, conjugates, strict=True):
            level = level + (y * term.offset).sum(dim=-1) - conjugate
        margin = rounding_margin(self.linear, self.terms, duals, [self.constant, *conjugates], feasible_set)
        return level - margin, self.slope(Dual(duals))

    # -- rewriting -------------------------------------------------------------------------------------

    def transformed(self, *, scale: Tensor | float, shift: Tensor | float, x_scale: Tensor, x_mean: Tensor) -> Self:
        """Return scale * f((x - x_mean) / x_scale) + shift: what standardisation is folded back with.

        `x_scale` and `x_mean` are numbers or (n,).
        """
        factor = 1.0 / x_scale
        moved = (-x_mean * factor).expand(1, 1, self.dim)
        constant = self.constant + (self.linear * moved).sum(dim=-1)
        return dataclasses.replace(
            self,
            constant=scale * constant + shift,
            linear=scale * factor * self.linear,
            terms=tuple(term.substituted(factor, moved).scaled(scale) for term in self.terms),
        )

    def scaled(self, factor: Tensor) -> Self:
        """Return the functions times factors (N or 1,), not negative; differentiable in them."""
        each = factor.reshape(-1, 1, 1)
        terms = tuple(term.scaled(each) for term in self.terms)
        return dataclasses.replace(self, constant=self.constant * each[..., 0], linear=self.linear * each, terms=terms)

    def plus(self, other: Self) -> Self:
        """Return the sums with other functions of the same batch."""
        constant, linear = self.constant + other.constant, self.linear + other.linear
        return dataclasses.replace(self, constant=constant, linear=linear, terms=(*self.terms, *other.terms))

    def restricted(self, free: Tensor, fixed_point: Tensor) -> Self:
        """Return the form as a function of the coordinates `free`, the others held at `fixed_point` (n,)."""
        held = fixed_point.clone()
        held[free] = 0.0
        held = held.expand(1, 1, self.dim)
        terms = (
            dataclasses.replace(t, map=t.map.restrict(free), offset=t.offset + t.map.forward(held)) for t in self.terms
        )
        constant = self.constant + (self.linear * held).sum(dim=-1)
        return dataclasses.replace(self, constant=constant, linear=self.linear[:, :, free], terms=tuple(terms))

    def apply(self, fn: Callable[[Tensor], Tensor], batch_shape: Sequence[int] | None = None) -> Self:
        """Return the form with `fn` applied to every tensor, each with its leading batch dimension."""
        return type(self)(
            fn(self.constant),
            fn(self.linear),
            tuple(term.apply(fn) for term in self.terms),
            self.batch_shape if batch_shape is None else tuple(batch_shape),
        )

    def select(self, index: Tensor) -> Self:
        """Return the functions `index` of the flattened batch as a form with batch shape (len(index),)."""
        return self.apply(lambda t: t if t.shape[0] == 1 else t[index], (index.numel(),))

    def to(self, dtype: torch.dtype) -> Self:
        """Return the form in another floating-point dtype."""
        return self.apply(lambda t: t.to(dtype))

    def detach(self) -> Self:
        """Return the form cut from autograd."""
        return self.apply(Tensor.detach)
