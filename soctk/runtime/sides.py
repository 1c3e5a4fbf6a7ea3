"""Right-hand sides of a polyhedron's rows, and what the search takes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from soctk.decide.narrow import widened
from soctk.runtime.code import Call


class Sides:
    """The right-hand sides that are in a decision's memory.

    Args:
        arrays: that memory.
        header: of the file.
        start: the state that searches begin with.
        reduce: the compiled function of the rows (`soctk.decide.compiled.free_rows`).
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any], start: np.ndarray, reduce: Call):
        self._arrays, self._reduce, self._narrow = arrays, reduce, header["narrow"]
        self._places = [start[slice(*header["state"][name])] for name in ("x", "best_x")]
        common = arrays["common"]
        self._largest, self._most = (slice(*header["common"]["largest"]), header["common"]["most"])
        self._common = common

    def give(self, f: np.ndarray, h: np.ndarray) -> None:
        """Take right-hand sides (k,) and (m,)."""
        arrays, count = self._arrays, f.size
        if np.array_equal(arrays["right"][:count], f) and np.array_equal(arrays["right"][count:], h):
            return
        arrays["right"][:count], arrays["right"][count:] = f, h
        arrays["given_f"][0], arrays["given_h"][0], arrays["every_f"][0, :count] = f, h, f
        arrays["largest"][:] = 0.0
        flags, low, high = self._reduce(), arrays["low"][0], arrays["high"][0]
        middle, largest, d = arrays["middle"][0], arrays["largest"], arrays["largest"].size
        if flags & self._narrow:
            low, high = widened(low, high, np.minimum(np.abs(low), np.abs(high)))
            middle, largest = 0.5 * (low[:d] + high[:d]), np.maximum(np.abs(low[:d]), np.abs(high[:d]))
        arrays["sides"][0] = np.concatenate([low[:d], high[:d], low[d:], high[d:]])
        self._common[self._largest], self._common[self._most] = largest, largest.sum()
        for place in self._places:
            place[:] = middle
