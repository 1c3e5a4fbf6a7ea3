"""The convolutional and recurrent models' branches, sums over windows of a signal, and their affine part.

With w the window of the decision, its context's window and 1, all sums means over the P places:

    quadratic   1/P sum_places sum_c gate_c(place; theta) / 2 (k_c'w)^2
    conic       1/P sum_places sum_g lambda_g(place) sqrt(||K_g w||^2 + kappa_g^2)          (local groups)
                      sum_g lambda_g sqrt(1/P sum_places ||K_g w||^2 + kappa_g^2)           (whole-map norms)

Gates and weights are squares, so non-negative whatever is learned. A gate is affine in masks that the context holds:
additive context alone could not represent M * (H X - Y). Places near a border have gates and weights of their own.
Means, because kernels then mean the same on signals of any size.

A quadratic branch depends on the data through S = 1/P sum_places gate w w' alone, one matrix for each kind of gate:
`QuadraticWindows.features`. Source: paper, appendices "Extension to Convolutional / Recurrent SOC-ICNNs".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from soctk.maps.windows import Windows, convolution, whole_map
from soctk.terms import Norms, Quadratic

LARGEST_PIECE = 2**24
"""Numbers of windows worked on at a time: 128 MB in float64."""
FAINT = 0.03
"""The root of a gate or weight that is all but off; at 0 itself its derivative would vanish."""


@dataclass(frozen=True)
class Kinds:
    """Which places of a signal share gates and weights: all (kind 0) but those near an end, each of a kind of its own.

    Attributes:
        places: of the signal.
        before: first places of kinds of their own.
        after: last ones.
        varying: every place is of its own kind.
    """

    places: int
    before: int = 0
    after: int = 0
    varying: bool = False

    @property
    def count(self) -> int:
        """The number of kinds, the largest in use and those below it."""
        return self.places if self.varying else 1 + min(self.places, self.before + self.after)

    def index(self, device: torch.device) -> Tensor:
        """Return the kind of each place, (places,)."""
        return _kind_of_each(self, device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # kept for calls that are differentiated too
def _kind_of_each(kinds: Kinds, device: torch.device) -> Tensor:
    place = torch.arange(kinds.places, device=device)
    if kinds.varying:
        return place
    from_end = kinds.places - 1 - place
    found = torch.where(place < kinds.before, 1 + place, 0)
    return torch.where((from_end < kinds.after) & (found == 0), 1 + kinds.before + from_end, found)


class Kernels(nn.Module):
    """Kernels on the windows of a decision and of its context: u = K x-window + C context-window + b.

    Args:
        windows: of the decision.
        context: of the context, as many; None without one.
        channels: kernels.
        scale: of the initial kernels.
        generator: of random numbers.
        dtype: of the weights.
    """

    def __init__(
        self,
        windows: Windows,
        context: Windows | None,
        channels: int,
        *,
        scale: float,
        generator: torch.Generator,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.windows, self.context, self.channels = windows, context, channels

        def normal(length: int) -> nn.Parameter:
            noise = torch.randn(channels, length, generator=generator, dtype=dtype)
            return nn.Parameter(scale / math.sqrt(length) * noise)

        self.kernel = normal(windows.length)
        self.context_kernel = normal(context.length) if context is not None else None
        self.bias = nn.Parameter(torch.zeros(channels, dtype=dtype))

    @property
    def length(self) -> int:
        """Numbers in w: the decision's window, the context's and 1."""
        return self.windows.length + (self.context.length if self.context is not None else 0) + 1

    def stacked(self) -> Tensor:
        """Return the kernels on w, (channels, length)."""
        context = [] if self.context_kernel is None else [self.context_kernel]
        return torch.cat([self.kernel, *context, self.bias.unsqueeze(-1)], dim=-1)

    @torch.no_grad()
    def place(self, kernels: Tensor) -> None:
        """Set the kernels on w, (channels, length)."""
        self.kernel.copy_(kernels[:, : self.windows.length])
        if self.context_kernel is not None:
            self.context_kernel.copy_(kernels[:, self.windows.length : -1])
        self.bias.copy_(kernels[:, -1])

    def offset(self, context: Tensor) -> Tensor:
        """Return what does not depend on the decision, (N, p) -> (N or 1, 1, count, channels)."""
        if self.context is None or self.context_kernel is None:
            return self.bias.expand(1, 1, self.windows.count, -1)
        return self.context.convolve(context.unsqueeze(1), self.context_kernel) + self.bias

    def outputs(self, x: Tensor, context: Tensor) -> Tensor:
        """Return u, (N or 1, M, n) and (N, p) -> (N, M, count, channels)."""
        return self.windows.convolve(x, self.kernel) + self.offset(context)

    def full_windows(self, x: Tensor, context: Tensor) -> Tensor:
        """Return w, (N or 1, M, n) and (N, p) -> (N, M, count, length)."""
        own = self.windows.gather(x)
        parts = [own, torch.ones_like(own[..., :1])]
        if self.context is not None:
            around = self.context.gather(context).unsqueeze(1)
            parts.insert(1, around.expand(-1, own.shape[1], -1, -1))
        size = max(part.shape[0] for part in parts)
        return torch.cat([part.expand(size, -1, -1, -1) for part in parts], dim=-1)


class QuadraticWindows(Kernels):
    """The quadratic branch.

    Args:
        kinds: places of one kind share their gates.
        masks: where each mask stands in the context, (number of masks, count); masks below 0 count as 0.
    """

    def __init__(self, *args: object, kinds: Kinds, masks: Tensor | None = None, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.masks, self.kinds, self.ordinary = masks, kinds, kinds.count
        gates = self.ordinary + (0 if masks is None else len(masks))
        self.gate = nn.Parameter(torch.full((self.channels, gates), 1 / math.sqrt(gates), dtype=self.bias.dtype))

    def fields(self, context: Tensor) -> Tensor:
        """Return what the gates multiply at each place, (N, p) -> (N or 1, count, gates)."""
        index = self.kinds.index(self.bias.device)
        plain = nn.functional.one_hot(index, self.ordinary).to(self.bias.dtype).unsqueeze(0)
        if self.masks is None:
            return plain
        masks = context[:, self.masks.to(context.device)].mT.clamp(min=0)
        return torch.cat([plain.expand(context.shape[0], -1, -1), masks], dim=-1)

    def weights(self, context: Tensor) -> Tensor:
        """Return gate / P of each place and channel, (N or 1, count, channels)."""
        return self.fields(context) @ self.gate.square().mT / self.windows.count

    def term(self, context: Tensor) -> Quadratic:
        """Return the branch as a term of the conic form."""
        matrix = convolution(self.windows, self.channels).map(self.kernel)
        return Quadratic(matrix, self.offset(context).flatten(-2), self.weights(context).flatten(-2).unsqueeze(1))

    def value(self, x: Tensor, context: Tensor) -> Tensor:
        """Return the branch at (N or 1, M, n) and (N, p): (N, M)."""
        squares = self.outputs(x, context).square()
        return 0.5 * (squares * self.weights(context).unsqueeze(1)).sum(dim=(-2, -1))

    @torch.no_grad()
    def features(self, x: Tensor, context: Tensor) -> Tensor:
        """Return S for each gate, (N, M, gates, length, length)."""
        rows = max(1, LARGEST_PIECE // (x.shape[1] * self.windows.count * self.length))
        pieces = []
        for points, contexts in zip(x.split(rows), context.split(rows), strict=True):
            w = self.full_windows(points, contexts)
            fields = self.fields(contexts).unsqueeze(1)
            grams = [(w * fields[..., k : k + 1]).mT @ w for k in range(fields.shape[-1])]
            pieces.append(torch.stack(grams, dim=2) / self.windows.count)
        return torch.cat(pieces)

    def mean_gram(self, features: Tensor) -> Tensor:
        """Return the mean of w w' over the data, gates aside, (length, length)."""
        return features.sum(dim=2).mean(dim=(0, 1))

    def changed(self, features: Tensor, basis: Tensor) -> Tensor:
        """Return the features of the windows R w, basis R (length, length)."""
        return basis @ features @ basis.mT

    def value_of(self, features: Tensor) -> Tensor:
        """Return the branch from its features, <Q, S> / 2 with Q_gate = sum_c gate_c k_c k_c': (N, M)."""
        kernels = self.stacked()
        matrices = torch.einsum("cg,ca,cb->gab", self.gate.square(), kernels, kernels)
        return features.flatten(start_dim=2) @ (0.5 * matrices.flatten())


