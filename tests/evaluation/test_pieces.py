"""`soctk decide` in pieces: the plan is that of all at once, interruptions cost a piece, no two jobs' pieces mix."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import soctk
from soctk import Columns
from soctk.tables.features import Category, Number
from soctk_evaluation.cli import main, pieces
from soctk_evaluation.cli.planner import Planner

ROWS, AT_ONCE = 50, 8
SET = ["--set", "box", "--lower", "-1"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a model of a number and a category, and contexts as .csv and .parquet."""
    monkeypatch.chdir(tmp_path)
    columns = Columns((Number("load, MW"), Category("site", ("a", "b"))), ("u 1", "u 2"), "cost")
    for name, seed in (("model.st", 0), ("other.st", 1)):
        soctk.save(soctk.SOCICNN(2, 3, hidden=(), quadratics=(2,), seed=seed).double(), name, notes=columns.notes())
    random = np.random.default_rng(0)
    days = pd.DataFrame(
        {"day": np.arange(ROWS), "load, MW": random.normal(size=ROWS), "total": random.uniform(0.1, 0.9, ROWS)}
    )
    days["site"] = random.choice(["a", "b"], ROWS)
    days.to_csv("days.csv", index=False)
    days.to_parquet("days.parquet")


def folders() -> list[Path]:
    """Return what is kept of interrupted plans."""
    return list(Path().glob(".*.pieces"))


def decide(
    *more: str, output: str = "plan.csv", code: int = 0, model: str = "model.st", days: str = "days.csv"
) -> None:
    given = [*SET, *more] if "--set" not in more else list(more)
    assert main(["decide", model, days, "--output", output, "--rows-at-once", str(AT_ONCE), *given]) == code


