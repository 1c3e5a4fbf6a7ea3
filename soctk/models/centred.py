"""Functions whose branches share one centre, written into a model's weights (`soctk.learn.centred` learns them).

f(x; theta) = b0 + v'x + alpha / 2 ||B e||^2 + sum_k lambda_k sqrt(||A_k e||^2 + kappa_k^2),   e = x - m(theta)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.conditioning import AffinePart, NonNegative, Offset, inverse_softplus


@dataclass(frozen=True)
class CentredShape:
    """What branches a function has.

    Attributes:
        diagonal: whether B is diagonal.
        sizes: rows of every A_k.
    """

    diagonal: bool
    sizes: tuple[int, ...]

    @classmethod
    def of(
        cls, blocks: Sequence[str], dim: int, quadratics: Sequence[int], norms: Sequence[int], hyperbolics: int
    ) -> CentredShape:
        """Return what a structure of a `SOCICNN` can hold of a function with one centre.

        Raises:
            ValueError: other blocks than one quadratic of n rows, at most one norm of several and hyperbolics.
        """
        squares = [block for block in blocks if block == "diagonal" or block.startswith("quadratic")]
        sizes = [norms[number_of(block)] - 1 for block in blocks if block.startswith("norm")]
        dense = all(block == "diagonal" or quadratics[number_of(block)] == dim for block in squares)
        if len(squares) != 1 or not dense or len(sizes) > 1 or 0 in sizes or "backbone" in blocks:
            raise ValueError(
                "centred: expected structures of one quadratic block, diagonal or of n rows, and maybe a norm of "
                f'several rows or "hyperbolics", got {tuple(blocks)}'
            )
        return cls("diagonal" in blocks, (*sizes, *([1] * hyperbolics if "hyperbolics" in blocks else [])))


@dataclass(frozen=True, eq=False)
class CentredWeights:
    """A function's numbers; [E, e] of an affine function of the context has p + 1 columns.

    Attributes:
        level: [E, e] of b0, (1, p + 1).
        squares: R of theta'R theta in b0, (p, p), symmetric.
        slope: v, (n, p + 1).
        center: m, (n, p + 1).
        factor: B, (n, n).
        alpha: arguments of the softplus of its floor, (), and of its part affine in the context, (p + 1,).
        matrices: A_k.
        kappa: (K,).
        weights: lambda, (K,).
    """

    level: Tensor
    squares: Tensor
    slope: Tensor
    center: Tensor
    factor: Tensor
    alpha: tuple[Tensor, Tensor]
    matrices: tuple[Tensor, ...]
    kappa: Tensor
    weights: Tensor


def number_of(block: str) -> int:
    """Return k of "quadratic<k>" or "norm<k>", 0 for other blocks."""
    return int(block.removeprefix("quadratic").removeprefix("norm")) if block[-1].isdigit() else 0


def place_affine(part: AffinePart, weights: CentredWeights) -> None:
    """Give b0 and v their weights."""
    for network in part.network_parameters():
        network.zero_()
    place_offset(part.level, weights.level)
    if part.level_squares is not None:
        sizes, axes = torch.linalg.eigh(weights.squares)
        part.level_squares.inner.copy_(torch.nn.functional.pad(axes.mT, (0, 1)))
        part.level_squares.outer.copy_(sizes)
    if part.slope is not None:
        place_offset(part.slope, weights.slope)


def place_offset(offset: Offset, numbers: Tensor) -> None:
    """Give an offset its [E, e], (size, p + 1)."""
    offset.constant.copy_(numbers[:, -1])
    if offset.slope is not None:
        offset.slope.copy_(_widened(numbers[:, :-1], offset.slope))


def place_weight(module: NonNegative, index: slice, floor: Tensor, argument: Tensor) -> None:
    """Give weights the same arguments of their softplus."""
    if module.slope is None or module.constant is None:  # no context moves it: one softplus does for both
        value = torch.nn.functional.softplus(torch.stack([floor, argument[-1]])).sum()
        place_constants(module, index, value.reshape(1))
        return
    module.floor[index] = floor
    module.constant[index] = argument[-1]
    module.slope[index] = _widened(argument[:-1], module.slope)


def place_constants(module: NonNegative, index: slice, values: Tensor) -> None:
    """Give weights values that no context moves."""
    share = values if module.constant is None else 0.5 * values
    module.floor[index] = torch.tensor([inverse_softplus(float(each)) for each in share], dtype=module.floor.dtype)
    if module.constant is not None and module.slope is not None:
        module.constant[index] = module.floor[index]
        module.slope[index] = 0.0


def _widened(slope: Tensor, like: Tensor) -> Tensor:
    """Return E in the context, (..., p), with zeros for the other columns (`soctk.context_units`)."""
    return torch.nn.functional.pad(slope, (0, like.shape[-1] - slope.shape[-1]))
