"""The training recipe as part of a cell's configuration, and learning one surrogate by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from soctk import AverageSurrogate, ConvexSurrogate, FitConfig, FitReport, ValueData, fit
from soctk.learn.phases.focused import FOCUS, FOCUSED_PENALTY

PREFIX = "fit."
LEFT_OUT = ("seed", "jobs", "threads", "progress", "optima_iterations", "optima_weights")
"""Fields of a recipe that are no part of a cell's configuration."""

FIT_FIELDS = ("fit_status", "structure")
"""The fields of a row that `fit_fields` gives, both texts."""

SWITCHES = (
    "optimizer",
    "choose_structure",
    "project_affine",
    "reduce",
    "grow",
    "limit_context",
    "race",
    "level_regression",
    "members",
    "focus",
    "context_units",
)
"""Fields that are one only where they differ from their defaults: rows from before there were any keep their cell."""

UNITS = 16
"""`FitConfig.context_units` of the setting "units"."""

SETTINGS: dict[str, dict[str, Any]] = {
    "average": {"members": 6},
    "focus": {"members": 6, "focus": FOCUS, "penalty": FOCUSED_PENALTY},
    "units": {"context_units": UNITS},
}
"""What the settings of `names.FROM_VALUES` change in a recipe: the mean of six, of six with `FitConfig.focus`, and
offsets and weights that bend with the context."""


def recipe_config(recipe: FitConfig) -> dict[str, Any]:
    """Return what determines a fit without known optima, for `make_config`: all other fields of the recipe."""
    usual = asdict(FitConfig())
    left_out = {*LEFT_OUT, *(name for name in SWITCHES if getattr(recipe, name) == usual[name])}
    return {f"{PREFIX}{name}": value for name, value in asdict(recipe).items() if name not in left_out}


def recipe_of(config: Mapping[str, Any], seed: int) -> FitConfig:
    """Return the recipe in a cell's configuration."""
    recipe = {name.removeprefix(PREFIX): value for name, value in config.items() if name.startswith(PREFIX)}
    return FitConfig(**recipe, seed=seed)


def learn(
    surrogate: ConvexSurrogate, train: ValueData, validation: ValueData, config: Mapping[str, Any], seed: int
) -> tuple[FitReport, str]:
    """Train a surrogate by the recipe in a cell's configuration.

    Returns:
        The report, whose `model` is what was learned, and a note for the row's status: "" unless the fit ended badly.
    """
    recipe = replace(recipe_of(config, seed), jobs=1)  # cells are what runs side by side
    report = fit(surrogate, train, recipe, validation=validation)
    return report, "" if report.status in ("converged", "iteration_limit") else f"fit {report.status}"


def fit_fields(report: FitReport) -> dict[str, str | None]:
    """Return `FIT_FIELDS`: how the fit ended, and the structure taken, "2: diagonal norm0" where 2 is its number.

    The number is there where there are several structures to choose from; behind the blocks stands "units16" where so
    many hidden units of the context were kept; None where a surrogate names no blocks and has no units. Of an average,
    the members' structures, each once; how its first member's fit ended.
    """
    model = report.model
    taken = [_structure(member) for member in (model.members if isinstance(model, AverageSurrogate) else [model])]
    return {"fit_status": report.status.value, "structure": " | ".join(dict.fromkeys(filter(None, taken))) or None}


def _structure(surrogate: ConvexSurrogate) -> str | None:
    traits = surrogate.traits
    number = [f"{traits.structure}:"] if traits.structures > 1 else []
    units = [f"units{surrogate.context_units}"] if surrogate.context_units > 0 else []
    return " ".join([*number, *traits.blocks, *units]) if traits.blocks or units else None
