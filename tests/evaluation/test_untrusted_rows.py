"""Reports of rows that nobody made: markup is shown as text, what cannot be shown is counted and skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import support

from soctk_evaluation.cli import main
from soctk_evaluation.experiments import BUILT_IN, find_experiment
from soctk_evaluation.harness.store import ResultsStore

RESULTS = Path(__file__).resolve().parents[2] / "evaluation" / "results"
EVIL = "<script>alert(1)</script> [link](javascript:alert(1)) \\[link](javascript:alert(2)) a|b\nc"


def stored(name: str) -> list[dict[str, Any]]:
    """Return the project's rows of an experiment."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_row_of_the_project_is_skipped(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", written(tmp_path / "rows.jsonl", stored(name))]) == 0
    assert "skipped" not in capsys.readouterr().err


@pytest.mark.parametrize("name", BUILT_IN)
def test_markup_in_rows_is_text_in_every_page(name: str, tmp_path: Path) -> None:
    rows, experiment = stored(name), find_experiment(name)
    numbers = {name.removeprefix("config.") for name in set(experiment.needed) - set(experiment.text)}
    for row in rows:
        config = {k: [EVIL] if isinstance(v, list) else EVIL for k, v in row["config"].items() if k not in numbers}
        row |= {"machine": EVIL, "config": row["config"] | config}
    others = [rows[0] | {field: EVIL, "key": field} for field in ("task", "method", "protocol", "status")]
    for field in ("images", "decided_by"):
        others += [rows[0] | {field: EVIL, "key": field, "seed": 7}] if field in rows[0] else []
    store = written(tmp_path / "rows.jsonl", [*others, *rows])
    page = tmp_path / "page.md"
    assert main(["report", store, "--markdown", str(page)]) == 0
    text = page.read_text()
    assert "alert" in text
    assert "<script" not in text
    assert "](javascript" not in text.replace("\\\\", "").replace("\\[link]", "")
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert not any(" a|b" in line for line in tables)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dim": 10**30}, "field 'dim': expected finite numbers and integers of less than 64 bits"),
        ({"dim": 1e30}, "field 'dim': unexpected float"),
        ({"dim": 0}, "field 'dim': expected an integer of at least 1, got 0"),
        ({"seed": -1}, "field 'seed': expected an integer of at least 0, got -1"),
        ({"params": 10**400}, "field 'params': expected finite numbers"),
        ({"regret_mean": "1e999"}, "field 'regret_mean': expected finite numbers"),
        ({"regret_mean": [1.0]}, "field 'regret_mean': expected a number or null, got list"),
        ({"regret_mean": True}, "field 'regret_mean': expected a number or null, got bool"),
        ({"decided_by": 0}, "field 'decided_by': expected a text or null, got int"),
        (
            {"decided_by": "\ud800"},
            "field 'decided_by': expected finite numbers and integers of less than 64 bits, texts",
        ),
        ({"cell_time_limit": "long", "status": "failed: time limit"}, "field 'cell_time_limit': expected a number"),
    ],
)
def test_a_row_that_cannot_be_shown_costs_only_itself(change: dict, reason: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "rows.jsonl"
    text = json.dumps(support.row(key="bad", method="pcf") | change).replace('"1e999"', "1e999")
    path.write_text(f"{json.dumps(support.row())}\n{text}\n")
    assert main(["report", str(path)]) == 0
    shown = capsys.readouterr()
    assert "soctk: 1 damaged line of" in shown.err
    assert f"line 2: {reason}" in shown.err
    assert "soc" in shown.out
    assert "pcf" not in shown.out
    assert ResultsStore(path).done() >= {"box-10-soc-0-exact-aaa"}


def _spoilt(row: dict[str, Any], field: str) -> Iterator[dict[str, Any]]:
    """Return a row without a field, with another type in it, and without the time that it took."""
    part, _, name = field.rpartition(".")
    own = row[part] if part else row

    def with_value(**value: Any) -> dict[str, Any]:
        changed = {each: given for each, given in own.items() if each != name} | value
        return row | {part: changed} if part else changed

    yield with_value()
    yield with_value(**{name: 0 if isinstance(own[name], str) else "abc"})
    if name.endswith("_ms"):
        yield with_value(**{name: 0.0})


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_measurement_of_another_type_is_found(name: str, tmp_path: Path, capsys) -> None:
    experiment, rows = find_experiment(name), stored(name)
    numbers = sorted(set(experiment.measured) - set(experiment.text))
    broken = [rows[-1] | {field: "abc", "key": field} for field in numbers]
    texts = set(experiment.text) - set(experiment.needed)
    broken += [rows[-1] | {field: 0, "key": field} for field in texts]
    for field in experiment.needed:
        broken += [row | {"key": f"{field}: {row}"} for row in _spoilt(rows[-1], field)]
    store = written(tmp_path / "rows.jsonl", [*broken, *rows])
    page = tmp_path / "page.md"
    assert main(["report", store, "--markdown", str(page)]) == 0
    assert f"{len(broken)} damaged line" in capsys.readouterr().err
    right = written(tmp_path / "good.jsonl", rows)
    assert main(["report", right, "--markdown", str(tmp_path / "right.md")]) == 0
    shown = page.read_text().replace("rows.jsonl", "good.jsonl")
    notes = [line for line in shown.splitlines() if "damaged line" not in line]
    assert notes == (tmp_path / "right.md").read_text().splitlines()


def test_cells_without_a_result_are_no_obstacle(tmp_path: Path, capsys) -> None:
    for name in BUILT_IN:
        empty = dict.fromkeys(find_experiment(name).measured)
        failed = [
            row | empty | {"status": "failed: x", "seed": 9, "key": f"failed {row['key']}"}
            for row in stored(name)[::10]
        ]
        for rows in (failed, [*failed, stored(name)[0]], [*failed, stored(name)[-1]], [*failed, *stored(name)]):
            files = ["--markdown", str(tmp_path / "page.md"), "--figure", str(tmp_path / "page.svg")]
            assert main(["report", written(tmp_path / "rows.jsonl", rows), *files]) == 0, name
            said = capsys.readouterr().err
            assert (f"no results of {name} in" in said) == (rows is failed), "failures alone are said"


def test_several_experiments_in_one_store(tmp_path: Path, capsys) -> None:
    rows = [*stored("rates"), *stored("smoothing"), support.row(experiment="unheard_of")]
    store = written(tmp_path / "rows.jsonl", rows)
    assert main(["report", store]) == 0
    shown = capsys.readouterr()
    assert "rows of unknown experiments skipped: unheard_of" in shown.err
    assert "lower bound" in shown.out
    assert "moving average" in shown.out
    assert main(["report", store, "--markdown", str(tmp_path / "page.md")]) == 2
    assert "holds rows of rates and smoothing" in capsys.readouterr().err


def test_a_kind_of_file_that_an_experiment_has_not_is_refused(tmp_path: Path, capsys) -> None:
    store = written(tmp_path / "rows.jsonl", stored("rates"))
    assert main(["report", store, "--html", str(tmp_path / "page.html")]) == 2
    assert "--html: expected markdown or figure for rows of rates" in capsys.readouterr().err
    assert main(["report", written(tmp_path / "empty.jsonl", [])]) == 0
    assert "no results in" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["markdown", "csv", "html", "latex"])
