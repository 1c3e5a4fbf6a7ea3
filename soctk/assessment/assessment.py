"""What `soctk.assess` finds, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from soctk.assessment.convexity import Curvature
from soctk.assessment.minimum import Interval
from soctk.assessment.noise import Noise
from soctk.assessment.overlap import Overlap

WITHHELD = "at the minimum: with this verdict nothing is said of what its decisions cost"
QUALIFIED = "the verdict is to keep the quadratic all the same"


class Verdict(StrEnum):
    """Whether to decide with a model.

    GOOD: its errors on the rows are smaller than the least-squares quadratic's, significantly, and its decisions are
        expected to cost no more.
    QUADRATIC: one of both is not so. The quadratic is simpler: keep it.
    CONSTANT: it says no more of the values than their mean, or than the context alone, which no decision changes.
    FEW: there are too few rows to say, or none near its decisions, or the model has learned from these.
    CURVATURE: the log contradicts convexity: a convex function is not what is to be learned.
    """

    GOOD = "good"
    QUADRATIC = "no better than the least-squares quadratic: keep the quadratic"
    CONSTANT = "no better than a constant"
    FEW = "not enough data"
    CURVATURE = "evidence against convexity"


@dataclass(frozen=True)
class Error:
    """The error of a prediction on the rows.

    Attributes:
        rms: root mean square.
        score: by how many standard errors the model's mean squared error is smaller; 0 of the model itself.
        excess: how much larger its mean squared error is than the model's, with an interval.
    """

    rms: float
    score: float
    excess: Interval


@dataclass(frozen=True, eq=False)
class Shown:
    """What pictures show, of the rows and of the contexts in which decisions were judged.

    Attributes:
        value, predicted: (R,), of the rows.
        distance: (R,), of the rows from the model's decisions, in standard deviations of the log.
        x: (R, n), the logged decisions.
        decisions: (R, n), the model's in the same contexts.
        promised, expected, error: (J,), the model's minimum in a context, what is expected there and a standard error.
        slices: (at most 8, K), the model's mean value over contexts along each coordinate from its decisions.
        steps: (at most 8, K), these coordinates less the decision's.
    """

    value: np.ndarray
    predicted: np.ndarray
    distance: np.ndarray
    x: np.ndarray
    decisions: np.ndarray
    promised: np.ndarray
    expected: np.ndarray
    error: np.ndarray
    slices: np.ndarray
    steps: np.ndarray


@dataclass(frozen=True, eq=False)
class Assessment:
    """How far a model can be trusted with decisions.

    Attributes:
        rows: how many it was measured on.
        contexts: how many of them the costs of decisions are an average over.
        seen: whether the model has learned from these rows.
        quadratic_from: what the least-squares quadratic was fitted to, in words.
        noise: an estimate of what nothing can predict.
        errors: of "model", "quadratic", "context alone" and "constant".
        spread: the standard deviation of the values.
        promised: the model's minimum, on average over the contexts.
        expected: what its decisions are expected to cost, on average.
        logged: what the logged decisions cost, on average over all rows.
        difference: what its decisions are expected to cost more than the quadratic's, as the quadratic and its
            residuals say.
        on_mean: the same, as the mean of both and its residuals say; None for a model without a conic form.
        regret: what its decisions are thought to cost more than the best (`soctk.assessment.regret`); None for a model
            without a conic form.
        overlap: how far its decisions are from the logged ones at such contexts; None for more than 64 numbers.
        curvature: second derivatives along the data, and the evidence against convexity.
        verdict: in one word.
        reason: why, in words.
        shown: what pictures show.
    """

    rows: int
    contexts: int
    seen: bool
    quadratic_from: str
    noise: Noise
    errors: dict[str, Error]
    spread: float
    promised: float
    expected: Interval
    logged: float
    difference: Interval
    on_mean: Interval | None
    regret: Interval | None
    overlap: Overlap | None
    curvature: Curvature
    verdict: Verdict
    reason: str
    shown: Shown

    @property
    def line(self) -> str:
        """The verdict in one line."""
        return f"verdict: {self.verdict} ({self.reason})"

    @property
    def withheld(self) -> bool:
        """Whether words leave out what decisions cost: the verdict is that the model cannot tell."""
        return self.verdict not in (Verdict.GOOD, Verdict.QUADRATIC)

    @property
    def beside(self) -> str:
        """What its decisions cost beside the quadratic's, in words."""
        if self.difference.is_nothing(self.spread):
            return "it decides as the quadratic does: the costs are the same"
        return f"its decisions are expected to cost {self.difference} more than the quadratic's"

    def __str__(self) -> str:
        """Return everything in words, the verdict first."""
        errors = ", ".join(f"{name} {error.rms:.4g}" for name, error in self.errors.items())
        lines = [
            self.line,
            f"{self.rows} rows" + (", from which the model has learned: errors are too small" if self.seen else ""),
            f"noise floor: {self.noise}",
            f"error: {errors}; the values' deviation is {self.spread:.4g}; the quadratic is fitted to "
            f"{self.quadratic_from}",
            *([WITHHELD] if self.withheld else self._costs()),
        ]
        if self.overlap is not None:
            lines.append(f"overlap: {self.overlap}")
        return "\n".join([*lines, _curved(self.curvature)])

    def _costs(self) -> list[str]:
        lines = [
            f"at the minimum: the model promises {self.promised:.5g}, expected are {self.expected}; the logged "
            f"decisions cost {self.logged:.5g}",
            self.beside,
        ]
        if self.verdict == Verdict.QUADRATIC:
            lines[0] += f"; {QUALIFIED}"
        return lines if self.regret is None else [*lines, f"regret: {self.regret}, estimated"]


def _curved(curvature: Curvature) -> str:
    if not curvature.observed.size:
        return "curvature: too few rows to tell"
    listed = ", ".join(f"{seen:.2g} ± {error:.1g} ({said:.2g})" for seen, error, said in curvature.pairs)
    how, bound = ("measured apart", "") if curvature.apart else ("by the rows that chose its direction", "at most ")
    return (
        f"curvature along the data (the model's): {listed}; the least, {how}, {curvature.least:.2g}, "
        f"as low with probability {bound}{curvature.p_value:.2g} where the cost is convex"
    )
