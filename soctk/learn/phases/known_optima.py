"""Learning from known optima (`soctk.learn.optimality`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torch import Tensor

from soctk.learn.lbfgs import lbfgs
from soctk.learn.optimality import Optima, OptimalityResiduals
from soctk.learn.optimizers import LBFGS, losses
from soctk.learn.phases.level import Level
from soctk.learn.phases.phase import Phase
from soctk.learn.residuals import Residuals
from soctk.learn.trainer import Trainer


@dataclass(frozen=True)
class KnownOptima(Phase):
    """Move the minima towards known optima, by the share of the loss that makes held-out decisions best, maybe none.

    Attributes:
        optima: the optima, of which a fifth is held out.
        weights: of the mean squared residual of their conditions of optimality, in turn.
        optimizer: for each weight.
        rows: observed values, about.
        level_weight: of the squared mean residual of an instance.
        level: run where decisions are better, since the other weights have moved the values' level.
        seed: of what is held out.
    """

    optima: Optima = field(repr=False)
    weights: tuple[float, ...]
    optimizer: LBFGS
    rows: int
    level_weight: float
    level: Level | None
    seed: int

    def steps(self, trainer: Trainer) -> int:
        """Return the iterations for all weights."""
        return len(self.weights) * self.optimizer.iterations

    def run(self, trainer: Trainer) -> None:
        """Try the weights one after the other, each from the best state so far."""
        trainer.load(trainer.best)
        parts = trainer.leveled(self.rows, self.level_weight)
        learned, judged = self.optima.split(self.seed)
        toward, check = (OptimalityResiduals(trainer.model, part) for part in (learned, judged))
        before = error = judged.decision_error(trainer.model)
        if not math.isfinite(trainer.report.best_validation):  # no phase came before
            trainer.report.best_validation = float(parts[1].total(trainer.model))
        for weight in self.weights:
            kept = trainer.report.best_validation
            self._descend(trainer, parts, toward, check, weight)
            reached = judged.decision_error(trainer.model)
            if reached < error:
                error, kept = reached, float(parts[1].total(trainer.model))
                trainer.keep()
            trainer.report.best_validation = kept
            trainer.load(trainer.best)
            if not trainer.time_left:
                break
        if error < before and self.level is not None:
            self.level.run(trainer)
        trainer.report.decision_errors = (before, error)

    def _descend(
        self,
        trainer: Trainer,
        parts: tuple[Residuals, Residuals],
        toward: OptimalityResiduals,
        check: OptimalityResiduals,
        weight: float,
    ) -> None:
        model, (train, held_out), options = trainer.model, parts, self.optimizer
        search = trainer.search(
            trainer.weights(),
            lambda: held_out.total(model) + weight * check.loss(model),
            options.iterations,
            validate_every=options.validate_every,
            patience=options.patience,
        )

        def conditions() -> Tensor:
            return weight * toward.loss(model)

        run = lbfgs(search, [*losses(trainer, train), conditions], history=options.history)
        trainer.record(replace(run, train=[], validation=[]))  # its losses compare with no other phase's
