"""Windows on signals and the sparse maps that convolutions and unrolled recurrences are.

A convolution (with a stride, a dilation, zeros or copies beyond the border), its transpose, an average pooling and a
recurrence unrolled over time are all a sparse matrix whose numbers are those of a small weight vector:

    A_ij = sum over the contributions e to (i, j) of weights[source_e]

(several where a border's copies meet). `Tied` holds the places, which depend on sizes alone and are made once for each
geometry; a map is then made of any weights and stays differentiable in them. That is the "equivalence after
vectorisation" of the paper's appendices on convolutional and recurrent SOC-ICNNs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from soctk.lazy import sparse as sp
from soctk.maps.linear import Pattern, SparseMap

Padding = Literal["zero", "replicate"]
OUTSIDE = -1


@dataclass(frozen=True)
class Grid:
    """How a flat vector is a signal of `channels` numbers at height x width places; a sequence has width 1.

    Attributes:
        height: rows, or steps of a sequence.
        width: columns.
        channels: numbers at each place.
        interleaved: place by place, the channels of each together (sequences, hidden layers); otherwise channel by
            channel (images).
    """

    height: int
    width: int = 1
    channels: int = 1
    interleaved: bool = True

    @property
    def places(self) -> int:
        """The number of places."""
        return self.height * self.width

    @property
    def size(self) -> int:
        """The length of the flat vector."""
        return self.places * self.channels

    def index(self) -> np.ndarray:
        """Return where in the flat vector each number stands, (height, width, channels)."""
        if self.interleaved:
            return np.arange(self.size).reshape(self.height, self.width, self.channels)
        return np.arange(self.size).reshape(self.channels, self.height, self.width).transpose(1, 2, 0)

    def image(self, x: Tensor) -> Tensor:
        """Return flat signals as torch's convolutions want them, (..., size) -> (..., channels, height, width)."""
        if self.interleaved:
            return x.unflatten(-1, (self.height, self.width, self.channels)).movedim(-1, -3)
        return x.unflatten(-1, (self.channels, self.height, self.width))

    def flat(self, signal: Tensor) -> Tensor:
        """Return signals given place by place as flat vectors, (..., places, channels) -> (..., size)."""
        return (signal if self.interleaved else signal.mT).flatten(-2)


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution over a grid; even kernels reach one place further to the right and downwards.

    Attributes:
        grid: what they look at.
        kernel: (height, width) of a window; its numbers in the order height, width, channels.
        stride: between the windows.
        dilation: between the places within a window.
        padding: what stands beyond the border: zeros, or copies of the border.
    """

    grid: Grid
    kernel: tuple[int, int]
    stride: int = 1
    dilation: int = 1
    padding: Padding = "zero"

    @property
    def length(self) -> int:
        """Numbers in a window."""
        return self.kernel[0] * self.kernel[1] * self.grid.channels

    @property
    def shape(self) -> tuple[int, int]:
        """How many windows there are, downwards and to the right."""
        return (self.grid.height - 1) // self.stride + 1, (self.grid.width - 1) // self.stride + 1

    @property
    def count(self) -> int:
        """The number of windows."""
        return self.shape[0] * self.shape[1]

    def index(self) -> Tensor:
        """Return where in the flat vector each window's numbers stand, `OUTSIDE` for zeros: (count, length)."""
        return _index(self)

    def gather(self, x: Tensor) -> Tensor:
        """Return the windows of flat signals, (..., size) -> (..., count, length)."""
        index = self.index().to(x.device)
        extended = torch.cat([x, torch.zeros_like(x[..., :1])], dim=-1)  # OUTSIDE = -1 finds the zero
        return extended[..., index.remainder(self.grid.size + 1)]

    def convolve(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return every window's products with some kernels: (..., size), (out, length) -> (..., count, out)."""
        (height, width), batch = self.kernel, x.shape[:-1]
        image = self.grid.image(x).reshape(-1, self.grid.channels, self.grid.height, self.grid.width)
        before, reach = self._before(), (self.dilation * (height - 1), self.dilation * (width - 1))
        margins = (before[1], reach[1] - before[1], before[0], reach[0] - before[0])
        if any(margins):
            mode = "constant" if self.padding == "zero" else "replicate"
            image = functional.pad(image, margins, mode=mode)
        kernels = weights.unflatten(-1, (height, width, self.grid.channels)).movedim(-1, 1)
        out = functional.conv2d(image, kernels, stride=self.stride, dilation=self.dilation)
        return out.flatten(start_dim=2).mT.unflatten(0, batch)

    def spread(self, y: Tensor, weights: Tensor) -> Tensor:
        """Return the adjoint of `convolve` between zeros: (..., count, in), (in, length) -> (..., places, channels).

        Each of the `in` numbers at a place spreads its kernel over the window there; what falls beyond the border is
        lost.
        """
        assert self.padding == "zero"
        (height, width), batch, (top, left) = self.kernel, y.shape[:-2], self._before()
        image = y.unflatten(-2, self.shape).movedim(-1, -3).reshape(-1, y.shape[-1], *self.shape)
        kernels = weights.unflatten(-1, (height, width, self.grid.channels)).movedim(-1, 1)
        out = functional.conv_transpose2d(image, kernels, stride=self.stride, dilation=self.dilation)
        below, right = top + self.grid.height - out.shape[-2], left + self.grid.width - out.shape[-1]
        out = functional.pad(out, (-left, right, -top, below))  # a negative margin is cut
        return out.flatten(start_dim=2).mT.unflatten(0, batch)

    def _before(self) -> tuple[int, int]:
        """Return how far a window reaches above and to the left of its place."""
        return self.dilation * ((self.kernel[0] - 1) // 2), self.dilation * ((self.kernel[1] - 1) // 2)


@dataclass(frozen=True, eq=False)
class Tied:
    """The places of a sparse matrix whose numbers are sums of a weight vector's.

    Attributes:
        pattern: where the non-zeros stand.
        entry: for each contribution the non-zero it goes to, (E,).
        source: for each contribution the weight it is, (E,).
    """

    pattern: Pattern
    entry: Tensor
    source: Tensor

    @classmethod
    @torch.inference_mode(False)  # kept for calls that are differentiated too
    def of(cls, rows: np.ndarray, columns: np.ndarray, source: np.ndarray, shape: tuple[int, int]) -> Tied:
        """Return the places of contributions given by row, column and weight."""
        keys, entry = np.unique(rows * shape[1] + columns, return_inverse=True)
        starts = np.concatenate([[0], np.cumsum(np.bincount(keys // shape[1], minlength=shape[0]))])
        matrix = sp.csr_array((np.ones(len(keys)), keys % shape[1], starts), shape=shape)
        return cls(Pattern.of(matrix), torch.from_numpy(entry.reshape(-1)), torch.from_numpy(source))

    def map(self, weights: Tensor) -> SparseMap:
        """Return the map with the given weights, any shape; differentiable in them."""
        entry, source = self.entry.to(weights.device), self.source.to(weights.device)
        values = weights.new_zeros(len(self.pattern.columns)).index_add(0, entry, weights.reshape(-1)[source])
        return SparseMap(values.unsqueeze(0), self.pattern)


@lru_cache(maxsize=64)
def convolution(windows: Windows, channels: int) -> Tied:
    """Return the map of `channels` kernels (channels, length) on all windows; rows place by place."""
    return Tied.of(*_contributions(windows, channels), (windows.count * channels, windows.grid.size))


@lru_cache(maxsize=64)
def transposed_convolution(windows: Windows, channels: int) -> Tied:
    """Return the adjoint of `convolution`: each of the `channels` at a place spreads its kernel over a window."""
    rows, columns, source = _contributions(windows, channels)
    return Tied.of(columns, rows, source, (windows.grid.size, windows.count * channels))


def _contributions(windows: Windows, channels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row, column and weight of each product of a window's number with a kernel's."""
    index = np.broadcast_to(windows.index().numpy()[:, None, :], (windows.count, channels, windows.length))
    rows = np.arange(windows.count * channels).reshape(windows.count, channels, 1)
    source = np.arange(channels * windows.length).reshape(1, channels, windows.length)
    inside = index != OUTSIDE
    rows, source = (np.broadcast_to(part, index.shape)[inside] for part in (rows, source))
    return rows, index[inside], source


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # kept for calls that are differentiated too
def _index(windows: Windows) -> Tensor:
    grid, before = windows.grid, windows._before()
    steps = [
        windows.stride * np.arange(count)[:, None] + windows.dilation * np.arange(size) - first
        for count, size, first in zip(windows.shape, windows.kernel, before, strict=True)
    ]
    rows, columns = (part.clip(0, limit - 1) for part, limit in zip(steps, (grid.height, grid.width), strict=True))
    found = grid.index()[rows[:, None, :, None], columns[None, :, None, :]]  # (h, w, kernel, kernel, channels)
    if windows.padding == "zero":
        inside = (rows == steps[0])[:, None, :, None] & (columns == steps[1])[None, :, None, :]
        found = np.where(inside[..., None], found, OUTSIDE)
    return torch.from_numpy(found.reshape(windows.count, windows.length).astype(np.int64))


@lru_cache(maxsize=64)
def whole_map(windows: Windows, channels: int, size: int) -> Tied:
    """Return `convolution` with its rows group by group of `size` kernels, place by place within."""
    rows, columns, source = _contributions(windows, channels)
    place, channel = np.divmod(rows, channels)
    group, member = np.divmod(channel, size)
    rows = (group * windows.count + place) * size + member
    return Tied.of(rows, columns, source, (windows.count * channels, windows.grid.size))


@lru_cache(maxsize=64)
def pooling(windows: Windows) -> Tied:
    """Return the map that adds up each channel's numbers in a window, with one weight for all."""
    channels = windows.grid.channels
    index = windows.index().numpy().reshape(windows.count, -1, channels)
    rows = np.broadcast_to(np.arange(windows.count * channels).reshape(-1, 1, channels), index.shape)
    inside = index != OUTSIDE
    shape = (windows.count * channels, windows.grid.size)
    return Tied.of(rows[inside], index[inside], np.zeros(int(inside.sum()), dtype=np.int64), shape)


@lru_cache(maxsize=64)
def stacked(layers: tuple[tuple[Grid, Windows | None], ...], size: int) -> Tied:
    """Return several convolutions of one signal of `size` numbers one below the other, weights in the same order.

    Args:
        layers: the grid of each one's outputs and its windows; None for rows of zeros.
        size: of the signal.
    """
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    row = weight = 0
    for grid, windows in layers:
        if windows is not None:
            rows, columns, source = _contributions(windows, grid.channels)
            parts.append((rows + row, columns, source + weight))
            weight += grid.channels * windows.length
        row += grid.size
    rows, columns, source = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Tied.of(rows, columns, source, (row, size))
