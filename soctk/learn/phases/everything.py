"""All weights together."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from soctk.learn.optimizers import Optimizer
from soctk.learn.phases.phase import Phase
from soctk.learn.residuals import Residuals
from soctk.learn.trainer import Trainer
from soctk.learn.whitening import whitened


@dataclass(frozen=True)
class Everything(Phase):
    """Second-order iterations on all weights.

    Attributes:
        optimizers: the methods, one after the other.
        rows: observed values, about.
        level_weight: of the squared mean residual of an instance.
        whitened: in whitened coordinates of the windows (`soctk.learn.whitening`).
    """

    optimizers: tuple[Optimizer, ...]
    rows: int
    level_weight: float
    whitened: bool = False

    def steps(self, trainer: Trainer) -> int:
        return sum(optimizer.steps(trainer) for optimizer in self.optimizers)

    def held_out(self, trainer: Trainer) -> Residuals:
        return trainer.leveled(self.rows, self.level_weight)[1]

    def run(self, trainer: Trainer) -> None:
        parts = trainer.leveled(self.rows, self.level_weight)
        with whitened(trainer.windowed, *parts) if self.whitened else nullcontext(parts) as (train, held_out):
            for optimizer in self.optimizers:
                if trainer.time_left:
                    optimizer.run(trainer, trainer.weights(), train, held_out)
        trainer.keep()
