"""The noise floor: what no function of context and decision can predict.

It is an estimate, with a standard error: it may lie above an error that a model has on the same rows. Of replicated
rows, group g of which has the squares S_g about its mean and f_g degrees of freedom, it is s^2 = sum S_g / sum f_g, and
the variance of that is sum (S_g - f_g s^2)^2 / (sum f_g)^2 whatever the noise's distribution; s has the error of s^2
divided by 2 s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soctk.assessment.rows import Rows
from soctk.assessment.smoother import Smoother

FEWEST = 10
"""Degrees of freedom that replicated rows must have to be believed."""


@dataclass(frozen=True)
class Noise:
    """An estimated noise floor.

    Attributes:
        deviation: the standard deviation of the noise, in the values' units.
        error: the standard error of that.
        source: what it was measured on, in words.
    """

    deviation: float
    error: float
    source: str

    def __str__(self) -> str:
        return f"{self.deviation:.4g} ± {self.error:.2g}, estimated from {self.source}"


def noise_floor(rows: Rows, process: Smoother) -> Noise:
    """Return the noise of replicated rows where there are enough, else what a smooth function of residuals leaves."""
    ids = rows.points
    counts = np.bincount(ids)
    freedom = counts - 1
    squares = np.bincount(ids, np.square(rows.value - (np.bincount(ids, rows.value) / counts)[ids]))
    if freedom.sum() < FEWEST or not squares.any():  # rows that all agree are copies, which say nothing of noise
        source = "what is left of the residuals beside a smooth function of them"
        return Noise(process.noise, process.noise_error(), source)
    deviation = float((squares.sum() / freedom.sum()) ** 0.5)
    error = float(np.linalg.norm(squares - freedom * deviation**2)) / float(freedom.sum())
    error /= 2 * deviation
    return Noise(deviation, error, f"{int(counts[counts > 1].sum())} replicated rows")
