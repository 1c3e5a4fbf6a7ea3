"""`soctk fit` and `soctk decide`: the same function from every kind of file, columns by name, mistakes in one line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from packages import installed

import soctk
from soctk import ValueData
from soctk.assessment.rows import Rows
from soctk.io.checkpoint import read_notes
from soctk_evaluation.cli import main
from soctk_evaluation.cli.logged import _print_errors
from soctk_evaluation.cli.parts import split
from soctk_evaluation.cli.tabular import write_columns

COUNT, EACH, DIM = 40, 6, 3
SET = ["--set", "box", "--lower", "-1"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the same squared distances as arrays and as a shuffled table, and with the contexts alone."""
    random = np.random.default_rng(0)
    context, x = random.normal(size=(COUNT, 2)), random.uniform(-1, 1, size=(COUNT, EACH, DIM))
    optimum = 0.3 * np.tanh(context @ random.normal(size=(2, DIM)))
    value = 2 + ((x - optimum[:, None]) ** 2).sum(axis=-1)
    np.savez(tmp_path / "data.npz", context=context, x=x, value=value)
    np.savez(tmp_path / "optima.npz", context=context, x=x, value=value, optimum=optimum)
    contexts = pd.DataFrame(context, columns=["context_heat", "context_load"])
    table = contexts.loc[contexts.index.repeat(EACH)].reset_index(drop=True)
    for k in range(DIM):
        table[f"x_{k}"] = x[:, :, k].reshape(-1)
    table["value"] = value.reshape(-1)
    table.sample(frac=1.0, random_state=1).to_csv(tmp_path / "data.csv", index=False)
    contexts["note"] = "not a number"
    contexts[["note", "context_load", "context_heat"]].to_csv(tmp_path / "contexts.csv", index=False)
    return tmp_path


def test_a_shuffled_table_is_read_as_the_arrays_that_it_was_made_of(files: Path) -> None:
    arrays, table = (soctk.read_log(files / name).data for name in ("data.npz", "data.csv"))
    order = [torch.argsort(data.context[:, 0]) for data in (arrays, table)]
    torch.testing.assert_close(table.context[order[1]], arrays.context[order[0]])
    sums = [
        torch.sort((data.value * data.x.sum(dim=-1))[rows], dim=1).values
        for data, rows in zip((table, arrays), reversed(order), strict=True)
    ]
    torch.testing.assert_close(*sums)


def test_rows_of_a_context_stay_together_and_on_one_side(files: Path) -> None:
    table = pd.read_csv(files / "data.csv")
    table.iloc[1:].to_csv(files / "fewer.csv", index=False)
    logged = soctk.read_log(files / "fewer.csv")
    assert (logged.data.instances, logged.data.candidates) == (COUNT, EACH)
    assert len(torch.unique(logged.data.value)) == COUNT * EACH - 1  # nothing is lost, one value is there twice
    few = table.sort_values("context_heat").iloc[EACH - 2 :]  # the first context has two rows
    few.to_csv(files / "few.csv", index=False)
    logged = soctk.read_log(files / "few.csv")
    assert (logged.data.instances, logged.data.candidates) == (COUNT, EACH)
    assert sorted(logged.data.observed.tolist()) == [2] + [EACH] * (COUNT - 1)
    parts = split(logged, 0)
    sides = [{tuple(row) for row in part.context.tolist()} for part in parts[:3] if part is not None]
    assert sum(map(len, sides)) == len(set.union(*sides)) == COUNT


def test_optima_are_taken_by_the_names_of_their_variables(files: Path) -> None:
    with np.load(files / "optima.npz") as arrays:
        optimum = arrays["optimum"]
    table = pd.DataFrame({"x_a": optimum[:, 0], "x_b": optimum[:, 1], "value": 1.0, "context_0": np.arange(COUNT)})
    table["optimum_b"], table["optimum_a"] = table["x_b"], table["x_a"]
    table.to_csv(files / "named.csv", index=False)
    logged = soctk.read_log(files / "named.csv")
    assert torch.equal(logged.optima, logged.data.x[:, 0])


