"""v alone: what the projected residuals leave open."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.checks import seeded
from soctk.conditioning import AffinePart
from soctk.learn.levenberg import levenberg_marquardt
from soctk.learn.phases.phase import Phase
from soctk.learn.residuals import Residuals
from soctk.learn.search import Run
from soctk.learn.trainer import Trainer


@dataclass(frozen=True)
class Slope(Phase):
    """Levenberg-Marquardt on v: a regression of every instance's best slope on the context, coordinate by coordinate.

    First with the ridge functions that the model has, from where they are; then with few of them, from several starts:
    a response that is affine, or saturates once, is found exactly by one or two and blurred by many. Each coordinate
    keeps what is best on validation data.

    Attributes:
        iterations: steps.
        patience: steps without a better validation loss before it stops.
        counts: how few.
        starts: of each of them.
    """

    iterations: int = 40
    patience: int = 5
    counts: tuple[int, ...] = (0, 1, 2, 4)
    starts: int = 8

    def run(self, trainer: Trainer) -> None:
        model, part = trainer.model, trainer.affine
        data = trainer.focused()
        regression = _Regression(
            *(each.context for each in data),
            *(Residuals.projected(each).slope_targets(model, part) for each in data),
        )
        trainer.record(self._learn(trainer, part, regression), whole=False)
        for count in (count for count in self.counts if count < part.ridges):
            for start in range(self.starts if count > 0 else 1):
                if trainer.time_left:
                    few = part.with_ridges(count, seeded(start))
                    self._learn(trainer, few, regression)
                    part.take(few, regression.errors(few) < regression.errors(part))
        trainer.keep()

    def _learn(self, trainer: Trainer, part: AffinePart, regression: _Regression) -> Run:
        search = trainer.search(
            part.slope_parameters(),
            lambda: regression.errors(part).mean(),
            self.iterations,
            self.patience,
            shown=False,
            problems=part.dim,
        )
        context = regression.context
        return levenberg_marquardt(search, lambda: regression.residual(part), lambda: part.v_jacobian(context))


@dataclass(frozen=True, eq=False)
class _Regression:
    """Contexts (N, p) and slopes (N, n), to learn from and to validate by."""

    context: Tensor
    held_out_context: Tensor
    slope: Tensor
    held_out_slope: Tensor

    def residual(self, part: AffinePart) -> Tensor:
        """Return what v leaves, (n, N)."""
        return (part.v(self.context)[:, 0] - self.slope).mT

    @torch.no_grad()
    def errors(self, part: AffinePart) -> Tensor:
        """Return the mean squares on validation data, (n,)."""
        return (part.v(self.held_out_context)[:, 0] - self.held_out_slope).square().mean(dim=0)
