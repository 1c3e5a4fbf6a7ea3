"""`soctk decide` over sets from files and right-hand sides from columns: as in Python, priced, refuted, relaxed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import soctk
from soctk_evaluation.cli import main

DIM, COUNT = 3, 5
E, G = [[1.0, 1.0, 1.0]], [[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]]
DEMAND, LIMIT = [0.9, 1.2, 1.6, 9.0, 1.8], [0.1, 0.1, 0.1, 0.1, 0.3]
FILE = {"lower": 0.0, "upper": 1.0, "E": E, "f": [1.0], "G": G, "h": [0.5, 0.5]}
ROWS = ["--set", "grid.json", "--equality-columns", "demand", "--rhs-columns", "limit", "limit"]
EMPTY = 3


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """A folder with a known function, contexts whose fourth demand cannot be met, and a set; the contexts."""
    monkeypatch.chdir(tmp_path)
    contexts = pd.DataFrame({"context_heat": np.linspace(-1, 1, COUNT), "demand": DEMAND, "limit": LIMIT})
    contexts.assign(low=0.1, high=0.8, word="a").to_csv("days.csv", index=False)
    model = soctk.SOCICNN(DIM, 1, hidden=(), quadratics=(3,), seed=1).double()
    soctk.save(model, "model.st", notes={"columns": {"context": ["context_heat"], "x": ["x_gas", "x_coal", "x_sun"]}})
    soctk.save(soctk.from_quadratic(np.eye(DIM), np.array([-0.5, 0.0, 0.2])), "bowl.st")
    Path("grid.json").write_text(json.dumps(FILE))
    np.savez("grid.npz", **{name: np.array(value) for name, value in FILE.items()})
    bounds = np.column_stack([DEMAND, LIMIT, LIMIT])
    np.savez("days.npz", context=contexts[["context_heat"]].to_numpy(), demand=bounds[:, 0], limits=bounds[:, 1:])
    return contexts


def polyhedron(contexts: pd.DataFrame) -> soctk.sets.SetAt:
    """Return the same sets made in Python."""
    base = soctk.Polyhedron(DIM, 0.0, 1.0, E, [1.0], G, [0.5, 0.5])
    return base.at(f=contexts["demand"].tolist(), h=contexts[["limit", "limit"]].to_numpy(copy=True))


def decided(*arguments: str, model: str = "model.st", days: str | None = "days.csv", code: int = 1) -> pd.DataFrame:
    """Return what `soctk decide` writes."""
    given = ["decide", model, *([days] if days else []), *arguments, "--output", "plan.csv"]
    assert main(given) == code
    return pd.read_csv("plan.csv")


def test_columns_are_the_right_hand_sides_of_a_set_from_a_file(files: pd.DataFrame, capsys) -> None:
    plan = decided(*ROWS, "--prices")
    assert "4 of 5 decisions certified" in (said := capsys.readouterr().out)
    assert "the set is proved empty for 1;" in said
    expected = soctk.minimize(soctk.load("model.st"), polyhedron(files), files[["context_heat"]].to_numpy())
    assert plan["status"].tolist() == ["optimal"] * 3 + ["infeasible", "optimal"]
    names = ["x_gas", "x_coal", "x_sun"]
    np.testing.assert_allclose(plan[names].to_numpy(), expected.x.numpy(), rtol=0, atol=1e-9)
    assert plan.drop(columns="status").loc[EMPTY].isna().all()
    assert "infeasible,,,,,,," in Path("plan.csv").read_text()
    np.testing.assert_allclose(plan["price_demand"], expected.prices.f[:, 0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(plan["price_limit"], expected.prices.h.sum(dim=1), rtol=0, atol=1e-9)
    np.testing.assert_allclose(plan["price_upper_gas"], expected.prices.upper[:, 0], rtol=0, atol=1e-9)
    assert [name for name in plan if name.startswith("price_")] == [
        *(f"price_{side}_{name}" for side in ("lower", "upper") for name in ("gas", "coal", "sun")),
        "price_demand",
        "price_limit",
    ]


def test_the_price_of_a_column_is_the_derivative_in_it(files: pd.DataFrame) -> None:
    plan, step = decided(*ROWS, "--prices", "--tol", "1e-10"), 1e-4
    for name in ("demand", "limit"):
        ends = []
        for sign in (1, -1):
            files.assign(**{name: files[name] + sign * step}).to_csv("moved.csv", index=False)
            ends.append(decided(*ROWS, "--tol", "1e-10", days="moved.csv")["value"])
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(plan[f"price_{name}"], slope, rtol=1e-3, atol=1e-4)


def test_arrays_and_tables_are_the_same_file(files: pd.DataFrame) -> None:
    table = decided(*ROWS)
    columns = ["--equality-columns", "demand", "--rhs-columns", "limits_0", "limits_1"]
    pd.testing.assert_frame_equal(decided("--set", "grid.npz", *columns, days="days.npz"), table)


def test_the_nearest_set_that_is_not_empty(files: pd.DataFrame, capsys) -> None:
    plan = decided(*ROWS, "--infeasible", "nearest", code=0)
    assert "5 of 5 decisions certified" in (said := capsys.readouterr().out)
    assert "rows were moved for 1 whose set is empty" in said
    assert (plan["status"] == "optimal").all()
    # 9 units are asked for and 3 can be had: the rows of the limits need not move.
    np.testing.assert_allclose(plan["relaxation"], [0, 0, 0, 6, 0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(plan.loc[EMPTY, ["x_gas", "x_coal", "x_sun"]].astype(float), 1.0, rtol=0, atol=1e-6)


def test_totals_and_bounds_from_columns(files: pd.DataFrame) -> None:
    model, context = soctk.load("model.st"), files[["context_heat"]].to_numpy(copy=True)
    bounds = ["--lower-columns", "low", "--upper-columns", "high"]
    low, high = (torch.full((COUNT, DIM), end, dtype=torch.float64) for end in (0.1, 0.8))
    total = files["demand"].tolist()
    for asked, base, sides in (
        (["budget", "--total-column", "demand"], soctk.Budget(DIM, 1.0), {"total": total}),
        (["budget", "--total-column", "demand", *bounds], soctk.Budget(DIM, 1.0), {"total": total}),
        (["simplex", "--total-column", "demand"], soctk.Simplex(DIM), {"total": total}),
        (["box", *bounds], soctk.Box(DIM), {}),
    ):
        own = sides | ({"lower": low, "upper": high} if bounds[0] in asked else {})
        expected = soctk.minimize(model, base.at(**own), context)
        plan = decided("--set", *asked, "--prices", code=0 if expected.optimal.all() else 1)
        assert plan["status"].tolist() == expected.status.tolist()
        np.testing.assert_allclose(plan["x_gas"], expected.x[:, 0], rtol=0, atol=1e-9)
        assert ("price_upper_gas" in plan) == (asked[0] == "budget" and bounds[0] not in asked)
        assert ("price_high" in plan) == (bounds[0] in asked)


def test_a_column_called_as_a_row_without_one_keeps_a_price_of_its_own(files: pd.DataFrame) -> None:
    """The limits come from a column f_0; the sum's row has none, and would be called so."""
    pd.read_csv("days.csv").rename(columns={"limit": "f_0"}).to_csv("days.csv", index=False)
    plan = decided("--set", "grid.json", "--rhs-columns", "f_0", "f_0", "--prices", code=0)
    base = soctk.Polyhedron(DIM, 0.0, 1.0, E, [1.0], G, [0.5, 0.5])
    sets = base.at(h=files[["limit", "limit"]].to_numpy(copy=True))
    expected = soctk.minimize(soctk.load("model.st"), sets, files[["context_heat"]].to_numpy())
    np.testing.assert_allclose(plan["price_f_0"], expected.prices.h.sum(dim=1), rtol=0, atol=1e-9)
    np.testing.assert_allclose(plan["price_row_f_0"], expected.prices.f[:, 0], rtol=0, atol=1e-9)


