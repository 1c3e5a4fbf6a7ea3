"""Paired comparisons of methods over (task, seed) cells: wins, medians, and ratios with an interval.

Cells of one task resemble each other, so they are not independent measurements. The log ratio of two scores is first
averaged over the seeds of a task; the interval is Student's over the tasks' means, or over seeds where there is one
task. It holds the mean over such tasks, of which a small number is measured, so it is wide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from soctk_evaluation.harness.store import Row

LEVEL = 0.95
"""Of the intervals."""
INTERVAL = f"{LEVEL:.0%} (Student's), over tasks, each the mean of its seeds, or over seeds where there is one task"
"""The intervals in words."""

CellScores = dict[tuple[str, int], float]
"""Scores by (task, seed)."""


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of the ratios of one method's scores to another's.

    Attributes:
        mean: of all tasks alike.
        low: where the interval begins; None where one task and one seed tell no spread.
        high: where it ends.
        cells: (task, seed) cells that both methods have.
        tasks: the tasks among them.
        wins: cells in which the method's score is the smaller one.
    """

    mean: float
    low: float | None
    high: float | None
    cells: int
    tasks: int
    wins: int

    @property
    def text(self) -> str:
        """The ratio and its interval in words."""
        between = "" if self.low is None or self.high is None else f" ({_rounded(self.low)} to {_rounded(self.high)})"
        return f"{self.mean:.2f}{between}" if 0.1 <= self.mean < 100 else f"{_rounded(self.mean)}{between}"


@dataclass(frozen=True)
class Comparison:
    """A method among all others, and beside the reference.

    Attributes:
        method: its name.
        cells: (task, seed) cells that it has.
        wins: cells of `shared` that it has in which no learned method has a smaller score.
        shared: how many cells most learned methods have; one that lacks some leaves the others their wins.
        median: of its scores over cells.
        ratio: to the reference's scores, None for the reference itself and where no cell has both.
    """

    method: str
    cells: int
    wins: int
    shared: int
    median: float
    ratio: Ratio | None


def cell_scores(rows: Iterable[Row], score: str) -> dict[str, CellScores]:
    """Return the scores of measured rows by method and (task, seed)."""
    found: dict[str, CellScores] = {}
    for row in rows:
        if row[score] is not None:
            found.setdefault(row["method"], {})[row["task"], row["seed"]] = float(row[score])
    return found


def ratio_of(scores: CellScores, reference: CellScores, floor: float) -> Ratio | None:
    """Return how scores compare with the reference's; None where no cell has both.

    Args:
        scores: by (task, seed).
        reference: the same of the method below the line.
        floor: scores below it count as it: what measuring them leaves.
    """
    shared = [cell for cell in scores if cell in reference]
    if not shared:
        return None
    by_task: dict[str, list[float]] = {}
    for cell in shared:
        by_task.setdefault(cell[0], []).append(np.log(max(scores[cell], floor) / max(reference[cell], floor)))
    wins = sum(max(scores[cell], floor) < max(reference[cell], floor) for cell in shared)
    means = [float(np.mean(logs)) for logs in by_task.values()]
    center = float(np.mean(means))
    units = np.array(means if len(means) > 1 else next(iter(by_task.values())))
    low = high = None
    if len(units) > 1:
        half = stdtrit(len(units) - 1, (1 + LEVEL) / 2) * units.std(ddof=1) / len(units) ** 0.5
        low, high = float(np.exp(center - half)), float(np.exp(center + half))
    return Ratio(float(np.exp(center)), low, high, len(shared), len(by_task), wins)


def compare(scores: Mapping[str, CellScores], reference: str, floor: float) -> list[Comparison]:
    """Return a comparison of every method; none where there are not several (task, seed) cells."""
    if len({cell for own in scores.values() for cell in own}) < 2:
        return []
    counts = Counter(cell for own in scores.values() for cell in own)
    shared = [cell for cell, count in counts.items() if 2 * count > len(scores)]
    least = {cell: min(max(own[cell], floor) for own in scores.values() if cell in own) for cell in shared}
    beside = scores.get(reference, {})
    return [
        Comparison(
            method,
            len(own),
            sum(cell in own and max(own[cell], floor) <= least[cell] for cell in shared),
            len(shared),
            float(np.median(list(own.values()))),
            None if method == reference else ratio_of(own, beside, floor),
        )
        for method, own in scores.items()
    ]


def _rounded(ratio: float) -> str:
    """Return a ratio with two digits, whole from a hundred on: no powers of ten for numbers that people compare."""
    return f"{ratio:,.0f}" if 100 <= ratio < 1e6 else f"{ratio:.2g}"
