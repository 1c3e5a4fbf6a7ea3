"""From rows to tables: what every method reached on every task, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pandas as pd

from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.names import TRIVIAL, in_order
from soctk_evaluation.harness.store import BadLine, Contents, Row
from soctk_evaluation.tables.measures import REGRET, Measure
from soctk_tasks import TARGETS, TASKS

WHICH = ["task", "dim", "method", "seed", "protocol"]
"""What identifies a measurement in a table, whatever code it was made by."""

NUMBERS = [
    "score",
    "stderr",
    "weight",
    "count",
    "params",
    "relative_error",
    "solver_regret",
    "gap_max",
    "fit_seconds",
    "decide_ms",
]
NOT_MEASURED = ("failed", "quarantined")
EXAMPLES = 6
"""So many missing cells are named one by one."""


@dataclass(frozen=True)
class Regret:
    """Mean regret (or another score) over the instances of all seeds of one method on one task.

    Attributes:
        mean: None where there is no seed.
        stderr: standard error of the mean over instances x seeds; None where unknown.
        seeds: seeds measured.
        expected: seeds there should be.
    """

    mean: float | None = None
    stderr: float | None = None
    seeds: int = 0
    expected: int = 0

    @property
    def complete(self) -> bool:
        """Whether every seed is there."""
        return self.mean is not None and self.seeds == self.expected


@dataclass(frozen=True)
class Line:
    """One row of a table: a method, its regret on each task, and its other measurements over tasks and seeds.

    Attributes:
        method: its name.
        regrets: one for each task of the table; another score where the table's measure has one.
        mean: mean of the tasks' means; None unless every task is complete.
        numbers: "fit_seconds", "decide_ms" and "params" (medians), "relative_error" (mean), "gap_max"
            (the largest).
    """

    method: str
    regrets: list[Regret]
    mean: float | None
    numbers: dict[str, float | None]


@dataclass(frozen=True)
class Table:
    """The results of one dimension and protocol.

    Attributes:
        measure: what it shows.
        dim: decision dimension.
        protocol: how decisions were made.
        tasks: the columns.
        learned: learned methods.
        trivial: the rows that every method should be compared with.
        solver: the decision methods' own regret on the true objective, by name.
        notes: what a reader must know: test instances, missing and failed cells, mixed code versions.
    """

    measure: Measure
    dim: int
    protocol: str
    tasks: list[str]
    learned: list[Line]
    trivial: list[Line]
    solver: dict[str, list[float | None]]
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The table's heading."""
        return self.measure.title.format(dim=self.dim, protocol=self.protocol)

    def best(self, column: int | None = None) -> str | None:
        """Return the learned method with the least score on task `column`, or on the mean over tasks (None).

        Only methods with every seed take part; None where there are none.
        """
        scores: dict[str, float] = {}
        for line in self.learned:
            regret = None if column is None else line.regrets[column]
            score = line.mean if regret is None else (regret.mean if regret.complete else None)
            if score is not None:
                scores[line.method] = score
        return min(scores, key=scores.__getitem__) if scores else None


def latest_frame(rows: Iterable[Row], measure: Measure = REGRET) -> pd.DataFrame:
    """Return a measure's last row of every (task, dim, method, seed, protocol), in the order written."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["experiment"] == measure.experiment:
            which = tuple(row[name] for name in WHICH)
            found.pop(which, None)
            found[which] = row
    columns = [*WHICH, "status", "code", "decided_by", *NUMBERS]
    records = [{**row, "code": row["versions"].get("code"), **_score(row, measure)} for row in found.values()]
    frame = pd.DataFrame(records, columns=pd.Index(columns))
    frame[NUMBERS] = frame[NUMBERS].apply(pd.to_numeric, errors="coerce")
    return frame


def _score(row: Row, measure: Measure) -> dict[str, Any]:
    """Return a row's score and how to pool it; one that is no mean over instances counts once for each seed."""
    score, count = row.get(measure.score), row.get(measure.count)
    if measure.stderr is None:
        return {"score": score, "stderr": 0.0, "weight": 1, "count": count}
    return {"score": score, "stderr": row.get(measure.stderr), "weight": count, "count": count}


def build_tables(contents: Contents, expected: Sequence[Cell] = (), measure: Measure = REGRET) -> list[Table]:
    """Return one table for each dimension and protocol in a store, smallest dimension first.

    Args:
        contents: what the store holds.
        expected: the cells there should be; without them, every method is expected on every task and seed
            that any method has.
        measure: which experiment's rows, and what of them.
    """
    frame = latest_frame(contents.rows, measure)
    wanted = pd.DataFrame([{name: getattr(cell, name) for name in WHICH} for cell in expected], columns=pd.Index(WHICH))
    source = wanted if len(wanted) else frame
    groups = sorted(set(zip(source["dim"].astype(int), source["protocol"].astype(str), strict=True)))
    return [_table(measure, _part(frame, *group), _part(wanted, *group), *group, contents.bad) for group in groups]


def _part(frame: pd.DataFrame, dim: int, protocol: str) -> pd.DataFrame:
    return _where(frame, (frame["dim"] == dim) & (frame["protocol"] == protocol))


def _where(frame: pd.DataFrame, mask: Any) -> pd.DataFrame:
    """Return the rows where `mask` holds; a boolean mask always gives a frame."""
    return cast(pd.DataFrame, frame.loc[mask])


