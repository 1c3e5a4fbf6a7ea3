"""Where the commands decide: a set by name or from a file, its right-hand sides the same for all or from columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from soctk import Box, Budget, Polyhedron, Simplex
from soctk.sets import SetAt
from soctk.tables.arrays import Arrays
from soctk.tables.table import Table
from soctk_evaluation.cli.log_commands import Feasible
from soctk_evaluation.cli.polyhedron_file import BOUNDS, FILE_FORMATS, read_polyhedron
from soctk_evaluation.harness.request import UsageError

SETS: dict[str, tuple[Callable[..., Polyhedron], tuple[str, ...]]] = {
    "simplex": (Simplex, ("total",)),
    "box": (Box, ("lower", "upper")),
    "budget": (Budget, ("total", "lower", "upper")),
}
"""The sets by name, and the right-hand sides of each."""
COLUMNS = {
    "total": "total-column",
    "lower": "lower-columns",
    "upper": "upper-columns",
    "f": "equality-columns",
    "h": "rhs-columns",
}
"""The right-hand sides that columns may give, and by which option."""
EXPECTED = "expected simplex, box, budget or a polyhedron's file (.json, .npz)"


@dataclass(frozen=True, eq=False)
class Region:
    """Where to decide.

    Attributes:
        sets: one set, or one for each row of the contexts' file.
        columns: which columns gave which of the right-hand sides `lower`, `upper`, `f` and `h`.
    """

    sets: Polyhedron | SetAt
    columns: dict[str, tuple[str, ...]]


def column_names(asked: Feasible) -> dict[str, tuple[str, ...]]:
    """Return the columns asked for, by right-hand side."""
    given = {side: getattr(asked, option.replace("-", "_")) for side, option in COLUMNS.items()}
    given["total"] = () if asked.total_column is None else (asked.total_column,)
    return {side: names for side, names in given.items() if names}


def set_file(asked: Feasible) -> Path | None:
    """Return the file that the set is from, None where it is none."""
    return None if asked.set is None or asked.set in SETS else Path(asked.set)


def make_region(asked: Feasible, dim: int, source: Table | Arrays | None, *, by_rows: bool = False) -> Region | None:
    """Return where to decide, None where no set is asked for.

    Args:
        asked: the options.
        dim: the decision dimension.
        source: the file that columns are read from.
        by_rows: return sets whose rows have prices and may contradict each other, without columns too.

    Raises:
        UsageError: options that contradict each other or do not fit the set, a file or a column that cannot be read, or
            an empty set for all contexts.
    """
    columns = column_names(asked)
    numbers = {name: getattr(asked, name) for name in ("total", "lower", "upper")}
    numbers = {name: value for name, value in numbers.items() if value not in (None, ())}
    if asked.set is None:
        if numbers or columns:
            raise UsageError(f"--set: {EXPECTED} with {', '.join(_options(numbers, columns))}")
        return None
    twice = [name for name in numbers if name in columns]
    if twice:
        raise UsageError(f"--{twice[0]}: expected one of --{twice[0]} and --{COLUMNS[twice[0]]}, got both")
    if asked.set in SETS:
        parts = _named(asked.set, numbers, columns, dim)
    else:
        parts = _from_file(Path(asked.set), numbers, columns, dim)
    sides = _read(columns, parts, source)
    named = {"f" if side == "total" else side: names for side, names in columns.items()}
    try:
        if not (columns or by_rows):
            return Region(parts.exactly(), named)
        return Region(parts.base(sides).at(**parts.given() | sides), named)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{parts.place}{error}") from None


@dataclass(frozen=True, eq=False)
class Parts:
    """What a set is made of.

    Attributes:
        make: its constructor.
        place: where the numbers are from, to begin messages with.
        dim: n.
        numbers: its arguments; of right-hand sides those that all contexts share.
        counts: how many numbers each right-hand side has.
    """

    make: Callable[..., Polyhedron]
    place: str
    dim: int
    numbers: dict[str, Any]
    counts: dict[str, int]

    def exactly(self) -> Polyhedron:
        """Return the set."""
        return self.make(self.dim, **self.numbers)

    def given(self) -> dict[str, np.ndarray]:
        """Return the right-hand sides that all contexts share."""
        return {name: np.asarray(value, float) for name, value in self.numbers.items() if name in self.counts}

    def base(self, sides: Mapping[str, np.ndarray]) -> Polyhedron:
        """Return a set with the same matrices that is not empty, whatever the right-hand sides (N, any) are."""
        numbers = dict(self.numbers)
        ends = {name: sides[name].min(0) if name == "lower" else sides[name].max(0) for name in BOUNDS & set(sides)}
        numbers |= ends
        lower, upper = (
            np.broadcast_to(np.asarray(numbers.get(name, usual), float), self.dim)
            for name, usual in (("lower", 0.0), ("upper", np.inf))
        )
        if ends:
            upper = np.maximum(lower, upper)
            numbers |= {"lower": lower.tolist(), "upper": upper.tolist()}
        if "total" in self.counts:
            numbers["total"] = 1.0 if np.isinf(upper).any() else 0.5 * float(lower.sum() + upper.sum())
        point = np.clip(np.zeros(self.dim), lower, upper)
        for matrix, side, room in (("E", "f", 0.0), ("G", "h", 1.0)):
            if matrix in numbers:
                numbers[side] = np.atleast_2d(numbers[matrix]) @ point + room
        return self.make(self.dim, **numbers)


def _named(name: str, numbers: dict[str, Any], columns: dict[str, tuple[str, ...]], dim: int) -> Parts:
    make, taken = SETS[name]
    unused = _options(*({side: None for side in given if side not in taken} for given in (numbers, columns)))
    if unused:
        raise UsageError(f"{', '.join(unused)}: a {name} has none")
    if name == "budget" and "total" not in {*numbers, *columns}:
        raise UsageError("--total: expected the sum of a budget's decisions, or --total-column")
    made = {side: value if side == "total" else _bound(value, side, dim) for side, value in numbers.items()}
    counts = {side: 1 if side == "total" else dim for side in taken}
    if name != "simplex":
        made = {"lower": 0.0, "upper": 1.0} | made
    if name == "simplex" and "total" not in {*numbers, *columns}:
        made["total"] = 1.0
    return Parts(make, "--", dim, made, counts)


def _from_file(path: Path, numbers: dict[str, Any], columns: dict[str, tuple[str, ...]], dim: int) -> Parts:
    if path.suffix not in FILE_FORMATS:
        raise UsageError(f"--set: {EXPECTED}, got {path}")
    if numbers:
        raise UsageError(f"{', '.join(_options(numbers, {}))}: the file {path} has the bounds and rows of its own")
    if "total" in columns:
        raise UsageError("--total-column: a set from a file has rows; give E of its sum --equality-columns")
    given: dict[str, Any] = {"lower": np.zeros(()), "upper": np.array(np.inf), **read_polyhedron(path)}
    counts = {"lower": dim, "upper": dim}
    for matrix, side in (("E", "f"), ("G", "h")):
        if side in columns:
            if matrix not in given:
                raise UsageError(f"--{COLUMNS[side]}: {path} has no {matrix}")
            given.pop(side, None)
        elif (matrix in given) != (side in given):
            here, missing = (matrix, side) if matrix in given else (side, matrix)
            remedy = f", or --{COLUMNS[side]}" if missing == side else ""
            raise UsageError(f"{path}: {missing}: expected it beside {here}{remedy}")
        if matrix in given:
            given[matrix] = np.atleast_2d(given[matrix])
            if given[matrix].ndim != 2 or given[matrix].shape[1] != dim:
                raise UsageError(f"{path}: {matrix}: expected shape (rows, {dim}), got {given[matrix].shape}")
            counts[side] = len(given[matrix])
    for side, count in counts.items():
        if side in given and given[side].shape not in ((count,), ()):
            raise UsageError(f"{path}: {side}: expected {count} numbers, got shape {given[side].shape}")
        if side in given:
            given[side] = np.broadcast_to(given[side], count).tolist()
    return Parts(Polyhedron, f"{path}: ", dim, given, counts)


def _read(columns: dict[str, tuple[str, ...]], parts: Parts, source: Table | Arrays | None) -> dict[str, np.ndarray]:
    """Return the right-hand sides that columns give, each (N, any)."""
    if not columns:
        return {}
    if source is None:
        raise UsageError(f"contexts: expected a file with the columns {', '.join(sum(columns.values(), ()))}")
    sides = {}
    for side, names in columns.items():
        count = parts.counts[side]
        if len(names) not in ({1, count} if side in BOUNDS else {count}):
            each = "one for each coordinate" if side in BOUNDS else f"one for each row of {'E' if side == 'f' else 'G'}"
            raise UsageError(f"--{COLUMNS[side]}: expected {count} columns, {each}, got {len(names)}")
        found = source.numbers(names)
        sides[side] = found[:, 0] if side == "total" else np.broadcast_to(found, (len(found), count)).copy()
    return sides


def _options(numbers: Mapping[str, Any], columns: Mapping[str, Any]) -> list[str]:
    return [f"--{name}" for name in numbers] + [f"--{COLUMNS[side]}" for side in columns]


def _bound(values: tuple[float, ...], name: str, dim: int) -> float | tuple[float, ...]:
    if len(values) not in (1, dim):
        raise UsageError(f"--{name}: expected 1 or {dim} numbers, got {len(values)}")
    return values[0] if len(values) == 1 else values
