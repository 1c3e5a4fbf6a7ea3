"""A decision as a differentiable layer: x_hat(context, weights) = argmin of f over the set.

At the solution of the smoothed barrier problem (soctk.decide.newton)

    g(x, w) - s_lo + s_hi + nu 1 = 0,    s_lo (x - lo) = mu,    s_hi (hi - x) = mu,    sum(x) = total,

g the gradient of f and w everything it depends on. By the implicit function theorem dx = -K dg, dg the change of g at
fixed x and K the inverse of H + diag(s / room) on {sum(dx) = 0}. H is the Hessian with lagged duals that the Newton
steps use, and dg comes from autograd through the same lagged duals (`Term.implicit_dual`): at a kink the smoothed
curvature is a quotient of two numbers that are nearly zero, the dual variable is not.

The optimal value needs no such thing: by the envelope theorem its gradient is that of f at the fixed x_hat.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from soctk.checks import ArrayLike, check_count, check_positive
from soctk.decide.batched import Bounds, factor_hessian, solve_factored
from soctk.decide.decision import relative_gap
from soctk.decide.newton import DEFAULT_ITERATIONS, solve_newton
from soctk.decide.reduction import newton_refuses, reduced
from soctk.decide.result import Final, Result
from soctk.forms.conic_form import ConicForm, Dual
from soctk.function import ConvexFunction
from soctk.sets import FeasibleSet, Presolved


class DecisionLayer(nn.Module):
    """context -> argmin over the set of f(., context), differentiable in the context and in the model's weights.

    Solved in float64 whatever the model's dtype. A decision whose certified gap exceeds `max_gap` is returned all the
    same, but not differentiated. Second derivatives (create_graph=True) are refused.

    Args:
        model: a surrogate with a conic form.
        feasible_set: a set of the model's dimension.
        tol: relative gap to solve to. Derivatives at kinks need far more than decisions do.
        max_gap: the largest relative gap at which a derivative is still given.
        max_iter: Newton steps.

    Raises:
        ValueError: dimensions that differ, a non-positive tolerance.
        NotImplementedError: a model without a conic form, or a set with rows other than bounds and one sum.
    """

    def __init__(
        self,
        model: ConvexFunction,
        feasible_set: FeasibleSet,
        *,
        tol: float = 1e-9,
        max_gap: float = 1e-6,
        max_iter: int = DEFAULT_ITERATIONS,
    ) -> None:
        super().__init__()
        if feasible_set.dim != model.dim:
            raise ValueError(f"feasible_set: expected dimension {model.dim} as the model's, got {feasible_set.dim}")
        if not model.has_conic_form:
            raise NotImplementedError(f"{type(model).__name__} has no conic form")
        refused = newton_refuses(feasible_set)
        if refused is not None:
            raise NotImplementedError(f"feasible_set: {refused}: decisions over it have no derivatives yet")
        check_positive(tol, "tol")
        check_positive(max_gap, "max_gap")
        check_count(max_iter, "max_iter")
        self.model, self.feasible_set = model, feasible_set
        self.tol, self.max_gap, self.max_iter = tol, max_gap, max_iter

    def forward(self, context: ArrayLike | None = None) -> Tensor:
        """Return the decisions: (*batch, p) -> (*batch, n), in the higher of the context's and the weights' dtype.

        Raises:
            ValueError: a bad context, or weights that make f non-convex.
            RuntimeError: in the backward pass, where a decision with a non-zero incoming gradient has too large a gap.
        """
        form, presolved = self._problem(context)
        if presolved.single_point:
            # Part of the graph, with derivatives that are zero.
            x = presolved.point.to(form.linear).expand(form.size, -1) + 0.0 * form.constant
        else:
            inner, feasible_set = reduced(form, presolved), presolved.reduced
            result = self._solve(inner, feasible_set)
            x = result.x
            if result.final is not None:
                gap = relative_gap(result.value, result.lower_bound)
                bounds = Bounds.of(feasible_set, x)
                gradient, hessian = _linearized(inner, bounds, result.final)
                x = _Implicit.apply(gradient, x, hessian, bounds, gap, self.max_gap)
            x = presolved.expand(x)  # type: ignore[arg-type]
        return x.reshape(*form.batch_shape, self.model.dim).to(self._dtype(context))

    def optimal_value(self, context: ArrayLike | None = None) -> Tensor:
        """Return min f(., context) over the set, (*batch), differentiable once by the envelope theorem."""
        form, presolved = self._problem(context)
        if presolved.single_point:
            value = form.evaluate(presolved.point.to(form.linear).reshape(1, 1, -1)).squeeze(-1)
        else:
            inner = reduced(form, presolved)
            result = self._solve(inner, presolved.reduced)
            value = result.value
            if result.final is not None:
                held = _envelope(inner, result.final)
                value = held + (value - held).detach()
        return value.reshape(form.batch_shape).to(self._dtype(context))

    def _problem(self, context: ArrayLike | None) -> tuple[ConicForm, Presolved]:
        form = self.model.form_at(self.model.check_context(context)).to(torch.float64)
        form.detach().check()
        return form, self.feasible_set.presolve()

    def _dtype(self, context: ArrayLike | None) -> torch.dtype:
        return torch.promote_types(self.model.check_context(context).dtype, self.model.dtype)

    def _solve(self, form: ConicForm, feasible_set: FeasibleSet) -> Result:
        keep = torch.is_grad_enabled() and form.requires_grad
        with torch.no_grad():
            return solve_newton(form.detach(), feasible_set, tol=self.tol, max_iter=self.max_iter, keep_final=keep)


def _linearized(form: ConicForm, bounds: Bounds, final: Final) -> tuple[Tensor, Tensor]:
    """Return g as a function of what the form depends on, (N, n), and H + diag(s / room), at the last iterate."""
    fixed, points = form.detach(), final.x.unsqueeze(1)
    duals, hessian = [], torch.diag_embed(_bound_curvature(bounds, final))
    for term, plain, lag in zip(form.terms, fixed.terms, final.lags, strict=True):
        smoothed = plain.smooth(plain.inner(points), final.mu)
        duals.append(term.implicit_dual(term.inner(points), smoothed, lag))
        plain.add_hessian(hessian, smoothed, lag)
    return form.slope(Dual(tuple(duals))).squeeze(1).expand_as(final.x), hessian


def _envelope(form: ConicForm, final: Final) -> Tensor:
    """Return f at the last iterate with its duals held, (N,), as a function of what the form depends on."""
    fixed, points = form.detach(), final.x.unsqueeze(1)
    value = form.constant + (points * form.linear).sum(dim=-1)
    for term, plain, lag in zip(form.terms, fixed.terms, final.lags, strict=True):
        value = value + term.envelope(term.inner(points), plain.smooth(plain.inner(points), final.mu), lag)
    return value.squeeze(-1)


def _bound_curvature(bounds: Bounds, final: Final) -> Tensor:
    curvature = final.s_lo / (final.x - bounds.lo)
    return curvature if final.s_hi is None else curvature + final.s_hi / (bounds.hi - final.x)


class _Implicit(torch.autograd.Function):
    """x_hat as a function of g: forward gives x_hat, backward -K."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, x: Tensor, hessian: Tensor, bounds: Bounds, gap: Tensor, max_gap: float
    ) -> Tensor:
        ctx.save_for_backward(hessian, gap)
        ctx.bounds, ctx.max_gap = bounds, max_gap
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: second derivatives of a decision are not available")
        hessian, gap = ctx.saved_tensors
        (incoming,) = outer
        refused = ~(gap <= ctx.max_gap) & (incoming != 0).any(dim=-1)
        if bool(refused.any()):
            raise RuntimeError(
                f"{int(refused.sum())} of {refused.numel()} decisions have a relative gap above max_gap = "
                f"{ctx.max_gap:g} (the largest is {float(gap[refused].max()):.1e}): their derivatives would mean "
                "nothing. Raise max_iter or max_gap, or give these decisions no weight in the loss"
            )
        return -solve_factored(factor_hessian(hessian), incoming, ctx.bounds), None, None, None, None, None
