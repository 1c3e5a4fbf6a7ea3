"""What the paper's convolutional and recurrent tests share: image restoration and trajectory smoothing.

Every method sees the same candidates and values; every learned one decides by `soctk.minimize` to the same certified
gap in units of the energy's spread, or for `Setting.most_steps`, from the same start. Trivial decisions stand beside
them. Two recipes, each with its own table:

- "structured": `soctk.fit` as it comes. Models with branches start from window Gram matrices; networks cannot.
- "plain": AdamW and L-BFGS from random weights for all five models alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, set_num_threads

import soctk
from soctk import Decision, FitConfig
from soctk.losses import relative_error
from soctk.models.structured import StructuredICNN
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.names import STRUCTURED, STRUCTURED_TRIVIAL
from soctk_evaluation.harness.recipe import FIT_FIELDS, PREFIX, fit_fields, learn, recipe_config
from soctk_evaluation.harness.request import check_names
from soctk_evaluation.tables.structured import NEEDED, decision_folder, write_structured
from soctk_tasks import Splits, StructuredTask

PROTOCOLS = ("structured", "plain")
TOLERANCE = 1e-4
"""Of the surrogates' decisions, in units of the energy's spread."""
REFERENCE_TOLERANCE = 1e-5
MEASURED = (
    *("params", "relative_error", "regret_mean", "regret_median", "regret_max", "regret_stderr", "regret_n"),
    *("decision_error", "gap_max", "reference_gap", "spread", "fit_seconds", "decide_ms", "images"),
    *FIT_FIELDS,
)
"""The measurements in a row; gaps are in units of `spread`."""
SHOWN = 3
"""Test instances whose decisions are kept for the pictures."""
RELATIVE_COST = {"soc": 5, "norm": 4, "softplus": 3, "relu": 3, "quad": 2}


@dataclass(frozen=True, eq=False)
class Problem:
    """The task, its data and the test instances' certified optima."""

    task: StructuredTask
    splits: Splits
    best: Decision


@dataclass(frozen=True, eq=False)
class Setting:
    """What one of the tests has of its own.

    Attributes:
        name: of the experiment.
        sizes: of the data.
        quick: departures from `sizes` that save time.
        recipes: by protocol.
        dim: the number of variables at given sizes.
        make_task: the task of given sizes.
        make_model: a surrogate by its name, task and seed.
        trivial: the ways to decide that learn no objective.
        more: what a request adds to the sizes.
        picture: the format of the page's picture.
        most_steps: first-order steps of a decision by a model with a network, None for as many as it takes.
    """

    name: str
    sizes: Mapping[str, Any]
    quick: Mapping[str, Any]
    recipes: Mapping[str, FitConfig]
    dim: Callable[[Mapping[str, Any]], int]
    make_task: Callable[[Mapping[str, Any]], StructuredTask]
    make_model: Callable[[str, Any, int], StructuredICNN]
    trivial: Callable[[Problem], Mapping[str, Callable[[], Tensor]]]
    more: Callable[[Any], Mapping[str, Any]] = lambda asked: {}
    picture: str = "svg"
    most_steps: int | None = None

    def cells(
        self, asked: Any, sizes: Mapping[str, Any] | None = None, recipes: Mapping[str, FitConfig] | None = None
    ) -> list[Cell]:
        """Return the cells asked for, trivial rows without a recipe; UsageError at an unknown name.

        Cells of a seed come together, since a worker keeps the optima of one seed, and long ones first. `sizes` are
        departures from the setting's, `recipes` by protocol take the place of its own.
        """
        known = (*STRUCTURED, *STRUCTURED_TRIVIAL[self.name])
        check_names(asked.methods, known, "method")
        config = {**self.sizes, **(self.quick if asked.quick else {}), **(sizes or {}), **self.more(asked)}
        recipes = recipes or self.recipes
        if asked.quick:
            recipes = {name: replace(recipe, starts=1) for name, recipe in recipes.items()}
        protocols = asked.protocols or (("structured",) if asked.quick else PROTOCOLS)
        cells = []
        for method in sorted(asked.methods or known, key=lambda name: -RELATIVE_COST.get(name, 0)):
            for protocol in protocols if method in STRUCTURED else ("",):
                whole = make_config(config | (recipe_config(recipes[protocol]) if protocol else {}))
                for seed in asked.seeds or ((0,) if asked.quick else (0, 1, 2)):
                    cells.append(Cell(self.name, self.name, self.dim(config), method, seed, protocol, whole))
        return sorted(cells, key=lambda cell: cell.seed)

    def experiment(self, run: Callable[[Cell, Path], Mapping[str, Any]], *code: str) -> Experiment:
        """Return the experiment that measures cells by `run`, whose results the source `code` determines too."""
        more: dict[str, Any] = {
            "text": ("images", *FIT_FIELDS),
            "needed": NEEDED,
            "code": lambda cell: (__name__, *code),
        }
        more["pages"] = pages(f"{self.name}.md", f"{self.name}.{self.picture}")
        return Experiment(self.name, self.cells, run, MEASURED, write_structured, **more)


