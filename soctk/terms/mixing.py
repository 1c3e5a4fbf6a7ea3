"""The matrices between a network's layers: dense, perhaps one for each context, or a map that all contexts share."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from soctk.maps.linear import LinearMap

Mixing = Tensor | LinearMap
"""A dense U, (N or 1, h_l, h_{l-1}), or a map that all contexts share, such as a convolution."""


def forward(matrix: Mixing, z: Tensor) -> Tensor:
    """Return U z: (N, M, h_{l-1}) -> (N, M, h_l)."""
    return z @ transposed(matrix) if isinstance(matrix, Tensor) else matrix.forward(z)


def adjoint(matrix: Mixing, nu: Tensor) -> Tensor:
    """Return U'nu: (N, M, h_l) -> (N, M, h_{l-1})."""
    if isinstance(matrix, Tensor):
        return nu @ (matrix[0] if matrix.shape[0] == 1 else matrix)
    return matrix.adjoint(nu)


def dense(matrix: Mixing) -> Tensor:
    """Return U itself, (N or 1, h_l, h_{l-1})."""
    return matrix if isinstance(matrix, Tensor) else matrix.to_dense().matrix


def on_numbers(matrix: Mixing, fn: Callable[[Tensor], Tensor]) -> Mixing:
    """Return U with `fn` applied to its numbers."""
    return fn(matrix) if isinstance(matrix, Tensor) else matrix.apply(fn)


def transposed(matrix: Tensor) -> Tensor:
    """Return U', without its batch dimension where all contexts share it."""
    return matrix[0].mT if matrix.shape[0] == 1 else matrix.mT
