"""Faces restored by convolutional models, the paper's convolutional test.

The identity of the photographs is part of a cell, so results of other photographs are never mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from soctk import ConvSOCICNN, FitConfig
from soctk.models.structured import Variant
from soctk_evaluation.experiments.structured import Problem, Setting, measure
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.key import SOLVER
from soctk_evaluation.harness.request import UsageError
from soctk_tasks import FacesNotFoundError, Restoration, choose_width, load_faces, make_restoration

LAYERS = ({"channels": 10, "kernel": 3, "stride": 2}, 10, 10)
"""The backbones of the convolutional models, a quarter of the paper's places; its windows still meet every pixel."""
AFFINE_HIDDEN = {"norm": 8}
"""tanh units of the convolutional models' affine response, by the validation error of seed 0 with 0 and 8: norm has
.022 instead of .028 with them, quad .022 instead of .023 in twice the time, and SOC is better without. The networks,
which have no branch that could stand for one, were not tried with them."""
MOST_STEPS = 1000
"""With thousands of units an image takes a minute to 1e-3. The gap reached is in the row."""


def photographs(asked: Any) -> dict[str, Any]:
    """Return which photographs there are, as a part of a cell's configuration; UsageError where there are none."""
    try:
        faces = load_faces(source="stand-in" if asked.stand_in else None)
        return {"stand_in": asked.stand_in, "images": faces.identity}
    except FacesNotFoundError as error:
        raise UsageError(str(error)) from None


def make_task(config: Mapping[str, Any]) -> Restoration:
    """Return the task; ValueError where its photographs are not the cell's."""
    task = make_restoration(config["size"], source="stand-in" if config["stand_in"] else None)
    if task.identity != config["images"]:
        raise ValueError(f"images: expected {config['images']}, got {task.identity}")
    return task


def trivial(problem: Problem) -> Mapping[str, Callable[[], Tensor]]:
    """Return the ways to decide that learn no objective."""
    task, splits = cast(Restoration, problem.task), problem.splits
    context, validation = splits.test.data.context, splits.validation.data.context
    return {
        "observation": lambda: task.observation(context),
        "constant": lambda: task.constant(context),
        "mean_image": lambda: splits.train.clean.mean(dim=0).expand_as(splits.test.clean),
        "moving_average": lambda: task.moving_average(context, choose_width(task, validation, task.moving_average)),
        "clean_image": lambda: splits.test.clean,
    }


def make_model(variant: str, task: Restoration, seed: int) -> ConvSOCICNN:
    """Return a model of the task's shape."""
    shape, hidden = (task.size, task.size), AFFINE_HIDDEN.get(variant, 0)
    return ConvSOCICNN(shape, variant=cast(Variant, variant), layers=LAYERS, affine_hidden=hidden, seed=seed)


SETTING = Setting(
    "restoration",
    sizes={"size": 64, "train": 280, "validation": 60, "test": 60, "candidates": 16},
    quick={"size": 32, "train": 80, "validation": 20, "test": 20},
    # Images are large: 200 of them with their candidates (100 from random weights) are what second-order steps see.
    recipes={
        "structured": FitConfig(starts=1, epochs=8, rows=3200, lbfgs_iterations=60, newton_iterations=30),
        "plain": FitConfig(
            starts=1, epochs=20, batch_rows=160, rows=1600, newton_iterations=0, lbfgs_iterations=40, structured=False
        ),
    },
    dim=lambda config: config["size"] ** 2,
    make_task=make_task,
    make_model=make_model,
    trivial=trivial,
    more=photographs,
    picture="png",
    most_steps=MOST_STEPS,
)


def run_cell(cell: Cell, folder: Path | None = None) -> dict[str, Any]:
    """Measure one cell."""
    return measure(SETTING, cell, folder)


# Decisions that end after `MOST_STEPS` are what the solver made of them: it determines the result.
EXPERIMENT = SETTING.experiment(run_cell, *SOLVER)