def test_fit_then_decide(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(files / "data.csv"), "--model", "quadratic"]) == 0
    said = capsys.readouterr().out
    assert "40 contexts of 2 numbers, 6 decision(s) each, in 3 variables" in said
    assert "least-squares quadratic" in said
    assert "within contexts" in said
    model = files / "data.safetensors"
    names = {"context": ["context_heat", "context_load"], "x": ["x_0", "x_1", "x_2"], "value": "value"}
    assert read_notes(model)["columns"] == names
    # Columns are taken by name: the table has them in another order, with one that is not a number between them.
    assert main(["decide", str(model), str(files / "contexts.csv"), *SET]) == 0
    assert "40 of 40 decisions certified" in capsys.readouterr().out
    decided = pd.read_csv(files / "data.decisions.csv")
    with np.load(files / "data.npz") as arrays:
        expected = soctk.minimize(soctk.load(model), soctk.Box(DIM, -1.0), arrays["context"])
    np.testing.assert_allclose(decided[["x_0", "x_1", "x_2"]].to_numpy(), expected.x.numpy(), atol=1e-12)
    assert (decided["status"] == "optimal").all()
    assert (decided["value"] >= decided["lower_bound"]).all()
    assert main(["decide", str(model), str(files / "contexts.csv"), *SET, "--scale", "1e-3", "--tol", "1e-4"]) == 0
    decided = pd.read_csv(files / "data.decisions.csv")
    assert (decided["gap"] <= 1e-4 * 1e-3).all()


def test_bounds_that_nobody_gave_are_said_where_the_log_goes_beyond_them(files: Path, capsys) -> None:
    """Orders of 40 to 150 were decided between 0 and 1, all "certified"."""
    model = str(files / "model.safetensors")
    assert main(["fit", str(files / "data.npz"), "--model", "quadratic", "--output", model]) == 0
    contexts = np.zeros((2, 2))
    np.savez(files / "two.npz", context=contexts)
    decide = ["decide", model, str(files / "two.npz"), "--set", "box", "--output", str(files / "plan.npz")]
    capsys.readouterr()
    assert main(decide) == 0
    said = "decisions are at least 0, as there is no --lower; the model has learned from decisions between -0.9"
    assert said in capsys.readouterr().out
    assert main([*decide, "--lower", "-1"]) == 0
    assert "as there is no" not in capsys.readouterr().out


@pytest.mark.usefixtures("briefly")
def test_members_are_saved_as_their_mean_and_the_structure_is_said(tmp_path: Path, capsys) -> None:
    random, log = np.random.default_rng(0), tmp_path / "log.csv"
    table = pd.DataFrame(random.normal(size=(200, 4)), columns=["context_a", "context_b", "x_0", "x_1"])
    table["value"] = (table[["x_0", "x_1"]] ** 2).sum(axis=1) + random.normal(size=200)
    table.to_csv(log, index=False)
    assert main(["fit", str(log)]) == 0
    assert "structure: a quadratic; the rows ask for no more" in capsys.readouterr().out
    assert main(["fit", str(log), "--members", "2", "--output", str(tmp_path / "mean.safetensors")]) == 0
    mean = soctk.load(tmp_path / "mean.safetensors")
    assert isinstance(mean, soctk.AverageSurrogate)
    assert len(mean.models) == 2


@pytest.mark.usefixtures("briefly")
def test_hidden_units_of_the_context_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Costs whose best decision swings with the context, and costs of which it is none of their business."""
    random, log = np.random.default_rng(0), tmp_path / "log.csv"
    table = pd.DataFrame(random.uniform(-1, 1, size=(900, 3)), columns=["context_a", "x_0", "x_1"])
    swing = 0.5 * np.sin(6 * table["context_a"])
    for kept, moved in (("are kept", swing), ("are not kept", random.normal(size=900))):
        table["value"] = np.hypot(table["x_0"] - moved, table["x_1"] + moved)
        table.to_csv(log, index=False)
        assert main(["fit", str(log), "--context-units", "8"]) == 0
        assert f"hidden units of the context {kept}" in capsys.readouterr().out
        assert (soctk.load(tmp_path / "log.safetensors").config()["context_units"] == 8) == (kept == "are kept")
    with pytest.raises(SystemExit):
        main(["fit", str(log), "--context-units", "many"])
    assert main(["fit", str(log), "--context-units", "-1"]) != 0
    assert "context_units: expected an integer of at least 0, got -1" in capsys.readouterr().err


LAZY = """
def make(dim, context_dim, max_parameters, seed):
    from the_class import Lazy
    return Lazy(dim, context_dim)

