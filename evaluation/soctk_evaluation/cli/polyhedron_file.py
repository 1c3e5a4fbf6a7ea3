"""A polyhedron's numbers in a file: an object of lists (.json) or arrays by name (.npz)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from soctk.tables.arrays import array_of, open_arrays
from soctk_evaluation.harness.request import UsageError

FILE = ("lower", "upper", "E", "f", "G", "h")
"""What a file may say of {lower <= x <= upper, E x = f, G x <= h}."""
FILE_FORMATS = (".json", ".npz")
BOUNDS = {"lower", "upper"}
_ENDLESS = {"lower": -np.inf, "upper": np.inf}


def read_polyhedron(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a polyhedron's file, float64; which shapes go together is not checked.

    An empty list, and null for rows, say that there are none.

    Raises:
        UsageError: no such file, one that cannot be read, other names, or something that is not a number.
    """
    given = _json(path) if path.suffix == ".json" else _npz(path)
    unknown = [name for name in given if name not in FILE]
    if unknown:
        raise UsageError(f"{path}: expected {', '.join(FILE)}, got {', '.join(unknown)}")
    for name, array in given.items():
        wrong = np.isnan(array) if name in BOUNDS else ~np.isfinite(array)
        if wrong.any():
            raise UsageError(f"{path}: {name}: expected finite numbers, got {array[wrong][0]}")
    return given


def _json(path: Path) -> dict[str, np.ndarray]:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"no file {path}") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: not a readable .json file: {error}") from None
    if not isinstance(given, dict):
        raise UsageError(f"{path}: expected an object with {', '.join(FILE)}, got {type(given).__name__}")
    none = {name for name, value in given.items() if value == [] or (value is None and name not in BOUNDS)}
    return {name: _numbers(value, name, path) for name, value in given.items() if name not in none}


def _numbers(value: Any, name: str, path: Path) -> np.ndarray:
    """Return an array of JSON's numbers; null is no bound."""
    if name in BOUNDS and isinstance(value, list):
        value = [_ENDLESS[name] if entry is None else entry for entry in value]
    try:
        array = np.array(_ENDLESS[name] if value is None and name in BOUNDS else value)
    except ValueError:
        raise UsageError(f"{path}: {name}: expected rows of one length") from None
    if array.dtype.kind not in "fiu":
        raise UsageError(f"{path}: {name}: expected numbers, got {str(value)[:40]}")
    return array.astype(float)


def _npz(path: Path) -> dict[str, np.ndarray]:
    with open_arrays(path) as file:
        arrays = {name: array_of(file, name, path) for name in file.files}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu":
            raise UsageError(f"{path}: {name}: expected numbers, got {array.dtype}")
    return {name: array.astype(float) for name, array in arrays.items()}
