"""What every term of a conic form provides.

A term is phi(u), u = A x + d, with phi closed and convex. By Fenchel's inequality any y in the domain of
the conjugate phi* gives the affine minorant

    phi(A x + d) >= y'(A x + d) - phi*(y)    for all x,

with equality where y is a subgradient of phi at u. Sums of such minorants are what certificates are made
of (soctk.decide.certificate); the terms supply y and phi*.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from soctk.checks import check_count, check_finite
from soctk.lazy import cvxpy as cp
from soctk.maps.linear import DenseMap, LinearMap
from soctk.terms.cones import Affine, ConeBuilder
from soctk.terms.kernel import Kernel, Packs, Structure
from soctk.terms.mixing import on_numbers
from soctk.terms.piece import AT_KINK, Piece, UnknownPiece

Coefficient: TypeAlias = "np.ndarray | cp.Parameter | cp.Expression"
Convex = Any
"""A CVXPY expression; CVXPY's own stubs call sums of them `int | Sum`."""
TermType = TypeVar("TermType", bound="Term")

CurvatureKind = Literal["continuous", "jumps", "none"]

SMALLEST_WEIGHT = 1e-12
"""What a smoothing width mu / weight divides by at least: its square is then finite in float32, for weight 0 too."""


@dataclass(frozen=True, eq=False)
class Dual:
    """One dual point: a y for each term of a conic form, each (N, M, K)."""

    parts: tuple[Tensor, ...]


