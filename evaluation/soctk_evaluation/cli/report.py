"""`soctk report`: the rows of a store as tables, pages and pictures."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from soctk_evaluation.cli.commands import Report
from soctk_evaluation.experiments import experiment_names, find_experiment
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.experiment import STORES, Experiment, Files
from soctk_evaluation.harness.request import UsageError, check_figure
from soctk_evaluation.harness.store import Contents, ResultsStore, is_measured

KINDS = ("html", "markdown", "csv", "latex", "figure", "readme", "overview")


def report(command: Report) -> int:
    """Show every experiment that a store has rows of; without a store, write the project's own pages."""
    if command.store is None:
        return _write_pages(command)
    store = ResultsStore(command.store)
    if not store.path.is_file():
        raise UsageError(f"no results file {store.path}; `soctk leaderboard` makes one")
    check_files(command, store)
    contents = store.read()
    found = dict.fromkeys(row["experiment"] for row in contents.rows)
    names, unknown = ([each for each in found if (each in experiment_names()) == known] for known in (True, False))
    if unknown:
        of_entries = f" (`soctk benchmark page {store.path}` shows entries)" if "benchmark" in unknown else ""
        print(f"soctk: rows of unknown experiments skipped: {', '.join(unknown)}{of_entries}", file=sys.stderr)
    if len(names) > 1 and _files(command):
        raise UsageError(f"{store.path} holds rows of {' and '.join(names)}: expected one experiment for a file")
    if not names:
        _say_damaged(store, contents)
        print(f"no results in {store.path} yet")
    for name in names:
        show(find_experiment(name), store, command)
    return 0


def _write_pages(command: Report) -> int:
    """Write every experiment's `pages` from its store, all relative to the folder that the command is run in."""
    if _files(command):
        raise UsageError("expected a results file for the files asked for; without one the project's own are written")
    stores = {name: ResultsStore(STORES / f"{name}.jsonl") for name in experiment_names()}
    found = {name: store for name, store in stores.items() if store.path.is_file()}
    if not found:
        raise UsageError(f"expected a results file, or a folder {STORES} here with those of the project")
    for name, store in found.items():
        experiment = find_experiment(name)
        write(experiment, store, {kind: Path(page) for kind, page in experiment.pages.items()})
    return 0


def show(
    experiment: Experiment, store: ResultsStore, request: Any, cells: Sequence[Cell] = (), keys: Collection[str] = ()
) -> None:
    """Show an experiment's rows, those of `keys` where there are any, and write the files that the request names."""
    write(experiment, store, _files(request), cells, keys)


def write(
    experiment: Experiment,
    store: ResultsStore,
    files: Files,
    cells: Sequence[Cell] = (),
    keys: Collection[str] = (),
) -> None:
    """Show an experiment's rows, those of `keys` where there are any, and write files."""
    for kind in files:
        if kind not in experiment.kinds:
            raise UsageError(f"--{kind}: expected {' or '.join(experiment.kinds)} for rows of {experiment.name}")
    contents = store.read(experiment.problem_of)
    _say_damaged(store, contents)
    rows = [row for row in contents.rows if not keys or row["key"] in keys]
    if not any(map(is_measured, rows)):
        failed = f"; {rows[-1]['method']}: {rows[-1]['status']}" if rows else ""
        print(f"soctk: no results of {experiment.name} in {store.path} yet{failed}", file=sys.stderr)
    experiment.write(experiment.results(Contents(rows, contents.bad), cells, store.path), files)


def check_files(request: Any, store: ResultsStore) -> None:
    """Raise UsageError where a file to write would take the place of the store or of another, or is no picture."""
    check_figure(getattr(request, "figure", None))
    taken = {store.path.resolve(): "the results"}
    for kind, path in _files(request).items():
        other = taken.setdefault(path.resolve(), f"--{kind}")
        if other != f"--{kind}" and not {other, f"--{kind}"} == {"--readme", "--overview"}:
            raise UsageError(f"--{kind}: expected a file of its own, got {path}, which is that of {other}")


def _say_damaged(store: ResultsStore, contents: Contents) -> None:
    if contents.bad:
        first, lines = contents.bad[0], f"{len(contents.bad)} damaged line{'' if len(contents.bad) == 1 else 's'}"
        print(f"soctk: {lines} of {store.path} skipped (line {first.number}: {first.reason})", file=sys.stderr)


def _files(request: Any) -> dict[str, Path]:
    given = {kind: getattr(request, kind, None) for kind in KINDS}
    return {kind: path for kind, path in given.items() if path is not None}
