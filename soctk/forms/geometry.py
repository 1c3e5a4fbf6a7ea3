"""The geometry of a conic form: curvature, steepness and conjugate, in closed form or by rigorous bounds.

f(x) = b0 + v'x + sum_j phi_j(A_j x + d_j). Internal shapes throughout: N functions, points (N or 1, M, n).
"""

from __future__ import annotations

import torch
from torch import Tensor

from soctk.forms.sum_of_terms import SumOfTerms
from soctk.sets import FeasibleSet
from soctk.terms import Quadratic


def hessian(form: SumOfTerms, x: Tensor) -> Tensor:
    """Return the Hessian at each point, NaN where f is not twice differentiable: (N or 1, M, n) -> (N, M, n, n).

    Away from its kinks a ReLU network has none, and a norm has (lambda / ||u||) A'(I - u u' / ||u||^2) A.
    """
    columns = []
    for index in range(x.shape[1]):
        point = x[:, index : index + 1]
        size = max(form.size, point.shape[0])
        total = point.new_zeros(size, form.dim, form.dim)
        nonsmooth = torch.zeros(size, dtype=torch.bool, device=x.device)
        for term in form.terms:
            u = term.inner(point)
            smoothed = term.smooth(u, point.new_zeros(1, 1))
            term.add_hessian(total, smoothed, term.initial_lag(smoothed))
            nonsmooth = nonsmooth | term.nonsmooth(u).reshape(-1)
        columns.append(total.masked_fill(nonsmooth.reshape(-1, 1, 1), torch.nan))
    return torch.stack(columns, dim=1)


def curvature_matrix(form: SumOfTerms) -> Tensor:
    """Return sum_h alpha_h B_h'B_h over the quadratic terms, (N, n, n)."""
    total = form.linear.new_zeros(form.size, form.dim, form.dim)
    for term in form.quadratics:
        term.map.add_gram(total, term.weights[:, 0])
    return total


def strong_convexity(form: SumOfTerms) -> Tensor:
    """Return the smallest eigenvalue of sum_h alpha_h B_h'B_h, less what rounding may have added, not below 0: (N,).

    f is strongly convex with this modulus; where norms are smoothed by constants or units are softplus, f can be more
    strongly convex on bounded sets.
    """
    found = torch.linalg.eigvalsh(curvature_matrix(form))
    rounding = 8 * form.dim * torch.finfo(found.dtype).eps * found[:, -1]
    return (found[:, 0] - rounding).clamp(min=0)


def lipschitz(form: SumOfTerms, feasible_set: FeasibleSet) -> Tensor:
    """Return a number that no subgradient of f on the set exceeds in Euclidean norm, (N,).

    Interval arithmetic over the smallest box around the set bounds u = A x + d, from it each term's subgradients y
    (`Term.slope_range`), and from them A'y coordinate by coordinate. A norm's part is lambda_g ||A_g||_F at most, which
    replaces its box where it is smaller.
    """
    if not isinstance(feasible_set, FeasibleSet):
        raise TypeError(f"feasible_set: expected one set, got {type(feasible_set).__name__}; take its base")
    lo, hi = feasible_set.hull(form.dtype, form.linear.device)
    middle, reach = (0.5 * (lo + hi)).reshape(1, 1, -1), (0.5 * (hi - lo)).reshape(1, 1, -1)
    low = high = form.linear.expand(form.size, 1, form.dim)
    rest = form.linear.new_zeros(form.size)
    for term in form.terms:
        size = term.map.apply(torch.abs)
        center, radius = term.inner(middle), size.forward(reach)
        y_low, y_high = term.slope_range(center - radius, center + radius)
        slope = term.map.adjoint(0.5 * (y_low + y_high))
        spread = size.adjoint(0.5 * (y_high - y_low))
        ball = term.slope_ball()
        if ball is None:
            low, high = low + slope - spread, high + slope + spread
        else:
            box = torch.linalg.vector_norm(torch.maximum((slope - spread).abs(), (slope + spread).abs()), dim=-1)
            rest = rest + torch.minimum(box[:, 0], ball)
    steepest = torch.maximum(low.abs(), high.abs())
    return torch.linalg.vector_norm(steepest, dim=-1)[:, 0] + rest


def conjugate(form: SumOfTerms, y: Tensor) -> Tensor:
    """Return f*(y) = sup_x y'x - f(x) of forms without other than quadratic terms: (N or 1, M, n) -> (N, M).

    With Q = sum alpha B'B, a = v + sum alpha B'e and constant k, f*(y) = (y - a)'Q^+(y - a) / 2 - k where y - a lies in
    the range of Q, and infinity elsewhere.

    Raises:
        NotImplementedError: f has other terms; its conjugate is then an infimal convolution, an optimisation problem.
    """
    others = [type(term).__name__ for term in form.terms if not isinstance(term, Quadratic)]
    if others:
        raise NotImplementedError(
            f"expected quadratic terms alone, got {', '.join(others)}: the conjugate has no closed form then; "
            "minimize f(x) - y'x over a set instead"
        )
    a, constant = form.linear, form.constant
    for term in form.quadratics:
        a = a + term.map.adjoint(term.weights * term.offset)
        constant = constant + 0.5 * (term.weights * term.offset.square()).sum(dim=-1)
    values, vectors = torch.linalg.eigh(curvature_matrix(form))
    parts = (y - a) @ vectors
    flat = values <= values[:, -1:].clamp(min=torch.finfo(values.dtype).tiny) * form.dim * torch.finfo(values.dtype).eps
    flat = flat.unsqueeze(1)
    inverse = torch.where(flat, 0.0, 1.0 / torch.where(flat, 1.0, values.unsqueeze(1)))
    rounding = (
        1e3 * torch.finfo(y.dtype).eps * (a.abs().amax(dim=-1, keepdim=True) + y.abs().amax(dim=-1, keepdim=True))
    )
    outside = (flat & (parts.abs() > rounding)).any(dim=-1)
    return torch.where(outside, torch.inf, 0.5 * (parts.square() * inverse).sum(dim=-1) - constant)
