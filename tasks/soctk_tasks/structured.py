"""What the paper's two structured tasks share: data in three parts, and gaps in units of the energy's spread."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from soctk import Decision, ValueData, minimize
from soctk.checks import ArrayLike, check_count
from soctk_tasks.task import Task

SOLVE_TOLERANCE = 1e-6
"""Relative gap of the reference optima, in units of the energy's spread."""

SPREAD_INSTANCES = 50
LARGEST_PIECE = 2**23
"""Numbers of candidates evaluated at once: their images under the maps fit in a few hundred megabytes."""


@dataclass(frozen=True, eq=False)
class Part:
    """One part of the data.

    Attributes:
        data: contexts, candidates and their values.
        clean: (N, n), what the contexts were made from; no method may see it.
    """

    data: ValueData
    clean: Tensor


@dataclass(frozen=True, eq=False)
class Splits:
    """The data in three parts without a common instance."""

    train: Part
    validation: Part
    test: Part


@dataclass(frozen=True, eq=False)
class StructuredTask(Task):
    """A task whose contexts are signals: `draw` makes instances, `candidates` the decisions that are valued.

    Attributes:
        sizes: instances for training, validation and test.
        count: candidates of each instance.
    """

    sizes: tuple[int, int, int]
    count: int

    @abstractmethod
    def draw(self, instances: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return contexts (N, p) and what they were made from (N, n), reproducible from the seed."""

    @abstractmethod
    def draw_parts(self, sizes: tuple[int, int, int], seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return the contexts and clean signals of three parts without a common instance."""

    @abstractmethod
    def candidates(self, context: Tensor, clean: Tensor, count: int, seed: int) -> Tensor:
        """Return feasible decisions of different kinds, (N, count, n), reproducible from the seed."""

    def contexts(self, instances: int, seed: int) -> Tensor:
        """Return contexts (instances, p), reproducible from the seed."""
        return self.draw(instances, seed)[0]

    def sample(self, instances: int, candidates: int, seed: int) -> ValueData:
        """Return a data set, reproducible from the seed; its contexts are those of `contexts(instances, seed)`."""
        return self._part(*self.draw(instances, seed), candidates, seed).data

    def splits(self, seed: int = 0, sizes: tuple[int, int, int] | None = None, candidates: int | None = None) -> Splits:
        """Return training, validation and test data, by default of the paper's sizes.

        Args:
            seed: of instances and candidates.
            sizes: instances of each part.
            candidates: of each instance.
        """
        count = self.count if candidates is None else candidates
        drawn = self.draw_parts(self.sizes if sizes is None else sizes, seed)
        train, validation, test = (self._part(*pair, count, 3 * seed + k) for k, pair in enumerate(drawn))
        return Splits(train, validation, test)

    def _part(self, context: Tensor, clean: Tensor, candidates: int, seed: int) -> Part:
        check_count(candidates, "candidates")
        x = self.candidates(context, clean, candidates, seed + 1_000_003)
        return Part(ValueData(context, x, self.values(x, context)), clean)

    def values(self, x: Tensor, context: Tensor) -> Tensor:
        """Return the energies of candidates, x (N, M, n), context (N, p) -> (N, M), a few instances at a time."""
        rows = max(1, LARGEST_PIECE // (x.shape[1] * x.shape[2]))
        energy = self.surrogate()
        pieces = zip(x.split(rows), context.split(rows), strict=True)
        return torch.cat([energy.evaluate(*piece) for piece in pieces])

    @cached_property
    def spread(self) -> float:
        """The standard deviation of the candidates' energies, the unit of gaps: the energies are far below 1."""
        return float(self.sample(SPREAD_INSTANCES, self.count, seed=0).value.std())

    def start(self, context: Tensor) -> Tensor:
        """Return feasible decisions to start from, (*batch, p) -> (*batch, n)."""
        return self.feasible_set.center().expand(*context.shape[:-1], self.dim)

    def solve(self, context: ArrayLike, tol: float = SOLVE_TOLERANCE) -> Decision:
        """Return certified optima x* and f* for contexts (*batch, p), to a gap of `tol` times the spread."""
        surrogate = self.surrogate()
        start = self.start(surrogate.check_context(context))
        return minimize(surrogate, self.feasible_set, context, tol=tol, x0=start, scale=self.spread, method="newton_cg")

    def decision_error(self, x: Tensor, best: Tensor) -> Tensor:
        """Return ||x - x*||_2 / sqrt(n), (*batch, n) -> (*batch): the root mean square, as in the paper's tables."""
        return (x - best).square().mean(dim=-1).sqrt()


def choose_width(
    task: Task, context: Tensor, average: Callable[[Tensor, int], Tensor], widths: Iterable[int] = (1, 3, 5, 7, 9, 11)
) -> int:
    """Return the width of a moving average with the least mean energy, which is also the least mean regret.

    Args:
        task: whose energy is measured.
        context: (N, p), of validation instances.
        average: (context, width) -> decisions (N, n).
        widths: odd numbers to choose from.
    """
    return min(widths, key=lambda width: float(task.objective(average(context, width), context).mean()))
