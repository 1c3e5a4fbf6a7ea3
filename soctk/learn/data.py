"""Training data: contexts, candidate decisions and their observed values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.checks import as_tensor

HELD_OUT = 0.2
"""The share of instances that choose or judge what is learned from the others."""


def split_indices(total: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the numbers 0, ..., total - 1 in random order and two parts, `share` of them (at least one) in the second.

    At least one is in the first as well where there are two.
    """
    count = min(max(1, round(share * total)), total - 1)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return order[count:], order[:count]


@dataclass(frozen=True, eq=False)
class ValueData:
    """Observed values of candidate decisions.

    Arrays are accepted and kept as tensors; nothing given is ever changed.

    Attributes:
        context: (N, p); p = 0 for problems without context.
        x: (N, M, n), M candidates for each of the N instances.
        value: (N, M).

    Raises:
        ValueError: shapes that do not agree, no rows, a NaN or an infinity.
    """

    context: Tensor
    x: Tensor
    value: Tensor

    def __post_init__(self) -> None:
        for name in ("context", "x", "value"):
            object.__setattr__(self, name, as_tensor(getattr(self, name), name).detach())
        if self.x.ndim != 3:
            raise ValueError(f"x: expected shape (instances, candidates, dim), got {tuple(self.x.shape)}")
        instances, candidates, _ = self.x.shape
        if tuple(self.value.shape) != (instances, candidates):
            raise ValueError(f"value: expected shape {(instances, candidates)} as x's, got {tuple(self.value.shape)}")
        if self.context.ndim != 2 or self.context.shape[0] != instances:
            raise ValueError(f"context: expected shape ({instances}, p), got {tuple(self.context.shape)}")
        if instances * candidates == 0:
            raise ValueError(f"x: expected at least one instance with one candidate, got shape {tuple(self.x.shape)}")

    @property
    def instances(self) -> int:
        """The number N of instances."""
        return self.x.shape[0]

    @property
    def candidates(self) -> int:
        """The number M of candidates of each instance."""
        return self.x.shape[1]

    @property
    def dim(self) -> int:
        """The decision dimension n."""
        return self.x.shape[2]

    @property
    def context_dim(self) -> int:
        """The context dimension p."""
        return self.context.shape[1]

    def share(self, rows: int) -> int:
        """Return how many candidates of each instance make `rows` values: at least two, where it has them.

        A single value says nothing of the variation within an instance.
        """
        return min(self.candidates, max(2, rows // self.instances))

    def split(self, share: float = HELD_OUT, seed: int = 0) -> tuple[ValueData, ValueData]:
        """Return (training, validation) data, `share` of the instances (at least one of each) in the second.

        Of a single instance the candidates are split; of a single value both parts are the whole.
        """
        single = self.instances == 1
        total = self.candidates if single else self.instances
        if total == 1:
            return self, self
        first, second = split_indices(total, share, seed)
        keep = self.columns if single else self.rows
        return keep(first), keep(second)

    def columns(self, index: Tensor) -> ValueData:
        """Return the candidates `index` of every instance."""
        return ValueData(self.context, self.x[:, index], self.value[:, index])

    def rows(self, index: Tensor) -> ValueData:
        """Return the instances `index`."""
        return ValueData(self.context[index], self.x[index], self.value[index])
