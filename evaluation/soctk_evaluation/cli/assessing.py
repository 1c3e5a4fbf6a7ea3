"""`soctk assess`: from a saved surrogate and a log to how far it can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import soctk
from soctk import Columns, Log, ValueData
from soctk.assessment.rows import Rows
from soctk.io.checkpoint import CheckpointError, read_notes
from soctk.sets import SetAt
from soctk_evaluation.cli.feasible import column_names, make_region
from soctk_evaluation.cli.log_commands import Assess
from soctk_evaluation.cli.logged import check_output
from soctk_evaluation.cli.parts import NOTE, Parts, origin
from soctk_evaluation.harness.request import UsageError
from soctk_evaluation.tables.assessment import to_html


def assess_logged(command: Assess) -> int:
    """Measure a model on the rows of a log that it has not seen, print what was found, write the page."""
    if command.output is not None:
        if command.output.suffix != ".html":
            raise UsageError(f"--output: expected a file ending in .html, got {command.output}")
        check_output(command.output, ("model", command.model), ("log", command.log), ("train", command.train))
    try:
        model, notes = soctk.load(command.model), read_notes(command.model)
        columns = Columns.of_model(command.model, model)
    except (FileNotFoundError, CheckpointError) as error:
        raise UsageError(str(error)) from None
    sides = sum(column_names(command.feasible).values(), ())
    logged = _read(command.log, columns, command, sides)
    region = make_region(command.feasible, model.dim, logged.source if sides else None)
    sets = None if region is None else region.sets
    known = origin(notes, logged)
    data, train, rows = logged.data, None, torch.arange(logged.data.instances)
    if isinstance(known, Parts):
        if command.train is not None:
            raise UsageError(f"--train: {command.log} is the log that the model was learned from; leave --train out")
        print(f"the log that the model was learned from: measured on the {len(Rows.of(known.test))} values held out")
        data, train, rows, known = known.test, known.train, known.held, False
    elif known:
        print("the model has learned from rows of this log, and which is not known: errors are too small")
    if command.train is not None:
        train = _learned(command, columns, notes)
    if isinstance(sets, SetAt) and sets.batch_shape:
        sets = sets.select(logged.rows[rows])
    try:
        found = soctk.assess(model, data, sets, train=train, seen=bool(known))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if sets is None:
        print("decisions are made in the smallest box around the logged ones (--set names another set)")
    print(found)
    if command.output is not None:
        command.output.write_text(to_html(found, columns.x, columns.value, command.model.name), encoding="utf-8")
        print(f"wrote {command.output}")
    return 0


def _read(path: Path, columns: Columns, command: Assess, sides: tuple[str, ...] = ()) -> Log:
    """Return a log with a model's columns, and say what of it was left out."""
    logged = soctk.read_log(path, columns, drop_missing=command.drop_missing, more=sides)
    if logged.missing is not None and logged.missing.count:
        print(f"left out: {logged.missing}")
    return logged


def _learned(command: Assess, columns: Columns, notes: Mapping[str, Any]) -> ValueData:
    """Return what the model has learned from of the log that it is said to be of: all, where it is not recognised."""
    assert command.train is not None
    logged = _read(command.train, columns, command)
    known = origin(notes, logged)
    if isinstance(known, Parts):
        return known.train
    if NOTE in notes and not known:
        print(f"--train: no row of {command.train} is known to be one that the model has learned from")
    return logged.data
