"""An entry as a Python object: what it has, what it is given, and how it is found.

class Entry:
    name, who, how = "mine", "a person", "one line"
    track = "values"                        # or "optima", "objective"

    def fit(self, data): ...                # `TrainingData`
    def decide(self, contexts): ...         # array (T, p) -> array (T, n)
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from soctk.sets import FeasibleSet, SetAt
from soctk_evaluation.benchmark.decisions import About
from soctk_evaluation.benchmark.versions import Problem, task_of
from soctk_evaluation.harness.request import UsageError
from soctk_tasks import Task


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What an entry learns from, float64 arrays; what its track does not show is None.

    Attributes:
        problem: name and sizes.
        context: (N, p).
        x: (N, M, n), M candidates for each context.
        value: (N, M), their costs.
        optimum: (N, n), optimal decisions, in the tracks optima and objective.
        task: the true objective and its solver, in the track objective.
    """

    problem: Problem
    context: np.ndarray
    x: np.ndarray
    value: np.ndarray
    optimum: np.ndarray | None = None
    task: Task | None = None

    @property
    def dim(self) -> int:
        """The decision dimension n."""
        return self.x.shape[2]

    @property
    def context_dim(self) -> int:
        """The context dimension p."""
        return self.context.shape[1]

    def sets(self, contexts: np.ndarray) -> FeasibleSet | SetAt:
        """Return where the decisions of contexts (T, p) live."""
        return task_of(self.problem).sets(contexts)


class Entry(Protocol):
    """What every entry has; `name`, `who`, `how` and `track` are read from it where it has them."""

    def fit(self, data: TrainingData) -> Any:
        """Learn from a problem's data."""

    def decide(self, contexts: np.ndarray) -> Any:
        """Return decisions, contexts (T, p) -> (T, n)."""


def load_entry(place: str) -> Callable[[], Entry]:
    """Return what makes a fresh entry for each problem.

    Args:
        place: a Python file, FILE:NAME or MODULE:NAME, of a class or an object with `fit` and `decide`.

    Raises:
        UsageError: no such thing, or one without `fit` and `decide`.
    """
    where, colon, name = place.rpartition(":")
    where, name = (where, name) if colon else (place, "")
    module = _module(where)
    if name and not hasattr(module, name):
        raise UsageError(f"{place}: {where} has no {name}")
    found = getattr(module, name) if name else _only(module, place)
    lacking = [method for method in ("fit", "decide") if not callable(getattr(found, method, None))]
    if lacking:
        raise UsageError(f"{place}: expected an object with fit(data) and decide(contexts), got no {lacking[0]}")
    return found if inspect.isclass(found) else lambda: copy.deepcopy(found)


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ImportError as error:
            raise UsageError(f"no entry {where}: {error}; expected a Python file, FILE:NAME or MODULE:NAME") from None
    path = Path(where)
    spec = importlib.util.spec_from_file_location(f"soctk_entry_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"no file {where}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the file does
        del sys.modules[spec.name]
        raise UsageError(f"{where}: {type(error).__name__}: {error}") from None
    return module


def _only(module: ModuleType, place: str) -> Any:
    """Return the module's own class or object with `fit` and `decide`, where there is one."""
    candidates = {
        name: value
        for name, value in vars(module).items()
        if callable(getattr(value, "fit", None)) and callable(getattr(value, "decide", None))
        if (value if inspect.isclass(value) else type(value)).__module__ == module.__name__
    }
    if len(candidates) != 1:
        some = " and ".join(candidates) or "none"
        raise UsageError(f"{place}: expected one class with fit and decide, got {some}; name it: {place}:NAME")
    return next(iter(candidates.values()))


def describe(make: Callable[[], Entry], place: str) -> About:
    """Return what an entry says of itself; UsageError where that is no text or no track."""
    said = {name: getattr(make, name, None) for name in ("name", "who", "how", "track")}
    if not inspect.isclass(make):
        said = {name: getattr(make(), name, None) for name in said}
    said["name"] = said["name"] or Path(place.partition(":")[0]).stem
    return About(**{name: text for name, text in said.items() if text is not None})
