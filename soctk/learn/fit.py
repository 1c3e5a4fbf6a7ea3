"""Learning from observed values: AdamW, then second-order steps in float64, the best validation state kept."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext

import torch
from torch import Tensor

from soctk.checks import ArrayLike
from soctk.conditioning import AffinePart
from soctk.learn.adam import adam, batches_per_epoch
from soctk.learn.data import ValueData
from soctk.learn.lbfgs import lbfgs
from soctk.learn.levenberg import levenberg_marquardt
from soctk.learn.optimality import Optima, OptimalityResiduals
from soctk.learn.phases import Phases
from soctk.learn.profiling import Residuals, level_loss, level_targets
from soctk.learn.progress import Progress
from soctk.learn.report import FitConfig, FitReport, FitStatus
from soctk.learn.structured import structured_start
from soctk.learn.units import Standardized, standardize
from soctk.losses import residual_loss
from soctk.models.structured import StructuredICNN
from soctk.sets import FeasibleSet
from soctk.surrogate import ConvexSurrogate

__all__ = ["FitConfig", "FitReport", "FitStatus", "fit"]

REQUIRED_IMPROVEMENT = 0.7
"""A larger structure is taken if its validation loss is below this share of the best smaller one's."""
EXACT = 1e-9
"""A validation loss, in units of the values' variance, that no larger structure need improve on."""
RACE_SHARE = 0.6
"""The share of a phase's iterations that every start gets before the best goes on."""
SLOPE_ITERATIONS = 40
SEEDS = 1000
"""Between the seeds of neighbouring fits' structured starts."""


def fit(
    model: ConvexSurrogate,
    data: ValueData,
    config: FitConfig | None = None,
    validation: ValueData | None = None,
    *,
    optima: ArrayLike | None = None,
    feasible_set: FeasibleSet | None = None,
) -> FitReport:
    """Train `model` in place on observed values of candidate decisions.

    The model's units are set from the data (`standardize`) and it goes on speaking the user's. A surrogate with
    a training of its own (least squares, lpcf) uses that. Otherwise: from several starts, AdamW and a few second-order
    iterations; from the best of them, second-order iterations on the curved part with the affine part projected out,
    a regression of the affine part on the context (`profiling`; for models that keep the two apart), and
    second-order iterations on everything. These are Levenberg-Marquardt's, or L-BFGS's for models of many weights.
    Models of branches over windows (`ConvSOCICNN`, `RecurrentSOCICNN`) begin with a convex problem instead of AdamW
    (`structured`; `FitConfig.structured`), followed by L-BFGS and Levenberg-Marquardt on everything.
    The state with the smallest validation loss is kept.

    Where optimal decisions are known (`optima`), a last phase of L-BFGS adds the squared residuals of their
    conditions of optimality (`optimality`) to the loss, with the weights `FitConfig.optima_weights` in turn. A fifth
    of the optima is held out, and what is kept decides best there; that may be the fit without them.

    Args:
        model: the surrogate; its weights and units are changed.
        data: training data, left as it is.
        config: the recipe; `FitConfig()` by default.
        validation: data that chooses the state kept; a fifth of `data`'s instances by default.
        optima: (N, n), an optimal decision for every instance of `data`; None where they are unknown.
        feasible_set: what they are optimal in; by default the smallest box that holds them all, with their common
            sum where they have one.

    Returns:
        `FitReport` with loss curves, seconds and status.

    Raises:
        ValueError: data whose dimensions are not the model's, optima of a wrong shape or outside the set, or optima
            for a surrogate with a training of its own.
    """
    config = config or FitConfig()
    _check_data(model, data, "data")
    known = _check_optima(model, data, optima, feasible_set)
    if validation is None:
        data, validation = data.split(seed=config.seed)
    _check_data(model, validation, "validation")
    started = time.perf_counter()
    report = model.fit_own(data, validation, config)
    if report is None:
        standardize(model, data)
        report = _Fit(model, data, validation, config, started).run(known)
    report.seconds = time.perf_counter() - started
    model.eval()
    return report


