"""More branches than the sizes that were guessed, where that makes the validation loss fall.

The other side of `soctk.learn.phases.reduce`: where every branch is of use there may be too few. A sum of many kinks in
as many directions needs a branch for each. So as many hyperbolic branches as there are variables are put beside those
found, with random rows and small weights, and the curved part is learned on from the better of two draws. The branches
that were there have their places already; the new ones take what these leave.

With the affine part projected out, a branch far outside of the data may fit what is left within every instance, with a
slope and a level that b0 and v cannot follow from one context to the next. So both are compared as a whole too, with
regressions on the context for b0 and v.
"""

from __future__ import annotations

from dataclasses import dataclass

from soctk.learn.phases.draws import best_draw
from soctk.learn.phases.phase import Phase, run_in_turn, steps_of
from soctk.learn.phases.race import EXACT, REQUIRED_IMPROVEMENT
from soctk.learn.trainer import Trainer

FOLLOWED = 4.0
"""Growth is not kept if b0 and v leave this many times the squared error with it: that they err by more is usual, as a
better curved part is another; those that no longer follow leave 14 times and more."""


@dataclass(frozen=True)
class Grow(Phase):
    """Adds hyperbolic branches if the validation loss is clearly smaller with them, as it must be for any structure.

    Attributes:
        starts: draws of them.
        draw: the phase that each is learned by.
        then: those that go on from the best draw; the first tells by which residuals the two are compared.
        follow: those by which b0 and v follow the curved part.
        rows: observed values by which the two are compared as a whole, about.
        most: weights of the curved part beyond which nothing is tried: a step of Levenberg-Marquardt takes seconds.
    """

    starts: int
    draw: Phase
    then: tuple[Phase, ...]
    follow: tuple[Phase, ...]
    rows: int
    most: int

    def steps(self, trainer: Trainer) -> int:
        return self.starts * self.draw.steps(trainer) + steps_of(self.then, trainer)

    def run(self, trainer: Trainer) -> None:
        model, held_out = trainer.model, self.then[0].held_out(trainer)
        set_branches, count = model.traits.set_branches, model.traits.branches
        if set_branches is None or held_out is None or count == 0 or not trainer.time_left:
            return
        loss, more = float(held_out.total(model)), count + model.dim
        if loss <= EXACT:
            return
        with trainer.attempt() as better:
            set_branches(more, 0)
            if sum(weight.numel() for weight in trainer.curved_weights()) > self.most:
                return
            set_branches(count, 0)
            whole = self._whole(trainer)
            best = best_draw(trainer, self.draw, self.starts, lambda seed: set_branches(more, seed))
            if best is not None:
                trainer.take(best)
                trainer.keep()
                run_in_turn(self.then, trainer)
                smaller = float(held_out.total(model)) < REQUIRED_IMPROVEMENT * loss
                if smaller and self._whole(trainer) < FOLLOWED * whole:
                    better()

    def _whole(self, trainer: Trainer) -> float:
        """Return the validation loss, levels and all, with a regression each for b0 and v, which stay as they are."""
        with trainer.attempt():
            for phase in self.follow:
                phase.run_late(trainer)
            return float(trainer.weighted(self.rows, 1.0)[1].total(trainer.model))
