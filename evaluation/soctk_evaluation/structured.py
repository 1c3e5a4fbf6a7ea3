"""The paper's convolutional and recurrent tests: image restoration and trajectory smoothing.

Every method sees the same candidates and values; every learned one decides by `soctk.minimize` to the same certified
gap in units of the energy's spread, or for `MOST_STEPS`, from the same start. Trivial decisions stand beside them. Two
recipes, each with its own table:

- "structured": `soctk.fit` as it comes. Models with branches start from window Gram matrices; networks cannot.
- "plain": AdamW and L-BFGS from random weights for all five models alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import soctk
from soctk import ConvSOCICNN, Decision, FitConfig, RecurrentSOCICNN
from soctk.losses import relative_error
from soctk.models.structured import StructuredICNN, Variant
from soctk_evaluation.cells import Cell, make_config
from soctk_evaluation.recipe import PREFIX, learn, recipe_config
from soctk_tasks import (
    Restoration,
    Smoothing,
    Splits,
    StructuredTask,
    choose_width,
    load_faces,
    make_restoration,
    make_smoothing,
)

LEARNED = ("relu", "softplus", "quad", "norm", "soc")
TRIVIAL = {
    "smoothing": ("zero", "reference", "moving_average"),
    "restoration": ("observation", "constant", "mean_image", "moving_average", "clean_image"),
}
"""Rows that decide without a learned objective; "clean_image" is what the corruption was applied to."""
PROTOCOLS = ("structured", "plain")
RECIPES = {
    "smoothing": {
        "structured": FitConfig(),
        "plain": FitConfig(starts=1, epochs=30, newton_iterations=0, lbfgs_iterations=200, structured=False),
    },
    "restoration": {
        "structured": FitConfig(starts=1, epochs=8, rows=3200, lbfgs_iterations=60, newton_iterations=30),
        "plain": FitConfig(
            starts=1, epochs=20, batch_rows=160, rows=1600, newton_iterations=0, lbfgs_iterations=40, structured=False
        ),
    },
}
"""By experiment and protocol. Images are large: 200 of them with their candidates (100 from random weights) are what
second-order steps see."""
LAYERS = ({"channels": 10, "kernel": 3, "stride": 2}, 10, 10)
"""The backbones of the convolutional models, a quarter of the paper's places; its windows still meet every pixel."""
AFFINE_HIDDEN = {"norm": 8}
"""tanh units of the convolutional models' affine response, by the validation error of seed 0 with 0 and 8: norm has
.022 instead of .028 with them, quad .022 instead of .023 in twice the time, and SOC is better without. The networks,
which have no branch that could stand for one, were not tried with them."""
SIZES: dict[str, dict[str, Any]] = {
    "smoothing": {"steps": 40, "channels": 4, "train": 1200, "validation": 200, "test": 200, "candidates": 14},
    "restoration": {"size": 64, "train": 280, "validation": 60, "test": 60, "candidates": 16},
}
QUICK: dict[str, dict[str, Any]] = {
    "smoothing": {"train": 300, "validation": 60, "test": 60},
    "restoration": {"size": 32, "train": 80, "validation": 20, "test": 20},
}
TOLERANCE = 1e-4
"""Of the surrogates' decisions, in units of the energy's spread."""
REFERENCE_TOLERANCE = 1e-5
MOST_STEPS = {"smoothing": None, "restoration": 1000}
"""First-order steps of a decision by a model with a network, None for as many as it takes: with thousands of units an
image takes a minute to 1e-3. The gap reached is in the row."""
MEASURED = (
    "params",
    "relative_error",
    "regret_mean",
    "regret_median",
    "regret_max",
    "regret_stderr",
    "regret_n",
    "decision_error",
    "gap_max",
    "reference_gap",
    "spread",
    "fit_seconds",
    "decide_ms",
    "images",
)
"""The measurements in a row; gaps are in units of `spread`."""
SHOWN = 3
"""Test instances whose decisions are kept for the pictures."""
RELATIVE_COST = {"soc": 5, "norm": 4, "softplus": 3, "relu": 3, "quad": 2}


