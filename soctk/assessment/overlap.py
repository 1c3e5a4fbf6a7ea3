"""How far decisions are from those that were logged at such contexts: beyond all of them, costs are extrapolated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from soctk.assessment.rows import Rows
from soctk.support import MOST_NUMBERS, Support

MOST = 0.99
"""The share of logged decisions that are called most."""


@dataclass(frozen=True)
class Overlap:
    """Which decisions are far from the usual ones at their context, those of a least-squares regression on it.

    The distance is Mahalanobis' (`Support.distance_given`).

    Attributes:
        beyond_all: the share that are farther than any logged decision.
        beyond_most: the share that are farther than 99 % of them.
    """

    beyond_all: float
    beyond_most: float

    def __str__(self) -> str:
        told = (
            f"{self.beyond_all:.0%} of its decisions are farther from the usual ones at their context than any logged "
            f"decision, {self.beyond_most:.0%} than {MOST:.0%} of them"
        )
        return told + (": what they cost is extrapolated" if self.beyond_all > 0 else "")


def overlap(logged: Rows, context: np.ndarray, x: np.ndarray) -> Overlap | None:
    """Return that of decisions x (J, n) in contexts (J, p) with a log; None for more than 64 numbers of both."""
    if x.shape[1] + context.shape[1] > MOST_NUMBERS:
        return None
    support = Support.of((torch.from_numpy(logged.context), torch.from_numpy(logged.x)[:, None]))
    usual = np.quantile(support.distance_given(logged.context, logged.x), MOST)
    distance = support.distance_given(context, x)
    return Overlap(float((distance > support.farthest_given).mean()), float((distance > usual).mean()))
