"""What a fit reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from soctk.surrogate import ConvexSurrogate


class FitStatus(StrEnum):
    """How a fit ended: its last phase on the surrogate as a whole, the regressions of v and b0 aside.

    CONVERGED: validation stopped improving or the gradient vanished.
    ITERATION_LIMIT: all configured iterations were used; more may help.
    TIME_LIMIT: `time_limit` was reached; the best state so far is kept.
    STOPPED: `fit(stop=)` asked for it; the best state so far is kept.
    DIVERGED: the loss became NaN or infinite; the last good state is kept. Where there was none the model is left as it
        was before the fit, with a warning: smaller steps, other units or fewer outliers in the data may help.
    """

    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration_limit"
    TIME_LIMIT = "time_limit"
    STOPPED = "stopped"
    DIVERGED = "diverged"


@dataclass
class FitReport:
    """What a fit did. Losses are in standardised units: 1 is the variance of values within an instance.

    Attributes:
        status: how it ended.
        seconds: wall-clock time.
        train: (iteration, loss) pairs; AdamW steps, then second-order iterations.
        validation: (iteration, loss) pairs.
        best_validation: the validation loss of the state kept, the smallest unless optima chose another; with a `focus`
            that of weighted values. Without its `context_range`, if it has got one.
        focus: on the best candidates, as `FitConfig.focus` has it or as the data asked for; of members, the first's.
        model: what was learned: the surrogate given, or with `FitConfig.members` the mean of all (`soctk.average`).
        decision_errors: where optima are known, the mean distance of decisions from those held out, before and after
            learning from the others.
    """

    status: FitStatus
    seconds: float = 0.0
    train: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    best_validation: float = float("inf")
    focus: float = 0.0
    model: ConvexSurrogate | None = field(default=None, repr=False)
    decision_errors: tuple[float, float] | None = None
