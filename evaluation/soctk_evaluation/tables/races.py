"""What the pages of races share: which rows are one race, which batch sizes are shown, and how good answers were."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.page import Page


def write_races(
    results: Results,
    files: Files,
    page: Page,
    tables: Callable[[list[Row]], str],
    figure: Callable[[list[Row], Path], None],
) -> None:
    """Show the tables, and write the page and the picture asked for.

    Args:
        results: of the experiment.
        files: asked for.
        page: what stands beside the tables.
        tables: returns them in Markdown.
        figure: draws rows to a file.
    """
    rows = results.measured
    text = tables(rows)
    print(text)
    page.write(results, files, text)
    if "figure" in files:
        figure(rows, files["figure"])


def races_of(rows: Iterable[Row]) -> dict[tuple[int, str, str], list[Row]]:
    """Return the rows by dimension, model and set, in the order in which they first come."""
    races: dict[tuple[int, str, str], list[Row]] = {}
    for row in rows:
        races.setdefault((row["dim"], row["config"]["model"], row["task"]), []).append(row)
    return races


def at_their_best(race: Sequence[Row], methods: Sequence[str]) -> list[Row]:
    """Return the rows of a race; of these methods only those for one context and at the best batch size, at the end."""
    shown = [row for row in race if row["method"] not in methods]
    for name in methods:
        rows = [row for row in race if row["method"] == name]
        best = min(rows, key=lambda row: row["decide_ms"], default=None)
        shown += [row for row in rows if row["config"]["batch"] == 1 or row is best]
    return shown


def largest_gap(row: Row) -> str:
    """Return the largest gap in words; stores keep none where it is infinite, as that of a point outside may be."""
    return "inf" if row["gap_max"] is None else f"{row['gap_max']:.1e}"


def share_certified(rows: Iterable[Row]) -> str:
    """Return the least share of answers of a certified gap, rounded down: 100% is all of them."""
    return f"{math.floor(1000 * min(row['certified'] for row in rows)) / 10:.4g}%"
