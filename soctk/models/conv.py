"""The convolutional SOC-ICNN: decisions are images, contexts one or more images of the same size.

The backbone's layers are convolutions with non-negative hidden-to-hidden kernels (strided, dilated, 1x1), transposed
convolutions and average poolings; every layer whose size divides the image's sees the image and the context as well:

    z_l = act(W_l * x + E_l * theta + b_l + U_l z_{l-1}),   f = mean over places of c'z_L,   U_l >= 0, c >= 0.

All of these are sparse matrices, so the lift is the dense model's (`soctk.maps.windows`). Nothing that would break it
has a place here: no batch normalisation, no max pooling of sums, no attention.
Source: paper, appendix "Extension to Convolutional SOC-ICNNs".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from soctk.checks import as_counts, check_choice, check_count, check_sequence, seeded
from soctk.conditioning import NonNegative, inverse_softplus
from soctk.maps.linear import SparseMap
from soctk.maps.windows import Grid, Tied, Windows, convolution, pooling, stacked, transposed_convolution
from soctk.models.branches import ContextAffine, Kinds
from soctk.models.structured import StructuredICNN, Variant, check_counts
from soctk.terms import Network
from soctk.terms.logistic import log1p_exp
from soctk.terms.network import Activation

LayerKind = Literal["conv", "transposed", "pool"]
LAYER = {"kind": "conv", "channels": 10, "kernel": 3, "stride": 1, "dilation": 1}
MEMORY = 0.9
"""What a unit's incoming hidden weights sum to at the start."""