def test_sets_without_columns_have_prices_and_may_be_empty(files: pd.DataFrame) -> None:
    plan = decided("--set", "budget", "--total", "1.2", "--prices", code=0)
    expected = soctk.minimize(soctk.load("model.st"), soctk.Budget(DIM, 1.2).at(), files[["context_heat"]].to_numpy())
    np.testing.assert_allclose(plan["price_total"], expected.prices.total, rtol=0, atol=1e-9)
    Path("grid.json").write_text(json.dumps(FILE | {"f": [4.0]}))
    plan = decided("--set", "grid.json", "--prices")
    assert (plan["status"] == "infeasible").all()
    assert {"price_f_0", "price_h_0", "price_h_1"} <= set(plan)


def test_a_model_without_context_is_decided_at_columns(files: pd.DataFrame) -> None:
    plan = decided(*ROWS, model="bowl.st")
    assert plan["status"].tolist() == ["optimal"] * 3 + ["infeasible", "optimal"]
    found = plan.dropna()[["x_0", "x_1", "x_2"]].sum(axis=1)
    np.testing.assert_allclose(found, files["demand"].drop(EMPTY), rtol=0, atol=1e-9)


def test_no_bound_is_null(files: pd.DataFrame) -> None:
    Path("grid.json").write_text(json.dumps(FILE | {"lower": [0, None, 0], "upper": [1, 1, None]}))
    plan = decided(*ROWS, "--prices", code=0)
    assert (plan["status"] == "optimal").all()
    assert not {"price_lower_coal", "price_upper_sun"} & set(plan)


