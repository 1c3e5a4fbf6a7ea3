"""A surrogate's training of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from soctk.learn.phases.phase import Phase
from soctk.learn.trainer import Trainer


@dataclass(frozen=True)
class Own(Phase):
    """A closed form or another package in place of the recipe (`TrainingTraits.own`).

    Attributes:
        train: leaves the model with its weights and tells the trainer how it went (`Trainer.judge`).
    """

    train: Callable[[Trainer], None]

    def run(self, trainer: Trainer) -> None:
        self.train(trainer)
