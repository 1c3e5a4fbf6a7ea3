"""The experiments on the theory, at small sizes: what they find, and that they would find a fault."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from tolerances import CLARABEL, DOUBLE, FIRST_ORDER, VALUE

from soctk import Dual
from soctk_evaluation.cli import main
from soctk_evaluation.cli.commands import Equivalence
from soctk_evaluation.experiments import scaling
from soctk_evaluation.experiments.equivalence import SETTINGS, Trial, _model, _points, equivalence_cells, run_cell
from soctk_evaluation.experiments.rates import Residual, absorption, least_error, rate_cells, trained_pieces
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.experiment import Results
from soctk_evaluation.harness.store import ResultsStore
from soctk_evaluation.tables.equivalence import diagnostic_table, grouped
from soctk_evaluation.tables.rates import rates_tables

SMALL = {"dim": 6, "width": 5, "depth": 3, "rows": 3, "trials": 4}


def cells_of(settings, weights, seeds, sizes) -> list[Cell]:
    asked = Equivalence(settings=tuple(settings), methods=tuple(weights), seeds=tuple(seeds))
    return equivalence_cells(asked, sizes)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_random_model_is_the_value_of_its_lift(setting: str) -> None:
    (cell,) = cells_of([setting], ["random"], [0], SMALL)
    row = run_cell(cell)
    assert row["clarabel_successes"] == row["scs_successes"] == row["trials"] == 4
    assert row["value_mean"] > 10.0
    closed = ("primal_dual_gap", "primal_violation", "dual_violation", "complementarity", "dual_slope")
    assert max(row[f"{name}_max"] for name in closed) <= VALUE[DOUBLE] * row["value_max"]
    for solver in ("clarabel", "scs"):
        residuals = ("error", "gap", "primal_violation", "dual_violation", "chain_violation", "ball_violation")
        tight = ("quadratic_tightness", "norm_tightness", "alignment")
        assert max(row[f"{solver}_{name}_max"] for name in (*residuals, *tight)) <= CLARABEL
    assert all(row[name] > 0 for name in ("forward_ms", "frozen_ms", "build_ms", "cvxpy_ms", "forward_batch_ms"))


@pytest.fixture
def trial() -> Trial:
    (cell,) = cells_of(["passthrough"], ["random"], [1], SMALL)
    points, contexts = _points(cell, 1)
    return Trial(_model(cell), points[0], contexts[0])


def test_biases_and_contexts_are_not_zero(trial: Trial) -> None:
    assert all(float(term.offset.abs().min()) > 0 for term in trial.form.terms)
    other = trial.model.conic_form(torch.zeros_like(trial.context)).detach()
    assert float((other.terms[0].offset - trial.form.terms[0].offset).abs().min()) > 0


def test_a_wrong_dual_point_would_be_seen(trial: Trial, monkeypatch) -> None:
    good = trial.form.dual(trial.x)
    for index in range(3):
        parts = list(good.parts)
        parts[index] = parts[index] * 1.001
        monkeypatch.setattr(type(trial.form), "dual", lambda self, x, parts=parts: Dual(tuple(parts)))
        found = trial.closed_form()
        assert max(found["primal_dual_gap"], found["dual_violation"]) > 1e-6
        assert found["dual_slope"] > 1e-6


def test_a_wrong_lift_would_be_seen(trial: Trial) -> None:
    trial.program = dataclasses.replace(trial.program, b=trial.program.b + 0.01)
    assert trial.closed_form()["primal_violation"] == 0.0  # more room, but
    _, _, found = trial.solved("CLARABEL")
    assert found["clarabel_error"] > 1e-4
    trial.program = dataclasses.replace(trial.program, b=trial.program.b - 0.02)
    assert trial.closed_form()["primal_violation"] > 1e-3


def test_a_trained_model_is_kept_for_the_other_seeds(tmp_path, monkeypatch) -> None:
    cells = cells_of(["no_passthrough"], ["trained"], [0, 1], SMALL | {"trials": 1})
    row = run_cell(cells[0], tmp_path)
    monkeypatch.setattr("soctk.fit", lambda *_, **__: pytest.fail("trained again"))
    assert run_cell(cells[1], tmp_path)["relative_error"] == row["relative_error"] < 1.0
    assert row["primal_dual_gap_max"] <= VALUE[DOUBLE] * max(1.0, row["value_max"])
    assert row["clarabel_error_max"] <= CLARABEL


def test_errors_fall_at_the_theorems_rate_and_never_below_the_bound() -> None:
    for dim, sides in ((1, (16, 64)), (2, (6, 12))):
        first, last = (absorption(dim, side, seed=0) for side in sides)
        order = math.log(first["sup_error"] / last["sup_error"]) / math.log(first["pieces"] / last["pieces"])
        assert order == pytest.approx(-2 / dim, abs=0.2)
        assert all(0.02 * found["bound"] <= found["sup_error"] <= found["bound"] for found in (first, last))
    for dim in (1, 2):
        found = trained_pieces(dim, (4,), seed=0)
        assert found["sup_error"] >= found["bound"] == least_error(dim, found["pieces"])


def test_no_curvature_exceeds_its_bound() -> None:
    residual = Residual(3, seed=0)
    for x in torch.randn(20, 3, dtype=torch.float64):
        hessian = torch.autograd.functional.hessian(lambda point: residual(point), x)
        assert float(torch.linalg.eigvalsh(hessian)[-1]) <= residual.curvature


def test_the_lower_bound_in_one_dimension() -> None:
    """N equal pieces of x^2 / 2 on [-1, 1] reach (2 / N)^2 / 16: there the bound is attained."""
    for pieces in (1, 4, 100):
        assert least_error(1, pieces) == pytest.approx((2 / pieces) ** 2 / 16)
        assert least_error(1, 4 * pieces) == pytest.approx(least_error(1, pieces) / 16)


def test_the_commands_write_pages_and_pictures_and_resume(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("soctk_evaluation.experiments.equivalence.SIZES", SMALL | {"blocks": 2, "trials": 2})
    monkeypatch.setattr("soctk_evaluation.experiments.rates.NETS", {1: (2, 4)})
    monkeypatch.setattr("soctk_evaluation.experiments.rates.WIDTHS", {1: ((2,),)})
    monkeypatch.setattr("soctk_evaluation.experiments.scaling.AXES", {"width": (3, 4), "side": (3,), "steps": (2,)})
    for name in ("equivalence", "rates", "scaling"):
        store, page, picture = (tmp_path / f"{name}.{kind}" for kind in ("jsonl", "md", "svg"))
        options = ["--store", str(store), "--markdown", str(page), "--figure", str(picture), "--jobs", "1"]
        more = {
            "equivalence": ["--methods", "random", "--seeds", "0"],
            "scaling": ["--axes", "width", "side", "steps"],
        }.get(name, [])
        assert main([name, *options, *more]) == 0
        assert page.read_text().count("|") > 20
        drawn = picture.read_text()
        assert "<svg" in drawn
        rows = ResultsStore(store).read().rows
        assert rows
        assert main([name, *options, *more]) == 0
        assert picture.read_text() == drawn, "the same rows, the same file"
        assert len(ResultsStore(store).read().rows) == len(rows)
        assert "already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("axis", "size"),
    [("width", 4), ("depth", 1), ("dim", 3), ("quadratic_rows", 2), ("norm_rows", 2), ("side", 3), ("steps", 3)],
)
def test_every_model_whose_growth_is_timed_is_its_lift_s_value(axis: str, size: int) -> None:
    config = (("size", size), ("trials", 2))
    found = scaling.run_cell(Cell("scaling", axis, scaling.dimension(axis, size), "any", 0, "values", config))
    assert found["clarabel_solved"] == found["scs_solved"] == 2
    assert max(found["clarabel_error"], found["cvxpy_error"]) <= CLARABEL
    assert found["scs_error"] <= FIRST_ORDER
    assert found["value"] > 0.1


def test_a_row_is_measured_again_by_its_key(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("soctk_evaluation.experiments.rates.NETS", {1: (2, 4)})
    monkeypatch.setattr("soctk_evaluation.experiments.rates.WIDTHS", {})
    store = tmp_path / "rows.jsonl"
    assert main(["rates", "--store", str(store), "--jobs", "1"]) == 0
    row, other = ResultsStore(store).read().rows
    asked = ["repeat", row["key"][:10], "--store", str(store)]
    assert main(asked) == 0
    assert "largest difference 0.0e+00" in capsys.readouterr().out
    ResultsStore(store).append(row | {"sup_error": row["sup_error"] + 1e-3, "versions": {"code": "older"}})
    assert main(asked) == 1
    assert "code older is now" in capsys.readouterr().err
    assert main([*asked, "--tolerance", "0.01"]) == 0
    for key in ("0", "no such key", other["key"][:5]):
        assert main(["repeat", key, "--store", str(store)]) == 2
        assert "KEY: expected" in capsys.readouterr().err


def test_tables_name_the_largest_value_of_all_seeds() -> None:
    cells = cells_of(["passthrough"], ["random"], [0, 1], SMALL | {"trials": 1})
    rows = [cell.identity | run_cell(cell) | {"status": "ok"} for cell in cells]
    text = diagnostic_table(grouped(Results(rows, [])))
    largest = max(row["clarabel_error_max"] for row in rows)
    assert f"{largest:.1e}" in text
    assert "| SCS | runs solved | 2 | |" in text


def test_rates_tables_hold_every_cell() -> None:
    rows = [
        cell.identity | {"pieces": number + 1, "sup_error": 0.1, "bound": 0.05, "status": "ok"}
        for number, cell in enumerate(rate_cells())
    ]
    text = rates_tables(Results(rows, []))
    assert text.count("\n|") >= len(rows)
    assert np.isfinite(least_error(3, 10))
