"""Structures with one centre for all branches: chosen by cross-validation, learned from all data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.learn.ladder import Ladder, Step
from soctk.learn.trainer import Trainer
from soctk.learn.units import Standardized

CHOOSING = 3
"""Where instances have several candidates, the choice is made on this part of the values that the fit then uses."""


@dataclass(frozen=True)
class OneCentre:
    """Chooses among the model's structures with one centre (`TrainingTraits.centred`).

    Attributes:
        rows: observed values, about, where instances have several; all of single ones.
        level_weight: of the squared mean residual of an instance.
        seed: of folds and of the branches' rows.
    """

    rows: int
    level_weight: float
    seed: int

    def choose(self, trainer: Trainer) -> Step | None:
        """Leave the model with the structure that the training data ask for; None where there are too many weights."""
        ladder, (train, _) = self._ladder(trainer), self._data(trainer, self.rows // CHOOSING)
        if not ladder.can_climb(train):
            return None
        try:
            step = ladder.choose(train)
            self._place(trainer, ladder, step, train)
        except torch.linalg.LinAlgError:  # nothing varies, or all of it together
            return None
        return step

    def finish(self, trainer: Trainer, step: Step) -> None:
        """Learn the structure, from the values that chose it too if they were split off; the fit ends with it.

        The quadratic, whose equations take one pass, is learned from all values, the others from `rows` of them.
        """
        train, held_out = self._data(trainer, trainer.data.value.numel() if step == Step(0) else self.rows)
        data = _joined(train, held_out) if trainer.own_split else train
        self._place(trainer, self._ladder(trainer), step, data)
        trainer.keep()
        trainer.settled = True

    def _ladder(self, trainer: Trainer) -> Ladder:
        return Ladder(trainer.model.traits.centred, self.level_weight, self.seed, lambda: trainer.deadline.passed)

    def _data(self, trainer: Trainer, rows: int) -> tuple[Standardized, Standardized]:
        """Return training and validation data on the processor, an equal share of every instance's candidates."""
        share = trainer.data.share(rows)
        train, held_out = (part.candidates(share) for part in trainer.standardized(device="cpu"))
        return train, held_out

    def _place(self, trainer: Trainer, ladder: Ladder, step: Step, data: Standardized) -> None:
        place = trainer.model.traits.place_centred
        assert place is not None
        place(step.index, ladder.fit(step, data).for_model())


def _joined(first: Standardized, second: Standardized) -> Standardized:
    """Return all data: all candidates of a single instance; of several, as many of each as both parts have."""
    single = first.context.shape[0] == second.context.shape[0] == 1 and torch.equal(first.context, second.context)
    count = min(first.x.shape[1], second.x.shape[1])
    parts = [first, second] if single else [part.candidates(count) for part in (first, second)]

    def joined(tensors: list[Tensor]) -> Tensor:
        return torch.cat(tensors, dim=1 if single else 0)

    def known(name: str, otherwise: Callable[[Tensor], Tensor]) -> Tensor | None:
        found = [(getattr(part, name), part.value) for part in parts]
        if all(some is None for some, _ in found):
            return None
        return joined([otherwise(value) if some is None else some for some, value in found])

    kept = known("root", torch.ones_like), known("repeats", lambda value: torch.zeros_like(value, dtype=torch.bool))
    context = first.context if single else joined([part.context for part in parts])
    x, value = joined([part.x for part in parts]), joined([part.value for part in parts])
    return Standardized(context, x, value, *kept)
