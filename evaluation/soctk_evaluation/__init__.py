"""Measure surrogates and policies on tasks, keep the results safe, and report them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from soctk_evaluation.experiments import find_experiment
    from soctk_evaluation.harness.cell import Cell
    from soctk_evaluation.harness.experiment import Experiment
    from soctk_evaluation.harness.store import ResultsStore, StoreError
    from soctk_evaluation.harness.sweep import run_cells
    from soctk_evaluation.metrics import Scores, evaluate, solver_regret

__all__ = [
    "Cell",
    "Experiment",
    "ResultsStore",
    "Scores",
    "StoreError",
    "evaluate",
    "find_experiment",
    "run_cells",
    "solver_regret",
]

_HOME = {
    "Cell": "harness.cell",
    "Experiment": "harness.experiment",
    "ResultsStore": "harness.store",
    "Scores": "metrics",
    "StoreError": "harness.store",
    "evaluate": "metrics",
    "find_experiment": "experiments",
    "run_cells": "harness.sweep",
    "solver_regret": "metrics",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line prints its help without loading torch."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
