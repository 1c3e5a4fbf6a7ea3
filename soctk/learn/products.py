"""The derivatives of a model's values in its weights, as products of what varies with x and what varies with theta.

Of a model made of an affine part (`soctk.conditioning.AffinePart`) and parts (`soctk.forms.context_map.Part`),

    f = b0 + v'x + sum_t phi_t(u_t; w_t),   u_t = A_t x + D_t theta + d_t,   w_t = softplus(E_t theta + e_t) + ...,

with y_t = dphi_t/du_t a change of A_t moves f by y_t'(dA_t) x, one of D_t by y_t'(dD_t) theta, one of E_t by
(dphi_t/dw_t * sigmoid)'(dE_t) theta. So one pass back to u_t and w_t, with all values side by side, gives the
derivatives in all weights; those in what multiplies the context are products with theta, which all candidates of an
instance share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from soctk.conditioning import AffinePart, Derivative, NonNegative
from soctk.context_units import ContextUnits
from soctk.forms.context_map import Part
from soctk.maps.linear import DenseMap


@torch.no_grad()
def derivatives(
    affine: AffinePart,
    parts: Callable[[], Sequence[Part]],
    weights: Sequence[nn.Parameter],
    x: Tensor,
    context: Tensor,
    among: Callable[[Tensor], Tensor],
    units: ContextUnits | None = None,
) -> Tensor:
    """Return linear combinations of the values' derivatives in some of a model's weights.

    Args:
        affine: the model's affine part.
        parts: returns what its terms are made of.
        weights: those wanted, P numbers in all.
        x: (N, M, n), in the model's units.
        context: (N, p).
        among: combines the candidates of every instance, (N, M, any) -> (N, M', any), linear.
        units: what offsets and weights of the parts are affine in beside the context.

    Returns:
        (N, M', P), in the order of the weights.
    """
    sizes = [weight.numel() for weight in weights]
    places = dict(zip(map(id, weights), torch.tensor([0, *sizes]).cumsum(0).tolist(), strict=False))
    rows = among(torch.ones_like(x[..., :1])).shape[1]
    total = x.new_zeros(len(x), rows, sum(sizes))
    with torch.enable_grad():  # some tensors are made of weights
        made = parts()
    for weight, factor, features in _all(affine, made, weights, x, context, units):
        if id(weight) not in places:
            continue
        place, factor = total.narrow(-1, places[id(weight)], weight.numel()), among(factor)
        if features is None:
            place += factor
        else:
            place.unflatten(-1, (factor.shape[-1], -1)).addcmul_(factor.unsqueeze(-1), features[:, None, None])
    return total


def _all(
    affine: AffinePart,
    parts: Sequence[Part],
    weights: Sequence[nn.Parameter],
    x: Tensor,
    context: Tensor,
    units: ContextUnits | None,
) -> Iterator[Derivative]:
    wanted = {id(weight) for weight in weights}
    if any(id(weight) in wanted for weight in affine.parameters()):
        yield from affine.derivatives(context, x)
    theta, context = context, context if units is None else units(context)
    bends = units is not None and id(units.inner) in wanted
    in_context = torch.zeros_like(x[..., :1])
    by_weights: dict[int, tuple[NonNegative, Tensor]] = {}  # several parts may share theirs
    for part in parts:
        y, in_weights, in_more = _term_derivatives(part, x, context)
        before = by_weights.get(id(part.weights), (part.weights, x.new_zeros(*x.shape[:2], part.weights.size)))[1]
        place = torch.tensor(part.index, device=x.device)
        by_weights[id(part.weights)] = part.weights, before.index_add(-1, place, in_weights)
        for offset, slope in zip(part.offsets, y.split([each.size for each in part.offsets], dim=-1), strict=True):
            yield from offset.derivatives(context, slope)
            in_context = in_context + offset.in_context(context, slope) if bends else in_context
        for matrix, slope in zip(part.matrices, y.split([len(each) for each in part.matrices], dim=-1), strict=True):
            yield from _through(matrix, slope.unsqueeze(-1) * x.unsqueeze(-2), weights)
        for tensor, slope in in_more:
            yield from _through(tensor, slope, weights)
    for module, slope in by_weights.values():
        yield from module.derivatives(context, slope)
        in_context = in_context + module.in_context(context, slope) if bends else in_context
    if units is not None and bends:
        yield from units.derivatives(theta, in_context)


def _term_derivatives(part: Part, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """Return the derivatives of a term in u, (N, M, K), in its weights, (N, M, W), and in its other tensors."""
    size, count = x.shape[:2], x.shape[0] * x.shape[1]
    matrix = torch.cat([*part.matrices])
    d = torch.cat([offset(context) for offset in part.offsets], dim=-1)
    u = (x @ matrix.mT + d).reshape(count, 1, -1).requires_grad_()
    weights = part.weights(context)[..., list(part.index)].expand(*size, -1).reshape(count, 1, -1).requires_grad_()
    # Every value has its own u, weights and other tensors, so that the sum's gradients are those of single values.
    more, pairs = _apart(part.more, count)
    with torch.enable_grad():
        value = part.kind(DenseMap(matrix.unsqueeze(0), part.used), d, weights, **more).value(u).sum()
    slopes = torch.autograd.grad(value, [u, weights, *(apart for _, apart in pairs)])
    y, in_weights, *rest = (slope.reshape(*size, *slope.shape[1:]) for slope in slopes)
    return y[:, :, 0], in_weights[:, :, 0], [(tensor, slope) for (tensor, _), slope in zip(pairs, rest, strict=True)]


def _apart(more: dict[str, Any], count: int) -> tuple[dict[str, Any], list[tuple[Tensor, Tensor]]]:
    """Return the arguments with a copy for each of `count` values of what weights move, and these pairs."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def copied(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(copied(each) for each in value)
        if not (isinstance(value, Tensor) and value.requires_grad):
            return value
        apart = value.detach().expand(count, *value.shape[1:]).clone().requires_grad_()
        pairs.append((value, apart))
        return apart

    return {name: copied(value) for name, value in more.items()}, pairs


def _through(tensor: Tensor, slope: Tensor, weights: Sequence[nn.Parameter]) -> Iterator[Derivative]:
    """Yield derivatives in the weights that a tensor is made of, from those in the tensor, (N, M, *its shape)."""
    rows = slope.shape[:2]
    if tensor.is_leaf:
        if isinstance(tensor, nn.Parameter):
            yield Derivative(tensor, slope.flatten(start_dim=2))
        return
    if not tensor.requires_grad:
        return
    flat = slope.reshape(-1, *tensor.shape)
    found = torch.autograd.grad(tensor, weights, flat, is_grads_batched=True, retain_graph=True, allow_unused=True)
    for weight, columns in zip(weights, found, strict=True):
        if columns is not None:
            yield Derivative(weight, columns.reshape(*rows, -1))
