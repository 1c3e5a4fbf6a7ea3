"""Models of every branch combination and a baseline of composed layers, and the three kinds of sets."""

from __future__ import annotations

from collections.abc import Callable

import torch

from soctk import (
    SOCICNN,
    Box,
    Budget,
    ConvexSurrogate,
    FeasibleSet,
    NormICNN,
    QuadICNN,
    ReLUICNN,
    Simplex,
    SoftplusICNN,
)
from soctk_baselines import ICKAN

MODELS: dict[str, Callable[[int], ConvexSurrogate]] = {
    "relu": lambda n: ReLUICNN(n, 3, hidden=(8, 6), seed=1),
    "softplus": lambda n: SoftplusICNN(n, 3, hidden=(8, 6), seed=2),
    "quad": lambda n: QuadICNN(n, 3, seed=3),
    "norm": lambda n: NormICNN(n, 3, seed=4),
    "soc": lambda n: SOCICNN(n, 3, hidden=(8, 6), quadratics=(n,), norms=(n, 2), seed=5),
    "no_passthrough": lambda n: SOCICNN(n, 3, hidden=(6, 5, 4), norms=(2,), passthrough=False, seed=6),
    "hyperbolic": lambda n: SOCICNN(n, 3, hidden=(), diagonal=True, hyperbolics=5, seed=7),
    "norms_only": lambda n: SOCICNN(n, 3, hidden=(), norms=(n, 1, 2), seed=8),
    "context_units": lambda n: SOCICNN(n, 3, hidden=(), diagonal=True, norms=(n, 2), context_units=6, seed=12),
    "ickan": lambda n: ICKAN(n, 3, hidden=(4, 3), segments=4, seed=10),
    "affine": lambda n: SOCICNN(n, 3, hidden=(), seed=9),
}
SETS: dict[str, Callable[[int], FeasibleSet]] = {
    "simplex": Simplex,
    "box": lambda n: Box(n, -1.0, 1.5),
    "budget": lambda n: Budget(n, 0.3 * n),
}


def shaken(model: ConvexSurrogate, scale: float = 0.3) -> ConvexSurrogate:
    """Return the model with every weight moved, so that no structure of the initial weights helps."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model
