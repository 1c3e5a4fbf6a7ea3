"""`soctk decide`: from a saved surrogate and a file of contexts to decisions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from soctk.tables.table import TABLE_FORMATS, check_format
from soctk_evaluation.cli.feasible import EXPECTED, SETS, column_names, set_file
from soctk_evaluation.cli.in_pieces import Here, decide_in_pieces
from soctk_evaluation.cli.log_commands import Decide
from soctk_evaluation.cli.logged import check_output
from soctk_evaluation.cli.plan import Tally, check_names
from soctk_evaluation.cli.planner import Planner
from soctk_evaluation.cli.slices import PARQUET, is_parquet, is_table
from soctk_evaluation.cli.tabular import COLUMN_FORMATS, write_columns
from soctk_evaluation.harness.request import UsageError


def decide_logged(command: Decide) -> int:
    """Decide in every context of a file or folder, write the decisions with their gaps."""
    if command.feasible.set is None:
        raise UsageError(f"--set: {EXPECTED}")
    for name, number in (("time-limit", command.time_limit), ("scale", command.scale)):
        if number is not None and not 0 < number < float("inf"):
            raise UsageError(f"--{name}: expected a positive number, got {number}")
    if command.rows_at_once < 1:
        raise UsageError(f"--rows-at-once: expected at least 1, got {command.rows_at_once}")
    output = command.output or command.model.with_suffix(".decisions.csv")
    _check_files(command, output)
    planner = Planner.of(command)
    check_names((*command.keep, *planner.columns.x))
    _say_default_ends(planner)
    tally = _decide(planner, output)
    if tally is None:
        return 130
    print(tally.summary(command.tol, whole=command.integer is not None))
    print(f"wrote {output}")
    return 0 if tally.certified == tally.count else 1


def _say_default_ends(planner: Planner) -> None:
    """Say where a bound that was not asked for leaves decisions out that the model has learned from."""
    asked, support = planner.command.feasible, planner.model.support
    if asked.set not in SETS or support is None:
        return
    sides, given = SETS[asked.set][1], column_names(asked)
    least, most = float(support.x[0].min()), float(support.x[1].max())
    for side, end, left_out, word in (("lower", 0, least < 0, "least"), ("upper", 1, most > 1, "most")):
        if side in sides and left_out and not getattr(asked, side) and side not in given:
            learned = f"the model has learned from decisions between {least:g} and {most:g}"
            print(f"decisions are at {word} {end}, as there is no --{side}; {learned}")


def _check_files(command: Decide, output: Path) -> None:
    """Raise UsageError where the files asked for do not go together, or the output cannot be written."""
    contexts = command.contexts
    if output.suffix in COLUMN_FORMATS:
        check_output(output, ("model", command.model), ("contexts", contexts), ("--set", set_file(command.feasible)))
    elif output.suffix:
        kinds = ", ".join(COLUMN_FORMATS)
        raise UsageError(f"--output: expected a file ending in {kinds}, or a folder's name without one, got {output}")
    elif output.exists() or not output.parent.is_dir():
        raise UsageError(f"--output: expected the name of a new folder, in a folder that exists, got {output}")
    check_format(output if output.suffix else output.with_suffix(PARQUET))
    if contexts is not None and contexts.resolve() in output.resolve().parents:
        raise UsageError(f"--output: expected a place outside of the contexts' folder {contexts}, got {output}")
    folder = not output.suffix or (contexts is not None and contexts.is_dir())
    if folder and not _in_pieces(contexts, output):
        raise UsageError(f"--output: a folder goes with {', '.join(TABLE_FORMATS)} alone, got {contexts} and {output}")
    if command.scheduler is None:
        return
    if contexts is None or not (is_parquet(contexts) and _in_pieces(contexts, output)):
        wanted = f"contexts in a {PARQUET} file or a folder of these, and --output of a table or a folder"
        raise UsageError(f"--scheduler: expected {wanted}, got {contexts} and {output}")
    if command.time_limit is not None:
        raise UsageError("--time-limit: not with --scheduler, as a piece is to be the same whenever it is decided")


def _in_pieces(contexts: Path | None, output: Path) -> bool:
    """Return whether a plan is made in pieces: from tables to tables."""
    return is_table(contexts) and output.suffix in ("", *TABLE_FORMATS)


def _decide(planner: Planner, output: Path) -> Tally | None:
    """Decide at once or in pieces, here or on a cluster; None after Ctrl-C."""
    command, contexts = planner.command, planner.command.contexts
    if contexts is None or not _in_pieces(contexts, output):
        plan, tally = planner.decide(planner.read(contexts))
        write_columns(plan, output)
        return tally
    if command.scheduler is None:
        return decide_in_pieces(planner, contexts, output, Here(planner))
    from soctk_evaluation.cli.cluster import Cluster, shared
    from soctk_evaluation.harness.dask_client import connected

    # Workers start in folders of their own: they are given whole paths.
    command = shared(command)
    with connected(command.scheduler) as client:
        planner = replace(planner, command=command)
        return decide_in_pieces(planner, contexts.resolve(), output.resolve(), Cluster(client, command))
