"""What decides: a model with where it decides and what is written, for any rows of contexts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import soctk
from soctk import Columns, ConvexSurrogate
from soctk.io.checkpoint import CheckpointError
from soctk.tables.arrays import Arrays, read_arrays
from soctk.tables.table import Table, check_file, listed
from soctk_evaluation.cli.feasible import Region, column_names, make_region
from soctk_evaluation.cli.log_commands import Decide
from soctk_evaluation.cli.plan import Tally, check_names, plan_columns
from soctk_evaluation.harness.request import UsageError


@dataclass
class Planner:
    """A model, where it decides and what is written.

    Attributes:
        command: the options.
        model: the surrogate.
        columns: its columns.
        integer: the coordinates that have to be whole.
        started: `time.perf_counter()` value that the time limit counts from.
    """

    command: Decide
    model: ConvexSurrogate
    columns: Columns
    integer: list[int]
    started: float = field(default_factory=time.perf_counter)
    _region: Region | None = None

    @classmethod
    def of(cls, command: Decide) -> Planner:
        """Return the planner of a command, its model read from its file.

        Raises:
            UsageError: no such file, or not one of a model's; options that do not go with it.
        """
        try:
            model = soctk.load(command.model)
            columns = Columns.of_model(command.model, model)
        except (FileNotFoundError, CheckpointError) as error:
            raise UsageError(str(error)) from None
        return cls(command, model, columns, whole_numbers(command, columns.x))

    @property
    def sides(self) -> list[str]:
        """The columns of right-hand sides."""
        return [name for names in column_names(self.command.feasible).values() for name in names]

    def reads(self, name: str) -> bool:
        """Return whether a column of the contexts' file is read."""
        return name in {*self.sides, *self.command.keep, *self.columns.context_names}

    def read(self, path: Path | None) -> Table | Arrays | None:
        """Return a file of contexts as a whole, None where there is none."""
        self.check_wanted(path)
        if path is None or path.suffix != ".npz":
            return None if path is None else Table.of(path, self.reads)
        check_file(path)
        return Arrays(path)

    def check_wanted(self, path: Path | None) -> None:
        """Raise UsageError where a file of contexts is given and nothing in it would be read."""
        if path is not None and self.model.context_dim == 0 and not (self.sides or self.command.keep):
            raise UsageError(f"contexts: the model takes none, got {path}")

    def check(self, piece: Table) -> None:
        """Raise TableError or UsageError where a cell or the set cannot be used, before anything is decided."""
        piece.check_names(self.command.keep)
        self._check_reach(piece, self.columns.contexts(piece))
        self._where(piece)

    @torch.no_grad()
    def _check_reach(self, piece: Table, contexts: np.ndarray) -> None:
        """Raise TableError naming a number that is so large that the function at its context is none."""
        value = self.model(torch.ones(len(contexts), self.model.dim), torch.from_numpy(contexts))
        wrong = ~torch.isfinite(value).numpy()
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            label = self.columns.labels[int(np.abs(contexts[row]).argmax())]
            if label in self.columns.context_names:  # a category's or a date's are between -1 and 1
                piece.check_cells(label, ~wrong, "a number at which the model has a value")

    def decide(self, source: Table | Arrays | None) -> tuple[dict[str, Any], Tally]:
        """Return the plan of some contexts, column by column, and how good it is."""
        command, region = self.command, self._where(source)
        context = read_contexts(source, self.columns)
        limit = command.time_limit
        if limit is not None:
            limit = max(1e-3, limit - (time.perf_counter() - self.started))
        try:
            limits = {"tol": command.tol, "scale": command.scale, "time_limit": limit}
            options = {"infeasible": command.infeasible, "integer": self.integer}
            decision = soctk.minimize(self.model, region.sets, context, **options, **limits)
        except (ValueError, NotImplementedError) as error:
            if isinstance(source, Table) and context is not None:
                self._check_reach(source, context.numpy())
            raise UsageError(str(error)) from None
        plan: dict[str, Any] = {}
        if command.keep:
            if not isinstance(source, Table) or len(source) != decision.status.size:
                raise UsageError("--keep: expected a table with a row for each decision")
            source.check_names(command.keep)
            plan = {name: source.frame[name].to_numpy() for name in command.keep}
        written = plan_columns(decision, self.columns.x, region, prices=command.prices)
        check_names([*plan, *written], beside=())
        return plan | written, Tally.of(decision)

    def _where(self, source: Table | Arrays | None) -> Region:
        """Return where to decide: made once where no column gives right-hand sides."""
        if self._region is None or self.sides:
            by_rows = self.command.prices or self.command.infeasible == "nearest"
            self._region = make_region(self.command.feasible, self.model.dim, source, by_rows=by_rows)
        assert self._region is not None
        return self._region


def whole_numbers(command: Decide, names: Sequence[str]) -> list[int]:
    """Return the coordinates that have to be whole.

    Raises:
        UsageError: a name that is no column of the decision, or an option that does not go with whole numbers.
    """
    asked, expected = command.integer, f'columns of the decision ({listed(names)}), each once, or "all" alone'
    if asked is None:
        return []
    if command.prices or command.infeasible != "status":
        other = "prices" if command.prices else "infeasible"
        raise UsageError(f"--{other}: not with --integer, as it is not known of decisions in whole numbers")
    if asked == ("all",) and "all" not in names:
        return list(range(len(names)))
    unknown = [name for name in asked if name not in names]
    if unknown or not asked or len(set(asked)) < len(asked):
        raise UsageError(f"--integer: expected {expected}, got {listed(unknown or asked)}")
    return [list(names).index(name) for name in asked]


def read_contexts(source: Table | Arrays | None, columns: Columns) -> Tensor | None:
    """Return the contexts (N, p) in a file, a table's by the columns that the model was learned from.

    Raises:
        UsageError: a model that needs a file and has none, or a file that does not fit it.
    """
    context_dim = columns.context_dim
    if context_dim == 0:
        return None
    if source is None:
        raise UsageError(f"contexts: expected a file with contexts of {context_dim} numbers, as the model's")
    if isinstance(source, Arrays):
        path, context = source.path, read_arrays(source.path, ("context",))["context"]
        if context.ndim != 2 or context.shape[1] != context_dim:
            raise UsageError(f"{path}: context: expected shape (N, {context_dim}), got {context.shape}")
    else:
        path, context = source.source, columns.contexts(source)
    if len(context) == 0:
        raise UsageError(f"{path}: expected at least one context, got none")
    return torch.from_numpy(np.ascontiguousarray(context))
