"""Directions without an interior. PyTorch is not loaded here."""

from __future__ import annotations

import numpy as np

NARROW = 1e-9
"""Directions with less than this between their ends, relative to them, are widened to it: barriers need an interior."""


def widened(low: np.ndarray, high: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ends of directions, those that are narrow or cross moved apart around their middle; `size` is theirs."""
    room = NARROW * (1 + size)
    narrow, middle = high - low < room, 0.5 * (low + high)
    return np.where(narrow, middle - 0.5 * room, low), np.where(narrow, middle + 0.5 * room, high)
