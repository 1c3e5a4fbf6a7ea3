"""Tables from rows: pooling, what is missing, what is the best, and every way to show them."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from dataclasses import replace

import fake_cells
import pytest
import support
from rich.console import Console

from soctk_evaluation.harness.store import BadLine, Contents
from soctk_evaluation.tables.leaderboard import REGRET
from soctk_evaluation.tables.overview import overview
from soctk_evaluation.tables.report import print_tables, to_csv, to_html, to_latex, to_markdown
from soctk_evaluation.tables.summary import Table, build_tables

REGRETS = {"relu": 0.4, "soc": 0.2, "quadratic": 0.1, "oracle": 1e-9}


def grid(methods: dict[str, float] = REGRETS, tasks: int = 2, seeds: int = 3) -> list[dict[str, object]]:
    return [
        support.row(method=method, task=f"task{task}", seed=seed, regret_mean=value)
        for method, value in methods.items()
        for task in range(tasks)
        for seed in range(seeds)
    ]


def table(rows: list[dict[str, object]], bad: list[BadLine] | None = None) -> Table:
    (only,) = build_tables(Contents(rows, bad or []), REGRET)
    return only


def test_trivial_rows_stand_apart_and_never_win() -> None:
    found = table(grid())
    assert [line.method for line in found.learned] == ["relu", "soc"]
    assert [line.method for line in found.trivial] == ["quadratic", "oracle"]
    assert found.best() == found.best(0) == {"soc"}


def test_methods_that_lose_to_a_trivial_row_are_named() -> None:
    rows = grid({"relu": 0.4, "soc": 0.2, "norm": 0.05, "quadratic": 0.3, "constant": 0.1, "oracle": 1e-9})
    for row in rows:
        if row["method"] == "quadratic" and row["task"] == "task1":
            row["regret_mean"] = 0.6
    lost = [note for note in table(rows).notes if note.startswith("lose to")]
    assert lost == [
        "lose to quadratic: relu on task0",
        "lose to constant: relu on task0, task1, the mean; soc on task0, task1, the mean",
    ]


def test_methods_that_lose_on_the_seeds_that_they_have_are_named_too() -> None:
    """Beside a trivial row's own scores on these seeds, not its mean over all."""
    rows = grid({"soc": 0.2, "quadratic": 0.3})
    for row in rows:
        if row["method"] == "quadratic" and row["seed"] == 0:
            row["regret_mean"] = 0.1
    first = [row for row in rows if row["method"] != "soc" or row["seed"] == 0]
    assert "lose to quadratic: soc on task0 (1 seed), task1 (1 seed)" in table(first).notes
    others = [row for row in rows if row["method"] != "soc" or row["seed"] != 0]
    assert not any(note.startswith("lose to") for note in table(others).notes)


def test_scores_below_the_floor_are_equally_good_and_a_single_method_is_not_the_best() -> None:
    floor = REGRET.floor
    found = table(grid({"relu": 0.3 * floor, "soc": 0.1 * floor, "constant": 0.2 * floor}))
    assert found.floor == floor
    assert found.best() == found.best(0) == {"relu", "soc"}
    assert not any(note.startswith("lose to") for note in found.notes)
    assert table(grid({"soc": 0.2, "constant": 0.1})).best() == frozenset()


def test_a_suite_has_its_own_floor() -> None:
    measure = replace(REGRET, suites={" in kW": ("task0",)}, floors={" in kW": 0.3})
    by_title = {found.title: found for found in build_tables(Contents(grid(), []), measure)}
    in_kilowatts = next(found for title, found in by_title.items() if "kW" in title)
    assert in_kilowatts.floor == 0.3
    assert in_kilowatts.best() == {"soc"}
    assert next(found for title, found in by_title.items() if "kW" not in title).floor == REGRET.floor


def test_the_standard_error_is_that_of_the_seeds_means() -> None:
    means, within, counts = [0.2, 0.5, 0.8], [1e-3, 2e-3, 1e-3], [200, 100, 50]
    rows = [
        support.row(seed=seed, regret_mean=mean, regret_stderr=error, regret_n=count)
        for seed, (mean, error, count) in enumerate(zip(means, within, counts, strict=True))
    ]
    found = table(rows)
    regret = found.learned[0].regrets[0]
    assert regret.mean == pytest.approx(0.5, rel=1e-12)
    assert regret.stderr == pytest.approx(statistics.stdev(means) / math.sqrt(3), rel=1e-12)
    assert any("± is the standard error of the mean over seeds" in note for note in found.notes)


