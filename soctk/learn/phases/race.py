"""Where to begin: several starts and structures, of which the best on validation data goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from soctk.learn.phases.phase import Phase, run_in_turn, steps_of
from soctk.learn.report import FitStatus
from soctk.learn.trainer import Trainer
from soctk.surrogate import ConvexSurrogate

REQUIRED_IMPROVEMENT = 0.7
"""A larger structure is taken if its validation loss is below this share of the best smaller one's."""
EXACT = 1e-9
"""A validation loss, in units of the values' variance, that no larger structure need improve on."""
SEED_STEP = 1000
"""Between the seeds of a surrogate's own weights and of those drawn afresh: neighbouring seeds share none."""


@dataclass(frozen=True, eq=False)
class Reached:
    """Where a start or a structure has come to."""

    loss: float
    state: dict[str, Tensor]
    status: FitStatus


@dataclass(frozen=True)
class Race(Phase):
    """Train every structure from every start and go on with the best on validation data.

    The smallest structure comes first and a larger one must be clearly better to be taken, or the climb ends: a norm
    that the data do not need splits a kink in two and costs more regret than it saves error.

    Attributes:
        starts: initial weights: the model's own, then others drawn afresh where that can be (`can_redraw`).
        structures: how many structures to choose from; 1 leaves the model with its own.
        phases: what every start gets.
        grown: what a larger structure gets that goes on from where the smaller one has its weights; None where it
            begins afresh.
    """

    starts: int
    structures: int
    phases: tuple[Phase, ...]
    grown: tuple[Phase, ...] | None = None

    def steps(self, trainer: Trainer) -> int:
        return self.structures * self.starts * steps_of(self.phases, trainer)

    def run(self, trainer: Trainer) -> None:
        starts = self._initial_weights(trainer)
        best = self._climb(trainer, starts) if self.structures > 1 else self._best_start(trainer, starts, self.phases)
        trainer.load(best.state)
        trainer.keep()
        trainer.report.best_validation, trainer.report.status = best.loss, best.status

    def _climb(self, trainer: Trainer, starts: list[dict[str, Tensor]]) -> Reached:
        """Try the structures from the smallest; leave the model with the best."""
        take = trainer.model.traits.set_structure
        take(0)
        best, chosen = self._best_start(trainer, starts, self.phases), 0
        for index in range(1, self.structures):
            if best.loss <= EXACT or not trainer.time_left:
                break
            take(index)
            phases = self.phases
            if self.grown is not None:
                starts = [trainer.windowed.grown(best.state, start) for start in starts]
                phases = self.grown
            reached = self._best_start(trainer, starts, phases)
            if reached.loss >= REQUIRED_IMPROVEMENT * best.loss:
                break
            best, chosen = reached, index
        take(chosen)
        return best

    def _best_start(self, trainer: Trainer, starts: list[dict[str, Tensor]], phases: tuple[Phase, ...]) -> Reached:
        best = Reached(math.inf, starts[0], trainer.report.status)
        for number, start in enumerate(starts):
            trainer.start = number
            trainer.load(start)
            trainer.keep()
            trainer.report.best_validation = math.inf
            run_in_turn(phases, trainer)
            loss = trainer.report.best_validation
            if loss < best.loss:
                best = Reached(loss, trainer.best, trainer.report.status)
            if not trainer.time_left:
                break
        return best

    def _initial_weights(self, trainer: Trainer) -> list[dict[str, Tensor]]:
        others = [redrawn(trainer.model, number).state_dict() for number in range(1, self.starts)]
        return [trainer.state(), *({name: tensor.detach().double() for name, tensor in o.items()} for o in others)]


def can_redraw(model: ConvexSurrogate) -> bool:
    """Return whether the model's `config()` has a seed, so that others of its sizes can be made."""
    return type(model).config is not ConvexSurrogate.config and "seed" in model.config()


def redrawn(model: ConvexSurrogate, number: int) -> ConvexSurrogate:
    """Return a new surrogate of the same sizes with other initial weights."""
    config = model.config()
    return type(model)(**config | {"seed": config["seed"] + SEED_STEP * number})
