"""Logged decisions in a file or a data frame, as data to learn from or to measure a model on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.checks import check_sequence
from soctk.lazy import pandas as pd
from soctk.learn.data import ValueData, groups_of, typical
from soctk.tables.arrays import Arrays, read_arrays
from soctk.tables.columns import Columns, short_names
from soctk.tables.errors import TableError
from soctk.tables.table import Missing, Table

LONGEST = 8
"""Rows of an instance at most, in units of a context's mean: shorter ones are filled up to the longest."""


@dataclass(frozen=True, eq=False)
class Log:
    """What a log holds.

    Attributes:
        data: contexts, decisions and their values.
        columns: what the columns mean.
        optima: (N, n), an optimal decision for each instance, or None.
        contexts: (N,), which of the different contexts each instance has.
        rows: (N,), the row of `source` with each instance's optimum.
        shape: how many contexts and decisions there are, in words.
        source: what was read, without the rows that were left out.
        missing: the rows that were left out for missing values; None where the file has arrays.
    """

    data: ValueData
    columns: Columns
    optima: Tensor | None
    contexts: Tensor
    rows: Tensor
    shape: str
    source: Table | Arrays
    missing: Missing | None = None


@dataclass(frozen=True)
class Roles:
    """Which columns of a table are what, by name; by their beginnings where a name is not given.

    Attributes:
        context: columns of the context; those named context_* by default.
        x: columns of the decision; those named x_* by default.
        value: column of the value.
        optimum: columns of an optimal decision, in the decision's order; by default those named optimum_* as the
            decision's are x_*, where there are any.
        category: columns of the context that are categories even where they have numbers.
        date_format: of dates that are not in ISO 8601, as `strptime` takes it.
        more: columns that must have values as well; rows of one context that differ in them, as in the right-hand sides
            of a set, are instances of their own.
    """

    context: Sequence[str] | None = None
    x: Sequence[str] | None = None
    value: str = "value"
    optimum: Sequence[str] | None = None
    category: Sequence[str] = ()
    date_format: str | None = None
    more: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("context", "x", "optimum", "category", "more"):
            if isinstance(given := getattr(self, name), str):  # whose letters would be the columns
                check_sequence(given, name)

    def reads(self, name: str) -> bool:
        """Return whether a column of a file may be one of these."""
        given = {"context": self.context, "x": self.x, "optimum": self.optimum}
        named = {self.value, *self.more, *(name for names in given.values() for name in names or ())}
        return name in named or any(name.startswith(f"{kind}_") for kind, names in given.items() if names is None)


def read_log(
    source: Any, roles: Roles | Columns | None = None, *, drop_missing: bool = False, more: Sequence[str] = ()
) -> Log:
    """Return the logged decisions in a file or a data frame.

    A table (.csv, .parquet) has a row for each decision. An .npz file has arrays `context` (N, p), `x` (N, M, n),
    `value` (N, M) and maybe `optimum` (N, n).

    Args:
        source: the file or the data frame.
        roles: which columns are what, and what they mean is learned from the log; or a model's columns
            (`Columns.of_model`), which are applied as they are.
        drop_missing: leave rows with missing values out; `Log.missing` says which.
        more: columns that must have values as well, beside those of the roles.

    Raises:
        TableError: no such file, one that cannot be read, missing columns, or cells that are not of their column's
            kind; the message names column and row.
    """
    if isinstance(source, str | os.PathLike) and Path(source).suffix == ".npz":
        columns, meaning = (roles, Roles()) if isinstance(roles, Columns) else (None, roles or Roles())
        if drop_missing or meaning != Roles(more=meaning.more):
            raise TableError(f"{source}: an .npz file has arrays context, x and value, not columns with names or gaps")
        return _from_arrays(Path(source), columns, (*meaning.more, *more))
    return _from_table(source, roles or Roles(), drop_missing, tuple(more))


def _from_table(source: Any, roles: Roles | Columns, drop_missing: bool, more: tuple[str, ...]) -> Log:
    columns = roles if isinstance(roles, Columns) else None
    meaning = roles if isinstance(roles, Roles) else Roles(roles.context_names, roles.x, roles.value)
    meaning = replace(meaning, more=(*meaning.more, *more))
    table = Table.of(source, meaning.reads)
    context, x = (
        table.names_of(kind) if names is None else list(names)
        for kind, names in (("context", meaning.context), ("x", meaning.x))
    )
    if not x:
        expected = "expected columns x_*, the decisions, or their names (--decision)"
        raise TableError(f"{table.source}: {expected}; {table.listing}")
    value = meaning.value
    optimum = _optimum(table, meaning, x)
    needed = list(dict.fromkeys([*context, *x, value, *optimum, *meaning.more]))
    table, missing = table.without_missing(needed, meaning.category)
    if missing.count and not drop_missing:
        raise TableError(f"{table.source}: {missing}; leave them out with --drop-missing (drop_missing=True)")
    if len(table) == 0:
        left = f": {missing}" if missing.count else ""
        raise TableError(f"{table.source}: expected at least one row, got none{left}")
    decisions, values = table.numbers(x), table.number(value)
    if columns is None:
        kinds = {"category": meaning.category, "date_format": meaning.date_format}
        columns = Columns.learned(table, context=context, x=x, value=value, **kinds)
    optima = table.numbers(optimum) if optimum else None
    beside = np.zeros((len(table), 0))
    for name in dict.fromkeys([*optimum, *meaning.more]):
        beside = np.column_stack([beside, pd.factorize(table.frame[name])[0]])
    return _by_context(columns.contexts(table), decisions, values, optima, columns, table, missing, beside)


