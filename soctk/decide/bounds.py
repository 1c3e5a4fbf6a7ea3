"""Lower bounds of a minimum that any point gives."""

from __future__ import annotations

import torch
from torch import Tensor

from soctk.checks import ArrayLike
from soctk.forms.conic_form import ConicForm, Dual
from soctk.function import ConvexFunction
from soctk.sets import FeasibleSet, SetAt

SMOOTHING_WIDTHS = tuple(10.0**-k for k in range(2, 11))


def best_bound(form: ConicForm, feasible_set: FeasibleSet | SetAt, x: Tensor) -> Tensor:
    """Return the best lower bound that duals at x give, internal shapes: (N or 1, M, n) -> (N, M)."""
    bound = form.bound(form.subgradients(x), feasible_set)
    for width in SMOOTHING_WIDTHS:
        mu = torch.full((1, 1), width, dtype=x.dtype, device=x.device)
        dual = Dual(tuple(term.smooth(term.inner(x), mu).dual for term in form.terms))
        bound = torch.maximum(bound, form.bound(dual, feasible_set))
    return bound


def gradient_at(model: ConvexFunction, x: Tensor, context: ArrayLike | None) -> Tensor:
    """Return a subgradient by autograd at points, (*batch, n)."""
    with torch.enable_grad():
        points = x.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(points, context).sum(), points)
    return gradient


def frank_wolfe_gap(model: ConvexFunction, feasible_set: FeasibleSet, x: Tensor, context: ArrayLike | None) -> Tensor:
    """Return max over y in the set of g'(x - y), g a subgradient by autograd: (*batch, n) -> (*batch).

    f(y) >= f(x) + g'(y - x) for all y, so this bounds f(x) - min f (Jaggi 2013, for any subgradient).
    """
    gradient = gradient_at(model, x, context)
    return ((gradient * x).sum(dim=-1) - feasible_set.linear_minimum(gradient)).clamp(min=0)
