"""A decision for one context at a time, with its certificate, from a file of `soctk.to_runtime`."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from soctk.forms.responses import Responses, responses
from soctk.runtime.code import Functions
from soctk.runtime.file import Contents, RuntimeFileError, read
from soctk.runtime.unit import exact_difference, finer
from soctk.runtime.work import Work
from soctk.status import Status
from soctk.support import Support


@dataclass(frozen=True, eq=False, slots=True)
class Decided:
    """A decision; what each number says is as in `soctk.Decision`.

    Attributes:
        x: (n,).
        value: f(x).
        lower_bound: of the minimum over the set.
        status: how the search ended.
        iterations: Newton steps.
        violation: how far x is outside of the set, in its own units.
        seconds: that the call took.
        scale: what the relative gap is relative to.
        context: (p,).
        support: where the data of the model were, or None.
    """

    x: np.ndarray
    value: float
    lower_bound: float
    status: Status
    iterations: int
    violation: float
    seconds: float
    scale: float
    context: np.ndarray
    support: Support | None

    @property
    def gap(self) -> float:
        """How much better the best decision can be, by the model; inf where value and bound contradict each other."""
        return math.inf if self.status == Status.INACCURATE else abs(self.value - self.lower_bound)

    @property
    def relative_gap(self) -> float:
        """The gap in units of `scale`."""
        return self.gap / self.scale

    @property
    def optimal(self) -> bool:
        """Whether the tolerance was reached."""
        return self.status == Status.OPTIMAL

    @property
    def outside(self) -> bool | None:
        """Whether context or decision is where the model had no data; None where that is not known."""
        if self.support is None:
            return None
        return bool(self.support.outside(self.context[None], self.x[None])[0])


def load(path: str | os.PathLike[str], *, sha256: str | None = None) -> Decider:
    """Return what decides by a file of `soctk.to_runtime`.

    The file holds machine code, which is executed: take it from nobody whose programs you would not run.

    Args:
        path: the file.
        sha256: that `soctk.to_runtime` returned; nothing is executed where it is another.

    Raises:
        FileNotFoundError: there is no such file.
        RuntimeFileError: it is damaged, has another sha256, or is of another version or for another kind of machine.
    """
    contents = read(path, sha256)
    try:
        return Decider(contents)
    except (KeyError, ValueError) as error:
        raise RuntimeFileError(f"{os.fspath(path)}: {error}") from error


class Decider:
    """Minimises one model over one set, a context at a time; may be called from several threads at once.

    Attributes:
        dim: n.
        context_dim: p.
        notes: what the file was written with.
        header: what the file says of itself.
    """

    def __init__(self, contents: Contents) -> None:
        self.header, arrays, code = contents
        header = self.header
        self.dim, self.context_dim, self.notes = header["dim"], header["context_dim"], header["notes"]
        self._functions = Functions(code)
        self._arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        self._outcomes = [Status(each) for each in header["outcomes"]]
        self._state, self._common = header["state"], header["common"]
        self._start, self._data = self._arrays["state"][0], self._arrays["data"][0]
        self._x = slice(*self._state["best_x"])
        self._numbers = Responses(*(self._arrays.get(name) for name in Responses._fields))
        self._free = [Work(self._arrays, header, self._functions)]

    @cached_property
    def support(self) -> Support | None:
        """Where the data of the model were, or None."""
        plain = self.header["support"]
        return None if plain is None else Support.from_plain(plain, self.dim, self.context_dim)

    def __call__(
        self,
        context: Any = None,
        *,
        tol: float = 1e-6,
        max_iter: int | None = None,
        time_limit: float | None = None,
    ) -> Decided:
        """Return the decision at a context.

        Args:
            context: (p,) numbers, None where p = 0.
            tol: relative gap to reach, (value - lower bound) / max(1, |value|). Where f varies over the set by less
                than a thousandth of max(1, |value|), the unit is 1,000 times what f can fall below its value at the
                set's centre.
            max_iter: the most Newton steps, 60 by default.
            time_limit: seconds for the call; the best point and an honest gap are returned.

        What is left short of `tol` stays so: no other solver is tried, as `soctk.minimize` does.

        Raises:
            TypeError: a context that is not made of numbers.
            ValueError: a context of another shape or with a NaN or an infinity, one whose coefficients are too large
                to be finite, or a limit that is not positive.
        """
        started = time.perf_counter()
        given = self._checked(context)
        limit = self.header["max_iter"] if max_iter is None else max_iter
        for name, value in (("tol", tol), ("max_iter", limit), ("time_limit", time_limit)):
            if value is not None and not value > 0:
                raise ValueError(f"{name}: expected a positive number, got {value!r}")
        deadline = math.inf if time_limit is None else started + time_limit
        try:
            work = self._free.pop()
        except IndexError:  # in use by other threads
            work = Work(self._arrays, self.header, self._functions)
        try:
            self._assemble(work, given)
            self._search(work, tol, limit, deadline)
            return self._answer(work, given, tol, limit, deadline, started)
        finally:
            self._free.append(work)

    def _checked(self, context: Any) -> np.ndarray:
        if context is None and self.context_dim == 0:
            return np.zeros(0)
        try:
            given = np.asarray(context, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"context: expected {self.context_dim} numbers, got {context!r} ({error})") from None
        if given.shape != (self.context_dim,):
            more = "; decide one context after another" if given.ndim > 1 else ""
            raise ValueError(f"context: expected shape ({self.context_dim},), got {given.shape}{more}")
        if not np.isfinite(given).all():
            place = int(np.flatnonzero(~np.isfinite(given))[0])
            raise ValueError(f"context: expected finite numbers, got {given[place]} at coordinate {place}")
        return given

    def _assemble(self, work: Work, context: np.ndarray) -> None:
        """Fill the coefficients at a context."""
        arrays = work.arrays
        if self.context_dim == 0:
            work.data[:] = self._data
            return
        row = (context[None] - arrays["mean"]) / arrays["unit"]
        found = responses(row, self._numbers, self.header["rows"])
        for name, part in zip(("rows", "weights", "ridges", "units"), found, strict=True):
            arrays[name][:] = part
        if not work.calls["assemble"]():
            raise ValueError("context: the model's coefficients there are not finite; it is too far from any data")

    def _search(self, work: Work, tol: float, max_iter: int, deadline: float) -> None:
        """Take Newton steps until there is an answer or the deadline has passed; the answer is in the state."""
        state, common, advance, steps = work.state, work.common, work.calls["advance"], self.header["steps"]
        state[:] = self._start
        common[self._common["tol"]], common[self._common["max_iter"]] = tol, max_iter
        if deadline < math.inf:
            advance(0)  # so that there is an answer
        while state[self._state["outcome"]] == 0 and time.perf_counter() <= deadline:
            advance(steps)

    def _answer(
        self, work: Work, context: np.ndarray, tol: float, max_iter: int, deadline: float, started: float
    ) -> Decided:
        x, value, bound, status, iterations = self._found(work)
        scale, gap = max(1.0, abs(value)), float(work.state[self._state["first_gap"]])
        if self.header["share"] * gap < scale:
            unit = finer(scale, gap, self.header["share"], self.header["rounding"])
            if value - bound > tol * unit and time.perf_counter() <= deadline:
                again = self._in_unit(work, tol, max_iter, deadline, unit, value, gap)
                if again[1] < value:
                    x, value = again[:2]
                bound, status, iterations = max(bound, again[2]), again[3], iterations + again[4]
            scale = unit
        reached = value - bound <= tol * scale
        if reached:
            status = Status.OPTIMAL
        elif status == Status.OPTIMAL:
            status = Status.STALLED
        arrays = work.arrays
        violation = max(0.0, float(np.maximum(arrays["lower"] - x, x - arrays["upper"]).max()))
        if "total" in arrays:
            violation = max(violation, abs(float(x.sum() - arrays["total"][0])))
        contradicted = value - bound < -self.header["rounding"] * max(1.0, abs(value))
        if contradicted or violation > self.header["feasible"]:
            status = Status.INACCURATE
        seconds = time.perf_counter() - started
        return Decided(x, value, bound, status, iterations, violation, seconds, scale, context, self.support)

    def _found(self, work: Work) -> tuple[np.ndarray, float, float, Status, int]:
        """Return point, value, bound, status and steps of a search."""
        state, at = work.state, self._state
        status = self._outcomes[int(state[at["outcome"]])]
        value, bound = float(state[at["best_value"]]), float(state[at["best_bound"]])
        return state[self._x].copy(), value, bound, status, int(state[at["iterations"]])

    def _in_unit(
        self, work: Work, tol: float, max_iter: int, deadline: float, unit: float, level: float, gap: float
    ) -> tuple[np.ndarray, float, float, Status, int]:
        """Return what a search by (f - level) / s finds, s a power of two near the unit (`soctk.decide.units`)."""
        data, columns = work.data, work.arrays["columns"]
        s = math.ldexp(1.0, math.frexp(unit)[1] - 1)
        data[0], lost = exact_difference(data[0], level)
        data[: 1 + self.dim] /= s
        data[columns] /= s
        within = max(tol * (unit / s) / max(1.0, gap / s), self.header["smallest"])
        self._search(work, within, max_iter, deadline)
        x, value, bound, status, iterations = self._found(work)
        total = s * bound + level
        bound = total + lost - 2 * np.finfo(float).eps * (abs(total) + abs(lost))
        return x, s * value + level + lost, float(bound), status, iterations
