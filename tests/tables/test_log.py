"""Logs: columns by any name, rows with missing values counted and named, contexts' rows together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import soctk
from soctk import Columns, Roles, TableError

ROLES = Roles(context=["Last [MW]", "Region"], x=["u, 1", "u, 2"], value="Kosten in €")


@pytest.fixture
def frame() -> pd.DataFrame:
    """Twenty contexts with three decisions each."""
    random = np.random.default_rng(0)
    contexts = pd.DataFrame({"Last [MW]": random.normal(size=20), "Region": ["Nord", "Süd"] * 10})
    table = contexts.loc[contexts.index.repeat(3)].reset_index(drop=True)
    table[["u, 1", "u, 2"]] = random.normal(size=(60, 2))
    return table.assign(**{"Kosten in €": np.arange(60.0)})


def test_columns_go_by_the_names_that_they_have(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "log.csv", index=False)
    log = soctk.read_log(tmp_path / "log.csv", ROLES)
    assert (log.data.instances, log.data.candidates, log.data.dim, log.data.context_dim) == (20, 3, 2, 3)
    assert log.columns == Columns.learned(frame, context=ROLES.context, x=ROLES.x, value=ROLES.value)
    rows = log.data.value.long()
    assert torch.equal(log.data.x, torch.from_numpy(frame[["u, 1", "u, 2"]].to_numpy())[rows])
    assert torch.equal(log.data.context, torch.from_numpy(log.columns.contexts(frame))[rows[:, 0]])
    assert torch.equal(rows[:, 0], log.rows)


def test_a_models_columns_are_applied_to_another_log(frame: pd.DataFrame) -> None:
    columns = soctk.read_log(frame, ROLES).columns
    north = soctk.read_log(frame[frame["Region"] == "Nord"], columns)
    assert north.columns is columns
    assert north.data.context.shape == (10, 3)
    with pytest.raises(TableError, match="row 1: expected a category that the model knows, Nord, Süd, got 'Ost'"):
        soctk.read_log(frame.assign(Region="Ost"), columns)


@pytest.mark.parametrize("blank", ["", "  ", "\t"])
def test_a_cell_of_blanks_is_no_category(blank: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"site": random.choice(["Nord", "West"], 60), "x": random.normal(size=60)}, dtype=object)
    frame["value"], frame.loc[5, "site"] = frame["x"], blank
    frame.to_csv(tmp_path / "log.csv", index=False)
    for source, category in ((tmp_path / "log.csv", ()), (frame, ()), (frame, ("site",))):
        read = soctk.read_log(source, soctk.Roles(["site"], ["x"], category=category), drop_missing=True)
        assert read.missing.counts == {"site": 1}
        assert read.columns.labels == ("site=Nord", "site=West")


def test_rows_with_missing_values_are_left_out_where_asked(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.loc[[3, 40], "Last [MW]"] = np.nan
    frame.loc[[7, 40], "Kosten in €"] = np.nan
    frame.loc[9, "Region"] = None
    frame.assign(note="").to_csv(tmp_path / "log.csv", index=False)
    said = (
        "4 of 60 rows have missing values (Last [MW] 2, Region 1, Kosten in € 2); the first: row 4 (Last [MW]), "
        "row 8 (Kosten in €), row 10 (Region), row 41 (Last [MW], Kosten in €)"
    )
    for source in (frame, tmp_path / "log.csv"):
        with pytest.raises(TableError) as caught:
            soctk.read_log(source, ROLES)
        assert said in str(caught.value)
        assert "--drop-missing" in str(caught.value)
        log = soctk.read_log(source, ROLES, drop_missing=True)
        assert str(log.missing) == said
        assert set(log.data.value.flatten().tolist()) == set(range(60)) - {3, 7, 9, 40}
        kept = soctk.read_log(frame.drop(index=[3, 7, 9, 40]), ROLES)
        assert torch.equal(log.data.value, kept.data.value)
        assert log.source.rows[log.rows[-1]] > log.rows[-1]  # rows keep the numbers that they have in the file
    with pytest.raises(TableError, match="at least one row, got none: 60 of 60 rows have missing values"):
        soctk.read_log(frame.assign(**{"u, 1": np.nan}), ROLES, drop_missing=True)


def test_only_columns_that_may_matter_are_read(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.assign(x_0=1.0, x_1=2.0, context_0=3.0, value=4.0).to_csv(tmp_path / "log.csv", index=False)
    assert list(soctk.read_log(tmp_path / "log.csv", ROLES).source.frame) == list(frame)
    assert list(soctk.read_log(tmp_path / "log.csv").source.frame) == ["x_0", "x_1", "context_0", "value"]
    frame.to_csv(tmp_path / "semicolons.csv", index=False, sep=";")
    with pytest.raises(TableError, match="expected fields that are separated by commas"):
        soctk.read_log(tmp_path / "semicolons.csv", ROLES)


def test_optima_have_names_of_their_own(frame: pd.DataFrame) -> None:
    best = frame.assign(b2=frame["u, 2"] + 1, b1=frame["u, 1"] + 1)
    log = soctk.read_log(best, Roles(ROLES.context, ROLES.x, ROLES.value, optimum=["b1", "b2"]))
    assert torch.equal(log.optima, log.data.x[:, 0] + 1)
    with pytest.raises(TableError, match="optimum: expected 2 columns as the decision, got 1"):
        soctk.read_log(best, Roles(ROLES.context, ROLES.x, ROLES.value, optimum=["b1"]))


def test_arrays_have_no_columns_to_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", context=np.ones((4, 1)), x=np.ones((4, 2, 3)), value=np.ones((4, 2)))
    assert soctk.read_log(tmp_path / "log.npz").columns == Columns.numbered(3, 1)
    with pytest.raises(TableError, match="has arrays context, x and value"):
        soctk.read_log(tmp_path / "log.npz", ROLES)
    with pytest.raises(TableError, match="expected 3 decision and 2 context numbers as the columns', got 3 and 1"):
        soctk.read_log(tmp_path / "log.npz", Columns.numbered(3, 2))


def test_rows_of_a_context_that_differ_in_what_stands_beside_it_are_instances_of_their_own(tmp_path: Path) -> None:
    """Two demands in one context: neither set nor optimum of one may be taken for the other's."""
    frame = pd.DataFrame({"context_0": [1.0] * 4 + [2.0] * 4, "demand": [1, 1, 3, 3] * 2, "x_0": range(8)})
    frame = frame.assign(value=frame["x_0"] ** 2.0)
    assert soctk.read_log(frame).data.x.shape == (2, 4, 1)
    sides = soctk.read_log(frame, more=("demand",))
    assert sides.data.x.shape == (4, 2, 1)
    assert sides.contexts.tolist() == [0, 0, 1, 1]
    assert frame["demand"][sides.rows.numpy()].tolist() == [1, 3, 1, 3]
    arrays = {"context": frame[["context_0"]], "x": frame[["x_0"]], "value": frame["value"], "demand": frame["demand"]}
    np.savez(tmp_path / "log.npz", **{name: part.to_numpy(dtype=float) for name, part in arrays.items()})
    for same in (
        soctk.read_log(tmp_path / "log.npz", more=("demand",)),
        soctk.read_log(tmp_path / "log.npz", Roles(more=("demand",))),
    ):
        assert torch.equal(same.data.x, sides.data.x)
        assert same.rows.tolist() == sides.rows.tolist()
    known = soctk.read_log(frame.assign(optimum_0=frame["demand"] / 2))
    assert known.optima is not None
    assert known.optima[:, 0].tolist() == [0.5, 1.5, 0.5, 1.5]


@pytest.mark.parametrize("name", ["context", "x", "optimum", "category", "more"])
def test_a_name_is_no_list_of_columns(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected a sequence, got 'Last'"):
        Roles(**{name: "Last"})


@pytest.mark.parametrize("days", [60, 200])
def test_a_date_that_says_it_is_missing_is_a_gap_in_short_logs_too(days: int) -> None:
    """Up to 100 different dates might be categories, of which "NA" is one."""
    dates = pd.date_range("2024-01-01", periods=days).strftime("%Y-%m-%d").to_series(index=range(days))
    dates[7] = "NA"
    frame = pd.DataFrame({"context_day": dates, "x_0": np.linspace(0, 1, days), "value": np.linspace(1, 2, days)})
    assert soctk.read_log(frame, drop_missing=True).missing.counts == {"context_day": 1}


def test_frames_of_others_are_told_the_way() -> None:
    class DataFrame:
        def to_pandas(self) -> None: ...

    with pytest.raises(TableError, match=r"a data frame of pandas, got .*DataFrame; take its to_pandas\(\)"):
        soctk.read_log(DataFrame(), Roles(context=["a"], x=["b"], value="c"))
