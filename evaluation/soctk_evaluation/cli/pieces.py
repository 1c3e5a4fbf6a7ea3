"""A plan that is made in pieces: what is done is kept beside the output, and joined when all of it is there.

The pieces belong to one job: the contents of the model's, the contexts' and the set's files, the options and this
version. A job never takes another's pieces. Each piece is a file of its own that appears under its name only when it is
whole, so that it does not matter who makes it, or that it is made twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from soctk.files import replacing
from soctk.lazy import arrow, parquet
from soctk_evaluation.cli.plan import Tally
from soctk_evaluation.cli.tabular import write_columns
from soctk_evaluation.harness.key import code_in_use
from soctk_evaluation.harness.store import locked

KEY_LENGTH = 32
"""Characters of a key that a folder is named by, 128 bits."""
SHOWN = 5
"""Pieces that a message names."""


def job_key(options: Mapping[str, Any], digests: Sequence[str]) -> str:
    """Return what a job is told by: its options, the `digest` of each of its files and the code of soctk."""
    told = json.dumps([code_in_use(), options, list(digests)], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()


def digest(path: Path) -> str:
    """Return what the contents of a file are told by."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Pieces:
    """The finished pieces of a plan, in a folder beside it.

    Args:
        output: the plan's file, .csv or .parquet, or a folder that is to hold a Parquet file for each piece.
        key: the job's (`job_key`).
        lengths: rows of each piece.
    """

    def __init__(self, output: Path, key: str, lengths: Sequence[int]) -> None:
        self.output, self.lengths = output, tuple(lengths)
        self.folder = output.with_name(f".{output.name}.{key[:KEY_LENGTH]}.pieces")

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Make the folder, remove those of other jobs and yield whether there were any; keep other commands away.

        Raises:
            OSError: another command is making this plan, or the folder cannot be written.
        """
        lock = self.output.with_name(f".{self.output.name}.lock")
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(lock, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                text = f"{self.output}: another command is writing it; wait for its end or name another output"
                raise OSError(text) from None
            stack.callback(lock.unlink, missing_ok=True)
            kept = set(self.output.parent.glob(f".{glob.escape(self.output.name)}.{'?' * KEY_LENGTH}.pieces"))
            others = kept - {self.folder}
            for other in others:
                shutil.rmtree(other)
            for folder in (self._parts, self._notes):
                folder.mkdir(exist_ok=True, parents=True)
            stack.callback(self._remove_if_empty)
            yield bool(others)

    @property
    def _parts(self) -> Path:
        return self.folder / "parts"

    @property
    def _notes(self) -> Path:
        return self.folder / "notes"

    def tally(self, number: int) -> Tally | None:
        """Return what a piece holds, None where it is not there, or not as it was written."""
        noted, path = _read(self._note(number)), self._path(number)
        if not noted or not path.is_file() or path.stat().st_size != noted["size"]:
            return None
        return Tally(**noted["tally"])

    @property
    def missing(self) -> list[int]:
        """The pieces that are not there."""
        return [number for number in range(len(self.lengths)) if self.tally(number) is None]

    @property
    def done(self) -> int:
        """How many pieces are there."""
        return len(self.lengths) - len(self.missing)

    def put(self, number: int, columns: Mapping[str, Any], tally: Tally) -> None:
        """Keep a piece.

        Raises:
            OSError: the folder is no longer there, or has no room.
            ValueError: it has not as many rows as the piece.
        """
        if tally.count != self.lengths[number]:
            raise ValueError(f"piece {number + 1}: expected {self.lengths[number]} decisions, got {tally.count}")
        path = self._path(number)
        write_columns(columns, path, header=number == 0)
        _write({"size": path.stat().st_size, "tally": asdict(tally)}, self._note(number))

    def _remove_if_empty(self) -> None:
        """Leave no folder where nothing was decided."""
        if self._notes.is_dir() and not any(self._notes.iterdir()):
            shutil.rmtree(self.folder, ignore_errors=True)

    def join(self) -> Tally:
        """Write the plan, remove the pieces and return what it holds.

        Raises:
            OSError: a piece is not there, or has not the rows that it was made of; nothing is written then.
        """
        tallies = [self.tally(number) for number in range(len(self.lengths))]
        missing = [number for number, tally in enumerate(tallies) if tally is None]
        if missing:
            raise FileNotFoundError(f"{self.output}: not written, as {self.names(missing)} missing in {self.folder}")
        paths = [self._path(number) for number in range(len(self.lengths))]
        if self.output.suffix == ".csv":
            with replacing(self.output) as partial:
                _join_bytes(paths, partial)
        else:
            self._check_rows(paths)
            schema = _schema(paths)
            if self.output.suffix:
                with replacing(self.output) as partial:
                    _join_tables(paths, partial, schema)
            else:
                self._move(paths, schema)
        shutil.rmtree(self.folder, ignore_errors=True)  # a worker that was thought dead may be writing there
        return sum((tally for tally in tallies if tally is not None), Tally())

    def names(self, numbers: Sequence[int]) -> str:
        """Return some pieces in words, with the verb."""
        shown = ", ".join(str(number + 1) for number in numbers[:SHOWN])
        more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
        ending, verb = ("s", "are") if len(numbers) > 1 else ("", "is")
        return f"piece{ending} {shown}{more} of {len(self.lengths)} {verb}"

    def _check_rows(self, paths: Sequence[Path]) -> None:
        for path, length in zip(paths, self.lengths, strict=True):
            found = parquet.read_metadata(path).num_rows
            if found != length:
                raise OSError(f"{self.output}: not written, as {path} has {found} rows, not {length}: remove that file")

    def _move(self, paths: Sequence[Path], schema: Any) -> None:
        """Let the folder of parts be the plan, in one step, its parts of the same types and nothing else in it."""
        for path in set(self._parts.iterdir()) - set(paths):  # what a writer that was killed has left
            path.unlink(missing_ok=True)
        for path in paths:
            if not parquet.read_schema(path).equals(schema):
                with replacing(path) as partial:
                    _join_tables([path], partial, schema)
        self._parts.rename(self.output)

    def _path(self, number: int) -> Path:
        if not self.output.suffix:
            return self._parts / f"part-{number:06d}.parquet"
        return self._parts / f"{number:06d}{self.output.suffix}"

    def _note(self, number: int) -> Path:
        return self._notes / f"{number:06d}.json"


def _join_bytes(paths: Iterable[Path], output: Path) -> None:
    with output.open("wb") as whole:
        for path in paths:
            with path.open("rb") as part:
                shutil.copyfileobj(part, whole)


def _schema(paths: Iterable[Path]) -> Any:
    """Return types that all parts fit in: a column of whole numbers has others where a value of it is missing."""
    schemas = [parquet.read_schema(path) for path in paths]
    if all(schema.equals(schemas[0]) for schema in schemas):
        return schemas[0]
    try:
        return arrow.unify_schemas([schema.remove_metadata() for schema in schemas], promote_options="permissive")
    except arrow.ArrowException as error:
        raise OSError(f"the columns to keep have other types in some files: {' '.join(str(error).split())}") from None


def _join_tables(paths: Iterable[Path], output: Path, schema: Any) -> None:
    with parquet.ParquetWriter(output, schema) as whole:
        for path in paths:
            try:
                table = parquet.read_table(path, partitioning=None).cast(schema)
            except arrow.ArrowException as error:
                raise OSError(f"{path}: its columns have other types than others' ({error})") from None
            whole.write_table(table)


def _write(value: Mapping[str, Any], path: Path) -> None:
    with replacing(path) as partial:
        partial.write_text(json.dumps(value), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    """Return the object in a file, {} where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
