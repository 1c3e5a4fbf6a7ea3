"""What is new in a model begins at random: several draws of it are learned, and the best goes on."""

from __future__ import annotations

import math
from collections.abc import Callable

from soctk.learn.phases.phase import Phase
from soctk.learn.trainer import Trainer, Weights


def best_draw(trainer: Trainer, draw: Phase, starts: int, change: Callable[[int], None]) -> Weights | None:
    """Return where the best draw comes to; None where time is up before the first.

    Args:
        trainer: at the weights that every draw begins with.
        draw: the phase that each is learned by, and whose held-out residuals tell which is best.
        starts: how many draws.
        change: puts what is new into the model, drawn by a seed.
    """
    begun, held_out = trainer.present(), draw.held_out(trainer)
    reached: list[tuple[float, Weights]] = []
    for seed in range(starts):
        if held_out is not None and trainer.time_left:
            trainer.take(begun)
            change(seed)
            draw.run(trainer)
            reached.append((float(held_out.total(trainer.model)), trainer.present()))
    return min(reached, key=lambda one: (math.isnan(one[0]), one[0]))[1] if reached else None
