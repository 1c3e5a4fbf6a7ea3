"""P1-ICKAN: the input-convex Kolmogorov-Arnold network of Deschatre and Warin (arXiv 2505.21208), piecewise linear.

A layer sends inputs u_i to nodes y_k = sum_i phi_ki(u_i). Every edge is convex and piecewise linear,

    phi_ki(u) = s_ki u + sum_p delta_kip relu(u - t_ip),   delta >= 0,   s free in the first layer, s >= 0 later,

on knots t_i1 < ... < t_i,P-1 that divide the input's interval [t_i0, t_iP] and belong to the input: all edges that
leave it share them. The increments are softplus(.) where the paper has max(., 0), whose gradient can die. Outside its
interval an edge goes on along its first or last segment: the function is convex on all of R^n. The first layer's
intervals are the training data's ranges; those of a later layer come from the values at the vertices (the sums over i
of the least and of the largest phi_ki(t_ip)), so no grid is ever refitted. The knots are trained ("adapted"): a softmax
gives each segment's share of its interval.

Every edge being a sum of ReLUs, the whole is exactly a ReLU network with non-negative mixing. Layer l's inputs are
u = A x + a + y+ with an affine part and a part y+ >= 0 that is non-negative in the units before it:

    z_l = [relu(A x + a + y+ - t), relu(y+)],

where the identity units relu(y+) = y+ carry what a later layer needs of an earlier one. So `_conic_form` returns one
`Network`, and the LP lift, duals, certificates and decisions follow.

With a context theta, every layer's inputs are shifted, u_i + (E theta)_i (its knots move), the last layer's
coefficients follow the context through `NonNegative`, and an affine part b0(theta) + v(theta)'x is added as in the
SOC-ICNN. For a fixed context it is the paper's network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from soctk import ConicForm, ConvexSurrogate
from soctk.checks import as_counts, check_count, seeded
from soctk.conditioning import AffineInContext, AffinePart, NonNegative, inverse_softplus
from soctk.context_units import ContextUnits
from soctk.maps.linear import DenseMap
from soctk.terms import Network
from soctk.traits import TrainingTraits

FIRST_RANGE = 2.5
"""The inputs' interval before training data have said more, in standardised units to either side."""
SPREAD = 0.5
"""Of the increments' initial weights, so that no two nodes start equal."""


