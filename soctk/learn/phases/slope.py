"""v alone: what the projected residuals leave open."""

from __future__ import annotations

from dataclasses import dataclass

from soctk.learn.levenberg import levenberg_marquardt
from soctk.learn.phases.phase import Phase
from soctk.learn.residuals import Residuals
from soctk.learn.trainer import Trainer


@dataclass(frozen=True)
class Slope(Phase):
    """Levenberg-Marquardt on v: a regression of every instance's best slope on the context, coordinate by coordinate.

    Attributes:
        iterations: steps.
        patience: steps without a better validation loss before it stops.
    """

    iterations: int = 40
    patience: int = 5

    def run(self, trainer: Trainer) -> None:
        model, part = trainer.model, trainer.affine
        data = trainer.focused()
        train, held_out = (Residuals.projected(each).slope_targets(model, part) for each in data)
        context, held_out_context = (each.context for each in data)
        search = trainer.search(
            part.slope_parameters(),
            lambda: (part.v(held_out_context)[:, 0] - held_out).square().mean(),
            self.iterations,
            self.patience,
            shown=False,
            problems=model.dim,
        )
        run = levenberg_marquardt(search, lambda: (part.v(context)[:, 0] - train).mT, lambda: part.v_jacobian(context))
        trainer.record(run, whole=False)
        trainer.keep()
