"""Tables by column names (.csv, .parquet, data frames), whole or in pieces, with places for messages.

A .csv file is read as text and each column converted by what it means, so that what is read does not depend on the
other rows that are read with it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from soctk.lazy import arrow, parquet
from soctk.lazy import pandas as pd
from soctk.tables.errors import TableError

TABLE_FORMATS, ARRAYS = (".csv", ".parquet"), ".npz"
SHOWN = 12
"""Columns or categories that a message lists."""
FIRST = 5
"""Rows with missing values that are named."""
AS_WRITTEN = {"ignore_metadata": True, "integer_object_nulls": True}
"""How Parquet becomes a data frame: whole numbers stay whole where one is missing."""
AS_TEXT = {"index_col": False, "dtype": str, "keep_default_na": False, "na_values": [""]}
"""How .csv does: an empty field is missing, and what else stands for that depends on its column (`missing_in`)."""
SAID_MISSING = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "Null", "null", "None", "<NA>")
"""Texts that say that a number or a date is missing."""
MOST_LEVELS = 100
"""Different texts that a column may have to be taken for a category."""
ISO = "ISO8601"
"""The format of dates in texts, unless another is given, as pandas calls it."""
OTHER_MARKS = "with decimal commas or semicolons, export it again with points and commas"
"""What to do where rows of a .csv file do not fit its header."""
MOSTLY = 0.9
"""The share of a column's texts that are numbers, or dates, from which the others are mistakes."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a table and where they are from.

    Attributes:
        frame: the rows.
        source: the file, for messages.
        rows: (N,), their numbers in the file, from 0.
        names: the columns of the file, those that were not read too.
    """

    frame: Any
    source: str
    rows: np.ndarray
    names: tuple[str, ...]

    @classmethod
    def of(cls, source: Any, wanted: Callable[[str], bool] | None = None) -> Table:
        """Return a table as it is, of a data frame, or of a file, of its columns those `wanted`.

        Raises:
            TableError: no such file, another kind of file, one that cannot be read, or a column that is there twice.
        """
        if isinstance(source, Table):
            return source
        if isinstance(source, str | os.PathLike):
            return next(read_pieces(Path(source), None, wanted))
        if not isinstance(source, pd.DataFrame):
            kind, hint = type(source), "; take its to_pandas()" if hasattr(source, "to_pandas") else ""
            raise TableError(f"expected a file or a data frame of pandas, got {kind.__module__}.{kind.__name__}{hint}")
        names = tuple(map(str, source.columns))
        _check_names(names, "the data frame")
        frame = _of_pandas_types(source.set_axis(names, axis=1))
        return cls(frame, "the data frame", np.arange(len(source)), names)

    def __len__(self) -> int:
        return len(self.rows)

    def names_of(self, kind: str) -> list[str]:
        """Return the columns named `kind`_*, in the file's order."""
        return [name for name in self.names if name.startswith(f"{kind}_")]

    @property
    def listing(self) -> str:
        """What columns there are, in words."""
        other = any(set(name) & set(";\t") for name in self.names)
        remedy = " (expected fields that are separated by commas, not by semicolons or tabs)" if other else ""
        return f"the columns are {listed(self.names)}{remedy}"

    def check_names(self, names: Sequence[str]) -> None:
        """Raise TableError where a column is missing."""
        missing = [name for name in names if name not in self.names]
        if missing:
            raise TableError(f"{self.source}: no column {listed(missing)}; {self.listing}")

    def column(self, name: str) -> Any:
        """Return a column as a series.

        Raises:
            TableError: it is missing, or holds a missing value.
        """
        self.check_names([name])
        series = self.frame[name]
        self.check_cells(name, ~series.isna().to_numpy(bool), "a value")
        return series

    def check_cells(self, name: str, good: np.ndarray, expected: str) -> None:
        """Raise TableError naming the first row whose cell is not `good`, and saying what is expected."""
        wrong = np.flatnonzero(~good)
        if wrong.size:
            found = self.frame[name].iloc[wrong[0]]
            missing = bool(pd.isna(found))
            found = "a missing value" if missing else repr(str(found))
            more = f" ({wrong.size} rows are so)" if wrong.size > 1 else ""
            place = f"{self.source}: column {quoted(name)}, row {self.rows[wrong[0]] + 1}"
            raise TableError(f"{place}: expected {expected}, got {found}{more}")

    def number(self, name: str) -> np.ndarray:
        """Return a column as float64 numbers, (N,).

        Raises:
            TableError: it is missing, or holds something that is not a finite number.
        """
        self.check_names([name])
        given = self.frame[name]
        if given.dtype.kind in "mMc":
            raise TableError(f"{self.source}: column {name}: expected numbers, got {given.dtype}")
        column = np.asarray(pd.to_numeric(given, errors="coerce"), float)
        self.check_cells(name, np.isfinite(column), "a finite number")
        return column

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return columns as float64 numbers, (N, len(names)).

        Raises:
            TableError: a column is missing, or holds something that is not a finite number.
        """
        self.check_names(names)
        if not names:
            return np.zeros((len(self), 0))
        return np.stack([self.number(name) for name in names], axis=1)

    def without_missing(self, names: Sequence[str], categories: Sequence[str] = ()) -> tuple[Table, Missing]:
        """Return the rows that have a value in all of these columns, and what was left out.

        Args:
            names: the columns.
            categories: those that are categories whatever they hold.
        """
        self.check_names(names)
        columns = {name: self.frame[name] for name in names}
        empty = (
            np.stack(
                [empty_in(column) if name in categories else missing_in(column) for name, column in columns.items()], 1
            )
            if names
            else np.zeros((len(self), 0), bool)
        )
        wrong = empty.any(axis=1)
        places = [(int(self.rows[k]) + 1, [names[j] for j in np.flatnonzero(empty[k])]) for k in np.flatnonzero(wrong)]
        counts = {name: int(count) for name, count in zip(names, empty.sum(axis=0), strict=True) if count}
        table = Table(self.frame[~wrong], self.source, self.rows[~wrong], self.names)
        return table, Missing(int(wrong.sum()), len(self), counts, places[:FIRST])


@dataclass(frozen=True)
class Missing:
    """Rows with missing values.

    Attributes:
        count: how many.
        total: of how many.
        counts: missing values by column.
        first: the numbers of the first of them, from 1, and their columns without a value.
    """

    count: int
    total: int
    counts: dict[str, int]
    first: list[tuple[int, list[str]]]

    def __str__(self) -> str:
        if not self.count:
            return f"no missing values in {self.total} rows"
        by_column = ", ".join(f"{quoted(name)} {count}" for name, count in self.counts.items())
        rows = ", ".join(f"row {row} ({listed(names)})" for row, names in self.first)
        return f"{self.count} of {self.total} rows have missing values ({by_column}); the first: {rows}"


def empty_in(column: Any) -> np.ndarray:
    """Return where a column's cells are empty, a text of blanks among them, bool (N,)."""
    empty = column.isna().to_numpy(bool)
    if column.dtype.kind in "biufcmM":
        return empty
    return empty | column.astype(str).str.strip().eq("").to_numpy(bool)


