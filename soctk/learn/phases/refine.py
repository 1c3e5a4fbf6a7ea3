"""The phases that follow the start chosen."""

from __future__ import annotations

from dataclasses import dataclass

from soctk.learn.phases.phase import Phase, steps_of
from soctk.learn.trainer import Trainer


@dataclass(frozen=True)
class Refine(Phase):
    """Phases that are all run once they have begun, whatever the time: v and b0 have to follow the curved part.

    Attributes:
        phases: in turn.
    """

    phases: tuple[Phase, ...]

    def steps(self, trainer: Trainer) -> int:
        return steps_of(self.phases, trainer)

    def run(self, trainer: Trainer) -> None:
        if trainer.settled:
            return
        for phase in self.phases:
            phase.run(trainer)
