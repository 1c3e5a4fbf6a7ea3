"""What decisions cost: a model's values at them, corrected by what residuals say there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soctk.assessment.judged import Judged
from soctk.assessment.quadratic import predicted
from soctk.assessment.rows import Rows

SCORE = 1.6449
"""Standard errors on both sides of which an interval of 90 % lies."""

NOTHING = 1e-4
"""The share of the values' deviation below which costs are the same."""


@dataclass(frozen=True)
class Interval:
    """An estimate and where the truth is thought to be with a probability of 90 %."""

    estimate: float
    low: float
    high: float

    @classmethod
    def around(cls, estimate: float, error: float) -> Interval:
        """Return the interval of a normal estimate with a standard error."""
        return cls(float(estimate), float(estimate - SCORE * error), float(estimate + SCORE * error))

    @property
    def error(self) -> float:
        """The standard error of a normal estimate."""
        return (self.high - self.low) / (2 * SCORE)

    def is_nothing(self, unit: float) -> bool:
        """Whether all of it is less than a ten-thousandth of a unit."""
        return max(abs(self.low), abs(self.high)) < NOTHING * unit

    def __str__(self) -> str:
        return f"{self.estimate:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True, eq=False)
class Costs:
    """What decisions of a model and of a rival cost in some contexts.

    Attributes:
        expected: of the model's, on average over the contexts.
        each: (J,), in each context.
        error: (J,), standard errors of these.
        difference: what the model's cost more than the rival's, as the rival and its residuals say.
        on_mean: the same, as the mean of both and its residuals say; None where they have none.
    """

    expected: Interval
    each: np.ndarray
    error: np.ndarray
    difference: Interval
    on_mean: Interval | None


def expected_costs(
    model: Judged, rival: Judged, at: Rows, x: np.ndarray, other: np.ndarray, mean: Judged | None
) -> Costs:
    """Return what decisions cost, as two estimates of the same: on the model, and on the rival.

    A model that was searched for its minimum promises too much there, and the residuals of a log, of which few are
    near, correct only a part: what is measured on the model favours its decisions. The difference is therefore measured
    on the rival, whose errors the model's decisions do not know, and once more on their mean.

    Args:
        model: the model on the rows.
        rival: the rival on the rows.
        at: the contexts to decide in.
        x: the model's decisions there, (J, n).
        other: the rival's, (J, n).
        mean: their mean on the rows; None where they have none.
    """
    count, z = len(at), model.axes.z(at.context)
    bias, covariance = model.levels.at(z, np.zeros((count, model.axes.B.shape[1])))
    each = predicted(model.model, at.context, x) + bias
    expected = Interval.around(each.mean(), np.sqrt(max(covariance.mean(), 0.0)))
    on_mean = None if mean is None else difference(mean, at, x, other)
    error = np.sqrt(covariance.diagonal().clip(min=0.0))
    return Costs(expected, each, error, difference(rival, at, x, other), on_mean)


def difference(judged: Judged, at: Rows, x: np.ndarray, other: np.ndarray) -> Interval:
    """Return what decisions x (J, n) cost more than others, as a model and its residuals say."""
    both, contexts = np.concatenate([x, other]), np.tile(at.context, (2, 1))
    own = judged.decide(at)
    offsets = (both - np.tile(own, (2, 1))) @ judged.axes.B
    mean, covariance = judged.levels.at(np.tile(judged.axes.z(at.context), (2, 1)), offsets)
    sign = np.repeat([1.0, -1.0], len(at)) / len(at)
    estimate = sign @ (predicted(judged.model, contexts, both) + mean)
    return Interval.around(estimate, np.sqrt(max(sign @ covariance @ sign, 0.0)))
