"""A model in training: what every phase of a recipe reads and changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from soctk.conditioning import AffinePart, weights_of
from soctk.learn.data import ValueData
from soctk.learn.deadline import Deadline
from soctk.learn.progress import Progress
from soctk.learn.report import FitReport, FitStatus
from soctk.learn.residuals import Residuals, can_project, projected_share
from soctk.learn.search import Run, Search
from soctk.learn.units import Standardized, standardize
from soctk.surrogate import ConvexSurrogate
from soctk.traits import Windowed


@dataclass(frozen=True, eq=False)
class Weights:
    """A structure by its index, the blocks that it goes without, the model's state, and its units of the context.

    None for as many units as the model has.
    """

    structure: int
    without: tuple[str, ...]
    state: dict[str, Tensor]
    units: int | None = None


class Trainer:
    """A model in training, its data and what has been reached.

    The model takes the data's units (`standardize`) and is float64 while in training; `finish` brings it back.

    Args:
        model: the surrogate.
        data: training data.
        validation: validation data.
        deadline: when to stop whatever is reached; never by default.
        own_split: whether the validation data are a part of what was given to learn from, to be used in the end.
        focus: on the best candidates (`FitConfig.focus`).
        levels: more training data, of instances that tell of b0 alone.

    Attributes:
        best: the state to go on with: the best on validation data.
        report: what was done so far.
        progress: told of every step.
        start: the number of the initial weights that are tried (`Race`).
        settled: whether the model is as it should be, so that there is nothing to refine.
        refined: whether `best` has been through all phases that follow the start chosen.
        whole: the best weights so far that are all learned, to fall back on where a fit ends before those that follow
            are; None where there are none yet.

    Raises:
        ValueError: numbers that the model's cannot hold; the model stays as it was.
    """

    def __init__(
        self,
        model: ConvexSurrogate,
        data: ValueData,
        validation: ValueData,
        deadline: Deadline | None = None,
        *,
        own_split: bool = False,
        focus: float = 0.0,
        levels: ValueData | None = None,
    ) -> None:
        self.model, self.data, self.validation, self.levels = model, data, validation, levels
        self.deadline, self.own_split, self.focus = deadline or Deadline(), own_split, focus
        before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self._home = model.dtype
        self._before = Weights(model.traits.structure, model.traits.without, before, model.context_units)
        self._ranges = [(part, part.context_range) for part in model.modules() if isinstance(part, ConvexSurrogate)]
        standardize(model, data)
        self._fixed = _fixed(model)
        self.model.to(torch.float64)
        self.best = self.state()
        self.report = FitReport(FitStatus.ITERATION_LIMIT)
        self.progress = Progress(0, enabled=False)
        self.start = self._done = 0
        self.settled = self.refined = False
        self.whole: Weights | None = None
        self._contest: tuple[Residuals, float, Weights] | None = None
        self._expired = False
        self._residuals: dict[tuple[str, int, float], tuple[Residuals, Residuals]] = {}
        self._effective: dict[float, float] = {}

    # -- the weights -----------------------------------------------------------------------------------

    @property
    def affine(self) -> AffinePart:
        """The module of b0 and v, for phases that learn it apart."""
        part = self.model.traits.affine
        if part is None:
            raise ValueError(f"{type(self.model).__name__} does not keep its affine part apart")
        return part

    @property
    def windowed(self) -> Windowed:
        """The model, for phases of branches over windows."""
        windowed = self.model.traits.windowed
        if windowed is None:
            raise ValueError(f"{type(self.model).__name__} has no branches over windows")
        return windowed

    def weights(self) -> list[nn.Parameter]:
        """Return the weights that may move.

        The layer that v's entries share is learned from slopes (`soctk.learn.phases.slope`). Where instances have too
        few candidates to tell these, it stays out: learned with all other weights it fits what they have not reached.
        """
        part = self.model.traits.affine
        layer = None if part is None else part.slope_network
        enough = can_project(self.model, self.effective_candidates(self.focus))
        learned = layer is not None and (enough or bool(layer.outer.any()))
        out = {id(weight) for weight in weights_of(None if learned else layer)}
        return [weight for weight in self.model.parameters() if weight.requires_grad and id(weight) not in out]

    def curved_weights(self) -> list[nn.Parameter]:
        """Return the weights that may move but those of b0 and v."""
        affine = {id(weight) for weight in self.affine.parameters()}
        return [weight for weight in self.weights() if id(weight) not in affine]

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the model's state."""
        return {name: tensor.detach().double().clone() for name, tensor in self.model.state_dict().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Give the model the weights of a state, in float64; its units and frozen weights stay as they are."""
        if self.model.traits.take_sizes is not None:
            self.model.traits.take_sizes(state)
        self.model.to(torch.float64).load_state_dict(state | self._fixed)

    def keep(self) -> None:
        """Go on from the present state."""
        self.best = self.state()

    def present(self) -> Weights:
        """Return a copy of the model's weights with its structure."""
        traits = self.model.traits
        return Weights(traits.structure, traits.without, self.state(), self.model.context_units)

    def take(self, weights: Weights) -> None:
        """Give the model weights with their structure."""
        self._set_structure(weights)
        self.load(weights.state)

    @contextmanager
    def attempt(self) -> Iterator[Callable[[], None]]:
        """Yield what says that what is tried inside is better; else all is as it was, after an interruption too.

        So weights, structure and units always go together.
        """
        begun, report = self.present(), self.report
        before = self.focus, self.whole, self.refined
        reached = report.status, report.best_validation, report.decision_errors
        better: list[bool] = []
        try:
            yield lambda: better.append(True)
        finally:
            if not better:
                self.take(begun)
                self.focus, self.whole, self.refined = before
                report.status, report.best_validation, report.decision_errors = reached
            self.keep()

    def _set_structure(self, weights: Weights) -> None:
        traits = self.model.traits
        if traits.structures > 1:
            traits.take_structure(weights.structure, weights.without)
        if traits.units is not None and weights.units not in (None, traits.units.count):
            traits.units.resize(weights.units, self.model)

    # -- the data --------------------------------------------------------------------------------------

    def standardized(
        self, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> tuple[Standardized, Standardized]:
        """Return training and validation data in the model's units, on its device or another."""
        return (
            Standardized.of(self.model, self.data, dtype, device),
            Standardized.of(self.model, self.validation, dtype, device),
        )

    def focused(self) -> tuple[Standardized, Standardized]:
        """Return training and validation data with the weights that `focus` gives."""
        first, second = (part.focused(self.focus) for part in self.standardized())
        return first, second

    def focused_levels(self) -> list[Standardized]:
        """Return the instances that tell of b0 alone, with the weights that `focus` gives, as a part of the data."""
        if self.levels is None:
            return []
        return [Standardized.of(self.model, self.levels, torch.float64).focused(self.focus)]

    def effective_candidates(self, focus: float) -> float:
        """Return `Standardized.effective` with a focus, of the data that have less."""
        if focus not in self._effective:
            effective = (part.focused(focus).effective for part in self.standardized())
            self._effective[focus] = min(*effective, self.data.fewest, self.validation.fewest)
        return self._effective[focus]

    def projected(self, rows: int) -> tuple[Residuals, Residuals]:
        """Return the residuals in the curved part: `projected_share` of every instance, as many as `rows` allow."""
        key = ("projected", rows, 0.0)
        if key not in self._residuals:
            share = projected_share(self.data.candidates, self.model.dim)
            count = max(1, rows // share)
            train, held_out = self.focused()
            self._residuals[key] = (
                Residuals.projected(train.instances(count).candidates(share)),
                Residuals.projected(held_out.instances(count).candidates(share)),
            )
        return self._residuals[key]

    def weighted(self, rows: int, level_weight: float) -> tuple[Residuals, Residuals]:
        """Return the residuals in all weights: an equal share of every instance's candidates, twice for validation."""
        key = ("weighted", rows, level_weight)
        if key not in self._residuals:
            windowed = self.model.traits.windowed
            # Weights shared by all places: few instances tell much.
            share = self.data.share(rows) if windowed is None else self.data.candidates
            parts = [part.instances(max(1, rows // share)) for part in self.focused()]
            parts = [parts[0].candidates(share), parts[1].candidates(2 * share)]
            features = [{} if windowed is None else windowed.features(part.x, part.context) for part in parts]
            pairs = zip(parts, features, strict=True)
            train, held_out = (Residuals.weighted(part, level_weight, more) for part, more in pairs)
            self._residuals[key] = train, held_out
        return self._residuals[key]

    # -- searches --------------------------------------------------------------------------------------

    def search(
        self,
        weights: list[nn.Parameter],
        validate: Callable[[], Tensor],
        iterations: int,
        patience: int,
        *,
        shown: bool = True,
        **more: int,
    ) -> Search:
        """Return a search over `weights` that ends at the deadline; `shown` as progress or not."""
        on_step = self.progress.advance if shown else None
        return Search(weights, validate, iterations, patience, deadline=self.deadline, on_step=on_step, **more)

    def record(self, run: Run, *, whole: bool = True) -> None:
        """Put a run's curves behind those before it.

        Args:
            run: the run.
            whole: whether it was of the surrogate as a whole, so that status and validation loss are the fit's.
        """
        report = self.report
        report.train += [(self._done + step, value) for step, value in run.train]
        report.validation += [(self._done + step, value) for step, value in run.validation]
        self._done += run.iterations
        self._expired = self._expired or run.status in (FitStatus.TIME_LIMIT, FitStatus.STOPPED)
        if whole:
            report.status, report.best_validation = run.status, run.best

    @torch.no_grad()
    def judge(self, status: FitStatus, iterations: int) -> None:
        """Go on from what other means have reached; its loss is the mean squared error on validation data."""
        loss = self._error()
        self.record(Run(status, iterations, validation=[(iterations, loss)], best=loss))
        self.keep()

    def contest(self, held_out: Residuals, to_beat: float) -> None:
        """Let another structure be refined, which takes this one's place if its loss is below `to_beat`."""
        self.settled, self.whole = False, self.present()
        self._contest = held_out, to_beat, self.whole

    def decide_contest(self) -> None:
        """Go back to what was there before the contest unless what came out of it is clearly better."""
        if self._contest is None:
            return
        held_out, to_beat, before = self._contest
        self._contest = None
        if not float(held_out.total(self.model)) < to_beat:
            self.take(before)
            self.keep()
            self.settled = True
            self.report.status, self.report.best_validation = FitStatus.CONVERGED, float(held_out.total(self.model))

    @torch.no_grad()
    def keep_whole(self, level_weight: float = 1.0) -> None:
        """Fall back on the present state, all of which is learned, from now on unless `whole` is better.

        Args:
            level_weight: of the squared mean residual of an instance; 0 where b0 is still to follow.
        """
        if self.whole is None or self._error(self.focus, level_weight) < self._whole_error(level_weight):
            self.whole = self.present()

    @torch.no_grad()
    def keep_better(self) -> None:
        """Keep the present state, or `whole` if its mean squared error on validation data is smaller."""
        if self.whole is not None and self._whole_error() < self._error(self.focus):
            self.take(self.whole)
        self.keep()

    def interrupt(self) -> None:
        """Go back to the best state, with no time left."""
        self.load(self.best)
        self._expired = True

    def begin_again(self, begun: Weights, focus: float) -> None:
        """Go back to the weights that a fit began with, to learn with another focus."""
        self.focus, self.settled, self.refined, self.whole, self._contest = focus, False, False, None, None
        self._residuals.clear()
        self.take(begun)
        self.keep()
        self.report.best_validation, self.report.status = math.inf, FitStatus.ITERATION_LIMIT

    def _error(self, focus: float = 0.0, level_weight: float = 1.0) -> float:
        """Return the mean squared error on validation data, with the weights that a focus gives."""
        held_out = self.standardized()[1].focused(focus)
        return float(Residuals.weighted(held_out, level_weight).total(self.model))

    def _whole_error(self, level_weight: float = 1.0) -> float:
        present = self.present()
        assert self.whole is not None
        self.take(self.whole)
        error = self._error(self.focus, level_weight)
        self.take(present)
        return error

    @property
    def time_left(self) -> bool:
        """Whether no run has met the deadline."""
        return not self._expired

    def finish(self) -> FitReport:
        """Leave the model at the best state, in the type it came in, and say how it went."""
        self.load(self.best)
        if self._expired:
            # What was told so far may be of a part of the model, with v and b0 as good as can be.
            self.report.status, self.report.best_validation = self.deadline.status, self._error()
        self.report.focus = self.focus
        self.model.to(self._home).eval()
        return self.report

    def undo(self) -> None:
        """Leave the model with the structure, weights and units that it came with, and say so in the report."""
        self._set_structure(self._before)
        self.model.load_state_dict(self._before.state)
        for part, ends in self._ranges:
            part.context_range = ends
        self.report.status = FitStatus.DIVERGED


def _fixed(model: ConvexSurrogate) -> dict[str, Tensor]:
    """Return what stays exact while the weights visit float32: the units, and frozen weights.

    Those that a structure goes without are among the latter for as long as it is tried; another may have them.
    """
    frozen = [(name, weight) for name, weight in model.named_parameters() if not weight.requires_grad]
    units = [(name, unit) for name, unit in model.named_buffers(recurse=False) if name != "context_range"]
    fixed = [*units, *(frozen if model.traits.structures == 1 else [])]
    return {name: tensor.detach().double().clone() for name, tensor in fixed}
