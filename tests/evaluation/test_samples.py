"""Sample efficiency: one size is varied at a time, and a mean is over the same cells for every method."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import support

import soctk
from soctk_evaluation.cli import main
from soctk_evaluation.cli.commands import Samples
from soctk_evaluation.experiments import leaderboard, recipes, samples
from soctk_evaluation.harness.store import ResultsStore
from soctk_evaluation.tables.samples import curves, table


def test_one_size_is_varied_at_a_time_and_the_largest_is_the_leaderboards() -> None:
    sizes = samples.data_sizes()
    most = leaderboard.SIZES["train"], leaderboard.SIZES["candidates"]
    assert len(sizes) == len(set(sizes))
    assert sizes.count(most) == 1
    assert all(most[0] == instances or most[1] == candidates for instances, candidates in sizes)
    assert {candidates for _, candidates in sizes} == set(samples.CANDIDATES)
    assert {instances for instances, _ in sizes} == set(samples.INSTANCES)


def test_a_mean_is_over_the_same_cells_for_every_method() -> None:
    def row(method: str, task: str, candidates: int, regret: float | None) -> dict:
        config = {"train": 100, "candidates": candidates}
        return support.row(method=method, task=task, config=config, regret_mean=regret)

    rows = [row("soc", task, size, size / 10) for task in ("a", "b") for size in (1, 8)]
    rows += [row("dcp", "a", 8, 3.0), row("dcp", "b", 8, 5.0), row("dcp", "a", 1, 9.0), row("dcp", "b", 1, None)]
    found = curves(rows, "candidates")
    assert found["soc"] == pytest.approx({1: 0.1, 8: 0.8})
    assert found["dcp"] == pytest.approx({8: 15**0.5}), "one of two tasks is no mean of both"


def test_tasks_count_alike_whatever_their_seeds_and_regrets() -> None:
    """Of task "a" three seeds whose mean is 4, of task "b" one that is below the decisions' tolerance of 1e-6."""
    config = {"train": 100, "candidates": 8}
    regrets = {("a", 0): 1.0, ("a", 1): 4.0, ("a", 2): 7.0, ("b", 0): 1e-12}
    rows = [
        support.row(method="soc", task=task, seed=seed, config=config, regret_mean=regret)
        for (task, seed), regret in regrets.items()
    ]
    assert curves(rows, "train")["soc"] == pytest.approx({100: (4.0 * 1e-6) ** 0.5})
    assert curves(rows[3:], "train")["soc"] == {100: 1e-12}


def test_methods_no_better_than_a_least_squares_quadratic_are_named() -> None:
    numbers = {"quadratic": {1: 0.2, 8: 0.2}, "soc": {1: 0.3, 8: 0.1}, "dcp": {1: 0.2, 8: 0.2}, "pcf": {1: 0.1, 8: 0.1}}
    text = table({method: dict(curve) for method, curve in numbers.items()}, "candidates")
    assert "- no better than quadratic: soc at 1; dcp at 1, 8\n" in text


def test_a_setting_changes_the_recipe_as_in_the_leaderboard() -> None:
    asked = Samples(methods=("pcf", "pcf+average", "soc+optima"), tasks=("box_socp",), dims=(3,), seeds=(0,))
    cells = {
        cell.method: dict(cell.config) for cell in samples.sample_cells(asked) if dict(cell.config)["train"] == 500
    }
    assert "fit.members" not in cells["pcf"]
    assert cells["pcf+average"] == cells["pcf"] | {"fit.members": 6}
    known = dict(leaderboard.config_of("soc+optima", "box_socp", 10))
    assert cells["soc+optima"] == known | {"train": 500, "validation": 500}


def test_every_task_has_its_tables_and_all_of_them_one(tmp_path: Path) -> None:
    store, page = tmp_path / "samples.jsonl", tmp_path / "page.md"
    for task, seeds in (("budget_huber", (0,)), ("box_socp", (0, 1))):
        for seed, size in itertools.product(seeds, (1, 8)):
            config = {"train": 100, "candidates": size}
            row = support.row(experiment="samples", method="soc", task=task, seed=seed, config=config, regret_mean=0.1)
            ResultsStore(store).append(row)
    assert main(["report", str(store), "--markdown", str(page)]) == 0
    text = page.read_text()
    parts = [line for line in text.splitlines() if line.startswith("## ")]
    assert parts == ["## All 2 tasks", "## box_socp at d = 10", "## budget_huber at d = 10"]
    assert text.count("| method | 1 | 8 |") == text.count("| soc | 1.00e-01 | 1.00e-01 |") == 3
    assert "2 seeds." in text
    assert "One seed: a factor of ten may be chance" in text


def test_the_command_measures_every_size_and_writes_page_and_picture(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(samples, "SIZES", {"train": 12, "validation": 12, "test": 4, "candidates": 4})
    monkeypatch.setattr(samples, "CANDIDATES", (2, 4))
    monkeypatch.setattr(samples, "INSTANCES", (6, 12))
    monkeypatch.setattr(recipes, "RECIPE", soctk.FitConfig(epochs=1, lbfgs_iterations=2, newton_iterations=1))
    store, page, picture = tmp_path / "rows.jsonl", tmp_path / "page.md", tmp_path / "page.svg"
    asked = ["samples", "--quick", "--tasks", "box_socp", "--dims", "3", "--methods", "soc", "quadratic"]
    written = ["--store", str(store), "--markdown", str(page), "--figure", str(picture)]
    assert main([*asked, "--jobs", "1", *written]) == 0
    rows = ResultsStore(store).read().rows
    sizes = {(row["config"]["train"], row["config"]["validation"], row["config"]["candidates"]) for row in rows}
    assert sizes == {(12, 12, 2), (12, 12, 4), (6, 6, 4)}
    assert len(rows) == 6
    assert all(row["status"] == "ok" for row in rows)
    text = page.read_text()
    assert "| method | 2 | 4 |" in text
    assert "| method | 6 | 12 |" in text
    assert "missing" not in text
    assert picture.stat().st_size > 0
