"""Offsets and weights that bend with the context, where values say that they do.

Up to here offsets and the arguments of weights are affine in the context. Where those of the values are not, as the
centre of a norm that follows the hour of the day, the branches stay at some distance from what they should be, however
long they are learned. So hidden units of the context are put beside it (`soctk.conditioning.ContextUnits`), shared by
all offsets and weights, none of which has a part in them at first; from several draws of them the weights of the curved
part are learned on, with the best affine function of every instance projected out. A structure without what it does not
need (`soctk.learn.phases.reduce`) comes first: with branches to spare there is too much that can bend.

What the curved part gains v may lose, which has to follow it: with contexts of heavy tails it could not. And where v
limits both, what is gained shows only once all weights are learned together. So the phases that follow are run both
ways before the two are compared, on all that validation data say but the level.
"""

from __future__ import annotations

from dataclasses import dataclass

from soctk.learn.optimizers import LBFGS, LevenbergMarquardt, Suited
from soctk.learn.phases.curved import Curved
from soctk.learn.phases.phase import Phase, run_in_turn, steps_of
from soctk.learn.trainer import Trainer, Weights

BETTER = 0.9
"""Units are kept if the validation loss is below this share of that without them. Not the .7 of larger structures:
what is compared holds v's errors too, which are much the same in both."""
STEPS, LAST_STEPS = 30, 20
"""Levenberg-Marquardt steps from every draw, and from the best one then."""
LEAST = 1e-20
"""A validation loss below this is none."""


@dataclass(frozen=True)
class Bend(Phase):
    """Hidden units of the context for the curved part, if the validation loss is smaller with them in the end.

    Attributes:
        units: how many.
        starts: draws of them.
        rows: observed values, about.
        penalty: of the squared weights.
        most: weights up to which Levenberg-Marquardt is used, where it suits the model.
        longer: what follows from the best draw, or is used in place of it.
        after: the phases that follow with units or without.
        level_weight: of the squared mean residual of an instance, where the two are compared.
    """

    units: int
    starts: int
    rows: int
    penalty: float
    most: int
    longer: LBFGS
    after: tuple[Phase, ...]
    level_weight: float

    def steps(self, trainer: Trainer) -> int:
        """Return the iterations of all draws by Levenberg-Marquardt and of what follows, at most."""
        return self.starts * STEPS + LAST_STEPS + self.longer.steps(trainer) + 2 * steps_of(self.after, trainer)

    def run(self, trainer: Trainer) -> None:
        begun, report = trainer.present(), trainer.report
        for phase in self.after:  # whatever the time: v has to follow the curved part
            phase.run(trainer)
        affine, loss, before = trainer.present(), self._loss(trainer), (report.status, report.best_validation)
        if loss <= LEAST or not trainer.time_left:
            return
        better = False
        try:
            best = self._best(trainer, begun)
            if best is not None:
                trainer.take(best)
                trainer.keep()
                last = Suited(LevenbergMarquardt(LAST_STEPS, self.penalty), self.most)
                run_in_turn((*(Curved(method, self.rows) for method in (last, self.longer)), *self.after), trainer)
                better = trainer.time_left and self._loss(trainer) < BETTER * loss
        finally:  # an interruption, too, leaves weights and units that go together
            if not better:
                trainer.take(affine)
                report.status, report.best_validation = before
            trainer.keep()

    def run_late(self, trainer: Trainer) -> None:
        for phase in self.after:
            phase.run_late(trainer)

    def _best(self, trainer: Trainer, begun: Weights) -> Weights | None:
        """Return where the best draw comes to; None where the model has no units, or time is up before the first."""
        units = trainer.model.traits.units
        reached: list[tuple[float, Weights]] = []
        for start in range(self.starts):
            if units is not None and trainer.time_left:
                trainer.take(begun)
                units.resize(self.units, trainer.model, start)
                draw = Suited(LevenbergMarquardt(STEPS, self.penalty), self.most, self.longer)
                Curved(draw, self.rows).run(trainer)
                loss = float(trainer.projected(self.rows)[1].total(trainer.model).detach())
                reached.append((loss, trainer.present()))
        return min(reached, key=lambda one: one[0])[1] if reached else None

    def _loss(self, trainer: Trainer) -> float:
        return float(trainer.weighted(self.rows, self.level_weight)[1].total(trainer.model).detach())
