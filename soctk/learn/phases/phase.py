"""What a phase is, and how several are run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from soctk.learn.residuals import Residuals
from soctk.learn.trainer import Trainer


class Phase(ABC):
    """A step of a training; its options are fields of a frozen dataclass."""

    @abstractmethod
    def run(self, trainer: Trainer) -> None:
        """Change the model's weights, record what happened, leave the model at the state to go on with."""

    def run_late(self, trainer: Trainer) -> None:
        """Do what the model cannot go without, though time is up before `run`; nothing by default."""
        return

    def keep_whole(self, trainer: Trainer) -> None:
        """Have a fit that ends early fall back on the present state, if all of it is learned; not by default."""
        return

    def held_out(self, trainer: Trainer) -> Residuals | None:
        """Return the residuals that the phase validates by; None for a phase that has none."""
        return None

    def steps(self, trainer: Trainer) -> int:
        """Return how many steps progress will be told of, about."""
        return 0


def run_in_turn(phases: Iterable[Phase], trainer: Trainer) -> None:
    """Run phases, each while time is left; what has to be done even then of the others."""
    for phase in phases:
        (phase.run if trainer.time_left else phase.run_late)(trainer)


def leave_whole(phases: Iterable[Phase], trainer: Trainer) -> None:
    """Leave an interrupted model as a deadline would: b0 and v follow what is learned of the curved part."""
    trainer.interrupt()
    if not (trainer.settled or trainer.refined):
        for phase in phases:
            phase.run_late(trainer)
        trainer.keep_better()


def steps_of(phases: Iterable[Phase], trainer: Trainer) -> int:
    """Return how many steps the phases take, about."""
    return sum(phase.steps(trainer) for phase in phases)
