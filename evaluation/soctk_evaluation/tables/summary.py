"""From rows to tables: what every method reached on every task, and what is missing."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.names import TRIVIAL, in_order
from soctk_evaluation.harness.store import BadLine, Contents, Row, is_measured, last_by
from soctk_evaluation.tables.markdown import code_notes
from soctk_evaluation.tables.paired import Comparison, cell_scores, compare
from soctk_tasks import TARGETS, TASKS

WHICH = ("task", "dim", "method", "seed", "protocol")
Which = tuple[str, int, str, int, str]
"""What identifies a measurement in a table, whatever code it was made by."""

Grid = tuple[list[str], list[str], list[int]]
"""Methods, tasks and seeds."""

EXAMPLES = 6
"""So many missing cells are named one by one."""


def last_rows(rows: Iterable[Row]) -> dict[Which, Row]:
    """Return the last row of every measurement: what a table shows."""
    return last_by(rows, lambda row: tuple(row[name] for name in WHICH))


@dataclass(frozen=True)
class Measure:
    """What an experiment's tables show.

    Attributes:
        experiment: whose rows.
        score: the measurement by which methods are compared, one column for each task.
        title: of a table; "{suite}", "{dim}" and "{protocol}" stand for its own.
        unit: what was measured on, for the notes.
        columns: the measurements after the tasks, with their headings; "mean" is the mean score.
        stderr: the score's standard error within a seed, where it is a mean over instances.
        count: the number of instances (or points) it was measured on.
        floor: smaller scores count as this where methods are compared: what measuring them leaves.
        reference: the method that the others' ratios are to.
        suites: tasks with a table of their own, since a mean over them and others would say nothing, by its words in
            the title; all other tasks are together in one, before them.
        floors: of suites whose scores are of another size, by the suite's words.
    """

    experiment: str
    score: str
    title: str
    unit: str
    columns: Mapping[str, str]
    count: str
    stderr: str | None = None
    floor: float = 1e-9
    reference: str = "soc"
    suites: Mapping[str, Collection[str]] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)

    def suite_of(self, task: str) -> str:
        """Return the words for a task's suite, "" for that of most."""
        return next((words for words, tasks in self.suites.items() if task in tasks), "")

    def floor_of(self, task: str) -> float:
        """Return the floor of a task's suite."""
        return self.floors.get(self.suite_of(task), self.floor)


@dataclass(frozen=True)
class Regret:
    """Mean regret (or another score) of one method on one task: over a seed's instances, then over seeds.

    `mean` is None where there is no seed, `stderr` where it is unknown: over the instances where one seed is expected,
    between the seeds' means where several are; `expected` is the number of seeds there should be; `by_seed` has each
    seed's own.
    """

    mean: float | None = None
    stderr: float | None = None
    expected: int = 0
    by_seed: dict[int, float] = field(default_factory=dict)

    @property
    def seeds(self) -> int:
        """How many seeds are there."""
        return len(self.by_seed)

    @property
    def complete(self) -> bool:
        """Whether every seed is there."""
        return self.mean is not None and self.seeds == self.expected


@dataclass(frozen=True)
class Line:
    """One row of a table: a method, its regret (or another score) on each task, and its other measurements.

    `mean` is that of the tasks' means, None unless every task is complete; `numbers` are pooled over tasks and seeds:
    medians of "fit_seconds", "decide_ms" and "params", the mean "relative_error", the largest "gap_max". `each` has
    those of each task, pooled over its seeds.
    """

    method: str
    regrets: list[Regret]
    mean: float | None
    numbers: dict[str, float | None]
    each: list[dict[str, float | None]]


@dataclass(frozen=True)
class Table:
    """The results of one suite of tasks, dimension and protocol; its columns are tasks.

    The trivial rows are those that every method should be compared with, `solver` is the decision methods' own regret
    on the true objective, `notes` what a reader must know: test instances, what the errors are, missing cells, code
    versions; `paired` are the learned methods compared over (task, seed) cells, where there are several.
    """

    measure: Measure
    dim: int
    protocol: str
    tasks: list[str]
    learned: list[Line]
    trivial: list[Line]
    solver: dict[str, list[float | None]]
    notes: list[str] = field(default_factory=list)
    paired: list[Comparison] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The table's heading."""
        suite = self.measure.suite_of(self.tasks[0])
        return self.measure.title.format(suite=suite, dim=self.dim, protocol=self.protocol)

    @property
    def floor(self) -> float:
        """The score below which methods are not told apart."""
        return self.measure.floor_of(self.tasks[0])

    def best(self, column: int | None = None) -> frozenset[str]:
        """Return the learned methods with the least score on task `column`, or on the mean over tasks (None).

        Several where they are below the floor, none of a single method. Only methods with every seed take part.
        """
        scores: dict[str, float] = {}
        for line in self.learned:
            regret = None if column is None else line.regrets[column]
            score = line.mean if regret is None else (regret.mean if regret.complete else None)
            if score is not None:
                scores[line.method] = max(score, self.floor)
        least = min(scores.values(), default=0.0)
        return frozenset(name for name, score in scores.items() if score == least and len(self.learned) > 1)