def _table(
    measure: Measure, frame: pd.DataFrame, wanted: pd.DataFrame, dim: int, protocol: str, bad: list[BadLine]
) -> Table:
    if len(wanted):
        frame = frame.merge(wanted[WHICH].drop_duplicates(), on=WHICH)
    source = wanted if len(wanted) else frame
    tasks = _in_order(source["task"])
    methods = in_order(set(source["method"]))
    seeds = sorted({int(seed) for seed in source["seed"]})
    measured = _where(frame, ~frame["status"].astype(str).str.startswith(NOT_MEASURED))
    lines = [_line(_where(measured, measured["method"] == method), method, tasks, len(seeds)) for method in methods]
    return Table(
        measure=measure,
        dim=dim,
        protocol=protocol,
        tasks=tasks,
        learned=[line for line in lines if line.method not in TRIVIAL],
        trivial=[line for line in lines if line.method in TRIVIAL],
        solver=_solver(measured, tasks),
        notes=_notes(measure, frame, measured, tasks, methods, seeds, bad),
    )


def _in_order(names: Iterable[str]) -> list[str]:
    """Return the tasks in the paper's order, others after them as they come."""
    known = (*TASKS, *TARGETS)
    return sorted(dict.fromkeys(names), key=lambda name: known.index(name) if name in known else len(known))


def _line(frame: pd.DataFrame, method: str, tasks: list[str], seeds: int) -> Line:
    regrets = [_pooled(_where(frame, frame["task"] == task), seeds) for task in tasks]
    means = [regret.mean for regret in regrets if regret.complete and regret.mean is not None]
    numbers = {name: _number(frame[name].median()) for name in ("fit_seconds", "params", "decide_ms")}
    numbers |= {
        "relative_error": _number(frame["relative_error"].mean()),
        "gap_max": _number(frame["gap_max"].max()),
    }
    return Line(method, regrets, sum(means) / len(means) if len(means) == len(tasks) else None, numbers)


def _pooled(frame: pd.DataFrame, expected: int) -> Regret:
    """Pool seeds: the mean over all instances, its standard error from the spread within and between them."""
    seeds = _where(frame, frame["score"].notna())
    if seeds.empty:
        return Regret(expected=expected)
    count = seeds["weight"].fillna(1).to_numpy(float)
    mean, stderr = seeds["score"].to_numpy(float), seeds["stderr"].to_numpy(float)
    total = float(count.sum())
    center = float(count @ mean / total)
    within = (count - 1) * count * stderr**2  # (n - 1) sd^2, with sd^2 = n stderr^2
    squares = float((within + count * (mean - center) ** 2).sum())
    spread = _number((squares / (total - 1) / total) ** 0.5) if total > 1 else None
    return Regret(center, spread, len(seeds), expected)


def _solver(frame: pd.DataFrame, tasks: list[str]) -> dict[str, list[float | None]]:
    known = _where(frame, frame["solver_regret"].notna())
    return {
        str(method): [_number(part.loc[part["task"] == task, "solver_regret"].mean()) for task in tasks]
        for method, part in known.groupby("decided_by")
    }


def _notes(
    measure: Measure,
    frame: pd.DataFrame,
    measured: pd.DataFrame,
    tasks: list[str],
    methods: list[str],
    seeds: list[int],
    bad: list[BadLine],
) -> list[str]:
    counts = " or ".join(map(str, sorted({int(count) for count in measured["count"].dropna()})))
    notes = [f"{counts} {measure.unit} a cell; {_plural(len(seeds), 'seed')}"] if counts else []
    notes += _missing(measured, tasks, methods, seeds)
    notes += _troubles(frame)
    codes = list(dict.fromkeys(str(code) for code in frame["code"].dropna()))
    if len(codes) > 1:
        notes.append(f"rows come from {len(codes)} code versions ({', '.join(codes)}): not strictly comparable")
    if bad:
        notes.append(f"{_plural(len(bad), 'damaged line')} skipped (line {bad[0].number}: {bad[0].reason})")
    return notes


def _troubles(frame: pd.DataFrame) -> list[str]:
    """Say which cells have another status than "ok", cells with the same one together."""
    found: dict[str, list[str]] = {}
    for row in frame.to_dict("records"):
        if row["status"] != "ok":
            found.setdefault(row["status"], []).append(f"{row['task']} {row['method']} seed {row['seed']}")
    return [
        f"{status}: {', '.join(cells) if len(cells) <= EXAMPLES else _plural(len(cells), 'cell')}"
        for status, cells in found.items()
    ]


def _missing(measured: pd.DataFrame, tasks: list[str], methods: list[str], seeds: list[int]) -> list[str]:
    """Say which cells are not there, by name where they are few."""
    have = set(zip(measured["task"], measured["method"], measured["seed"], strict=True))
    absent = [
        (task, method, seed)
        for method in methods
        for task in tasks
        for seed in seeds
        if (task, method, seed) not in have
    ]
    if not absent:
        return []
    total = len(tasks) * len(methods) * len(seeds)
    if len(absent) <= EXAMPLES:
        named = ", ".join(f"{task} {method} seed {seed}" for task, method, seed in absent)
    else:
        by_method = Counter(method for _, method, _ in absent)
        named = ", ".join(f"{method} {count}" for method, count in by_method.items())
    return [f"missing: {len(absent)} of {total} cells ({named})"]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _number(value: Any) -> float | None:
    """Return a finite float or None."""
    return None if pd.isna(value) or abs(value) == float("inf") else float(value)
