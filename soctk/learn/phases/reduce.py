"""Smaller structures than the one chosen, where they do as well: what a fit does not need keeps it from the exact one.

Sizes are guesses. Where the values come from fewer branches, or from a norm of fewer rows, the superfluous weights go
on fitting what the others have not reached yet, and Levenberg-Marquardt creeps; without them it converges to the
function itself. So the structure is pruned: blocks and directions are left out one by one (`soctk.models.reductions`),
each time with some steps for the others to follow.

The penalty of the weights falls with the loss, as that of a normal prior does: the residuals' variance over that of the
weights, divided by the number of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from soctk.learn.optimizers import LevenbergMarquardt
from soctk.learn.phases.curved import Curved
from soctk.learn.phases.phase import Phase
from soctk.learn.trainer import Trainer
from soctk.traits import Reduction

AS_GOOD = 0.5
"""A smaller structure goes on if this share of its validation loss is below the least so far: it has not converged."""
BETTER = 0.7
"""In the end it is taken if its loss is below this share of the loss before, as larger ones are (`Race`): with noise,
or where every branch is of use, it is not."""
PRIOR = 2e-3
"""The penalty as a share of the validation loss."""
STEPS, ROUNDS = 10, 4
"""Steps between two looks at the validation loss, and looks at most."""
SLOW = 0.8
"""A round that leaves more than this share of the loss is the last one of a structure that does as well."""
MOST_WEIGHTS = 2000
"""Weights of the curved part beyond which nothing is tried: a step of Levenberg-Marquardt takes seconds."""
LEAST = 1e-300
"""A loss below this is none, and none falls no further."""
LAST_STEPS, LAST_ROUNDS, LAST_SLOW = 20, 6, 0.85
"""The same for the smallest structure, which is given the time to become exact."""


class _Reached(NamedTuple):
    """Weights, blocks that are left out and the validation loss."""

    state: dict[str, Tensor]
    without: tuple[str, ...]
    loss: float


@dataclass(frozen=True)
class Reduce(Phase):
    """Leaves out what the curved part does not need, if that makes the validation loss fall.

    Attributes:
        rows: observed values in the end, about; half of them before.
        penalty: of the squared weights, at most.
    """

    rows: int
    penalty: float

    def steps(self, trainer: Trainer) -> int:
        """Return the steps of one pass in which nothing can be left out, and the last ones."""
        return (len(trainer.model.traits.reductions()) + 1) * 2 * STEPS + LAST_STEPS

    def run(self, trainer: Trainer) -> None:
        curved = sum(weight.numel() for weight in trainer.curved_weights())
        if not trainer.model.traits.reductions() or curved > MOST_WEIGHTS:
            return
        with trainer.attempt() as better:
            start = self._settle(trainer, self._loss(trainer), math.inf)
            reached = self._descend(trainer, start)
            self._load(trainer, reached)
            if self._converge(trainer, reached.loss) < BETTER * start.loss:
                better()

    def _descend(self, trainer: Trainer, start: _Reached) -> _Reached:
        """Return the smallest structure that does as well, all blocks tried in turn until none can become less."""
        reached, least = start, start.loss
        some = True
        while some:
            some, refused = False, set[str]()
            while trainer.time_left and (smaller := self._next(trainer, refused)) is not None:
                smaller.apply()
                tried = self._settle(trainer, least, least / AS_GOOD)
                if tried.loss <= least / AS_GOOD:
                    reached, least, some = tried, min(least, tried.loss), True
                else:
                    self._load(trainer, reached)
                    refused.add(smaller.block)
        return reached

    def _next(self, trainer: Trainer, refused: set[str]) -> Reduction | None:
        smaller = (each for each in trainer.model.traits.reductions() if each.block not in refused)
        return next(smaller, None)

    def _settle(self, trainer: Trainer, scale: float, wanted: float) -> _Reached:
        """Take steps for as long as they get anywhere; `scale` is the loss that the penalty goes by."""
        loss = math.inf
        for _ in range(ROUNDS):
            before, loss = loss, self._steps(trainer, STEPS, self.rows // 2, scale)
            rate = loss / max(before, LEAST)  # 0 at first
            hopeless = loss > wanted and loss * rate**3 > wanted
            if hopeless or (loss <= wanted and rate > SLOW) or not trainer.time_left:
                break
        return self._reached(trainer, loss)

    def _converge(self, trainer: Trainer, loss: float) -> float:
        """Take the last steps from where the loss is `loss`; return what it becomes."""
        for _ in range(LAST_ROUNDS):
            before, loss = loss, self._steps(trainer, LAST_STEPS, self.rows, loss)
            if loss > LAST_SLOW * before or not trainer.time_left:
                break
        return loss

    def _steps(self, trainer: Trainer, steps: int, rows: int, scale: float) -> float:
        penalty = min(self.penalty, PRIOR * scale)
        Curved(LevenbergMarquardt(steps, penalty), rows).run(trainer)
        return self._loss(trainer)

    def _loss(self, trainer: Trainer) -> float:
        return float(trainer.projected(self.rows // 2)[1].total(trainer.model).detach())

    def _reached(self, trainer: Trainer, loss: float) -> _Reached:
        return _Reached(trainer.state(), trainer.model.traits.without, loss)

    def _load(self, trainer: Trainer, reached: _Reached) -> None:
        traits = trainer.model.traits
        traits.set_structure(traits.structure, reached.without)
        trainer.load(reached.state)
