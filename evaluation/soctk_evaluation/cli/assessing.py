"""`soctk assess`: from a saved surrogate and a log to how far it can be trusted."""

from __future__ import annotations

import torch

import soctk
from soctk import Columns
from soctk.assessment.rows import Rows
from soctk.io.checkpoint import CheckpointError, read_notes
from soctk.sets import SetAt
from soctk_evaluation.cli.commands import Assess
from soctk_evaluation.cli.feasible import column_names, make_region
from soctk_evaluation.cli.logged import check_output
from soctk_evaluation.cli.parts import Parts, origin
from soctk_evaluation.harness.request import UsageError
from soctk_evaluation.tables.assessment import to_html


def assess_logged(command: Assess) -> int:
    """Measure a model on the rows of a log that it has not seen, print what was found, write the page."""
    if command.output is not None:
        if command.output.suffix != ".html":
            raise UsageError(f"--output: expected a file ending in .html, got {command.output}")
        check_output(command.output, ("model", command.model), ("log", command.log))
    try:
        model, notes = soctk.load(command.model), read_notes(command.model)
        columns = Columns.of_model(command.model, model)
    except (FileNotFoundError, CheckpointError) as error:
        raise UsageError(str(error)) from None
    sides = sum(column_names(command.feasible).values(), ())
    logged = soctk.read_log(command.log, columns, drop_missing=command.drop_missing, more=sides)
    if logged.missing is not None and logged.missing.count:
        print(f"left out: {logged.missing}")
    region = make_region(command.feasible, model.dim, logged.source if sides else None)
    sets = None if region is None else region.sets
    data, train, seen = logged.data, None, origin(notes, logged)
    rows = torch.arange(data.instances)
    if isinstance(seen, Parts):
        print(f"the log that the model was learned from: measured on the {len(Rows.of(seen.test))} values held out")
        data, train, rows, seen = seen.test, seen.train, seen.held, False
    elif seen:
        print("the model has learned from rows of this log, and which is not known: errors are too small")
    if isinstance(sets, SetAt) and sets.batch_shape:
        sets = sets.select(logged.rows[rows])
    try:
        found = soctk.assess(model, data, sets, train=train, seen=bool(seen))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if sets is None:
        print("decisions are made in the smallest box around the logged ones (--set names another set)")
    print(found)
    if command.output is not None:
        command.output.write_text(to_html(found, columns.x, columns.value, command.model.name), encoding="utf-8")
        print(f"wrote {command.output}")
    return 0
