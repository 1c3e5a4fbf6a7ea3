"""Whether values near the best of every instance count most, where `FitConfig.focus` leaves that to the data.

Values that grow by orders of magnitude away from the optimum (a penalty, an overload) have a few far ones that make up
most of their variance: the kurtosis of what varies within an instance says so, 1.8 for uniform values, 3 for normal
ones. Least squares then fits those few, and decisions, which are made where values are least, are bad. But weights by
the values take noise for structure (among noisy values the least are lucky ones), and a model that far values do not
hold may have minima where there are none.

So steep values are learned both ways, and what decides is what decisions are for: of each held-out instance either
model picks the candidate that it values least, and the observed values of these are compared. Noise in held-out values
favours neither. Often this tells them apart no more than by chance: both pick the best candidate nearly always, and a
single pick of a steep value outweighs all others. Decisions, which are not among the candidates, differ all the same,
and mostly the focus makes the better ones then. So the fit without it is kept only where its picks are better by more
than a standard error, and by more than a single pick can make of them. With the focus few candidates of an instance may
tell anything, and whether its affine function is still better projected out of them (`soctk.learn.residuals`) depends
on the model: then it is learned both ways, too, and of these two the one with the better picks goes on. The pick of a
few instances says little, nor does one of a few candidates, and a fit that ends with one centre has no use for weights:
there all values count alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from soctk.learn.data import ValueData
from soctk.learn.paired import clearly_better
from soctk.learn.phases.phase import Phase, run_in_turn, steps_of
from soctk.learn.trainer import Trainer, Weights

Picks = NDArray[np.floating]

FOCUS = 4.0
"""`FitConfig.focus` where it is for the data to say and they ask for one."""
FOCUSED_PENALTY = 1e-6
"""`FitConfig.penalty`, at least, beside that focus: values that count little hold branches up less."""
STEEP = 10.0
"""The kurtosis of values within an instance from which on they are learned with a focus too: the paper's tasks have 3
to 6, costs of power flows with penalties 14 to 29."""
FEWEST_CANDIDATES = 8
"""Of an instance, in training and validation data, to tell the best from the others."""
FEWEST_PICKS = 30
"""Held-out instances, for the means of their picks to be compared."""
REQUIRED_ERRORS = 1.2
"""Standard errors of paired differences by which picks without a focus have to be better. One standard error is usual
(Breiman et al. 1984), but a single pick that differs makes as many, whatever it is worth; two alike make 1.4."""


@dataclass(frozen=True)
class Focused(Phase):
    """Learn from all values alike, then from the start with a focus; keep that unless its picks are clearly worse.

    Where time is up before a later one is whole the best before is kept, and the status says that it was.

    Attributes:
        alike: phases in turn.
        focused: the same with the focus, one recipe or several.
    """

    alike: tuple[Phase, ...]
    focused: tuple[tuple[Phase, ...], ...]

    def steps(self, trainer: Trainer) -> int:
        return steps_of((*self.alike, *chain(*self.focused)), trainer)

    def run(self, trainer: Trainer) -> None:
        begun = trainer.present()
        run_in_turn(self.alike, trainer)
        if trainer.settled or not trainer.time_left:
            return
        best = picked(trainer)
        for phases in self.focused:
            if trainer.time_left:
                best = self._try(trainer, begun, phases, best)

    def _try(self, trainer: Trainer, begun: Weights, phases: tuple[Phase, ...], best: Picks) -> Picks:
        """Learn with the focus; keep what was there if its picks are the better ones, and return those kept."""
        has_one = trainer.focus > 0
        with trainer.attempt() as better:
            trainer.begin_again(begun, FOCUS)
            run_in_turn(phases, trainer)
            picks = picked(trainer)
            wanted = clearly_better(picks, best, 0.0) if has_one else not clearly_better(best, picks, REQUIRED_ERRORS)
            if trainer.time_left and not trainer.settled and wanted:
                better()
                best = picks
        return best

    def run_late(self, trainer: Trainer) -> None:
        for phase in self.alike:
            phase.run_late(trainer)


def can_compare(data: ValueData, validation: ValueData) -> bool:
    """Return whether values are steep, and so many that held-out picks tell whether a focus helps."""
    fewest = min(data.fewest, validation.fewest)
    return fewest >= FEWEST_CANDIDATES and validation.instances >= FEWEST_PICKS and is_steep(data)


def is_steep(data: ValueData) -> bool:
    """Return whether values grow so steeply away from the best of their instance that a focus on it may help."""
    squares = (data.value - data.value.mean(dim=1, keepdim=True)).double().square()
    variance = float(squares.mean())
    return variance > 0 and float((squares / variance).square().mean()) > STEEP


@torch.no_grad()
def picked(trainer: Trainer) -> Picks:
    """Return the values of the candidates of held-out instances that the model values least, (N,)."""
    held_out = trainer.standardized()[1]
    pick = trainer.model._value(held_out.x, held_out.context).argmin(dim=1, keepdim=True)
    return held_out.value.gather(1, pick).squeeze(1).cpu().numpy()
