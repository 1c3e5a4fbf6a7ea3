"""Trajectories smoothed by recurrent models, the paper's recurrent test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from soctk import FitConfig, RecurrentSOCICNN
from soctk_evaluation.experiments.structured import Problem, Setting, measure
from soctk_evaluation.harness.cell import Cell
from soctk_tasks import Smoothing, choose_width, make_smoothing


def trivial(problem: Problem) -> Mapping[str, Callable[[], Tensor]]:
    """Return the ways to decide that learn no objective."""
    task, context = cast(Smoothing, problem.task), problem.splits.test.data.context
    validation = problem.splits.validation.data.context
    return {
        "zero": lambda: task.zero(context),
        "reference": lambda: task.reference(context),
        "moving_average": lambda: task.moving_average(context, choose_width(task, validation, task.moving_average)),
    }


SETTING = Setting(
    "smoothing",
    sizes={"steps": 40, "channels": 4, "train": 1200, "validation": 200, "test": 200, "candidates": 14},
    quick={"train": 300, "validation": 60, "test": 60},
    recipes={
        "structured": FitConfig(),
        "plain": FitConfig(starts=1, epochs=30, newton_iterations=0, lbfgs_iterations=200, structured=False),
    },
    dim=lambda config: config["steps"] * config["channels"],
    make_task=lambda config: make_smoothing(config["steps"], config["channels"]),
    make_model=lambda variant, task, seed: RecurrentSOCICNN(task.steps, task.channels, variant=variant, seed=seed),
    trivial=trivial,
)


def run_cell(cell: Cell, folder: Path | None = None) -> dict[str, Any]:
    """Measure one cell."""
    return measure(SETTING, cell, folder)


EXPERIMENT = SETTING.experiment(run_cell)
