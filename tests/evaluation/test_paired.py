"""Comparisons over (task, seed) cells: the interval is Student's over tasks, and holds what it should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from soctk_evaluation.tables.paired import LEVEL, compare, ratio_of

FLOOR = 1e-6


def scores(logs: np.ndarray) -> dict[tuple[str, int], float]:
    """Return scores of exp(log) by task and seed."""
    return {(f"task{t}", s): math.exp(value) for t, row in enumerate(logs) for s, value in enumerate(row)}


def test_the_interval_is_students_over_the_tasks_means() -> None:
    logs = np.random.default_rng(0).normal(0.3, 1.0, (6, 3))
    found = ratio_of(scores(logs), scores(np.zeros((6, 3))), FLOOR)
    means = logs.mean(axis=1)
    low, high = stats.t.interval(LEVEL, len(means) - 1, means.mean(), stats.sem(means))
    assert found is not None
    assert np.log([found.mean, found.low, found.high]) == pytest.approx([means.mean(), low, high], rel=1e-9)
    assert (found.cells, found.tasks, found.wins) == (18, 6, (logs < 0).sum())


def test_it_holds_the_truth_as_often_as_it_says_where_cells_of_a_task_resemble_each_other() -> None:
    generator, held = np.random.default_rng(1), 0
    for _ in range(400):
        logs = generator.normal(0.0, 1.0, (6, 1)) + generator.normal(0.0, 0.3, (6, 3))
        found = ratio_of(scores(logs), scores(np.zeros((6, 3))), FLOOR)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low < 1.0 < found.high
    assert abs(held / 400 - LEVEL) < 3 * (LEVEL * (1 - LEVEL) / 400) ** 0.5


def test_one_task_has_an_interval_over_seeds_and_one_cell_none() -> None:
    logs = np.array([[0.1, 0.4, 0.9]])
    found = ratio_of(scores(logs), scores(np.zeros((1, 3))), FLOOR)
    assert found is not None
    assert math.log(found.high or 0.0) == pytest.approx(stats.t.interval(LEVEL, 2, logs.mean(), stats.sem(logs[0]))[1])
    alone = ratio_of(scores(logs[:, :1]), scores(np.zeros((1, 3))), FLOOR)
    assert alone is not None
    assert (alone.low, alone.high, alone.cells) == (None, None, 1)
    assert alone.text == "1.11"


def test_tasks_count_alike_however_many_seeds_they_have() -> None:
    uneven = {("a", 0): 4.0, ("b", 0): 1.0, ("b", 1): 1.0, ("b", 2): 1.0}
    found = ratio_of(uneven, dict.fromkeys(uneven, 1.0), FLOOR)
    assert found is not None
    assert found.mean == pytest.approx(2.0)


def test_scores_below_the_floor_are_equal() -> None:
    found = ratio_of({("a", 0): -1e-9, ("b", 0): 1e-12}, {("a", 0): 1e-7, ("b", 0): 1e-9}, FLOOR)
    assert found is not None
    assert (found.mean, found.wins) == (1.0, 0)


def test_a_method_with_few_cells_leaves_the_others_their_wins() -> None:
    cells = [("a", 0), ("b", 0), ("c", 0)]
    scores = {"soc": dict.fromkeys(cells, 1.0), "norm": dict.fromkeys(cells, 2.0), "lpcf": {("a", 0): 0.5}}
    found = compare(scores, "soc", FLOOR)
    assert [(one.method, one.wins, one.shared) for one in found] == [("soc", 2, 3), ("norm", 0, 3), ("lpcf", 1, 3)]


def test_wins_are_counted_where_most_have_a_score() -> None:
    both = {("a", 0): 1.0, ("b", 0): 2.0}
    one, other = compare({"soc": both | {("c", 0): 9.0}, "norm": {("a", 0): 3.0, ("b", 0): 0.5}}, "soc", FLOOR)
    assert (one.wins, other.wins, one.shared, one.cells, one.median) == (1, 1, 2, 3, 2.0)
    assert other.ratio is not None
    assert (other.ratio.cells, other.ratio.wins) == (2, 1)
    assert ratio_of({("a", 0): 1.0}, {("b", 0): 1.0}, FLOOR) is None
