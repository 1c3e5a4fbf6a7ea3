"""What the terms of a dense model are made of, and all of its coefficients as functions of the context in one product.

What depends on the context theta is affine in it, but for the non-negative weights and the nonlinear responses of b0
and v, whose arguments are. So

    b0, v, d of all terms, arguments of softplus, of the ridges and of the tanh units = S theta + s

takes one matrix and no more than four functions of numbers. For one point that is a small part of the work of asking
one module after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from soctk.conditioning import AffinePart, NonNegative
from soctk.forms.conic_form import ConicForm
from soctk.maps.linear import DenseMap
from soctk.terms import Term


@dataclass(frozen=True, eq=False)
class Part:
    """What a term is made of: phi(A x + d), d and the weights of phi functions of the context.

    Attributes:
        kind: the term's class.
        more: its other arguments.
        matrices: the blocks of A.
        offsets: the blocks of d.
        weights: non-negative numbers.
        index: for each weight of the term its place among them.
        used: rows of A after which there are only zeros; None for all.
    """

    kind: type[Term]
    more: dict[str, Any]
    matrices: Sequence[Tensor]
    offsets: Sequence[nn.Module]
    weights: NonNegative
    index: Sequence[int]
    used: int | None = None

    def map(self) -> DenseMap:
        """Return A."""
        matrix = self.matrices[0] if len(self.matrices) == 1 else torch.cat(list(self.matrices))
        return DenseMap(matrix.unsqueeze(0), self.used)

    def term(self, context: Tensor) -> Term:
        """Return the term at contexts (N, p)."""
        offset = torch.cat([offset(context) for offset in self.offsets], dim=-1)
        weights = self.weights(context)
        if self.index != range(weights.shape[-1]):
            weights = weights[..., list(self.index)]
        return self.kind(self.map(), offset, weights, **self.more)


@dataclass(frozen=True, eq=False)
class StackedPart:
    """A part without what depends on the context.

    Attributes:
        kind: the term's class.
        more: its other arguments.
        map: A.
        count: its weights, each of which moves on its own.
        spread: for each weight of the term its place among these; None where that is its own.
    """

    kind: type[Term]
    more: dict[str, Any]
    map: DenseMap
    count: int
    spread: Tensor | None

    @classmethod
    def of(cls, part: Part) -> StackedPart:
        """Return the part without offsets and weights."""
        own = _own(part)
        place = {index: k for k, index in enumerate(own)}
        places = torch.tensor([place[index] for index in part.index], device=part.weights.floor.device)
        return cls(part.kind, part.more, part.map(), len(own), None if len(own) == len(part.index) else places)

    def term(self, offset: Tensor, weights: Tensor) -> Term:
        """Return the term."""
        spread = weights if self.spread is None else weights.index_select(-1, self.spread)
        return self.kind(self.map, offset, spread, **self.more)


@dataclass(frozen=True, eq=False)
class Stacked:
    """A model at any context, for evaluation.

    Attributes:
        slope: S, (D, p): the rows of b0, v, the parts' offsets, the arguments of their weights, of the ridges and of
            the tanh units.
        constant: s, (D,); -inf for a weight that no context moves, whose softplus is 0.
        sizes: the number of rows of each of these; the weights of all parts count as one.
        floors: the part of the weights that no context moves.
        ridges: (n, count), the ridges' outer weights.
        units: (hidden,), the tanh units' outer weights.
        parts: in the terms' order.
    """

    slope: Tensor
    constant: Tensor
    sizes: list[int]
    floors: Tensor
    ridges: Tensor
    units: Tensor
    parts: list[StackedPart]

    @classmethod
    def of(cls, affine: AffinePart, parts: Sequence[Part]) -> Stacked:
        """Return affine part and parts stacked, as their tensors are now."""
        level = affine.level.constant
        p = 0 if affine.level.slope is None else affine.level.slope.shape[1]
        rows = [_rows(affine.level, p), level.new_zeros(affine.dim, p + 1)]
        if affine.slope is not None:
            rows[1] = _rows(affine.slope, p)
        rows += [torch.cat([_rows(offset, p) for offset in part.offsets]) for part in parts]
        own = [_own(part) for part in parts]
        weights = [_rows(part.weights, p)[index] for part, index in zip(parts, own, strict=True)]
        rows.append(torch.cat([level.new_zeros(0, p + 1), *weights]))
        ridges, units = affine.slope_ridges, affine.level_network
        none = level.new_zeros(0, p + 1)
        rows += [none if ridges is None else ridges.inner, none if units is None else units.inner]
        stacked = torch.cat(rows).detach()
        floors = [softplus(part.weights.floor)[index] for part, index in zip(parts, own, strict=True)]
        return cls(
            stacked[:, :-1].contiguous(),
            stacked[:, -1].contiguous(),
            [len(block) for block in rows],
            torch.cat([level.new_zeros(0), *floors]).detach(),
            level.new_zeros(affine.dim, 0) if ridges is None else ridges.outer.detach(),
            level.new_zeros(0) if units is None else units.outer[0].detach(),
            [StackedPart.of(part) for part in parts],
        )

    def form(self, context: Tensor) -> ConicForm:
        """Return the form at contexts (N, p)."""
        rows = linear(context, self.slope, self.constant).unsqueeze(1).split(self.sizes, dim=-1)
        b0, v, *offsets = rows[:-3]
        weights, ridges, units = rows[-3:]
        weights = (self.floors + softplus(weights)).split([part.count for part in self.parts], dim=-1)
        if self.ridges.numel() > 0:
            v = v + (torch.relu(ridges).unflatten(-1, self.ridges.shape) * self.ridges).sum(dim=-1)
        b0 = b0[:, 0]
        if self.units.numel() > 0:
            b0 = b0 + linear(torch.tanh(units[:, 0]), self.units.unsqueeze(0))
        terms = zip(self.parts, offsets, weights, strict=True)
        return ConicForm(b0, v, tuple(part.term(*rest) for part, *rest in terms), (context.shape[0],))


def _own(part: Part) -> list[int]:
    """Return the places of the weights that a part uses, each once."""
    return list(dict.fromkeys(part.index))


def _rows(module: Any, p: int) -> Tensor:
    """Return [E e] of E theta + e, an `Offset` or the argument of a `NonNegative`'s softplus, (size, p + 1)."""
    if module.constant is None:  # a weight that no context moves
        constant, slope = module.floor.new_full(module.floor.shape, -math.inf), None
    else:
        constant, slope = module.constant, module.slope
    slope = constant.new_zeros(constant.numel(), p) if slope is None else slope
    return torch.column_stack([slope, constant])
