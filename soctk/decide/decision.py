"""What a decision is: a feasible point, its value, a lower bound, and how the search ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from soctk.status import Status


@dataclass(frozen=True, eq=False)
class Decision:
    """A batch of decisions.

    Attributes:
        x: (*batch, n), feasible; NaN where `status` says there is none.
        value: f(x), (*batch).
        lower_bound: a rigorous lower bound of the minimum, (*batch); -inf where there is none.
        status: `Status` of each decision, an object array (*batch); compare with `== "optimal"`.
        iterations: (*batch), int64.
        seconds: wall-clock time of the whole call.
        scale: the unit of `relative_gap`, (*batch), where `minimize` was given one.
    """

    x: Tensor
    value: Tensor
    lower_bound: Tensor
    status: np.ndarray
    iterations: Tensor
    seconds: float
    scale: Tensor | None = None

    @property
    def gap(self) -> Tensor:
        """value - lower_bound, (*batch): the decision is at most this much worse than the best."""
        return (self.value - self.lower_bound).clamp(min=0)

    @property
    def relative_gap(self) -> Tensor:
        """gap / max(1, |value|), or gap / scale where there is one, (*batch): what `tol` is compared with."""
        return relative_gap(self.value, self.lower_bound, self.scale)

    @property
    def optimal(self) -> Tensor:
        """Whether each decision reached the tolerance, bool (*batch)."""
        return torch.as_tensor(self.status == Status.OPTIMAL, device=self.x.device)


def relative_gap(value: Tensor, lower_bound: Tensor, scale: Tensor | None = None) -> Tensor:
    """Return (value - lower_bound) / scale, not below 0; the scale is max(1, |value|) where none is given."""
    return (value - lower_bound).clamp(min=0) / (value.abs().clamp(min=1.0) if scale is None else scale)