@lru_cache(maxsize=1)
def load_problem(setting: Setting, sizes: tuple[tuple[str, Any], ...], seed: int) -> Problem:
    """Return the data of one seed and the certified optima of its test instances."""
    config = dict(sizes)
    task = setting.make_task(config)
    splits = task.splits(seed, (config["train"], config["validation"], config["test"]), config["candidates"])
    return Problem(task, splits, task.solve(splits.test.data.context, tol=REFERENCE_TOLERANCE))


def measure(setting: Setting, cell: Cell, folder: Path | None) -> dict[str, Any]:
    """Learn, decide and measure one cell on one thread; return the measurements of `MEASURED` and the status.

    The first decisions are kept in `folder` for the pictures.
    """
    set_num_threads(1)
    config = dict(cell.config)
    sizes = tuple(pair for pair in cell.config if not pair[0].startswith(PREFIX))
    problem = load_problem(setting, sizes, cell.seed)
    row: dict[str, Any] = {"spread": problem.task.spread, "images": config.get("images")}
    if cell.method in STRUCTURED:
        x, more = _learned(setting, cell, problem)
    else:
        x, more = setting.trivial(problem)[cell.method](), {}
    if folder is not None:
        name = f"{cell.method}-{cell.protocol or 'trivial'}-{cell.seed}.npz"
        _keep(folder / decision_folder(config) / name, problem, x)
    return row | _scores(problem, x) | more


def _learned(setting: Setting, cell: Cell, problem: Problem) -> tuple[Tensor, dict[str, Any]]:
    task, splits = problem.task, problem.splits
    model = setting.make_model(cell.method, task, cell.seed)
    report, note = learn(model, splits.train.data, splits.validation.data, dict(cell.config), cell.seed)
    context = splits.test.data.context
    started = time.perf_counter()
    options: dict[str, Any] = {"tol": TOLERANCE, "x0": task.start(context), "scale": task.spread}
    most = setting.most_steps if model.has_backbone else None
    decision = soctk.minimize(model, task.feasible_set, context, max_iter=most, **options)
    seconds = time.perf_counter() - started
    missed = int((decision.relative_gap > TOLERANCE).sum())
    notes = [text for text in (note, f"{missed} decisions above the gap" if missed else "") if text]
    return decision.x, {
        "params": model.parameter_count,
        "relative_error": float(relative_error(model, splits.test.data)),
        "gap_max": float(decision.relative_gap.max()),
        "fit_seconds": report.seconds,
        "decide_ms": 1e3 * seconds / len(context),
        **fit_fields(report),
        "status": "; ".join(notes) or "ok",
    }


def _scores(problem: Problem, x: Tensor) -> dict[str, Any]:
    """Return regret and decision error against the certified optima."""
    task, context = problem.task, problem.splits.test.data.context
    regret = task.objective(x, context) - problem.best.value
    return {
        "regret_mean": float(regret.mean()),
        "regret_median": float(regret.quantile(0.5)),
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
