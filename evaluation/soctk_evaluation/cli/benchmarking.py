"""`soctk benchmark`: run, score and add entries, write their data, show the table."""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from soctk.files import try_writing
from soctk_evaluation.benchmark.decisions import About, read_about, read_decisions, write_decisions
from soctk_evaluation.benchmark.folder import write_folder
from soctk_evaluation.benchmark.page import print_board, to_html
from soctk_evaluation.benchmark.results import Board, board_of, read_boards, rows_of
from soctk_evaluation.benchmark.runner import failures, run_entry
from soctk_evaluation.benchmark.scoring import judge_of, score_all
from soctk_evaluation.benchmark.versions import Version, checked_hash, choose, from_selection
from soctk_evaluation.cli.benchmark_commands import Add, Benchmark, Data, Page, RunEntry, Score, Selection, Template
from soctk_evaluation.cli.report import check_files
from soctk_evaluation.harness.request import UsageError, check_seconds
from soctk_evaluation.harness.store import ResultsStore, Row
from soctk_evaluation.tables.markdown import write_text

NOBODY = "your name"
"""Who made the entry that `soctk benchmark template` writes."""


def benchmark(command: Benchmark) -> int:
    """Carry out the action asked for; return the exit code."""
    action = command.action
    kinds = {RunEntry: run, Score: score, Add: add, Data: data, Page: page, Template: template}
    return kinds[type(action)](action)  # type: ignore[operator]


def run(command: RunEntry) -> int:
    """Run an entry, write its decisions, print its score; 1 where it failed on every problem."""
    check_seconds(command.time_limit, "--time-limit")
    if command.output is not None and command.output.suffix != ".npz":
        raise UsageError(f"--output: expected a file ending in .npz, got {command.output}")
    version, output = _chosen(command.selection), command.output
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        try_writing(output)

    def keep(about: About, decisions: dict[str, np.ndarray]) -> None:
        """Write what there is: problems may take hours, and an interruption is to lose one."""
        if output is not None:
            with contextlib.suppress(OSError):  # said at the end, after the score
                write_decisions(output, about, decisions)

    about, decisions = run_entry(command.entry, version, command.time_limit, _tell, keep)
    # a file in every case, so that what `run` scores is what `score` and `add` would
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decisions.npz"
        write_decisions(path, about, decisions)
        print_board(board_of(_rows(path, about, version)))
    if output is not None:
        write_decisions(output, about, decisions)
        _tell(f"wrote {output}")
    return 1 if failures(about, version.problems()) else 0


def score(command: Score) -> int:
    """Score a file of decisions and print its score."""
    print_board(board_of(_scored(command)))
    return 0


def add(command: Add) -> int:
    """Score a file of decisions, add it to a store and write the page."""
    rows = _scored(command)
    if rows[0]["who"] in ("", NOBODY):
        raise UsageError("--who: expected who made the entry, as the table will say it (and --how, --track), got none")
    store = ResultsStore(command.store)
    check_files(command, store)
    store.append(*rows)
    if command.html is not None:  # before anything is printed: who reads that may leave early
        write_text(command.html, to_html(*_boards(store)))
    print_board(board_of(rows))
    _tell(f"added {rows[0]['method']} to {store.path}")
    return 0


def data(command: Data) -> int:
    """Write training data and test contexts."""
    write_folder(command.folder, _chosen(command.selection), command.track, command.format)
    _tell(f"wrote {command.folder}")
    return 0


def page(command: Page) -> int:
    """Print the entries of a store and write the page."""
    if not command.store.is_file():
        raise UsageError(f"no store {command.store}; `soctk benchmark add` makes one")
    store = ResultsStore(command.store)
    check_files(command, store)
    boards, skipped = _boards(store)
    if command.html is not None:  # before anything is printed: who reads that may leave early
        write_text(command.html, to_html(boards, skipped))
    for board in boards:
        print_board(board)
    if not boards:
        _tell(f"no entries in {command.store} yet; `soctk benchmark add` scores one and adds it")
    return 0


def template(command: Template) -> int:
    """Write an entry to start from."""
    if command.file.exists():
        raise UsageError(f"{command.file} exists; name a new file")
    text = files("soctk_evaluation.benchmark").joinpath("assets/entry.py").read_text(encoding="utf-8")
    write_text(command.file, text)
    return 0


def _scored(command: Score) -> list[Row]:
    about = read_about(command.file)
    version = _chosen(command.selection, about)
    given = {name: getattr(command, name) for name in ("name", "who", "how", "track", "machine")}
    about = replace(about, **{name: text for name, text in given.items() if text is not None})
    problems = [problem.name for problem in version.problems()]
    for name in ("fit_seconds", "decide_ms"):
        stated = getattr(command, name)
        if stated is not None and not 0 <= stated < math.inf:
            raise UsageError(f"--{name.replace('_', '-')}: expected a number of at least 0, got {stated:g}")
        if stated is not None:
            about = replace(about, **{name: dict.fromkeys(problems, float(stated))})
    return _rows(command.file, replace(about, name=about.name or command.file.stem), version)


def _rows(path: Path, about: About, version: Version) -> list[Row]:
    """Score a file of decisions that were made for the data of this version."""
    problems = version.problems()
    decisions = read_decisions(path, problems)
    for problem in problems:
        judge = judge_of(problem)
        found = checked_hash(version, problem, judge.data, judge.contexts)
        if about.data.get(problem.name, found) != found:
            raise UsageError(f"{path}: {problem.name}: decisions made for other data than these; run the entry again")
    return rows_of(about, score_all(problems, decisions), version, path)


def _chosen(asked: Selection, about: About | None = None) -> Version:
    """Return the problems asked for; where nothing is asked, those that a file of decisions was made for."""
    if asked == Selection() and about is not None and about.selection:
        return from_selection(about.selection)
    return choose(asked.version or "1", asked.tasks, asked.dims, asked.seeds, asked.test_seed or 0)


def _boards(store: ResultsStore) -> tuple[list[Board], int]:
    """Return a store's boards and how many lines and entries were skipped, which are named."""
    boards, skipped = read_boards(store)
    for line in skipped:
        _tell(f"skipped {line}")
    return boards, len(skipped)


def _tell(text: str) -> None:
    print(text, file=sys.stderr)
