"""The columns of a log and what they mean: learned from the log, kept in the model's file, applied to other tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from soctk.function import ConvexFunction
from soctk.io.checkpoint import CheckpointError, read_notes
from soctk.tables.errors import TableError
from soctk.tables.features import Feature, Number, feature_from, learned_feature
from soctk.tables.table import Table, listed, quoted

NOTE = "columns"
"""The note of a saved model that holds its columns."""


@dataclass(frozen=True)
class Columns:
    """Which columns are the context, the decision and its value.

    Attributes:
        context: the context's columns and what each becomes.
        x: the decision's, in its order.
        value: the value's.
    """

    context: tuple[Feature, ...]
    x: tuple[str, ...]
    value: str = "value"

    @classmethod
    def learned(
        cls,
        source: Any,
        *,
        context: Sequence[str],
        x: Sequence[str],
        value: str = "value",
        category: Sequence[str] = (),
        date_format: str | None = None,
    ) -> Columns:
        """Return the columns of a log, with the kinds, categories and seasons that it has.

        Args:
            source: a file (.csv, .parquet), a data frame or a `Table`.
            context: columns of the context.
            x: columns of the decision.
            value: column of the value.
            category: those of the context that are categories even where they have numbers.
            date_format: of dates that are not in ISO 8601, as `strptime` takes it.

        Raises:
            TableError: a column is missing, has two meanings, has missing values, or is nothing to learn from.
        """
        table = Table.of(source)
        used = (*context, *x, value)
        twice = sorted({name for name in used if used.count(name) > 1})
        if twice:
            raise TableError(f"{table.source}: expected every column in one part of the log, got {listed(twice)} twice")
        if not x:
            raise TableError(f"{table.source}: expected at least one column of the decision, got none")
        stray = [name for name in category if name not in context]
        if stray:
            raise TableError(f"{table.source}: category: {listed(stray)}: not a column of the context")
        table.check_names(used)
        features = [learned_feature(table, n, category=n in category, date_format=date_format) for n in context]
        if date_format is not None and not any(getattr(each, "format", None) == date_format for each in features):
            raise TableError(
                f"{table.source}: date format {date_format!r}: expected a column of the context with dates in it, got "
                + ("; ".join(f"{quoted(each.name)} is {each}" for each in features) or "no columns")
            )
        return cls(tuple(features), tuple(x), value)

    @classmethod
    def numbered(cls, dim: int, context_dim: int) -> Columns:
        """Return columns context_0, context_1, ... and x_0, x_1, ... of numbers."""
        names = [[f"{name}_{k}" for k in range(count)] for name, count in (("context", context_dim), ("x", dim))]
        return cls(tuple(map(Number, names[0])), tuple(names[1]))

    @classmethod
    def of_model(cls, path: str | os.PathLike[str], model: ConvexFunction) -> Columns:
        """Return the columns that a model's file knows; numbered ones where it knows none.

        Args:
            path: the file.
            model: the model in it.

        Raises:
            FileNotFoundError: there is no such file.
            CheckpointError: it is not a soctk model, or its columns are not the model's.
        """
        noted, usual = read_notes(path).get(NOTE, {}), cls.numbered(model.dim, model.context_dim)
        try:
            columns = cls.from_plain({"context": [f.plain() for f in usual.context], "x": list(usual.x)} | noted)
            if (len(columns.x), columns.context_dim) != (model.dim, model.context_dim):
                found = f"{len(columns.x)} and {columns.context_dim}"
                raise ValueError(
                    f"expected {model.dim} numbers of a decision, {model.context_dim} of a context, got {found}"
                )
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: columns: {error}") from None
        return columns

    @classmethod
    def from_plain(cls, plain: Any) -> Columns:
        """Return columns from what `plain` gave.

        Raises:
            ValueError: it is something else.
        """
        x, value = plain.get("x"), plain.get("value", "value")
        if not (isinstance(x, list) and all(isinstance(name, str) for name in (*x, value))):
            raise ValueError(f"expected names of columns, got {str(x)[:80]} and {str(value)[:80]}")
        if not isinstance(plain.get("context"), list):
            raise ValueError("expected a list of the context's columns")
        return cls(tuple(map(feature_from, plain["context"])), tuple(x), value)

    def plain(self) -> dict[str, Any]:
        """Return the columns as JSON can hold them."""
        return {"context": [feature.plain() for feature in self.context], "x": list(self.x), "value": self.value}

    def notes(self) -> dict[str, Any]:
        """Return what `soctk.save(notes=)` takes, so that `soctk decide` finds the columns."""
        return {NOTE: self.plain()}

    @property
    def context_dim(self) -> int:
        """How many numbers a context has."""
        return len(self.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each number of a context."""
        return tuple(label for feature in self.context for label in feature.labels)

    @property
    def context_names(self) -> tuple[str, ...]:
        """The columns of the context."""
        return tuple(feature.name for feature in self.context)

    def contexts(self, source: Any) -> np.ndarray:
        """Return the contexts of a file, a data frame or a `Table`, (rows, context_dim).

        Raises:
            TableError: a column is missing, or a cell is missing, not of its column's kind or an unknown category.
        """
        table = Table.of(source, self.context_names.__contains__)
        table.check_names(self.context_names)
        parts = [np.zeros((len(table), 0)), *(feature.encode(table) for feature in self.context)]
        return np.concatenate(parts, axis=1)


def short_names(x: Sequence[str]) -> list[str]:
    """Return the names of a decision's columns without their "x_"; as they are where two would be alike."""
    short = [name.removeprefix("x_") for name in x]
    return short if len(set(short)) == len(short) else list(x)