class _Fit(Phases):
    """One run of the recipe on one model."""

    def run(self, known: Optima | None) -> FitReport:
        config, home = self.config, self.model.dtype
        coarse = self.model.coarse_backbone() if isinstance(self.model, StructuredICNN) else nullcontext()
        extra = 0 if known is None else config.optima_iterations * len(config.optima_weights)
        with coarse, Progress(self._total_steps() + extra, enabled=config.progress) as progress:
            self._race(progress)
            if self._second_order_wanted and self._time_left():
                self._second_order(progress)
            if known is not None and config.optima_iterations > 0 and self._time_left():
                self._decide_as_known(known, progress)
        self.model.load_state_dict(self.best | self.units)
        self.model.to(home)
        return self.report

    # -- where to begin --------------------------------------------------------------------------------

    def _race(self, progress: Progress) -> None:
        """Train every structure from every start for a while and go on with the best on validation data.

        The smallest structure comes first and a larger one must be clearly better to be taken, or the climb ends: a
        norm that the data do not need splits a kink in two and costs more regret than it saves error. Branches over
        windows go on from where the smaller structure has them: the larger one only adds a backbone.
        """
        starts = self._starts()
        chosen, state, best = 0, self.best, math.inf
        for index in range(self.model.structure_count):
            reached, found = math.inf, state
            self.model.set_structure(index)
            for number, start in enumerate(starts):
                grown = index > 0 and self._structured
                if grown:
                    start = state | {name: start[name] for name in start if name.startswith("backbone.")}
                self.model.load_state_dict(start | self.units)
                alone = self.model.structure_count * len(starts) == 1
                loss = self._try(progress, number, alone=alone, placed=grown)
                if loss < reached:
                    reached, found = loss, self.best
                if not self._time_left():
                    break
            if index > 0 and reached >= REQUIRED_IMPROVEMENT * best:
                break
            chosen, state, best = index, found, reached
            if reached <= EXACT or not self._time_left():
                break
        self.model.set_structure(chosen)
        self.model.load_state_dict(state | self.units)
        self.best, self.report.best_validation = state, best

    def _starts(self) -> list[dict[str, Tensor]]:
        """Return initial weights: the model's own, then others drawn afresh where it can draw them."""
        states = [self._state()]
        for k in range(1, self.config.starts):
            other = self.model.redrawn(k)
            if other is None:
                break
            states.append({name: tensor.detach().double() for name, tensor in other.state_dict().items()})
        return states

    def _try(self, progress: Progress, number: int, *, alone: bool, placed: bool) -> float:
        """Train from the present weights: AdamW, then a few second-order iterations unless it races `alone`.

        The structured start takes the place of AdamW, whose first steps would undo it, unless the branches are
        `placed` already.
        """
        self.report.best_validation, self.best = math.inf, self._state()
        if not placed and not self._placed(number) and self.config.epochs > 0:
            self._adam(progress)
        self.model.to(torch.float64).load_state_dict(self.best | self.units)
        if alone or not self._second_order_wanted or not self._time_left():
            return self.report.best_validation
        loss = self._curved(RACE_SHARE, progress, racing=True)
        self.best = self._state()
        return loss

    def _placed(self, number: int) -> bool:
        """Put windowed branches where a convex problem has them, if that is wanted and the model has any."""
        if not (self._structured and isinstance(self.model, StructuredICNN)):
            return False
        self.model.to(torch.float64).load_state_dict(self.best | self.units)
        generator = torch.Generator().manual_seed(self.config.seed * SEEDS + number)
        train, held_out = self._leveled(self.config.rows)
        if not structured_start(self.model, train, generator):
            return False
        self.best = self._state()
        self.report.best_validation = float(held_out.loss(self.model).detach())
        return True

    # -- the phases ------------------------------------------------------------------------------------

    def _second_order(self, progress: Progress) -> None:
        self.report.best_validation = self._curved(1.0, progress)
        if self.profiled:
            self._slope()
            self._everything(progress)
        if self.model.affine_part is not None:
            self._level()
        self.best = self._state()

    @property
    def _second_order_wanted(self) -> bool:
        return self.config.lbfgs_iterations + self.config.newton_iterations > 0

    def _total_steps(self) -> int:
        trials = self.model.structure_count * max(1, self.config.starts)
        steps = self.config.epochs * batches_per_epoch(self.config, self.data.instances, self.data.candidates)
        own = self.config.newton_iterations if self._by_newton(self._weights()) else self.config.lbfgs_iterations
        if self._structured:
            steps, own = 0, self.config.lbfgs_iterations + 2 * self.config.newton_iterations
        return trials * (steps + math.ceil(RACE_SHARE * own)) + 2 * own

    def _loss(self, part: Standardized) -> Tensor:
        residual = self.model._value(part.x, part.context) - part.value
        return residual_loss(residual, self._level_weight)

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
            [weight for weight in self._weights() if id(weight) not in later],
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

    def _curved(self, share: float, progress: Progress, *, racing: bool = False) -> float:
        """Fit the curved part, the best affine function of every instance projected out; else all weights."""
        rows = self.config.rows // 2 if racing else self.config.rows
        if not self.profiled:
            return self._least_squares(self._weights(), *self._leveled(rows), share, progress)
        affine = {id(weight) for weight in self.model.affine_part.parameters()}  # type: ignore[union-attr]
        weights = [weight for weight in self._weights() if id(weight) not in affine]
        train, held_out = self._profiled(rows)
        if not weights:  # an affine model has no curved part
            return float(held_out.loss(self.model).detach())
        return self._least_squares(weights, train, held_out, share, progress)

    def _everything(self, progress: Progress) -> None:
        """Fit all weights together."""
        train, held_out = self._leveled(self.config.rows)
        self.report.best_validation = self._by_lbfgs(self._weights(), train, held_out, 1.0, progress)

    def _decide_as_known(self, known: Optima, progress: Progress) -> None:
        """Move the minima towards known optima, by the share of the loss that makes held-out decisions best."""
        config, kept = self.config, self.report.status
        self.model.to(torch.float64).load_state_dict(self.best | self.units)
        train, held_out = self._leveled(config.rows)
        learned, judged = known.split(config.seed)
        toward, check = (OptimalityResiduals(self.model, part) for part in (learned, judged))
        before = error = judged.decision_error(self.model)
        for weight in config.optima_weights:
            search = self._search(
                self._weights(),
                lambda weight=weight: held_out.total(self.model) + weight * check.loss(self.model),
                config.optima_iterations,
                config.validate_every,
                config.patience,
                progress,
            )
            losses = [*self._losses(train), lambda weight=weight: weight * toward.loss(self.model)]
            run = lbfgs(search, losses, history=config.history)
            self.done, kept = self.done + run.iterations, run.status
            reached = judged.decision_error(self.model)
            if reached < error:
                error, self.best = reached, self._state()
                self.report.best_validation = float(held_out.total(self.model))
            self.model.load_state_dict(self.best | self.units)
            if run.status == FitStatus.TIME_LIMIT:
                break
        if error < before and self.model.affine_part is not None:
            self._level()  # the other weights have moved the values' level
            self.best = self._state()
        self.report.status, self.report.decision_errors = kept, (before, error)

    def _slope(self) -> None:
        """Levenberg-Marquardt on v alone: a regression on the context for every coordinate."""
        part: AffinePart = self.model.affine_part  # type: ignore[assignment]
        (context, targets), (held_out, held_out_targets) = self._both(self._slope_regression)
        run = levenberg_marquardt(
            self._search(
                part.slope_parameters(),
                lambda: (part.v(held_out)[:, 0] - held_out_targets).square().mean(),
                SLOPE_ITERATIONS,
                1,
                SLOPE_ITERATIONS,
                None,
                self.model.dim,
            ),
            lambda: (part.v(context)[:, 0] - targets).mT,
            lambda: part.v_jacobian(context),
        )
        self._keep(run)

    def _slope_regression(self, data: ValueData) -> tuple[Tensor, Tensor]:
        part = Standardized.of(self.model, data, torch.float64)
        return part.context, Residuals.profiled(part).slope_targets(self.model)

    def _level(self) -> None:
        """L-BFGS on b0 alone, as a regression on the context."""
        train, held_out = self._both(lambda data: Standardized.of(self.model, data, torch.float64))
        targets, held_out_targets = level_targets(self.model, train), level_targets(self.model, held_out)
        self._regression(
            self.model.affine_part.level_parameters(),  # type: ignore[union-attr]
            lambda: level_loss(self.model, train, targets),
            lambda: level_loss(self.model, held_out, held_out_targets),
        )


def _check_optima(
    model: ConvexSurrogate, data: ValueData, optima: ArrayLike | None, feasible_set: FeasibleSet | None
) -> Optima | None:
    if optima is None:
        if feasible_set is not None:
            raise ValueError("feasible_set: expected optima= as well; without them a fit does not use the set")
        return None
    if type(model).fit_own is not ConvexSurrogate.fit_own:
        raise ValueError(f"optima: {type(model).__name__} has a training of its own, which does not use them")
    return Optima.of(data, optima, feasible_set)


def _check_data(model: ConvexSurrogate, data: ValueData, name: str) -> None:
    if (data.dim, data.context_dim) != (model.dim, model.context_dim):
        raise ValueError(
            f"{name}: expected decision and context dimensions {(model.dim, model.context_dim)} as the model's, "
            f"got {(data.dim, data.context_dim)}"
        )
