"""Files of numbers: tables by column names (.csv, .parquet) and arrays by name (.npz)."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from soctk_evaluation.harness.request import UsageError

COLUMN_FORMATS = (".csv", ".parquet", ".npz")


@dataclass(frozen=True, eq=False)
class Table:
    """A table and the file that it is from, for messages."""

    frame: pd.DataFrame
    path: Path

    @property
    def listing(self) -> str:
        """The names of the columns."""
        return ", ".join(map(str, self.frame.columns)) or "none"

    def names_of(self, kind: str) -> list[str]:
        """Return the columns named `kind`_*, in the file's order."""
        return [name for name in map(str, self.frame.columns) if name.startswith(f"{kind}_")]

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return columns as float64 numbers, (rows, len(names)).

        Raises:
            UsageError: a column is missing, or holds something that is not a finite number.
        """
        missing = [name for name in names if name not in self.frame.columns]
        if missing:
            raise UsageError(f"{self.path}: no column {', '.join(missing)}; the columns are {self.listing}")
        if not names:
            return np.zeros((len(self.frame), 0))
        return np.stack([self._column(name) for name in names], axis=1)

    def _column(self, name: str) -> np.ndarray:
        given = self.frame[name]
        if given.dtype.kind in "mMc":
            raise UsageError(f"{self.path}: column {name}: expected numbers, got {given.dtype}")
        column = np.asarray(pd.to_numeric(given, errors="coerce"), float)
        wrong = np.flatnonzero(~np.isfinite(column))
        if wrong.size:
            place, found = f"column {name}, row {wrong[0] + 1}", str(given.iloc[wrong[0]])
            raise UsageError(f"{self.path}: {place}: expected a finite number, got {found!r}")
        return column


def read_table(path: Path) -> Table:
    """Return the table in a .csv or .parquet file.

    Raises:
        UsageError: no such file, another kind of file, or one that cannot be read.
    """
    _check_file(path)
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"{path}: expected a file ending in {', '.join(COLUMN_FORMATS)}")
    check_format(path)
    try:
        if path.suffix == ".parquet":
            return Table(pd.read_parquet(path), path)
        header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, index_col=False)
    except pd.errors.ParserWarning:
        raise UsageError(f"{path}: expected as many fields in every row as in the header, got more") from None
    except (ValueError, OSError) as error:  # what pandas and pyarrow raise for files that they cannot read
        raise UsageError(f"{path}: not a readable {path.suffix} file: {' '.join(str(error).split())}") from None
    twice = header[header.duplicated() & header.notna()]
    if len(twice):
        raise UsageError(f"{path}: expected every column once, got {', '.join(twice)} twice")
    return Table(frame, path)


def check_format(path: Path) -> None:
    """Raise UsageError where a .parquet file is asked for and cannot be handled."""
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UsageError(f"{path}: Parquet files need the package pyarrow: pip install pyarrow")


@contextmanager
def open_arrays(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """Yield an .npz file's arrays.

    Raises:
        UsageError: no such file, or one that cannot be read.
    """
    _check_file(path)
    try:
        loaded = np.load(path)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("a single array")
        with loaded as file:
            yield file
    except UsageError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path}: not a readable .npz file of numbers: {' '.join(str(error).split())}") from None


@dataclass(frozen=True)
class Arrays:
    """The arrays of an .npz file as columns: `name` is an array (N,), `name_k` also column k of an array `name`."""

    path: Path

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return columns as float64 numbers, (N, len(names)).

        Raises:
            UsageError: a column is missing, of another length, or holds something that is not a finite number.
        """
        with open_arrays(self.path) as file:
            columns = [self._column(file, name) for name in names]
        for name, column in zip(names, columns, strict=True):
            if column.shape != columns[0].shape:
                raise UsageError(f"{self.path}: {name}: expected {len(columns[0])} numbers, got {len(column)}")
            wrong = np.flatnonzero(~np.isfinite(column))
            if wrong.size:
                place = f"{name}, row {wrong[0] + 1}"
                raise UsageError(f"{self.path}: {place}: expected a finite number, got {column[wrong[0]]}")
        return np.stack(columns, axis=1)

    def _column(self, file: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
        stem, _, number = name.rpartition("_")
        if name in file.files:
            array = file[name]
        elif stem in file.files and number.isdecimal() and file[stem].ndim == 2 and int(number) < file[stem].shape[1]:
            array = file[stem][:, int(number)]
        else:
            raise UsageError(f"{self.path}: no array {name}; the arrays are {', '.join(file.files) or 'none'}")
        if array.ndim != 1 or array.dtype.kind not in "fiub":
            raise UsageError(f"{self.path}: {name}: expected numbers (N,), got {array.dtype} {array.shape}")
        return array.astype(float)


def read_columns(path: Path) -> Table | Arrays:
    """Return what columns can be read from by name, in any kind of file.

    Raises:
        UsageError: as `read_table`.
    """
    if path.suffix == ".npz":
        _check_file(path)
        return Arrays(path)
    return read_table(path)


def read_arrays(path: Path, names: Sequence[str], more: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return the arrays `names` of an .npz file and those of `more` that it has, as float64.

    Raises:
        UsageError: no such file, one that cannot be read, a name is missing, or an array is not of finite numbers.
    """
    with open_arrays(path) as file:
        arrays = {name: file[name] for name in (*names, *more) if name in file.files}
        found = ", ".join(file.files) or "none"
    missing = [name for name in names if name not in arrays]
    if missing:
        raise UsageError(f"{path}: no array {', '.join(missing)}; the arrays are {found}")
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            raise UsageError(f"{path}: {name}: expected finite numbers, got {array.dtype} with others")
    return {name: array.astype(float) for name, array in arrays.items()}


def write_columns(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """Write equally long columns; an old file is replaced only when the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = dict(columns)
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        if path.suffix == ".npz":
            np.savez_compressed(partial, **arrays)
        elif path.suffix == ".parquet":
            pd.DataFrame(arrays).to_parquet(partial, index=False)
        else:
            pd.DataFrame(arrays).to_csv(partial, index=False)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"no file {path}")
