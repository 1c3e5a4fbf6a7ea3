"""The approximation experiment: the paper's sizes, its rows, tables, figure and command, on small data."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import support
import torch

import soctk
from soctk_evaluation.cli import main
from soctk_evaluation.cli.commands import Approximation
from soctk_evaluation.experiments.approximation import (
    EXPERIMENT,
    MEASURED,
    QUICK_RECIPE,
    RECIPE,
    WIDTHS,
    approximation_cells,
    constant_error,
    load_data,
    run_cell,
    sized,
)
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.experiment import Results
from soctk_evaluation.harness.names import APPROXIMATORS, WITH_LINEAR, split
from soctk_evaluation.harness.store import Contents, ResultsStore
from soctk_evaluation.tables.approximation import ERROR, write_approximation
from soctk_evaluation.tables.report import to_markdown
from soctk_evaluation.tables.summary import build_tables

SIZES = {"train": 60, "validation": 20, "test": 30}
FIT = soctk.FitConfig(starts=1, epochs=1, batch_rows=30, lbfgs_iterations=3)
SIZED = ("soc", "relu", "softplus", "quad", "norm", "ickan")


def cells_of(targets, dims, methods, seeds, **more) -> list[Cell]:
    asked = Approximation(targets=tuple(targets), dims=tuple(dims), methods=tuple(methods), seeds=tuple(seeds))
    return approximation_cells(asked, **more)


def one_cell(method: str) -> Cell:
    (cell,) = cells_of(["Mixed"], [3], [method], [0], sizes=SIZES, fit=FIT)
    return cell


@pytest.mark.parametrize(("dim", "count"), [(5, 527), (10, 1083), (20, 2451), (50, 9423)])
def test_sizes_are_the_papers(dim: int, count: int) -> None:
    """SOC's own, and for every other method the fewest layers (or the least width) with as many weights."""
    assert sized("soc", dim).parameter_count == count
    for method in SIZED:
        model = sized(method, dim)
        assert model.parameter_count >= count
        if method not in ("soc", "ickan"):
            assert set(model.hidden) == {WIDTHS[dim]}
        if method != "soc":
            smaller = model.hidden[:-1] if method != "ickan" else (model.hidden[0] - 1,)
            assert len(smaller) == 1 or _with(model, smaller) < count


def _with(model: soctk.ConvexSurrogate, hidden: tuple[int, ...]) -> int:
    return type(model)(**{**model.config(), "hidden": hidden}).parameter_count


@pytest.mark.parametrize("method", WITH_LINEAR)
def test_the_linear_setting_adds_the_term_and_nothing_else(method: str) -> None:
    base, model = sized(split(method)[0], 5), sized(method, 5)
    points, slope = torch.linspace(-3, 3, 20).reshape(4, 5), torch.linspace(-1, 2, 5)
    model.load_state_dict(base.state_dict() | {"affine.slope.constant": slope})
    assert torch.allclose(model(points), base(points) + points @ slope, atol=1e-5)


def test_the_published_counts_of_the_ablations() -> None:
    """By hand: at d = 5 both have three layers of 16, and then v or B, e and alpha."""
    layers = 16 * 5 + 16 + 2 * (16 * 5 + 16 + 16 * 16)
    assert sized("relu", 5).parameter_count == layers + 16 + 5 + 1
    assert sized("quad", 5).parameter_count == layers + 16 + 1 + 25 + 5 + 1


def test_cells_are_all_combinations_with_one_recipe() -> None:
    cells = cells_of(["Mixed", "Huber"], [5, 10], SIZED, [0, 1])
    assert len(set(cells)) == 2 * 2 * len(SIZED) * 2
    assert [cell.dim for cell in cells] == sorted((cell.dim for cell in cells), reverse=True)
    assert {cell.config for cell in cells} == {cells[0].config}
    assert dict(cells[0].config)["fit.lbfgs_iterations"] == RECIPE.lbfgs_iterations
    quick = cells_of(["Mixed"], [5], ["soc"], [0], fit=QUICK_RECIPE)
    assert EXPERIMENT.key(quick[0]) != EXPERIMENT.key(cells_of(["Mixed"], [5], ["soc"], [0])[0])


@pytest.mark.parametrize("method", APPROXIMATORS)
def test_a_row_is_complete_finite_and_repeatable(method: str) -> None:
    if method == "quadratic" and method not in soctk.surrogate_names():
        pytest.skip("the project is not installed, so its surrogates are not registered")
    row, again = run_cell(one_cell(method)), run_cell(one_cell(method))
    assert set(row) <= {*MEASURED, "status"}
    assert row.get("status", "ok") == "ok"
    assert math.isfinite(row["relative_error"])
    assert row["test_points"] == SIZES["test"]
    assert row["relative_error"] == again["relative_error"]


