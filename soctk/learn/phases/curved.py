"""The curved part alone, the best affine function of every instance projected out (`soctk.learn.residuals`)."""

from __future__ import annotations

from dataclasses import dataclass

from soctk.learn.optimizers import Optimizer
from soctk.learn.phases.phase import Phase
from soctk.learn.residuals import Residuals
from soctk.learn.trainer import Trainer


@dataclass(frozen=True)
class Curved(Phase):
    """Second-order iterations on all weights but the affine part's, undisturbed by how well that follows the context.

    Attributes:
        optimizer: the method.
        rows: observed values, about.
    """

    optimizer: Optimizer
    rows: int

    def steps(self, trainer: Trainer) -> int:
        return self.optimizer.steps(trainer)

    def held_out(self, trainer: Trainer) -> Residuals:
        return trainer.projected(self.rows)[1]

    def run(self, trainer: Trainer) -> None:
        weights = trainer.curved_weights()
        train, held_out = trainer.projected(self.rows)
        try:
            if weights:
                self.optimizer.run(trainer, weights, train, held_out)
            else:
                trainer.report.best_validation = float(held_out.loss(trainer.model).detach())
        finally:
            trainer.keep()
