"""Learning from known optima (`soctk.learn.optimality`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from soctk.learn.optimality import Optima, OptimalityResiduals
from soctk.learn.optimizers import LBFGS
from soctk.learn.phases.level import Level
from soctk.learn.phases.phase import Phase
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
        return len(self.weights) * self.optimizer.iterations

    def run(self, trainer: Trainer) -> None:
        model, report = trainer.model, trainer.report
        trainer.load(trainer.best)
        train, held_out = trainer.weighted(self.rows, self.level_weight)
        learned, judged = self.optima.split(self.seed)
        toward, check = (OptimalityResiduals(model, part) for part in (learned, judged))
        before = errors = judged.decision_errors(model)
        kept = report.best_validation
        if not math.isfinite(kept):  # no phase came before
            kept = float(held_out.total(model))
        for weight in self.weights:
            losses = [*train.losses(model), lambda weight=weight: weight * toward.loss(model)]
            run = self.optimizer.minimize(
                trainer,
                trainer.weights(),
                losses,
                lambda weight=weight: held_out.total(model) + weight * check.loss(model),
            )
            trainer.record(replace(run, train=[], validation=[]))  # its losses compare with no other phase's
            reached = judged.decision_errors(model)
            if reached[0] < errors[0]:
                errors, kept = reached, float(held_out.total(model))
                trainer.keep()
            trainer.load(trainer.best)
            if not trainer.time_left:
                break
        report.best_validation, report.decision_errors = kept, (before[1], errors[1])
        if errors[0] < before[0] and self.level is not None:
            self.level.run(trainer)