class ConvSOCICNN(StructuredICNN):
    """A SOC-ICNN of images: x is (height, width) flattened row by row; the context (channels, height, width) likewise.

    Args:
        shape: (height, width), or (channels, height, width) for decisions of several channels.
        context_channels: images in the context; 0 for none.
        variant: "relu", "softplus", "quad", "norm" or "soc": which branches stand beside the backbone.
        layers: of the backbone, each a number of channels or a dictionary with the keys "kind" ("conv", "transposed"
            or "pool"), "channels", "kernel", "stride" and "dilation"; () for no backbone, with branches only.
        quadratics: channels of the quadratic branch.
        quadratic_kernel: side of its windows; zeros beyond the border.
        context_kernel: side of the context's windows in the branches.
        masks: channels of the context, non-negative, that the quadratic branch's gates are affine in.
        norms: local norm groups; one norm of each at every pixel.
        norm_size: kernels in a group.
        norm_kernel: side of its windows; copies of the border beyond it.
        whole_norms: norm groups over the whole image.
        affine_hidden: tanh units at each pixel of the affine part's response to the context.
        structure: index of the structure taken now, see `StructuredICNN`; the last by default.
        seed: of the initial weights.
        dtype: of the weights.

    Raises:
        ValueError: a size that is too small, a mask that is no channel of the context, an unknown variant or layer.
    """

    def __init__(
        self,
        shape: Sequence[int],
        context_channels: int = 2,
        *,
        variant: Variant = "soc",
        layers: Sequence[int | dict[str, Any]] = (10, 10, 10),
        quadratics: int = 16,
        quadratic_kernel: int = 5,
        context_kernel: int = 1,
        masks: Sequence[int] | None = None,
        norms: int = 1,
        norm_size: int = 2,
        norm_kernel: int = 2,
        whole_norms: int = 0,
        affine_hidden: int = 8,
        structure: int = -1,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        shape = as_counts(shape, "shape")
        if len(shape) not in (2, 3):
            raise ValueError(f"shape: expected (height, width) or (channels, height, width), got {shape}")
        check_count(context_channels, "context_channels", minimum=0)
        *channels, height, width = shape
        grid = Grid(height, width, channels[0] if channels else 1, interleaved=False)
        super().__init__(grid.size, grid.places * context_channels, variant, dtype)
        self.shape, self.context_channels = shape, context_channels
        check_sequence(layers, "layers")
        self.layers = tuple(_layer(layer) for layer in layers)
        self.quadratics, self.quadratic_kernel, self.context_kernel = quadratics, quadratic_kernel, context_kernel
        default_masks = [context_channels - 1] if context_channels else []
        self.masks = as_counts(default_masks if masks is None else masks, "masks", minimum=0)
        self.norms, self.norm_size, self.norm_kernel = norms, norm_size, norm_kernel
        self.whole_norms, self.affine_hidden, self.seed = whole_norms, affine_hidden, seed
        check_counts(self, ("quadratic_kernel", "context_kernel", "norm_size", "norm_kernel"), 1)
        check_counts(self, ("quadratics", "norms", "whole_norms", "affine_hidden"), 0)
        if any(mask >= context_channels for mask in self.masks):
            raise ValueError(f"masks: expected channels of the context, 0 to {context_channels - 1}, got {self.masks}")
        generator = seeded(seed)
        context = Grid(height, width, context_channels, interleaved=False) if context_channels else None

        def around(side: int, *, replicate: bool = False) -> Windows | None:
            padding = "replicate" if replicate else "zero"
            return None if context is None else Windows(context, (side, side), padding=padding)

        kinds = Kinds(grid.places)
        square = (quadratic_kernel, quadratic_kernel)
        replicated = Windows(grid, (norm_kernel, norm_kernel), padding="replicate")
        masked = None
        if self.masks:
            masked = torch.stack([mask * grid.places + torch.arange(grid.places) for mask in self.masks])
        self._add_branches(
            (quadratics, Windows(grid, square), around(context_kernel), kinds, masked),
            (norms, whole_norms, norm_size, replicated, around(context_kernel, replicate=True), kinds),
            generator,
        )
        if self.layers:
            self.backbone = ConvBackbone(grid, context, self.layers, self.activation, generator, dtype)
        self.context_affine = ContextAffine(Windows(grid, (1, 1)), around(3), affine_hidden, generator, dtype)
        self._choose_structure(structure)

    def resized(self, shape: Sequence[int]) -> ConvSOCICNN:
        """Return the model with the same weights for images of another size: kernels know no size."""
        return self._resized(shape=tuple(shape))

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        sizes = ("shape", "context_channels", "layers", "quadratics", "quadratic_kernel", "context_kernel", "masks")
        more = ("norms", "norm_size", "norm_kernel", "whole_norms", "affine_hidden", "variant", "structure", "seed")
        return {name: getattr(self, name) for name in (*sizes, *more)}


def _layer(layer: int | dict[str, Any]) -> dict[str, Any]:
    """Return a layer's full description.

    Raises:
        ValueError: an unknown key or kind, or a number below 1.
    """
    given = dict(layer) if isinstance(layer, dict) else {"channels": layer}
    full = LAYER | given
    if set(full) != set(LAYER):
        raise ValueError(f"layers: expected the keys {', '.join(LAYER)}, got {', '.join(given)}")
    check_choice(full["kind"], "layers: kind", get_args(LayerKind))
    for name in ("channels", "kernel", "stride", "dilation"):
        check_count(full[name], f"layers: {name}")
    return full


class ConvBackbone(nn.Module):
    """The backbone of `ConvSOCICNN`.

    Attributes:
        working: the type that `value` computes in, None for the weights': while learning float32 will do, in which
            torch's convolutions are ten times faster than in float64.

    Args:
        grid: the image.
        context: the context's, or None.
        layers: full descriptions.
        activation: "relu" or "softplus".
        generator: of random numbers.
        dtype: of the weights.

    Raises:
        ValueError: the first layer is no convolution.
    """

    def __init__(
        self,
        grid: Grid,
        context: Grid | None,
        layers: Sequence[dict[str, Any]],
        activation: Activation,
        generator: torch.Generator,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.working: torch.dtype | None = None
        self.grids, self.windows, self.contexts, self.hidden = [], [], [], []
        self.W, self.E, self.b, self.U_raw = (nn.ParameterList() for _ in range(4))

        def normal(channels: int, windows: Windows | None) -> nn.Parameter:
            length = 0 if windows is None else windows.length
            noise = torch.randn(channels, length, generator=generator, dtype=dtype)
            return nn.Parameter(noise / math.sqrt(max(1, length)))

        for layer in layers:
            hidden = None
            if not self.grids:
                if layer["kind"] != "conv":
                    raise ValueError(f'layers: expected the first to be a "conv", got {layer["kind"]!r}')
                own: Windows | None = _windows(grid, layer)
                shape = own.shape
            else:
                hidden = _hidden(self.grids[-1], layer)
                shape = hidden.shape
                own = _passthrough(grid, shape)
            channels = self.grids[-1].channels if layer["kind"] == "pool" else layer["channels"]
            around = None if own is None or context is None else _moved(own, context)
            self.grids.append(Grid(*shape, channels))
            self.windows.append(own)
            self.contexts.append(around)
            self.W.append(normal(channels, own))
            self.E.append(normal(channels, around))
            self.b.append(nn.Parameter(torch.zeros(channels, dtype=dtype)))
            if hidden is not None:
                self.hidden.append(hidden)
                noise = 0.1 * torch.randn(hidden.weights, generator=generator, dtype=dtype)
                self.U_raw.append(nn.Parameter(noise + inverse_softplus(MEMORY / hidden.incoming)))
        last = self.grids[-1].channels
        self.c = NonNegative(0, last, value=0.5 / last, dtype=dtype)

    @property
    def units(self) -> int:
        """The number of units."""
        return sum(grid.size for grid in self.grids)

    def _offsets(self, context: Tensor) -> list[Tensor]:
        """Return E_l * theta + b_l of each layer, (N or 1, places, channels)."""
        offsets = []
        for grid, windows, kernels, bias in zip(self.grids, self.contexts, self.E, self.b, strict=True):
            offset = bias.to(context.dtype).expand(1, grid.places, -1)
            if windows is not None:
                offset = offset + windows.convolve(context, kernels.to(context.dtype))
            offsets.append(offset)
        return offsets

    def _mixing(self) -> list[SparseMap]:
        return [hidden.map(softplus(raw)) for hidden, raw in zip(self.hidden, self.U_raw, strict=True)]

    def _weights(self) -> Tensor:
        """Return c of each place and channel, (1, 1, size)."""
        last = self.grids[-1]
        return self.c(torch.zeros(1, 0)).expand(1, last.places, -1).reshape(1, 1, -1) / last.places

    def term(self, context: Tensor) -> Network:
        """Return the network as a term of the conic form."""
        size = next(windows.grid.size for windows in self.windows if windows is not None)
        layout = tuple((grid, windows) for grid, windows in zip(self.grids, self.windows, strict=True))
        offsets = [offset.flatten(-2) for offset in self._offsets(context)]
        count = max(len(offset) for offset in offsets)
        return Network(
            stacked(layout, size).map(torch.cat([kernels.flatten() for kernels in self.W])),
            torch.cat([offset.expand(count, -1) for offset in offsets], dim=-1).unsqueeze(1),
            self._weights(),
            mixing=tuple(self._mixing()),
            widths=tuple(grid.size for grid in self.grids),
            activation=self.activation,
        )

    def value(self, x: Tensor, context: Tensor) -> Tensor:
        """Return the network at (N or 1, M, n) and (N, p): (N, M)."""
        home, working = x.dtype, self.working or x.dtype
        x, context = x.to(working), context.to(working)
        act = torch.relu if self.activation == "relu" else log1p_exp
        z: Tensor | None = None
        for level, offset in enumerate(self._offsets(context)):
            a = offset.unsqueeze(1)
            windows = self.windows[level]
            if windows is not None:
                a = a + windows.convolve(x, self.W[level].to(working))
            if z is not None:
                a = a + self.hidden[level - 1].value(z, softplus(self.U_raw[level - 1].to(working)))
            z = act(a).flatten(-2)
        assert z is not None
        return (self._weights().to(working) * z).sum(dim=-1).to(home)


class _Hidden:
    """How a layer sees the one before it."""

    def __init__(self, kind: LayerKind, windows: Windows, channels: int) -> None:
        self.kind, self.windows, self.channels = kind, windows, channels
        area = windows.kernel[0] * windows.kernel[1]
        grid = windows.grid
        if kind == "transposed":
            self.shape, self.weights = (grid.height, grid.width), (channels, windows.length)
            self.incoming: float = max(1.0, channels * area / windows.stride**2)
        else:
            self.shape, self.weights = windows.shape, (channels, windows.length) if kind == "conv" else (0,)
            self.incoming = windows.length

    def _tied(self) -> Tied:
        if self.kind == "transposed":
            return transposed_convolution(self.windows, self.channels)
        return convolution(self.windows, self.channels) if self.kind == "conv" else pooling(self.windows)

    def map(self, weights: Tensor) -> SparseMap:
        """Return U; a pooling's numbers are fixed."""
        area = self.windows.kernel[0] * self.windows.kernel[1]
        return self._tied().map(weights.new_full((1,), 1 / area) if self.kind == "pool" else weights)

    def value(self, z: Tensor, weights: Tensor) -> Tensor:
        """Return U z, (N, M, size) -> (N, M, places, channels)."""
        if self.kind == "conv":
            return self.windows.convolve(z, weights)
        if self.kind == "transposed":
            return self.windows.spread(z.unflatten(-1, (self.windows.count, -1)), weights)
        grid = self.windows.grid
        single = replace(self.windows, grid=replace(grid, channels=1))  # every channel is averaged by itself
        mean = weights.new_full((1, single.length), 1 / single.length)
        return single.convolve(z.unflatten(-1, (grid.places, grid.channels)).mT, mean).squeeze(-1).mT


def _windows(grid: Grid, layer: dict[str, Any]) -> Windows:
    return Windows(grid, (layer["kernel"], layer["kernel"]), layer["stride"], layer["dilation"])


def _hidden(grid: Grid, layer: dict[str, Any]) -> _Hidden:
    """Return how a layer sees one with this grid; a transposed convolution multiplies the sides by its stride."""
    if layer["kind"] != "transposed":
        channels = grid.channels if layer["kind"] == "pool" else layer["channels"]
        return _Hidden(layer["kind"], _windows(grid, layer), channels)
    larger = Grid(layer["stride"] * grid.height, layer["stride"] * grid.width, layer["channels"])
    return _Hidden("transposed", _windows(larger, layer), grid.channels)


def _passthrough(grid: Grid, shape: tuple[int, int]) -> Windows | None:
    """Return 3x3 windows of the image for a layer of this shape; None where no stride gives it."""
    # The number of windows falls with the stride, so the least that leaves no more than asked for is the only one.
    stride = max(1, *((side - 1) // count + 1 for side, count in zip((grid.height, grid.width), shape, strict=True)))
    windows = Windows(grid, (3, 3), stride)
    return windows if windows.shape == shape else None


def _moved(windows: Windows, grid: Grid) -> Windows:
    """Return the same windows on another grid of the same size."""
    return Windows(grid, windows.kernel, windows.stride, windows.dilation, windows.padding)
