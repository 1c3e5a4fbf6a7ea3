"""What columns become: units kept, categories one-hot, dates on circles, the same from every kind of file."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import soctk
from soctk import Columns, TableError
from soctk.tables.features import Category, Date, Number
from soctk.tables.table import Table, read_pieces

WHEN, WIND, SITE = "Zeitpunkt", "wind, m/s", "Standort (ä)"
CONTEXT = (WHEN, WIND, SITE)
ROWS = 500


@pytest.fixture
def frame() -> pd.DataFrame:
    """A year of rows with a date, a number, a category, decisions and a value."""
    random = np.random.default_rng(0)
    when = pd.date_range("2023-01-01", periods=ROWS, freq="18h")
    table = pd.DataFrame({WHEN: when.strftime("%Y-%m-%d %H:%M"), WIND: random.gamma(2.0, 4.0, ROWS)})
    table[SITE] = random.choice(["Süd", "Nord", "West; alt"], ROWS)
    return table.assign(x_a=random.normal(size=ROWS), x_b=random.normal(size=ROWS), value=random.normal(size=ROWS))


def learned(table: object, **more: object) -> Columns:
    return Columns.learned(table, **{"context": CONTEXT, "x": ["x_a", "x_b"]} | more)


def test_numbers_keep_their_units_and_categories_are_one_hot(frame: pd.DataFrame) -> None:
    columns = learned(frame, context=[WIND, SITE])
    contexts = columns.contexts(frame)
    np.testing.assert_array_equal(contexts[:, 0], frame[WIND])
    assert columns.labels == (WIND, f"{SITE}=Nord", f"{SITE}=Süd", f"{SITE}=West; alt")
    for label, level in zip(contexts.T[1:], ("Nord", "Süd", "West; alt"), strict=True):
        np.testing.assert_array_equal(label, frame[SITE] == level)


def test_seasons_are_circles_that_close() -> None:
    """Equal times of day, weekdays and days of a year are one point each; steps of equal length are equal angles."""
    hours = pd.date_range("2023-01-01", "2024-12-31 23:00", freq="h")
    table = pd.DataFrame({WHEN: hours, "x_a": 0.0, "value": 0.0})
    columns = learned(table, context=[WHEN], x=["x_a"])
    assert columns.context_dim == 6
    hour, weekday, year = np.split(columns.contexts(table), 3, axis=1)
    for circle in (hour, weekday, year):
        np.testing.assert_allclose((circle**2).sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(hour[24:], hour[:-24], atol=1e-12)
    np.testing.assert_allclose(weekday[168:], weekday[:-168], atol=1e-12)
    steps = [np.linalg.norm(np.diff(circle[::stride], axis=0), axis=1) for circle, stride in ((hour, 1), (weekday, 24))]
    for step, parts in zip(steps, (24, 7), strict=True):
        np.testing.assert_allclose(step, 2 * np.sin(np.pi / parts), atol=1e-12)  # over midnight and Sunday too
    turns = np.linalg.norm(np.diff(year, axis=0), axis=1)  # over New Year, and with a day more in 2024
    np.testing.assert_allclose(turns, 2 * np.pi / 8760, rtol=3e-3)


@pytest.mark.parametrize("day", ["2023", "2023-04", "2023-04-01"])
def test_dates_without_a_time_are_refused_where_the_hour_counts(day: str) -> None:
    hours = pd.date_range("2023-01-01", periods=96, freq="h").strftime("%Y-%m-%d %H:%M")
    table = pd.DataFrame({WHEN: hours, "x_a": 0.0, "value": 0.0})
    columns = learned(table, context=[WHEN], x=["x_a"])
    with pytest.raises(TableError, match="a date with its time"):
        columns.contexts(table.assign(**{WHEN: day}))
    midnight = columns.contexts(table.assign(**{WHEN: f"{day}T00:00" if len(day) == 10 else "2023-04-01 00:00"}))
    some = columns.contexts(table.assign(**{WHEN: ["2023-04-01", *["2023-04-01 00:00"] * 95]}))
    np.testing.assert_array_equal(midnight, some)


@pytest.mark.parametrize(
    ("start", "periods", "freq", "seasons"),
    [
        ("2023-01-01", 48, "h", ("hour",)),
        ("2023-01-01", 30, "D", ("weekday",)),
        ("2023-01-01 12:00", 200, "12h", ("hour", "weekday")),
        ("2023-01-01", 60, "7D", ("year",)),
    ],
)
def test_a_season_is_learned_where_the_log_goes_round_it(start: str, periods: int, freq: str, seasons) -> None:
    table = pd.DataFrame({WHEN: pd.date_range(start, periods=periods, freq=freq), "x_a": 0.0, "value": 0.0})
    (feature,) = learned(table, context=[WHEN], x=["x_a"]).context
    assert feature == Date(WHEN, seasons)


def test_times_are_the_clocks() -> None:
    """Offsets from UTC, which change in a year, leave the hour of day alone, in texts as in typed columns."""
    local = pd.date_range("2024-03-29", "2024-04-03", freq="6h")
    zoned = local.tz_localize("Europe/Berlin")
    columns = Columns((Date(WHEN, ("hour", "weekday", "year")),), ("x_a",))
    expected = columns.contexts(pd.DataFrame({WHEN: local}))
    texts = [time.isoformat() for time in zoned]
    assert (texts[0][-6:], texts[-1][-6:]) == ("+01:00", "+02:00")
    for cells in (zoned, texts, [text[:19] + "Z" for text in texts], local.strftime("%Y-%m-%d %H:%M")):
        np.testing.assert_array_equal(columns.contexts(pd.DataFrame({WHEN: cells})), expected)
    german = Columns((Date(WHEN, ("hour", "weekday", "year"), "%d.%m.%y %H:%M"),), ("x_a",))
    np.testing.assert_array_equal(german.contexts(pd.DataFrame({WHEN: local.strftime("%d.%m.%y %H:%M")})), expected)


def test_every_kind_of_file_whole_or_in_pieces_is_the_same(frame: pd.DataFrame, tmp_path: Path) -> None:
    columns = learned(frame)
    expected = columns.contexts(frame)
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log.parquet")
    typed = frame.assign(**{WHEN: pd.to_datetime(frame[WHEN]), SITE: frame[SITE].astype("category")})
    typed.to_parquet(tmp_path / "typed.parquet")
    for path in sorted(tmp_path.iterdir()):
        assert learned(path) == columns
        np.testing.assert_array_equal(columns.contexts(path), expected)
        pieces = list(read_pieces(path, 37, {*CONTEXT}.__contains__))
        assert len(pieces) == -(-ROWS // 37)
        np.testing.assert_array_equal(np.concatenate([columns.contexts(piece) for piece in pieces]), expected)
        np.testing.assert_array_equal(np.concatenate([piece.rows for piece in pieces]), np.arange(ROWS))


def test_a_models_file_knows_its_columns(frame: pd.DataFrame, tmp_path: Path) -> None:
    columns = learned(frame)
    assert Columns.from_plain(json.loads(json.dumps(columns.plain()))) == columns
    model = soctk.SOCICNN(2, columns.context_dim)
    soctk.save(model, tmp_path / "m.st", notes=columns.notes())
    assert Columns.of_model(tmp_path / "m.st", model) == columns
    log = soctk.read_log(frame, Columns.of_model(tmp_path / "m.st", model))
    assert torch.equal(log.data.context, torch.from_numpy(columns.contexts(frame))[log.rows])
    soctk.save(model, tmp_path / "plain.st")
    assert Columns.of_model(tmp_path / "plain.st", model) == Columns.numbered(2, columns.context_dim)
    soctk.save(soctk.SOCICNN(2, 1), tmp_path / "other.st", notes=columns.notes())
    with pytest.raises(soctk.CheckpointError, match=r"other.st: columns: expected 2 numbers of a decision, 1 of"):
        Columns.of_model(tmp_path / "other.st", soctk.load(tmp_path / "other.st"))


def test_codes_are_categories_where_asked_for(frame: pd.DataFrame) -> None:
    codes = pd.DataFrame({"zone": [7.0, 12.0, 7.0], "x_a": 0.0, "value": 0.0})
    assert learned(codes, context=["zone"], x=["x_a"]).labels == ("zone",)
    columns = learned(codes, context=["zone"], x=["x_a"], category=["zone"])
    assert columns.labels == ("zone=12", "zone=7")
    np.testing.assert_array_equal(columns.contexts(pd.DataFrame({"zone": ["7", "12"]})), [[0, 1], [1, 0]])


def cell(name: str, value: object):
    """Return what puts a value into row 41 of a column."""
    return lambda table: table.assign(**{name: table[name].astype(object).mask(table.index == 40, value)})


MISTAKES = {
    "missing column": (lambda table: table.drop(columns=SITE), f"no column {SITE}; the columns are"),
    "unknown category": (
        cell(SITE, "Ost"),
        f"column {SITE}, row 41: expected a category that the model knows, Nord, Süd, \"West; alt\", got 'Ost'",
    ),
    "bad date": (
        cell(WHEN, "2023-02-30 10:00"),
        f"column {WHEN}, row 41: expected a date in ISO 8601 as 2024-03-31 17:00",
    ),
    "no number": (cell(WIND, "1,5"), f"column \"{WIND}\", row 41: expected a finite number, got '1,5'"),
    "infinite": (cell(WIND, "inf"), f"column \"{WIND}\", row 41: expected a finite number, got 'inf'"),
    "missing value": (cell(WIND, ""), f'column "{WIND}", row 41: expected a finite number, got a missing value'),
    "missing category": (cell(SITE, ""), f"column {SITE}, row 41: expected a value, got a missing value"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_used_is_named_by_file_column_and_row(name: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    change, message = MISTAKES[name]
    columns, path = learned(frame), tmp_path / "days.csv"
    change(frame).to_csv(path, index=False)
    for rows in (None, 7):
        with pytest.raises(TableError) as caught:
            list(map(columns.contexts, read_pieces(path, rows)))
        assert str(caught.value).startswith(f"{path}: {message}")


UNLEARNABLE = {
    "too many texts": (lambda t: t.assign(**{SITE: [f"#{k}" for k in range(ROWS)]}), {}, "got 500 different texts"),
    "a day alone": (lambda t: t.assign(**{WHEN: "2023-01-01"}), {}, "expected dates in which a day, a week or a year"),
    "a mistyped number": (cell(WIND, "n/k"), {}, "row 41: expected a finite number, got 'n/k'"),
    "a mistyped date": (cell(WHEN, "2023-13-01"), {}, "row 41: expected a date in ISO 8601"),
    "twice": (lambda t: t, {"context": [WIND, "x_a"]}, "got x_a twice"),
    "no decision": (lambda t: t, {"x": []}, "at least one column of the decision"),
    "stray category": (lambda t: t, {"category": ["x_a"]}, "category: x_a: not a column of the context"),
}


@pytest.mark.parametrize("name", UNLEARNABLE)
def test_what_cannot_be_learned_from_is_refused(name: str, frame: pd.DataFrame) -> None:
    change, options, message = UNLEARNABLE[name]
    with pytest.raises(TableError) as caught:
        learned(change(frame), **options).contexts(change(frame))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "plain", [{"x": "x_a"}, {"x": ["a"], "context": [3]}, {"x": ["a"], "context": [{"name": "b"}]}]
)
def test_notes_that_are_no_columns_are_refused(plain: dict) -> None:
    with pytest.raises(ValueError, match="expected"):
        Columns.from_plain(plain)


def test_a_table_is_read_by_the_columns_that_are_wanted(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "log.csv", index=False)
    table = Table.of(tmp_path / "log.csv", {"x_a"}.__contains__)
    assert list(table.frame) == ["x_a"]
    assert table.names == tuple(frame)


DAYS = pd.date_range("2023-01-01", periods=800).strftime


@pytest.mark.parametrize("column", [list(map(int, DAYS("%Y%m%d"))), list(DAYS("%Y%m%d"))], ids=["whole", "text"])
def test_a_date_format_is_for_numbers_too(column: list) -> None:
    frame = pd.DataFrame({"context_day": column, "context_load": np.arange(800.0), "x_0": 1.0, "value": 1.0})
    found = Columns.learned(frame, context=["context_day", "context_load"], x=["x_0"], date_format="%Y%m%d")
    assert found.labels[-1] == "context_load"
    assert "time of year" in str(found.context[0])
    dates = frame.assign(context_day=pd.date_range("2023-01-01", periods=800))
    np.testing.assert_allclose(
        found.contexts(frame),
        Columns.learned(dates, context=["context_day", "context_load"], x=["x_0"]).contexts(dates),
    )


def test_a_date_format_that_no_column_has_is_refused() -> None:
    frame = pd.DataFrame({"context_day": DAYS("%Y-%m-%d"), "x_0": 1.0, "value": 1.0})
    with pytest.raises(TableError, match=r"date format '%d\.%m\.%Y': expected a column.*context_day.* is a date"):
        Columns.learned(frame, context=["context_day"], x=["x_0"], date_format="%d.%m.%Y")


def test_basic_dates_with_several_offsets_are_the_clocks() -> None:
    """As in summer and in winter."""
    texts = [f"{day}T1700{'+0200' if 330 < int(day[4:]) < 1030 else '+0100'}" for day in DAYS("%Y%m%d")]
    basic = pd.DataFrame({"context_day": texts, "x_0": 1.0, "value": 1.0})
    usual = basic.assign(context_day=DAYS("%Y-%m-%dT17:00"))
    found, expected = (Columns.learned(each, context=["context_day"], x=["x_0"]) for each in (basic, usual))
    assert found == expected
    np.testing.assert_array_equal(found.contexts(basic), expected.contexts(usual))


def test_a_blank_line_of_a_single_column_is_a_missing_value(tmp_path: Path) -> None:
    """Left out, the plan has a row less than the contexts."""
    (tmp_path / "rows.csv").write_text("context_c\n0.5\n\n-0.5\n")
    columns = Columns.learned(
        pd.DataFrame({"context_c": [1.0], "x_0": [1.0], "value": [1.0]}), context=["context_c"], x=["x_0"]
    )
    with pytest.raises(TableError, match=r"context_c, row 2: .*missing"):
        columns.contexts(tmp_path / "rows.csv")
    assert [len(piece) for piece in read_pieces(tmp_path / "rows.csv", 2)] == [2, 1]


def test_what_a_frame_calls_a_category_or_a_period_is_one(frame: pd.DataFrame) -> None:
    numbers, months = np.arange(ROWS) % 3, pd.period_range("2001-01", periods=ROWS, freq="M")
    some = frame.assign(site=pd.Categorical(numbers), month=months)
    site, month = learned(some, context=["site", "month"]).context
    assert site == Category("site", ("0", "1", "2"))
    assert isinstance(month, Date)


def test_dates_of_arrow_are_dates(frame: pd.DataFrame) -> None:
    dates = frame.assign(**{WHEN: pd.to_datetime(frame[WHEN])})
    arrow = dates.convert_dtypes(dtype_backend="pyarrow")
    assert arrow[WHEN].dtype != dates[WHEN].dtype
    np.testing.assert_array_equal(
        learned(arrow, context=[WHEN]).contexts(arrow), learned(dates, context=[WHEN]).contexts(dates)
    )


ARROW = {"object": object, "string": pa.string(), "dictionary": pa.dictionary(pa.int32(), pa.string())}


@pytest.mark.parametrize("kind", ["string", "dictionary"])
@pytest.mark.parametrize(
    "texts", [("NA", "DE", "FR"), ("2024-01-01", "2024-03-05", "2024-06-09"), ("1.5", "2", "x"), ("1", "2", "3")]
)
@pytest.mark.parametrize("category", [(), (SITE,)])
def test_texts_of_arrow_are_what_other_texts_are(frame: pd.DataFrame, kind: str, texts: tuple, category: tuple) -> None:
    texts = pd.Series(np.resize(texts, ROWS))
    plain, arrow = frame.assign(**{SITE: texts}), frame.assign(**{SITE: texts.astype(pd.ArrowDtype(ARROW[kind]))})

    def outcome(table: pd.DataFrame) -> object:
        roles = soctk.Roles(context=[WIND, SITE], x=["x_a", "x_b"], category=category)
        try:
            found = soctk.read_log(table, roles, drop_missing=True)
        except TableError as error:
            return str(error)
        return found.columns, found.columns.contexts(table).tolist()

    assert outcome(arrow) == outcome(plain)


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64(), pa.timestamp("s")])
def test_days_of_arrow_and_far_days_are_dates(frame: pd.DataFrame, kind: pa.DataType) -> None:
    days = np.resize(np.array(["2024-01-01", "9999-12-31", "2024-06-03"], dtype="datetime64[s]"), ROWS)
    plain = frame.assign(**{WHEN: days})
    arrow = frame.assign(**{WHEN: pd.Series(days).astype(pd.ArrowDtype(kind))})
    (date,) = learned(plain, context=[WHEN]).context
    assert isinstance(date, Date)
    assert date.seasons == ("weekday", "year")
    expected = learned(plain, context=[WHEN]).contexts(plain)
    np.testing.assert_array_equal(learned(arrow, context=[WHEN]).contexts(arrow), expected)


def test_decimals_of_arrow_are_numbers(frame: pd.DataFrame) -> None:
    numbers = pd.Series([Decimal("1.25"), None] * (ROWS // 2)).astype(pd.ArrowDtype(pa.decimal128(5, 2)))
    log = soctk.read_log(
        frame.assign(**{WIND: numbers}), soctk.Roles(context=[WIND], x=["x_a", "x_b"]), drop_missing=True
    )
    assert log.columns.context == (Number(WIND),)
    assert len(log.source) == ROWS // 2


def test_columns_of_one_name_are_named(frame: pd.DataFrame) -> None:
    with pytest.raises(TableError, match="every column once, got 0 twice"):
        soctk.read_log(frame.assign(**{"0": 1.0}).rename(columns={WIND: 0}))


def test_codes_that_are_named_as_categories_have_one_of_the_name_na(frame: pd.DataFrame) -> None:
    codes = frame.assign(**{SITE: np.resize(["1", "2", "3", "NA"], ROWS)})
    roles = soctk.Roles(context=[SITE], x=["x_a", "x_b"], category=[SITE])
    log = soctk.read_log(codes, roles, drop_missing=True)
    assert log.missing.count == 0
    assert log.columns.context == (Category(SITE, ("1", "2", "3", "NA")),)
    log = soctk.read_log(codes, soctk.Roles(context=[SITE], x=["x_a", "x_b"]), drop_missing=True)
    assert log.missing.count == ROWS // 4  # of numbers it says that there is none


def test_numbers_with_decimal_commas_are_no_categories(frame: pd.DataFrame) -> None:
    """They were learned as so many categories, 1,654 weights of them."""
    frame[WIND] = (frame[WIND] * 2).round().map(lambda wind: f"{wind / 2:.1f}".replace(".", ","))
    with pytest.raises(
        TableError, match=r"column wind, m/s: expected decimal points, got '\d+,\d'; export it with points"
    ):
        learned(frame, context=[WIND])
    assert isinstance(learned(frame, context=[WIND], category=[WIND]).context[0], Category)
