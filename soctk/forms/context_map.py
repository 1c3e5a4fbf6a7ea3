"""Where the context enters: all coefficients of a conic form as functions of the context, stacked.

Of a model whose coefficients are made by the modules of `soctk.conditioning`, everything that depends on the context
theta is affine in it but for the weights and the nonlinear responses of b0 and v, whose arguments are. So

    r       = S theta + s                               one product
    units   = (tanh(r_units), r_squares^2)
    b0      = r_b0 + M_0'units
    v_i     = r_v,i + M_i'units + W_i'relu(r_ridges,i)
    d       = r_d + M_d units                           the offsets of all terms
    weights = (floors + softplus(r_weights + M_w units))[index]     the weights of all terms, non-negative

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

from soctk.checks import to_numpy
from soctk.conditioning import AffinePart, NonNegative, Offset, Perceptron, Ridges, Squares
from soctk.context_units import ContextUnits
from soctk.forms.conic_form import ConicForm
from soctk.forms.responses import Elementary, Responses, responses
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


TENSORS = Elementary(
    linear,
    softplus,
    torch.relu,
    lambda x: 2 * torch.sigmoid(2 * x) - 1,  # tanh, in less than half of its time
    lambda x, sizes: x.split(sizes, dim=-1),
    lambda parts: torch.cat(parts, dim=-1),
)


@dataclass(frozen=True, eq=False)
class ContextMap:
    """contexts (N, p) -> a conic form: b0, v, offsets and weights in one product, the rest shared.

    Attributes:
        dim: the decision dimension n.
        slope: S, (R, p): the rows of b0, v and d, then the arguments of the weights, of the ridges, of the units and of
            the squares.
        constant: s, (R,); -inf for a weight that no context moves, whose softplus is 0.
        sizes: how many rows are b0, v and d together, and how many are each of the others.
        floors: the part of the weights that no context moves.
        index: for each weight of the terms, one term's after the other's, its place among the weights.
        ridges: W, (n, count).
        mixing: M, of the units and then of the squares: (1, hidden) where b0 alone has a part in them, (1 + n, hidden)
            where v has, and a row for every offset and weight below where these have (`ContextUnits`).
        matrix: A of all terms, (K, n).
        shells: the terms.
        moves: whether a context moves v, and any weight; what none moves is there once for all contexts.
        gains: what the weights are multiplied by, (W,), non-negative; None for 1.
        tilt: what the ridges add to b0, (n count,), as v does where the origin of x is moved; None for 0.
    """

    dim: int
    slope: Tensor
    constant: Tensor
    sizes: list[int]
    floors: Tensor
    index: Tensor
    ridges: Tensor
    mixing: Tensor
    matrix: Tensor
    shells: list[Shell]
    moves: tuple[bool, bool]
    gains: Tensor | None = None
    tilt: Tensor | None = None

    @classmethod
    def of(cls, affine: AffinePart, parts: Sequence[Part], units: ContextUnits | None = None) -> ContextMap:
        """Return affine part and parts stacked, differentiable in their weights.

        Args:
            affine: of b0 and v.
            parts: what the terms are made of.
            units: what their offsets and weights are affine in beside the context.

        Raises:
            TypeError: a module inside has hooks, or is of another kind: its numbers do not tell what it computes.
        """
        level, slope, inner, counts, ridges, mixing = _affine(affine)
        none, p = level[1].new_zeros(0), 0 if level[0] is None else level[0].shape[1]
        inside = None if units is None else _read(units, ContextUnits, "inner")[0]
        offsets = [_read(module, Offset, "slope", "constant") for part in parts for module in part.offsets]
        modules = {id(part.weights): part.weights for part in parts}
        weights = [_read(module, NonNegative, "slope", "constant", "floor") for module in modules.values()]
        floors = [floor for *_, floor in weights]
        curved = [_rows(p if inside is None else p + len(inside), *numbers) for numbers in (*offsets, *weights)]
        if inside is not None and curved:
            mixing = torch.nn.functional.pad(mixing, (0, 0, 0, 1 + affine.dim - len(mixing)))
            inner, mixing = _with_units(inner, mixing, inside, counts[1], curved)
            counts[1] += len(inside)
            curved = [(slope[:, :p], constant) for slope, constant in curved]
        rows = [*(_rows(p, *numbers) for numbers in (level, slope)), *curved, *inner]
        starts = dict(zip(modules, accumulate(map(len, floors), initial=0), strict=False))
        heights = [sum(len(matrix) for matrix in part.matrices) for part in parts]
        places = [starts[id(part.weights)] + place for part in parts for place in part.index]
        matrices = [matrix for part in parts for matrix in part.matrices]
        return cls(
            dim=affine.dim,
            slope=torch.cat([slope for slope, _ in rows]),
            constant=torch.cat([constant for _, constant in rows]),
            sizes=[1 + affine.dim + sum(heights), sum(map(len, floors)), *counts],
            floors=softplus(torch.cat([none, *floors])),
            index=torch.tensor(places, dtype=torch.int64, device=none.device),
            ridges=ridges,
            mixing=mixing,
            matrix=torch.cat(matrices) if matrices else none.reshape(0, affine.dim),
            shells=[Shell(p.kind, p.more, k, p.used, len(p.index)) for p, k in zip(parts, heights, strict=True)],
            moves=(affine.conditioned, any(slope is not None for slope, *_ in weights)),
        )

    def responses(self, context: Tensor) -> tuple[Tensor, ...]:
        """Return the rows of b0, v and d at contexts (N, p), but for the ridges of v, the weights and the ridges."""
        return responses(context, self._numbers(), self.sizes, TENSORS)

    def as_arrays(self) -> Responses:
        """Return what `soctk.forms.responses` computes responses of arrays from, without derivatives."""
        return Responses(*(None if part is None else to_numpy(part) for part in self._numbers()))

    def _numbers(self) -> Responses:
        return Responses(self.slope, self.constant, self.floors, self.mixing, self.gains, self.tilt)

    def form(self, context: Tensor) -> ConicForm:
        """Return the form at contexts (N, p), differentiable in the context and in whatever the map was made of."""
        rows, weights, ridges = self.responses(context)
        b0, v, d = rows.split([1, self.dim, len(self.matrix)], dim=-1)
        if self.ridges.numel() > 0:
            v = v + (ridges.unflatten(-1, self.ridges.shape) * self.ridges).sum(dim=-1)
        v_moves, weights_move = self.moves
        weights = weights.index_select(-1, self.index)
        return self._filled(self.matrix, b0, v if v_moves else v[:1], d, weights if weights_move else weights[:1])

    def template(self, factor: Tensor, shift: Tensor, scale: float) -> ConicForm:
        """Return what no context changes of the function scale * g(factor * x + shift): b0, v and d are 0 in g.

        And its weights are 1, so that they are `scale` here. `factor` and `shift` are (n,).
        """
        zero, one = self.constant.new_zeros(1, 1 + self.dim), self.constant.new_ones(1, len(self.index))
        offset = self.matrix @ shift
        return self._filled(factor * self.matrix, zero[:, :1], zero[:, 1:], offset.unsqueeze(0), scale * one)

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


def _affine(affine: AffinePart) -> tuple[list[Any], list[Any], list[tuple[Tensor, Tensor]], list[int], Tensor, Tensor]:
    """Return E and e of b0 and of v and of the arguments of ridges, units and squares, how many, W and M."""
    _read(affine, AffinePart)
    level = _read(affine.level, Offset, "slope", "constant")
    slope = [None, level[1].new_zeros(affine.dim)]
    if affine.slope is not None:
        slope = _read(affine.slope, Offset, "slope", "constant")
    inner, outer = [], [level[1].new_zeros(rows, 0) for rows in (affine.dim, 1, affine.dim, 1)]
    modules = (
        (affine.slope_ridges, Ridges),
        (affine.level_network, Perceptron),
        (affine.slope_network, Perceptron),
        (affine.level_squares, Squares),
    )
    for k, (module, kind) in enumerate(modules):
        if module is not None:
            arguments, outer[k] = _read(module, kind, "inner", "outer")
            inner.append((arguments[:, :-1], arguments[:, -1]))
    ridges, of_level, of_slope, squares = outer
    sizes = [ridges.numel(), of_level.shape[1] + of_slope.shape[1], squares.shape[1]]
    mixing = torch.cat([of_level, squares.new_zeros(1, of_slope.shape[1]), squares], dim=1)
    if of_slope.shape[1] > 0:
        before, after = of_level.shape[1], squares.shape[1]
        mixing = torch.cat([mixing, torch.nn.functional.pad(of_slope, (before, after))])
    return level, slope, inner, sizes, ridges, mixing


def _with_units(
    inner: list[tuple[Tensor, Tensor]],
    mixing: Tensor,
    weights: Tensor,
    before: int,
    curved: list[tuple[Tensor, Tensor]],
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Return the arguments and the mixing with `ContextUnits` behind the units that there are, before the squares.

    Args:
        inner: arguments of ridges, units and squares.
        mixing: (1 + n, hidden).
        weights: [F, f] of the units.
        before: how many units there are before.
        curved: E and e of the offsets and the weights, E in the context and the units.
    """
    count, after = len(weights), mixing.shape[1] - before
    place = len(inner) - int(after > 0)
    inner = [*inner[:place], (weights[:, :-1], weights[:, -1]), *inner[place:]]
    rows = torch.cat([slope[:, -count:] for slope, _ in curved])
    left, right = mixing.split([before, after], dim=1)
    top = torch.cat([left, left.new_zeros(len(mixing), count), right], dim=1)
    return inner, torch.cat([top, torch.nn.functional.pad(rows, (before, after))])


def _read(module: nn.Module, kind: type[nn.Module], *names: str) -> list[Any]:
    """Return weights of a module that computes what they say."""
    inside = module.__dict__
    if getattr(type(module), "forward", None) is not kind.forward or "forward" in inside:
        raise TypeError(f"{kind.__name__}: expected one inside of the model, got {type(module).__name__}")
    if inside["_forward_hooks"] or inside["_forward_pre_hooks"]:
        raise TypeError(
            f"{kind.__name__}: expected no hooks, got some: a model's coefficients are read from its weights together, "
            "without calling the modules inside; register hooks on the model"
        )
    weights = inside["_parameters"]  # an attribute of a module takes as long as a small product
    return [weights[name] if name in weights else getattr(module, name) for name in names]


def _rows(p: int, slope: Tensor | None, constant: Tensor | None, floor: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return E and e of E theta + e, for a weight of the argument of its softplus, where they may be left out."""
    if constant is None and floor is not None:  # a weight that no context moves
        constant = torch.full_like(floor, -math.inf)
    assert constant is not None
    return constant.new_zeros(len(constant), p) if slope is None else slope, constant
