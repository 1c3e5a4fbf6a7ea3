"""A decision for one context at a time, with its certificate, from a file of `soctk.to_runtime`."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from soctk.decide.exact import bound_given
from soctk.runtime.code import Functions
from soctk.runtime.file import Contents, RuntimeFileError, read
from soctk.runtime.work import Found, Work
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
        return bool(self.support.outside(self.context[None], self.x[None])[0] or np.isnan(self.x).any())


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
        support: where the data of the model were, or None.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self.header, arrays, code = contents
        header = self.header
        self.dim, self.context_dim, self.notes = header["dim"], header["context_dim"], header["notes"]
        plain = header["support"]
        self.support = None if plain is None else Support.from_plain(plain, self.dim, self.context_dim)
        self._functions = Functions(code)
        self._arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        self._free = [Work(self._arrays, header, self._functions)]

    def __reduce__(self) -> tuple[type[Decider], tuple[Contents]]:
        """Copies and other processes get the contents of the file and load the machine code themselves."""
        return type(self), (self._contents,)

    def __call__(
        self,
        context: Any = None,
        *,
        tol: float = 1e-6,
        max_iter: int | None = None,
        time_limit: float | None = None,
        **sides: Any,
    ) -> Decided:
        """Return the decision at a context.

        Args:
            context: (p,) numbers, None where p = 0.
            tol: relative gap to reach, (value - lower bound) / max(1, |value|). Where f varies over the set by less
                than a thousandth of max(1, |value|), the unit is 1,000 times what f varies by at a few points of the
                set, or can fall below its value where the search begins, over rows along two chords of the set.
            max_iter: the most Newton steps, 60 by default.
            time_limit: seconds for the call; the best point and an honest gap are returned.
            sides: f (k,) and h (m,) of E x = f and G x <= h in place of those of an exported `Polyhedron`.

        What is left short of `tol` stays so: nothing else is tried, as `soctk.minimize` does. Where the rows
        leave no point the status is "infeasible", if that is proved, or "failed"; x and value are then NaN, as they are
        where a limit comes before any point.

        Raises:
            TypeError: a context or a side that is not made of numbers, or sides that the set does not have.
            ValueError: a context of another shape or with a NaN or an infinity, one whose coefficients are too large
                to be finite, or a limit that is not positive.
        """
        started = time.perf_counter()
        given = _numbers([] if context is None and self.context_dim == 0 else context, "context", self.context_dim)
        right = self._sides(sides) if sides else {}
        limit = self.header["max_iter"] if max_iter is None else max_iter
        for name, value in (("tol", tol), ("max_iter", limit), ("time_limit", time_limit)):
            if value is not None and not (isinstance(value, Real) and value > 0):
                raise ValueError(f"{name}: expected a positive number, got {value!r}")
        if isinstance(limit, bool) or not isinstance(limit, Integral) or limit >= 2**31:
            raise ValueError(f"max_iter: expected a whole number below 2^31, got {limit!r}")
        deadline = math.inf if time_limit is None else started + time_limit
        try:
            work = self._free.pop()
        except IndexError:  # in use by other threads
            work = Work(self._arrays, self.header, self._functions)
        work.give(right)
        if not work.assemble(given):
            raise ValueError("context: the model's coefficients there are not finite; it is too far from any data")
        found, scale = self._search(work, tol, limit, deadline)
        self._free.append(work)  # after an exception, as Ctrl-C is, it may be half done: the next call makes another
        return self._judged(found, given, tol, scale, started)

    def _sides(self, sides: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return right-hand sides as arrays."""
        for name in sides:
            if name not in ("f", "h") or "prove" not in self.header["calls"]:
                raise TypeError(
                    f"{name}: expected f and h of an exported Polyhedron's rows; this is {self.header['set']}"
                )
        if "reduce" not in self.header["calls"]:
            raise TypeError(f"{next(iter(sides))}: export the set with finite bounds, so that rows may move")
        return {name: _numbers(side, name, self._arrays[f"given_{name}"].size) for name, side in sides.items()}

    def _search(self, work: Work, tol: float, max_iter: int, deadline: float) -> tuple[Found, float]:
        """Return what is found, and the unit of its gap (`soctk.decide.ranges`, `soctk.decide.units`)."""
        found, share = work.search(tol, max_iter, deadline), self.header["share"]
        unit = usual = max(1.0, abs(found.value))
        if math.isnan(found.value):
            return found, usual
        varied = work.varied(found, usual / share)
        if not share * varied < usual:
            return found, usual
        least = self.header["resolved"] * work.magnitude(found)
        if varied <= least or varied < self.header["smallest_unit"]:  # constant, as far as can be told
            return found, usual
        unit = min(usual, max(share * varied, least / tol))
        if found.value - found.bound <= tol * unit:
            return found, unit
        if time.perf_counter() > deadline:
            return found._replace(status=Status.TIME_LIMIT), unit
        # f = s g + level + lost, and what a bound of that loses by rounding, as in `soctk.decide.units`
        level = found.value
        s, lost = work.rescale(level, unit)
        within = max(tol * (unit / s) / max(1.0, work.first_gap / s), self.header["smallest"])
        again = work.search(within, max_iter, deadline)
        if math.isnan(again.value):
            return found, unit
        bound = bound_given(again.bound, s, level, lost, float(np.finfo(float).eps))
        again = again._replace(value=s * again.value + level + lost, iterations=found.iterations + again.iterations)
        if again.value > found.value:
            again = again._replace(x=found.x, value=found.value, violation=found.violation, share=found.share)
        return again._replace(bound=max(bound, found.bound)), unit

    def _judged(self, found: Found, context: np.ndarray, tol: float, scale: float, started: float) -> Decided:
        """Return a decision whose status says what value, bound and violation say."""
        x, value, bound, status, iterations, violation, share = found
        if value - bound <= tol * scale:
            status = Status.OPTIMAL
        elif status == Status.OPTIMAL:
            status = Status.STALLED
        contradicted = value - bound < -self.header["rounding"] * max(1.0, abs(value))
        if contradicted or share > self.header["feasible"]:
            status = Status.INACCURATE
        seconds = time.perf_counter() - started
        return Decided(x, value, bound, status, iterations, violation, seconds, scale, context, self.support)


def _numbers(given: Any, name: str, count: int) -> np.ndarray:
    """Return so many finite numbers as an array."""
    if given is None:
        raise ValueError(f"{name}: expected {count} numbers, got None")
    given = given.detach() if hasattr(given, "detach") else given  # a tensor may be part of a graph
    if np.ma.is_masked(given):
        raise TypeError(f"{name}: expected {count} numbers, got masked ones")
    try:
        found = np.asarray(given)
        if found.dtype.kind not in "biuf":
            raise TypeError(f"of type {found.dtype}")
        numbers = found.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected {count} numbers, got {given!r} ({error})") from None
    if numbers.shape != (count,):
        more = "; decide one context after another" if numbers.ndim > 1 else ""
        raise ValueError(f"{name}: expected shape ({count},), got {numbers.shape}{more}")
    if not np.isfinite(numbers).all():
        place = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ValueError(f"{name}: expected finite numbers, got {numbers[place]} at coordinate {place}")
    return numbers
