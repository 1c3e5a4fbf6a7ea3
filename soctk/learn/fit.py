"""Learning from observed values: data and units are checked and set, then a recipe's phases run."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import nullcontext

import torch

from soctk.checks import ArrayLike, check_kind, check_learns
from soctk.function import check_function
from soctk.learn.config import FitConfig
from soctk.learn.context_range import limit_context
from soctk.learn.data import ValueData
from soctk.learn.deadline import Deadline, check_stop
from soctk.learn.members import Members, side_by_side
from soctk.learn.optimality import Optima
from soctk.learn.phases.focused import FOCUS, can_compare
from soctk.learn.phases.phase import leave_whole, run_in_turn, steps_of
from soctk.learn.progress import Progress
from soctk.learn.recipe import Recipe, recipe_for
from soctk.learn.report import FitReport
from soctk.learn.residuals import needed_candidates
from soctk.learn.threads import limited_threads
from soctk.learn.trainer import Trainer
from soctk.sets import FeasibleSet, SetAt
from soctk.support import Support
from soctk.surrogate import ConvexSurrogate


def fit(
    model: ConvexSurrogate,
    data: ValueData,
    config: FitConfig | None = None,
    validation: ValueData | None = None,
    *,
    optima: ArrayLike | None = None,
    feasible_set: FeasibleSet | SetAt | None = None,
    stop: Callable[[], bool] | None = None,
    executor: Executor | None = None,
) -> FitReport:
    """Train `model` in place on observed values of candidate decisions.

    The model's units are set from the data (`standardize`) and it goes on speaking the user's. The phases are those
    of `recipe_for`: from several starts, AdamW and a few second-order iterations; from the best of them, second-order
    iterations on the curved part with the affine part projected out, a regression of the affine part on the context,
    and second-order iterations on everything. Models of branches over windows (`ConvSOCICNN`, `RecurrentSOCICNN`)
    begin with a convex problem instead of AdamW. A surrogate may have a training of its own (least squares, lpcf).
    The state with the smallest validation loss is kept. Values that grow steeply away from the best of their instance
    are learned a second time with those near it counting most, and that fit is kept unless it picks clearly worse
    held-out candidates (`FitConfig.focus`, `soctk.learn.phases.focused`). The model remembers where the data were
    (`support`). What it says of contexts beyond those of `data` is what it says at the nearest of these, where that is
    clearly better on validation data (`FitConfig.limit_context`, `context_range`).
    Instances whose candidates are one decision, measured several times, are learned from one value at a time. Those
    with too few candidates to tell how values vary with the decision (`needed_candidates`) tell of b0 alone, and of
    nothing where a surrogate does not keep b0 apart.

    A model whose first structures have one centre (`make_surrogate("soc")`) is first tried as the least-squares
    quadratic and what cross-validation adds to it; if larger structures are not clearly better, that is the fit,
    learned in the end from `data` with what validated it (`soctk.learn.ladder`). Of a larger structure, blocks and
    directions of norms are left out again where that makes the validation loss fall (`soctk.learn.phases.reduce`), and
    hyperbolic branches are added where that does (`soctk.learn.phases.grow`): the model then has other sizes than those
    it was made with, which its `config()` says. So an optimizer of one's own is to be made after the fit.

    With `FitConfig.members` several surrogates are learned, `model` the first of them, and their mean is the report's
    `model`. Each learns from four fifths of the instances, so that twice their spread (`AverageSurrogate.spread`) is a
    standard error of the mean's values (delete-d jackknife, Shao and Wu 1989). A member depends on the arguments and
    its number alone: processes of this machine and workers elsewhere learn the same.

    Where optimal decisions are known (`optima`), a last phase of L-BFGS adds the squared residuals of their
    conditions of optimality (`optimality`) to the loss, with the weights `FitConfig.optima_weights` in turn. A fifth
    of the optima is held out, and what is kept decides best there; that may be the fit without them. Of steep values
    both fits have this phase before their picks are compared.

    A fit that is interrupted (Ctrl-C, an error in `stop`) leaves the model as one that a time limit ends does.

    Args:
        model: the surrogate; its weights and units are changed.
        data: training data, left as it is.
        config: the recipe; `FitConfig()` by default.
        validation: data that chooses the state kept; a fifth of `data`'s instances by default.
        optima: (N, n), an optimal decision for every instance of `data`; None where they are unknown.
        feasible_set: what they are optimal in, `feasible_set.at(...)` for a set of its own for every instance; by
            default the smallest box that holds them all, with their common sum where they have one.
        stop: asked after each step; the fit ends as at a time limit once it says True. Of several members those that
            have not begun are left out.
        executor: what learns the members, such as `distributed.Client.get_executor()`; processes of this machine by
            default. It is never shut down. Members that it is learning when `stop` says True are left out too, unless
            it has a method `event()` that returns an object with `set()` and `is_set()` that its workers see: then
            they end with their best state.

    Returns:
        `FitReport` with loss curves, seconds and status.

    Raises:
        TypeError: a model that is no surrogate, data that are no `ValueData`, a config that is no `FitConfig`, a `stop`
            that is no function.
        ValueError: data whose dimensions are not the model's, a single value to learn and to validate from, numbers
            that the model's cannot hold, optima of a wrong shape or outside the set, optima for a surrogate with
            a training of its own, a model without weights or with frozen ones (`requires_grad=False`) that the fit
            sets anyway, or an executor for a single surrogate.
        RuntimeError: within `torch.inference_mode()`, or with another default device of PyTorch's than the processor.

    Warns:
        UserWarning: too few values, and how many are needed; values that are all the same; a `focus` on the best of
            single candidates.
        RuntimeWarning: the fit diverged and the model is as it was (`FitStatus.DIVERGED`).
    """
    check_function(model)
    check_learns("fit")
    config = config or FitConfig()
    _check_kinds(data, validation, config)
    check_stop(stop)
    if config.members > 1:
        members = Members.of(model, data, config, validation, _check_optima(model, data, optima, feasible_set))
        return side_by_side(fit, model, members, stop, executor)
    if executor is not None:
        raise ValueError("executor: expected FitConfig(members=) of at least 2, which it learns, got 1")
    if model.parameter_count == 0:
        raise ValueError(f"model: {type(model).__name__} has no weights to train")
    _check_frozen(model)
    _check_data(model, data, "data")
    known = _check_optima(model, data, optima, feasible_set)
    if validation is not None:
        _check_data(model, validation, "validation")
    elif data.value.numel() == 1:
        raise ValueError("data: expected at least two observed values, one of them to validate by, got 1")
    own_split, given = validation is None, (data,) if validation is None else (data, validation)
    parts, levels = _telling(model, given)
    data, validation = parts[0].split(seed=config.seed) if own_split else parts
    data, validation = (part.one_by_one() if part.replicated else part for part in (data, validation))
    _check_count(model, data)
    _check_spread(data)
    _check_focus(config.fixed_focus, data)
    started = time.perf_counter()
    deadline = Deadline(config.time_limit, stop)
    steep = config.focus == "auto" and can_compare(data, validation)
    trainer = Trainer(model, data, validation, deadline, own_split=own_split, focus=config.fixed_focus, levels=levels)
    candidates = min(data.fewest, validation.fewest)
    effective = trainer.effective_candidates(FOCUS if steep else config.fixed_focus)
    recipe = recipe_for(model, config, candidates, known, data.instances, steep=steep, effective=effective)
    try:
        # Batched derivatives cannot look for a NaN in each operation; a fit looks at its losses.
        anomaly = torch.is_anomaly_enabled()
        with (
            limited_threads(config.threads),
            torch.enable_grad(),
            torch.autograd.set_detect_anomaly(anomaly, check_nan=False),
        ):
            _run(recipe, trainer, progress=config.progress)
    finally:
        report = trainer.finish()
        undone = len(recipe) > 0 and not math.isfinite(report.best_validation)
        if undone:
            trainer.undo()
        else:
            model.support = Support.of(*((part.context, part.x) for part in given))
            if config.limit_context:
                limit_context(model, data, validation, report.focus)
    if undone:
        _warn_diverged()
    report.seconds, report.model = time.perf_counter() - started, model
    return report


def _telling(model: ConvexSurrogate, given: tuple[ValueData, ...]) -> tuple[tuple[ValueData, ...], ValueData | None]:
    """Return the given data without the instances that tell of nothing but their level, and those of the first part.

    An affine function passes through the values of an instance that has too few of them: projected out (`Residuals`),
    it would leave nothing, and its slope would say nothing of v.
    """
    needed = 1 if model.traits.own is not None else needed_candidates(model, given)
    if needed == 1:
        return tuple(part if part.counts is None else part.one_by_one() for part in given), None
    parts = [part.of_at_least(needed) for part in given]
    return tuple(part for part, _ in parts), parts[0][1]


def _run(recipe: Recipe, trainer: Trainer, *, progress: bool) -> None:
    windowed = trainer.model.traits.windowed
    with (
        nullcontext() if windowed is None else windowed.coarse(),
        Progress(steps_of(recipe, trainer), enabled=progress) as trainer.progress,
    ):
        try:
            run_in_turn(recipe, trainer)
        except BaseException as error:
            try:
                leave_whole(recipe, trainer)
            except Exception as other:  # what stopped the fit is what to tell
                error.add_note(f"soctk.fit: what was learned is not whole ({type(other).__name__}: {other})")
            raise


def _check_kinds(data: ValueData, validation: ValueData | None, config: FitConfig) -> None:
    check_kind(data, ValueData, "data")
    check_kind(config, FitConfig, "config")
    if validation is not None:
        check_kind(validation, ValueData, "validation")


def _check_frozen(model: ConvexSurrogate) -> None:
    """Refuse frozen weights (`requires_grad=False`) where phases would move them all the same.

    Phases choose how v responds to the context and, where a model has several structures, its blocks. A training of a
    model's own sets all weights. Other frozen weights stay as they are.
    """
    traits, weights = model.traits, dict(model.named_parameters())
    frozen = [name for name, weight in weights.items() if not weight.requires_grad]
    if traits.own is not None:
        wrong = frozen
    elif traits.structures > 1:
        for weight in weights.values():
            weight.requires_grad_(True)
        traits.take_structure(traits.structure, traits.without)  # freezes the blocks that it goes without
        wrong = [name for name in frozen if weights[name].requires_grad]
    else:
        chosen = set() if traits.affine is None else {id(weight) for weight in traits.affine.parameters()}
        wrong = [name for name in frozen if id(weights[name]) in chosen]
    for name in frozen:
        weights[name].requires_grad_(False)
    if wrong:
        raise ValueError(
            f"model: expected requires_grad=True of the weights that this fit sets anyway, got {len(wrong)} without "
            f"({wrong[0]}{', ...' if len(wrong) > 1 else ''}); set requires_grad_(True), or move the others alone by "
            "soctk.fine_tune or a loop of your own"
        )


def _check_optima(
    model: ConvexSurrogate, data: ValueData, optima: ArrayLike | None, feasible_set: FeasibleSet | SetAt | None
) -> Optima | None:
    if optima is None:
        if feasible_set is not None:
            raise ValueError("feasible_set: expected optima= as well; without them a fit does not use the set")
        return None
    if model.traits.own is not None:
        raise ValueError(f"optima: {type(model).__name__} has a training of its own, which does not use them")
    return Optima.of(data, optima, feasible_set)


def _check_count(model: ConvexSurrogate, data: ValueData) -> None:
    """Warn where an affine function passes through all values; weights that places share need fewer."""
    count, needed = int(data.observed.sum()), data.dim + data.context_dim + 2
    if count < needed and model.traits.windowed is None:
        warnings.warn(
            f"data: {count} observed values to learn from; an affine function of {data.dim} variables and "
            f"{data.context_dim} context numbers passes through so few. Give at least {needed}, better several for "
            f"each of the model's {model.parameter_count} weights",
            UserWarning,
            stacklevel=3,
        )


def _check_spread(data: ValueData) -> None:
    """Warn where no decision is better than another: what a model then prefers is what its start has left over."""
    total, several = data.value.numel(), data.candidates > 1
    if total == 1 or bool((data.value != (data.value[:, :1] if several else data.value[:1])).any()):
        return
    if several and bool((data.value != data.value[0, 0]).any()):
        found = "the candidates of every instance have the same observed value"
    else:
        found = f"all {total} observed values are {float(data.value[0, 0]):g}"
    warnings.warn(
        f"data: {found}; they do not say which decision is better, and neither will the model's minima",
        UserWarning,
        stacklevel=3,
    )


def _warn_diverged() -> None:
    warnings.warn(
        "fit: the validation error was never a finite number, so the model is as it was before; look for values "
        "far from the others in data and validation",
        RuntimeWarning,
        stacklevel=3,
    )


def _check_focus(focus: float, data: ValueData) -> None:
    if focus > 0 and data.candidates == 1:
        warnings.warn(
            f"focus: {focus} has no effect, since every instance of the data has one candidate, which is its best; "
            "give several candidates for each context, or focus=0.0",
            UserWarning,
            stacklevel=3,
        )


def _check_data(model: ConvexSurrogate, data: ValueData, name: str) -> None:
    if (data.dim, data.context_dim) != (model.dim, model.context_dim):
        raise ValueError(
            f"{name}: expected decision and context dimensions {(model.dim, model.context_dim)} as the model's, "
            f"got {(data.dim, data.context_dim)}"
        )
