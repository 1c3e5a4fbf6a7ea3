"""What the tables of each experiment show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """What an experiment's tables show.

    Attributes:
        experiment: whose rows.
        score: the measurement by which methods are compared, one column for each task.
        title: of a table; "{dim}" and "{protocol}" stand for its own.
        unit: what was measured on, for the notes.
        columns: the measurements after the tasks, with their headings; "mean" is the mean score.
        stderr: the score's standard error within a seed, where it is a mean over instances.
        count: the number of instances (or points) it was measured on.
    """

    experiment: str
    score: str
    title: str
    unit: str
    columns: Mapping[str, str]
    count: str
    stderr: str | None = None


REGRET = Measure(
    "leaderboard",
    "regret_mean",
    "Mean regret, d = {dim}, protocol {protocol}",
    "test instances",
    {
        "mean": "mean of tasks",
        "relative_error": "relative error",
        "params": "params",
        "fit_seconds": "fit s",
        "decide_ms": "decide ms",
        "gap_max": "gap max",
    },
    count="regret_n",
    stderr="regret_stderr",
)
ERROR = Measure(
    "approximation",
    "relative_error",
    "Relative l2 test error, d = {dim}",
    "test points",
    {"mean": "mean of targets", "params": "params", "fit_seconds": "fit s"},
    count="test_points",
)
