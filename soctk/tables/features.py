"""What a context's columns mean to a model: numbers as they are, categories one-hot, dates as seasons.

A season of period P is the pair sin(2 pi t / P), cos(2 pi t / P), so that midnight is beside 23:59 and December beside
January. Times are local: the clock's, as written, whatever the offset from UTC behind it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from soctk.lazy import pandas as pd
from soctk.tables.errors import TableError
from soctk.tables.table import ISO, MOST_LEVELS, MOSTLY, Table, listed

DECIMAL_COMMA = r"[+-]?\d*,\d+"
COVERED = 0.9
"""The share of a season's period that a log must span for the season to be learned."""
_CLOCK = r"(\d\d:\d\d(?::\d\d(?:\.\d+)?)?|(?<=[T ])\d{4}(?:\d\d(?:\.\d+)?)?)"
_OFFSET = rf"{_CLOCK}\s*(?:Z|[+-]\d\d(?::?\d\d)?)$"


class Feature(Protocol):
    """A column of the context and the numbers that it becomes."""

    @property
    def name(self) -> str:
        """The column."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each number."""
        ...

    def encode(self, table: Table) -> np.ndarray:
        """Return the numbers, (rows, len(labels)).

        Raises:
            TableError: the column is missing, or a cell is not of its kind.
        """
        ...

    def plain(self) -> str | dict[str, Any]:
        """Return what `feature_from` makes it from again, as JSON can hold it."""
        ...


@dataclass(frozen=True)
class Number:
    """A number, in the units of the column.

    Attributes:
        name: the column.
    """

    name: str

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, table: Table) -> np.ndarray:
        return table.number(self.name)[:, None]

    def plain(self) -> str:
        return self.name

    def __str__(self) -> str:
        return "a number"


@dataclass(frozen=True)
class Category:
    """One of several texts: a 1 at its place and zeros elsewhere.

    Attributes:
        name: the column.
        levels: the texts that are known.
    """

    name: str
    levels: tuple[str, ...]

    @classmethod
    def learned(cls, table: Table, name: str) -> Category:
        """Return a column as a category of the texts that it has.

        Raises:
            TableError: more than `MOST_LEVELS`.
        """
        found = _texts(table.column(name)).unique()
        if len(found) > MOST_LEVELS:
            raise TableError(
                f"{table.source}: column {name}: expected numbers, dates in ISO 8601 (2024-03-31 17:00) or at most "
                f"{MOST_LEVELS} categories, got {len(found)} different texts, the first {found[0]!r}; give the dates' "
                "format (--date-format), or leave the column out"
            )
        return cls(name, tuple(sorted(map(str, found))))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={level}" for level in self.levels)

    def encode(self, table: Table) -> np.ndarray:
        places = _texts(table.column(self.name)).map({level: k for k, level in enumerate(self.levels)})
        places = places.astype(float).to_numpy()
        table.check_cells(self.name, ~np.isnan(places), f"a category that the model knows, {listed(self.levels)}")
        return np.eye(len(self.levels))[places.astype(int)]

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, "levels": list(self.levels)}

    def __str__(self) -> str:
        return f"{len(self.levels)} categories, {listed(self.levels)}"


@dataclass(frozen=True)
class Season:
    """A period of time.

    Attributes:
        title: in words.
        days: its length.
        phase: where in it times are, in [0, 1).
    """

    title: str
    days: float
    phase: Callable[[Any], Any]


def _day(times: Any) -> Any:
    return (times - times.dt.normalize()) / pd.Timedelta(days=1)


def _year(times: Any) -> Any:
    return (times.dt.day_of_year - 1 + _day(times)) / np.where(times.dt.is_leap_year, 366, 365)


SEASONS = {
    "hour": Season("hour of day", 1.0, _day),
    "weekday": Season("weekday", 7.0, lambda times: times.dt.day_of_week / 7),
    "year": Season("time of year", 365.0, _year),
}