@pytest.mark.usefixtures("briefly")
def test_optima_of_a_log_are_those_of_their_own_sets(files: pd.DataFrame, capsys) -> None:
    random = np.random.default_rng(0)
    context = random.normal(size=(40, 1)).repeat(6, axis=0)
    x = random.uniform(size=(240, DIM))
    log = pd.DataFrame(x, columns=["x_a", "x_b", "x_c"]).assign(context_0=context[:, 0], demand=1.2 + np.tanh(context))
    target = np.array([0.6, 0.2, 0.3]) + 0.2 * np.tanh(context)
    log["value"] = ((x - target) ** 2).sum(axis=1)
    best = soctk.Budget(DIM, 1.0).at(total=log["demand"].tolist()).project(target)
    log[["optimum_a", "optimum_b", "optimum_c"]] = best.numpy()
    log.to_csv("log.csv", index=False)
    asked = ["--set", "budget", "--total-column", "demand"]
    assert main(["fit", "log.csv", "--model", "quad", *asked]) == 0
    assert "mean distance from held-out optima" in capsys.readouterr().out
    log.assign(demand=1.0).to_csv("log.csv", index=False)
    assert main(["fit", "log.csv", "--model", "quad", *asked]) == 2
    assert "optima: expected points of Budget" in capsys.readouterr().err


