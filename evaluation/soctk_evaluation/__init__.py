"""Measure surrogates and policies on tasks, keep the results safe, and report them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from soctk_evaluation.cells import Cell
    from soctk_evaluation.metrics import Scores, evaluate, solver_regret
    from soctk_evaluation.store import ResultsStore, StoreError
    from soctk_evaluation.sweep import run_cells

__all__ = ["Cell", "ResultsStore", "Scores", "StoreError", "evaluate", "run_cells", "solver_regret"]

_HOME = {
    "Cell": "cells",
    "ResultsStore": "store",
    "Scores": "metrics",
    "StoreError": "store",
    "evaluate": "metrics",
    "run_cells": "sweep",
    "solver_regret": "metrics",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line prints its help without loading torch."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
