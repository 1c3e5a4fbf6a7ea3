"""b0 alone. It never moves a decision, so all other phases may leave it out.

Where values have weights (`FitConfig.focus`) the mean of an instance is by these: what a decision promises is to be
right, not what is far from any.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from soctk.learn.optimizers import LBFGS
from soctk.learn.phases.phase import Phase
from soctk.learn.trainer import Trainer


@dataclass(frozen=True)
class Level(Phase):
    """A regression on the context of what the other parts leave of every instance's mean.

    Attributes:
        optimizer: the method; an iteration is cheap.
    """

    optimizer: LBFGS

    def run(self, trainer: Trainer) -> None:
        b0, losses = trainer.affine.b0, []
        for part in trainer.focused():
            with torch.no_grad():  # what b0 should be for each instance: the mean of y - (f - b0)
                rest = part.value - trainer.model._value(part.x, part.context)
                if part.root is not None:
                    rest = rest * part.root.square() / part.root.square().mean(dim=1, keepdim=True)
                targets = rest.mean(dim=1, keepdim=True) + b0(part.context)
            losses.append(lambda part=part, targets=targets: (b0(part.context) - targets).square().mean())
        weights = trainer.affine.level_parameters()
        run = self.optimizer.minimize(trainer, weights, losses[:1], losses[1], shown=False)
        trainer.record(run, whole=False)
        trainer.keep()