DAYS = ["decide", "model.st", "days.csv"]
MISTAKES = {
    "no set": ([*DAYS, "--total-column", "demand"], "--set: expected simplex, box, budget or a polyhedron's file"),
    "no such column": ([*DAYS, "--set", "simplex", "--total-column", "load"], "days.csv: no column load; the columns"),
    "no numbers": ([*DAYS, "--set", "simplex", "--total-column", "word"], "column word, row 1: expected a finite"),
    "both": ([*DAYS, "--set", "simplex", "--total", "1", "--total-column", "demand"], "one of --total and --total-col"),
    "no contexts": (["decide", "bowl.st", *ROWS], "expected a file with the columns demand, limit, limit"),
    "needless contexts": (["decide", "bowl.st", "days.csv", "--set", "simplex"], "contexts: the model takes none"),
    "rows of a box": ([*DAYS, "--set", "box", "--rhs-columns", "limit"], "--rhs-columns: a box has none"),
    "too few": ([*DAYS, *ROWS[:-1]], "--rhs-columns: expected 2 columns, one for each row of G, got 1"),
    "bounds": ([*DAYS, "--set", "box", "--upper-columns", "high", "low"], "expected 3 columns, one for each"),
    "crossed": ([*DAYS, "--set", "budget", "--total-column", "demand", "--upper", "-1"], "--lower: expected lower <="),
    "bounds beside a file": ([*DAYS, *ROWS, "--lower", "0"], "--lower: the file grid.json has the bounds and rows"),
    "total of a file": ([*DAYS, "--set", "grid.json", "--total-column", "demand"], "give E of its sum --equality-col"),
    "no file": ([*DAYS, "--set", "none.json"], "no file none.json"),
    "another kind": ([*DAYS, "--set", "grid.txt"], "or a polyhedron's file (.json, .npz), got grid.txt"),
    "another set": ([*DAYS, "--set", "ball"], "or a polyhedron's file (.json, .npz), got ball"),
    "no JSON": ([*DAYS, "--set", "text.json"], "text.json: not a readable .json file"),
    "a list": ([*DAYS, "--set", "list.json"], "expected an object with lower, upper, E, f, G, h, got list"),
    "names": ([*DAYS, "--set", "names.json"], "names.json: expected lower, upper, E, f, G, h, got H"),
    "ragged": ([*DAYS, "--set", "ragged.json"], "ragged.json: G: expected rows of one length"),
    "words": ([*DAYS, "--set", "words.json"], "words.json: E: expected numbers, got ['a'"),
    "null": ([*DAYS, "--set", "null.json"], "null.json: h: expected numbers, got [None"),
    "nan": ([*DAYS, "--set", "nan.npz"], "nan.npz: upper: expected finite numbers, got nan"),
    "no side": ([*DAYS, "--set", "side.json"], "side.json: h: expected it beside G, or --rhs-columns"),
    "no matrix": ([*DAYS, "--set", "side.json", "--equality-columns", "demand"], "--equality-columns: side.json has"),
    "width": ([*DAYS, "--set", "width.json"], "width.json: G: expected shape (rows, 3), got (1, 2)"),
    "length": ([*DAYS, "--set", "length.json"], "length.json: h: expected 2 numbers, got shape (3,)"),
    "empty": ([*DAYS, "--set", "empty.json"], "empty.json: "),
    "unbounded": ([*DAYS, "--set", "endless.json", "--rhs-columns", "limit", "limit"], "endless.json: "),
    "no array": (["decide", "model.st", "days.npz", *ROWS], "days.npz: no array limit; the arrays are context, demand"),
    "no such part": (
        ["decide", "model.st", "days.npz", *ROWS[:4], "--rhs-columns", "limits_0", "limits_2"],
        "days.npz: no array limits_2",
    ),
}  # fmt: skip
FILES = {
    "list": [1], "names": FILE | {"H": 1}, "ragged": FILE | {"G": [[1], [1, 2]]}, "words": FILE | {"E": ["a", "b"]},
    "null": FILE | {"h": [None, 1]}, "side": {"upper": 1, "G": G}, "width": FILE | {"G": [[1, 2]]},
    "length": FILE | {"h": [1, 2, 3]}, "empty": FILE | {"f": [4.0]},
    "endless": FILE | {"upper": None, "E": [[1, 1, 0]]},
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line_and_exit_2(name: str, files: pd.DataFrame, capsys) -> None:
    for stem, content in FILES.items():
        Path(f"{stem}.json").write_text(json.dumps(content))
    Path("text.json").write_text("lower: 0")
    np.savez("nan.npz", upper=np.full(3, np.nan))
    arguments, message = MISTAKES[name]
    before = sorted(Path().iterdir())
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert sorted(Path().iterdir()) == before


def test_a_price_and_a_column_that_is_kept_do_not_share_a_name(files: pd.DataFrame, capsys) -> None:
    pd.read_csv("days.csv").assign(price_total=55.0).to_csv("days.csv", index=False)
    asked = ["--set", "budget", "--total", "1.2", "--prices", "--keep", "price_total"]
    assert main(["decide", "model.st", "days.csv", *asked, "--output", "plan.csv"]) == 2
    assert "one column price_total" in capsys.readouterr().err


def test_a_file_may_say_that_there_are_no_rows(files: pd.DataFrame) -> None:
    Path("none.json").write_text(json.dumps({"lower": 0.0, "upper": 1.0, "E": [], "f": None}))
    assert (decided("--set", "none.json", code=0)["status"] == "optimal").all()


def test_prices_of_variables_whose_names_differ_by_a_prefix_are_apart(files: pd.DataFrame) -> None:
    """Those of x_gas and gas were added, as if both were one column."""
    saved = {"columns": {"context": [], "x": ["x_gas", "gas", "x_sun"]}}
    soctk.save(soctk.from_quadratic(np.eye(DIM), np.array([0.5, 0.2, 0.1])), "alike.st", notes=saved)
    plan = decided("--set", "box", "--lower", "0.4", "--prices", model="alike.st", days=None, code=0)
    expected = soctk.minimize(soctk.load("alike.st"), soctk.Box(DIM, 0.4).at())
    for k, name in enumerate(("x_gas", "gas", "x_sun")):
        np.testing.assert_allclose(plan[f"price_lower_{name}"], expected.prices.lower[..., k], rtol=0, atol=1e-6)


def test_whole_numbers(files: pd.DataFrame, capsys) -> None:
    box = ["--set", "box", "--lower", "0", "--upper", "3"]
    plan = decided(*box, "--integer", "x_gas", "x_sun", code=0)
    whole = plan[["x_gas", "x_sun"]].to_numpy()
    np.testing.assert_array_equal(whole, whole.round())
    heat = files[["context_heat"]].to_numpy()
    expected = soctk.minimize(soctk.load("model.st"), soctk.Box(DIM, 0.0, 3.0), heat, integer=[0, 2])
    np.testing.assert_allclose(plan["value"], expected.value, rtol=0, atol=1e-9)
    every = decided(*box, "--integer", "all", code=0)[["x_gas", "x_coal", "x_sun"]].to_numpy()
    np.testing.assert_array_equal(every, every.round())
    assert (
        main(["decide", "model.st", "days.csv", "--set", "box", "--lower", "0.2", "--upper", "0.8", "--integer", "all"])
        == 1
    )
    assert "no point in whole numbers for 5" in capsys.readouterr().out
    for more, said in (
        (["--integer", "gas"], "expected columns of the decision (x_gas, x_coal, x_sun)"),
        (["--integer"], "got none"),
        (["--integer", "x_gas", "x_gas"], "each once"),
        (["--integer", "all", "x_gas"], '"all" alone'),
        (["--integer", "all", "--prices"], "--prices: not with --integer"),
        (["--integer", "all", "--infeasible", "nearest"], "--infeasible: not with --integer"),
    ):
        assert main(["decide", "model.st", "days.csv", *box, *more]) == 2
        assert said in capsys.readouterr().err