def test_one_seed_has_the_error_over_its_instances_and_one_of_several_has_none() -> None:
    found = table([support.row(regret_stderr=0.01)])
    assert found.learned[0].regrets[0].stderr == 0.01
    assert any("of the one seed, not over seeds" in note for note in found.notes)
    two = table([support.row(seed=0), support.row(seed=0, method="norm"), support.row(seed=1, method="norm")])
    assert {line.method: line.regrets[0].stderr for line in two.learned}["soc"] is None


def test_how_the_fits_ended_is_counted() -> None:
    statuses = ["converged", "iteration_limit", "converged"]
    found = table([support.row(seed=seed, fit_status=status) for seed, status in enumerate(statuses)])
    assert "fits: 2 converged, 1 iteration limit" in found.notes


def test_missing_seeds_are_said_and_an_incomplete_method_is_not_the_best() -> None:
    rows = [one for one in grid() if not (one["method"] == "soc" and one["task"] == "task1" and one["seed"] == 2)]
    found = table(rows)
    assert found.best(0) == {"soc"}
    assert found.best(1) == found.best() == {"relu"}
    assert "(2 of 3 seeds)" in to_markdown([found])
    assert "missing: 1 of 24 cells (task1 soc seed 2)" in found.notes


def test_expected_cells_that_nobody_measured_are_missing() -> None:
    asked = [
        fake_cells.cell(seed, experiment="leaderboard", task="task0", dim=10, method=method, config=())
        for method in ("soc", "pcf")
        for seed in range(2)
    ]
    (found,) = build_tables(Contents(grid(seeds=1), []), REGRET, asked)
    assert [line.method for line in found.learned] == ["soc", "pcf"]
    assert found.tasks == ["task0"]
    assert any(note.startswith("missing: 3 of 4 cells") for note in found.notes)
    (empty,) = build_tables(Contents([], []), REGRET, asked)
    assert any(note.startswith("missing: 4 of 4 cells") for note in empty.notes)


@pytest.mark.parametrize("status", ["failed: ValueError: no", "quarantined: killed its worker twice"])
def test_cells_without_a_result_are_missing_and_their_reason_is_said(status: str) -> None:
    rows = grid()
    rows[0] = support.row(method="relu", task="task0", seed=0, regret_mean=None, status=status)
    found = table(rows)
    assert found.learned[0].regrets[0].seeds == 2
    assert f"{status}: task0 relu seed 0" in found.notes


def test_a_later_code_version_replaces_earlier_rows_and_a_mixture_is_said() -> None:
    rows = [*grid(), support.row(method="soc", task="task0", regret_mean=0.8, versions={"code": "bbb"})]
    found = table(rows)
    assert found.learned[1].regrets[0].mean == pytest.approx((0.8 + 0.2 + 0.2) / 3)
    assert (
        "rows are of 2 code versions, not strictly comparable (aaa: relu, soc, quadratic, oracle; bbb: soc)"
        in found.notes
    )
    assert "all rows are of code aaa" in table(grid()).notes
    renewed = [support.row(**{**one, "versions": {"code": "bbb"}}) for one in grid()]
    assert not any("code versions" in note for note in table([*grid(), *renewed]).notes)
    own = [support.row(seed=seed, versions={"code": "aaa", "method_code": f"own{seed % 2}"}) for seed in range(3)]
    assert "the rows of soc are of 2 versions of its own code (own0, own1), not strictly comparable" in table(own).notes
    both = [support.row(task="soc", versions={"code": "aaa", "method_code": "own0", "task_code": "own1"})]
    assert not any("own code" in note for note in table(both).notes)


def test_each_dimension_and_protocol_has_its_own_table() -> None:
    rows = [support.row(dim=dim, protocol=protocol) for dim in (20, 10) for protocol in ("paper", "exact")]
    titles = [(one.dim, one.protocol) for one in build_tables(Contents(rows, []), REGRET)]
    assert titles == [(10, "exact"), (10, "paper"), (20, "exact"), (20, "paper")]


def test_no_mean_is_over_tasks_of_several_suites() -> None:
    rows = [
        support.row(task=task, regret_mean=1.0) for task in ("opf_case14", "voltage", "box_dense", "box_socp", "own")
    ]
    found = build_tables(Contents(rows, []), REGRET)
    assert [one.tasks for one in found] == [["box_socp", "own"], ["box_dense"], ["voltage"], ["opf_case14"]]
    assert len({one.title for one in found}) == 4