class Stop:
    """Interrupts a planner at a piece."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.left, self.decide = at, Planner.decide
        monkeypatch.setattr(Planner, "decide", lambda planner, source: self(planner, source))

    def __call__(self, planner: Planner, source: object) -> object:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self.decide(planner, source)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_plan_in_pieces_is_that_of_all_at_once(suffix: str, capsys) -> None:
    options = [*SET[:1], "budget", "--lower", "-1", "--total-column", "total", "--prices", "--keep", "day", "site"]
    decide(*options, days=f"days.{suffix}", output=f"plan.{suffix}")
    assert f"{ROWS} of {ROWS} decisions certified" in capsys.readouterr().out
    decide(*options, "--rows-at-once", "1000", days=f"days.{suffix}", output=f"whole.{suffix}")
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    plan, whole = read(f"plan.{suffix}"), read(f"whole.{suffix}")
    pd.testing.assert_frame_equal(plan, whole, rtol=1e-9, atol=1e-9)
    assert list(plan)[:4] == ["day", "site", "u 1", "u 2"]
    assert plan["day"].tolist() == list(range(ROWS))
    assert not any(path.name.startswith(".") for path in Path().iterdir())


def test_an_interrupted_plan_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    decide(output="whole.csv")
    with monkeypatch.context() as patch:
        Stop(patch, 3)
        decide(code=130)
    assert "interrupted: 3 of 7 pieces are decided; the same command goes on from there" in capsys.readouterr().err
    assert not Path("plan.csv").exists()
    (kept,) = folders()
    assert len(list(kept.glob("parts/*.csv"))) == 3
    (kept / "parts/000001.csv").write_text("cut off")
    with monkeypatch.context() as patch:
        stop = Stop(patch, 7)
        decide()
        assert stop.left == 7 - 5  # the four that were missing and the one that is not as it was written
    said = capsys.readouterr()
    assert "going on: 2 of 7 pieces were decided before" in said.err
    assert f"{ROWS} of {ROWS} decisions certified" in said.out
    assert Path("plan.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert not folders()


OTHERS = {
    "model": {"model": "other.st"},
    "contexts": {"days": "moved.csv"},
    "set": {"more": ["--upper", "0.5"]},
    "set's file": {"more": ["--set", "box.json"]},
    "tolerance": {"more": ["--tol", "1e-8"]},
    "size of pieces": {"more": ["--rows-at-once", "9"]},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_job_takes_nothing_from_an_interrupted_one(name: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    days = pd.read_csv("days.csv")
    days.assign(**{"load, MW": days["load, MW"] + 1e-3}).to_csv("moved.csv", index=False)
    first = ["--set", "box.json"] if name == "set's file" else []
    Path("box.json").write_text(json.dumps({"lower": -1.0, "upper": 1.0}))
    with monkeypatch.context() as patch:
        Stop(patch, 3)
        decide(*first, code=130)
    Path("box.json").write_text(json.dumps({"lower": -1.0, "upper": 0.3}))
    other = dict(OTHERS[name])
    more = other.pop("more", [])
    decide(*more, **other)
    assert "of other files or options: starting anew" in capsys.readouterr().err
    assert not folders()
    decide(*more, output="whole.csv", **other)
    assert Path("plan.csv").read_bytes() == Path("whole.csv").read_bytes()


def test_nothing_is_decided_before_every_row_has_been_read(capsys) -> None:
    days = pd.read_csv("days.csv")
    days.loc[47, "site"] = "c"
    days.to_csv("days.csv", index=False)
    decide(code=2)
    said = "soctk: days.csv: column site, row 48: expected a category that the model knows, a, b, got 'c'\n"
    assert capsys.readouterr().err == said
    assert not folders()
    days.drop(columns="load, MW").to_csv("days.csv", index=False)
    decide(code=2)
    assert 'days.csv: no column "load, MW"; the columns are day, total, site' in capsys.readouterr().err
    decide("--keep", "gap", code=2)
    assert "a plan has one column gap: expected another name" in capsys.readouterr().err


def test_pieces_that_cannot_be_written_leave_what_is_there(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    Path("plan.csv").write_text("an earlier plan\n")

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(pieces, "_join_bytes", full)
        decide(code=1)
    assert Path("plan.csv").read_text() == "an earlier plan\n"
    decide()
    assert "going on: 7 of 7 pieces" in capsys.readouterr().err
    assert len(pd.read_csv("plan.csv")) == ROWS


@pytest.mark.parametrize("more", [[], ["--tol", "1e-8"]], ids=["the same job", "another job"])
def test_while_a_plan_is_written_another_command_may_not_write_it(
    more: list[str], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    decide(output="whole.csv")
    planned, calls = Planner.decide, []

    def meanwhile(planner: Planner, source: object) -> object:
        calls.append(source)
        if len(calls) == 4:
            decide(*more, code=1)
            assert "plan.csv: another command is writing it" in capsys.readouterr().err
        return planned(planner, source)

    monkeypatch.setattr(Planner, "decide", meanwhile)
    decide()
    assert len(calls) == 7
    assert not folders()
    assert Path("plan.csv").read_bytes() == Path("whole.csv").read_bytes()


def test_pieces_of_other_code_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    told = pieces.job_key({"set": "box"}, ["a"])
    assert told == pieces.job_key({"set": "box"}, ["a"])
    monkeypatch.setattr(pieces, "code_in_use", lambda: "0.2.0 (another)")
    assert told != pieces.job_key({"set": "box"}, ["a"])


@pytest.mark.parametrize("at_once", [AT_ONCE, ROWS])
def test_a_number_at_which_the_model_has_no_value_is_named_before_anything_is_decided(at_once: int, capsys) -> None:
    days = pd.read_csv("days.csv")
    days.loc[ROWS - 1, "load, MW"] = 1.7e308
    days.to_csv("far.csv", index=False)
    model = soctk.load("model.st")
    model.set_standardization(context=(np.zeros(3), np.array([0.01, 1.0, 1.0])))
    soctk.save(model, "far.st", notes=Columns.of_model("model.st", model).notes())
    decide("--rows-at-once", str(at_once), model="far.st", days="far.csv", code=2)
    assert f'column "load, MW", row {ROWS}: expected a number at which the model has a value' in capsys.readouterr().err
    assert not folders()
    assert not Path("plan.csv").exists()
