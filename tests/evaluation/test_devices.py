"""`soctk devices`: what it stores without a GPU, that it resumes, and that its numbers belong to the methods named."""

from __future__ import annotations

import json

import pytest
import torch

from soctk_evaluation.cli import main
from soctk_evaluation.experiments.devices import METHODS, DeviceRace
from soctk_evaluation.experiments.moreau import MoreauBatch
from soctk_evaluation.experiments.timing import make_race
from soctk_evaluation.tables.devices import LABELS


def test_a_race_is_stored_once_and_shown(tmp_path, capsys):
    store, table, figure = (tmp_path / f"devices.{kind}" for kind in ("jsonl", "md", "svg"))
    args = ["devices", "--models", "compact", "--dims", "3", "--batches", "1", "4", "--store", str(store)]
    assert main([*args, "--markdown", str(table), "--figure", str(figure)]) == 0
    rows = [json.loads(line) for line in store.read_text().splitlines()]
    assert [(row["method"], row["config"]["batch"]) for row in rows] == [(m, b) for m in METHODS for b in (1, 4)]
    for row in rows:
        if row["decide_ms"] is None:
            assert row["status"].startswith("not installed")
            assert "gpu" in row["method"] or row["method"] == "moreau"
        else:
            assert row["decide_ms"] > 0
            assert row["certified"] in (None, 1.0)
            assert LABELS[row["method"]] in table.read_text()
    assert {"processor", "processor_threads", "processor_layer"} <= {row["method"] for row in rows if row["decide_ms"]}
    assert "<svg" in figure.read_text()
    capsys.readouterr()
    assert main(args) == 0
    assert len(store.read_text().splitlines()) == len(rows)


def test_copies_of_programs_are_solved_alike():
    pytest.importorskip("moreau")
    race = DeviceRace("compact", "box", 3, "cpu")
    form = race.model.conic_form(race.contexts(2)).detach()
    once, thrice = (MoreauBatch(form, [race.sets] * 2, 1e-8, copies=copies) for copies in (1, 3))
    x, repeated = once.points(once.solve()), thrice.points(thrice.solve())
    assert repeated.shape == (6, 3)
    torch.testing.assert_close(repeated, x.repeat(3, 1), rtol=0, atol=1e-6)


def test_contexts_are_those_of_the_other_timings_whatever_the_batch():
    race = DeviceRace("compact", "box", 3, "cpu")
    assert torch.equal(race.contexts(50)[:7], race.contexts(7))
    assert torch.equal(race.contexts(7), make_race("compact", "box", 3).contexts(7))
    with pytest.raises(ValueError, match="batch: expected at most"):
        race.contexts(2**16 + 1)


def test_moreau_solves_at_least_the_batch(monkeypatch):
    pytest.importorskip("moreau")
    monkeypatch.setattr("soctk_evaluation.experiments.devices.DISTINCT", 4)
    race, seen = DeviceRace("compact", "box", 3, "cpu"), []
    best = race.best
    monkeypatch.setattr(race, "best", lambda run: seen.append(len(run().x)) or best(run))
    measured = race.moreau_on(10, "cpu")
    assert seen == [12]
    assert measured.instances == 4
    assert measured.certified == 1.0
