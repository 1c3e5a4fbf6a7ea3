"""Where the context enters: all coefficients of a conic form as functions of the context, stacked.

Of a model whose coefficients are made by the modules of `soctk.conditioning`, everything that depends on the context
theta is affine in it but for the weights and the nonlinear responses of b0 and v, whose arguments are. So

    r       = S theta + s                               one product
    b0      = r_b0 + w'tanh(r_units)
    v_i     = r_v,i + W_i'relu(r_ridges,i)
    d       = r_d                                       the offsets of all terms
    weights = (floors + softplus(r_weights))[spread]    the weights of all terms, non-negative

The matrices A, the mixing matrices and the constants of the terms are shared by all contexts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from soctk.conditioning import AffinePart, NonNegative, Offset, Perceptron, Ridges
from soctk.forms.conic_form import ConicForm
from soctk.maps.linear import DenseMap
from soctk.terms import Term


@dataclass(frozen=True, eq=False)
class Part:
    """What a term phi(A x + d) is made of, d and the weights of phi functions of the context.

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
    offsets: Sequence[Offset]
    weights: NonNegative
    index: Sequence[int]
    used: int | None = None


class Shell(NamedTuple):
    """A term without its numbers: class, other arguments, rows of A, how many of them are used, number of weights."""

    kind: type[Term]
    more: dict[str, Any]
    rows: int
    used: int | None
    count: int