def fails(dim, context_dim, max_parameters, seed):
    return 1 / 0
"""
CLASS = """
import soctk

class Lazy(soctk.SOCICNN):
    pass
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [("make", "not rebuild this Lazy.*expected a registered surrogate"), ("fails", "of the package lazy.*upgrade")],
)
def test_what_cannot_be_kept_is_not_learned(files: Path, function: str, message: str, capsys, monkeypatch) -> None:
    """The fit was lost: that no file can have it came out when it was to be written."""
    monkeypatch.setattr(soctk, "fit", lambda *given, **more: pytest.fail("learned"))
    entries = {"soctk.surrogates": {"lazy": f"lazy_surrogate:{function}"}}
    with installed(files, "lazy", {"lazy_surrogate.py": LAZY, "the_class.py": CLASS}, entries):
        assert main(["fit", str(files / "data.csv"), "--model", "lazy"]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.usefixtures("briefly")
def test_known_optima_are_learned_from(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(files / "optima.npz"), "--model", "quad", *SET, "--output", str(files / "m.st")]) == 0
    assert "mean distance from held-out optima" in capsys.readouterr().out
    assert main(["decide", str(files / "m.st"), str(files / "data.npz"), *SET, "--output", str(files / "o.npz")]) == 0
    with np.load(files / "o.npz") as decided:
        assert decided["x_2"].shape == (COUNT,)