def structured_cells(
    experiment: str,
    methods: Sequence[str],
    protocols: Sequence[str],
    seeds: Sequence[int],
    sizes: Mapping[str, Any] | None = None,
    *,
    stand_in: bool = False,
    recipes: Mapping[str, FitConfig] | None = None,
    quick: bool = False,
) -> list[Cell]:
    """Return the cells of "smoothing" or "restoration", trivial rows without a recipe.

    Cells of a seed come together, since a worker keeps the optima of one seed, and long ones first.

    The identity of the photographs is part of a restoration cell, so results of other photographs are never mixed.

    Args:
        experiment: "smoothing" or "restoration".
        methods: of `LEARNED` and `TRIVIAL`.
        protocols: of `PROTOCOLS`.
        seeds: each is other data and other initial weights.
        sizes: departures from `SIZES`.
        stand_in: synthetic images in place of photographs.
        recipes: by protocol; those of `RECIPES` by default.
        quick: the sizes of `QUICK` and one start of each fit.

    Raises:
        FacesNotFoundError: restoration without photographs.
    """
    config = SIZES[experiment] | (QUICK[experiment] if quick else {}) | dict(sizes or {})
    recipes = recipes or RECIPES[experiment]
    if quick:
        recipes = {name: replace(recipe, starts=1) for name, recipe in recipes.items()}
    if experiment == "restoration":
        config |= {"stand_in": stand_in, "images": load_faces(source="stand-in" if stand_in else None).identity}
    dim = config["size"] ** 2 if experiment == "restoration" else config["steps"] * config["channels"]
    cells = []
    for method in sorted(methods, key=lambda name: -RELATIVE_COST.get(name, 0)):
        for protocol in protocols if method in LEARNED else ("",):
            recipe = recipe_config(recipes[protocol]) if protocol else {}
            cells += [
                Cell(experiment, experiment, dim, method, seed, protocol, make_config(config | recipe))
                for seed in seeds
            ]
    return sorted(cells, key=lambda cell: cell.seed)


@dataclass(frozen=True, eq=False)
class Problem:
    """The task, its data and the test instances' certified optima."""

    task: StructuredTask
    splits: Splits
    best: Decision


@lru_cache(maxsize=1)
def load_problem(experiment: str, sizes: tuple[tuple[str, Any], ...], seed: int) -> Problem:
    """Return the data of one seed and the certified optima of its test instances."""
    config = dict(sizes)
    parts = (config["train"], config["validation"], config["test"])
    task: StructuredTask
    if experiment == "smoothing":
        task = make_smoothing(config["steps"], config["channels"])
    else:
        task = make_restoration(config["size"], source="stand-in" if config["stand_in"] else None)
        if task.identity != config["images"]:
            raise ValueError(f"images: expected {config['images']}, got {task.identity}")
    splits = task.splits(seed, parts, config["candidates"])
    return Problem(task, splits, task.solve(splits.test.data.context, tol=REFERENCE_TOLERANCE))


def run_cell(cell: Cell, decisions: Path | None = None) -> dict[str, Any]:
    """Learn, decide and measure one cell on one thread; return the measurements of `MEASURED` and the status.

    Args:
        cell: the cell.
        decisions: a folder where the first decisions are kept for the pictures.
    """
    torch.set_num_threads(1)
    config = dict(cell.config)
    sizes = tuple(pair for pair in cell.config if not pair[0].startswith(PREFIX))
    problem = load_problem(cell.experiment, sizes, cell.seed)
    row: dict[str, Any] = {"spread": problem.task.spread, "images": getattr(problem.task, "identity", None)}
    if cell.method in LEARNED:
        x, more = _learned(cell, problem, config)
    else:
        x, more = trivial_decisions(problem)[cell.method](), {}
    if decisions is not None:
        _keep(
            decisions / decision_folder(config) / f"{cell.method}-{cell.protocol or 'trivial'}-{cell.seed}.npz",
            problem,
            x,
        )
    return row | _scores(problem, x) | more


