"""A convex function of x for every context, and everything that follows from its conic form.

A new one needs one method, `_conic_form(context)`, when it is a sum of the terms in `soctk.terms`; values,
subgradients, CVXPY expressions, certificates and decisions are derived from it. One of another kind has `_value` and
`_expression` instead.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC
from functools import cache
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from soctk.checks import ArrayLike, as_tensor, check_count, check_kind, check_last_dim, to_numpy
from soctk.forms.conic_form import ConicForm
from soctk.forms.context_map import ContextMap
from soctk.forms.embedding import affine_expression, affine_probes
from soctk.lazy import cvxpy as cp
from soctk.support import Support

Unit = float | Tensor
"""A mean or a scale: a number, or one for each coordinate."""

DTYPES = (torch.float32, torch.float64)
"""What weights are kept in."""

FORM = ("_conic_form", "_context_map", "form_at")
VALUE = ("_value", "evaluate", "forward")
EXPRESSION = ("_expression", "to_cvxpy")
"""What says which function it is, in three ways; a subclass that overrides one alone has another function there."""


class ConvexFunction(nn.Module, ABC):
    """A function f(x, context) that is convex in x for every fixed context.

    What is implemented is g, in standardised units; every public method speaks the user's:
    f(x, context) = value_scale * g((x - x_mean) / x_scale, (context - context_mean) / context_scale) + value_mean,
    each coordinate of x and of the context with a mean and a scale of its own. All means are 0 and all scales 1 unless
    `set_standardization` says otherwise. Where there is a `context_range`, a context beyond it is taken at its ends.

    Args:
        dim: the decision dimension n.
        context_dim: the context dimension p; 0 for none.
        dtype: the coefficients' dtype. float64 by default: certified gaps of 1e-6 and below need it.
    """

    decision_method: ClassVar[str] = "newton"
    """How `soctk.minimize` decides with this function by default; "cvxpy" for one with its own CVXPY export."""
    support: Support | None = None
    """Where the data were that it was learned from, which `soctk.fit` says; None where that is not known."""

    x_mean: Tensor
    x_scale: Tensor
    value_mean: Tensor
    value_scale: Tensor
    context_mean: Tensor
    context_scale: Tensor
    context_range: Tensor | None
    """(2, p), the least and the largest of each number of the context; None for no limits. No part of the state."""

    def __init__(self, dim: int, context_dim: int = 0, *, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        check_count(dim, "dim")
        check_count(context_dim, "context_dim", minimum=0)
        if dtype not in DTYPES:
            raise ValueError(f"dtype: expected float32 or float64, got {str(dtype).removeprefix('torch.')}")
        self.dim = dim
        self.context_dim = context_dim
        for name, shape in (("x", (dim,)), ("value", ()), ("context", (context_dim,))):
            self.register_buffer(f"{name}_mean", torch.zeros(shape, dtype=dtype))
            self.register_buffer(f"{name}_scale", torch.ones(shape, dtype=dtype))
        self.register_buffer("context_range", None, persistent=False)

    # -- what is implemented ---------------------------------------------------------------------------

    def _conic_form(self, context: Tensor) -> ConicForm:
        """Return g at standardised contexts (N, p) as a conic form; N = 1 for a function without context."""
        coefficients = self._context_map()
        if coefficients is None:
            raise NotImplementedError(self.without_form())
        return coefficients.form(context)

    def _context_map(self) -> ContextMap | None:
        """Return g's coefficients as functions of the context, in place of `_conic_form`; None where it has no such.

        With one, decisions take their coefficients straight from it (`soctk.prepare`).
        """
        return None

    def _value(self, x: Tensor, context: Tensor) -> Tensor:
        """Return g at standardised points (N or 1, M, n) and contexts (N, p): (N, M)."""
        # Comparing sizes would fix them in what is exported.
        exported, context = torch.compiler.is_compiling(), context.to(self.dtype)
        form = self._conic_form(context) if exported else self._shaped_form(context, mixed=True)
        return (form if form.dtype == x.dtype else form.to(x.dtype)).evaluate(x)

    def _expression(self, x: cp.Expression, context: Tensor) -> cp.Expression:
        """Return g at one standardised context (1, p) as a DCP-convex expression of a standardised x (n,)."""
        return self._conic_form(context).expression(x)

    @property
    def has_conic_form(self) -> bool:
        """Whether `conic_form` exists; the certified methods need it.

        A form from a class above the one that says what the values are, or the expression, is another function's, and
        so are values from a class above that of the form.
        """
        form, value, expression = _levels(type(self))
        return form > 0 and value in (0, form) and expression <= form

    @property
    def exports_expression(self) -> bool:
        """Whether the function makes its own CVXPY expression instead of that of its conic form."""
        form, value, expression = _levels(type(self))
        return expression > 0 and expression >= max(form, value)

    def without_form(self) -> str:
        """Return why there is no conic form."""
        name, parts = type(self).__name__, {"conic form": FORM, "values": VALUE, "CVXPY expression": EXPRESSION}
        kinds = {part: _definer(type(self), names) for part, names in parts.items()}
        found = [f"{part} of {kind.__name__}" for part, kind in kinds.items() if kind is not ConvexFunction]
        if kinds["conic form"] is ConvexFunction or len(found) == 1:
            return f"{name} has no conic form"
        return f"{name} has no conic form of its own: it has the {', the '.join(found)}; override them in one class"

    def context_map(self) -> ContextMap | None:
        """Return the context map that `_conic_form` is made of, or None where it is made otherwise."""
        otherwise = self._overrides("_conic_form") or self._overrides("form_at") or not self.has_conic_form
        return None if otherwise else self._context_map()

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(ConvexFunction, name)

    # -- what users call -------------------------------------------------------------------------------

    def forward(self, x: ArrayLike, context: ArrayLike | None = None) -> Tensor:
        """Return f(x, context).

        Args:
            x: (*batch, n). Computed in the higher of its and the weights' precision, returned in x's dtype.
            context: (*batch, p), or with only the first of x's batch dimensions, each context shared by the points
                there: (N, p) for the x (N, M, n) of `ValueData`, (p,) for all points; None where p = 0.

        Returns:
            (*batch), differentiable by autograd in x, context and weights.

        Raises:
            ValueError: a wrong dimension, batch shapes that do not belong together, a NaN or an infinity.
        """
        points = self._check_device(as_tensor(x, "x", dtype=self.dtype), "x")
        check_last_dim(points, self.dim, "x")
        batch = points.shape[:-1]
        contexts = self.check_context(context)
        given = contexts.shape[:-1]
        if batch[: len(given)] != given:
            raise ValueError(
                f"context: expected batch shape {tuple(batch)} as x's (or its first dimensions, or () for one context "
                f"of shape ({self.context_dim},)), got {tuple(given)}"
            )
        if points.numel() == 0:
            return points.new_zeros(batch)
        rows = self.context_rows(contexts)
        return self.evaluate(points.reshape(len(rows), -1, self.dim), rows).reshape(batch).to(points.dtype)

    def evaluate(self, x: Tensor, context: Tensor) -> Tensor:
        """Return f for internal shapes, unchecked: x (N or 1, M, n), context (N, p) -> (N, M)."""
        dtype = torch.promote_types(torch.promote_types(x.dtype, context.dtype), self.dtype)
        standard = (x.to(dtype) - self.x_mean) / self.x_scale
        try:
            value = self._value(standard, self._standard_context(context.to(dtype)))
        except RuntimeError as error:
            self._check_one_dtype(error)
            raise
        return self.value_scale * value + self.value_mean

    def conic_form(self, context: ArrayLike | None = None) -> ConicForm:
        """Return f at each context as a `ConicForm`, in the user's units.

        Args:
            context: (*batch, p), or None where p = 0.

        Raises:
            ValueError: a bad context, or a weight that is not finite or makes the function non-convex.
            NotImplementedError: the surrogate is not a sum of conic terms.
        """
        contexts = self.check_context(context)
        return self.form_at(contexts).check()

    def form_at(self, contexts: Tensor) -> ConicForm:
        """Return the conic form at checked contexts (*batch, p), without checking the weights.

        In float64 whatever the weights' dtype, so that it is the function that they define to 16 digits: in float32 the
        weights' softplus and the units folded in would make it another. Differentiable in the weights as they are.
        """
        if not self.has_conic_form:
            raise NotImplementedError(self.without_form())
        batch = tuple(contexts.shape[:-1]) if self.context_dim > 0 else ()
        rows = self.context_rows(contexts).to(torch.float64)
        if self.dtype == torch.float64:
            form = self._folded_form(rows)
        else:
            tensors = {**dict(self.named_parameters()), **dict(self.named_buffers())}
            exact = {f"model.{name}": part.double() for name, part in tensors.items() if part.is_floating_point()}
            form = functional_call(_FoldedForm(self), exact, rows)
        return dataclasses.replace(form, batch_shape=batch)

    def _folded_form(self, rows: Tensor) -> ConicForm:
        """Return the form at contexts (N, p) in the user's units."""
        return self.in_units(self._shaped_form(self._standard_context(rows)))

    def _shaped_form(self, context: Tensor, *, mixed: bool = False) -> ConicForm:
        """Return `_conic_form` of standardised contexts (N, p), checked by `ConicForm.check_shapes`."""
        form, name = self._conic_form(context), f"{type(self).__name__}._conic_form"
        check_kind(form, ConicForm, name)
        try:
            form.check_shapes(self.dim, len(context), mixed=mixed)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
        return form

    def context_rows(self, contexts: Tensor) -> Tensor:
        """Return checked contexts (*batch, p) as rows (N, p); one row of no numbers where p = 0."""
        return contexts.reshape(-1, self.context_dim) if self.context_dim > 0 else contexts.reshape(1, 0)

    def to_cvxpy(self, x: cp.Expression, context: ArrayLike | cp.Parameter | None = None) -> cp.Expression:
        """Return f(x, context) as a DCP-convex CVXPY expression, for any objective or constraint.

        Args:
            x: a CVXPY variable or affine expression of shape (n,).
            context: one context (p,), or None where p = 0. A `cp.Parameter` (p,) gives an expression that is DPP in it,
                for the models whose context enters b0, v and the offsets alone, and affinely
                (`conditioning="additive", affine_hidden=0`); `soctk.Embedding` is DPP for all.

        Raises:
            ValueError: a wrong shape, weights that are not finite or make the function non-convex, or a parameter where
                the context enters otherwise.
        """
        if not isinstance(x, cp.Expression):
            raise TypeError(f"x: expected a CVXPY expression of shape ({self.dim},), got {type(x).__name__}")
        if x.shape != (self.dim,):
            raise ValueError(f"x: expected a CVXPY expression of shape ({self.dim},), got {x.shape}")
        if isinstance(context, cp.Expression):
            if context.shape != (self.context_dim,):
                raise ValueError(f"context: expected a parameter of shape ({self.context_dim},), got {context.shape}")
            if self.context_dim == 0:
                return self.to_cvxpy(x)
            if self.context_range is not None:
                raise ValueError("context: expected numbers for a model with a context_range, got a parameter")
            mean, scale = (unit.detach().double() for unit in self._context_units())
            probes = affine_probes(self.context_dim).to(mean)
            form = self.conic_form(mean + scale * probes).detach()
            return affine_expression(form, probes, x, cp.multiply(to_numpy(1 / scale), context - to_numpy(mean)))
        contexts = self.check_context(context)
        if contexts.ndim != 1:
            raise ValueError(
                f"context: expected one context of shape ({self.context_dim},), got {tuple(contexts.shape)}"
            )
        if not self.exports_expression:
            return self.form_at(contexts).check().expression(x)
        standard = cp.multiply(to_numpy(1 / self.x_scale), x - to_numpy(self.x_mean))
        inner = self._expression(standard, self._standard_context(contexts.to(self.dtype)).reshape(1, -1))
        return float(self.value_scale) * inner + float(self.value_mean)

    # -- units -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def set_standardization(
        self,
        *,
        x: tuple[Unit, Unit] = (0.0, 1.0),
        value: tuple[float, float] = (0.0, 1.0),
        context: tuple[Unit, Unit] | None = None,
    ) -> None:
        """Store the (mean, scale) pairs that standardise x, the value and the context.

        Args:
            x: numbers, or one for each coordinate, (n,).
            value: numbers.
            context: as x, (p,); as they were where there are none.

        Raises:
            ValueError: something else than two of them, a number that is not finite, or a scale that is not positive;
                nothing is stored then.
        """
        checked: list[tuple[Tensor, Tensor]] = []
        for name, pair in (("x", x), ("value", value), ("context", context)):
            if pair is not None and len(pair) != 2:
                raise ValueError(f"{name}: expected a mean and a scale, got {len(pair)} numbers")
            for what, unit in zip(("mean", "scale"), pair or (), strict=False):
                buffer = getattr(self, f"{name}_{what}")
                numbers = as_tensor(unit, f"{name}: {what}").double().expand(buffer.shape)
                if what == "scale" and not bool((numbers > 0).all()):
                    raise ValueError(f"{name}: expected a positive scale, got {float(numbers.min()):g}")
                checked.append((buffer, numbers))
        for buffer, numbers in checked:
            buffer.copy_(numbers)

    def in_units(self, form: ConicForm) -> ConicForm:
        """Return a form of g's in the user's units."""
        dtype = form.dtype
        return form.transformed(
            scale=self.value_scale.to(dtype),
            shift=self.value_mean.to(dtype),
            x_scale=self.x_scale.to(dtype),
            x_mean=self.x_mean.to(dtype),
        )

    def _standard_context(self, context: Tensor) -> Tensor:
        if self.context_range is not None:
            context = context.clamp(*self.context_range)
        return (context - self.context_mean) / self.context_scale

    def _context_units(self) -> tuple[Tensor, Tensor]:
        """Return mean and scale (p,) of the contexts that the function is made for."""
        return self.context_mean, self.context_scale

    # -- small things ----------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self.x_mean.dtype

    @property
    def device(self) -> torch.device:
        """The weights' device."""
        return self.x_mean.device

    def on_processor(self) -> Self:
        """Return the function in the processor's memory: itself where it is there, else a copy."""
        return self if self.device.type == "cpu" else copy.deepcopy(self).cpu()

    def check_context(self, context: ArrayLike | None) -> Tensor:
        """Return the context as a checked tensor (*batch, p); an empty one (0,) where p = 0 and none is given."""
        if context is None:
            if self.context_dim > 0:
                raise ValueError(f"context: expected {self.context_dim} numbers for each x, got None")
            return torch.zeros(0, dtype=self.dtype, device=self.device)
        contexts = self._check_device(as_tensor(context, "context", dtype=self.dtype), "context")
        check_last_dim(contexts, self.context_dim, "context")
        # What was made in inference mode cannot be differentiated through outside of it: its copy can.
        return contexts.clone() if contexts.is_inference() and not torch.is_inference_mode_enabled() else contexts

    def _check_one_dtype(self, error: RuntimeError) -> None:
        """Raise TypeError from an error of dtypes where weights have another than the function, as layers may."""
        if not any(word in str(error) for word in ("dtype", "scalar type")):
            return
        for name, weight in self.named_parameters():
            if weight.dtype != self.dtype:
                raise TypeError(
                    f"{name}: expected {self.dtype} as the function, got {weight.dtype}; take model.to({self.dtype})"
                ) from error

    def _check_device(self, tensor: Tensor, name: str) -> Tensor:
        if tensor.device != self.device:
            raise ValueError(f"{name}: expected a tensor on {self.device} as the model, got one on {tensor.device}")
        return tensor