def test_results_are_not_written_over(option: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "rows.jsonl"
    before = Path(written(path, [support.row()])).read_text()
    assert main(["report", str(path), f"--{option}", str(path)]) == 2
    assert "expected a file of its own" in capsys.readouterr().err
    assert main(["leaderboard", "--store", str(path), f"--{option}", str(path)]) == 2
    assert path.read_text() == before
    assert main(["report", str(path), "--csv", str(tmp_path / "a"), "--latex", str(tmp_path / "a")]) == 2
    assert main(["report", str(path), "--figure", str(tmp_path / "a.pdf")]) == 2


def test_a_store_of_damaged_lines_says_so(tmp_path: Path, capsys) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("[1]\n")
    assert main(["report", str(path)]) == 0
    assert "1 damaged line of" in capsys.readouterr().err


def test_the_lines_of_a_csv_have_their_own_numbers(tmp_path: Path) -> None:
    tasks = {"simplex_socp": 0.1, "box_socp": 0.3}
    rows = [support.row(task=task, seed=seed, relative_error=error) for task, error in tasks.items() for seed in (0, 1)]
    out = tmp_path / "out.csv"
    assert main(["report", written(tmp_path / "rows.jsonl", rows), "--csv", str(out)]) == 0
    found = pd.read_csv(out).set_index("task")["relative_error"]
    assert found.to_dict() == pytest.approx(tasks)


def test_an_infinite_gap_is_the_largest(tmp_path: Path) -> None:
    rows = [support.row(seed=0), support.row(seed=1, gap_max=None, status="1 of 200 decisions failed")]
    out = tmp_path / "out.csv"
    assert main(["report", written(tmp_path / "rows.jsonl", rows), "--csv", str(out)]) == 0
    assert pd.read_csv(out)["gap_max"].tolist() == [float("inf")]


def test_a_readme_keeps_its_line_ends_and_must_be_text(tmp_path: Path, capsys) -> None:
    store, readme = written(tmp_path / "rows.jsonl", [support.row()]), tmp_path / "README.md"
    readme.write_bytes(b"one\r\n<!-- begin leaderboard -->\r\n<!-- end leaderboard -->\r\ntwo\r\n")
    assert main(["report", store, "--readme", str(readme)]) == 0
    text = readme.read_bytes()
    assert text.startswith(b"one\r\n")
    assert text.count(b"\n") == text.count(b"\r\n") > 6
    readme.write_bytes(b"\xe9")
    assert main(["report", store, "--readme", str(readme)]) == 2
    assert "expected text in UTF-8" in capsys.readouterr().err


def test_a_row_that_cannot_be_measured_is_no_accident(tmp_path: Path, capsys) -> None:
    store = written(tmp_path / "rows.jsonl", [support.row(key="abcdef")])
    assert main(["repeat", "abcdef", "--store", store]) == 2
    assert "the row cannot be measured" in capsys.readouterr().err
    assert main(["repeat", "abcdef", "--store", store, "--tolerance", "nan"]) == 2
    assert "--tolerance: expected a number of at least 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--seeds", str(10**22), "below 2^63"), ("--cell-time-limit", "1e12", "at most 1e+09")],
)
def test_numbers_that_nothing_can_hold_are_refused(
    option: str, value: str, message: str, tmp_path: Path, capsys
) -> None:
    assert main(["leaderboard", "--store", str(tmp_path / "rows.jsonl"), option, value]) == 2
    assert message in capsys.readouterr().err
