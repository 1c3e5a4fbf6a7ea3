"""A plan that is made in pieces: what is done is kept beside the output, and joined when all of it is there.

The pieces belong to one job: the contents of the model's, the contexts' and the set's files, the options and this
version. A job never takes another's pieces.
"""

from __future__ import annotations

import glob
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import soctk
from soctk.lazy import parquet
from soctk_evaluation.cli.plan import Tally
from soctk_evaluation.cli.tabular import replacing, write_columns

KEY_LENGTH = 32
"""Characters of a key that a folder is named by, 128 bits."""


def job_key(options: Mapping[str, Any], files: Sequence[Path]) -> str:
    """Return what a job is told by: its options, the contents of its files and the version of soctk."""
    digest = hashlib.sha256(json.dumps([soctk.__version__, options], sort_keys=True, default=str).encode())
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


class Pieces:
    """The finished pieces of a plan, in a folder beside it.

    Args:
        output: the plan's file, .csv or .parquet.
        key: the job's (`job_key`); pieces of another job are removed.
        count: how many pieces there will be.

    Attributes:
        others: whether pieces of another job were there.
    """

    def __init__(self, output: Path, key: str, count: int) -> None:
        self.output, self.count = output, count
        # Each job has a folder of its own, so that even two that run at the same time never meet.
        self.folder = output.with_name(f".{output.name}.{key[:KEY_LENGTH]}.pieces")
        others = set(output.parent.glob(f".{glob.escape(output.name)}.{'?' * KEY_LENGTH}.pieces")) - {self.folder}
        self.others = bool(others)
        for other in others:
            shutil.rmtree(other)
        self.folder.mkdir(exist_ok=True)

    def tally(self, number: int) -> Tally | None:
        """Return what a piece holds, None where it is not there, or not as it was written."""
        noted, path = _read(self._path(number, ".json")), self._path(number)
        if not noted or not path.is_file() or path.stat().st_size != noted["size"]:
            return None
        return Tally(**noted["tally"])

    @property
    def done(self) -> int:
        """How many pieces are there."""
        return sum(self.tally(number) is not None for number in range(self.count))

    def put(self, number: int, columns: Mapping[str, Any], tally: Tally) -> None:
        """Keep a piece."""
        path = self._path(number)
        write_columns(columns, path, header=number == 0)
        _write({"size": path.stat().st_size, "tally": asdict(tally)}, self._path(number, ".json"))

    def join(self) -> None:
        """Write the plan and remove the pieces."""
        paths = [self._path(number) for number in range(self.count)]
        with replacing(self.output) as partial:
            if self.output.suffix == ".csv":
                _join_bytes(paths, partial)
            else:
                _join_tables(paths, partial)
        shutil.rmtree(self.folder)

    def _path(self, number: int, suffix: str | None = None) -> Path:
        return self.folder / f"{number:06d}{suffix or self.output.suffix}"


def _join_bytes(paths: Sequence[Path], output: Path) -> None:
    with output.open("wb") as whole:
        for path in paths:
            with path.open("rb") as part:
                shutil.copyfileobj(part, whole)


def _join_tables(paths: Sequence[Path], output: Path) -> None:
    schema = parquet.read_schema(paths[0])
    with parquet.ParquetWriter(output, schema) as whole:
        for path in paths:
            whole.write_table(parquet.read_table(path).cast(schema))


def _write(value: Mapping[str, Any], path: Path) -> None:
    with replacing(path) as partial:
        partial.write_text(json.dumps(value), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    """Return the object in a file, {} where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
