"""The leaderboard's cells and rows, on small data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import soctk
from soctk.learn.report import FitReport, FitStatus
from soctk_baselines import DCP
from soctk_evaluation.cli.commands import Leaderboard
from soctk_evaluation.experiments import leaderboard, recipes
from soctk_evaluation.experiments.leaderboard import (
    EXPERIMENT,
    MEASURED,
    config_of,
    data_seed,
    leaderboard_cells,
    load_problem,
    run_cell,
)
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.fits import Learned, kept
from soctk_evaluation.harness.names import decision_methods
from soctk_evaluation.harness.recipe import fit_fields, learn, recipe_config
from soctk_evaluation.harness.store import problem_of

RESULTS = Path(__file__).resolve().parents[2] / "evaluation" / "results"
SIZES = {"train": 20, "validation": 10, "test": 6, "candidates": 8}
FIT = soctk.FitConfig(epochs=1, lbfgs_iterations=2, newton_iterations=2, optima_iterations=20)


def cells_of(tasks, dims, methods, seeds, protocol="exact", **more) -> list[Cell]:
    names = {"tasks": tuple(tasks), "methods": tuple(methods), "protocol": protocol}
    return leaderboard_cells(Leaderboard(**names, dims=tuple(dims), seeds=tuple(seeds)), **more)


def one_cell(method: str, protocol: str = "exact") -> Cell:
    (cell,) = cells_of(["box_socp"], [4], [method], [0], protocol, sizes=SIZES, fit=FIT)
    return cell


def test_cells_are_all_combinations_long_ones_first() -> None:
    cells = cells_of(["box_socp", "simplex_socp"], [10, 20], ["constant", "dcp"], [0, 1])
    assert len(cells) == len(set(cells)) == 16
    assert [cell.dim for cell in cells] == [20] * 8 + [10] * 8
    assert [cell.method for cell in cells[:8]] == ["dcp"] * 4 + ["constant"] * 4


def test_dimensions_that_are_not_asked_for_are_the_papers_or_the_tasks_own() -> None:
    tasks = ("box_socp", *recipes.OWN_DIMS)
    for quick, usual in ((False, recipes.DIMS), (True, (10,))):
        asked = Leaderboard(tasks=tasks, methods=("soc",), seeds=(0,), quick=quick)
        found = {(cell.task, cell.dim) for cell in leaderboard_cells(asked)}
        expected = {"box_socp": usual, **recipes.OWN_DIMS}
        assert found == {(name, dim) for name, dims in expected.items() for dim in dims}


def test_the_recipe_and_the_sizes_are_in_the_key_and_its_progress_bar_is_not() -> None:
    def key(**changes: object) -> str:
        config = soctk.FitConfig(**changes)  # type: ignore[arg-type]
        return EXPERIMENT.key(cells_of(["box_socp"], [4], ["soc"], [0], fit=config)[0])

    assert key() == key(progress=True)
    assert key() != key(epochs=3)
    small = cells_of(["box_socp"], [4], ["soc"], [0], sizes={"test": 20})
    assert EXPERIMENT.key(small[0]) != key()


def test_rows_from_before_a_recipe_had_switches_keep_their_cell() -> None:
    rows = [json.loads(line) for line in (RESULTS / "leaderboard.jsonl").read_text().splitlines()]
    row = next(row for row in reversed(rows) if row["method"] == "soc")
    assert {name for name in row["config"] if name.startswith("fit.")} == set(recipe_config(soctk.FitConfig()))
    switched = recipe_config(soctk.FitConfig(race=False, optimizer="lbfgs"))
    assert {"fit.race", "fit.optimizer"} == set(switched) - set(row["config"])
    averaged = next(row for row in reversed(rows) if row["method"] == "soc+focus")
    assert {"fit.members", "fit.focus"} == set(averaged["config"]) - set(row["config"])


@pytest.mark.parametrize("dim", [10, 20, 50])
def test_all_methods_and_settings_may_take_as_many_steps(dim: int) -> None:
    """An iteration limit that some end at and others do not is an advantage that no table shows."""
    steps = {name: dict(config_of(name, "box_socp", dim))["fit.lbfgs_iterations"] for name in decision_methods()}
    assert set(steps.values()) == {recipes.RECIPE.lbfgs_iterations}


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="exact paper"):
        cells_of(["box_socp"], [4], ["soc"], [0], "fast")


def test_the_three_data_sets_differ() -> None:
    assert len({data_seed(seed, part) for seed in range(20) for part in (1, 2, 3)}) == 60
    problem = load_problem("box_socp", 4, 0, *SIZES.values())
    first = [tuple(data.context[0].tolist()) for data in (problem.train, problem.validation, problem.test)]
    assert len(set(first)) == 3
    assert (problem.optimum.status == "optimal").all()


@pytest.mark.parametrize("protocol", ["exact", "paper"])
def test_the_oracles_row_is_the_solvers_own_regret(protocol: str) -> None:
    row = run_cell(one_cell("oracle", protocol))
    assert set(row) == {*MEASURED, "status"}
    assert row["regret_mean"] == row["solver_regret"]
    assert row["relative_error"] == 0.0
    assert row["decided_by"] == {"exact": "newton", "paper": "projected_adam"}[protocol]
    assert row["regret_n"] == SIZES["test"]


@pytest.mark.parametrize(
    "method", ["soc", "relu", "dcp", "pcf", "ickan", "quadratic", "dcp+optima", "dcp+fy", "soc+regret"]
)
def test_a_learned_row_is_complete_finite_and_repeatable(method: str, tmp_path: Path) -> None:
    if method.partition("+")[0] not in soctk.surrogate_names():
        pytest.skip("the project is not installed, so its surrogates are not registered")
    row = run_cell(one_cell(method))
    own = {"soc", "relu"} & {method.partition("+")[0]}  # the surrogates that name their blocks
    expected = set(MEASURED) - (set() if "+" in method else {"step_seconds"}) - (set() if own else {"structure"})
    assert all(isinstance(row[name], str) or math.isfinite(row[name]) for name in expected)
    timed = ("fit_seconds", "step_seconds", "decide_ms")
    for _ in ("learned anew and kept", "taken from there"):
        again = run_cell(one_cell(method), tmp_path)
        assert {name: row[name] for name in row if name not in timed} == {
            name: again[name] for name in again if name not in timed
        }


def test_cells_that_begin_with_one_surrogate_learn_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[str] = []

    def counted(*arguments: Any) -> Any:
        learned.append(type(arguments[0]).__name__)
        return learn(*arguments)

    monkeypatch.setattr(leaderboard, "learn", counted)
    plain = run_cell(one_cell("soc"), tmp_path)
    tuned = run_cell(one_cell("soc+optima"), tmp_path)
    assert run_cell(one_cell("soc", "paper"), tmp_path)["fit_seconds"] == plain["fit_seconds"] < tuned["fit_seconds"]
    assert len(learned) == 1
    (file,) = tmp_path.glob("*/*")
    assert file.stem == EXPERIMENT.key(one_cell("soc"))
    assert soctk.load(file).parameter_count == plain["params"]
    run_cell(one_cell("soc+units"), tmp_path)  # is learned otherwise
    file.write_bytes(file.read_bytes()[:-9])
    run_cell(one_cell("soc"), tmp_path)
    run_cell(one_cell("soc"), tmp_path)
    assert len(learned) == 3


def test_what_cannot_be_saved_is_learned_by_every_cell(tmp_path: Path) -> None:
    class Bare(soctk.ConvexSurrogate):
        """Without `config`."""

    learned = Learned(Bare(2, 1), 0, 1.0)
    for file in (tmp_path / "fit.safetensors", Path("/proc/fit.safetensors")):
        assert kept(file, lambda: learned) is learned
        assert not file.exists()


def test_a_setting_begins_where_its_method_ended_and_has_its_own_key() -> None:
    cells = {method: one_cell(method) for method in ("dcp", "dcp+fy", "dcp+regret")}
    keys = {EXPERIMENT.key(cell) for cell in cells.values()}
    assert len(keys) == 3
    assert "fit.optima_weights" in dict(cells["dcp+fy"].config)
    assert "fit.optima_weights" not in dict(cells["dcp"].config)
    plain, tuned = (EXPERIMENT.versions(cells[method]) for method in ("dcp", "dcp+fy"))
    assert plain == {name: value for name, value in tuned.items() if name != "setting_code"}
    rows = {method: run_cell(cell) for method, cell in cells.items()}
    assert rows["dcp"]["params"] == rows["dcp+fy"]["params"]
    assert rows["dcp"]["relative_error"] != rows["dcp+fy"]["relative_error"]


def test_spo_is_refused_where_the_objective_is_not_linear() -> None:
    with pytest.raises(ValueError, match="linear in x"):
        run_cell(one_cell("dcp+spo"))


def test_policies_and_other_packages_have_no_settings() -> None:
    for method in ("constant+fy", "oracle+fy", "lpcf+fy", "soc+nothing"):
        with pytest.raises(ValueError, match="unknown method"):
            cells_of(["box_socp"], [4], [method], [0])


def test_cvxpylayers_decides_and_is_differentiated_by_its_protocol() -> None:
    pytest.importorskip("cvxpylayers")
    cell = one_cell("dcp+regret", "cvxpylayers")
    assert dict(cell.config)["fit.optima_weights"] == (1.0,)
    assert math.isfinite(run_cell(cell)["step_seconds"])
    row, exact = run_cell(one_cell("dcp", "cvxpylayers")), run_cell(one_cell("dcp"))
    assert row["decided_by"] == "cvxpylayers"
    assert row["regret_mean"] == pytest.approx(exact["regret_mean"], rel=1e-3)


@pytest.mark.parametrize("method", ["constant", "affine"])
def test_a_policys_row_has_regret_and_no_relative_error(method: str) -> None:
    pytest.importorskip("soctk_baselines.policies", reason="the policies are not there")
    row = run_cell(one_cell(method))
    assert row["regret_mean"] > 0
    assert row["relative_error"] is None
    assert row["decided_by"] == "policy"
    assert math.isnan(row["solver_regret"])


def test_decisions_are_made_over_sets_that_move() -> None:
    (cell,) = cells_of(["moving_dispatch"], [4], ["quadratic"], [0], sizes=SIZES, fit=FIT)
    row = run_cell(cell)
    assert row["status"] == "ok"  # none was infeasible
    assert row["regret_mean"] >= -1e-6
    assert abs(row["solver_regret"]) <= 1e-5
    (cell,) = cells_of(["moving_dispatch"], [4], ["constant"], [0], sizes=SIZES)
    row = run_cell(cell)
    assert "scored at their projection" in row["status"]
    assert row["regret_mean"] > 0


def test_an_objective_without_a_conic_form_has_an_oracle_and_no_newton() -> None:
    pytest.importorskip("matpowercaseframes", reason="needs the extra `grid`")
    (cell,) = cells_of(["voltage"], [2], ["quadratic"], [0], sizes=SIZES, fit=FIT)
    assert math.isnan(run_cell(cell)["solver_regret"])
    (cell,) = cells_of(["voltage"], [2], ["oracle"], [0], sizes=SIZES)
    row = run_cell(cell)
    assert row["decided_by"] == "cvxpy"
    assert abs(row["regret_mean"]) <= 1e-4


def test_identity_and_measurements_make_a_valid_row() -> None:
    cell = one_cell("oracle")
    rest = {
        "status": "ok",
        "key": EXPERIMENT.key(cell),
        "versions": EXPERIMENT.versions(cell),
        "machine": "test",
        "started": "now",
    }
    assert problem_of({**cell.identity, **dict.fromkeys(MEASURED), **rest}) is None


def test_a_row_says_how_its_fit_ended_and_which_structure_it_has() -> None:
    row = run_cell(one_cell("soc"))
    assert row["status"] == "ok"
    assert row["fit_status"] in {"converged", "iteration_limit"}
    model = soctk.make_surrogate("soc", 4, load_problem("box_socp", 4, 0, *SIZES.values()).task.context_dim)
    number, *blocks = row["structure"].split()
    model.set_structure(int(number.removesuffix(":")))
    assert set(model.traits.blocks) == set(model.structures[model.structure])
    model.set_structure(model.structure, [block for block in model.traits.blocks if block not in blocks])
    assert set(blocks) == set(model.traits.blocks)
    assert run_cell(one_cell("relu"))["structure"] == "backbone"
    assert run_cell(one_cell("oracle"))["fit_status"] is None


def test_a_row_says_how_many_units_of_the_context_were_kept() -> None:
    model = soctk.SOCICNN(4, 3, hidden=(), diagonal=True, context_units=5)
    plain, unnamed = (DCP(4, 3, context_units=count) for count in (0, 7))
    found = [fit_fields(FitReport(FitStatus.CONVERGED, model=each))["structure"] for each in (model, plain, unnamed)]
    assert found == ["diagonal units5", None, "units7"]
    config = dict(config_of("soc+units", "box_socp", 10))
    assert config["fit.context_units"] > 0
    assert {name for name in config if config[name] != dict(config_of("soc", "box_socp", 10)).get(name)} == {
        "fit.context_units"
    }


@pytest.mark.parametrize(
    ("task", "dim", "projects"), [("box_socp", 10, False), ("box_socp", 50, True), ("voltage", 8, True)]
)
def test_the_template_of_pcf_is_learned_whole_below_50_where_values_are_not_steep(
    task: str, dim: int, projects: bool
) -> None:
    """The field is there only where it is not the recipe's default, which is to project."""
    assert dict(config_of("pcf_template", task, dim)).get("fit.project_affine", True) == projects
