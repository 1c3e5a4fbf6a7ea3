"""Time for a decision over polyhedra with right-hand sides of their own, beside the solvers it replaces: one thread.

Every method decides the same contexts of the same surrogate with random weights, each over its own set
(`soctk_tasks.polyhedra`). CVXPY re-solves one compiled parameterised program with Clarabel; Moreau, a batched conic
solver in C, is called on the cone data of the same lift at each of some batch sizes: made beforehand and not counted;
and once more with what anybody who starts from contexts has to do besides, the coefficients at them.
Putting these into their places is never counted.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import soctk
from soctk_evaluation.experiments.moreau import BATCHES
from soctk_evaluation.experiments.race import RACE, Race, measure
from soctk_evaluation.experiments.random_weights import move_weights
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.key import SOLVER
from soctk_evaluation.tables.polyhedra import write_polyhedra
from soctk_tasks.polyhedra import POLYHEDRA

CONTEXTS = 1024
ONE_BY_ONE = 20
"""Contexts that are decided one after the other, by all who decide single ones."""
OWN = (("newton", 1), ("prepared", 1), ("newton", 64), ("newton", CONTEXTS))
MOREAU = ("moreau", "moreau_with_coefficients")
MEASURED = ("decide_ms", "instances", "gap_max", "certified", "violation_max", "iterations")


def make_race(kind: str, name: str, repeats: int = 3) -> Race:
    """Return a race of a surrogate of a kind over one of the polyhedra."""
    sets, context = POLYHEDRA[name](CONTEXTS)
    model = soctk.make_surrogate(kind, sets.dim, context.shape[1], max_parameters=None, seed=1)
    move_weights(model, seed=3, scale=0.3, own_size=True)
    return Race(model, sets, context, repeats=repeats)


def polyhedra_cells(asked: Any) -> list[Cell]:
    """Return the cells asked for; those of a race, which are measured one after the other, come together."""
    others = [("cvxpy_clarabel", 1), *((name, batch) for name in MOREAU for batch in BATCHES)]
    return [
        Cell(
            "polyhedra",
            name,
            POLYHEDRA[name](1)[0].dim,
            method,
            0,
            "exact",
            make_config({"model": kind, "batch": batch}),
        )
        for name in asked.sets
        for kind in asked.models
        for method, batch in (*OWN, *others)
    ]


def _race_of(cell: Cell) -> tuple[str, str]:
    return dict(cell.config)["model"], cell.task


@lru_cache(maxsize=1)
def _race(kind: str, name: str) -> Race:
    return make_race(kind, name)


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Measure one method of a race on one thread; return the measurements of `MEASURED`."""
    torch.set_num_threads(1)
    return measure(_race(*_race_of(cell)), cell.method, dict(cell.config)["batch"], ONE_BY_ONE, MEASURED)


NEEDED = ("decide_ms", "config.batch", "config.model")
EXPERIMENT = Experiment(
    "polyhedra",
    polyhedra_cells,
    run_cell,
    MEASURED,
    write_polyhedra,
    text=("config.model",),
    needed=NEEDED,
    code=lambda cell: (*SOLVER, "soctk_tasks.polyhedra", *RACE),
    together=_race_of,
    pages=pages("polyhedra-timing.md", "polyhedra.svg"),
)
