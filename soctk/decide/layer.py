"""A decision as a differentiable layer: x_hat(context, weights) = argmin of f over the set.

Its derivatives are those of the equations that hold at a solution (soctk.decide.implicit). The optimal value needs no
such thing: by the envelope theorem its gradient is that of f at the fixed x_hat.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from soctk.checks import ArrayLike, check_count, check_positive
from soctk.decide.batched import Bounds
from soctk.decide.implicit import differentiable
from soctk.decide.newton import DEFAULT_ITERATIONS, solve_newton
from soctk.decide.reduction import newton_refuses, reduced
from soctk.decide.result import Final, Result
from soctk.forms.conic_form import ConicForm
from soctk.function import ConvexFunction
from soctk.sets import FeasibleSet, Presolved


class DecisionLayer(nn.Module):
    """context -> argmin over the set of f(., context), differentiable in the context and in the model's weights.

    Solved in float64 whatever the model's dtype. Decisions whose certified gap exceeds `max_gap`, or that jump or turn
    with the smallest change of what they depend on (of a ReLU model one in three, of a model with curvature none), are
    returned all the same, but not differentiated. Second derivatives (create_graph=True) are refused.

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
            RuntimeError: in the backward pass, where a decision with a non-zero incoming gradient has too large a gap
                or no derivative; it names the instances.
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
                x = differentiable(inner, Bounds.of(feasible_set, x), result, self.max_gap)
            x = presolved.expand(x)
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
        form = self.model.form_at(self.model.check_context(context))
        form.detach().check()
        return form, self.feasible_set.presolve()

    def _dtype(self, context: ArrayLike | None) -> torch.dtype:
        return torch.promote_types(self.model.check_context(context).dtype, self.model.dtype)

    def _solve(self, form: ConicForm, feasible_set: FeasibleSet) -> Result:
        keep = torch.is_grad_enabled() and form.requires_grad
        with torch.no_grad():
            return solve_newton(form.detach(), feasible_set, tol=self.tol, max_iter=self.max_iter, keep_final=keep)


def _envelope(form: ConicForm, final: Final) -> Tensor:
    """Return f at the last iterate with its duals held, (N,), as a function of what the form depends on."""
    fixed, points = form.detach(), final.x.unsqueeze(1)
    value = form.constant + (points * form.linear).sum(dim=-1)
    for term, plain, lag in zip(form.terms, fixed.terms, final.lags, strict=True):
        value = value + term.envelope(term.inner(points), plain.smooth(plain.inner(points), final.mu), lag)
    return value.squeeze(-1)
