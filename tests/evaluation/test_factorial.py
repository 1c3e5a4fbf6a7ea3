"""The factorial: every variant changes what it says and nothing else, and its page says what was measured."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import support

import soctk
from soctk_evaluation.cli import main
from soctk_evaluation.cli.commands import Factorial, Leaderboard
from soctk_evaluation.experiments.factorial import EXPERIMENT, factorial_cells, make_variant, run_cell
from soctk_evaluation.experiments.leaderboard import leaderboard_cells, measure
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.store import ResultsStore
from soctk_evaluation.harness.variants import HIDDEN, HYPERBOLICS, KINDS, VARIANTS
from soctk_evaluation.tables.factorial import ratios, verdict

SIZES = {"train": 20, "validation": 10, "test": 6, "candidates": 8}
FIT = soctk.FitConfig(epochs=1, lbfgs_iterations=2, newton_iterations=1)
DIMS = [4, 40]
"""Below and beyond the dimension where SOC's quadratic block is dense."""


def cell_of(name: str, task: str = "box_socp") -> Cell:
    asked = Factorial(methods=(name,), tasks=(task,), dims=(4,), seeds=(0,))
    (cell,) = factorial_cells(asked, SIZES, FIT)
    return cell


def blocks_of(model: soctk.ConvexSurrogate) -> set[str]:
    return {block for structure in model.config()["structures"] for block in structure}


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith(("soc", "norm", "quad", "relu"))])
def test_a_variant_has_no_block_that_no_structure_switches(name: str, dim: int) -> None:
    model = make_variant(name, dim, context_dim=3, seed=0)
    if model.config()["structures"]:
        assert set(model.blocks) == blocks_of(model)
    for index in range(model.traits.structures):
        model.set_structure(index)
        assert model.traits.blocks


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_that_is_off_is_in_no_structure(kind: str, dim: int) -> None:
    soc, without = (make_variant(name, dim, context_dim=3, seed=0) for name in ("soc", f"soc_no_{kind}"))
    assert any(block.startswith(KINDS[kind]) for block in soc.blocks)
    assert blocks_of(without) == {block for block in blocks_of(soc) if not block.startswith(KINDS[kind])}
    assert without.conditioning == soc.conditioning
    assert without.level_squares == soc.level_squares


def test_the_backbone_is_forced_into_every_structure() -> None:
    model = make_variant("soc_backbone", 10, context_dim=3, seed=0)
    assert all("backbone" in structure for structure in model.structures)
    assert len(model.structures) == 3
    assert model.centred == 0


def test_a_norm_network_gets_what_soc_has() -> None:
    model = make_variant("norm_small", 10, context_dim=3, seed=0)
    assert (model.hidden, model.hyperbolics, model.quadratics) == (HIDDEN, HYPERBOLICS, ())
    assert model.traits.gauss_newton
    assert not make_variant("norm", 10, context_dim=3, seed=0).traits.gauss_newton
    soc = make_variant("soc", 10, context_dim=3, seed=0)
    assert (soc.hidden, soc.hyperbolics) == (HIDDEN, HYPERBOLICS)


def test_variants_are_compared_with_one_of_their_own_method_and_differ_by_recipe_or_sizes() -> None:
    for name, variant in VARIANTS.items():
        assert VARIANTS[variant.beside].method == variant.method
        if name != variant.beside:
            own, other = (make_variant(each, 10, context_dim=3, seed=0) for each in (name, variant.beside))
            assert own.config() != other.config() or variant.recipe != VARIANTS[variant.beside].recipe, name


def test_soc_as_it_is_is_the_leaderboards() -> None:
    asked = Leaderboard(methods=("soc",), tasks=("box_socp",), dims=(4,), seeds=(0,))
    (cell,) = leaderboard_cells(asked, SIZES, FIT)
    own, found = measure(cell), run_cell(cell_of("soc"))
    assert dict(cell.config) == dict(cell_of("soc").config)
    assert own["regret_mean"] == found["regret_mean"]
    assert own["structure"] == found["structure"]


@pytest.mark.parametrize("name", ["soc_no_quadratic", "soc_backbone", "soc_constant_weights", "norm_ladder", "dcp"])
def test_a_row_is_complete(name: str) -> None:
    row = run_cell(cell_of(name))
    assert row["status"] == "ok"
    assert math.isfinite(row["regret_mean"])
    assert row["fit_status"] in {"converged", "iteration_limit"}
    assert (row["structure"] is None) == (name == "dcp")


def test_the_recipe_of_a_variant_is_in_its_cell_and_its_code_in_the_key() -> None:
    assert dict(cell_of("soc_lbfgs").config)["fit.optimizer"] == "lbfgs"
    assert len({EXPERIMENT.key(cell_of(name)) for name in VARIANTS}) == len(VARIANTS)
    assert EXPERIMENT.versions(cell_of("dcp"))["code"] != EXPERIMENT.versions(cell_of("soc"))["code"]