class NormWindows(Kernels):
    """The conic branch: groups of `size` kernels with a learned constant each, local or over the whole map.

    Args:
        size: kernels in a group.
        kinds: places of one kind share their weights; for local groups.
        whole: one norm over all places for each group.
        weight: the initial weights lambda, all groups together.
    """

    def __init__(self, *args: object, size: int, kinds: Kinds, whole: bool, weight: float, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.size, self.whole, self.groups = size, whole, self.channels // size
        self.kinds, self.ordinary = kinds, 1 if whole else kinds.count
        start = torch.full((self.groups, self.ordinary), math.sqrt(weight / self.groups), dtype=self.bias.dtype)
        self.weight = nn.Parameter(start)
        self.kappa = nn.Parameter(torch.full((self.groups,), 0.1, dtype=self.bias.dtype))

    def weights(self) -> Tensor:
        """Return lambda of each place and group over their number, (count, groups); (groups,) for the whole map."""
        if self.whole:
            return self.weight.square()[:, 0]
        return self.weight.square().mT[self.kinds.index(self.bias.device)] / self.windows.count

    def term(self, context: Tensor) -> Norms:
        """Return the branch as a term of the conic form; whole-map groups have their rows together."""
        matrix, offset = convolution(self.windows, self.channels), self.offset(context)
        if not self.whole:
            kappa = self.kappa.expand(self.windows.count, -1).reshape(1, 1, -1)
            weights = self.weights().reshape(1, 1, -1)
            return Norms(matrix.map(self.kernel), offset.flatten(-2), weights, kappa, self.size)
        share = 1 / math.sqrt(self.windows.count)
        matrix = whole_map(self.windows, self.channels, self.size).map(share * self.kernel)
        offset = share * offset.unflatten(-1, (self.groups, self.size)).transpose(-2, -3).flatten(-3)
        size = self.windows.count * self.size
        return Norms(matrix, offset, self.weights().reshape(1, 1, -1), self.kappa.reshape(1, 1, -1), size)

    def value(self, x: Tensor, context: Tensor) -> Tensor:
        """Return the branch at (N or 1, M, n) and (N, p): (N, M)."""
        return self._sum(self.outputs(x, context))

    @torch.no_grad()
    def features(self, x: Tensor, context: Tensor) -> Tensor:
        """Return the windows, (N, M, count, length)."""
        return self.full_windows(x, context)

    def mean_gram(self, features: Tensor) -> Tensor:
        """Return the mean of w w' over the data, (length, length)."""
        flat = features.flatten(end_dim=-2)
        return flat.mT @ flat / len(flat)

    def changed(self, features: Tensor, basis: Tensor) -> Tensor:
        """Return the features of the windows R w, basis R (length, length)."""
        return features @ basis.mT

    def value_of(self, features: Tensor) -> Tensor:
        """Return the branch from its features, (N, M)."""
        return self._sum(features @ self.stacked().mT)

    def _sum(self, u: Tensor) -> Tensor:
        squares = u.square().unflatten(-1, (self.groups, self.size)).sum(dim=-1)
        if self.whole:
            squares = squares.mean(dim=-2)
        # The clamp gives the square root the subgradient 0 at an apex, where its own would be infinite.
        lengths = (squares + self.kappa.square()).clamp(min=torch.finfo(u.dtype).tiny).sqrt()
        return (lengths * self.weights()).sum(dim=(-1,) if self.whole else (-2, -1))


class ContextAffine(nn.Module):
    """context -> (b0, v): v a convolution of the context plus one of a hidden layer of tanh units, b0 of its mean.

    Args:
        windows: of the decision, one for each of its places.
        context: of the context, as many; None without one.
        hidden: tanh units at each place.
    """

    def __init__(
        self, windows: Windows, context: Windows | None, hidden: int, generator: torch.Generator, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.grid, self.context = windows.grid, context
        self.level = nn.Parameter(torch.zeros(1, dtype=dtype))
        self.slope = nn.Parameter(torch.zeros(self.grid.channels, dtype=dtype))
        self.direct = self.inner = self.level_outer = self.slope_outer = None
        if context is not None:
            self.direct = nn.Parameter(torch.zeros(self.grid.channels, context.length, dtype=dtype))
        if context is not None and hidden > 0:
            noise = torch.randn(hidden, context.length, generator=generator, dtype=dtype)
            self.inner = nn.Parameter(noise / math.sqrt(context.length))
            self.level_outer = nn.Parameter(torch.zeros(hidden, 1, dtype=dtype))
            self.slope_outer = nn.Parameter(torch.zeros(hidden, self.grid.channels, dtype=dtype))

    def forward(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return b0 (N or 1, 1) and v (N or 1, 1, n), each place's share 1/P of a mean."""
        level, slope = self.level.reshape(1, 1), self.slope.expand(1, self.grid.places, -1)
        if self.context is not None and self.direct is not None:
            slope = slope + self.context.convolve(context, self.direct)
            if self.inner is not None and self.level_outer is not None and self.slope_outer is not None:
                hidden = torch.tanh(self.context.convolve(context, self.inner))
                slope = slope + hidden @ self.slope_outer
                level = level + hidden.mean(dim=-2) @ self.level_outer
        return level, self.grid.flat(slope / self.grid.places).unsqueeze(1)
