"""Convolutions as sparse maps: against torch's own convolutions, their adjoints and derivatives."""

from __future__ import annotations

import pytest
import torch
from tolerances import DOUBLE, VALUE, close

from soctk.maps.windows import Grid, Windows, convolution, transposed_convolution

GEOMETRIES = {
    "plain": Windows(Grid(6, 5, 2, interleaved=False), (3, 3)),
    "even": Windows(Grid(6, 5, 2), (2, 2), padding="replicate"),
    "strided": Windows(Grid(7, 6, 1), (3, 3), stride=2),
    "dilated": Windows(Grid(6, 6, 2), (3, 3), dilation=2, padding="replicate"),
    "strided and even": Windows(Grid(7, 6, 2), (2, 2), stride=3),
    "dilated between zeros": Windows(Grid(6, 5, 2), (3, 3), stride=2, dilation=2),
    "sequence": Windows(Grid(6, channels=3), (3, 1)),
    "pixelwise": Windows(Grid(4, 3, 2, interleaved=False), (1, 1)),
}


@pytest.fixture(params=GEOMETRIES.values(), ids=GEOMETRIES.keys())
def windows(request) -> Windows:
    return request.param


def test_the_sparse_map_is_torchs_convolution(windows: Windows) -> None:
    generator = torch.Generator().manual_seed(0)
    kernels = torch.randn(4, windows.length, generator=generator, dtype=DOUBLE)
    x = torch.randn(2, 3, windows.grid.size, generator=generator, dtype=DOUBLE)
    expected = windows.convolve(x, kernels)
    sparse = convolution(windows, 4).map(kernels)
    close(sparse.forward(x).unflatten(-1, (windows.count, 4)), expected, VALUE)
    close(windows.gather(x) @ kernels.mT, expected, VALUE)
    dense = torch.from_numpy(sparse.to_sparse().toarray())
    y = torch.randn(2, 3, sparse.rows, generator=generator, dtype=DOUBLE)
    close(sparse.adjoint(y), y @ dense, VALUE)
    turned = transposed_convolution(windows, 4).map(kernels)
    close(turned.forward(y), y @ dense, VALUE)
    if windows.padding == "zero":
        close(windows.grid.flat(windows.spread(y.unflatten(-1, (windows.count, 4)), kernels)), y @ dense, VALUE)
    close(sparse.row_squares(x), dense.square().sum(dim=1)[None], VALUE)
    close(sparse.to_dense().matrix[0], dense, VALUE)


def test_maps_are_differentiable_in_their_weights(windows: Windows) -> None:
    generator = torch.Generator().manual_seed(1)
    kernels = torch.randn(2, windows.length, generator=generator, dtype=DOUBLE, requires_grad=True)
    x = torch.randn(1, 2, windows.grid.size, generator=generator, dtype=DOUBLE, requires_grad=True)
    y = torch.randn(1, 2, windows.count * 2, generator=generator, dtype=DOUBLE, requires_grad=True)
    tied = convolution(windows, 2)
    assert torch.autograd.gradcheck(lambda w, t: tied.map(w).forward(t), (kernels, x))
    assert torch.autograd.gradcheck(lambda w, t: tied.map(w).adjoint(t), (kernels, y))
    columns = torch.arange(0, windows.grid.size, 2)
    assert torch.autograd.gradcheck(lambda w: tied.map(w).restrict(columns).forward(x[..., columns].detach()), kernels)
    assert torch.autograd.gradcheck(lambda w: tied.map(w).to_dense().matrix, kernels)
