"""The results store: one JSON line a result, safe against crashes, full disks and several writers at once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]

TEXT = ("experiment", "task", "method", "protocol", "status", "key", "machine", "started")
IDENTITY = dict.fromkeys(TEXT, str) | {"dim": int, "seed": int, "config": dict, "versions": dict}
"""The fields every row has, whatever the experiment. All further fields are measurements."""

LEAST = {"dim": 1, "seed": 0}

TIME_LIMIT = "cell_time_limit"
"""The field of a row that says how many seconds its cell was given and did not keep to."""


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
        return last_by(self.rows, lambda row: row["key"])

    def newest(self) -> list[Row]:
        """Return the row of every cell that was started last, whatever code and libraries measured it, oldest first.

        Rows of several stores in one file need not be in order.
        """
        return list(last_by(sorted(self.rows, key=lambda row: row["started"]), cell_of).values())


class ResultsStore:
    """A file of results, one JSON object a line.

    Any number of processes may append at once: each row is one write under a file lock. A line torn by a
    crash or damaged later is skipped, counted and reported by `read`, and its cell counts as not done.

    Args:
        path: the file; it and its folder are made by the first `append`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def folder(self) -> Path:
        """Where experiments keep files of their own beside the store: its name without the ending, or with one."""
        return self.path.with_suffix("") if self.path.suffix else self.path.with_suffix(".files")

    def append(self, *rows: Row) -> None:
        """Add rows, all or none, and wait until they are on the disk. NaN and infinite numbers are written as null.

        Raises:
            ValueError: a row lacks a field of `IDENTITY`, or holds something that is not JSON.
            StoreError: the disk is full or the file cannot be written; nothing of the rows stays in the file.
        """
        lines = b"".join(map(encode, rows))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
                _write(descriptor, lines)
        except OSError as error:
            raise StoreError(
                f"cannot write {self.path}: {error.strerror or error}; earlier results are intact"
            ) from None

    def read(self, problem: Callable[[Row], str | None] = lambda row: None) -> Contents:
        """Return every valid row and every line that is not one; an absent file is an empty store.

        Args:
            problem: why a row is not valid for its reader, or None where it is.

        Raises:
            StoreError: the file cannot be read.
        """
        if self.path.is_char_device() or self.path.is_fifo():  # these may have no end
            raise StoreError(f"cannot read {self.path}: a device or a pipe, in which nothing is kept; name a file")
        try:
            with locked(self.path, os.O_RDONLY, fcntl.LOCK_SH) as descriptor:
                size = os.fstat(descriptor).st_size
                data = b"".join(iter(lambda: os.read(descriptor, max(size, 1)), b""))
        except FileNotFoundError:
            return Contents([], [])
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror or error}") from None
        return _parse(data, problem)

    def done(self, time_limit: float | None = None) -> set[str]:
        """Return the keys whose last row needs no further run where a cell may take so many seconds."""
        return {key for key, row in self.read().latest().items() if is_done(row, time_limit)}


def is_done(row: Row, time_limit: float | None = None) -> bool:
    """Return whether a row needs no further run: it is measured, quarantined, or took too long and gets no longer."""
    return not row["status"].startswith("failed") or (is_late(row) and row[TIME_LIMIT] >= (time_limit or 0.0))


def is_late(row: Row) -> bool:
    """Return whether a row has no result because its cell reached its time limit."""
    return row.get(TIME_LIMIT) is not None


def is_measured(row: Row) -> bool:
    """Return whether a row has a result: its cell neither failed nor killed its workers, and what it needs is there."""
    return not row["status"].startswith(("failed", "quarantined", "not installed"))


def last_by(rows: Iterable[Row], which: Callable[[Row], Any]) -> dict[Any, Row]:
    """Return the last row of each kind, in the order in which they were written."""
    found: dict[Any, Row] = {}
    for row in rows:
        found.pop(which(row), None)
        found[which(row)] = row
    return found


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
    for name, least in LEAST.items():
        if row[name] < least:
            return f"field {name!r}: expected an integer of at least {least}, got {row[name]}"
    for name, value in row.items():
        if _unreadable(value):
            return f"field {name!r}: expected finite numbers and integers of less than 64 bits, texts of whole letters"
    if not isinstance(row.get(TIME_LIMIT, 0.0), int | float):
        return f"field {TIME_LIMIT!r}: expected a number, got {type(row[TIME_LIMIT]).__name__}"
    return None if row["key"] else "field 'key' is empty"


def _parse(data: bytes, problem: Callable[[Row], str | None]) -> Contents:
    rows: list[Row] = []
    bad: list[BadLine] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            reason = problem_of(row) or problem(row)
        except (ValueError, RecursionError) as error:
            row, reason = {}, f"not valid JSON ({error})"
        if reason is None:
            rows.append(row)
        else:
            bad.append(BadLine(number, reason))
    return Contents(rows, bad)


def _unreadable(value: Any) -> bool:
    """Return whether a number is not finite, or an integer too large for some readers, or a text no text, anywhere."""
    if isinstance(value, dict | list):
        return any(map(_unreadable, value.values() if isinstance(value, dict) else value))
    if isinstance(value, str):
        return any("\ud800" <= letter <= "\udfff" for letter in value)  # half of a letter
    return not math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) >= 2**63


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
def locked(path: Path, flags: int, lock: int) -> Iterator[int]:
    """Open a file or folder and hold a lock on it; processes started meanwhile do not hold it.

    Whoever held it before may have removed it; then it is opened anew, so that no two hold locks on what has one name.
    """
    there = False
    while not there:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, lock)
            there = _is_at(path, descriptor)
            if there:
                yield descriptor
        finally:
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether an open file is the one that has a name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write(descriptor: int, line: bytes) -> None:
    """Append lines whole or not at all; a torn line before them is ended first."""
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
