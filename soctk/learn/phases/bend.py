"""Offsets and weights that bend with the context, where values say that they do.

Up to here offsets and the arguments of weights are affine in the context. Where those of the values are not, as the
centre of a norm that follows the hour of the day, the branches stay at some distance from what they should be, however
long they are learned. So hidden units of the context are put beside it (`soctk.context_units`), shared by all offsets
and weights, none of which has a part in them at first; from several draws of them the weights of the curved part are
learned on, with the best affine function of every instance projected out where values can spare it. A structure
without what it does not need (`soctk.learn.phases.reduce`) comes first: with branches to spare there is too much that
can bend.

What the curved part gains v may lose, which has to follow it: with contexts of heavy tails it could not. And where v
limits both, what is gained shows only once all weights are learned together. So the phases that follow are run both
ways before the two are compared, on all that validation data say but the level.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from soctk.learn.phases.draws import best_draw
from soctk.learn.phases.phase import Phase, run_in_turn, steps_of
from soctk.learn.trainer import Trainer

BETTER = 0.9
"""Units are kept if the validation loss is below this share of that without them. Not the .7 of larger structures:
what is compared holds v's errors too, which are much the same in both."""
LEAST = 1e-20
"""A validation loss below this is none."""


@dataclass(frozen=True)
class Bend(Phase):
    """Hidden units of the context for the curved part, if the validation loss is smaller with them in the end.

    Attributes:
        units: how many.
        starts: draws of them.
        draw: the phase that each is learned by.
        then: those that go on from the best draw.
        after: those that follow with units or without.
        rows: observed values by which the two are compared, about.
        level_weight: of the squared mean residual of an instance there.
    """

    units: int
    starts: int
    draw: Phase
    then: tuple[Phase, ...]
    after: tuple[Phase, ...]
    rows: int
    level_weight: float

    def steps(self, trainer: Trainer) -> int:
        return self.starts * self.draw.steps(trainer) + steps_of((*self.then, *self.after, *self.after), trainer)

    def run(self, trainer: Trainer) -> None:
        begun, units = trainer.present(), trainer.model.traits.units
        for phase in self.after:  # whatever the time: v has to follow the curved part
            phase.run(trainer)
        loss = self._loss(trainer)
        if loss <= LEAST or not trainer.time_left or units is None:
            return
        with trainer.attempt() as better:
            trainer.take(begun)
            change = partial(units.resize, self.units, trainer.model)
            best = best_draw(trainer, self.draw, self.starts, change)
            if best is not None:
                trainer.take(best)
                trainer.keep()
                run_in_turn((*self.then, *self.after), trainer)
                if trainer.time_left and self._loss(trainer) < BETTER * loss:
                    better()

    def run_late(self, trainer: Trainer) -> None:
        for phase in self.after:
            phase.run_late(trainer)

    def _loss(self, trainer: Trainer) -> float:
        return float(trainer.weighted(self.rows, self.level_weight)[1].total(trainer.model))
