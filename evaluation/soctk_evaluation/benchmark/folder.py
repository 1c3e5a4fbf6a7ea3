"""The data written out for entries in any language: training data and test contexts, never test optima.

    benchmark.json      version, track, and for each problem its sizes and the hash of its data
    NAME.npz            context (N, p), x (N, M, n), value (N, M), test_context (T, p); optimum (N, n) in the track
                        optima; the set {lower <= x <= upper, E x = f, G x <= h}: E, G and the sides, those that move
                        with the context as (N, any) and, of the test contexts, as test_lower, ... (T, any)

or, as .csv, a folder NAME with the same numbers in tables:

    train.csv           instance, x_0, ..., value: a line for each candidate
    train_contexts.csv  instance, context_0, ..., optimum_0, ... and the sides that move, f_0, ...
    test_contexts.csv   row, context_0, ... and the sides that move
    set.json            lower, upper, E, f, G, h; null where a side moves
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from soctk.sets import FeasibleSet, Rows, SetAt
from soctk_evaluation.benchmark.scoring import Judge, judge_of
from soctk_evaluation.benchmark.versions import Version, checked_hash, selection_of, task_of

SIDES = ("lower", "upper", "f", "h")
Arrays = dict[str, np.ndarray]


def write_folder(folder: Path, version: Version, track: str, kind: str) -> None:
    """Write the data of a version's problems.

    Args:
        folder: where to; made where it does not exist.
        version: the problems.
        track: what entries may see.
        kind: "npz" or "csv".

    Raises:
        UsageError: data that are not the published ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer: Callable[[Path, Arrays], None] = {"npz": _write_npz, "csv": _write_csv}[kind]
    contents: dict[str, Any] = selection_of(version) | {"track": track, "problems": {}}
    for problem in version.problems():
        judge = judge_of(problem)
        arrays = arrays_of(judge, track)
        writer(folder / problem.name, arrays)
        contents["problems"][problem.name] = {
            "hash": checked_hash(version, problem, judge.data, judge.contexts),
            "dim": problem.dim,
            "context_dim": judge.data.context_dim,
            "train": problem.train,
            "candidates": problem.candidates,
            "test": problem.test,
        }
    (folder / "benchmark.json").write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def arrays_of(judge: Judge, track: str) -> Arrays:
    """Return what is written of a problem, by name."""
    data = judge.data
    found = {"context": data.context, "x": data.x, "value": data.value, "test_context": judge.contexts}
    if track == "optima":
        found["optimum"] = judge.train_optimum.x
    rows, sides = _rows(judge.sets)
    train = _rows(task_of(judge.problem).sets(data.context))[1]
    found |= {"E": rows.E, "G": rows.G}
    for name in SIDES:
        found[name] = train[name]
        if sides[name].ndim > 1:
            found[f"test_{name}"] = sides[name]
    return {name: np.asarray(array, dtype=float) for name, array in found.items()}


def _rows(sets: FeasibleSet | SetAt) -> tuple[Rows, dict[str, Any]]:
    rows = sets.rows if isinstance(sets, SetAt) else sets.rows()
    if rows is None:
        raise ValueError("expected a polyhedron: the files have no form for other sets")
    return rows, {name: getattr(sets if isinstance(sets, SetAt) else rows, name) for name in SIDES}


def _write_npz(path: Path, arrays: Arrays) -> None:
    np.savez_compressed(path.with_name(f"{path.name}.npz"), **arrays)  # type: ignore[arg-type]


def _write_csv(folder: Path, arrays: Arrays) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    count, candidates, _ = arrays["x"].shape
    flat = _columns("x", arrays["x"].reshape(count * candidates, -1))
    instance = np.repeat(np.arange(count), candidates)
    _table({"instance": instance, **flat, "value": arrays["value"].ravel()}, folder / "train.csv")
    moving = [name for name in SIDES if f"test_{name}" in arrays]
    train, test = {"instance": np.arange(count)}, {"row": np.arange(len(arrays["test_context"]))}
    train |= _columns("context", arrays["context"]) | _columns("optimum", arrays.get("optimum", np.empty((count, 0))))
    test |= _columns("context", arrays["test_context"])
    for name in moving:
        train |= _columns(name, arrays[name])
        test |= _columns(name, arrays[f"test_{name}"])
    _table(train, folder / "train_contexts.csv")
    _table(test, folder / "test_contexts.csv")
    sides = ("lower", "upper", "E", "f", "G", "h")
    fixed = {name: None if name in moving else arrays[name].tolist() for name in sides}
    (folder / "set.json").write_text(json.dumps(_without_infinity(fixed)) + "\n", encoding="utf-8")


def _columns(name: str, array: np.ndarray) -> Arrays:
    return {f"{name}_{k}": array[:, k] for k in range(array.shape[1])}


def _table(columns: Arrays, path: Path) -> None:
    pd.DataFrame(columns).to_csv(path, index=False)


def _without_infinity(value: Any) -> Any:
    """Return nested lists with null where there is no bound."""
    if isinstance(value, dict):
        return {name: _without_infinity(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_infinity(entry) for entry in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
