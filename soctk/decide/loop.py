"""The outer loop of the iterative methods: who is active, the best point and bound of each, and when to stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor

from soctk.decide.problem import Limits
from soctk.decide.result import Final, Result, picker
from soctk.forms.conic_form import ConicForm
from soctk.status import Status


class State(ABC):
    """A dataclass of tensors: where a method stands with the active instances, their number the leading size.

    `fixed` is what no iteration changes: the set, its bounds, the method's constants.
    """

    @abstractmethod
    def record(self, form: ConicForm, fixed: Any, best: Result, rows: Tensor, iteration: int, last: bool) -> Tensor:
        """Improve the best points and bounds of the instances `rows`; return which are stalled, bool.

        Args:
            form: the active functions.
            fixed: what no iteration changes.
            best: of all instances.
            rows: which of them are active.
            iteration: the number of steps taken.
            last: whether this is the last chance to improve them.
        """

    @abstractmethod
    def advance(self, form: ConicForm, fixed: Any) -> None:
        """Take one step with every active instance."""

    def select(self: StateType, index: Tensor, size: int) -> StateType:
        """Return the state of the instances `index` of `size`."""
        return picker(size, index)(self)


StateType = TypeVar("StateType", bound=State)


def iterate(
    form: ConicForm, state: State, fixed: Any, best: Result, limits: Limits, *, max_iter: int, every: int = 1
) -> Result:
    """Advance all instances together until each is finished or the limits are reached.

    Args:
        form: N functions, detached.
        state: of all instances, before the first step.
        fixed: what no iteration changes.
        best: nothing yet; returned filled in, and `Final` where it has one, from states that have its fields.
        limits: `tol` and the deadline, which is looked at after every step.
        max_iter: the most steps.
        every: steps between records.
    """
    active = torch.arange(form.size, device=best.x.device)
    for iteration in range(max_iter + 1):
        late = limits.late
        last = late or iteration == max_iter
        if last or iteration % every == 0:
            best.iterations[active] = iteration
            stalled = state.record(form, fixed, best, active, iteration, last)
            done = best.relative_gap(active) <= limits.tol
            if late:
                best.status[active.cpu().numpy()] = Status.TIME_LIMIT
            for mask, status in ((stalled, Status.STALLED), (done, Status.OPTIMAL)):
                if bool(mask.any()):
                    best.status[active[mask].cpu().numpy()] = status
            leaving = done | stalled | last
            if bool(leaving.any()):
                index, out = torch.nonzero(~leaving).squeeze(-1), torch.nonzero(leaving).squeeze(-1)
                if best.final is not None:
                    best.final.put(active[out], Final.of(state.select(out, active.numel())))
                if index.numel() == 0:
                    break
                state, form, active = state.select(index, active.numel()), form.select(index), active[index]
        state.advance(form, fixed)
    return best