class Recognised(NamedTuple):
    """A CVXPY atom as a term: factor * phi(argument), with the term's other fields; a weight for each group of rows."""

    argument: Any
    factor: float = 1.0
    fields: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Smoothed:
    """A smoothed term at u: its value (N, 1), gradient in u (N, 1, K) and what the Hessian needs of the pass.

    `at` is the u and mu that it was made of, where derivatives ask for it again (`Term.smooth_at`).
    """

    value: Tensor
    dual: Tensor
    cache: Any
    at: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Term(ABC):
    """phi(A x + d) with non-negative weights. Every tensor has a leading batch dimension of N or 1.

    Attributes:
        map: the linear map A, K rows.
        offset: d, (N or 1, 1, K).
        weights: the non-negative weights of phi, (N or 1, 1, number of weights); phi is linear in them.
    """

    map: LinearMap
    offset: Tensor
    weights: Tensor

    # -- the function and its dual ---------------------------------------------------------------------

    @abstractmethod
    def value(self, u: Tensor) -> Tensor:
        """Return phi(u): (N, M, K) -> (N, M)."""

    @abstractmethod
    def subgradient(self, u: Tensor) -> Tensor:
        """Return an element of the subdifferential of phi at u, the gradient where there is one: (N, M, K)."""

    @abstractmethod
    def nearest_dual(self, y: Tensor) -> Tensor:
        """Return y moved into the domain of phi*, unchanged (to rounding) where it already lies there."""

    @abstractmethod
    def conjugate(self, y: Tensor) -> Tensor:
        """Return phi*(y) for y in its domain: (N, M, K) -> (N, M).

        Lower bounds are made of it: what is computed may exceed phi*(y), and falls below it by no more than sums of
        numbers of one sign round, which `soctk.forms.rounding` accounts for.
        """

    def dual_violation(self, y: Tensor) -> Tensor:
        """Return the largest violation of the constraints on a dual point, y in dom phi*: (N, M, K) -> (N, M)."""
        return (y - self.nearest_dual(y)).abs().amax(dim=-1)

    def nonsmooth(self, u: Tensor) -> Tensor:
        """Return whether phi is not twice differentiable at u, bool (N, M)."""
        return torch.zeros_like(u[..., 0], dtype=torch.bool)

    def slope_range(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds of every subgradient of phi over the box low <= u <= high, each (N, 1, K).

        By default those at its corners: the subgradients of a phi whose derivatives grow with every entry of u.
        """
        return self.subgradient(low), self.subgradient(high)

    def slope_ball(self) -> Tensor | None:
        """Return a bound (N,) of ||A'y|| over all subgradients y of phi; None where there is none without a box."""
        return None

    # -- the smoothing Newton method: as it stands for a smooth phi that is a sum over the entries of u ---

    def second_derivative(self, u: Tensor) -> Tensor:
        """Return the Hessian of phi in u, of which only the diagonal is not zero: (N, M, K)."""
        raise NotImplementedError(f"{type(self).__name__}: expected second_derivative, or smooth and what follows it")

    def smooth(self, u: Tensor, mu: Tensor) -> Smoothed:
        """Return the term smoothed so that it moves by O(mu), mu (N, 1); smooth terms return themselves."""
        return Smoothed(self.value(u), self.subgradient(u), u)

    def smooth_at(self, u: Tensor, mu: Tensor) -> Smoothed:
        """Return `smooth` with what it was made of."""
        return dataclasses.replace(self.smooth(u, mu), at=(u, mu))

    def _smooth_again(self, u: Tensor, smoothed: Smoothed) -> Smoothed | None:
        """Return the smoothed term at another u, for autograd; None where phi itself is smooth."""
        if smoothed.at is None or type(self).smooth is Term.smooth:
            return None
        return self.smooth(u, smoothed.at[1])

    def add_hessian(self, total: Tensor, smoothed: Smoothed, lag: Any) -> None:
        """Add A' (Hessian of phi) A with the dual iterates `lag`, positive semidefinite, to `total` (N, n, n)."""
        self.map.add_gram(total, self.second_derivative(smoothed.cache)[:, 0])

    def hessian(self, smoothed: Smoothed, lag: Any) -> Tensor:
        """Return what `add_hessian` adds, (N, n, n)."""
        n = self.map.dim
        total = smoothed.dual.new_zeros(max(smoothed.dual.shape[0], self.weights.shape[0]), n, n)
        self.add_hessian(total, smoothed, lag)
        return total

    def curvature(self, smoothed: Smoothed, lag: Any, du: Tensor) -> Tensor:
        """Return (Hessian of phi with the dual iterates) du, the matrix of `add_hessian` without its A: (N, 1, K)."""
        return self.second_derivative(smoothed.cache) * du

    def initial_lag(self, smoothed: Smoothed) -> Any:
        """Return the dual iterates that agree with the smoothed pass; None for a smooth term."""
        return None

    def advance_lag(self, smoothed: Smoothed, lag: Any, du: Tensor) -> Any:
        """Return the dual iterates after a Newton step that moves u by du."""
        return None

    def lagged_dual(self, smoothed: Smoothed, lag: Any) -> Tensor:
        """Return the dual point y that the dual iterates stand for."""
        return smoothed.dual

    def implicit_dual(self, u: Tensor, smoothed: Smoothed, lag: Any) -> Tensor:
        """Return y near a solution as a function of u and of the term's own coefficients, for autograd: (N, M, K).

        Where phi has kinks the value is that of the dual iterate, and the derivative that of the equation which defines
        it: in u the very matrix of `hessian`. At a kink its numbers are so large that those of another one, which
        agrees with it at the solution, do not cancel. Without dual iterates it is the gradient of the smoothed term.
        """
        again = self._smooth_again(u, smoothed)
        return self.subgradient(u) if again is None else again.dual

    def piece(self, smoothed: Smoothed, lag: Any) -> Piece:
        """Return the smooth piece that a solution rests on, known by the smoothed term and the dual iterates there.

        Of a term with kinks that does not say, decisions that rest at them have no derivatives. Without dual iterates a
        solution rests at one where the smoothed slope is not phi's.
        """
        none, one = (torch.zeros_like(smoothed.dual[..., :rows], dtype=torch.bool) for rows in (0, 1))
        if lag is not None:
            return UnknownPiece(one, ~one)
        if smoothed.at is None or type(self).smooth is Term.smooth:
            return Piece(none)
        u, slope = smoothed.at[0], smoothed.dual
        apart = ((slope - self.subgradient(u)).abs() > AT_KINK * slope.abs().amax(dim=-1, keepdim=True)).any(dim=-1)
        return UnknownPiece(one, (apart | self.nonsmooth(u)).unsqueeze(-1))

    def envelope(self, u: Tensor, smoothed: Smoothed, lag: Any) -> Tensor:
        """Return phi(u) with its duals held where they are at a solution, for autograd: (N, M, K) -> (N, M).

        Its derivative in the term's own coefficients is that of the minimum (envelope theorem), at kinks too, where
        that of phi at the solution is not. Without dual iterates it is the smoothed term.
        """
        again = self._smooth_again(u, smoothed)
        return self.value(u) if again is None else again.value

    # -- CVXPY ---------------------------------------------------------------------------------------

    @abstractmethod
    def expression(self, u: cp.Expression, data: dict[str, Coefficient]) -> Convex:
        """Return phi(u) as a DCP-convex expression without new variables; `data` as `coefficients` names it."""

    def epigraph(self, u: cp.Expression, data: dict[str, Coefficient]) -> tuple[Convex, list[cp.Constraint]]:
        """Return phi(u) as the minimum of the first part under the second: DPP in every coefficient."""
        return self.expression(u, data), []

    @abstractmethod
    def cones(self, builder: ConeBuilder, u: Affine, data: dict[str, np.ndarray]) -> Affine:
        """Return phi(u) as the minimum of a linear expression (one row) over the cones that are added to `builder`.

        Args:
            builder: takes the epigraph's variables and rows.
            u: the term's argument.
            data: `coefficients` of one context.
        """

    def coefficients(self) -> dict[str, Tensor]:
        """Return the named tensors that a CVXPY form needs, each with its batch dimension; A where it is dense."""
        matrix = {"A": self.map.matrix} if isinstance(self.map, DenseMap) else {}
        return matrix | {"offset": self.offset[:, 0], "weights": self.weights[:, 0]}

    def inner_expression(self, x: cp.Expression, data: dict[str, Coefficient]) -> cp.Expression:
        """Return u = A x + d in CVXPY."""
        matrix = data["A"] if "A" in data else self.map.to_sparse()
        return matrix @ x + data["offset"]  # type: ignore[return-value]

    atoms: ClassVar[tuple[str, ...]] = ()
    """The names of the classes of CVXPY atoms that `recognise` is asked about."""

    @classmethod
    def recognise(cls, atom: Any) -> Recognised | None:
        """Return how a CVXPY atom is a term of this class, None where it is none."""
        return None

    # -- files ---------------------------------------------------------------------------------------

    def to_parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors of a term of one context by name, A dense, and its other fields as JSON has them."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "map"}
        tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        options = {name: value for name, value in fields.items() if name not in tensors}
        matrix = torch.from_numpy(self.map.to_sparse().toarray()).unsqueeze(0)
        return {"A": matrix} | tensors, {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}

    @classmethod
    def from_parts(cls: type[TermType], tensors: dict[str, Tensor], options: dict[str, Any]) -> TermType:
        """Return the term of what `to_parts` returned."""
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        return cls(map=DenseMap(tensors["A"]), **{k: v for k, v in tensors.items() if k != "A"}, **fields)

    def check_shapes(self, dim: int) -> None:
        """Raise ValueError naming the field that does not fit to the others; batch dimensions are left out."""
        if isinstance(self.map, DenseMap) and self.map.matrix.ndim != 3:
            raise ValueError(f"A: expected shape [N or 1, K, {dim}], got {list(self.map.matrix.shape)}")
        rows = self.map.rows
        if self.map.dim != dim:
            raise ValueError(f"A: expected shape {[rows, dim]}, got {[rows, self.map.dim]}")
        for name, shape in {"offset": (1, rows), **self._shapes(rows)}.items():
            tensor = getattr(self, name)
            if tuple(tensor.shape[1:]) != shape:
                raise ValueError(f"{name}: expected shape {list(shape)}, got {list(tensor.shape[1:])}")

    def _shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the other tensors for K rows, each without its batch; options are checked on the way."""
        return {"weights": (1, rows)}

    # -- compiled code ---------------------------------------------------------------------------------

    packs: ClassVar[Packs] = Packs()
    """The attributes that compiled code is given."""

    kernel: ClassVar[Kernel | None] = None
    """The term in compiled code. A class without one of its own, be it its parent's, is decided in PyTorch."""

    def structure(self) -> Structure:
        """Return how the Hessian is made up."""
        return Structure(self.map.rows)

    curvature_kind: ClassVar[CurvatureKind] = "continuous"
    """How the Hessian behaves from point to point: it changes continuously, jumps, or is 0 but for kinks."""

    def add_hessians(self, kinks: Tensor, rest: Tensor, smoothed: Smoothed, lag: Any) -> None:
        """Add what `add_hessian` adds in two parts: what there is of it by smoothing alone, and phi's own.

        Where a term does not tell them apart, derivatives of decisions within about 1e-4 of where one of its kinks
        begins or ceases to hold them may be between those to its two sides.
        """
        self.add_hessian(kinks if self.curvature_kind == "none" else rest, smoothed, lag)

    def unpack_lag(self, rows: Tensor) -> Any:
        """Return the dual iterates as the other methods take them, of what compiled code keeps: (N, 1, K)."""
        return None

    # -- rewriting -----------------------------------------------------------------------------------

    def inner(self, x: Tensor) -> Tensor:
        """Return u = A x + d: (N, M, n) -> (N, M, K)."""
        return self.map.forward(x) + self.offset

    def scaled(self: TermType, factor: Tensor | float) -> TermType:
        """Return factor * phi(A x + d), factor >= 0."""
        return dataclasses.replace(self, weights=self.weights * factor)

    def substituted(self: TermType, factor: Tensor | float, shift: Tensor) -> TermType:
        """Return phi(A (factor * x + shift) + d), shift (1, 1, n)."""
        return dataclasses.replace(
            self, map=self.map.compose_scale(factor), offset=self.offset + self.map.forward(shift)
        )

    def apply(self: TermType, fn: Callable[[Tensor], Tensor]) -> TermType:
        """Return the term with `fn` applied to each of its tensors."""
        changes: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changes[field.name] = fn(value)
            elif isinstance(value, LinearMap):
                changes[field.name] = value.apply(fn)
            elif isinstance(value, tuple) and any(isinstance(item, Tensor | LinearMap) for item in value):
                changes[field.name] = tuple(on_numbers(item, fn) for item in value)
        return dataclasses.replace(self, **changes)

    def check(self) -> None:
        """Raise ValueError naming the tensor that is not finite or that must not be negative."""
        name = type(self).__name__.lower()
        self.map.check(f"{name}.A")
        check_finite(self.offset, f"{name}.offset")
        check_nonnegative(self.weights, f"{name}.{self.weights_name}")

    def nonnegative(self) -> list[Tensor]:
        """Return the tensors that must not be negative."""
        return [self.weights]

    weights_name = "weights"


def check_nonnegative(tensor: Tensor, name: str) -> None:
    """Raise ValueError unless every entry of `tensor` is finite and non-negative."""
    check_finite(tensor, name)
    if bool((tensor < 0).any()):
        raise ValueError(
            f"{name}: expected non-negative entries (the function is convex only then), got {tensor.min().item():g}"
        )


def group_count(size: int, rows: int) -> int:
    """Return how many groups of a size K rows are; ValueError where that is no whole number."""
    check_count(size, "size")
    if rows % size:
        raise ValueError(f"size: expected a divisor of {rows}, the number of rows, got {size}")
    return rows // size


def group_norms(u: Tensor, size: int) -> Tensor:
    """Return the Euclidean norms of consecutive groups of `size`: (..., K) -> (..., K / size)."""
    return torch.linalg.vector_norm(u.unflatten(-1, (-1, size)), dim=-1)


def safe_divisor(tensor: Tensor) -> Tensor:
    """Return `tensor` with zeros replaced by ones: what is divided there is zero as well."""
    return torch.where(tensor > 0, tensor, 1.0)