@dataclass(frozen=True, eq=False)
class ContextMap:
    """contexts (N, p) -> a conic form: b0, v, offsets and weights in one product, the rest shared.

    Attributes:
        dim: the decision dimension n.
        slope: S, (R, p): the rows of b0, v and d, then the arguments of the weights, of the ridges and of the units.
        constant: s, (R,); -inf for a weight that no context moves, whose softplus is 0.
        sizes: how many rows are b0, v and d together, and how many are each of the others.
        floors: the part of the weights that no context moves.
        spread: for each weight of the terms, one term's after the other's, its place among the weights.
        ridges: W, (n, count).
        units: w, (hidden,).
        matrix: A of all terms, (K, n).
        shells: the terms.
        moves: whether a context moves v, and any weight; what none moves is there once for all contexts.
    """

    dim: int
    slope: Tensor
    constant: Tensor
    sizes: list[int]
    floors: Tensor
    spread: Tensor
    ridges: Tensor
    units: Tensor
    matrix: Tensor
    shells: list[Shell]
    moves: tuple[bool, bool]

    @classmethod
    def of(cls, affine: AffinePart, parts: Sequence[Part]) -> ContextMap:
        """Return affine part and parts stacked, differentiable in their weights.

        Raises:
            TypeError: a module inside has hooks, or is of another kind: its numbers do not tell what it computes.
        """
        level = _plain(_plain(affine, AffinePart).level, Offset)
        none = level.constant.new_zeros(0)
        weights = {id(part.weights): _plain(part.weights, NonNegative) for part in parts}
        offsets = [_rows(_plain(offset, Offset), level) for part in parts for offset in part.offsets]
        blocks = [_rows(level, level), _rows(_plain(affine.slope, Offset), level, affine.dim), *offsets]
        blocks += [_rows(module, level) for module in weights.values()]
        inner = [(_plain(affine.slope_ridges, Ridges), affine.dim), (_plain(affine.level_network, Perceptron), 1)]
        blocks += [(module.inner[:, :-1], module.inner[:, -1]) for module, _ in inner if module is not None]
        ridges, units = [none.reshape(n, 0) if module is None else module.outer for module, n in inner]
        floors = [module.floor for module in weights.values()]
        starts = dict(zip(weights, accumulate(map(len, floors), initial=0), strict=False))
        places = [starts[id(part.weights)] + place for part in parts for place in part.index]
        heights = [sum(len(matrix) for matrix in part.matrices) for part in parts]
        matrices = [matrix for part in parts for matrix in part.matrices]
        return cls(
            dim=affine.dim,
            slope=torch.cat([slope for slope, _ in blocks]),
            constant=torch.cat([constant for _, constant in blocks]),
            sizes=[1 + affine.dim + sum(heights), sum(map(len, floors)), ridges.numel(), units.numel()],
            floors=softplus(torch.cat([none, *floors])),
            spread=torch.tensor(places, dtype=torch.int64, device=none.device),
            ridges=ridges,
            units=units[0],
            matrix=torch.cat([none.new_zeros(0, affine.dim), *matrices]),
            shells=[Shell(p.kind, p.more, k, p.used, len(p.index)) for p, k in zip(parts, heights, strict=True)],
            moves=(affine.conditioned, any(module.slope is not None for module in weights.values())),
        )

    def responses(self, context: Tensor) -> tuple[Tensor, ...]:
        """Return the rows of b0, v and d at contexts (N, p), the weights, and the ridges and units themselves."""
        rows, weights, ridges, units = linear(context, self.slope, self.constant).split(self.sizes, dim=-1)
        return rows, self.floors + softplus(weights), torch.relu(ridges), torch.tanh(units)

    def form(self, context: Tensor) -> ConicForm:
        """Return the form at contexts (N, p), differentiable in the context and in whatever the map was made of."""
        rows, weights, ridges, units = self.responses(context)
        b0, v, d = rows.split([1, self.dim, len(self.matrix)], dim=-1)
        if self.units.numel() > 0:
            b0 = b0 + linear(units, self.units.unsqueeze(0))
        if self.ridges.numel() > 0:
            v = v + (ridges.unflatten(-1, self.ridges.shape) * self.ridges).sum(dim=-1)
        v_moves, weights_move = self.moves
        weights = weights.index_select(-1, self.spread)
        return self._filled(self.matrix, b0, v if v_moves else v[:1], d, weights if weights_move else weights[:1])

    def template(self, factor: float, moved: float, scale: float) -> ConicForm:
        """Return what no context changes of the function scale * g(factor * x + moved): b0, v and d are 0 in g.

        And its weights are 1, so that they are `scale` here.
        """
        zero, one = self.constant.new_zeros(1, 1 + self.dim), self.constant.new_ones(1, len(self.spread))
        shift = moved * self.matrix.sum(dim=-1)
        return self._filled(factor * self.matrix, zero[:, :1], zero[:, 1:], shift.unsqueeze(0), scale * one)

    def _filled(self, matrix: Tensor, b0: Tensor, v: Tensor, d: Tensor, weights: Tensor) -> ConicForm:
        heights = [shell.rows for shell in self.shells]
        parts = zip(
            self.shells,
            matrix.unsqueeze(0).split(heights, dim=1),
            d.unsqueeze(1).split(heights, dim=-1),
            weights.unsqueeze(1).split([shell.count for shell in self.shells], dim=-1),
            strict=True,
        )
        terms = tuple(shell.kind(DenseMap(a, shell.used), *numbers, **shell.more) for shell, a, *numbers in parts)
        return ConicForm(b0, v.unsqueeze(1), terms, (b0.shape[0],))


def _plain(module: Any, kind: type[nn.Module]) -> Any:
    """Return a module that computes what its numbers say, or None as it is."""
    if module is None:
        return None
    if getattr(type(module), "forward", None) is not kind.forward or "forward" in module.__dict__:
        raise TypeError(f"{kind.__name__}: expected one inside of the model, got {type(module).__name__}")
    if module._forward_hooks or module._forward_pre_hooks:
        raise TypeError(
            f"{kind.__name__}: expected no hooks, got some: a model's coefficients are read from its weights together, "
            "without calling the modules inside; register hooks on the model"
        )
    return module


def _rows(module: Offset | NonNegative | None, like: Offset, size: int = 0) -> tuple[Tensor, Tensor]:
    """Return E and e of E theta + e, an `Offset` or the argument of a `NonNegative`'s softplus; zeros for None."""
    slope, constant = (None, like.constant.new_zeros(size)) if module is None else (module.slope, module.constant)
    if constant is None and isinstance(module, NonNegative):  # a weight that no context moves
        constant = torch.full_like(module.floor, -math.inf)
    if slope is None:
        slope = constant.new_zeros(len(constant), 0 if like.slope is None else like.slope.shape[1])
    return slope, constant