def _definer(kind: type[ConvexFunction], names: tuple[str, ...]) -> type:
    """Return the class that last overrode one of some methods, `ConvexFunction` where none did."""
    return next(one for one in kind.__mro__ if any(name in vars(one) for name in names))


@cache
def _levels(kind: type[ConvexFunction]) -> tuple[int, ...]:
    """Return how many classes below `ConvexFunction` form, values and expression were last overridden."""
    ancestors = kind.__mro__
    definers = (_definer(kind, names) for names in (FORM, VALUE, EXPRESSION))
    return tuple(ancestors.index(ConvexFunction) - ancestors.index(definer) for definer in definers)


def check_function(model: object, name: str = "model") -> None:
    """Raise TypeError unless `model` is a function of this library; of a network made elsewhere it names the way in."""
    if isinstance(model, ConvexFunction):
        if model.dtype not in DTYPES:
            kind = str(model.dtype).removeprefix("torch.")
            raise TypeError(f"{name}: expected weights in float32 or float64, got {kind}; take {name}.float()")
        return
    got = f"{name}: expected a soctk surrogate, got {type(model).__name__}"
    if isinstance(model, nn.Module):
        got += "; soctk.from_layers makes a surrogate of the weights of an input-convex network"
    raise TypeError(got)


class _FoldedForm(nn.Module):
    """A model whose forward pass is its form, for `functional_call`."""

    def __init__(self, model: ConvexFunction) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: Tensor) -> ConicForm:
        return self.model._folded_form(rows)
