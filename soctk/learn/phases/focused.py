"""Whether values near the best of every instance count most, where `FitConfig.focus` leaves that to the data.

Values that grow by orders of magnitude away from the optimum (a penalty, an overload) have a few far ones that make up
most of their variance: the kurtosis of what varies within an instance says so, 1.8 for uniform values, 3 for normal
ones. Least squares then fits those few, and decisions, which are made where values are least, are bad. But weights by
the values take noise for structure: among noisy values the least are lucky ones. So what was learned with weights is
kept only where no noise is to be seen: near the best it must be right to a fraction of the values' deviation on
validation data, and far from it not altogether wrong, lest there be minima that no value speaks against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.learn.data import ValueData
from soctk.learn.phases.phase import Phase, run_in_turn, steps_of
from soctk.learn.trainer import Trainer

FOCUS = 4.0
"""`FitConfig.focus` where it is for the data to say and they ask for one."""
FOCUSED_PENALTY = 1e-6
"""`FitConfig.penalty`, at least, beside that focus: values that count little hold branches up less."""
STEEP = 10.0
"""The kurtosis of values within an instance from which on they are learned with a focus at first: the paper's tasks
have 3 to 6, costs of power flows with penalties 14 to 29."""
FEWEST_CANDIDATES = 8
"""Of an instance, to tell the best from the others."""
NEAR = 0.1
"""The largest root mean squared error by the weights, in standard deviations of values within an instance."""
FAR = 0.2
"""The largest share of the variance within an instance that may be left without weights."""


@dataclass(frozen=True)
class Focused(Phase):
    """Run phases with a focus, and if that did not go well begin again without.

    Attributes:
        phases: in turn, with the focus.
        otherwise: without it.
    """

    phases: tuple[Phase, ...]
    otherwise: tuple[Phase, ...]

    def steps(self, trainer: Trainer) -> int:
        return steps_of(self.phases, trainer)

    def run(self, trainer: Trainer) -> None:
        trainer.focus = FOCUS
        begun = trainer.present()
        run_in_turn(self.phases, trainer)
        if not trainer.time_left or fits(trainer):
            return
        found = trainer.present()
        trainer.begin_again(begun)
        whole = False
        try:
            run_in_turn(self.otherwise, trainer)
            whole = trainer.time_left
        finally:
            if not whole:
                trainer.fall_back(found)

    def run_late(self, trainer: Trainer) -> None:
        for phase in self.phases:
            phase.run_late(trainer)


def is_steep(data: ValueData) -> bool:
    """Return whether values grow so steeply away from the best of their instance that those near it are to count."""
    if data.candidates < FEWEST_CANDIDATES:
        return False
    squares = (data.value - data.value.mean(dim=1, keepdim=True)).double().square()
    variance = float(squares.mean())
    return variance > 0 and float((squares / variance).square().mean()) > STEEP


@torch.no_grad()
def fits(trainer: Trainer) -> bool:
    """Return whether what was learned with the trainer's focus is right near the best, and not wrong far from it."""
    held_out = trainer.standardized()[1].focused(trainer.focus)
    assert held_out.root is not None
    rest = held_out.value - trainer.model._value(held_out.x, held_out.context)
    scale = _deviation(held_out.value, torch.ones_like(rest))
    near = _deviation(rest, held_out.root.square())
    return near <= NEAR * scale and _deviation(rest, torch.ones_like(rest)) <= math.sqrt(FAR) * scale


def _deviation(value: Tensor, weight: Tensor) -> float:
    """Return the standard deviation within instances, by weights."""
    mean = (weight * value).sum(dim=1, keepdim=True) / weight.sum(dim=1, keepdim=True)
    return float(((weight * (value - mean).square()).sum() / weight.sum()).sqrt())