def missing_in(column: Any) -> np.ndarray:
    """Return where a column has no value, bool (N,).

    Of texts that is an empty one, and among numbers and dates also what says so ("NA"); of categories "NA" is one.
    """
    empty = empty_in(column)
    if column.dtype.kind in "biufcmM":
        return empty
    said = column.isin(SAID_MISSING).to_numpy(bool)
    if not said.any():
        return empty
    rest = column[~(empty | said)]
    read = (pd.to_numeric(rest, errors="coerce"), pd.to_datetime(rest, format=ISO, errors="coerce", utc=True))
    known = len(rest) > 0 and any(each.notna().mean() >= MOSTLY for each in read)
    return empty | said if known or rest.nunique() > MOST_LEVELS else empty


def read_pieces(path: Path, rows: int | None, wanted: Callable[[str], bool] | None = None) -> Iterator[Table]:
    """Yield a .csv or .parquet file `rows` rows at a time (None: all at once), at least one piece.

    Args:
        path: the file.
        rows: of a piece.
        wanted: whether to read a column, by name; all by default.

    Raises:
        TableError: as `Table.of`.
    """
    names, chosen = _columns(path, wanted)
    start = 0
    frames = _csv(path, rows, chosen, len(names) == 1) if path.suffix == ".csv" else _parquet(path, rows, chosen)
    while True:
        with _readable(path):
            frame = next(frames, None)
        if frame is None:
            return
        yield Table(frame, str(path), np.arange(start, start + len(frame)), tuple(names))
        start += len(frame)


def read_rows(path: Path, start: int, stop: int, wanted: Callable[[str], bool] | None = None) -> Table:
    """Return the rows `start` to `stop` of a .parquet file, from 0, the last left out.

    Raises:
        TableError: as `Table.of`, or a file that has fewer rows.
    """
    names, chosen = _columns(path, wanted)
    with _readable(path):
        frame = _parquet_rows(path, start, stop, chosen)
    if len(frame) != stop - start:
        raise TableError(f"{path}: expected at least {stop} rows, got {start + len(frame)}: the file has changed")
    return Table(frame, str(path), np.arange(start, stop), tuple(names))


def count_rows(path: Path) -> int:
    """Return how many rows a .parquet file has.

    Raises:
        TableError: no such file, or one that cannot be read.
    """
    check_file(path)
    check_format(path)
    with _readable(path):
        return parquet.read_metadata(path).num_rows


