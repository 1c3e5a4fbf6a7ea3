"""A cell: one measurement, cheap to send to a worker and the same on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Config = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Cell:
    """One measurement of an experiment; hashable.

    Attributes:
        experiment: for example "leaderboard".
        task: the task's name.
        dim: the decision dimension.
        method: the surrogate's or policy's name.
        seed: of the task, its data and the method.
        protocol: how decisions are made.
        config: everything else that determines the result, as sorted (name, value) pairs of JSON values.
    """

    experiment: str
    task: str
    dim: int
    method: str
    seed: int
    protocol: str
    config: Config = ()

    @property
    def name(self) -> str:
        """The cell in words, for progress lines."""
        return f"{self.task} d={self.dim} {self.method} seed {self.seed}"

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that say which cell this is, `config` as a dictionary."""
        fields = ("experiment", "task", "dim", "method", "seed", "protocol")
        return {field: getattr(self, field) for field in fields} | {"config": dict(self.config)}


def make_config(values: Mapping[str, Any]) -> Config:
    """Return a mapping of JSON values as sorted pairs, lists as tuples, so that a cell is hashable."""
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return tuple(sorted(frozen.items()))
