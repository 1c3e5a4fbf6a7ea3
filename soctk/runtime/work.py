"""Memory for one decision, and the compiled functions on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from soctk.runtime.code import Call, Functions


class Work:
    """What one decision is computed in; another thread's has one of its own.

    Attributes:
        arrays: by name: those of the file, which nobody writes to, and own ones.
        state, data, common: own vectors (`soctk.decide.compiled.arrays`).
        calls: the compiled functions by name.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any], functions: Functions) -> None:
        own = {name: arrays[name].copy() for name in ("common", "data", "state")}
        own |= {name: np.zeros(shape) for name, shape in header["room"].items()}
        own["places"] = np.zeros(1, np.int64)
        self.arrays = {**arrays, **own}
        self.state, self.data, self.common = (self.arrays[name].reshape(-1) for name in ("state", "data", "common"))
        given = {**self.arrays, **header["numbers"]}
        self.calls = {
            name: Call(functions, name, [given[each] for each in names]) for name, names in header["calls"].items()
        }
