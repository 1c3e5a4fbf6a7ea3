"""The structured experiments at small sizes: rows, tables, pictures, and what they refuse."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from soctk import FitConfig
from soctk_evaluation.cli import main
from soctk_evaluation.cli.commands import Restoration, Smoothing
from soctk_evaluation.experiments import find_experiment, restoration, smoothing
from soctk_evaluation.experiments.structured import MEASURED
from soctk_evaluation.harness.experiment import Results
from soctk_evaluation.harness.names import STRUCTURED, STRUCTURED_TRIVIAL
from soctk_evaluation.harness.store import ResultsStore
from soctk_evaluation.tables.structured import structured_table, write_structured

SMALL = {
    "smoothing": {"steps": 6, "channels": 2, "train": 12, "validation": 6, "test": 5, "candidates": 6},
    "restoration": {"size": 8, "train": 8, "validation": 4, "test": 4, "candidates": 6},
}
SETTINGS = {"smoothing": smoothing.SETTING, "restoration": restoration.SETTING}
COMMANDS = {"smoothing": Smoothing, "restoration": partial(Restoration, stand_in=True)}
RECIPE = FitConfig(starts=1, epochs=1, newton_iterations=2, lbfgs_iterations=4, level_iterations=2)


def cells(experiment: str, methods, protocols=("structured",)):
    asked = COMMANDS[experiment](methods=tuple(methods), protocols=tuple(protocols), seeds=(0,))
    return SETTINGS[experiment].cells(asked, SMALL[experiment], dict.fromkeys(protocols, RECIPE))


@pytest.mark.parametrize("experiment", SETTINGS)
def test_every_row_is_measured_against_certified_optima(experiment: str, tmp_path, capsys) -> None:
    methods = ("soc", *STRUCTURED_TRIVIAL[experiment])
    rows, own = [], {"machine": "a", "versions": {"code": "aaa"}}
    for cell in cells(experiment, methods):
        row = find_experiment(experiment).run(cell, tmp_path)
        assert set(row) - {"status"} <= set(MEASURED)
        assert row["regret_mean"] >= -1e-6 * row["spread"]  # no decision is better than a certified optimum
        assert row["reference_gap"] <= 1e-5
        assert row["regret_n"] == SMALL[experiment]["test"]
        rows.append(cell.identity | dict.fromkeys(MEASURED) | row | own | {"status": row.get("status", "ok")})
    assert rows[0]["gap_max"] <= 1e-4
    files = {"markdown": tmp_path / "page.md", "figure": tmp_path / "picture.svg"}
    write_structured(Results(rows, [], store=tmp_path.with_suffix(".jsonl")), files)
    text = capsys.readouterr().out
    assert all(name.replace("_", " ") in text for name in methods)
    page = (tmp_path / "page.md").read_text()
    assert page.count("|") > 30
    assert f"`soctk {experiment}` on a." in page.replace("\n", " ")  # the rows' machine, not this one
    assert "<svg" in (tmp_path / "picture.svg").read_text()
    larger = [rows[1] | {"config": rows[1]["config"] | {"train": 999}}]  # without a model: it comes second
    write_structured(Results(larger + rows, []), {})
    both = capsys.readouterr().out
    assert both.index("| soc ") < both.index("The same with 999 training")


def test_all_five_models_take_both_recipes() -> None:
    for protocol in ("structured", "plain"):
        found = cells("smoothing", STRUCTURED, [protocol])
        assert {cell.method for cell in found} == set(STRUCTURED)
        assert all(cell.protocol == protocol for cell in found)
        row = smoothing.run_cell(found[-1])
        assert row["relative_error"] > 0


def test_trivial_rows_need_no_recipe_and_photographs_are_part_of_a_cell() -> None:
    found = cells("restoration", ("clean_image", "relu"))
    trivial, learned = (next(cell for cell in found if cell.method == name) for name in ("clean_image", "relu"))
    assert trivial.protocol == ""
    assert not any(name.startswith("fit.") for name, _ in trivial.config)
    assert any(name.startswith("fit.") for name, _ in learned.config)
    assert "stand-in" in dict(learned.config)["images"]


def test_the_better_model_is_bold_and_missing_seeds_are_said() -> None:
    (first,) = cells("smoothing", ["soc"])
    numbers = {"regret_mean": 0.1, "regret_stderr": 0.01, "decision_error": 0.2, "relative_error": 0.3, "gap_max": 1e-5}
    rows = [
        first.identity | dict.fromkeys(MEASURED) | numbers | {"method": name, "regret_mean": regret, "versions": {}}
        for name, regret in (("soc", 0.1), ("relu", 0.4))
    ]
    text = structured_table("smoothing", rows, "structured", expected=3)
    assert "| 1.00e-01 |" in text  # one seed of three says nothing of the spread between seeds, nor which is the best
    assert "**1.00e-01 ± 1e-02**" in structured_table("smoothing", rows, "structured", expected=1)
    seeds = [rows[0] | {"seed": seed, "regret_mean": mean} for seed, mean in enumerate((0.1, 0.3))]
    assert "**2.00e-01 ± 1e-01**" in structured_table("smoothing", seeds, "structured", expected=2)
    assert "**4.00e-01" not in text
    assert "soc (1 of 3 seeds)" in text


def test_models_that_a_trivial_decision_beats_are_named_and_seeds_counted() -> None:
    (first,) = cells("smoothing", ["soc"])
    regrets = {"soc": 0.1, "norm": 0.2, "relu": 0.4, "zero": 0.3, "moving_average": 0.15}
    rows = [
        first.identity | dict.fromkeys(MEASURED) | {"method": name, "regret_mean": regret, "regret_stderr": 0.01}
        for name, regret in regrets.items()
    ]
    text = structured_table("smoothing", [row | {"versions": {}} for row in rows], "structured", expected=1)
    assert "- lose to zero: relu\n" in text
    assert "- lose to moving average: relu, norm\n" in text
    assert "- one seed" in text


def test_photographs_and_drawn_faces_have_tables_of_their_own_and_the_newest_rows_count(capsys) -> None:
    (first, *_) = cells("restoration", ["relu"], ["plain"])
    numbers = {
        "regret_stderr": 0.01,
        "reference_gap": 1e-9,
        "spread": 1.0,
        "status": "ok",
        "machine": "m",
        "versions": {},
    }
    row = first.identity | dict.fromkeys(MEASURED) | numbers
    rows = [row | {"seed": seed, "regret_mean": 1.0, "key": f"a{seed}"} for seed in (0, 1)]
    other = row["config"] | {"images": "photographs"}
    rows += [
        row | {"seed": seed, "regret_mean": mean, "config": other} for seed, mean in ((0, 9.0), (0, 3.0), (1, 3.0))
    ]
    write_structured(Results(rows, []), {})
    text = capsys.readouterr().out
    assert text.count("1.00e+00 ± 0e+00") == text.count("3.00e+00 ± 0e+00") == 1


def test_the_commands(tmp_path, monkeypatch, capsys) -> None:
    for name, setting in SETTINGS.items():
        for size, value in SMALL[name].items():
            monkeypatch.setitem(setting.sizes, size, value)
    for experiment, more in (("smoothing", []), ("restoration", ["--stand-in"])):
        store = tmp_path / f"{experiment}.jsonl"
        asked = [
            experiment,
            "--methods",
            *STRUCTURED_TRIVIAL[experiment],
            "--seeds",
            "0",
            "--jobs",
            "1",
            "--store",
            str(store),
            *more,
        ]
        assert main(asked) == 0
        assert len(ResultsStore(store).read().rows) == len(STRUCTURED_TRIVIAL[experiment])
        page = tmp_path / "again.md"
        assert main(["report", str(store), "--markdown", str(page)]) == 0
    assert main(["smoothing", "--methods", "dcp"]) == 2
    assert "unknown method" in capsys.readouterr().err


def test_restoration_without_photographs_says_how_to_get_them(monkeypatch, capsys, tmp_path) -> None:
    from soctk_tasks.faces import FacesNotFoundError

    def none(**_):
        raise FacesNotFoundError("no photographs found: set SOCTK_FACES")

    monkeypatch.setattr("soctk_evaluation.experiments.restoration.load_faces", none)
    assert main(["restoration", "--store", str(tmp_path / "r.jsonl")]) == 2
    assert "SOCTK_FACES" in capsys.readouterr().err
    assert torch.get_num_threads() >= 1