def _optimum(table: Table, meaning: Roles, x: list[str]) -> list[str]:
    """Return the columns of optimal decisions."""
    if meaning.optimum is None:
        return [f"optimum_{name}" for name in short_names(x)] if table.names_of("optimum") else []
    if len(meaning.optimum) not in (0, len(x)):
        raise TableError(
            f"{table.source}: optimum: expected {len(x)} columns as the decision, got {len(meaning.optimum)}"
        )
    return list(meaning.optimum)


def _from_arrays(path: Path, columns: Columns | None, more: tuple[str, ...]) -> Log:
    arrays = read_arrays(path, ("x", "value"), ("context", "optimum"))
    x, value, optima = arrays["x"], arrays["value"], arrays.get("optimum")
    single = x.ndim == 2 and value.ndim == 1
    context = arrays["context"] if "context" in arrays else np.zeros((*x.shape[:1], 0))
    try:
        # Checks the shapes: of one decision in each row as of several.
        data = _value_data(context, x[:, None], value[:, None]) if single else _value_data(context, x, value)
    except ValueError as error:
        raise TableError(f"{path}: {error}") from None
    if optima is not None and optima.shape != (data.instances, data.dim):
        raise TableError(f"{path}: optimum: expected shape {(data.instances, data.dim)}, got {optima.shape}")
    columns = columns or Columns.numbered(data.dim, data.context_dim)
    if (len(columns.x), columns.context_dim) != (data.dim, data.context_dim):
        expected = f"{len(columns.x)} decision and {columns.context_dim} context numbers as the columns'"
        raise TableError(f"{path}: expected {expected}, got {data.dim} and {data.context_dim}")
    if single:
        beside = [part for part in (optima, Arrays(path).numbers(more) if more else None) if part is not None]
        apart = np.concatenate(beside, axis=1) if beside else None
        return _by_context(context, x, value, optima, columns, Arrays(path), None, apart)
    ids = groups_of(data.context)
    shape = f"{int(ids.max()) + 1} contexts of {data.context_dim} numbers, {data.candidates} decision(s) in each row"
    known = None if optima is None else torch.from_numpy(optima)
    return Log(data, columns, known, ids, torch.arange(len(ids)), shape, Arrays(path))


def _by_context(
    context: np.ndarray,
    x: np.ndarray,
    value: np.ndarray,
    optima: np.ndarray | None,
    columns: Columns,
    source: Table | Arrays,
    missing: Missing | None,
    beside: np.ndarray | None,
) -> Log:
    """Return a log of one decision in each row; rows of an instance share what stands `beside` the context too."""
    groups = Groups.of(context, beside)
    known = None if optima is None else torch.from_numpy(optima[groups.first])
    ids, first = torch.from_numpy(groups.contexts), torch.from_numpy(groups.first)
    return Log(groups.data(context, x, value), columns, known, ids, first, groups.shape, source, missing)


@dataclass(frozen=True, eq=False)
class Groups:
    """The rows of each context together, as its candidates.

    What values vary by within a context is what decides. So the rows of a context are together where it is `typical`
    that there are several; else each stands alone. Where contexts have unequally many, shorter ones repeat theirs,
    which count no more for it (`ValueData.counts`), and one of very many (`LONGEST`) is several instances.

    Attributes:
        rows: (N, M), the rows of each instance.
        counts: (N,), how many of them are different ones.
        contexts: (N,), which of the different contexts each instance has.
        shape: how many contexts and decisions there are, in words.
    """

    rows: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    shape: str

    @classmethod
    def of(cls, context: np.ndarray, beside: np.ndarray | None = None) -> Groups:
        """Return the groups of contexts (rows, p), which share optima and right-hand sides (rows, any) where given."""
        of_rows = _numbered(context)
        ids = of_rows if beside is None else _numbered(np.concatenate([context, beside], axis=1))
        counts = np.bincount(ids)
        least, most = int(counts.min()), int(counts.max())
        told = f"{of_rows.max() + 1} contexts of {context.shape[1]} numbers, "
        told += f"{most} decision(s) each" if least == most else f"{least} to {most} decisions each"
        if typical(torch.from_numpy(counts)) == 1 < most:
            rows, counts, told = np.arange(len(ids))[:, None], np.ones_like(ids), f"{told}, taken one by one"
        else:
            longest = LONGEST * -(-len(ids) // len(counts))
            if most > longest:
                ids, told = _in_parts(ids, -(-counts // longest)), f"{told}, in instances of at most {longest}"
                counts = np.bincount(ids)
            order, ends = np.argsort(ids, kind="stable"), np.cumsum(counts)
            places = (ends - counts)[:, None] + np.arange(counts.max()) % counts[:, None]
            rows = order[places]
            told += ", some repeated" if counts.min() < counts.max() else ""
        return cls(rows, counts, of_rows[rows[:, 0]], told)

    @property
    def first(self) -> np.ndarray:
        """The first row of each instance."""
        return self.rows[:, 0]

    def data(self, context: np.ndarray, x: np.ndarray, value: np.ndarray) -> ValueData:
        """Return rows of contexts (rows, p), decisions (rows, n) and values (rows,) as data to learn from."""
        return _value_data(context[self.first], x[self.rows], value[self.rows], torch.from_numpy(self.counts))


def _in_parts(ids: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Number each group's rows in turn among so many parts of it, so that all parts have decisions of all times."""
    counts, order = np.bincount(ids), np.argsort(ids, kind="stable")
    place = np.empty_like(ids)
    place[order] = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    return (np.cumsum(parts) - parts)[ids] + place % parts[ids]


def _numbered(rows: np.ndarray) -> np.ndarray:
    return groups_of(torch.from_numpy(rows)).numpy()


def _value_data(context: np.ndarray, x: np.ndarray, value: np.ndarray, counts: torch.Tensor | None = None) -> ValueData:
    return ValueData(*map(torch.from_numpy, (context, x, value)), counts)