class ICKAN(ConvexSurrogate):
    """A piecewise-linear input-convex Kolmogorov-Arnold network with trained knots.

    Args:
        dim: the decision dimension n.
        context_dim: the context dimension p; 0 for none.
        hidden: widths of the layers between x and the output, at least one: without any, f would be separable.
        segments: linear pieces P of every edge, at least 2.
        ridges: ridge functions of the context in each entry of v (`soctk.conditioning.AffinePart`).
        affine_hidden: hidden units of b0's response to the context.
        slope_hidden: hidden units of v's response to the context, shared by its entries.
        context_units: hidden units of the context that shifts and last coefficients follow beside the context itself.
        seed: of the initial weights.
        dtype: of the weights.

    Raises:
        ValueError: no hidden layer, a width below 1 or fewer than 2 segments.
    """

    range_low: Tensor
    range_high: Tensor

    def __init__(
        self,
        dim: int,
        context_dim: int = 0,
        *,
        hidden: Sequence[int] = (8,),
        segments: int = 6,
        ridges: int = 12,
        affine_hidden: int = 64,
        slope_hidden: int = 0,
        context_units: int = 0,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(dim, context_dim, dtype=dtype)
        self.hidden, self.segments, self.seed = as_counts(hidden, "hidden"), segments, seed
        self.ridges, self.affine_hidden, self.slope_hidden = ridges, affine_hidden, slope_hidden
        if not self.hidden:
            raise ValueError("hidden: expected at least one width, got none")
        check_count(segments, "segments", minimum=2)
        check_count(ridges, "ridges", minimum=0)
        check_count(affine_hidden, "affine_hidden", minimum=0)
        check_count(slope_hidden, "slope_hidden", minimum=0)
        self.register_buffer("range_low", torch.full((dim,), -FIRST_RANGE, dtype=dtype))
        self.register_buffer("range_high", torch.full((dim,), FIRST_RANGE, dtype=dtype))
        generator = seeded(seed)
        options: dict[str, Any] = {"generator": generator, "dtype": dtype}
        sizes: dict[str, int] = {"ridges": ridges, "hidden": affine_hidden, "slope_hidden": slope_hidden}
        self.affine = AffinePart(dim, context_dim, **sizes, **options)
        widths = [dim, *self.hidden]
        self.knots = nn.ModuleList(_Knots(width, segments, context_dim, dtype) for width in widths)
        self.edges = nn.ModuleList(
            _Edges(inputs, outputs, segments, first=level == 0, **options)
            for level, (inputs, outputs) in enumerate(pairwise(widths))
        )
        last = self.hidden[-1]
        self.read_slope = NonNegative(context_dim, last, value=1.0 / last, dtype=dtype)
        self.read_increments = NonNegative(context_dim, last * (segments - 1), value=1.0 / last / segments, dtype=dtype)
        self.units = ContextUnits(context_dim, dtype=dtype)
        self.units.resize(context_units, self, seed)

    @property
    def traits(self) -> TrainingTraits:
        """ReLU units throughout, so no Gauss-Newton steps; the first layer's intervals hold the data."""
        return TrainingTraits(affine=self.affine, gauss_newton=False, units=self.units, set_range=self.set_range)

    @torch.no_grad()
    def set_range(self, low: Tensor, high: Tensor) -> None:
        """Take the training data's range, (n,) each in standardised units, as the first layer's intervals.

        A coordinate that does not vary keeps an interval of positive length.
        """
        self.range_low.copy_(low)
        self.range_high.copy_(torch.where(high > low, high, low + 1.0))

    # -- the function ----------------------------------------------------------------------------------

    def intervals(self) -> list[tuple[Tensor, Tensor]]:
        """Return the interval [low, high] of every layer's inputs before they are shifted, layer by layer."""
        found = [(self.range_low, self.range_high)]
        for knots, edges in zip(self._knots, self._edges, strict=False):
            found.append(edges.range(knots.vertices(*found[-1])))
        return found

    def interior_knots(self) -> list[Tensor]:
        """Return t_1 < ... < t_P-1 of every layer's inputs, (inputs, P - 1) each."""
        return [
            knots.vertices(low, high)[:, 1:-1] for knots, (low, high) in zip(self._knots, self.intervals(), strict=True)
        ]

    def _value(self, x: Tensor, context: Tensor) -> Tensor:
        """Return g by evaluating the edges: its conic form would evaluate every node once for each of its kinks."""
        if x.dtype != self.dtype:  # of higher precision than the weights
            return super()._value(x, context)
        y = x
        kinks = x
        b0, v = self.affine(context)
        context = self.units(context)
        for level, (knots, t) in enumerate(zip(self._knots, self.interior_knots(), strict=True)):
            y = y + knots.shift(context)
            kinks = torch.relu(y.unsqueeze(-1) - t).flatten(start_dim=-2)
            if level < len(self.edges):
                slope, increments = self._edges[level].coefficients()
                y = y @ slope.mT + kinks @ increments.mT
        parts = ((x, v), (y, self.read_slope(context)), (kinks, self.read_increments(context)))
        return b0 + sum((part @ weights.mT).squeeze(-1) for part, weights in parts)

    def _conic_form(self, context: Tensor) -> ConicForm:
        each = self.segments - 1
        matrix = torch.eye(self.dim, dtype=self.dtype, device=self.device)  # A of u = A x + a + y+
        constant = matrix.new_zeros(1, 1, self.dim)
        carried: Tensor | None = None  # y+ as a function of the units before it
        rows, offsets, mixing = [], [], []
        b0, v = self.affine(context)
        batch, context = (context.shape[0],), self.units(context)
        for level, (knots, t) in enumerate(zip(self._knots, self.interior_knots(), strict=True)):
            constant = constant + knots.shift(context)
            rows.append(matrix.repeat_interleave(each, dim=0))
            offsets.append(constant.repeat_interleave(each, dim=-1) - t.flatten())
            if carried is not None:
                mixing.append(torch.cat([carried.repeat_interleave(each, dim=0), carried]).unsqueeze(0))
                rows.append(torch.zeros_like(matrix))
                offsets.append(constant.new_zeros(1, 1, matrix.shape[0]).expand_as(constant))
            if level < len(self.edges):
                slope, increments = self._edges[level].coefficients()
                carried = increments if carried is None else torch.cat([increments, slope], dim=-1)
                matrix, constant = slope @ matrix, constant @ slope.mT
        read = self.read_slope(context)
        network = Network(
            DenseMap(torch.cat(rows).unsqueeze(0)),
            torch.cat(offsets, dim=-1),
            torch.cat([self.read_increments(context), read], dim=-1),
            mixing=tuple(mixing),
            widths=(self.dim * each, *(width * self.segments for width in self.hidden)),
        )
        return ConicForm(b0 + (read * constant).sum(dim=-1), v + read @ matrix, (network,), batch)

    @property
    def _knots(self) -> list[_Knots]:
        return cast(list[_Knots], list(self.knots))

    @property
    def _edges(self) -> list[_Edges]:
        return cast(list[_Edges], list(self.edges))

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        affine = ("ridges", "affine_hidden", "slope_hidden")
        names = ("dim", "context_dim", "hidden", "segments", *affine, "context_units", "seed")
        return {name: getattr(self, name) for name in names}


class _Knots(AffineInContext):
    """The knots of a layer's inputs as shares of their intervals, and how a context shifts the inputs."""

    def __init__(self, inputs: int, segments: int, context_dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.lengths = nn.Parameter(torch.zeros(inputs, segments, dtype=dtype))
        self.slope = nn.Parameter(torch.zeros(inputs, context_dim, dtype=dtype)) if context_dim > 0 else None

    def vertices(self, low: Tensor, high: Tensor) -> Tensor:
        """Return t_0 < ... < t_P of every input, (inputs, P + 1)."""
        shares = torch.softmax(self.lengths, dim=-1).cumsum(dim=-1)
        inner = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * shares[:, :-1]
        return torch.cat([low.unsqueeze(-1), inner, high.unsqueeze(-1)], dim=-1)

    def shift(self, context: Tensor) -> Tensor:
        """Return what is added to the inputs: (N, p) -> (N, 1, inputs)."""
        if self.slope is None:
            return self.lengths.new_zeros(1, 1, self.lengths.shape[0])
        return (context @ self.slope.mT).unsqueeze(1)


class _Edges(nn.Module):
    """The first slopes and the increments of all edges of a layer."""

    def __init__(
        self, inputs: int, outputs: int, segments: int, *, first: bool, generator: torch.Generator, dtype: torch.dtype
    ) -> None:
        super().__init__()
        slope = torch.randn(outputs, inputs, generator=generator, dtype=dtype)
        noise = SPREAD * torch.randn(outputs, inputs, segments - 1, generator=generator, dtype=dtype)
        self.first = first
        self.slope = nn.Parameter(slope / math.sqrt(inputs) if first else inverse_softplus(1 / inputs) + SPREAD * slope)
        self.increments = nn.Parameter(inverse_softplus(1 / (inputs * segments)) + noise)

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return the slopes (outputs, inputs) and increments (outputs, inputs (P - 1))."""
        return self.slope if self.first else softplus(self.slope), softplus(self.increments).flatten(start_dim=1)

    def range(self, vertices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least and the largest value of every node over the box of its inputs' intervals.

        Args:
            vertices: t_0 < ... < t_P, (inputs, P + 1).
        """
        slope, increments = self.coefficients()
        above = torch.relu(vertices.unsqueeze(-1) - vertices[:, None, 1:-1])  # (inputs, P + 1, P - 1)
        values = slope.unsqueeze(-1) * vertices
        values = values + torch.einsum("kiq,ipq->kip", increments.unflatten(-1, above.shape[::2]), above)
        return values.amin(dim=-1).sum(dim=-1), values.amax(dim=-1).sum(dim=-1)
