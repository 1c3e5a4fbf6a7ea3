"""How the phases of a fit are run: on which residuals, by which method, and what is kept of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from soctk.learn.data import ValueData
from soctk.learn.lbfgs import lbfgs
from soctk.learn.levenberg import levenberg_marquardt
from soctk.learn.profiling import Residuals, can_profile
from soctk.learn.progress import Progress
from soctk.learn.report import FitConfig, FitReport, FitStatus
from soctk.learn.search import Run, Search
from soctk.learn.structured import whitened
from soctk.learn.units import Standardized
from soctk.models.structured import StructuredICNN
from soctk.surrogate import ConvexSurrogate

LATER_PENALTY = 1e-3
"""Branches over windows are fitted once more with this share of the penalty, which by then is what holds them up."""
NEWTON_PATIENCE = 5
"""Levenberg-Marquardt steps without a better validation loss before it stops."""
CANDIDATES_FOR_ONE = 2
"""Candidates for each coefficient of an instance's affine function; many contexts tell more than many candidates."""

Kind = TypeVar("Kind")


class Phases:
    """A model in training, its data and what has been reached.

    Args:
        model: the surrogate.
        data: training data.
        validation: validation data.
        config: the recipe.
        started: `time.perf_counter()` at the beginning of the fit.
    """

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
        self.profiled = can_profile(model, min(data.candidates, validation.candidates))
        self.residuals: dict[tuple[str, int], tuple[Residuals, Residuals]] = {}

    def _state(self) -> dict[str, Tensor]:
        return {name: tensor.detach().double().clone() for name, tensor in self.model.state_dict().items()}

    @property
    def _structured(self) -> bool:
        """Whether the structured start is wanted and the model has branches over windows."""
        wanted = self.config.structured and isinstance(self.model, StructuredICNN)
        return wanted and bool(self.model.branches)  # type: ignore[arg-type]

    def _time_left(self) -> bool:
        return self.report.status != FitStatus.TIME_LIMIT

    @property
    def _level_weight(self) -> float:
        """Where b0 is kept apart its best value is projected out and left to `_level`."""
        return 0.0 if self.model.affine_part is not None else self.config.level_weight

    def _weights(self) -> list[nn.Parameter]:
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def _both(self, make: Callable[[ValueData], Kind]) -> tuple[Kind, Kind]:
        """Return the same thing made of the training data and of the validation data."""
        return make(self.data), make(self.validation)

    def _profiled(self, rows: int) -> tuple[Residuals, Residuals]:
        """Return the residuals in the curved part: as many instances as `rows` allow.

        Of each as many candidates as leave half of their information when its affine function is projected out.
        """
        if ("profiled", rows) not in self.residuals:
            share = min(self.data.candidates, CANDIDATES_FOR_ONE * (self.model.dim + 1))
            count = max(1, rows // share)

            def make(data: ValueData) -> Residuals:
                part = Standardized.of(self.model, data, torch.float64)
                return Residuals.profiled(part.instances(count).candidates(share))

            self.residuals["profiled", rows] = self._both(make)
        return self.residuals["profiled", rows]

    def _leveled(self, rows: int) -> tuple[Residuals, Residuals]:
        """Return the residuals in all weights: an equal share of every instance's candidates, twice for validation."""
        if ("leveled", rows) not in self.residuals:
            # At least two of each instance, where it has them: a single value says nothing of the variation within it.
            share = min(self.data.candidates, max(2, rows // self.data.instances))
            if isinstance(self.model, StructuredICNN):  # weights shared by all places: few instances tell much
                share = self.data.candidates
            train, held_out = self._both(
                lambda data: Standardized.of(self.model, data, torch.float64).instances(max(1, rows // share))
            )
            weight = self._level_weight
            train, held_out = train.candidates(share), held_out.candidates(2 * share)
            features = [self.model.features(part.x, part.context) for part in (train, held_out)]
            self.residuals["leveled", rows] = (
                Residuals.leveled(train, weight, features[0]),
                Residuals.leveled(held_out, weight, features[1]),
            )
        return self.residuals["leveled", rows]

    def _least_squares(
        self, weights: list[nn.Parameter], train: Residuals, held_out: Residuals, share: float, progress: Progress
    ) -> float:
        """Run Levenberg-Marquardt, or L-BFGS beyond `newton_weights` weights; return the best validation loss.

        Branches over windows take both in turn, in whitened coordinates: after the structured start
        Levenberg-Marquardt alone stays damped. Without it they are treated as any other model.
        """
        if not (self._structured and isinstance(self.model, StructuredICNN)):
            return self._plainly(weights, train, held_out, share, progress)
        with whitened(self.model, train, held_out) as (train, held_out):
            reached = self._by_lbfgs(weights, train, held_out, share, progress)
            for penalty in (self.config.penalty, LATER_PENALTY * self.config.penalty):
                if self._by_newton(weights) and self._time_left():
                    reached = self._by_levenberg(weights, train, held_out, share, progress, penalty)
        return reached

    def _plainly(
        self, weights: list[nn.Parameter], train: Residuals, held_out: Residuals, share: float, progress: Progress
    ) -> float:
        if self._by_newton(weights):
            return self._by_levenberg(weights, train, held_out, share, progress, self.config.penalty)
        return self._by_lbfgs(weights, train, held_out, share, progress)

    def _by_levenberg(
        self,
        weights: list[nn.Parameter],
        train: Residuals,
        held_out: Residuals,
        share: float,
        progress: Progress,
        penalty: float,
    ) -> float:
        search = self._search(
            weights,
            lambda: held_out.total(self.model),
            math.ceil(share * self.config.newton_iterations),
            1,
            NEWTON_PATIENCE,
            progress,
        )
        run = levenberg_marquardt(
            search,
            lambda: train.residual(self.model).reshape(1, -1),
            lambda: train.jacobian(self.model, weights).flatten(end_dim=1).unsqueeze(0),
            penalty,
        )
        return self._keep(run)

    def _by_lbfgs(
        self, weights: list[nn.Parameter], train: Residuals, held_out: Residuals, share: float, progress: Progress
    ) -> float:
        config = self.config
        search = self._search(
            weights,
            lambda: held_out.total(self.model),
            math.ceil(share * config.lbfgs_iterations),
            config.validate_every,
            config.patience,
            progress,
        )
        return self._keep(lbfgs(search, self._losses(train), history=config.history))

    def _losses(self, train: Residuals) -> list[Callable[[], Tensor]]:
        """Return the parts of the mean squared residual, each of a few instances."""
        parts = [(part, part.instances / train.instances) for part in train.pieces(self.model)]
        return [lambda part=part, share=share: share * part.loss(self.model) for part, share in parts]

    def _by_newton(self, weights: list[nn.Parameter]) -> bool:
        count = sum(weight.numel() for weight in weights)
        return self.model.gauss_newton and count <= self.config.newton_weights

    def _regression(
        self, weights: list[nn.Parameter], loss: Callable[[], Tensor], validate: Callable[[], Tensor]
    ) -> None:
        """L-BFGS for a part that is cheap to evaluate: many iterations, patiently."""
        config = self.config
        search = self._search(
            weights, validate, config.level_iterations, config.validate_every, 3 * config.patience, None
        )
        self._keep(lbfgs(search, [loss], history=config.history))

    def _search(
        self,
        weights: list[nn.Parameter],
        validate: Callable[[], Tensor],
        iterations: int,
        validate_every: int,
        patience: int,
        progress: Progress | None,
        problems: int = 1,
    ) -> Search:
        @torch.no_grad()
        def quiet() -> float:
            return float(validate())

        return Search(
            weights,
            quiet,
            iterations=iterations,
            validate_every=validate_every,
            patience=patience,
            deadline=self.deadline,
            on_step=progress.advance if progress is not None else None,
            problems=problems,
        )

    def _keep(self, run: Run) -> float:
        """Put a phase's curves behind those of the phases before it; return its best validation loss."""
        self.report.train += [(self.done + step, value) for step, value in run.train]
        self.report.validation += [(self.done + step, value) for step, value in run.validation]
        self.report.status = run.status
        self.done += run.iterations
        return run.best
