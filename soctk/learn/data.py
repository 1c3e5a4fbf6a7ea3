"""Training data: contexts, candidate decisions and their observed values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from soctk.checks import as_tensor, seeded

HELD_OUT = 0.2
"""The share of instances that choose or judge what is learned from the others."""
FEW_CONTEXTS = 10
"""Fewer are on both sides of a split: what one of them has of its own is learned from it alone."""


def split_indices(total: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the numbers 0, ..., total - 1 in random order and two parts, `share` of them (at least one) in the second.

    At least one is in the first as well where there are two.
    """
    count = min(max(1, round(share * total)), total - 1)
    order = torch.randperm(total, generator=seeded(seed))
    return order[count:], order[:count]


def groups_of(context: Tensor) -> Tensor:
    """Return for each of N contexts (N, p) its number among the different ones, (N,)."""
    if context.shape[1] == 0:
        return torch.zeros(len(context), dtype=torch.int64)
    return torch.unique(context, dim=0, return_inverse=True)[1]


def spans_groups(groups: Tensor, share: float) -> bool:
    """Return whether `split_groups` has instances of one group on both sides: of a single one, or of few."""
    count = int(groups.max()) + 1
    return count == 1 or (count < FEW_CONTEXTS and len(groups) * share >= count)


def split_groups(groups: Tensor, share: float = HELD_OUT, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the numbers of two parts of at least two instances as `split_indices`, those of one group in one part."""
    count = int(groups.max()) + 1
    if spans_groups(groups, share) or count == len(groups):
        return split_indices(len(groups), share, seed)
    held = torch.isin(groups, split_indices(count, share, seed)[1])
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def typical(counts: Tensor) -> int:
    """Return how many candidates are typical where instances have `counts` (N,) of them.

    The largest number that those have which together have half of all candidates and are an eighth of all instances: so
    many tell how values vary within an instance, and in enough contexts.
    """
    falling = counts.sort(descending=True).values
    sums = falling.cumsum(0)
    half, eighth = int((2 * sums < sums[-1]).sum()), -(-len(falling) // 8) - 1
    return int(falling[max(half, eighth)])


@dataclass(frozen=True, eq=False)
class ValueData:
    """Observed values of candidate decisions.

    Arrays are accepted and kept as tensors; nothing given is ever changed.

    Attributes:
        context: (N, p); p = 0 for problems without context.
        x: (N, M, n), M candidates for each of the N instances.
        value: (N, M), costs; of what is to be as large as possible, a profit or a utility, the negative.
        counts: (N,), how many of an instance's values are observations where the others repeat these, the first first,
            as `soctk.read_log` fills contexts of fewer rows up; None where all are.

    Raises:
        ValueError: shapes that do not agree, no rows, a NaN or an infinity.
    """

    context: Tensor
    x: Tensor
    value: Tensor
    counts: Tensor | None = None

    def __post_init__(self) -> None:
        if self.context is None:
            raise TypeError("context: expected numbers, got None; without a context give none of each, (N, 0)")
        for name in ("context", "x", "value"):
            object.__setattr__(self, name, as_tensor(getattr(self, name), name).detach())
        if self.x.ndim != 3:
            one = "; of one decision in each give x[:, None] and value[:, None]" if self.x.ndim == 2 else ""
            raise ValueError(f"x: expected shape (instances, candidates, dim), got {tuple(self.x.shape)}{one}")
        instances, candidates, _ = self.x.shape
        if tuple(self.value.shape) != (instances, candidates):
            raise ValueError(f"value: expected shape {(instances, candidates)} as x's, got {tuple(self.value.shape)}")
        if self.context.ndim != 2 or self.context.shape[0] != instances:
            raise ValueError(f"context: expected shape ({instances}, p), got {tuple(self.context.shape)}")
        if instances * candidates == 0:
            raise ValueError(f"x: expected at least one instance with one candidate, got shape {tuple(self.x.shape)}")
        if self.counts is not None:
            counts = as_tensor(self.counts, "counts").detach()
            expected = f"counts: expected {instances} whole numbers from 1 to {candidates}, one for each instance"
            if counts.shape != (instances,):
                raise ValueError(f"{expected}, got shape {tuple(counts.shape)}")
            wrong = (counts < 1) | (counts > candidates) | (counts != counts.round())
            if bool(wrong.any()):
                raise ValueError(f"{expected}, got {float(counts[wrong][0]):g}")
            object.__setattr__(self, "counts", counts.to(torch.int64) if bool((counts < candidates).any()) else None)

    @property
    def observed(self) -> Tensor:
        """How many candidates of each instance are observations, (N,)."""
        return torch.full((self.instances,), self.candidates) if self.counts is None else self.counts

    @property
    def fewest(self) -> int:
        """The fewest observed candidates of an instance."""
        return int(self.observed.min())

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

        Instances of one context stay together, so that none is on both sides, where there are several contexts. Of few
        contexts (`FEW_CONTEXTS`) and of a single instance the candidates are split, where there are enough
        (`split_within`; the others are in the first part); of a single value both parts are the whole.
        """
        if not self.splits_candidates(share):
            first, second = self.split_instances(share, seed)
            return self.rows(first), self.rows(second)
        if int(self.observed.max()) == 1:
            return self, self
        if self.counts is None:
            first, second = split_indices(self.candidates, share, seed)
            return self.columns(first), self.columns(second)
        within, first, second = self.split_within(share).tolist(), [], {}
        for number, count in enumerate(self.counts.tolist()):
            kept = torch.arange(count)
            if within[number]:
                kept, second[number] = split_indices(count, share, seed)
            first.append(kept)
        return self._observed(first), self.rows(torch.tensor([*second]))._observed([*second.values()])

    def splits_candidates(self, share: float = HELD_OUT) -> bool:
        """Return whether `split` has each instance on both sides: a single one, or few contexts of many candidates."""
        return self.instances == 1 or (1 < self._contexts < FEW_CONTEXTS and typical(self.observed) * share >= 1)

    def split_within(self, share: float = HELD_OUT) -> Tensor:
        """Return which instances have candidates on both sides where `split` splits these, (N,)."""
        return self.observed >= (2 if self.instances == 1 else 1 / share)

    def splits_contexts(self, share: float = HELD_OUT) -> bool:
        """Return whether `split_instances` has instances of one context on both sides: of a single one, or of few."""
        return spans_groups(self._groups, share)

    def _observed(self, chosen: list[Tensor]) -> ValueData:
        """Return these candidates of each instance, filled up where some have fewer."""
        counts = torch.tensor([len(index) for index in chosen])
        width = int(counts.max())
        index = torch.stack([own[torch.arange(width) % len(own)] for own in chosen])
        x = self.x.gather(1, index.unsqueeze(-1).expand(-1, -1, self.dim))
        return ValueData(self.context, x, self.value.gather(1, index), counts)

    def split_instances(self, share: float = HELD_OUT, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return the numbers of the instances, at least two, of `split`'s two parts."""
        return split_groups(self._groups, share, seed)

    @cached_property
    def _groups(self) -> Tensor:
        return groups_of(self.context)

    @property
    def _contexts(self) -> int:
        """The number of different contexts."""
        return int(self._groups.max()) + 1

    def columns(self, index: Tensor) -> ValueData:
        """Return the candidates `index` of every instance."""
        return ValueData(self.context, self.x[:, index], self.value[:, index])

    def rows(self, index: Tensor) -> ValueData:
        """Return the instances `index`."""
        counts = None if self.counts is None else self.counts[index]
        return ValueData(self.context[index], self.x[index], self.value[index], counts)

    def of_at_least(self, count: int) -> tuple[ValueData, ValueData | None]:
        """Return the instances with so many observed candidates, and the others; None where there are none."""
        many = self.observed >= count
        if bool(many.all()):
            return self, None
        return self.rows(many.nonzero()[:, 0]), self.rows((~many).nonzero()[:, 0])

    @property
    def replicated(self) -> bool:
        """Whether the candidates of every instance are one decision, measured more than once."""
        return self.candidates > 1 and bool((self.x == self.x[:, :1]).all())

    def one_by_one(self) -> ValueData:
        """Return every value as an instance of its own, those that only repeat others left out."""
        kept = torch.ones_like(self.value, dtype=torch.bool)
        if self.counts is not None:
            kept = torch.arange(self.candidates) < self.counts.unsqueeze(1)
        which = kept.nonzero()[:, 0]
        return ValueData(self.context[which], self.x[kept].unsqueeze(1), self.value[kept].unsqueeze(1))
