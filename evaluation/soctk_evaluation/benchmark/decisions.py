"""A file of decisions: what an entry is judged by. Any language can write one.

    .npz    an array (T, n) for each problem, under its name; `soctk benchmark run` adds `entry`, a JSON text.
    .csv    columns problem, row (from 0), x_0, x_1, ...; x beyond a problem's dimension stay empty.

A decision that is not there, or not finite, is counted and scored at the centre of its set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from soctk.files import replacing
from soctk.tables.arrays import array_of, open_arrays
from soctk.tables.table import Table, missing_in
from soctk_evaluation.benchmark.versions import TRACKS, Problem
from soctk_evaluation.harness.request import UsageError

ABOUT = "entry"
LONGEST = 300
"""Characters of a line about an entry."""
LARGEST = 1e12
"""No time is longer, in seconds or milliseconds."""


@dataclass(frozen=True)
class About:
    """Who and how: what an entry says of itself.

    Attributes:
        name: of the entry.
        who: made it.
        how: one line on the method.
        track: one of `TRACKS`.
        machine: where its times were measured.
        fit_seconds: by problem.
        decide_ms: milliseconds a decision, by problem.
        ended: what went wrong, by problem.
        data: hashes of the data that it learned from, by problem.
        selection: the options that chose the problems.
    """

    name: str = ""
    who: str = ""
    how: str = ""
    track: str = "values"
    machine: str = ""
    fit_seconds: dict[str, float] = field(default_factory=dict)
    decide_ms: dict[str, float] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    selection: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("name", "who", "how", "machine"):
            text = getattr(self, name)
            if not _is_text(text) or len(text) > LONGEST or "\n" in text:
                raise UsageError(f"{name}: expected one line of at most {LONGEST} characters, got {ascii(text)[:60]}")
        if self.track not in TRACKS:
            raise UsageError(f"track: expected one of {' '.join(TRACKS)}, got {self.track!r}")
        for name, kind in (("fit_seconds", "number"), ("decide_ms", "number"), ("ended", "text"), ("data", "text")):
            values = getattr(self, name)
            is_one = _is_number if kind == "number" else _is_text
            if not isinstance(values, dict) or not all(map(is_one, values.values())):
                said = "number of at least 0" if kind == "number" else kind
                raise UsageError(f"{name}: expected a {said} for each problem, got {ascii(values)[:60]}")
        if not isinstance(self.selection, dict):
            raise UsageError("selection: expected the options that chose the problems")


def _is_number(value: Any) -> bool:
    """Whether a value is a number of at least 0 that a store can hold; NaN where it is not known."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value != value or 0 <= value <= LARGEST


def _is_text(value: Any) -> bool:
    """Whether a value is a text that a file can hold."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def write_decisions(path: Path, about: About, decisions: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file of decisions, arrays (T, n) by problem."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **{ABOUT: np.array(json.dumps(asdict(about)))}, **decisions)


def as_decisions(array: np.ndarray, problem: Problem, name: str) -> np.ndarray:
    """Return decisions (T, n) of a problem as floats; UsageError, which calls them `name`, where they are no such."""
    shape = _shape(problem)
    if array.shape != shape or array.dtype.kind not in "fiu":
        raise UsageError(f"{name}: expected numbers {shape}, got {array.dtype} {array.shape}")
    return array.astype(float)


def read_about(path: Path) -> About:
    """Return what an .npz file says of its entry, the usual where it says nothing, as a .csv file.

    Raises:
        UsageError: it says something else.
        TableError: the file cannot be read.
    """
    if path.suffix != ".npz":
        return About()
    with open_arrays(path) as file:
        text = str(array_of(file, ABOUT, path)) if ABOUT in file else "{}"
    try:
        given = json.loads(text)
    except ValueError:
        raise UsageError(f"{path}: {ABOUT}: expected a JSON text") from None
    if not isinstance(given, dict) or not given.keys() <= {one.name for one in fields(About)}:
        raise UsageError(f"{path}: {ABOUT}: expected an object with {', '.join(one.name for one in fields(About))}")
    return About(**given)


def read_decisions(path: Path, problems: Sequence[Problem]) -> dict[str, np.ndarray]:
    """Return decisions (T, n) by problem, NaN where there are none.

    Raises:
        UsageError: another kind of file, an unknown problem, another number of decisions or of coordinates, a row
            twice, or something that is no number.
        TableError: the file cannot be read.
    """
    if path.suffix not in (".npz", ".csv"):
        raise UsageError(f"{path}: expected a file ending in .npz or .csv")
    given = _npz(path, problems) if path.suffix == ".npz" else _csv(path, problems)
    return {problem.name: given.get(problem.name, np.full(_shape(problem), np.nan)) for problem in problems}


def _shape(problem: Problem) -> tuple[int, int]:
    return problem.test, problem.dim


def _known(name: str, problems: Sequence[Problem], path: Path) -> Problem:
    for problem in problems:
        if problem.name == name:
            return problem
    names = [problem.name for problem in problems]
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    raise UsageError(f"{path}: unknown problem {name!r}; expected those of this choice: {some}")


def _npz(path: Path, problems: Sequence[Problem]) -> dict[str, np.ndarray]:
    with open_arrays(path) as file:
        asked = {name: _known(name, problems, path) for name in file.files if name != ABOUT}
        return {name: as_decisions(array_of(file, name, path), one, f"{path}: {name}") for name, one in asked.items()}


def _csv(path: Path, problems: Sequence[Problem]) -> dict[str, np.ndarray]:
    table = Table.of(path)
    wanted = ["problem", "row", *(f"x_{k}" for k in range(max(problem.dim for problem in problems)))]
    if list(table.names) != wanted:
        wanted_here = f"expected columns {', '.join(wanted)}, as of this version's problems"
        hint = "was the file made for another --version?" if "problem" in table.names else "with commas between them"
        raise UsageError(f"{path}: {wanted_here}, got {', '.join(table.names)}; {hint}")
    frame = table.frame
    table.check_cells("problem", frame["problem"].notna().to_numpy(bool), "the name of a problem")
    numbers = frame[wanted[1:]].apply(pd.to_numeric, errors="coerce").astype(float)
    for name in wanted[1:]:
        table.check_cells(name, numbers[name].notna() | missing_in(frame[name]), "a number")
    return {
        str(name): _rows(part, _known(str(name), problems, path), path)
        for name, part in numbers.groupby(frame["problem"], sort=False)
    }


def _rows(part: pd.DataFrame, problem: Problem, path: Path) -> np.ndarray:
    rows = part["row"].to_numpy()
    inside = (rows == np.floor(rows)) & (rows >= 0) & (rows < problem.test)
    if not inside.all():
        raise UsageError(
            f"{path}: {problem.name}: expected rows 0 to {problem.test - 1}, as there are {problem.test} test "
            f"contexts, got {rows[~inside][0]:g}"
        )
    twice = part["row"][part["row"].duplicated()]
    if len(twice) > 0:
        raise UsageError(f"{path}: {problem.name}: expected each row once, got row {twice.iloc[0]:g} more than once")
    numbers = part.iloc[:, 1:].to_numpy(float)
    if np.isfinite(numbers[:, problem.dim :]).any():
        raise UsageError(f"{path}: {problem.name}: expected {problem.dim} coordinates, got more")
    x = np.full(_shape(problem), np.nan)
    x[rows.astype(int)] = numbers[:, : problem.dim]
    return x
