"""Whether one model's errors are less than another's on the same rows, by more than chance."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def clearly_better(errors: ArrayLike, others: ArrayLike, required: float) -> bool:
    """Return whether errors are less than others in the mean, by more than so many standard errors of the differences.

    Args:
        errors, others: (N,), of the same rows.
        required: standard errors. A single row that differs makes 1 / sqrt(1 - 1/N), whatever it differs by.
    """
    gain = np.asarray(others) - np.asarray(errors)
    if not np.isfinite(gain).all():
        return False
    return float(gain.mean()) > required * float(gain.std()) / math.sqrt(len(gain))
