"""The noise floor: what no function of context and decision can predict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soctk.assessment.rows import Rows
from soctk.assessment.smoother import Smoother

FEWEST = 10
"""Degrees of freedom that replicated rows must have to be believed."""


@dataclass(frozen=True)
class Noise:
    """A noise floor.

    Attributes:
        deviation: the standard deviation of the noise, in the values' units.
        source: what it was measured on, in words.
    """

    deviation: float
    source: str


def noise_floor(rows: Rows, process: Smoother) -> Noise:
    """Return the noise of replicated rows where there are enough, else what a smooth function of residuals leaves."""
    ids = np.unique(np.concatenate([rows.context, rows.x], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    counts = np.bincount(ids)
    freedom = int((counts - 1).sum())
    if freedom < FEWEST:
        return Noise(process.noise, "what is left of the residuals beside a smooth function of them")
    means = np.bincount(ids, rows.value) / counts
    squares = float(np.square(rows.value - means[ids]).sum())
    return Noise((squares / freedom) ** 0.5, f"{int(counts[counts > 1].sum())} replicated rows")
