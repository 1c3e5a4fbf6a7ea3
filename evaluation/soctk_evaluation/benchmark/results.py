"""Scored entries in a store: a row for each problem, and the table that they make."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from soctk_evaluation.benchmark.decisions import About
from soctk_evaluation.benchmark.scoring import TRIVIAL, Scored, Summary, ratio_of, summarize
from soctk_evaluation.benchmark.versions import Version, label_of
from soctk_evaluation.harness.store import ResultsStore, Row

EXPERIMENT = "benchmark"
NUMBERS = ("regret_mean", "cost_mean", "failed", *TRIVIAL)
MAYBE = ("fit_seconds", "decide_ms")
TEXTS = ("who", "how", "label", "choice", "submission")


@dataclass(frozen=True)
class Line:
    """One line of the table: an entry, or a trivial row, which has no `who`.

    Attributes:
        name, who, how, track, machine: as in `About`.
        label: the version.
        summary: the score.
        failed: decisions scored at the centre, of `decisions`.
        decisions: how many there are.
        fit_seconds: mean over problems.
        decide_ms: likewise.
        notes: what went wrong, by problem.
    """

    name: str
    who: str
    how: str
    track: str
    machine: str
    label: str
    summary: Summary
    failed: int
    decisions: int
    fit_seconds: float | None
    decide_ms: float | None
    notes: tuple[str, ...] = ()

    @property
    def trivial(self) -> bool:
        """Whether this is a trivial row."""
        return not self.track


@dataclass(frozen=True)
class Board:
    """The entries that were scored on the same problems, and the trivial rows, the best first."""

    label: str
    cases: list[tuple[str, int]]
    seeds: list[int]
    lines: list[Line]


def rows_of(about: About, scored: Sequence[Scored], version: Version, path: Path) -> list[Row]:
    """Return the rows of an entry whose decisions are in `path`."""
    submission = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    named = sorted(one.problem.name for one in scored)
    choice = hashlib.sha256(json.dumps([version.name, version.test_seed, named]).encode()).hexdigest()[:12]
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return [_row(one, about, submission, choice, label_of(version), version, started) for one in scored]


def _row(one: Scored, about: About, submission: str, choice: str, label: str, version: Version, started: str) -> Row:
    problem = one.problem
    ended = about.ended.get(problem.name, "") if one.failed == problem.test else ""  # else there are decisions to judge
    status = ended or one.status
    key = hashlib.sha256(json.dumps([choice, about.name, about.who, about.track, problem.name]).encode()).hexdigest()
    return {
        "experiment": EXPERIMENT,
        "task": problem.task,
        "dim": problem.dim,
        "method": about.name,
        "protocol": about.track,
        "seed": problem.seed,
        "key": key[:16],
        "machine": about.machine or "not stated",
        "started": started,
        "status": status or "ok",
        "config": {"version": version.name, "test_seed": version.test_seed, "test": problem.test},
        "versions": {},
        "who": about.who,
        "how": about.how,
        "label": label,
        "choice": choice,
        "submission": submission,
        "regret_mean": one.regret,
        "cost_mean": one.cost,
        "failed": one.failed,
        "fit_seconds": about.fit_seconds.get(problem.name),
        "decide_ms": about.decide_ms.get(problem.name),
        **one.trivial,
    }


def problem_of(row: Row) -> str | None:
    """Return why a row is not one of a scored entry, or None where it is."""
    if row["experiment"] != EXPERIMENT:
        return f"field 'experiment': expected {EXPERIMENT}"
    for name, kind in (*((name, (int, float)) for name in NUMBERS), *((name, str) for name in TEXTS)):
        if not isinstance(row.get(name), kind) or isinstance(row[name], bool):
            return f"field {name!r}: missing or of another type"
    if any(not isinstance(row.get(name), int | float | None) for name in MAYBE):
        return "fields 'fit_seconds' and 'decide_ms': expected a number or null"
    if not isinstance(row["config"].get("test"), int) or not row["constant"] > 0:
        return "fields 'config.test' and 'constant': expected positive numbers"
    return None


def read_boards(store: ResultsStore) -> tuple[list[Board], list[str]]:
    """Return the boards of a store, the largest first, and what lines were skipped."""
    contents = store.read(problem_of)
    groups: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for row in contents.rows:
        groups[row["choice"], row["method"], row["who"], row["protocol"]].append(row)
    boards: dict[str, list[list[Row]]] = defaultdict(list)
    skipped = [f"line {bad.number}: {bad.reason}" for bad in contents.bad]
    for (choice, *_), rows in groups.items():
        boards[choice].append([row for row in rows if row["submission"] == rows[-1]["submission"]])
    found = []
    for entries in boards.values():
        # A problem that is missing would not count: an entry without its worst would be the better one.
        problems = set().union(*map(_problems, entries))
        whole = [entry for entry in entries if _problems(entry) == problems]
        skipped += [
            f"entry {entry[0]['method']} of {entry[0]['who']}: {len(_problems(entry))} of {len(problems)} problems"
            for entry in entries
            if entry not in whole
        ]
        if whole:
            found.append(_board(whole))
    return sorted(found, key=lambda board: -len(board.cases) * len(board.seeds)), skipped


def _problems(entry: Sequence[Row]) -> set[tuple[str, int, int]]:
    return {(row["task"], row["dim"], row["seed"]) for row in entry}


def board_of(rows: Sequence[Row]) -> Board:
    """Return the board of one entry's rows."""
    return _board([list(rows)])


def _board(entries: list[list[Row]]) -> Board:
    lines = [_line({(r["task"], r["dim"], r["seed"]): r for r in rows}) for rows in entries]
    newest = {(r["task"], r["dim"], r["seed"]): r for r in entries[-1]}
    lines += [_trivial(name, newest) for name in TRIVIAL]
    cases = list(dict.fromkeys((task, dim) for task, dim, _ in newest))
    seeds = list(dict.fromkeys(seed for _, _, seed in newest))
    return Board(entries[-1][0]["label"], cases, seeds, sorted(lines, key=lambda line: line.summary.score))


Rows = dict[tuple[str, int, int], Row]


def _line(rows: Rows) -> Line:
    first = next(iter(rows.values()))
    ratios = {case: ratio_of(row["regret_mean"], row["constant"]) for case, row in rows.items()}
    notes = [
        f"{task}-{dim}-{seed}: {row['status']}" for (task, dim, seed), row in rows.items() if row["status"] != "ok"
    ]
    return Line(
        *(first[name] for name in ("method", "who", "how", "protocol", "machine", "label")),
        summary=summarize(ratios),
        failed=sum(row["failed"] for row in rows.values()),
        decisions=sum(row["config"]["test"] for row in rows.values()),
        fit_seconds=_mean([row["fit_seconds"] for row in rows.values()]),
        decide_ms=_mean([row["decide_ms"] for row in rows.values()]),
        notes=tuple(notes),
    )


def _trivial(name: str, rows: Rows) -> Line:
    how = {
        "constant": "the mean of the training optima: the unit",
        "affine": "least squares from contexts to training optima",
        "centre": "the centre of the set, where failures are scored",
    }[name]
    summary = summarize({case: ratio_of(row[name], row["constant"]) for case, row in rows.items()})
    label = next(iter(rows.values()))["label"]
    return Line(name, "", how, "", "", label, summary, 0, 0, None, None)


def _mean(numbers: Sequence[Any]) -> float | None:
    known = [number for number in numbers if number is not None and math.isfinite(number)]
    return float(np.mean(known)) if known else None