def build_tables(contents: Contents, measure: Measure, expected: Sequence[Cell] = ()) -> list[Table]:
    """Return one table for each suite, dimension and protocol in a store, smallest dimension first.

    Args:
        contents: what the store holds; the last row of every measurement counts.
        measure: which experiment's rows, and what of them.
        expected: the cells there should be; without them, every method is expected on every task and seed
            that any method has.
    """
    own = [row for row in contents.rows if row["experiment"] == measure.experiment]
    found: dict[Which, Row] = last_rows(own)
    wanted: list[Which] = [attrgetter(*WHICH)(cell) for cell in expected] or list(found)
    tables = []
    order = ["", *measure.suites]

    def place(which: Which) -> tuple[int, int, str]:
        return order.index(measure.suite_of(which[0])), which[1], which[4]

    for where in sorted({place(which) for which in wanted}):
        part = {which: None for which in wanted if place(which) == where}
        rows = [row for which, row in found.items() if which in part]
        tables.append(_table(measure, rows, list(part), contents.bad))
    return tables


def _table(measure: Measure, rows: list[Row], wanted: list[Which], bad: list[BadLine]) -> Table:
    tasks = _in_order(which[0] for which in wanted)
    methods = in_order({which[2] for which in wanted})
    seeds = sorted({which[3] for which in wanted})
    measured = [row for row in rows if is_measured(row)]
    lines = [
        _line(measure, [row for row in measured if row["method"] == method], method, tasks, len(seeds))
        for method in methods
    ]
    learned = [row for row in measured if row["method"] not in TRIVIAL]
    floor = measure.floor_of(tasks[0])
    scores = cell_scores(sorted(learned, key=lambda row: methods.index(row["method"])), measure.score)
    return Table(
        measure=measure,
        dim=wanted[0][1],
        protocol=wanted[0][4],
        tasks=tasks,
        learned=[line for line in lines if line.method not in TRIVIAL],
        trivial=[line for line in lines if line.method in TRIVIAL],
        solver=_solver(measured, tasks),
        notes=[*_beaten(lines, tasks, floor), *_notes(measure, rows, (methods, tasks, seeds), bad)],
        paired=compare(scores, measure.reference, floor) if len(scores) > 1 else [],
    )


def _in_order(names: Iterable[str]) -> list[str]:
    """Return the tasks in the paper's order, others after them as they come."""
    known = (*TASKS, *TARGETS)
    return sorted(dict.fromkeys(names), key=lambda name: known.index(name) if name in known else len(known))


def _line(measure: Measure, rows: list[Row], method: str, tasks: list[str], seeds: int) -> Line:
    by_task = [[row for row in rows if row["task"] == task] for task in tasks]
    regrets = [_pooled(measure, own, seeds) for own in by_task]
    means = [regret.mean for regret in regrets if regret.complete and regret.mean is not None]
    mean = sum(means) / len(means) if len(means) == len(tasks) else None
    return Line(method, regrets, mean, _numbers(rows), list(map(_numbers, by_task)))


def _numbers(rows: list[Row]) -> dict[str, float | None]:
    numbers = {name: _pool(rows, name, np.median) for name in ("fit_seconds", "params", "decide_ms")}
    numbers |= {"relative_error": _pool(rows, "relative_error", np.mean), "gap_max": _pool(rows, "gap_max", np.max)}
    if numbers["gap_max"] is not None and any(row.get("gap_max") is None for row in rows):
        numbers["gap_max"] = float("inf")  # an infinite one is stored as null
    return numbers


