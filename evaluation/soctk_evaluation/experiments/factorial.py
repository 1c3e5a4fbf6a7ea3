"""What each factor of SOC-ICNN and its recipe is worth: each switched off alone, and given to the rivals.

Data, decisions and measurements are the leaderboard's; a row's method is a name of `VARIANTS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import soctk
from soctk import ConvexSurrogate, FitConfig
from soctk_evaluation.experiments.leaderboard import MEASURED, TEXT, cell_config, measure, protocol_code
from soctk_evaluation.experiments.recipes import own_recipe
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.key import BASELINES
from soctk_evaluation.harness.request import check_names
from soctk_evaluation.harness.variants import VARIANTS
from soctk_evaluation.tables.factorial import write_factorial
from soctk_tasks import TASKS, task_names

DIMS, SEEDS = (10,), (0, 1, 2)
STEPS, RELU_STEPS = 300, 1000
"""Iterations of L-BFGS, at most: those that most rows were measured with, fewer than the leaderboard's but for ReLU
networks."""


def factorial_cells(asked: Any, sizes: Mapping[str, int] | None = None, fit: FitConfig | None = None) -> list[Cell]:
    """Return the cells asked for, long ones first; UsageError at an unknown name.

    Args:
        asked: `soctk_evaluation.cli.commands.Factorial`.
        sizes: departures from the leaderboard's.
        fit: the training recipe before a variant's changes; by default the leaderboard's with `STEPS`.
    """
    check_names(asked.methods, tuple(VARIANTS), "variant")
    check_names(asked.tasks, task_names(), "task")
    seeds = (0,) if asked.quick else SEEDS
    grid = itertools.product(asked.dims or DIMS, asked.methods or VARIANTS, asked.seeds or seeds, asked.tasks or TASKS)
    cells = []
    for dim, name, seed, task in grid:
        variant = VARIANTS[name]
        own = replace(fit or _recipe(variant.method, dim), **variant.recipe)
        cells.append(Cell("factorial", task, dim, name, seed, "exact", cell_config(own, sizes, {})))
    return sorted(cells, key=lambda cell: (-cell.dim, not cell.method.endswith("_lm")))


def _recipe(method: str, dim: int) -> FitConfig:
    return replace(own_recipe(method, dim), lbfgs_iterations=RELU_STEPS if method == "relu" else STEPS)


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Measure one variant on one task as the leaderboard does its methods."""
    return measure(cell, make_variant)


def make_variant(name: str, dim: int, *, context_dim: int, seed: int) -> ConvexSurrogate:
    """Return a new surrogate of a variant's sizes, taking on its last structure."""
    variant = VARIANTS[name]
    model = soctk.make_surrogate(variant.method, dim, context_dim, seed=seed)
    before = model.config()
    config = variant.sizes(dict(before))
    if config == before:
        return model
    return type(model)(**config | {"structure": -1})


def _code(cell: Cell) -> tuple[str, ...]:
    own = ("soctk_evaluation.experiments.leaderboard", "soctk_evaluation.harness.variants")
    return (*own, *protocol_code(cell), *BASELINES.get(VARIANTS[cell.method].method, ()))


EXPERIMENT = Experiment(
    "factorial",
    factorial_cells,
    run_cell,
    MEASURED,
    write_factorial,
    text=TEXT,
    code=_code,
    pages=pages("factorial.md", "factorial.svg"),
)
