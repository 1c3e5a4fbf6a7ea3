"""Learning from observed values: AdamW, then L-BFGS in float64, the best validation state kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from soctk.learn.adam import adam, batches_per_epoch
from soctk.learn.data import ValueData
from soctk.learn.lbfgs import lbfgs
from soctk.learn.losses import residual_loss
from soctk.learn.profiling import Profiled, can_profile, centered, level_loss, level_targets
from soctk.learn.progress import Progress
from soctk.learn.report import FitConfig, FitReport, FitStatus
from soctk.learn.units import Standardized, standardize
from soctk.surrogate import ConvexSurrogate

__all__ = ["FitConfig", "FitReport", "FitStatus", "fit"]

REQUIRED_IMPROVEMENT = 0.7
"""A larger structure is taken if its validation loss is below this share of the best smaller one's."""


def fit(
    model: ConvexSurrogate,
    data: ValueData,
    config: FitConfig | None = None,
    validation: ValueData | None = None,
) -> FitReport:
    """Train `model` in place on observed values of candidate decisions.

    The model's units are set from the data (`standardize`) and it goes on speaking the user's. A surrogate with
    a training of its own (least squares, lpcf) uses that. Otherwise: AdamW; L-BFGS on the curved part with the
    affine part projected out, then on the affine part (`profiling`; for models that keep the two apart); L-BFGS on
    everything. The state with the smallest validation loss is kept.

    Args:
        model: the surrogate; its weights and units are changed.
        data: training data, left as it is.
        config: the recipe; `FitConfig()` by default.
        validation: data that chooses the state kept; a fifth of `data`'s instances by default.

    Returns:
        `FitReport` with loss curves, seconds and status.

    Raises:
        ValueError: data whose dimensions are not the model's.
    """
    config = config or FitConfig()
    _check_data(model, data, "data")
    if validation is None:
        data, validation = data.split(seed=config.seed)
    _check_data(model, validation, "validation")
    started = time.perf_counter()
    report = model.fit_own(data, validation, config)
    if report is None:
        standardize(model, data)
        report = _Fit(model, data, validation, config, started).run()
    report.seconds = time.perf_counter() - started
    model.eval()
    return report


