"""Learning from decisions what values say least clearly: `soctk.fine_tune`.

A surrogate that was learned from values goes on with

    mean squared error of values + w * mean loss of decisions / scale of values,

all of it in the model's units, by L-BFGS, for several w in turn, each from where it began. Every few steps decisions
on instances that are held out are judged. The best weights seen are kept, those at the beginning among them: as far as
the held-out instances can tell, nothing gets worse.

The values are there because decisions alone leave the surrogate's scale open: f(x*) - min f falls as f becomes flat,
and regret does not change at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from soctk.checks import check_kind, check_learns
from soctk.function import check_function
from soctk.learn.config import FitConfig
from soctk.learn.data import ValueData
from soctk.learn.deadline import Deadline, check_stop
from soctk.learn.decision_losses import DecisionLoss
from soctk.learn.lbfgs import lbfgs
from soctk.learn.report import FitStatus
from soctk.learn.residuals import Residuals, needed_candidates
from soctk.learn.search import Run, Search
from soctk.learn.units import Standardized
from soctk.surrogate import ConvexSurrogate

JUDGE_EVERY = 5
"""L-BFGS iterations between two looks at the held-out decisions."""


@dataclass
class FineTuneReport:
    """What fine-tuning did.

    Attributes:
        status: how the last search ended.
        seconds: wall-clock time.
        steps: L-BFGS iterations, of all weights together.
        before, after: what the held-out instances are judged by, mean regret or distance, in the user's units.
        weight: the weight w of the state kept; 0 where that is the one at the beginning.
    """

    status: FitStatus
    seconds: float
    steps: int
    before: float
    after: float
    weight: float = 0.0

    @property
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return self.seconds / max(self.steps, 1)


def fine_tune(
    model: ConvexSurrogate,
    data: ValueData,
    loss: DecisionLoss,
    config: FitConfig | None = None,
    *,
    stop: Callable[[], bool] | None = None,
) -> FineTuneReport:
    """Make a fitted model's decisions better, in place; see above.

    Args:
        model: a surrogate with a conic form that `soctk.fit` has learned; its units stay.
        data: observed values that it shall go on fitting, those of the fit.
        loss: `Suboptimality`, `Optimality`, `Regret` or `SPOPlus`, on the training instances, a fifth of which is
            held out.
        config: `optima_weights` (w), `optima_iterations` for each, `rows`, `level_weight`, `history`, `patience`,
            `seed`, `focus` where it is a number, and `time_limit` count.
        stop: asked after each step; the search ends once it says True.

    Returns:
        `FineTuneReport`: how decisions on the held-out instances were before, and are now.

    Raises:
        TypeError: a model that is no surrogate, other data, loss or config, a `stop` that is no function.
        ValueError: a model without weights, data or instances of other dimensions than the model's.
        NotImplementedError: a model without a conic form.
        RuntimeError: within `torch.inference_mode()`, or with another default device of PyTorch's than the processor.
    """
    check_learns("fine_tune")
    check_function(model)
    config = FitConfig() if config is None else config
    _check(model, data, loss, config)
    check_stop(stop)
    started = time.perf_counter()
    deadline = Deadline(config.time_limit, stop)
    home, training = model.dtype, model.training
    model.to(torch.float64).train()
    try:
        with torch.enable_grad():
            report = _Tuning(model, data, loss, config).run(deadline)
    finally:
        model.to(home).train(training)
    report.seconds = time.perf_counter() - started
    return report


class _Tuning:
    """The losses of one model, and the searches on their sums."""

    def __init__(self, model: ConvexSurrogate, data: ValueData, loss: DecisionLoss, config: FitConfig) -> None:
        self.model, self.config = model, config
        learned, self.judged = loss.split(config.seed)
        self.values, decisions = _some(model, data, config).losses(model), learned.on(model)
        self.scale = float(model.value_scale)
        self.decisions: Callable[[], Tensor] = lambda: decisions() / self.scale
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]

    def run(self, deadline: Deadline) -> FineTuneReport:
        first = [weight.detach().clone() for weight in self.weights]
        best, before = first, self.judged.judge(self.model)
        report = FineTuneReport(FitStatus.CONVERGED, 0.0, 0, before, before)
        try:
            for share in self.config.optima_weights:
                self._load(first)
                run = self._search(share, deadline)
                report = replace(report, status=run.status, steps=report.steps + run.iterations)
                if run.best < report.after:
                    best = [weight.detach().clone() for weight in self.weights]
                    report = replace(report, after=run.best, weight=share)
                if deadline.passed:
                    break
        finally:
            self._load(best)
        return report

    def _search(self, share: float, deadline: Deadline) -> Run:
        config = self.config
        search = Search(
            self.weights,
            lambda: torch.tensor(self.judged.judge(self.model), dtype=torch.float64),
            config.optima_iterations,
            config.patience,
            validate_every=JUDGE_EVERY,
            deadline=deadline,
        )
        return lbfgs(search, [*self.values, lambda: share * self.decisions()], history=config.history)

    @torch.no_grad()
    def _load(self, state: list[Tensor]) -> None:
        for weight, value in zip(self.weights, state, strict=True):
            weight.copy_(value)


def _some(model: ConvexSurrogate, data: ValueData, config: FitConfig) -> Residuals:
    """Return the residuals on as many values as `rows` says, an equal share of each instance's candidates.

    Of the instances that tell more than their level.
    """
    data, _ = data.of_at_least(needed_candidates(model, [data]))
    share = data.share(config.rows)
    part = Standardized.of(model, data, torch.float64)
    return Residuals.weighted(
        part.focused(config.fixed_focus).instances(max(1, config.rows // share)).candidates(share), config.level_weight
    )


def _check(model: ConvexSurrogate, data: ValueData, loss: DecisionLoss, config: FitConfig) -> None:
    for name, given, kind in (("data", data, ValueData), ("loss", loss, DecisionLoss), ("config", config, FitConfig)):
        check_kind(given, kind, name)
    if model.parameter_count == 0:
        raise ValueError(f"model: {type(model).__name__} has no weights to train")
    expected = (model.dim, model.context_dim)
    for name, got in (
        ("data", (data.dim, data.context_dim)),
        ("loss", (loss.feasible_set.dim, loss.context.shape[1])),
    ):
        if got != expected:
            raise ValueError(f"{name}: expected decision and context dimensions {expected} as the model's, got {got}")
