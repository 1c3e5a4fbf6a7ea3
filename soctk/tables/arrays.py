"""Files of arrays by name (.npz)."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from soctk.tables.errors import TableError
from soctk.tables.table import check_file


@contextmanager
def open_arrays(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """Yield an .npz file's arrays.

    Raises:
        TableError: no such file, or one that cannot be read.
    """
    check_file(path)
    with _readable(path):
        loaded = np.load(path)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("a single array")
    with loaded as file:
        yield file


def array_of(file: np.lib.npyio.NpzFile, name: str, path: Path) -> np.ndarray:
    """Return one of the arrays of an open file; TableError where it cannot be read."""
    with _readable(path):
        return file[name]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise TableError(f"{path}: not a readable .npz file of numbers: {' '.join(str(error).split())}") from None


@dataclass(frozen=True)
class Arrays:
    """The arrays of an .npz file as columns: `name` is an array (N,), `name_k` also column k of an array `name`."""

    path: Path

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return columns as float64 numbers, (N, len(names)).

        Raises:
            TableError: a column is missing, of another length, or holds something that is not a finite number.
        """
        with open_arrays(self.path) as file:
            columns = [self._column(file, name) for name in names]
        for name, column in zip(names, columns, strict=True):
            if column.shape != columns[0].shape:
                raise TableError(f"{self.path}: {name}: expected {len(columns[0])} numbers, got {len(column)}")
            wrong = np.flatnonzero(~np.isfinite(column))
            if wrong.size:
                place = f"{name}, row {wrong[0] + 1}"
                raise TableError(f"{self.path}: {place}: expected a finite number, got {column[wrong[0]]}")
        return np.stack(columns, axis=1)

    def _column(self, file: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
        stem, _, number = name.rpartition("_")
        if name in file.files:
            array = array_of(file, name, self.path)
        else:
            array = array_of(file, stem, self.path) if stem in file.files and number.isdecimal() else np.zeros(0)
            if array.ndim != 2 or int(number) >= array.shape[1]:
                raise TableError(f"{self.path}: no array {name}; the arrays are {', '.join(file.files) or 'none'}")
            array = array[:, int(number)]
        if array.ndim != 1 or array.dtype.kind not in "fiub":
            raise TableError(f"{self.path}: {name}: expected numbers (N,), got {array.dtype} {array.shape}")
        return array.astype(float)


def read_arrays(path: Path, names: Sequence[str], more: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return the arrays `names` of an .npz file and those of `more` that it has, as float64.

    Raises:
        TableError: no such file, one that cannot be read, a name is missing, or an array is not of finite numbers.
    """
    with open_arrays(path) as file:
        arrays = {name: array_of(file, name, path) for name in (*names, *more) if name in file.files}
        found = ", ".join(file.files) or "none"
    missing = [name for name in names if name not in arrays]
    if missing:
        raise TableError(f"{path}: no array {', '.join(missing)}; the arrays are {found}")
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            raise TableError(f"{path}: {name}: expected finite numbers, got {array.dtype} with others")
    return {name: array.astype(float) for name, array in arrays.items()}
