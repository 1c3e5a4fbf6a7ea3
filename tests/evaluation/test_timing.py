"""`soctk timing`: what it stores, that it resumes, and that its numbers belong to the methods named."""

from __future__ import annotations

import json

import pytest
import torch

import soctk
from soctk_evaluation.cli import main
from soctk_evaluation.experiments.timing import OTHERS, make_race
from soctk_evaluation.tables.timing import LABELS
from soctk_tasks import make_task


def test_a_race_is_stored_once_and_shown(tmp_path, capsys):
    store, table, figure = tmp_path / "timing.jsonl", tmp_path / "timing.md", tmp_path / "timing.svg"
    args = ["timing", "--models", "compact", "--dims", "3", "--batches", "1", "4", "--count", "2"]
    args += ["--store", str(store)]
    assert main([*args, "--markdown", str(table), "--figure", str(figure)]) == 0
    rows = [json.loads(line) for line in store.read_text().splitlines()]
    assert [(row["method"], row["config"]["batch"]) for row in rows] == [
        *(("prepared", 1), ("prepared_warm", 1), ("newton", 1), ("newton", 4), ("newton_warm", 1), ("newton_warm", 4)),
        *(("layer", 1), ("layer", 4)),
        *OTHERS,
    ]
    assert all(row["decide_ms"] > 0 for row in rows if row["method"] != "moreau")
    assert all(row["decide_ms"] or "not installed" in row["status"] for row in rows)
    assert {row["instances"] for row in rows if row["decide_ms"] and row["config"]["batch"] == 1} == {2}
    exact = {row["method"]: row["certified"] for row in rows if row["certified"] is not None}
    assert exact["newton"] == exact["cvxpy_clarabel"] == exact["clarabel"] == exact["cvxpylayers"] == 1.0
    methods = {row["method"] for row in rows if row["decide_ms"]}
    assert all(LABELS[method] in table.read_text() for method in methods)
    assert "<svg" in figure.read_text()
    capsys.readouterr()
    assert main(args) == 0
    assert len(store.read_text().splitlines()) == len(rows)
    assert "[1/1]" not in capsys.readouterr().err
    again = tmp_path / "again" / table.name
    written = ["--markdown", str(again), "--figure", str(again.with_name(figure.name))]
    assert main(["report", str(store), *written]) == 0
    assert again.read_text() == table.read_text()


@pytest.mark.parametrize(("flag", "value"), [("--dims", "0"), ("--batches", "0"), ("--count", "0")])
def test_sizes_below_one_are_refused(flag, value, capsys):
    assert main(["timing", flag, value]) == 2
    assert f"{flag}: expected" in capsys.readouterr().err


def test_every_method_decides_the_same():
    race = make_race("wide", "simplex", 4, repeats=1)
    assert race.newton(3).certified == race.prepared(3).certified == 1.0
    assert race.newton(3).limit_ms > 0
    for measured in (race.cvxpy("CLARABEL", 2), race.direct("CLARABEL", 2), race.cvxpylayers(2, backward=False)):
        assert measured.gap_max < 1e-5
        assert measured.instances == 2
    assert race.direct("SCS", 2).gap_max < 1e-1


def test_a_warm_start_saves_iterations_and_decides_the_same():
    race = make_race("compact", "box", 4, repeats=1)
    pairs = [(race.newton(8), race.newton(8, warm=True)), (race.prepared(1), race.prepared(1, warm=True))]
    for cold, warm in pairs:
        assert warm.certified == cold.certified == 1.0
        assert warm.iterations < cold.iterations
    assert race.direct("SCS", 2, warm=True).gap_max < 1e-1


def test_a_trained_model_is_decided_over_its_tasks_set():
    race = make_race("trained", "budget", 3, repeats=1)
    task = make_task("budget_twocone_socp", dim=3, seed=0)
    assert torch.equal(race.sets.project(torch.ones(3)), task.feasible_set.project(torch.ones(3)))
    assert race.newton(4).certified == race.cvxpy("CLARABEL", 2).certified == 1.0
    contexts = race.contexts(50)
    chosen = soctk.minimize(race.model, race.sets, contexts).x
    regret = task.objective(chosen, contexts) - task.solve(contexts).value
    center = task.objective(task.feasible_set.center().expand(50, -1), contexts) - task.solve(contexts).value
    assert regret.mean() < 0.1 * center.mean()  # it has learned