class _Fit:
    """One run of the recipe on one model."""

    def __init__(
        self,
        model: ConvexSurrogate,
        data: ValueData,
        validation: ValueData,
        config: FitConfig,
        started: float,
    ) -> None:
        self.model, self.data, self.validation, self.config = model, data, validation, config
        self.deadline = math.inf if config.time_limit is None else started + config.time_limit
        self.report = FitReport(FitStatus.ITERATION_LIMIT)
        self.best = self._state()
        # The units stay exact while the weights visit float32.
        self.units = {name: buffer.double().clone() for name, buffer in model.named_buffers(recurse=False)}
        self.done = 0
        self.profiled = can_profile(model, data.candidates) and config.lbfgs_iterations > 0

    def run(self) -> FitReport:
        config, home = self.config, self.model.dtype
        adam_steps = config.epochs * batches_per_epoch(config, self.data.instances, self.data.candidates)
        trials = self.model.structure_count if self.profiled else 1
        total = trials * (adam_steps + 3 * config.lbfgs_iterations // 4) + config.lbfgs_iterations
        with Progress(total, enabled=config.progress) as progress:
            if trials > 1:
                self._choose_structure(progress)
            else:
                self.model.set_structure(self.model.structure_count - 1)
                self._first_order(progress)
            if config.lbfgs_iterations > 0 and self._time_left():
                self._second_order(progress)
        self.model.load_state_dict(self.best | self.units)
        self.model.to(home)
        return self.report

    def _choose_structure(self, progress: Progress) -> None:
        """Train every structure for a while, the smallest first; a larger one must be clearly better to be taken.

        A norm that the data do not need splits a kink in two and costs more regret than it saves error.
        """
        start, chosen, to_beat = self._state(), 0, math.inf
        state = start
        for index in range(self.model.structure_count):
            self.model.load_state_dict(start)
            self.model.set_structure(index)
            self.report.best_validation = math.inf
            self._first_order(progress)
            loss = self._curved(3 * self.config.lbfgs_iterations // 4, progress)
            if loss < to_beat:
                chosen, state, to_beat = index, self._state(), REQUIRED_IMPROVEMENT * loss
            if not self._time_left():
                break
        self.model.set_structure(chosen)
        self.model.load_state_dict(state)
        self.best = state

    def _first_order(self, progress: Progress) -> None:
        if self.config.epochs > 0:
            self._adam(progress)
        self.model.to(torch.float64).load_state_dict(self.best | self.units)

    def _second_order(self, progress: Progress) -> None:
        iterations = self.config.lbfgs_iterations
        if self.profiled:
            iterations //= 2
            self._curved(iterations if self.model.structure_count > 1 else 2 * iterations, progress)
            self._slope()
        self._everything(iterations, progress)
        if self.model.affine_part is not None:
            self._level()
        self.best = self._state()

    def _time_left(self) -> bool:
        return self.report.status != FitStatus.TIME_LIMIT

    def _state(self) -> dict[str, Tensor]:
        return {name: tensor.detach().double().clone() for name, tensor in self.model.state_dict().items()}

    def _loss(self, part: Standardized) -> Tensor:
        """Mean squared residual; where b0 is kept apart its best value is projected out and left to `_level`."""
        residual = self.model._value(part.x, part.context) - part.value
        if self.model.affine_part is not None and residual.shape[1] > 1:
            return centered(residual).square().mean()
        return residual_loss(residual, self.config.level_weight)

    def _adam(self, progress: Progress) -> None:
        train = Standardized.of(self.model, self.data, torch.float32)
        held_out = Standardized.of(self.model, self.validation, torch.float32)
        self.model.to(torch.float32).train()

        @torch.no_grad()
        def on_epoch(step: int, loss: float) -> None:
            self.done = step
            self.report.train.append((step, loss))
            self._keep_if_better(float(self._loss(held_out)))

        part = self.model.affine_part
        # The affine part's networks are left fresh for their own phases: noisy steps leave dead units behind.
        later = {id(weight) for weight in part.network_parameters()} if part is not None else set()
        self.report.status = adam(
            [w for w in self.model.parameters() if w.requires_grad and id(w) not in later],
            self._loss,
            train,
            self.config,
            deadline=self.deadline,
            on_step=progress.advance,
            on_epoch=on_epoch,
        )

    def _keep_if_better(self, loss: float) -> None:
        self.report.validation.append((self.done, loss))
        if loss < self.report.best_validation:
            self.report.best_validation, self.best = loss, self._state()

    def _curved(self, iterations: int, progress: Progress) -> float:
        """L-BFGS on the curved part, the best affine function of every instance projected out."""
        count = max(1, self.config.lbfgs_rows // self.data.candidates)
        train = Profiled(Standardized.of(self.model, self.data, torch.float64).instances(count))
        held_out = Profiled(Standardized.of(self.model, self.validation, torch.float64).instances(count))
        affine = {id(weight) for weight in self.model.affine_part.parameters()}  # type: ignore[union-attr]
        return self._lbfgs(
            [w for w in self.model.parameters() if w.requires_grad and id(w) not in affine],
            lambda: train.residual(self.model).square().mean(),
            lambda: held_out.residual(self.model).square().mean(),
            iterations,
            progress,
        )

    def _slope(self) -> None:
        """L-BFGS on v alone, as a regression on the context."""
        train = Profiled(Standardized.of(self.model, self.data, torch.float64))
        held_out = Profiled(Standardized.of(self.model, self.validation, torch.float64))
        targets, held_out_targets = train.slope_targets(self.model), held_out.slope_targets(self.model)
        self._lbfgs(
            self.model.affine_part.slope_parameters(),  # type: ignore[union-attr]
            lambda: train.slope_loss(self.model, targets),
            lambda: held_out.slope_loss(self.model, held_out_targets),
            self.config.affine_iterations,
        )

    def _level(self) -> None:
        """L-BFGS on b0 alone, as a regression on the context."""
        train = Standardized.of(self.model, self.data, torch.float64)
        held_out = Standardized.of(self.model, self.validation, torch.float64)
        targets, held_out_targets = level_targets(self.model, train), level_targets(self.model, held_out)
        self._lbfgs(
            self.model.affine_part.level_parameters(),  # type: ignore[union-attr]
            lambda: level_loss(self.model, train, targets),
            lambda: level_loss(self.model, held_out, held_out_targets),
            self.config.affine_iterations,
        )

    def _everything(self, iterations: int, progress: Progress) -> None:
        """L-BFGS on all weights."""
        share = max(1, self.config.lbfgs_rows // self.data.instances)
        train = Standardized.of(self.model, self.data, torch.float64).candidates(share)
        held_out = Standardized.of(self.model, self.validation, torch.float64).candidates(2 * share)
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.report.best_validation = self._lbfgs(
            weights, lambda: self._loss(train), lambda: self._loss(held_out), iterations, progress
        )

    def _lbfgs(
        self,
        weights: list[nn.Parameter],
        loss: Callable[[], Tensor],
        validate: Callable[[], Tensor],
        iterations: int,
        progress: Progress | None = None,
    ) -> float:
        """Run one L-BFGS phase, put its curves behind those of the phases before it; return its best validation."""

        def quiet() -> float:
            with torch.no_grad():
                return float(validate())

        config = self.config
        run = lbfgs(
            weights,
            loss,
            quiet,
            iterations=iterations,
            history=config.history,
            validate_every=config.validate_every,
            patience=config.patience if progress is not None else 3 * config.patience,
            deadline=self.deadline,
            on_step=progress.advance if progress is not None else None,
        )
        self.report.train += [(self.done + step, value) for step, value in run.train]
        self.report.validation += [(self.done + step, value) for step, value in run.validation]
        self.report.status = run.status
        self.done += run.iterations
        return run.best


def _check_data(model: ConvexSurrogate, data: ValueData, name: str) -> None:
    if (data.dim, data.context_dim) != (model.dim, model.context_dim):
        raise ValueError(
            f"{name}: expected decision and context dimensions {(model.dim, model.context_dim)} as the model's, "
            f"got {(data.dim, data.context_dim)}"
        )
