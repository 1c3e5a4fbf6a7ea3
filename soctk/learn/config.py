"""How a fit is configured: every number and every switch of the recipe (`soctk.learn.recipe`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from soctk.checks import check_choice, check_count, check_flag, check_positive, check_sequence

OptimizerName = Literal["auto", "levenberg_marquardt", "lbfgs"]
MAY_BE_ZERO = (
    "epochs",
    "newton_iterations",
    "newton_weights",
    "lbfgs_iterations",
    "level_iterations",
    "optima_iterations",
    "values_per_weight",
    "context_units",
)
AT_LEAST_ONE = (
    "members",
    "jobs",
    "threads",
    "starts",
    "batch_rows",
    "rows",
    "history",
    "validate_every",
    "patience",
)
SWITCHES = (
    "structured",
    "choose_structure",
    "project_affine",
    "reduce",
    "grow",
    "limit_context",
    "race",
    "level_regression",
    "progress",
)


@dataclass(frozen=True)
class FitConfig:
    """The recipe: AdamW with a one-cycle rate, then second-order iterations in float64.

    Attributes:
        seed: of the mini-batches; the same seed gives bitwise the same fit on a CPU.
        members: surrogates to learn, each from four fifths of the instances drawn at random (subagging, Buehlmann and
            Yu 2002); their mean is `FitReport.model`. 1 learns the surrogate that is given from all.
        jobs: members that are learned at a time, by which a time limit is shared: processes, as many as PyTorch has
            threads by default; with `fit(executor=)` its workers, one for each member by default.
        threads: cores that one fit takes on a CPU. A second one saves about a tenth of the time, and where other work
            shares the cores it costs many times as much (`soctk.learn.threads`).
        starts: initial weights tried: the model's own and others drawn afresh; the best on validation data goes on.
        epochs: AdamW passes over the data, a quarter of them where Levenberg-Marquardt on the curved part of a model
            with at most `newton_weights` in all follows; 0 skips the phase.
        learning_rate: peak of the one-cycle schedule (10 % warm-up).
        weight_decay: AdamW's.
        batch_rows: observed values in a mini-batch; whole instances are drawn, so with all their candidates.
        clip: largest gradient norm.
        newton_iterations: Levenberg-Marquardt steps of a second-order phase.
        newton_weights: phases of more weights use L-BFGS instead, as do models that say so (`gauss_newton`).
        lbfgs_iterations: L-BFGS steps of a second-order phase.
        level_iterations: of L-BFGS on b0 alone, each as cheap as evaluating it.
        rows: observed values a second-order phase uses, at least; to tell what a structure does not need, at most
            9,600, if its weights do not need more.
        values_per_weight: where the affine part is projected out, residuals that are left for each weight of the curved
            part, at least, where the data have as many. With fewer, many variables leave weights and structure open.
        focus: on the best candidates of every instance, for values without noise that grow steeply away from the
            optimum: second-order phases weigh a value that is g above the least of its instance, in standard deviations
            within an instance, by 1 / (1 + focus g)^2, and where they take some of the candidates, take the best.
            0: all alike. With noise the least values are lucky ones. Structures with one centre are
            learned from all alike. "auto": steep values of dense models are learned with 0 and, unless that ends with
            one centre, with 4 (and a `penalty` of at least 1e-6), which is kept unless it picks clearly worse held-out
            candidates; that takes 8 candidates of each instance and 30 held-out instances
            (`soctk.learn.phases.focused`).
        history: correction pairs of L-BFGS.
        validate_every: L-BFGS iterations between validations.
        patience: validations without improvement before L-BFGS stops.
        optima_iterations: L-BFGS steps for each of `optima_weights`; used where optima are known.
        optima_weights: of the mean squared residual of their conditions of optimality, in standardised units.
        penalty: of the squared weights in Levenberg-Marquardt steps on the curved part. Without it, branches drift to
            large curvatures and slopes that cancel, which the affine part then has to follow. Not where the
            branches are over windows.
        structured: where the model has branches over windows, begin with the structured start instead of AdamW and go
            on in whitened coordinates; False for the recipe that models without such branches get.
        level_weight: weight of the squared mean residual of an instance; the residual's variation within the
            instance, all that matters to a decision, has weight 1.
        optimizer: of the second-order phases. "auto": Levenberg-Marquardt for models and up to as many weights as
            above, and L-BFGS for all weights together after the curved part alone; else one of them throughout.
        choose_structure: whether validation data choose the structure; False leaves the model with its own.
        project_affine: whether the best affine function of every instance is projected out while the curved part is
            learned, where the model keeps the two apart; False learns all weights together from the start.
        reduce: whether blocks and rows that the structure chosen turns out not to need are left out of it, where that
            makes the validation loss fall.
        grow: whether as many hyperbolic branches as there are variables are added to the structure chosen, where that
            makes the validation loss fall to .7 of what it is and b0 and v still follow. As with `reduce`, where
            structures are chosen by Levenberg-Marquardt with the affine part projected out; where the structure has
            such branches, and with no more than `newton_weights` in the curved part.
        limit_context: whether numbers of the context beyond those of the training data are taken at the nearest of them
            (`ConvexFunction.context_range`), where held-out contexts say so (`soctk.learn.context_range`).
        context_units: hidden units of the context that are tried beside it for offsets and weights, which are affine in
            it otherwise, and kept where that makes the validation loss fall; 0 for none. For the dense SOC-ICNN family
            and others that can have them.
        race: whether starts and structures are only compared after a share of the iterations, and the best goes on;
            False trains each to the end.
        level_regression: whether b0 is left out of all other phases and learned last, where the model keeps it apart;
            False learns it with the other weights, by `level_weight`.
        time_limit: seconds, or None.
        progress: show a progress bar.

    Raises:
        ValueError: a number out of its range, a switch that is neither True nor False, an unknown optimizer.
    """

    seed: int = 0
    members: int = 1
    jobs: int | None = None
    threads: int = 1
    starts: int = 4
    epochs: int = 4
    learning_rate: float = 2e-2
    weight_decay: float = 0.0
    batch_rows: int = 1600
    clip: float = 10.0
    newton_iterations: int = 25
    newton_weights: int = 3000
    lbfgs_iterations: int = 300
    level_iterations: int = 500
    rows: int = 9_600
    values_per_weight: int = 4
    focus: float | Literal["auto"] = "auto"
    history: int = 40
    validate_every: int = 20
    patience: int = 5
    optima_iterations: int = 100
    optima_weights: tuple[float, ...] = (0.1, 1.0, 10.0)
    penalty: float = 1e-7
    level_weight: float = 0.1
    structured: bool = True
    optimizer: OptimizerName = "auto"
    choose_structure: bool = True
    project_affine: bool = True
    reduce: bool = True
    grow: bool = True
    limit_context: bool = True
    context_units: int = 0
    race: bool = True
    level_regression: bool = True
    time_limit: float | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        least = dict.fromkeys((*MAY_BE_ZERO, "seed"), 0) | dict.fromkeys(AT_LEAST_ONE, 1)
        for name, minimum in least.items():
            number = getattr(self, name)
            if not (name == "jobs" and number is None):
                check_count(number, name, minimum)
                object.__setattr__(self, name, int(number))  # one of NumPy's is no int to others
        check_positive(self.clip, "clip")
        check_sequence(self.optima_weights, "optima_weights")
        finite = [(name, getattr(self, name)) for name in ("learning_rate", "level_weight")]
        for name, number in (*finite, *(("optima_weights", weight) for weight in self.optima_weights)):
            check_positive(number, name)
            if number == math.inf:
                raise ValueError(f"{name}: expected a finite number, got {number!r}")
        for name in ("focus", "penalty", "weight_decay"):
            number = getattr(self, name)
            auto = name == "focus" and number == "auto"
            if not (auto or (isinstance(number, Real) and math.isfinite(number) and number >= 0)):
                or_auto = ', or "auto"' if name == "focus" else ""
                raise ValueError(f"{name}: expected a finite number of at least 0{or_auto}, got {number!r}")
        for name in SWITCHES:
            check_flag(getattr(self, name), name)
        check_choice(self.optimizer, "optimizer", get_args(OptimizerName))
        if self.time_limit is not None:
            check_positive(self.time_limit, "time_limit")

    @property
    def fixed_focus(self) -> float:
        """`focus` where it is a number, else that of a fit that learns from all values alike."""
        return 0.0 if self.focus == "auto" else self.focus