def test_the_overview_has_the_best_of_every_kind_and_the_least_of_all_in_bold() -> None:
    scores = {"relu": 0.4, "norm": 0.3, "soc": 0.2, "soc+focus": 0.15, "dcp+focus": 0.1, "affine": 0.5, "oracle": 1e-9}
    low = {name: 0.1 * REGRET.floor * (index + 1) for index, name in enumerate(("relu", "soc", "constant"))}
    rows = grid(scores, tasks=1) + [{**row, "dim": 20, "key": f"{row['key']}-20"} for row in grid(low)]
    rows += [support.row(task="voltage", method=name, regret_mean=1.0) for name in ("soc", "norm")]
    tables = build_tables(Contents([row for row in rows if row["method"] != "norm" or row["seed"] != 1], []), REGRET)
    first, second, third = [line.strip("| ").split(" | ") for line in overview(tables).splitlines()[2:]]
    assert first[1:3] == ["10", "3"]
    assert [entry.split(" ± ")[0] for entry in first[3:]] == ["0.2000", "0.4000", "**0.1000", "0.5000"]
    assert [entry.split("(")[-1] for entry in first[4:]] == ["relu)", "dcp+focus)", "affine)"]  # norm lacks a seed
    assert [entry.startswith("**") for entry in second[3:]] == [True, True, False, True]  # all below the floor
    assert second[5] == "–"
    assert third[0] == "in kW on a feeder"
    assert overview([]) == ""


def test_latex_has_every_entry_and_no_character_of_its_own_is_left_bare() -> None:
    found = table([support.row(method=method, task="a_b&c", seed=seed) for method in REGRETS for seed in range(2)])
    first, _ = to_latex([found]).split("\\end{table}", 1)
    rows = [line for line in first.splitlines() if line.endswith("\\\\")]
    assert len(rows) == 1 + len(REGRETS) + len(found.solver)
    assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    assert "a\\_b\\&c" in rows[0]
    assert first.count("\\textbf{") == 2 * 2  # two that are as good, on the one task and in the mean
    assert first.count("\\midrule") == 1 + 2  # under the heading, before the trivial rows and the solver's


def test_test_instances_solver_regret_and_damaged_lines_are_said() -> None:
    found = table(grid(), [BadLine(7, "not valid JSON")])
    text = to_markdown([found])
    assert "200 test instances a cell; 3 seeds" in text
    assert "solver's own regret (newton)" in text
    assert "1 damaged line skipped (line 7: not valid JSON)" in text
    assert found.solver == {"newton": pytest.approx([1e-9, 1e-9])}


def test_markdown_has_the_best_learned_in_bold_and_as_many_cells_in_every_row() -> None:
    first, _ = to_markdown([table(grid())]).split("## Mean regret, d = 10, protocol exact: compared")
    lines = [line for line in first.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    bold = [line for line in lines if "**" in line]
    assert [line.split("|")[1].strip() for line in bold] == ["soc"]
    assert bold[0].count("**") == 2 * 3  # two tasks and their mean


def test_methods_are_compared_in_pairs_where_there_are_several_cells() -> None:
    found = table(grid())
    assert [(one.method, one.wins, one.shared) for one in found.paired] == [("relu", 0, 6), ("soc", 6, 6)]
    relu, soc = found.paired
    assert relu.ratio is not None
    assert relu.ratio.mean == pytest.approx(2.0)
    assert (relu.ratio.wins, relu.ratio.cells) == (0, 6)
    assert soc.ratio is None
    for text in (to_markdown([found]), to_html([found])):
        assert "compared in pairs" in text
    assert table(grid(tasks=1, seeds=1)).paired == []


def test_csv_holds_full_precision() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([table(grid({"soc": 1 / 3}))]))))
    assert len(rows) == 2
    assert float(rows[0]["regret_mean"]) == pytest.approx(1 / 3, rel=1e-15)


def test_html_needs_no_other_file_and_escapes_what_a_store_holds() -> None:
    evil = "<script>alert(1)</script>"
    page = to_html([table([support.row(method=evil, status=f"failed: {evil}"), support.row()])])
    assert evil not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"https?:", page)
    assert "src=" not in page
    assert "color-scheme: light dark" in page
    assert 'data-value="0.5"' in page


def test_terminal_output_names_methods_and_notes() -> None:
    out = io.StringIO()
    print_tables([table(grid())], Console(file=out, width=200))
    assert "quadratic" in out.getvalue()
    assert "200 test instances" in out.getvalue()


def test_an_empty_store_has_no_table() -> None:
    assert build_tables(Contents([], []), REGRET) == []
    assert "no leaderboard rows" in to_html([])
