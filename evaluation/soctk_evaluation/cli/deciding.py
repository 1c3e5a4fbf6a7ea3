"""`soctk decide`: from a saved surrogate and a file of contexts to decisions."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import soctk
from soctk import Columns, ConvexSurrogate
from soctk.io.checkpoint import CheckpointError
from soctk.learn.progress import Progress
from soctk.tables.arrays import Arrays, read_arrays
from soctk.tables.table import TABLE_FORMATS, Table, check_file, check_format, read_pieces
from soctk_evaluation.cli.commands import Decide
from soctk_evaluation.cli.feasible import EXPECTED, SETS, Region, column_names, make_region
from soctk_evaluation.cli.logged import check_output
from soctk_evaluation.cli.pieces import Pieces, job_key
from soctk_evaluation.cli.plan import Tally, check_names, plan_columns
from soctk_evaluation.cli.tabular import COLUMN_FORMATS, write_columns
from soctk_evaluation.harness.request import UsageError


def decide_logged(command: Decide) -> int:
    """Decide in every context of a file, write the decisions with their gaps."""
    if command.feasible.set is None:
        raise UsageError(f"--set: {EXPECTED}")
    for name, number in (("time-limit", command.time_limit), ("scale", command.scale)):
        if number is not None and not 0 < number < float("inf"):
            raise UsageError(f"--{name}: expected a positive number, got {number}")
    if command.rows_at_once < 1:
        raise UsageError(f"--rows-at-once: expected at least 1, got {command.rows_at_once}")
    try:
        model = soctk.load(command.model)
        columns = Columns.of_model(command.model, model)
    except (FileNotFoundError, CheckpointError) as error:
        raise UsageError(str(error)) from None
    output = command.output or command.model.with_suffix(".decisions.csv")
    if output.suffix not in COLUMN_FORMATS:
        raise UsageError(f"--output: expected a file ending in {', '.join(COLUMN_FORMATS)}, got {output}")
    check_format(output)
    check_output(output, ("model", command.model), ("contexts", command.contexts))
    check_names((*command.keep, *columns.x))
    planner = Planner(command, model, columns)
    if command.contexts is not None and command.contexts.suffix in TABLE_FORMATS and output.suffix in TABLE_FORMATS:
        tally = _in_pieces(planner, command.contexts, output)
    else:
        tally = _at_once(planner, planner.read(command.contexts), output)
    if tally is None:
        return 130
    print(tally.summary(command.tol))
    print(f"wrote {output}")
    return 0 if tally.certified == tally.count else 1


@dataclass
class Planner:
    """A model, where it decides and what is written.

    Attributes:
        command: the options.
        model: the surrogate.
        columns: its columns.
        started: `time.perf_counter()` value that the time limit counts from.
    """

    command: Decide
    model: ConvexSurrogate
    columns: Columns
    started: float = field(default_factory=time.perf_counter)
    _region: Region | None = None

    @property
    def sides(self) -> list[str]:
        """The columns of right-hand sides."""
        return [name for names in column_names(self.command.feasible).values() for name in names]

    def reads(self, name: str) -> bool:
        """Return whether a column of the contexts' file is read."""
        return name in {*self.sides, *self.command.keep, *self.columns.context_names}

    def read(self, path: Path | None) -> Table | Arrays | None:
        """Return a file of contexts as a whole, None where there is none."""
        if path is not None and self.model.context_dim == 0 and not (self.sides or self.command.keep):
            raise UsageError(f"contexts: the model takes none, got {path}")
        if path is None or path.suffix != ".npz":
            return None if path is None else Table.of(path, self.reads)
        check_file(path)
        return Arrays(path)

    def check(self, piece: Table) -> None:
        """Raise TableError where a cell cannot be used, before anything is decided."""
        piece.check_names(self.command.keep)
        self.columns.contexts(piece)
        piece.numbers(self.sides)

    def decide(self, source: Table | Arrays | None) -> tuple[dict[str, Any], Tally]:
        """Return the plan of some contexts, column by column, and how good it is."""
        command, region = self.command, self._where(source)
        context = read_contexts(source, self.columns)
        limit = command.time_limit
        if limit is not None:
            limit = max(1e-3, limit - (time.perf_counter() - self.started))
        try:
            limits = {"tol": command.tol, "scale": command.scale, "time_limit": limit}
            decision = soctk.minimize(self.model, region.sets, context, infeasible=command.infeasible, **limits)
        except (ValueError, NotImplementedError) as error:
            raise UsageError(str(error)) from None
        plan: dict[str, Any] = {}
        if command.keep:
            if not isinstance(source, Table) or len(source) != decision.status.size:
                raise UsageError("--keep: expected a table with a row for each decision")
            source.check_names(command.keep)
            plan = {name: source.frame[name].to_numpy() for name in command.keep}
        return plan | plan_columns(decision, self.columns.x, region, prices=command.prices), Tally.of(decision)

    def _where(self, source: Table | Arrays | None) -> Region:
        """Return where to decide: made once where no column gives right-hand sides."""
        if self._region is None or self.sides:
            by_rows = self.command.prices or self.command.infeasible == "nearest"
            self._region = make_region(self.command.feasible, self.model.dim, source, by_rows=by_rows)
        assert self._region is not None
        return self._region


def _at_once(planner: Planner, source: Table | Arrays | None, output: Path) -> Tally:
    plan, tally = planner.decide(source)
    write_columns(plan, output)
    return tally


def _in_pieces(planner: Planner, path: Path, output: Path) -> Tally | None:
    """Decide piece by piece, after all have been read once to see that they can be; None after Ctrl-C."""
    command, lengths = planner.command, []
    for piece in read_pieces(path, command.rows_at_once, planner.reads):
        planner.check(piece)
        lengths.append(len(piece))
    if len(lengths) == 1:
        return _at_once(planner, planner.read(path), output)
    pieces = Pieces(output, _key(command, path, output), len(lengths))
    if pieces.others:
        _say("what was kept beside the output is of other files or options: starting anew")
    elif pieces.done:
        _say(f"going on: {pieces.done} of {len(lengths)} pieces were decided before")
    try:
        tally = Tally()
        with Progress(sum(lengths), enabled=True, name="decide", figure="largest gap", unit="rows") as progress:
            for number, part in enumerate(_decided(planner, path, pieces)):
                tally += part
                progress.advance(tally.largest, lengths[number])
    except KeyboardInterrupt:
        _say(f"interrupted: {pieces.done} of {len(lengths)} pieces are decided; the same command goes on from there")
        return None
    pieces.join()
    return tally


def _decided(planner: Planner, path: Path, pieces: Pieces) -> Iterator[Tally]:
    """Yield how good each piece is, decided now or before."""
    for number, piece in enumerate(read_pieces(path, planner.command.rows_at_once, planner.reads)):
        tally = pieces.tally(number)
        if tally is None:
            plan, tally = planner.decide(piece)
            pieces.put(number, plan, tally)
        yield tally


def _key(command: Decide, contexts: Path, output: Path) -> str:
    """Return what tells a job: all that its plan depends on."""
    options = asdict(command) | {"output": output.suffix, "model": None, "contexts": contexts.suffix}
    files = [command.model, contexts]
    if command.feasible.set not in SETS:
        files.append(Path(str(command.feasible.set)))
    return job_key(options, files)


def _say(text: str) -> None:
    print(f"soctk: {text}", file=sys.stderr)


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