def decision_folder(config: Mapping[str, Any]) -> str:
    """Return the name of the folder for a problem's kept decisions."""
    return "-".join(str(config[name]) for name in ("train", "size", "steps") if name in config)


def _learned(cell: Cell, problem: Problem, config: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    task, splits = problem.task, problem.splits
    model = structured_model(cell.method, task, cell.seed)
    report, note = learn(model, splits.train.data, splits.validation.data, config, cell.seed)
    context = splits.test.data.context
    started = time.perf_counter()
    decision = soctk.minimize(
        model,
        task.feasible_set,
        context,
        tol=TOLERANCE,
        max_iter=MOST_STEPS[cell.experiment] if model.has_backbone else None,
        x0=task.start(context),
        scale=task.spread,
    )
    seconds = time.perf_counter() - started
    missed = int((decision.relative_gap > TOLERANCE).sum())
    notes = [text for text in (note, f"{missed} decisions above the gap" if missed else "") if text]
    return decision.x, {
        "params": model.parameter_count,
        "relative_error": float(relative_error(model, splits.test.data)),
        "gap_max": float(decision.relative_gap.max()),
        "fit_seconds": report.seconds,
        "decide_ms": 1e3 * seconds / len(context),
        "status": "; ".join(notes) or "ok",
    }


def structured_model(variant: str, task: StructuredTask, seed: int) -> StructuredICNN:
    """Return a model of the task's shape."""
    chosen = cast(Variant, variant)
    if isinstance(task, Smoothing):
        return RecurrentSOCICNN(task.steps, task.channels, variant=chosen, seed=seed)
    assert isinstance(task, Restoration)
    return ConvSOCICNN(
        (task.size, task.size), variant=chosen, layers=LAYERS, affine_hidden=AFFINE_HIDDEN.get(variant, 0), seed=seed
    )


def trivial_decisions(problem: Problem) -> dict[str, Callable[[], Tensor]]:
    """Return the ways to decide that learn no objective."""
    task: Any = problem.task
    splits = problem.splits
    context = splits.test.data.context

    def averaged() -> Tensor:
        width = choose_width(task, splits.validation.data.context, task.moving_average)
        return task.moving_average(context, width)

    if isinstance(task, Smoothing):
        return {
            "zero": lambda: task.zero(context),
            "reference": lambda: task.reference(context),
            "moving_average": averaged,
        }
    return {
        "observation": lambda: task.observation(context),
        "constant": lambda: task.constant(context),
        "mean_image": lambda: splits.train.clean.mean(dim=0).expand_as(splits.test.clean),
        "moving_average": averaged,
        "clean_image": lambda: splits.test.clean,
    }


def _scores(problem: Problem, x: Tensor) -> dict[str, Any]:
    """Return regret and decision error against the certified optima."""
    task, context = problem.task, problem.splits.test.data.context
    regret = task.objective(x, context) - problem.best.value
    return {
        "regret_mean": float(regret.mean()),
        "regret_median": float(regret.median()),
        "regret_max": float(regret.max()),
        "regret_stderr": float(regret.std() / len(regret) ** 0.5),
        "regret_n": len(regret),
        "decision_error": float(task.decision_error(x, problem.best.x).mean()),
        "reference_gap": float(problem.best.relative_gap.max()),
    }


def _keep(path: Path, problem: Problem, x: Tensor) -> None:
    """Write the first test instances, their optima and these decisions, for the pictures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    test = problem.splits.test
    arrays: dict[str, Tensor] = {"context": test.data.context, "clean": test.clean, "best": problem.best.x, "x": x}
    partial = path.with_suffix(".partial.npz")
    kept: dict[str, Any] = {name: array[:SHOWN].detach().float().numpy() for name, array in arrays.items()}
    np.savez_compressed(partial, **kept)
    partial.replace(path)
