"""Initial weights of the dense SOC-ICNN family."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn

from soctk.conditioning import NonNegative, Offset

KAPPA = 0.5
"""Of a hyperbolic block, in standardised units."""
ADDED_WEIGHT = 0.2
"""The sum of the weights of hyperbolic blocks that are added to others: enough to move them."""


class Hyperbolics(NamedTuple):
    """What hyperbolic blocks are made of, lambda sqrt((a'x + d)^2 + kappa^2) each."""

    rows: nn.Parameter
    offset: Offset
    weight: NonNegative
    kappa: nn.Parameter

    def parameters(self) -> list[nn.Parameter]:
        """Return the weights; the first dimension of each is that of the blocks."""
        return [self.rows, self.kappa, *self.offset.parameters(), *self.weight.parameters()]

    @torch.no_grad()
    def behind(self, others: Hyperbolics) -> Hyperbolics:
        """Return these, the first of them as the others are; 0 for hidden units of the context that only those have."""
        for weight, other in zip(self.parameters(), others.parameters(), strict=True):
            rows = other.new_zeros(len(weight), *other.shape[1:])
            rows[tuple(slice(length) for length in weight.shape)] = weight.to(other)
            rows[: len(other)] = other[: len(weight)]
            weight.data = rows
            weight.requires_grad_(other.requires_grad)
        return self


class InitialWeights:
    """Makes initial weights from one stream of random numbers."""

    def __init__(self, generator: torch.Generator, context_dim: int, conditioning: str, dtype: torch.dtype) -> None:
        self.generator, self.context_dim, self.dtype = generator, context_dim, dtype
        self.weight_context = context_dim if conditioning == "full" else 0

    def offset(self, size: int, scale: float) -> Offset:
        return Offset(self.context_dim, size, scale=scale, generator=self.generator, dtype=self.dtype)

    def nonnegative(self, size: int, value: float) -> NonNegative:
        return NonNegative(self.weight_context, size, value=value, dtype=self.dtype)

    def normal(self, rows: int, columns: int) -> nn.Parameter:
        noise = torch.randn(rows, columns, generator=self.generator, dtype=self.dtype)
        return nn.Parameter(noise / math.sqrt(columns))

    def around(self, value: float, rows: int, columns: int) -> nn.Parameter:
        noise = torch.randn(rows, columns, generator=self.generator, dtype=self.dtype)
        return nn.Parameter(value + 0.1 * noise)

    def hyperbolics(self, count: int, dim: int, value: float) -> Hyperbolics:
        """Return hyperbolic blocks whose weights sum to `value`."""
        rows, offset, weight = self.normal(count, dim), self.offset(count, 0.5), self.nonnegative(count, value / count)
        return Hyperbolics(rows, offset, weight, nn.Parameter(torch.full((count,), KAPPA, dtype=self.dtype)))

    def orthogonal(self, rows: int, columns: int, scale: float) -> nn.Parameter:
        noise = torch.randn(max(rows, columns), min(rows, columns), generator=self.generator, dtype=self.dtype)
        basis = torch.linalg.qr(noise).Q
        return nn.Parameter(scale * (basis if rows >= columns else basis.mT).contiguous())