def test_an_unknown_variant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["factorial", "--methods", "soc_no_norm"]) == 2
    assert "did you mean soc_no_norms?" in capsys.readouterr().err


def rows(regrets: dict[str, float]) -> list[dict[str, object]]:
    scale = {"box_socp": 1.0, "simplex_socp": 4.0}
    return [
        support.row(experiment="factorial", method=name, task=task, seed=seed, regret_mean=value * factor * (1 + seed))
        | {"structure": f"{seed}: diagonal norm0", "fit_status": "converged"}
        for name, value in regrets.items()
        for task, factor in scale.items()
        for seed in (0, 1)
    ]


def test_ratios_are_to_soc_or_to_the_row_beside() -> None:
    found = rows({"soc": 0.1, "norm": 0.4, "norm_lm": 0.2})
    assert {name: ratio.mean for name, (ratio, _) in ratios(found).items()} == pytest.approx({"norm": 4, "norm_lm": 2})
    ((name, (ratio, tasks)),) = ratios(found, None).items()
    assert (name, ratio.mean, tasks) == ("norm_lm", pytest.approx(0.5), pytest.approx([0.5, 0.5]))


def test_ratios_are_of_one_code_also_where_later_code_has_measured_the_other_again(tmp_path: Path) -> None:
    found = rows({"soc": 0.1, "norm": 0.4})
    later = rows({"soc": 0.05, "soc_no_race": 0.1})
    for row in later:
        row["versions"] = {"code": "later"}
        row["key"], row["started"] = f"later {row['key']}", "2026-02-01T00:00:00+00:00"
    both = {name: ratio.mean for name, (ratio, _) in ratios([*found, *later]).items()}
    assert both == pytest.approx({"soc_no_race": 2, "norm": 4})
    store, page = ResultsStore(tmp_path / "rows.jsonl"), tmp_path / "page.md"
    store.append(*found, *later)
    assert main(["report", str(store.path), "--markdown", str(page)]) == 0
    lines = [line for line in page.read_text().splitlines() if re.match(r"\| (norm|soc_no_race) \| [ae]", line)]
    shown = [line.split("|")[3].split()[0] for line in lines]
    assert shown == ["2.00", "4.00"]


def test_the_verdict_names_a_change_only_where_its_interval_excludes_one() -> None:
    found = rows({"soc": 0.1, "soc_lbfgs": 0.3, "soc_no_race": 0.05, "soc_no_level": 0.1})
    for row in found:
        if row["method"] == "soc_no_level":
            row["regret_mean"] *= 9 if row["task"] == "box_socp" else 1 / 8  # type: ignore[operator]
    cost, save, neither, _ = verdict(found).splitlines()[2:]
    assert cost.endswith("above 1: `soc_lbfgs` 3.00 (3 to 3).")
    assert save.endswith("below 1: `soc_no_race` 0.50 (0.5 to 0.5).")
    assert "`soc_no_level` 1.06" in neither
    assert "`soc_lbfgs`" not in neither


def test_each_suite_has_a_table_of_its_own_rows(tmp_path: Path) -> None:
    own = {"box_socp": 2.0, "box_dense": 16.0}
    found = [
        support.row(experiment="factorial", method=name, task=task, regret_mean=0.1 * factor ** (name != "soc"))
        for task, factor in own.items()
        for name in ("soc", "soc_lbfgs")
    ]
    store, page = ResultsStore(tmp_path / "rows.jsonl"), tmp_path / "page.md"
    store.append(*found)
    assert main(["report", str(store.path), "--markdown", str(page)]) == 0
    first, second = page.read_text().split("## Mean regret on three tasks of our own, d = ")
    for text, factor in ((first, 2), (second, 16)):
        (line,) = [line for line in text.splitlines() if line.startswith("| soc_lbfgs | L-BFGS")]
        assert line.split("|")[3].strip() == f"{factor:.2f}"


def test_the_page_says_what_was_chosen_and_by_which_code(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "rows.jsonl")
    store.append(*rows({"soc": 0.1, "soc_lbfgs": 0.3, "norm": 0.4}))
    page, figure = tmp_path / "page.md", tmp_path / "page.svg"
    assert main(["report", str(store.path), "--markdown", str(page), "--figure", str(figure)]) == 0
    text = page.read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("| soc_lbfgs | L-BFGS")]
    assert line.split("|")[3].strip().startswith("3.00 (3 to 3)")
    assert "| soc | 0 1 | 0 1 | 0% | 0: diagonal norm0; 1: diagonal norm0 |" in text
    assert "(how many, when): aaa (12, " in text
    assert figure.stat().st_size > 0
