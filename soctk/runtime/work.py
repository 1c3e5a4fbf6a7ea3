"""Memory for one decision, and the compiled functions on it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from soctk.decide.chords import chord_ends, narrow
from soctk.decide.exact import exact_difference, magnitude
from soctk.forms.responses import Responses, responses
from soctk.runtime.code import Call, Functions
from soctk.runtime.sides import Sides
from soctk.status import Status


class Found(NamedTuple):
    """What a search found: a point, its value, a bound, how it ended, its steps.

    And by how much x violates the set, and as which share of its numbers.
    """

    x: np.ndarray
    value: float
    bound: float
    status: Status
    iterations: int
    violation: float
    share: float


class Work:
    """What one decision is computed in; another thread's has one of its own.

    Attributes:
        arrays: by name: those of the file, which nobody writes to, and own ones.
        first_gap: the gap of the linearisation where the last search began.
    """

    first_gap = math.inf

    def __init__(self, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any], functions: Functions) -> None:
        own = {name: arrays[name].copy() for name in header["own"]}
        own |= {name: np.zeros(shape) for name, shape in header["room"].items()}
        own["places"] = np.zeros(1, np.int64)
        self.arrays = {**arrays, **own}
        self._header, self._at, self._fixed = header, header["state"], arrays
        self._state, self._data, self._common = (self.arrays[name].reshape(-1) for name in ("state", "data", "common"))
        self._start = self._state.copy()
        self._numbers = Responses(*(arrays.get(name) for name in Responses._fields))
        self._outcomes = [Status(each) for each in header["outcomes"]]
        self._parts = {name: self._state[slice(*at)] for name, at in self._at.items() if isinstance(at, list)}
        given = {**self.arrays, **header["numbers"]}
        self._calls = {name: Call(functions, name, _named(names, given)) for name, names in header["calls"].items()}
        self._sides = (
            Sides(self.arrays, header, self._start, self._calls["reduce"]) if "reduce" in self._calls else None
        )

    def give(self, sides: Mapping[str, np.ndarray]) -> None:
        """Take right-hand sides f and h; those of the file in place of the ones that are not given."""
        if self._sides is not None:
            self._sides.give(**{name: sides.get(name, self._fixed[f"given_{name}"][0]) for name in ("f", "h")})

    def assemble(self, context: np.ndarray) -> bool:
        """Fill the coefficients at a context; return whether all are finite."""
        call, arrays = self._calls.get("assemble"), self.arrays
        if call is None:
            self._data[:] = self._fixed["data"][0]
            return True
        context = context.clip(*arrays["context_range"]) if "context_range" in arrays else context
        row = (context[None] - arrays["mean"]) / arrays["unit"]
        found = responses(row, self._numbers, self._header["rows"])
        arrays["rows"][:], arrays["weights"][:], arrays["ridges"][:] = found
        return call() != 0

    def magnitude(self, found: Found) -> float:
        """Return the size of the numbers that a value is a sum of."""
        products = self._data[1 : 1 + self._header["dim"]] * found.x
        return magnitude(float(self._data[0]), float(np.abs(products).sum()), float(products.sum()), found.value)

    def rescale(self, level: float, unit: float) -> tuple[float, float]:
        """Replace f by (f - level) / s, s a power of two near a unit; return s and what rounding took off f."""
        s = math.ldexp(1.0, math.frexp(unit)[1] - 1)
        data, columns, n = self._data, self.arrays["columns"], self._header["dim"]
        data[0], lost = exact_difference(float(data[0]), level)
        data[: 1 + n] /= s
        data[columns] /= s
        return s, lost

    def search(self, tol: float, max_iter: int, deadline: float) -> Found:
        """Take Newton steps from the start until they are finished or the deadline has passed."""
        state, common, header, at = self._state, self._common, self._header, self._at
        if "substitute" in self._calls:
            self._calls["substitute"]()
        state[:] = self._start
        common[header["common"]["tol"]], common[header["common"]["max_iter"]] = tol, max_iter
        advance, steps, outcome = self._calls["advance"], header["steps"], at["outcome"]
        if deadline < math.inf:
            advance(0)  # so that there is an answer
        while state[outcome] == 0 and time.perf_counter() <= deadline:
            advance(steps)
        status, iterations = self._outcomes[int(state[outcome])], int(state[at["iterations"]])
        self.first_gap = float(state[at["first_gap"]])
        if "prove" in self._calls:
            return self._proved(status, iterations)
        value, bound, x = float(state[at["best_value"]]), float(state[at["best_bound"]]), self._parts["best_x"].copy()
        if "expand" in header:
            x = self.arrays["origin"][0] + self.arrays["basis"] @ x
        violation = self._violation(x)
        return Found(x, value, bound, status, iterations, violation, violation / header["magnitude"])

    def varied(self, found: Found, enough: float) -> float:
        """Return about how much f varies over the set (`soctk.decide.ranges`); measured further where below `enough`.

        Args:
            found: by the last search, its value a number.
            enough: see above.
        """
        if "away" in self.arrays:
            least = self.first_gap
            return least if least >= enough else max(least, *(abs(v - found.value) for v in self._away()))
        values = [found.value, self._value_at(self.arrays["inside"][self.arrays["free"]])]
        if not values[1] < math.inf:  # the set has other right-hand sides
            gap, rounded = self.first_gap, self._header["rounding"] * self.magnitude(found)
            return gap if gap > rounded else math.inf  # as over a point
        if abs(values[1] - found.value) < enough:
            a, k = self.arrays, self._header["equalities"]
            inside, rows = a["x"].copy(), (a["lower"], a["upper"], a["stacked"][k:], a["right"][k:])
            ends = chord_ends(found.x[None], inside, a["basis"], *rows)
            if narrow(np.concatenate([ends, inside[None]], axis=1))[0]:
                return math.inf
            values += [self._value_at(end[a["free"]]) for end in ends[0]]
        return max(values) - min(values)

    def _away(self) -> list[float]:
        """Return f at points away from where searches begin."""
        state, values = self._state, []
        for point in self.arrays["away"]:
            state[:] = self._start
            self._parts["x"][:] = point
            self._calls["advance"](0)
            values.append(float(state[self._at["best_value"]]))
        return values

    def _value_at(self, w: np.ndarray) -> float:
        """Return f where the free coordinates are these, inf where that is no point of the set."""
        self.arrays["points"][0], self.arrays["empty"][0] = w, False
        self._calls["prove"]()
        return float(self.arrays["proved"][0, 0])

    def _proved(self, status: Status, iterations: int) -> Found:
        """Return what is found in the rows as given; where there is no point of the set, x and value are NaN."""
        arrays, parts = self.arrays, self._parts
        arrays["empty"][0] = empty = status == Status.INFEASIBLE
        arrays["points"][0], arrays["passes"][0] = parts["best_x"], parts["best_cache"]
        arrays["multipliers"][0] = parts["best_multiplier"]
        self._calls["prove"]()
        value, bound, beside, share = arrays["proved"][:, 0].tolist()
        if value < math.inf:
            x = arrays["x"][0].copy()
            return Found(x, value, bound, status, iterations, self._violation(x), share)
        nothing = np.full(self._header["dim"], math.nan)
        if (empty and self._least(arrays["w"]) + beside > 0) or self._out_of_reach():
            return Found(nothing, math.nan, -math.inf, Status.INFEASIBLE, iterations, math.nan, 0.0)
        if status not in (Status.TIME_LIMIT, Status.ITERATION_LIMIT):
            status = Status.FAILED
        return Found(nothing, math.nan, bound, status, iterations, math.nan, 0.0)

    def _violation(self, x: np.ndarray) -> float:
        """Return by how much a point violates the set at most."""
        arrays, count = self.arrays, self._header["equalities"]
        worst = max(0.0, float(np.maximum(arrays["lower"] - x, x - arrays["upper"]).max()))
        if arrays["right"].size > 0:
            past = arrays["stacked"] @ x - arrays["right"]
            past[:count] = np.abs(past[:count])
            worst = max(worst, float(past.max()))
        return worst

    def _least(self, slopes: np.ndarray) -> np.ndarray:
        """Return the least of each slope'x between the bounds, (any, n) -> (any,), not above it by rounding."""
        products = np.minimum(slopes * self.arrays["box_lower"], slopes * self.arrays["box_upper"])
        error = (products.shape[1] + 2) * np.finfo(float).eps
        return products.sum(axis=1) - error * np.abs(products).sum(axis=1)

    def _out_of_reach(self) -> bool:
        """Whether a row cannot be satisfied between the bounds, by itself."""
        rows, right, count = self.arrays["stacked"], self.arrays["right"], self._header["equalities"]
        least, most = self._least(rows), -self._least(-rows[:count])
        return bool((least > right).any() or (most < right[:count]).any())


def _named(names: list[Any], given: Mapping[str, Any]) -> list[Any]:
    """Return what is called so; of lists of names tuples."""
    return [given[name] if isinstance(name, str) else tuple(_named(name, given)) for name in names]