def _pool(rows: list[Row], name: str, pool: Callable[..., Any]) -> float | None:
    """Return a measurement pooled over the rows that have it, None where none has."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return float(pool(values)) if values else None


def _pooled(measure: Measure, rows: list[Row], expected: int) -> Regret:
    """Pool seeds: the mean of their means, its standard error from the spread between them.

    Instances of a seed share the task's constants and one fit, so they are no independent measurements of a method:
    over them a standard error is taken only where one seed is all there should be.
    """
    seeds = [row for row in rows if row[measure.score] is not None]
    if not seeds:
        return Regret(expected=expected)
    means = np.array([row[measure.score] for row in seeds], float)
    stderr = None
    if len(seeds) > 1:
        stderr = float(means.std(ddof=1) / len(seeds) ** 0.5)
    elif expected == 1 and measure.stderr is not None:
        stderr = seeds[0][measure.stderr]
    by_seed = {row["seed"]: float(mean) for row, mean in zip(seeds, means, strict=True)}
    return Regret(float(means.mean()), stderr, expected, by_seed)


def _solver(rows: list[Row], tasks: list[str]) -> dict[str, list[float | None]]:
    known = [row for row in rows if row.get("solver_regret") is not None and row.get("decided_by") is not None]
    found = {}
    for method in sorted({row["decided_by"] for row in known}):
        own = [row for row in known if row["decided_by"] == method]
        found[method] = [_pool([row for row in own if row["task"] == task], "solver_regret", np.mean) for task in tasks]
    return found


def _notes(measure: Measure, rows: list[Row], grid: Grid, bad: list[BadLine]) -> list[str]:
    measured = [row for row in rows if is_measured(row)]
    counts = sorted({int(row[measure.count]) for row in measured if row.get(measure.count) is not None})
    notes = []
    if counts:
        notes.append(f"{' or '.join(map(str, counts))} {measure.unit} a cell; {_plural(len(grid[2]), 'seed')}")
    if len(grid[2]) > 1:
        notes.append("± is the standard error of the mean over seeds, from the spread between the seeds' own means")
    elif measure.stderr is not None:
        notes.append(f"± is the standard error over the {measure.unit} of the one seed, not over seeds")
    ended = Counter(str(row["fit_status"]).replace("_", " ") for row in measured if row.get("fit_status") is not None)
    if ended:
        notes.append(f"fits: {', '.join(f'{count} {status}' for status, count in sorted(ended.items()))}")
    notes += _missing(measured, grid)
    notes += _troubles(rows)
    notes += code_notes(measured)
    if bad:
        notes.append(f"{_plural(len(bad), 'damaged line')} skipped (line {bad[0].number}: {bad[0].reason})")
    return notes


def _beaten(lines: list[Line], tasks: list[str], floor: float) -> list[str]:
    """Name the learned methods that a trivial row is below, and where; the floor is below nothing."""
    found = []
    for trivial in (line for line in lines if line.method in TRIVIAL and line.method != "oracle"):
        lost = {line.method: _where_below(trivial, line, tasks, floor) for line in lines if line.method not in TRIVIAL}
        named = [f"{method} on {', '.join(places)}" for method, places in lost.items() if places]
        if named:
            found.append(f"lose to {trivial.method}: {'; '.join(named)}")
    return found


def _where_below(line: Line, other: Line, tasks: list[str], floor: float) -> list[str]:
    """Return the tasks on which a method's score is below another's, over the seeds of both, and "the mean"."""
    found = []
    for task, own, theirs in zip(tasks, line.regrets, other.regrets, strict=True):
        both = sorted(own.by_seed.keys() & theirs.by_seed.keys())
        a, b = (math.fsum(regret.by_seed[seed] for seed in both) for regret in (own, theirs))
        if max(a, floor * len(both)) < b:
            partly = "" if own.complete and theirs.complete else f" ({_plural(len(both), 'seed')})"
            found.append(f"{task}{partly}")
    whole = len(tasks) > 1 and line.mean is not None and other.mean is not None
    return [*found, "the mean"] if whole and max(line.mean, floor) < other.mean else found


def _troubles(rows: list[Row]) -> list[str]:
    """Say which cells have another status than "ok", cells with the same one together."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["status"] != "ok":
            found.setdefault(row["status"], []).append(f"{row['task']} {row['method']} seed {row['seed']}")
    return [
        f"{status}: {', '.join(cells) if len(cells) <= EXAMPLES else _plural(len(cells), 'cell')}"
        for status, cells in found.items()
    ]


def _missing(measured: list[Row], grid: Grid) -> list[str]:
    """Say which cells are not there, by name where they are few."""
    have = {(row["method"], row["task"], row["seed"]) for row in measured}
    absent = [which for which in itertools.product(*grid) if which not in have]
    if not absent:
        return []
    if len(absent) <= EXAMPLES:
        named = ", ".join(f"{task} {method} seed {seed}" for method, task, seed in absent)
    else:
        named = ", ".join(f"{method} {count}" for method, count in Counter(which[0] for which in absent).items())
    return [f"missing: {len(absent)} of {math.prod(map(len, grid))} cells ({named})"]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
