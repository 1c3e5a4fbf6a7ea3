"""The rows that a piece of a plan is of: some of a Parquet file, which can be read from anywhere, or of a .csv file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from soctk.tables.errors import TableError
from soctk.tables.table import TABLE_FORMATS, Table, count_rows, read_pieces, read_rows

PARQUET = ".parquet"


@dataclass(frozen=True)
class Slice:
    """The rows `start` to `stop` of a Parquet file, from 0, the last left out."""

    path: Path
    start: int
    stop: int

    def __str__(self) -> str:
        return f"rows {self.start + 1} to {self.stop} of {self.path}"

    def read(self, wanted: Callable[[str], bool]) -> Table:
        """Return the rows, of their columns those `wanted`."""
        return read_rows(self.path, self.start, self.stop, wanted)


def is_parquet(contexts: Path) -> bool:
    """Return whether this is a Parquet file, or a folder, which is one of Parquet files."""
    return contexts.is_dir() or contexts.suffix == PARQUET


def is_table(contexts: Path | None) -> bool:
    """Return whether contexts are read by rows."""
    return contexts is not None and (contexts.is_dir() or contexts.suffix in TABLE_FORMATS)


def files_of(contexts: Path) -> list[Path]:
    """Return the file itself, or a folder's Parquet files in the order of their names, part.2 before part.10.

    Names that begin with a dot or an underscore are left out, as other readers of such folders do.

    Raises:
        TableError: a folder without Parquet files.
    """
    if not contexts.is_dir():
        return [contexts]
    found = [path.relative_to(contexts) for path in contexts.rglob(f"*{PARQUET}")]
    seen = [path for path in found if not any(part.startswith((".", "_")) for part in path.parts)]
    if not seen:
        raise TableError(f"{contexts}: expected a folder with {PARQUET} files, found none")
    return [contexts / path for path in sorted(seen, key=_natural)]


def slices_of(contexts: Path, rows: int) -> list[Slice]:
    """Return a Parquet file, or a folder of them, cut into slices of at most so many rows.

    Raises:
        TableError: a file that cannot be read.
    """
    counts = {path: count_rows(path) for path in files_of(contexts)}
    return [
        Slice(path, start, min(start + rows, count))
        for path, count in counts.items()
        for start in range(0, count, rows)
    ]


def pieces_of(contexts: Path, rows: int, wanted: Callable[[str], bool]) -> Iterable[Slice | Table]:
    """Return the pieces of a table, in order: slices, or what is read of a .csv file one after the other."""
    if is_parquet(contexts):
        return slices_of(contexts, rows)
    return read_pieces(contexts, rows, wanted)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return what sorts names by the numbers in them."""
    return [(int(part or 0), "") if k % 2 else (0, part) for k, part in enumerate(re.split(r"(\d+)", path.as_posix()))]
