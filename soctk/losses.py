"""Losses for learning a convex surrogate: from observed values, and from decisions.

value_loss            mean (f(x, theta) - y)^2
suboptimality_loss    mean f(x*, theta) - min f(., theta), how far a known optimum is from being the model's
regret_loss           mean F(x_hat(theta), theta) of the true objective F at the model's decision
spo_plus_loss         of linear true objectives c'x: a bound on their regret without a derivative of the decision

SPO+ (Elmachtoub and Grigas 2022) beyond linear predictions. x_hat minimises f over S, x* minimises c'x. As
f(x_hat) <= f(x*),

    c'x_hat - c'x*  <=  c'x_hat - 2 f(x_hat) + 2 f(x*) - c'x*  <=  max over S of (c'x - 2 f(x)) + 2 f(x*) - c'x*
                    =   2 [ g(x*) - min over S of g ],      g = f - c'x / 2:

twice the suboptimality of x* for the tilted g. It is theirs where f is linear, and the maximum can be had for any
convex f, as g is convex. For a true F that is not linear, f - F / 2 need not be, and nothing finds the maximum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor
from soctk.decide.layer import DecisionLayer
from soctk.learn.data import ValueData
from soctk.surrogate import ConvexSurrogate
from soctk.tilted import Tilted


def residual_loss(residual: Tensor, level_weight: float = 1.0) -> Tensor:
    """Return the mean square of residuals (N, M), the instances' means weighted by `level_weight`.

    The variation of f within an instance decides; its level does not. With weight 1 this is the plain mean
    squared error: mean(r^2) = mean over instances of (variance + mean^2).
    """
    if level_weight == 1.0 or residual.shape[1] == 1:
        return residual.square().mean()
    level = residual.mean(dim=1)
    return (residual - level.unsqueeze(1)).square().mean() + level_weight * level.square().mean()


def value_loss(model: ConvexSurrogate, data: ValueData, level_weight: float = 1.0) -> Tensor:
    """Return the mean squared error of the model's values, in the user's units squared; differentiable."""
    residual = model.evaluate(data.x, data.context) - data.value
    return residual_loss(residual, level_weight)


def suboptimality_loss(
    layer: DecisionLayer, optima: Tensor, context: ArrayLike | None = None, **sides: ArrayLike | None
) -> Tensor:
    """Return the mean of f(x*, context) - min f(., context): the Fenchel-Young loss of known optima.

    Non-negative, zero where every x* is optimal for the model, and its gradient needs no derivative of the decision
    (Blondel, Martins and Niculae 2020; inverse optimisation's suboptimality loss). With `layer.skip_undefined` an
    instance whose derivative is not proved has none at all.

    Args:
        layer: of the model that learns, over the set that x* are optimal in.
        optima: (*batch, n), feasible.
        context: (*batch, p), or None where p = 0.
        **sides: right-hand sides of their own for each context, as the layer takes them.
    """
    at_optima = layer.model(optima, context)
    least, proved = layer.proved_value(context, **sides)
    if layer.skip_undefined:  # nor has f(x*) one then: alone it leads nowhere but down
        at_optima = torch.where(proved, at_optima, at_optima.detach())
    return (at_optima - least).mean()


def regret_loss(
    layer: DecisionLayer,
    objective: Callable[[Tensor, ArrayLike | None], Tensor],
    context: ArrayLike | None = None,
    optimum: Tensor | None = None,
    **sides: ArrayLike | None,
) -> Tensor:
    """Return the mean regret of the model's decisions under a known objective, differentiated through the decisions.

    Args:
        layer: of the model that learns.
        objective: the true objective, (x (*batch, n), context) -> (*batch), differentiable in x.
        context: (*batch, p), or None where p = 0.
        optimum: (*batch), its smallest values, so that the loss is zero at best; left out it differs by a constant.
        **sides: right-hand sides of their own for each context, as the layer takes them.
    """
    value = objective(layer(context, **sides), context)
    return (value if optimum is None else value - optimum).mean()


def spo_plus_loss(
    layer: DecisionLayer, costs: ArrayLike, optima: Tensor, context: ArrayLike | None = None, **sides: ArrayLike | None
) -> Tensor:
    """Return the mean SPO+ loss of a model where the true objectives are linear: at least the mean regret.

    Args:
        layer: of the model that learns, over the set that x* are optimal in.
        costs: (*batch, n), the true objectives c'x.
        optima: (*batch, n), their optima.
        context: (*batch, p), or None where p = 0.
        **sides: right-hand sides of their own for each context, as the layer takes them.
    """
    model = layer.model
    tilted = layer.of(Tilted(model))
    c = as_tensor(costs, "costs", dtype=model.dtype)
    given = model.check_context(context).expand(*c.shape[:-1], model.context_dim)
    return 2.0 * suboptimality_loss(tilted, optima, torch.cat([given, -0.5 * c], dim=-1), **sides)


@torch.no_grad()
def relative_error(model: ConvexSurrogate, data: ValueData) -> float:
    """Return ||f_hat - f||_2 / ||f||_2 over all candidates of all instances (the paper's relative l2 error)."""
    residual = model.evaluate(data.x, data.context) - data.value
    return float(torch.linalg.vector_norm(residual) / torch.linalg.vector_norm(data.value).clamp(min=1e-300))
