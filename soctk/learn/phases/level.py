"""b0 alone. It never moves a decision, so all other phases may leave it out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.learn.lbfgs import lbfgs
from soctk.learn.phases.phase import Phase
from soctk.learn.trainer import Trainer
from soctk.learn.units import Standardized

PATIENCE = 3
"""A cheap loss is given this many times as long to improve."""


@dataclass(frozen=True)
class Level(Phase):
    """L-BFGS on b0, a regression on the context of what the other parts leave of every instance's mean.

    Attributes:
        iterations: at most.
        history: correction pairs.
        validate_every: iterations between validations.
        patience: validations without improvement before L-BFGS stops, as in other phases.
    """

    iterations: int
    history: int
    validate_every: int
    patience: int

    def run(self, trainer: Trainer) -> None:
        """Learn."""
        b0 = trainer.affine.b0
        train, held_out = trainer.standardized()
        targets, held_out_targets = _targets(trainer, train), _targets(trainer, held_out)
        search = trainer.search(
            trainer.affine.level_parameters(),
            lambda: (b0(held_out.context) - held_out_targets).square().mean(),
            self.iterations,
            validate_every=self.validate_every,
            patience=PATIENCE * self.patience,
            shown=False,
        )
        run = lbfgs(search, [lambda: (b0(train.context) - targets).square().mean()], history=self.history)
        trainer.record(run, whole=False)
        trainer.keep()


@torch.no_grad()
def _targets(trainer: Trainer, data: Standardized) -> Tensor:
    """Return what b0 should be for each instance: the mean of y - (f - b0), (N, 1)."""
    rest = (data.value - trainer.model._value(data.x, data.context)).mean(dim=1, keepdim=True)
    return rest + trainer.affine.b0(data.context)
