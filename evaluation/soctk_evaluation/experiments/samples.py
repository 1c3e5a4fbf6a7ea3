"""How much data a method needs: regret by the number of candidates of an instance, and by the number of instances.

Everything else is the leaderboard's: tasks, test instances, recipe, decisions. Validation has as many candidates as
training, and as many instances: whoever has few to learn from has few to choose by. A single candidate of each
instance is what a log of decisions holds.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from soctk_evaluation.experiments.leaderboard import MEASURED, TEXT, config_of, measure, protocol_code
from soctk_evaluation.experiments.recipes import SIZES
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.names import decision_methods
from soctk_evaluation.harness.request import check_methods, check_names
from soctk_evaluation.tables.samples import write_samples
from soctk_tasks import TASKS, task_names

METHODS = ("soc", "dcp", "pcf", "quadratic")
CANDIDATES = (1, 2, 4, 8, 16, 32, 64)
INSTANCES = (50, 100, 200, 500, 1000)
DIMS, SEEDS = (10,), (0, 1, 2)
QUICK_TASKS = ("box_socp", "budget_huber")


def data_sizes() -> list[tuple[int, int]]:
    """Return (instances, candidates): one of the two varied, the other the leaderboard's."""
    most = SIZES["train"], SIZES["candidates"]
    found = [*((most[0], count) for count in CANDIDATES), *((count, most[1]) for count in INSTANCES)]
    return list(dict.fromkeys(found))


def sample_cells(asked: Any) -> list[Cell]:
    """Return the cells asked for, those of many values first; UsageError at an unknown name.

    Args:
        asked: `soctk_evaluation.cli.commands.Samples`.
    """
    check_methods(asked.methods, decision_methods())
    check_names(asked.tasks, task_names(), "task")
    methods, dims = asked.methods or METHODS, asked.dims or DIMS
    tasks = asked.tasks or (QUICK_TASKS if asked.quick else TASKS)
    seeds = asked.seeds or ((0,) if asked.quick else SEEDS)
    cells = []
    for dim, (instances, candidates), method, seed, task in itertools.product(
        dims, data_sizes(), methods, seeds, tasks
    ):
        sizes = {"train": instances, "validation": instances, "candidates": candidates}
        cells.append(Cell("samples", task, dim, method, seed, "exact", config_of(method, task, dim, sizes=sizes)))
    return sorted(cells, key=lambda cell: -dict(cell.config)["train"] * dict(cell.config)["candidates"])


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Measure one method on one task as the leaderboard does."""
    return measure(cell)


def _code(cell: Cell) -> tuple[str, ...]:
    return ("soctk_evaluation.experiments.leaderboard", *protocol_code(cell))


EXPERIMENT = Experiment(
    "samples",
    sample_cells,
    run_cell,
    MEASURED,
    write_samples,
    text=TEXT,
    needed=("config.train", "config.candidates"),
    code=_code,
    pages=pages("samples.md", "samples.svg"),
)
