"""All weights together, or all but those of the nonlinear responses to the context."""

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

    Few candidates tell little of how b0 and v bend with the context: their networks, most of a model's weights, wait
    until everything else has its place.

    Attributes:
        optimizers: the methods, one after the other.
        rows: observed values, about.
        level_weight: of the squared mean residual of an instance.
        networks: whether the affine part's networks move too.
        whitened: in whitened coordinates of the windows (`soctk.learn.whitening`).
    """

    optimizers: tuple[Optimizer, ...]
    rows: int
    level_weight: float
    networks: bool = True
    whitened: bool = False

    def steps(self, trainer: Trainer) -> int:
        return sum(optimizer.steps(trainer) for optimizer in self.optimizers)

    def held_out(self, trainer: Trainer) -> Residuals:
        return trainer.weighted(self.rows, self.level_weight)[1]

    def run(self, trainer: Trainer) -> None:
        parts = trainer.weighted(self.rows, self.level_weight)
        part = None if self.networks else trainer.model.traits.affine
        waiting = set() if part is None else {id(weight) for weight in part.network_parameters()}
        try:
            with whitened(trainer.windowed, *parts) if self.whitened else nullcontext(parts) as (train, held_out):
                for optimizer in self.optimizers:
                    if trainer.time_left:
                        weights = [weight for weight in trainer.weights() if id(weight) not in waiting]
                        optimizer.run(trainer, weights, train, held_out)
        finally:
            trainer.keep()

    def keep_whole(self, trainer: Trainer) -> None:
        trainer.keep_whole(self.level_weight)
