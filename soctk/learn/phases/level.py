"""b0 alone. It never moves a decision, so all other phases may leave it out.

Where values have weights (`FitConfig.focus`) the mean of an instance is by these: what a decision promises is to be
right, not what is far from any.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.conditioning import AffinePart
from soctk.learn.least_squares import ridge_regression
from soctk.learn.optimizers import LBFGS
from soctk.learn.phases.phase import Phase
from soctk.learn.trainer import Trainer
from soctk.learn.units import Standardized

RIDGE = 1e-9
"""Of least squares, relative to the features' mean square: few instances leave weights open."""


@dataclass(frozen=True)
class Level(Phase):
    """A regression on the context of what the other parts leave of every instance's mean.

    In the end, or where time is up at once, least squares take the place of what the iterations have reached if these
    are better on validation data.

    Attributes:
        optimizer: the method for all weights of b0; an iteration is cheap.
    """

    optimizer: LBFGS

    def run(self, trainer: Trainer) -> None:
        regression = LevelRegression.of(trainer)
        losses = [lambda: regression.loss(trainer.affine)]
        weights, validate = trainer.affine.level_parameters(), lambda: regression.held_out_loss(trainer.affine)
        run = self.optimizer.minimize(trainer, weights, losses, validate, shown=False)
        trainer.record(run, whole=False)
        regression.least_squares(trainer.affine)
        trainer.keep()

    def run_late(self, trainer: Trainer) -> None:
        LevelRegression.of(trainer).least_squares(trainer.affine)
        trainer.keep()


@dataclass(frozen=True, eq=False)
class LevelRegression:
    """Contexts (N, p) and what b0 should be there, (N, 1), to learn from and to validate by."""

    context: Tensor
    held_out_context: Tensor
    level: Tensor
    held_out_level: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, trainer: Trainer) -> LevelRegression:
        """Return what the model leaves but for b0: the mean of y - (f - b0) over every instance."""

        def left(part: Standardized) -> tuple[Tensor, Tensor]:
            rest = part.value - trainer.model._value(part.x, part.context)
            if part.root is not None:
                rest = rest * part.root.square() / part.root.square().mean(dim=1, keepdim=True)
            return part.context, rest.mean(dim=1, keepdim=True) + trainer.affine.b0(part.context)

        first, second = trainer.focused()
        context, level = (torch.cat(each) for each in zip(*map(left, [first, *trainer.focused_levels()]), strict=True))
        held_out_context, held_out_level = left(second)
        return cls(context, held_out_context, level, held_out_level)

    def loss(self, part: AffinePart) -> Tensor:
        """Return the mean square of what b0 leaves."""
        return (part.b0(self.context) - self.level).square().mean()

    def held_out_loss(self, part: AffinePart) -> Tensor:
        """Return the same on validation data."""
        return (part.b0(self.held_out_context) - self.held_out_level).square().mean()

    @torch.no_grad()
    def least_squares(self, part: AffinePart) -> None:
        """Give b0 the weights of least squares on affine or on all features, where these are better on validation."""
        features = part.level_features(self.context)
        for count in dict.fromkeys((1 + self.context.shape[1], features.shape[1])):
            best, before = copy.deepcopy(part.state_dict()), self.held_out_loss(part)
            some = features[:, :count]
            part.set_level(ridge_regression(some, self.level, RIDGE * float(some.square().mean()))[:, 0])
            if not self.held_out_loss(part) < before:
                part.load_state_dict(best)
