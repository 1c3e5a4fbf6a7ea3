"""The page of sample efficiency: regret by how much data there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.names import in_order
from soctk_evaluation.harness.store import Row, last_by
from soctk_evaluation.tables.leaderboard import REGRET
from soctk_evaluation.tables.markdown import escape, head, line
from soctk_evaluation.tables.page import Page
from soctk_evaluation.tables.summary import WHICH
from soctk_tasks import TASKS

Varied = Literal["candidates", "train"]
VARIED: dict[Varied, str] = {"candidates": "candidates of an instance", "train": "instances"}
"""What is varied, and its heading."""

TRIVIAL = "quadratic"
ONE_SEED = "One seed: a factor of ten may be chance, of small regrets a hundred."
PAGE = Page(
    "How much data",
    "soctk samples --dims {dims} --seeds {seeds} --tasks {names}",
    """
Mean regret by the number of observed values: first of candidates of each of {train} instances, then of instances with
{candidates} candidates each. Validation data are as many; test instances and decisions are the leaderboard's, and so is
the recipe, as it was in the versions named below. A log of decisions has one candidate for each instance: what a
decision changes can then only be told by comparing different contexts. The row `quadratic` is the least-squares
quadratic, learned in closed form.
""",
    "Mean regret by candidates and by instances, a column for each task",
    own="""
A small error does not make good decisions where optima are far from the candidates. On `simplex_logistic` with four of
them and seed 0 SOC's error within held-out contexts is a fortieth of the quadratic's (3.7e-6 and 1.4e-4 of the
variance), and its regret 80 times as large: the largest coordinate is .29 in the mean of candidates and .62 in that of
optima, where the branches that fit the candidates are off. It is one fit: seed 1 has 6.3e-4 there, seed 2 7.8e-6, and
seed 0 with five candidates had 2.7e-5 (tried, not stored).
""",
)

Curves = dict[str, dict[int, float]]
"""Regrets by method and size."""


def write_samples(results: Results, files: Files) -> None:
    """Show the tables, and write the page and the picture asked for."""
    rows = list(last_by(results.measured, _which).values())
    tasks = _by_task(rows)
    text = "\n".join(_sections(tasks))
    print(text or "no rows of sample efficiency yet")
    if rows:
        fields = {
            "dims": " ".join(map(str, sorted({row["dim"] for row in rows}))),
            "seeds": " ".join(map(str, sorted({row["seed"] for row in rows}))),
            "names": " ".join(escape(task) for task in dict.fromkeys(row["task"] for row in rows)),
        }
        PAGE.write(results, files, text, fields | {name: escape(most(rows, name)) for name in VARIED}, rows)
    if "figure" in files and rows:
        from soctk_evaluation.tables.figures import samples_figure

        panels = {heading: {of: curves(own, name) for of, own in tasks.items()} for name, heading in VARIED.items()}
        samples_figure(panels, files["figure"])


def _which(row: Row) -> tuple[object, ...]:
    """Return what a row is of, whatever code and recipe measured it."""
    return *(row[name] for name in WHICH), *(row["config"][name] for name in VARIED)


def _by_task(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return rows by task and dimension, tasks in the leaderboard's order."""
    found: dict[str, list[Row]] = {}
    order = {task: place for place, task in enumerate(TASKS)}
    for row in sorted(rows, key=lambda row: (order.get(row["task"], len(order)), row["task"], row["dim"])):
        found.setdefault(f"{row['task']} at d = {row['dim']}", []).append(row)
    return found


def _sections(tasks: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Return the tables: of all tasks where there are several, and of each."""
    if len(tasks) > 1:
        rows = [row for own in tasks.values() for row in own]
        yield from (f"## All {len(tasks)} tasks", "", "Geometric means of the regrets below.", "")
        yield from (table(curves(rows, varied), varied) for varied in VARIED)
    for task, own in tasks.items():
        seeds = len({row["seed"] for row in own})
        yield from (f"## {escape(task)}", "", ONE_SEED if seeds == 1 else f"{seeds} seeds.", "")
        yield from (table(curves(own, varied), varied) for varied in VARIED)


def most(rows: Sequence[Row], name: Varied) -> int:
    """Return the largest number of candidates or instances."""
    return max(row["config"][name] for row in rows)


def curves(rows: Sequence[Row], varied: Varied) -> Curves:
    """Return the geometric mean over tasks of the mean regret over seeds, by how many there are of `varied`.

    Where a task or a seed is missing that others have, there is no mean. Regrets below the decisions' tolerance count
    as that beside other tasks'.
    """
    other: Varied = "train" if varied == "candidates" else "candidates"
    own = [row for row in rows if row["config"][other] == most(rows, other) and row["regret_mean"] is not None]
    wanted = {(row["task"], row["dim"], row["seed"]) for row in own}
    found: dict[str, dict[int, dict[tuple[str, int, int], float]]] = {}
    for row in own:
        sizes = found.setdefault(row["method"], {}).setdefault(row["config"][varied], {})
        sizes[row["task"], row["dim"], row["seed"]] = row["regret_mean"]
    return {
        method: {size: _mean(regrets) for size, regrets in sorted(found[method].items()) if regrets.keys() == wanted}
        for method in in_order(set(found))
    }


def _mean(regrets: Mapping[tuple[str, int, int], float]) -> float:
    """Return the mean of one task's regrets, or of several tasks' the geometric mean of their means."""
    tasks: dict[tuple[str, int], list[float]] = {}
    for (task, dim, _), regret in regrets.items():
        tasks.setdefault((task, dim), []).append(regret)
    means = {of: float(np.mean(seeds)) for of, seeds in tasks.items()}
    if len(means) == 1:
        return next(iter(means.values()))
    return float(np.exp(np.mean([np.log(max(mean, REGRET.floor_of(task))) for (task, _), mean in means.items()])))


def table(found: Curves, varied: Varied) -> str:
    """Return the table of the regrets of every method by how many there are of `varied`, and who is beaten."""
    sizes = sorted({size for curve in found.values() for size in curve})
    lines = [f"### By {VARIED[varied]}", "", *head(["method", *map(str, sizes)])]
    for method, curve in found.items():
        lines.append(line(method, *(f"{curve[size]:.2e}" if size in curve else "missing" for size in sizes)))
    return "\n".join([*lines, *_beaten(found), ""])


def _beaten(found: Curves) -> list[str]:
    """Say where learned methods are above the least-squares quadratic, or no lower."""
    least = found.get(TRIVIAL, {})
    lost = {
        method: [str(size) for size, regret in curve.items() if size in least and regret >= least[size]]
        for method, curve in found.items()
        if method != TRIVIAL
    }
    named = [f"{method} at {', '.join(sizes)}" for method, sizes in lost.items() if sizes]
    return ["", f"- no better than {TRIVIAL}: {'; '.join(named)}"] if named else []
