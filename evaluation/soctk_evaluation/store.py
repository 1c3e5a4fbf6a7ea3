"""The results store: one JSON line a result, safe against crashes, full disks and several writers at once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]

IDENTITY: dict[str, type | tuple[type, ...]] = {
    "experiment": str,
    "task": str,
    "dim": int,
    "method": str,
    "seed": int,
    "protocol": str,
    "status": str,
    "key": str,
    "config": dict,
    "versions": dict,
    "machine": str,
    "started": str,
}
"""The fields every row has, whatever the experiment. All further fields are measurements."""


class StoreError(RuntimeError):
    """The store could not be read or written; the message says why and the file is still valid."""


@dataclass(frozen=True)
class BadLine:
    """A line of a store that is not a result: its number (from 1) and the reason."""

    number: int
    reason: str


@dataclass(frozen=True)
class Contents:
    """What a store holds: the rows in the order they were written, and the lines that were skipped."""

    rows: list[Row]
    bad: list[BadLine]

    def latest(self) -> dict[str, Row]:
        """Return the last row of every key, ordered by when that row was written."""
        found: dict[str, Row] = {}
        for row in self.rows:
            found.pop(row["key"], None)
            found[row["key"]] = row
        return found

    def newest(self) -> list[Row]:
        """Return the last row of every cell, whatever code and libraries measured it."""
        found: dict[str, Row] = {}
        for row in self.rows:
            cell = cell_of(row)
            found.pop(cell, None)
            found[cell] = row
        return list(found.values())


class ResultsStore:
    """A file of results, one JSON object a line.

    Any number of processes may append at once: each row is one write under a file lock. A line torn by a
    crash or damaged later is skipped, counted and reported by `read`, and its cell counts as not done.

    Args:
        path: the file; it and its folder are made by the first `append`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, row: Row) -> None:
        """Add one row and wait until it is on the disk. NaN and infinite numbers are written as null.

        Raises:
            ValueError: the row lacks a field of `IDENTITY`, or holds something that is not JSON.
            StoreError: the disk is full or the file cannot be written; nothing of the row stays in the file.
        """
        line = encode(row)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
                _write(descriptor, line)
        except OSError as error:
            raise StoreError(
                f"cannot write {self.path}: {error.strerror or error}; earlier results are intact"
            ) from None

    def read(self) -> Contents:
        """Return every valid row and every line that is not one; an absent file is an empty store.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            with _locked(self.path, os.O_RDONLY, fcntl.LOCK_SH) as descriptor:
                size = os.fstat(descriptor).st_size
                data = b"".join(iter(lambda: os.read(descriptor, max(size, 1)), b""))
        except FileNotFoundError:
            return Contents([], [])
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror or error}") from None
        return _parse(data)

    def done(self) -> set[str]:
        """Return the keys whose last row needs no further run: measured, or quarantined."""
        return {key for key, row in self.read().latest().items() if is_done(row)}


def is_done(row: Row) -> bool:
    """Return whether a row needs no further run: it is measured, or quarantined."""
    return not row["status"].startswith("failed")


def cell_of(row: Row) -> str:
    """Return which cell a row, or the identity of a cell, belongs to, whatever code and libraries measured it."""
    names = ("experiment", "task", "dim", "method", "seed", "protocol", "config")
    return json.dumps([row[name] for name in names], sort_keys=True)


def encode(row: Row) -> bytes:
    """Return the row as one JSON line, NaN and infinity as null; ValueError where it is not a valid row."""
    clean = _finite(row)
    reason = problem_of(clean)
    if reason is not None:
        raise ValueError(f"row: {reason}")
    try:
        return json.dumps(clean, allow_nan=False).encode() + b"\n"
    except TypeError as error:
        raise ValueError(f"row: {error}") from None


def problem_of(row: Any) -> str | None:
    """Return why `row` is not a valid row, or None where it is one."""
    if not isinstance(row, dict):
        return f"expected a JSON object, got {type(row).__name__}"
    for name, kind in IDENTITY.items():
        if name not in row:
            return f"field {name!r} is missing"
        if not isinstance(row[name], kind) or isinstance(row[name], bool):
            return f"field {name!r}: unexpected {type(row[name]).__name__}"
    if not row["key"]:
        return "field 'key' is empty"
    return None


def _parse(data: bytes) -> Contents:
    rows: list[Row] = []
    bad: list[BadLine] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=_refuse)
            reason = problem_of(row)
        except (ValueError, RecursionError) as error:
            row, reason = {}, f"not valid JSON ({error})"
        if reason is None:
            rows.append(row)
        else:
            bad.append(BadLine(number, reason))
    return Contents(rows, bad)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _finite(value: Any) -> Any:
    """Return `value` with every NaN and infinity replaced by None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@contextlib.contextmanager
def _locked(path: Path, flags: int, lock: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, lock)
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, line: bytes) -> None:
    """Append one line whole or not at all; a torn line before it is ended first."""
    end = os.fstat(descriptor).st_size
    if end and os.pread(descriptor, 1, end - 1) != b"\n":
        line = b"\n" + line
    try:
        written = os.write(descriptor, line)
        if written < len(line):
            raise OSError("only a part of the row fitted: disk full or file size limit reached")
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end)
        raise
