"""`soctk polyhedra`: what it stores, that it resumes, and that its numbers belong to the methods named."""

from __future__ import annotations

import json

import pytest

import soctk
from soctk_evaluation.cli import main
from soctk_evaluation.experiments import polyhedra, race


def test_a_race_is_stored_once_and_shown(tmp_path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "MEASURED_FOR", 0.0)
    store, table, figure = (tmp_path / f"polyhedra.{kind}" for kind in ("jsonl", "md", "svg"))
    args = ["polyhedra", "--models", "soc", "--sets", "dispatch", "--store", str(store)]
    assert main([*args, "--markdown", str(table), "--figure", str(figure)]) == 0
    assert "<svg" in figure.read_text()
    rows = [json.loads(line) for line in store.read_text().splitlines()]
    own = [row for row in rows if row["method"] in ("newton", "prepared")]
    assert [(row["method"], row["config"]["batch"]) for row in own] == list(polyhedra.OWN)
    measured = [row for row in rows if row["decide_ms"] is not None]
    assert {row["method"] for row in measured} >= {"newton", "prepared", "cvxpy_clarabel"}
    for row in measured:
        assert row["decide_ms"] > 0
        assert row["violation_max"] < 1e-6
        assert row["certified"] == 1.0 or row["method"].startswith("moreau")
    assert "CVXPY re-solve, Clarabel" in table.read_text()
    capsys.readouterr()
    assert main(args) == 0
    assert len(store.read_text().splitlines()) == len(rows)
    again = tmp_path / "again" / table.name
    written = ["--markdown", str(again), "--figure", str(again.with_name(figure.name))]
    assert main(["report", str(store), *written]) == 0
    assert again.read_text() == table.read_text()


def test_points_of_rivals_are_judged_by_our_certificate() -> None:
    racing = polyhedra.make_race("soc", "dispatch")
    middle = racing.judged(racing.sets.center().expand(3, -1)[:3])
    best = racing.judged(soctk.minimize(racing.model, racing.sets_of(3), racing.contexts(3)).x)
    assert best.gap_max <= 1e-6 < max(middle.gap_max, middle.violation_max)