@dataclass(frozen=True)
class Date:
    """A time, by the seasons that it is in.

    Attributes:
        name: the column.
        seasons: names of `SEASONS`.
        format: of dates in texts, as `strptime` takes it; ISO 8601 by default.
    """

    name: str
    seasons: tuple[str, ...]
    format: str = ISO

    @classmethod
    def learned(cls, table: Table, name: str, form: str) -> Date:
        """Return a column of dates with the seasons that vary and that the log spans.

        Raises:
            TableError: a cell that is no date, or no season to learn.
        """
        times = cls(name, (), form)._times(table)
        span = (times.max() - times.min()) / pd.Timedelta(days=1)
        varying = {key: season for key, season in SEASONS.items() if season.phase(times).nunique() > 1}
        seasons = tuple(key for key, season in varying.items() if span >= COVERED * season.days)
        if not seasons:
            raise TableError(
                f"{table.source}: column {name}: expected dates in which a day, a week or a year goes round, got "
                f"{times.min()} to {times.max()}; leave the column out"
            )
        return cls(name, seasons, form)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"{part}({SEASONS[key].title} of {self.name})" for key in self.seasons for part in ("sin", "cos"))

    def encode(self, table: Table) -> np.ndarray:
        times = self._times(table)
        if "hour" in self.seasons and bool((times == times.dt.normalize()).all()):
            self._check_hours(table)
        angles = [2 * np.pi * SEASONS[key].phase(times).to_numpy(float) for key in self.seasons]
        return np.stack([wave(angle) for angle in angles for wave in (np.sin, np.cos)], axis=1)

    def _times(self, table: Table) -> Any:
        column = table.column(self.name)
        times = _times(column, self.format)
        form = "ISO 8601 as 2024-03-31 17:00" if self.format == ISO else f"the format {self.format}"
        table.check_cells(self.name, times.notna().to_numpy(), f"a date in {form}")
        return times

    def _check_hours(self, table: Table) -> None:
        """Raise TableError where no cell has an hour: all would be taken for midnight."""
        column = table.column(self.name)
        if self.format != ISO or column.dtype.kind == "M" or len(column) == 0:
            return
        timed = column.astype(str).str.contains(r"\d[T ]\d")
        if not timed.any():
            table.check_cells(self.name, timed.to_numpy(), "a date with its time, by which the model goes")

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, "seasons": list(self.seasons), "format": self.format}

    def __str__(self) -> str:
        return f"a date, by {', '.join(SEASONS[key].title for key in self.seasons)}"


def learned_feature(table: Table, name: str, *, category: bool = False, date_format: str | None = None) -> Feature:
    """Return what a column is: by its type, and of texts by what most of them are.

    Args:
        table: the log.
        name: the column.
        category: whether it is a category even where it has numbers.
        date_format: of dates that are not in ISO 8601. Whole numbers are dates if all of them are in this format.

    Raises:
        TableError: the column is missing or has missing values, or is nothing that a model can learn from.
    """
    column = table.column(name)
    if len(column) == 0:
        raise TableError(f"{table.source}: expected at least one row, got none")
    category = category or isinstance(column.dtype, pd.CategoricalDtype)
    kind = column.dtype.kind if not category else "O"
    if not category and date_format is not None and _are_digits(column) and _times(column, date_format).notna().all():
        return Date.learned(table, name, date_format)
    if kind == "M" or isinstance(column.dtype, pd.PeriodDtype):
        return Date.learned(table, name, ISO)
    if kind in "iufcm":
        return Number(name)
    if not category and kind != "b":
        if pd.to_numeric(column, errors="coerce").notna().mean() >= MOSTLY:
            return Number(name)
        for form in (date_format, ISO):
            if form is not None and _times(column, form).notna().mean() >= MOSTLY:
                return Date.learned(table, name, form)
        with_commas = _texts(column).str.fullmatch(DECIMAL_COMMA)
        if with_commas.mean() >= MOSTLY:
            raise TableError(
                f"{table.source}: column {name}: expected decimal points, got {column[with_commas].iloc[0]!r}; export "
                "it with points, or say that these are categories (--category)"
            )
    return Category.learned(table, name)


def _are_digits(column: Any) -> bool:
    """Return whether a column has whole numbers, as such or as texts."""
    return column.dtype.kind in "iu" or (column.dtype.kind not in "fcmMb" and bool(_texts(column).str.isdigit().all()))


def feature_from(plain: Any) -> Feature:
    """Return a feature from what its `plain()` gave.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(plain, str):
        return Number(plain)
    if isinstance(plain, dict) and isinstance(plain.get("name"), str):
        levels, seasons, form = plain.get("levels"), plain.get("seasons"), plain.get("format", ISO)
        if _are_texts(levels):
            return Category(plain["name"], tuple(levels))
        if _are_texts(seasons) and set(seasons) <= set(SEASONS) and isinstance(form, str):
            return Date(plain["name"], tuple(seasons), form)
    raise ValueError(f"expected a column's name, or its name with levels or seasons, got {str(plain)[:80]}")


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and len(values) > 0 and all(isinstance(value, str) for value in values)


def _texts(column: Any) -> Any:
    """Return a column as texts without space around; whole numbers as they are written without a point."""
    return column.astype(str).str.strip().str.replace(r"^([+-]?\d+)\.0+$", r"\1", regex=True)


def _times(column: Any, form: str) -> Any:
    """Return the local times of a column, NaT where a cell is no date."""
    if isinstance(column.dtype, pd.PeriodDtype):
        return column.dt.to_timestamp()
    if column.dtype.kind == "M":
        return column.dt.tz_localize(None)
    texts = column.astype(str).str.strip()
    if form == ISO:
        texts = texts.str.replace(_OFFSET, r"\1", regex=True)
    if "%z" in form:  # offsets that differ, as in summer and in winter, have no common clock
        return pd.to_datetime(texts.map(lambda text: _local(text, form)), errors="coerce")
    try:
        return pd.to_datetime(texts, format=form, errors="coerce")
    except ValueError as error:
        raise TableError(f"date format {form!r}: expected one as of strptime ({error})") from None


def _local(text: str, form: str) -> Any:
    try:
        return datetime.datetime.strptime(text, form).replace(tzinfo=None)
    except ValueError:
        return pd.NaT