def test_the_constant_row_is_the_training_mean() -> None:
    train, _, test = load_data("Huber", 2, 0, *SIZES.values())
    error = (test.value - train.value.mean()).square().sum().sqrt() / test.value.square().sum().sqrt()
    assert constant_error(train, test) == pytest.approx(float(error))
    assert run_cell(cells_of(["Huber"], [2], ["constant"], [0], sizes=SIZES)[0])["relative_error"] == pytest.approx(
        float(error)
    )


def test_all_targets_of_a_seed_have_the_same_points() -> None:
    first, second = (load_data(name, 3, 1, *SIZES.values()) for name in ("Huber", "Mixed"))
    assert all(torch.equal(a.x, b.x) for a, b in zip(first, second, strict=True))
    assert not torch.equal(load_data("Huber", 3, 2, *SIZES.values())[0].x, first[0].x)


def error_row(method: str, error: float, **changes: object) -> dict:
    fields = {"experiment": "approximation", "protocol": "values", "task": "Mixed", "dim": 5, "test_points": 2000}
    return support.row(**{**fields, "method": method, "relative_error": error, "regret_mean": None, **changes})


def test_tables_show_errors_pooled_over_seeds_and_leave_the_leaderboard_out() -> None:
    rows = [
        error_row("soc", 0.1),
        error_row("soc", 0.3, seed=1),
        error_row("relu", 0.4),
        error_row("relu", 0.4, seed=1),
    ]
    rows += [error_row("constant", 0.01, seed=seed) for seed in (0, 1)] + [support.row()]
    (table,) = build_tables(Contents(rows, []), ERROR)
    assert table.title == "Relative l2 test error, d = 5"
    soc = next(line for line in table.learned if line.method == "soc")
    assert soc.regrets[0].mean == pytest.approx(0.2)
    assert soc.regrets[0].stderr == pytest.approx(0.1)  # of two seeds: their distance over two
    assert table.best() == {"soc"}
    assert [line.method for line in table.trivial] == ["constant"]
    assert "2000 test points a cell; 2 seeds" in table.notes
    text = to_markdown([table])
    assert "| method | Mixed | mean of targets | params | fit s |" in text
    assert "gap max" not in text


def test_the_page_says_first_where_soc_is_not_the_best(tmp_path: Path) -> None:
    """SOC with v'x counts against the others' errors, not among the paper's own wins."""
    errors = {
        "Mixed": {"soc": 0.1, "relu": 0.4},
        "Huber": {"soc": 0.3, "relu": 0.1},
        "L1Norm": {"soc": 0.3, "relu": 0.1},
    }
    errors["L1Norm"] |= {"soc+linear": 0.105, "quadratic": 0.1}
    rows = [error_row(method, error, task=target) for target, own in errors.items() for method, error in own.items()]
    page = tmp_path / "a.md"
    write_approximation(Results(rows, []), {"markdown": page}, quick_epochs=QUICK_RECIPE.epochs)
    text = page.read_text()
    assert "of 3 cells of target and seed, has relu in 2, soc in 1\n" in text
    assert "- d = 5: on Huber (3 times that of relu)\n" in text
    assert "- d = 5: on L1Norm (1.05 times that of quadratic)\n" in text
    assert text.index("did not reproduce") < text.index("| method |")


def test_the_command_writes_rows_page_and_figure_and_runs_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, page, figure = tmp_path / "a.jsonl", tmp_path / "docs" / "a.md", tmp_path / "docs" / "images" / "a.svg"
    command = ["approximation", "--targets", "Huber", "L1Norm", "--dims", "2", "3", "--methods", "constant"]
    command += ["--seeds", "0", "--jobs", "1", "--store", str(store), "--markdown", str(page), "--figure", str(figure)]
    assert main(command) == 0
    assert len(ResultsStore(store).read().rows) == 4
    assert "Relative l2 test error, d = 3" in page.read_text()
    assert figure.read_text().startswith("<?xml")
    capsys.readouterr()
    assert main(command) == 0
    assert f"4 of 4 cells were in {store} already" in capsys.readouterr().err
    assert len(ResultsStore(store).read().rows) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--targets", "Hubert"], "unknown target 'Hubert' (did you mean Huber?)"),
        (["--methods", "oracle"], "unknown method 'oracle'"),
        (["--dims", "0"], "--dims: expected integers of at least 1, got 0"),
        (["--jobs", "-1"], "--jobs: expected the number of workers"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["approximation", *arguments]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
