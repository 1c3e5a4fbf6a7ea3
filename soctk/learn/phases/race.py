"""Where to begin: several starts and structures, of which the best on validation data goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from soctk.learn.phases.one_centre import OneCentre
from soctk.learn.phases.phase import Phase, run_in_turn, steps_of
from soctk.learn.report import FitStatus
from soctk.learn.trainer import Trainer, Weights
from soctk.surrogate import ConvexSurrogate

REQUIRED_IMPROVEMENT = 0.7
"""A larger structure is taken if its validation loss is below this share of the best smaller one's."""
EXACT = 1e-8
"""A validation loss, in units of the values' variance, that no larger structure need improve on."""
SEED_STEP = 1000
"""Between the seeds of a surrogate's own weights and of those drawn afresh: neighbouring seeds share none."""


@dataclass(frozen=True, eq=False)
class Reached:
    """Where a start or a structure has come to, `structure` and `start` their numbers, `without` as in `Weights`."""

    loss: float
    state: dict[str, Tensor]
    status: FitStatus
    structure: int = 0
    start: int = 0
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Race(Phase):
    """Train every structure from every start and go on with the best on validation data.

    The smallest structure comes first and a larger one must be clearly better to be taken, or the climb ends: a norm
    that the data do not need splits a kink in two and costs more regret than it saves error. Structures with one
    centre are compared among themselves by cross-validation (`soctk.learn.ladder`).

    Attributes:
        starts: initial weights: the model's own, then others drawn afresh where that can be (`can_redraw`).
        keep: how many of them, the best after the phases but the last, get the last one.
        structures: how many structures to choose from; 1 leaves the model with its own.
        phases: what every start gets.
        grown: what a larger structure gets that goes on from where the smaller one has its weights; None where it
            begins afresh.
        centred: for structures with one centre.
        contest: whether a larger structure that is no better than those with one centre yet gets the phases that follow
            (`Trainer.contest`): those are learned to the end, it is not, and values that are plenty tell in the end.
    """

    starts: int
    keep: int
    structures: int
    phases: tuple[Phase, ...]
    grown: tuple[Phase, ...] | None = None
    centred: OneCentre | None = None
    contest: bool = False

    def steps(self, trainer: Trainer) -> int:
        return self.structures * self.starts * steps_of(self.phases, trainer)

    def run(self, trainer: Trainer) -> None:
        starts = self._initial_weights(trainer)
        if self.structures > 1:
            best = self._climb(trainer, starts)
        else:
            best = replace(self._best_start(trainer, starts, self.phases), structure=trainer.model.traits.structure)
        trainer.take(Weights(best.structure, best.without, best.state))
        trainer.keep()
        trainer.report.best_validation, trainer.report.status = best.loss, best.status

    def _climb(self, trainer: Trainer, starts: list[dict[str, Tensor]]) -> Reached:
        """Try the structures from the smallest; return the best."""
        first = len(trainer.model.traits.centred)
        held_out = self.phases[-1].held_out(trainer) if first > 0 else None
        found = self.centred.choose(trainer) if self.centred is not None and held_out is not None else None
        if found is None or held_out is None:
            best, first = self._structure(trainer, first, starts, self.phases), first + 1
        else:
            best = Reached(float(held_out.total(trainer.model)), trainer.state(), FitStatus.CONVERGED, found.index)
            trainer.whole = trainer.present()
        challenger: Reached | None = None
        for index in range(first, self.structures):
            if best.loss <= EXACT or not trainer.time_left:
                break
            phases = self.phases
            if self.grown is not None:
                starts = [trainer.windowed.grown(best.state, start) for start in starts]
                phases = self.grown
            reached = self._structure(trainer, index, starts, phases, None if found is None else best.loss)
            if reached.loss >= REQUIRED_IMPROVEMENT * best.loss:
                challenger = reached
                break
            best, found = reached, None
        if found is None or self.centred is None:
            return best
        self.centred.finish(trainer, found)
        best = replace(best, state=trainer.best)
        if challenger is None or held_out is None or not (self.contest and trainer.time_left):
            return best
        trainer.contest(held_out, REQUIRED_IMPROVEMENT * best.loss)
        return challenger

    def _structure(
        self,
        trainer: Trainer,
        index: int,
        starts: list[dict[str, Tensor]],
        phases: tuple[Phase, ...],
        to_beat: float | None = None,
    ) -> Reached:
        """Return where the best start of a structure comes to; the first alone if it is no better than `to_beat`."""
        trainer.model.traits.set_structure(index)
        if to_beat is not None and len(starts) > 1:
            first = replace(self._best_start(trainer, starts[:1], phases), structure=index)
            if first.loss >= to_beat or not trainer.time_left:
                return first
            others = replace(self._best_start(trainer, starts[1:], phases), structure=index)
            return min(first, others, key=lambda one: (math.isnan(one.loss), one.loss))
        return replace(self._best_start(trainer, starts, phases), structure=index)

    def _best_start(self, trainer: Trainer, starts: list[dict[str, Tensor]], phases: tuple[Phase, ...]) -> Reached:
        reached = [Reached(math.inf, start, trainer.report.status, start=number) for number, start in enumerate(starts)]
        for part in (phases[:-1], phases[-1:]):
            if part and trainer.time_left:
                reached = self._run(trainer, reached, part)
        return reached[0]

    def _run(self, trainer: Trainer, begun: list[Reached], phases: tuple[Phase, ...]) -> list[Reached]:
        """Run phases from each state; return what goes on, the best first."""
        reached = []
        for one in begun:
            trainer.start = one.start
            # Whole again, where phases have left something out of the one before.
            trainer.take(Weights(trainer.model.traits.structure, (), one.state))
            trainer.keep()
            trainer.report.best_validation = math.inf
            run_in_turn(phases, trainer)
            phases[-1].keep_whole(trainer)
            report = trainer.report
            found = {"state": trainer.best, "status": report.status, "without": trainer.model.traits.without}
            reached.append(replace(one, loss=report.best_validation, **found))
            if not trainer.time_left:
                break
        return sorted(reached, key=lambda one: (math.isnan(one.loss), one.loss))[: self.keep]

    def _initial_weights(self, trainer: Trainer) -> list[dict[str, Tensor]]:
        others = [redrawn(trainer.model, number).state_dict() for number in range(1, self.starts)]
        return [trainer.state(), *({name: tensor.detach().double() for name, tensor in o.items()} for o in others)]


def can_redraw(model: ConvexSurrogate) -> bool:
    """Return whether the model's `config()` has a seed, so that others of its sizes can be made."""
    return type(model).config is not ConvexSurrogate.config and "seed" in model.config()


def redrawn(model: ConvexSurrogate, number: int) -> ConvexSurrogate:
    """Return a new surrogate of the same sizes with other initial weights."""
    config = model.config()
    return type(model)(**config | {"seed": config["seed"] + SEED_STEP * number}).to(model.device, model.dtype)
