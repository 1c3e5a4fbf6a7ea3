"""The members of the dense SOC-ICNN family with a name of their own (`soctk.models.dense`)."""

from __future__ import annotations

from typing import Any

from soctk.models.dense import SOCICNN


class ReLUICNN(SOCICNN):
    """The ReLU ICNN: the backbone alone."""


class SoftplusICNN(SOCICNN):
    """The softplus ICNN: the backbone alone, softplus activations."""

    def __init__(self, dim: int, context_dim: int = 0, **options: Any) -> None:
        super().__init__(dim, context_dim, **{"activation": "softplus", **options})


class QuadICNN(SOCICNN):
    """ReLU backbone and quadratic branch; one full block by default."""

    def __init__(self, dim: int, context_dim: int = 0, **options: Any) -> None:
        super().__init__(dim, context_dim, **{"quadratics": (dim,), **options})


class NormICNN(SOCICNN):
    """ReLU backbone and conic branch; one full norm by default."""

    def __init__(self, dim: int, context_dim: int = 0, **options: Any) -> None:
        super().__init__(dim, context_dim, **{"norms": (dim,), **options})