def _columns(path: Path, wanted: Callable[[str], bool] | None) -> tuple[list[str], list[str]]:
    """Return the columns of a file, and those to read."""
    check_file(path)
    if path.suffix not in TABLE_FORMATS:
        raise TableError(f"{path}: expected a file ending in {', '.join((*TABLE_FORMATS, ARRAYS))}")
    check_format(path)
    with _readable(path):
        names = _names(path)
    _check_names(names, str(path))
    chosen = [name for name in names if wanted is None or wanted(name)]
    # pandas counts no rows of a file of which it reads no column.
    return names, chosen or names[:1]


def check_file(path: Path) -> None:
    """Raise TableError where there is no such file."""
    if not path.is_file():
        raise TableError(f"no file {path}")


def check_format(path: Path) -> None:
    """Raise TableError where a .parquet file is asked for and cannot be handled."""
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise TableError(f'{path}: Parquet files need the package pyarrow: pip install "soctk[parquet]"')


def quoted(name: object) -> str:
    """Return a name as it is, or between quotation marks where it would be taken for several."""
    return f'"{name}"' if set(str(name)) & set(",;") or str(name) != str(name).strip() else str(name)


def listed(names: Sequence[object]) -> str:
    """Return the first of some names in one line."""
    shown = ", ".join(map(quoted, names[:SHOWN])) or "none"
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"


def _of_pandas_types(frame: Any) -> Any:
    """Return a frame without Arrow's texts, dates and decimals, which pandas' own functions take for something else."""
    types = {name: kind for name, kind in frame.dtypes.items() if isinstance(kind, pd.ArrowDtype)}
    as_pandas = {name: _pandas_type(kind) for name, kind in types.items()}
    return frame.astype({name: kind for name, kind in as_pandas.items() if kind is not None})


def _pandas_type(kind: Any) -> str | None:
    """Return the type of pandas for one of Arrow's, None where that will do as it is."""
    types, own = arrow.types, kind.pyarrow_dtype
    if types.is_date(own):
        return "datetime64[ms]"
    if types.is_decimal(own):
        return "float64[pyarrow]"
    return "object" if kind.kind not in "biufcmM" or types.is_dictionary(own) else None


def _check_names(names: Sequence[str], source: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TableError(f"{source}: expected every column once, got {', '.join(twice)} twice")


def _names(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return list(parquet.read_schema(path).names)
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
    return [str(name) or f"Unnamed: {k}" for k, name in enumerate(header)]  # pandas' own name of a column without one


def _csv(path: Path, rows: int | None, chosen: list[str], single: bool) -> Iterator[Any]:
    blank = {"skip_blank_lines": not single}  # in a single column such a line is a missing value
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        if rows is None:
            yield pd.read_csv(path, **AS_TEXT, **blank)[chosen]
            return
    with pd.read_csv(path, chunksize=rows, **AS_TEXT, **blank) as reader:
        while True:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = next(reader, None)
            if frame is None:
                return
            yield frame[chosen]


def _parquet(path: Path, rows: int | None, chosen: list[str]) -> Iterator[Any]:
    with parquet.ParquetFile(path) as file:
        if rows is None or file.metadata.num_rows == 0:
            yield file.read(columns=chosen).to_pandas(**AS_WRITTEN)
            return
        for batch in file.iter_batches(rows, columns=chosen):
            yield batch.to_pandas(**AS_WRITTEN)


def _parquet_rows(path: Path, start: int, stop: int, chosen: list[str]) -> Any:
    with parquet.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
        ends = np.cumsum(sizes, dtype=int)
        groups = [k for k, end in enumerate(ends) if end > start and end - sizes[k] < stop]
        at = ends[groups[0]] - sizes[groups[0]] if groups else 0
        found = []
        # A group may be much larger than what is asked for: no more than that is in memory at a time.
        for batch in file.iter_batches(max(1, stop - start), row_groups=groups, columns=chosen) if groups else ():
            first, last = max(start - at, 0), min(stop - at, len(batch))
            if first < last:
                found.append(batch.slice(first, last - first))
            at += len(batch)
            if at >= stop:
                break
        whole = arrow.Table.from_batches(found) if found else file.schema_arrow.empty_table().select(chosen)
        return whole.to_pandas(**AS_WRITTEN)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say in one line what pandas and pyarrow raise for files that they cannot read."""
    try:
        yield
    except pd.errors.ParserWarning:
        wanted = "expected as many fields in every row as in the header, got more"
        raise TableError(f"{path}: {wanted}; {OTHER_MARKS}") from None
    except TableError:
        raise
    except UnicodeDecodeError:
        raise TableError(f"{path}: expected text in UTF-8; save it as UTF-8") from None
    except (ValueError, OSError) as error:
        remedy = f"; {OTHER_MARKS}" if isinstance(error, pd.errors.ParserError) else ""
        raise TableError(f"{path}: not a readable {path.suffix} file: {' '.join(str(error).split())}{remedy}") from None
