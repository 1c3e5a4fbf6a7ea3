"""Models of random weights, for measurements to which it does not matter what a model has learned."""

from __future__ import annotations

import torch

from soctk import ConvexSurrogate


@torch.no_grad()
def move_weights(model: ConvexSurrogate, seed: int, scale: float = 0.1, own_size: bool = False) -> None:
    """Move all weights of a model by independent normal numbers: some start at zero, where nothing depends on them.

    Args:
        model: changed in place.
        seed: of the random numbers.
        scale: their standard deviation.
        own_size: in units of each tensor's mean absolute weight, at least 0.1.
    """
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        noise = scale * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        weight.add_(noise * weight.abs().mean().clamp(min=0.1) if own_size else noise)