MISTAKES = {
    "no file": (["fit", "none.csv"], "no file"),
    "another kind": (["fit", "data.txt"], "expected a file ending in .csv, .parquet, .npz"),
    "columns": (["fit", "contexts.csv"], "expected columns x_*"),
    "cell": (["fit", "bad.csv"], "column x_1, row 3: expected a finite number, got"),
    "broken archive": (["fit", "broken.npz"], "not a readable .npz file"),
    "pickled": (["fit", "objects.npz"], "not a readable .npz file of numbers"),
    "array": (["fit", "part.npz"], "no array value; the arrays are x"),
    "shapes": (["fit", "shapes.npz"], "value: expected shape (4, 2)"),
    "surrogate": (["fit", "data.csv", "--model", "socc"], "expected one of"),
    "set without optima": (["fit", "data.csv", "--set", "simplex"], "only with optimal decisions"),
    "no set": (["decide", "model.st", "contexts.csv"], "--set: expected simplex, box, budget or a polyhedron's file"),
    "no total": (["decide", "model.st", "contexts.csv", "--set", "budget"], "--total: expected the sum"),
    "total of a box": (["decide", "model.st", *SET, "--total", "1"], "--total: a box has none"),
    "bounds": (["decide", "model.st", "contexts.csv", "--set", "box", "--upper", "1", "2"], "--upper: expected 1 or 3"),
    "crossed": (["decide", "model.st", "contexts.csv", "--set", "box", "--upper", "-3"], "lower <= upper"),
    "not a model": (["decide", "data.csv", "contexts.csv", *SET], "not a readable safetensors file"),
    "no contexts": (["decide", "model.st", *SET], "expected a file with contexts of 2 numbers"),
    "other contexts": (["decide", "model.st", "other.csv", *SET], "no column context_load"),
    "more fields": (["fit", "shifted.csv"], "expected as many fields in every row as in the header"),
    "semicolons": (["fit", "semicolons.csv"], "export it again with points and commas"),
    "twice": (["fit", "twice.csv"], "expected every column once, got x_0 twice"),
    "other optima": (["fit", "named.csv"], "no column optimum_"),
    "not an archive": (["fit", "array.npz"], "not a readable .npz file of numbers: a single array"),
    "a number": (["fit", "scalar.npz"], "x: expected shape"),
    "its own data": (["fit", "data.csv", "--output", "data.csv"], "data.csv is the data file"),
    "its own contexts": (["decide", "model.st", "contexts.csv", *SET, "--output", "contexts.csv"], "is the contexts"),
    "a folder": (["fit", "data.csv", "--output", "."], "expected a file in a folder that exists"),
    "one row": (["fit", "one.csv"], "expected at least 3 decisions, one each to learn from, to validate by"),
    "output": (["decide", "model.st", "contexts.csv", *SET, "--output", "o.txt"], "--output: expected a file"),
    "scale": (["decide", "model.st", "contexts.csv", *SET, "--scale", "0"], "--scale: expected a positive number"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line_and_exit_2(name: str, files: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(files)
    table = pd.read_csv("data.csv").astype({"x_1": object})
    table.loc[2, "x_1"] = "n/k"
    table.to_csv("bad.csv", index=False)
    table.to_csv("data.txt", index=False)
    pd.DataFrame({"context_heat": [1.0]}).to_csv("other.csv", index=False)
    Path("broken.npz").write_bytes(b"PK\x03\x04 cut off")
    np.savez("objects.npz", x=np.array([{}], dtype=object), value=np.ones(1))
    Path("semicolons.csv").write_text("context_a;x_b;value\n1,5;2;3\n2;2;3\n1,5;2,5;3,5\n")
    Path("shifted.csv").write_text("context_0,x_0,value,note\n1,2,3,4,5\n2,3,4,5,6\n")
    Path("twice.csv").write_text("context_0,x_0,x_0,value\n1,2,3,4\n")
    table.assign(optimum_0=0.0, optimum_7=0.0).drop(columns="x_1").assign(x_1=0.0).to_csv("named.csv", index=False)
    table.iloc[:1].astype({"x_1": str}).assign(x_1=0.5).to_csv("one.csv", index=False)
    np.save("array.npy", np.ones(3))
    Path("array.npy").rename("array.npz")
    np.savez("scalar.npz", x=np.float64(3.0), value=np.float64(3.0))
    np.savez("part.npz", x=np.ones((4, 2, 3)))
    np.savez("shapes.npz", x=np.ones((4, 2, 3)), value=np.ones((4, 3)))
    model = soctk.SOCICNN(DIM, 2)
    soctk.save(model, "model.st", notes={"columns": {"context": ["context_heat", "context_load"]}})
    arguments, message = MISTAKES[name]
    before = sorted(Path().iterdir())
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert sorted(Path().iterdir()) == before


def test_a_model_without_context_needs_no_file(files: Path, capsys) -> None:
    np.savez(files / "plain.npz", x=np.random.default_rng(0).uniform(size=(60, DIM)), value=np.arange(60.0))
    assert main(["fit", str(files / "plain.npz"), "--model", "quadratic"]) == 0
    assert main(["decide", str(files / "plain.safetensors"), *SET]) == 0
    assert len(pd.read_csv(files / "plain.decisions.csv")) == 1
    assert "1 of 1 decisions" in capsys.readouterr().out


def test_columns_of_any_names_are_learned_and_found_again(tmp_path: Path, capsys) -> None:
    random = np.random.default_rng(0)
    log = pd.DataFrame({"Tag": pd.date_range("2024-01-01", periods=300, freq="h").strftime("%d.%m.%Y %H:%M")})
    log["Ort, ca."] = ["Nord"] * 295 + ["Süd"] * 5
    log[["-u", "v w"]] = random.uniform(size=(300, 2))
    log["€"] = ((log[["-u", "v w"]] - 0.3) ** 2).sum(axis=1)
    log.loc[[10, 20], "€"] = np.nan
    log.to_csv(tmp_path / "log.csv", index=False)
    names = ["--context", "Tag", "Ort, ca.", "--decision=-u", "v w", "--value", "€", "--date-format", "%d.%m.%Y %H:%M"]
    fit = ["fit", str(tmp_path / "log.csv"), *names, "--model", "quadratic"]
    assert main(fit) == 2
    assert "2 of 300 rows have missing values (€ 2); the first: row 11 (€), row 21 (€)" in capsys.readouterr().err
    assert main([*fit, "--drop-missing"]) == 0
    said = capsys.readouterr().out
    assert "left out: 2 of 300 rows have missing values" in said
    assert 'Tag is a date, by hour of day, weekday; "Ort, ca." is 2 categories, Nord, Süd' in said
    assert '"Ort, ca.": few rows have Süd (5)' in said
    log[["Ort, ca.", "Tag"]].head(7).to_csv(tmp_path / "days.csv", index=False)
    assert main(["decide", str(tmp_path / "log.safetensors"), str(tmp_path / "days.csv"), "--set", "box"]) == 0
    plan = pd.read_csv(tmp_path / "log.decisions.csv")
    assert list(plan)[:3] == ["-u", "v w", "value"]
    np.testing.assert_allclose(plan[["-u", "v w"]], 0.3, atol=1e-4)


@pytest.mark.parametrize(("each", "held_out"), [(1, 60), (3, 180)])
def test_values_that_fill_a_context_up_are_not_counted(each: int, held_out: int, tmp_path: Path, capsys) -> None:
    """Of 300 contexts one has a row more: the others have no more rows than before."""
    random = np.random.default_rng(0)
    log = pd.DataFrame({"context_a": random.normal(size=300).repeat(each)})
    log = pd.concat([log, log.iloc[:1]], ignore_index=True)
    x = random.normal(size=(len(log), 2))
    log[["x_a", "x_b"]] = x
    log["value"] = (x**2).sum(axis=1) + 0.1 * random.normal(size=len(log))
    log.to_csv(tmp_path / "log.csv", index=False)
    test = split(soctk.read_log(tmp_path / "log.csv"), 0).test
    assert test.value.shape == (60, 1 if each == 1 else 4)
    assert len(torch.unique(test.value)) == held_out  # the context with a row more is not among them
    assert main(["fit", str(tmp_path / "log.csv"), "--model", "quadratic"]) == 0
    said = capsys.readouterr().out
    assert f"{held_out} values held out" in said
    assert ("within contexts" in said) == (each > 1)
    assert main(["assess", str(tmp_path / "log.safetensors"), str(tmp_path / "log.csv")]) == 0
    assert f"measured on the {held_out} values held out" in capsys.readouterr().out


def test_each_of_few_categories_is_learned_and_measured(tmp_path: Path, monkeypatch, capsys) -> None:
    """Every shop has a price of its own that is best, which only its rows tell: held out whole, none was learned."""
    monkeypatch.chdir(tmp_path)
    random, shops = np.random.default_rng(0), {"north": 2.0, "east": -1.0, "south": 0.5, "west": 3.0}
    shop = np.repeat(list(shops), [60, 70, 80, 90])
    price = random.uniform(-2, 4, size=len(shop))
    value = (price - [shops[name] for name in shop]) ** 2
    pd.DataFrame({"context_shop": shop, "x_price": price, "value": value}).to_csv("log.csv", index=False)
    test = split(soctk.read_log("log.csv"), 0).test
    assert len(torch.unique(test.context, dim=0)) == 4
    assert main(["fit", "log.csv", "--model", "quadratic"]) == 0
    said = capsys.readouterr().out
    assert "60 values held out" in said
    assert float(re.search(r"quadratic ([\d.e-]+)", said)[1]) < 1e-3  # type: ignore[index]
    assert main(["assess", "log.safetensors", "log.csv"]) == 0
    assert "measured on the 60 values held out" in capsys.readouterr().out


def test_errors_are_those_of_the_rows_that_a_file_has(tmp_path: Path, capsys) -> None:
    """Contexts of two rows, filled up to three, and one of three: a repeated row has no more weight than the others."""
    test = ValueData(
        np.zeros((1, 1)), np.array([[[0.0], [1.0], [0.0]]]), np.array([[0.0, 3.0, 0.0]]), torch.tensor([2])
    )
    rows = Rows.of(test)
    zero = soctk.from_quadratic(np.zeros((1, 1)), np.zeros(1))
    context_free = Rows(rows.context[:, :0], rows.x, rows.value, rows.which)
    _print_errors({"zero": zero}, context_free, context_free)
    said = capsys.readouterr().out
    assert f"zero {np.sqrt(4.5) / 1.5:.3g}" in said
    assert "within contexts, which is what decides:   zero 1" in said


def test_a_row_more_in_one_context_changes_no_fit() -> None:
    """Values of single rows would else be learned in units of what one context varies by."""
    random = np.random.default_rng(0)
    theta, x = random.normal(size=(60, 1)), random.normal(size=(60, 2))
    theta[1] = theta[0]
    log = pd.DataFrame(np.hstack([theta, x, (x**2).sum(axis=1)[:, None]]), columns=["context_a", "x_a", "x_b", "value"])
    read = soctk.read_log(log)
    assert read.data.value.shape == (60, 1)
    assert read.shape == "59 contexts of 1 numbers, 1 to 2 decisions each, taken one by one"
    assert int(read.contexts.max()) + 1 == 59


@pytest.mark.usefixtures("briefly")
def test_one_context_with_several_sides_keeps_its_optima(tmp_path: Path, monkeypatch, capsys) -> None:
    """Its rows are instances of their own, each with its optimum; these were dropped without a word."""
    monkeypatch.chdir(tmp_path)
    random, total = np.random.default_rng(0), np.repeat([0.5, 1.0, 1.5, 2.0], 60)
    x = random.dirichlet(np.ones(2), 240) * total[:, None]
    table = pd.DataFrame({"x_0": x[:, 0], "x_1": x[:, 1], "tot": total, "value": (x**2).sum(axis=1)})
    table.assign(optimum_0=total / 2, optimum_1=total / 2).to_csv("log.csv", index=False)
    assert main(["fit", "log.csv", "--model", "quad", "--set", "simplex", "--total-column", "tot"]) == 0
    assert "mean distance from held-out optima" in capsys.readouterr().out


def test_a_log_that_was_written_with_fewer_digits_is_known_again(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.normal(size=(150, 4)), columns=["context_a", "x_0", "x_1", "value"])
    table.to_csv("full.csv", index=False)
    table.to_csv("six.csv", index=False, float_format="%.6g")
    assert main(["fit", "full.csv", "--model", "quadratic"]) == 0
    for log in ("full.csv", "six.csv"):
        capsys.readouterr()
        assert main(["assess", "full.safetensors", log]) == 0
        assert "measured on the 30 values held out" in capsys.readouterr().out


@pytest.mark.usefixtures("briefly")
def test_a_log_whose_contexts_fewer_digits_made_one_is_another(tmp_path: Path, monkeypatch, capsys) -> None:
    """Other rows are held out of it: 55 of the 80 that were taken for these had been learned from."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    noise = random.uniform(size=400)
    context = (0.1 * random.integers(0, 5, 400) + noise) - noise  # of five numbers, and their rounding
    table = pd.DataFrame(random.normal(size=(400, 3)), columns=["x_0", "x_1", "value"]).assign(context_a=context)
    table.to_csv("full.csv", index=False)
    table.to_csv("fifteen.csv", index=False, float_format="%.15g")
    assert main(["fit", "full.csv", "--model", "quadratic"]) == 0
    for log, said in (("full.csv", "values held out"), ("fifteen.csv", "the model has learned from rows of this log")):
        capsys.readouterr()
        assert main(["assess", "full.safetensors", log]) == 0
        assert said in capsys.readouterr().out


def test_texts_beside_a_plan_need_no_pickle(files: Path) -> None:
    contexts = pd.read_csv(files / "contexts.csv")
    contexts.assign(note=["a", None, *["b"] * (len(contexts) - 2)]).to_csv(files / "noted.csv", index=False)
    assert main(["fit", str(files / "data.csv"), "--model", "quadratic", "--output", str(files / "model.st")]) == 0
    plan = ["decide", str(files / "model.st"), str(files / "noted.csv"), *SET, "--keep", "note"]
    assert main([*plan, "--output", str(files / "plan.npz")]) == 0
    with np.load(files / "plan.npz") as found:  # without pickled objects
        assert found["note"][:3].tolist() == ["a", "", "b"]


def test_a_fit_that_time_ends_says_nothing_of_what_the_rows_ask_for(tmp_path: Path, capsys) -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.normal(size=(200, 3)), columns=["context_a", "x_0", "x_1"])
    table.assign(value=(table**2).sum(axis=1) + table.abs().sum(axis=1)).to_csv(tmp_path / "log.csv", index=False)
    assert main(["fit", str(tmp_path / "log.csv"), "--time-limit", "1e-9"]) == 0
    said = capsys.readouterr().out
    assert "time_limit" in said
    assert "structure" not in said


def test_columns_may_have_the_names_of_numpys_arguments(tmp_path: Path) -> None:
    columns = {"file": ["a", None], "allow_pickle": [1.0, 2.0], "x_0": np.arange(2)}
    write_columns(columns, tmp_path / "plan.npz")
    with np.load(tmp_path / "plan.npz") as found:
        assert {name: found[name].tolist() for name in found} == {**columns, "file": ["a", ""], "x_0": [0, 1]}
