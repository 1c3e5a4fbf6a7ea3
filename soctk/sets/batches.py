"""Matrices with leading sizes 1 or N, where one row stands for all."""

from __future__ import annotations

import numpy as np


def size_of(*parts: np.ndarray) -> int:
    """Return N, 1 where no leading size is another."""
    return next((len(part) for part in parts if len(part) != 1), 1)


def joined(*parts: np.ndarray) -> np.ndarray:
    """Return matrices side by side, N rows where one has so many."""
    size = size_of(*parts)
    if size != 1:
        parts = tuple(np.broadcast_to(part, (size, part.shape[1])) for part in parts)
    return np.concatenate(parts, axis=1)


def whole(array: np.ndarray) -> np.ndarray:
    """Return numbers that lie one after another and may be written to, as compiled code takes them."""
    return array if array.flags.c_contiguous and array.flags.writeable else array.copy()
