"""The flat outcome that the solvers fill in, and where the Newton method's iterations ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.decide.decision import Decision, Status, relative_gap

# np.full and np.where turn the members into plain strings; a table is quicker than the class.
_STATUSES = np.frompyfunc({status: status for status in Status}.__getitem__, 1, 1)


@dataclass
class Result:
    """The flat outcome of a solver: tensors with leading size N, statuses as an object array.

    `scale` is the unit that gaps are measured in, (N,); max(1, |value|) where it is None.
    """

    x: Tensor
    value: Tensor
    lower_bound: Tensor
    iterations: Tensor
    status: np.ndarray
    final: Final | None = None
    scale: Tensor | None = None

    @classmethod
    def unanswered(cls, x: Tensor, scale: Tensor | None = None) -> Result:
        """Return points (N, n) of which nothing is known yet."""
        size = x.shape[0]
        return cls(
            x=x.clone(),
            value=x.new_full((size,), torch.inf),
            lower_bound=x.new_full((size,), -torch.inf),
            iterations=torch.zeros(size, dtype=torch.int64, device=x.device),
            status=np.full(size, Status.ITERATION_LIMIT, dtype=object),
            scale=scale,
        )

    def improve(self, rows: Tensor, x: Tensor, value: Tensor, lower_bound: Tensor) -> None:
        """Keep, for the instances `rows`, whatever point and whatever bound are better."""
        better = value < self.value[rows]
        self.x[rows] = torch.where(better.unsqueeze(-1), x, self.x[rows])
        self.value[rows] = torch.where(better, value, self.value[rows])
        self.lower_bound[rows] = torch.maximum(self.lower_bound[rows], lower_bound)

    def decision(self, batch: tuple[int, ...], started: float, scale: Tensor | None = None) -> Decision:
        """Return the outcome in the batch's shape; `started` is the `time.perf_counter()` value at the call."""
        return Decision(
            x=self.x.reshape(*batch, self.x.shape[-1]),
            value=self.value.reshape(batch),
            lower_bound=self.lower_bound.reshape(batch),
            status=np.asarray(_STATUSES(self.status), dtype=object).reshape(batch),
            iterations=self.iterations.reshape(batch),
            seconds=time.perf_counter() - started,
            scale=None if scale is None else scale.reshape(batch),
        )

    def relative_gap(self, rows: Tensor) -> Tensor:
        """Return the gaps of the instances `rows` in their unit."""
        return relative_gap(self.value[rows], self.lower_bound[rows], None if self.scale is None else self.scale[rows])


@dataclass
class Final:
    """Where the iterations ended, all a derivative needs: tensors with leading size N.

    Attributes:
        x: the last iterate, strictly inside the bounds.
        mu: the last barrier weight, (N, 1).
        s_lo: multipliers of the lower bounds.
        s_hi: multipliers of the upper bounds, where there are any.
        lags: the lagged duals of each term.
    """

    x: Tensor
    mu: Tensor
    s_lo: Tensor
    s_hi: Tensor | None
    lags: list

    @classmethod
    def of(cls, state: Any) -> Final:
        """Copy what a state of the Newton method holds."""
        return map_tensors(torch.clone, cls(state.x, state.mu, state.s_lo, state.s_hi, state.lags))

    def put(self, index: Tensor, other: Final) -> None:
        """Overwrite the instances `index`."""

        def write(mine: Any, theirs: Any) -> None:
            if isinstance(mine, Tensor):
                mine[index] = theirs
            elif isinstance(mine, list | tuple):
                for pair in zip(mine, theirs, strict=True):
                    write(*pair)

        for name in self.__dataclass_fields__:
            write(getattr(self, name), getattr(other, name))


def map_tensors(fn: Callable[[Tensor], Tensor], item: Any) -> Any:
    """Apply `fn` to every tensor in tuples, lists and dataclasses."""
    if isinstance(item, Tensor):
        return fn(item)
    if isinstance(item, list | tuple):
        return type(item)(map_tensors(fn, part) for part in item)
    if hasattr(item, "__dataclass_fields__"):
        return type(item)(*(map_tensors(fn, getattr(item, name)) for name in item.__dataclass_fields__))
    return item
