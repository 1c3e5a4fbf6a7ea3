"""How a fit is configured and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from soctk.checks import check_count, check_positive


class FitStatus(StrEnum):
    """How a fit ended.

    CONVERGED: validation stopped improving or the gradient vanished.
    ITERATION_LIMIT: all configured iterations were used; more may help.
    TIME_LIMIT: `time_limit` was reached; the best state so far is kept.
    DIVERGED: the loss became NaN or infinite; the last good state is kept.
    """

    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration_limit"
    TIME_LIMIT = "time_limit"
    DIVERGED = "diverged"


@dataclass(frozen=True)
class FitConfig:
    """The recipe: AdamW with a one-cycle rate, then full-batch L-BFGS in float64.

    Attributes:
        seed: of the mini-batches; the same seed gives bitwise the same fit on a CPU with one thread.
        epochs: AdamW passes over the data; 0 skips the phase.
        learning_rate: peak of the one-cycle schedule (10 % warm-up).
        weight_decay: AdamW's.
        batch_rows: observed values in a mini-batch; whole instances are drawn, so with all their candidates.
        clip: largest gradient norm.
        lbfgs_iterations: 0 skips the phase.
        affine_iterations: of L-BFGS on the affine part alone, each as cheap as evaluating v and b0.
    lbfgs_rows: observed values L-BFGS uses; every instance keeps an equal share of its candidates.
        history: correction pairs of L-BFGS.
        validate_every: L-BFGS iterations between validations.
        patience: validations without improvement before L-BFGS stops.
        level_weight: weight of the squared mean residual of an instance; the residual's variation within the
            instance, all that matters to a decision, has weight 1.
        time_limit: seconds, or None.
        progress: show a progress bar.
    """

    seed: int = 0
    epochs: int = 10
    learning_rate: float = 2e-2
    weight_decay: float = 0.0
    batch_rows: int = 1600
    clip: float = 10.0
    lbfgs_iterations: int = 400
    affine_iterations: int = 1000
    lbfgs_rows: int = 9_600
    history: int = 40
    validate_every: int = 20
    patience: int = 3
    level_weight: float = 0.1
    time_limit: float | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "lbfgs_iterations"):
            check_count(getattr(self, name), name, minimum=0)
        for name in ("batch_rows", "lbfgs_rows", "history", "validate_every", "patience"):
            check_count(getattr(self, name), name)
        for name in ("learning_rate", "clip", "level_weight"):
            check_positive(getattr(self, name), name)
        if self.time_limit is not None:
            check_positive(self.time_limit, "time_limit")


@dataclass
class FitReport:
    """What a fit did. Losses are in standardised units: 1 is the variance of values within an instance.

    Attributes:
        status: how it ended.
        seconds: wall-clock time.
        train: (iteration, loss) pairs; AdamW steps, then L-BFGS iterations.
        validation: (iteration, loss) pairs.
        best_validation: the smallest validation loss, that of the state kept.
    """

    status: FitStatus
    seconds: float = 0.0
    train: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    best_validation: float = float("inf")
