"""The phases that follow the start chosen."""

from __future__ import annotations

from dataclasses import dataclass

from soctk.learn.phases.phase import Phase, steps_of
from soctk.learn.trainer import Trainer


@dataclass(frozen=True)
class Refine(Phase):
    """Phases that are all run once they have begun, whatever the time: v and b0 have to follow the curved part.

    Where they have not, v and b0 still do, in one regression each, unless what was reached before is better.

    Attributes:
        phases: in turn.
    """

    phases: tuple[Phase, ...]

    def steps(self, trainer: Trainer) -> int:
        return steps_of(self.phases, trainer)

    def run(self, trainer: Trainer) -> None:
        if trainer.settled:
            return
        if trainer.deadline.limited:  # so that there is something whole should time be up amid the phases
            begun = trainer.present()
            self.run_late(trainer)
            trainer.whole = trainer.present()
            trainer.take(begun)
            trainer.keep()
        for phase in self.phases:
            phase.run(trainer)
        trainer.decide_contest()
        if not trainer.time_left:
            trainer.keep_better()
        trainer.refined = True

    def run_late(self, trainer: Trainer) -> None:
        if trainer.settled:
            return
        self._follow(trainer)
        if trainer.whole is not None:
            present = trainer.present()
            trainer.take(trainer.whole)
            self._follow(trainer)
            trainer.keep_whole()
            trainer.take(present)
        trainer.keep_better()

    def _follow(self, trainer: Trainer) -> None:
        for phase in self.phases:
            phase.run_late(trainer)
