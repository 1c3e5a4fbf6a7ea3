"""Folders of Parquet files and rows in the middle of one: the same decisions as from one file, in the same order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyarrow", reason="needs the extra `parquet`")

import soctk
from soctk import Columns
from soctk.tables.errors import TableError
from soctk.tables.features import Number
from soctk.tables.table import read_rows
from soctk_evaluation.cli import main
from soctk_evaluation.cli.pieces import Pieces
from soctk_evaluation.cli.plan import Tally
from soctk_evaluation.cli.slices import Slice, files_of, slices_of

ROWS = 60


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a model and contexts, in one file and in a folder of three."""
    monkeypatch.chdir(tmp_path)
    model = soctk.SOCICNN(2, 1, hidden=(), quadratics=(2,), seed=0).double()
    soctk.save(model, "model.st", notes=Columns((Number("load"),), ("u 1", "u 2"), "cost").notes())
    days = pd.DataFrame({"id": np.arange(ROWS), "load": np.random.default_rng(0).normal(size=ROWS)})
    days.to_parquet("days.parquet")
    Path("days/more").mkdir(parents=True)
    for name, part in zip(("more/2", "more/9", "more/10"), (days[:25], days[25:30], days[30:]), strict=True):
        part.to_parquet(f"days/{name}.parquet")
    Path("days/more/_SUCCESS.parquet").touch()
    days[:0].to_parquet("days/more/11.parquet")


def decide(days: str, output: str, *more: str, code: int = 0) -> None:
    given = ["--set", "box", "--keep", "id", "--rows-at-once", "10", "--output", output, *more]
    assert main(["decide", "model.st", days, *given]) == code


@pytest.mark.parametrize("rows_of_a_group", [7, 1000])
def test_rows_in_the_middle_of_a_file_are_those_rows(rows_of_a_group: int) -> None:
    days = pd.read_parquet("days.parquet")
    days.to_parquet("groups.parquet", row_group_size=rows_of_a_group)
    for start in (0, 6, 7, 20):
        for stop in (start + 1, start + 15, ROWS):
            table = read_rows(Path("groups.parquet"), start, stop)
            pd.testing.assert_frame_equal(table.frame, days[start:stop].reset_index(drop=True))
            assert table.rows.tolist() == list(range(start, stop))
    with pytest.raises(TableError, match=r"expected at least 61 rows, got 60: the file has changed"):
        read_rows(Path("groups.parquet"), 50, 61)


def test_slices_hold_every_row_once_in_the_order_of_the_names() -> None:
    assert [path.name for path in files_of(Path("days"))] == ["2.parquet", "9.parquet", "10.parquet", "11.parquet"]
    slices = slices_of(Path("days"), 10)
    assert max(one.stop - one.start for one in slices) == 10
    ids = np.concatenate([one.read(lambda name: True).frame["id"] for one in slices])
    assert ids.tolist() == list(range(ROWS))
    assert str(slices[1]) == "rows 11 to 20 of days/more/2.parquet"
    assert slices[1] == Slice(Path("days/more/2.parquet"), 10, 20)


def test_a_folder_of_parts_is_the_plan_of_one_file(capsys) -> None:
    decide("days.parquet", "whole.parquet")
    decide("days", "plan")
    assert "60 of 60 decisions certified" in capsys.readouterr().out
    assert sorted(path.name for path in Path("plan").iterdir()) == [f"part-{k:06d}.parquet" for k in range(7)]
    whole = pd.read_parquet("whole.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet("plan"), whole, rtol=1e-9, atol=1e-9)
    decide("days", "joined.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet("joined.parquet"), pd.read_parquet("plan"))
    assert not any(path.name.startswith(".") for path in Path().iterdir())


@pytest.mark.parametrize("output", ["plan", "plan.parquet"])
def test_kept_columns_have_types_that_all_parts_fit_in(output: str) -> None:
    part = pd.read_parquet("days/more/10.parquet")
    part["id"] = part["id"].astype(float).where(part["id"] != 59)
    part.to_parquet("days/more/10.parquet")
    decide("days", output)
    ids = pd.read_parquet(output)["id"]
    assert ids[:59].tolist() == list(range(59))
    assert np.isnan(ids[59])


def test_parts_that_are_missing_or_short_are_noticed() -> None:
    def filled() -> Pieces:
        pieces = Pieces(Path("plan"), "0" * 64, (2, 3))
        with pieces.held():
            for number, rows in enumerate(pieces.lengths):
                pieces.put(number, {"x": np.arange(rows)}, Tally(rows, rows))
        return pieces

    pieces = filled()
    with pytest.raises(ValueError, match="piece 2: expected 3 decisions, got 2"):
        pieces.put(1, {"x": np.arange(2)}, Tally(2, 2))
    (first, second) = sorted((pieces.folder / "parts").iterdir())
    second.unlink()
    with pytest.raises(FileNotFoundError, match="not written, as piece 2 of 2 is missing"):
        pieces.join()
    pieces = filled()
    first.write_bytes(second.read_bytes())
    (pieces.folder / "notes/000000.json").write_bytes((pieces.folder / "notes/000001.json").read_bytes())
    with pytest.raises(OSError, match=r"part-000000\.parquet has 3 rows, not 2: remove that file"):
        pieces.join()
    assert not Path("plan").exists()


WRONG = {
    "no files": (("empty", "plan"), "empty: expected a folder with .parquet files, found none"),
    "no rows": (("none", "plan"), "none: expected at least one context, got none"),
    "a folder that is there": (("days", "empty"), "--output: expected the name of a new folder"),
    "inside of the contexts": (("days", "days/plan"), "--output: expected a place outside of the contexts' folder"),
    "arrays": (("days", "plan.npz"), "--output: a folder goes with .csv, .parquet alone, got days and plan.npz"),
    "another ending": (("days", "plan.txt"), "or a folder's name without one, got plan.txt"),
    "a cluster for .csv": (("days.csv", "plan", "--scheduler", "tcp://a:1"), "--scheduler: expected contexts in a .p"),
    "a time limit": (("days", "plan", "--scheduler", "tcp://a:1", "--time-limit", "9"), "--time-limit: not with"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_go_together_is_one_line(name: str, capsys) -> None:
    for made in ("empty", "none"):
        Path(made).mkdir()
    Path("none/0.parquet").write_bytes(Path("days/more/11.parquet").read_bytes())
    pd.read_parquet("days.parquet").to_csv("days.csv")
    given, message = WRONG[name]
    decide(*given, code=2)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(Path().glob(".*"))
