"""The page of sample efficiency: regret by how much data there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.names import in_order
from soctk_evaluation.harness.store import Row, last_by
from soctk_evaluation.tables.markdown import escape, head, line
from soctk_evaluation.tables.page import Page
from soctk_evaluation.tables.summary import WHICH

Varied = Literal["candidates", "train"]
VARIED: dict[Varied, str] = {"candidates": "candidates of an instance", "train": "instances"}
"""What is varied, and its heading."""

TRIVIAL = "quadratic"
ONE_SEED = "one seed: a factor of ten may be chance, of small regrets a hundred"
PAGE = Page(
    "How much data",
    "soctk samples --dims {dims} --seeds {seeds} --tasks {names}",
    """
Mean regret on {tasks} at d = {dim} ({count}) by the number of observed values: first of candidates of each of {train}
instances, then of instances with {candidates} candidates each. Validation data are as many; test instances and
decisions are the leaderboard's, and so is the recipe, as it was in the version named below. A log of decisions
has one candidate for each instance: what a decision changes can then only be told by comparing different contexts. The
row `quadratic` is the least-squares quadratic, learned in closed form.
""",
    "Mean regret by candidates and by instances",
)


def write_samples(results: Results, files: Files) -> None:
    """Show the tables, and write the page and the picture asked for."""
    rows = list(last_by(results.measured, _which).values())
    text = "\n".join(table(curves(rows, varied), varied) for varied in VARIED) if rows else ""
    print(text or "no rows of sample efficiency yet")
    if rows:
        seeds = sorted({row["seed"] for row in rows})
        tasks, dims = dict.fromkeys(row["task"] for row in rows), sorted({row["dim"] for row in rows})
        fields = {
            "tasks": ", ".join(f"`{escape(task)}`" for task in tasks),
            "dim": " and ".join(map(str, dims)),
            "count": ONE_SEED if len(seeds) == 1 else f"{len(seeds)} seeds",
            "dims": " ".join(map(str, dims)),
            "seeds": " ".join(map(str, seeds)),
            "names": " ".join(escape(task) for task in tasks),
        }
        PAGE.write(results, files, text, fields | {name: escape(most(rows, name)) for name in VARIED}, rows)
    if "figure" in files and rows:
        from soctk_evaluation.tables.figures import samples_figure

        panels = {heading: curves(rows, varied) for varied, heading in VARIED.items()}
        samples_figure(panels, files["figure"])


def _which(row: Row) -> tuple[object, ...]:
    """Return what a row is of, whatever code and recipe measured it."""
    return *(row[name] for name in WHICH), *(row["config"][name] for name in VARIED)


def most(rows: Sequence[Row], name: Varied) -> int:
    """Return the largest number of candidates or instances."""
    return max(row["config"][name] for row in rows)


def curves(rows: Sequence[Row], varied: Varied) -> dict[str, dict[int, float]]:
    """Return the mean regret of every method over tasks and seeds by how many there are of `varied`.

    Where a task or a seed is missing that others have, there is no mean.
    """
    other: Varied = "train" if varied == "candidates" else "candidates"
    own = [row for row in rows if row["config"][other] == most(rows, other) and row["regret_mean"] is not None]
    wanted = {(row["task"], row["dim"], row["seed"]) for row in own}
    found: dict[str, dict[int, dict[tuple[str, int, int], float]]] = {}
    for row in own:
        sizes = found.setdefault(row["method"], {}).setdefault(row["config"][varied], {})
        sizes[row["task"], row["dim"], row["seed"]] = row["regret_mean"]
    return {
        method: {
            size: float(np.mean(list(means.values())))
            for size, means in sorted(found[method].items())
            if means.keys() == wanted
        }
        for method in in_order(set(found))
    }


def table(found: dict[str, dict[int, float]], varied: Varied) -> str:
    """Return the table of the regrets of every method by how many there are of `varied`, and who is beaten."""
    sizes = sorted({size for curve in found.values() for size in curve})
    lines = [f"## By {VARIED[varied]}", "", *head(["method", *map(str, sizes)])]
    for method, curve in found.items():
        lines.append(line(method, *(f"{curve[size]:.2e}" if size in curve else "missing" for size in sizes)))
    return "\n".join([*lines, *_beaten(found), ""])


def _beaten(found: dict[str, dict[int, float]]) -> list[str]:
    """Say where learned methods are above the least-squares quadratic, or no lower."""
    least = found.get(TRIVIAL, {})
    lost = {
        method: [str(size) for size, regret in curve.items() if size in least and regret >= least[size]]
        for method, curve in found.items()
        if method != TRIVIAL
    }
    named = [f"{method} at {', '.join(sizes)}" for method, sizes in lost.items() if sizes]
    return ["", f"- no better than {TRIVIAL}: {'; '.join(named)}"] if named else []
