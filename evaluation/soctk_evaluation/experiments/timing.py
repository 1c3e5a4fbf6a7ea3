"""Time for a decision, with its quality beside it: this library and the solvers it replaces, one thread, one process.

Every method decides the same contexts of the same model (a SOC-ICNN, of random weights or learned) over the same set.
Single decisions are of a few of them, one after the other, whoever decides. Warm starts are decisions of contexts that
are a little away, for the methods that take any. Beside each of this library's own times
stands the time that its arithmetic alone would take: its floating-point operations, over the rate of a large matrix
product measured in the same run. Those of products and factorisations follow from the sizes, with symmetric matrices
halved; the others are counted while PyTorch carries out the same steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import soctk
from soctk import ConvexSurrogate, FeasibleSet, FitConfig
from soctk_evaluation.experiments.moreau import BATCHES
from soctk_evaluation.experiments.race import RACE, Race, measure
from soctk_evaluation.experiments.random_weights import move_weights
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.key import SOLVER
from soctk_evaluation.tables.timing import write_timing
from soctk_tasks import make_task

CONTEXT_DIM = 8
MODELS = ("compact", "wide", "trained")
TRAINED_ON = {"simplex": "simplex_socp", "box": "box_socp", "budget": "budget_twocone_socp"}
"""The tasks that "trained" models are learned from, by the name of their set."""
TRAINING = FitConfig(starts=1, level_iterations=20)
TRAINING_INSTANCES, TRAINING_CANDIDATES = 400, 64
MOST_CONTEXTS = 2**16
PROCEDURE = 7
"""Counts the ways in which this file has measured: rows of another way are measured again."""
SETS: dict[str, Callable[[int], FeasibleSet]] = {
    "simplex": soctk.Simplex,
    "box": soctk.Box,
    "budget": lambda dim: soctk.Budget(dim, total=0.3 * dim),
}


def example(kind: str, dim: int, seed: int = 0) -> ConvexSurrogate:
    """Return a SOC-ICNN with all weights moved at random.

    "compact" is the leaderboard's with every branch on; "wide" has a size as the paper's: a backbone of two layers of
    64 ReLUs, a full quadratic and a full norm.
    """
    if kind == "compact":
        model = soctk.make_surrogate("soc", dim, CONTEXT_DIM, seed=seed)
        model.set_structure(model.structure_count - 1)
    else:
        model = soctk.SOCICNN(dim, CONTEXT_DIM, hidden=(64, 64), quadratics=(dim,), norms=(dim,), seed=seed)
    move_weights(model, seed)
    return model


def trained(name: str, dim: int) -> tuple[ConvexSurrogate, FeasibleSet]:
    """Return the leaderboard's SOC-ICNN, learned from a task whose contexts are standard normal, and the task's set."""
    task = make_task(name, dim=dim, seed=0)
    model = soctk.make_surrogate("soc", dim, task.context_dim, seed=0)
    soctk.fit(model, task.sample(TRAINING_INSTANCES, TRAINING_CANDIDATES, seed=1), TRAINING)
    return model, task.feasible_set


def make_race(model: str, feasible_set: str, dim: int, repeats: int = 3) -> Race:
    """Return a race of one of `MODELS` over one of `SETS`, its contexts standard normal."""
    if model == "trained":
        surrogate, decided_over = trained(TRAINED_ON[feasible_set], dim)
    else:
        surrogate, decided_over = example(model, dim), SETS[feasible_set](dim)
    return Race(surrogate, decided_over, contexts_of(surrogate), repeats=repeats)


def contexts_of(model: ConvexSurrogate) -> torch.Tensor:
    """Return the standard normal contexts that a model is timed at, of which methods decide the first."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(MOST_CONTEXTS, model.context_dim, generator=generator, dtype=torch.float64)


ONE_BY_ONE = (
    *("cvxpy_clarabel", "cvxpy_scs", "clarabel", "scs_1e-3", "scs_1e-3_warm"),
    *("cvxpylayers", "cvxpylayers_backward"),
)
OTHERS = (*((name, 1) for name in ONE_BY_ONE), *(("moreau", batch) for batch in BATCHES))
MEASURED = ("decide_ms", "instances", "gap_max", "certified", "iterations", "limit_ms")
"""The measurements in a row."""


def timing_cells(asked: Any) -> list[Cell]:
    """Return the cells asked for; those of a race, which are measured side by side, come together."""
    methods = ("newton", "newton_warm", "layer")
    own = [("prepared", 1), ("prepared_warm", 1), *itertools.product(methods, asked.batches)]
    cells = []
    for dim, model, name in itertools.product(asked.dims, asked.models, asked.sets):
        config = {"model": model, "count": asked.count, "procedure": PROCEDURE}
        for method, batch in (*own, *OTHERS):
            cells.append(Cell("timing", name, dim, method, 0, "exact", make_config(config | {"batch": batch})))
    return cells


def _race_of(cell: Cell) -> tuple[str, str, int]:
    return dict(cell.config)["model"], cell.task, cell.dim


@lru_cache(maxsize=1)
def _race(model: str, feasible_set: str, dim: int) -> Race:
    return make_race(model, feasible_set, dim)


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Measure one method of a race on one thread; return the measurements of `MEASURED`."""
    torch.set_num_threads(1)
    config = dict(cell.config)
    return measure(_race(*_race_of(cell)), cell.method, config["batch"], config["count"], MEASURED)


NEEDED = ("decide_ms", "config.batch", "config.model")
CODE = (*SOLVER, *RACE)
# The ratios of a race belong together.
EXPERIMENT = Experiment(
    "timing",
    timing_cells,
    run_cell,
    MEASURED,
    write_timing,
    text=("config.model",),
    needed=NEEDED,
    code=lambda cell: CODE,
    together=_race_of,
    pages=pages("timing.md", "timing.svg"),
)
