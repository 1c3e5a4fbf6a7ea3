"""What changes a cell's key and what does not."""

from __future__ import annotations

import ast
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

import fake_cells
import pytest
import support

from soctk_evaluation.experiments import BUILT_IN, find_experiment
from soctk_evaluation.harness import key, workers
from soctk_evaluation.harness.cell import Cell, make_config

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "soctk": ROOT / "soctk",
    "soctk_baselines": ROOT / "baselines" / "soctk_baselines",
    "soctk_tasks": ROOT / "tasks" / "soctk_tasks",
    "soctk_evaluation": ROOT / "evaluation" / "soctk_evaluation",
}
FAKE = fake_cells.fake(fake_cells.good)
BASE = fake_cells.cell(0, config=make_config({"train": 1000, "widths": [8, 8]}))


def test_the_key_is_the_same_in_another_process() -> None:
    script = f"""
import fake_cells
from soctk_evaluation import Cell
print(fake_cells.fake(fake_cells.good).key({BASE!r}))"""
    run = subprocess.run([sys.executable, "-c", script], env=support.environment(), capture_output=True, text=True)
    assert run.stdout.strip() == FAKE.key(BASE), run.stderr


@pytest.mark.parametrize(
    "other",
    [
        replace(BASE, experiment="other"),
        replace(BASE, task="other"),
        replace(BASE, dim=2),
        replace(BASE, method="other"),
        replace(BASE, seed=1),
        replace(BASE, protocol="paper"),
        replace(BASE, config=make_config({"train": 1001, "widths": [8, 8]})),
        replace(BASE, config=make_config({"train": 1000, "widths": [8, 9]})),
    ],
)
def test_everything_that_determines_the_result_changes_the_key(other: Cell) -> None:
    assert FAKE.key(other) != FAKE.key(BASE)


def test_the_order_of_the_config_does_not_matter() -> None:
    assert FAKE.key(replace(BASE, config=make_config({"widths": [8, 8], "train": 1000}))) == FAKE.key(BASE)


def forget() -> None:
    """Forget what is installed and the hashes of source files."""
    for cached in (key.versions_of, key.code_version, key.hashes, key.own_source, key.points_of, key._distributions):
        cached.cache_clear()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget the hashes of source files, before and after."""
    forget()
    yield
    forget()


def test_a_method_and_a_task_of_another_package_bring_its_source_and_its_version(
    tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "another_package" / "tasks.py"
    source.parent.mkdir()
    (tmp_path / "beside_it.py").write_text("a = 1")
    source.write_text("def make():\n    import math, numpy, beside_it")
    point = EntryPoint("theirs", "another_package.tasks:make", "any")
    monkeypatch.setattr(key.metadata, "entry_points", lambda group: [point])
    monkeypatch.setattr(key, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path), *sys.path]))
    cells = {"task_code": replace(BASE, task="theirs"), "method_code": replace(BASE, method="theirs")}
    assert key.own_source("another_package") == ("another_package", "beside_it")
    before = {name: FAKE.versions(cell)[name] for name, cell in cells.items()}
    assert set(FAKE.versions(BASE)).isdisjoint(before)
    for changed in (tmp_path / "beside_it.py", source):
        changed.write_text("a = 2")
        forget()
        after = {name: FAKE.versions(cell)[name] for name, cell in cells.items()}
        assert all(after[name] != before[name] for name in cells)
        before = after


def test_another_version_of_what_a_method_of_another_package_imports_is_another_result(
    tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the method stayed when a library that it was built on became another."""
    (tmp_path / "theirs.py").write_text("def make():\n    from a_library.part import thing\n    import __main__, numpy")
    (tmp_path / "site-packages" / "a_library").mkdir(parents=True)
    (tmp_path / "site-packages" / "a_library" / "__init__.py").write_text("def f[T](x: T): ...")  # of a later Python
    point, folders = EntryPoint("theirs", "theirs:make", "any"), [str(tmp_path), str(tmp_path / "site-packages")]
    monkeypatch.setattr(key.metadata, "entry_points", lambda group: [point])
    monkeypatch.setattr(
        key.metadata, "packages_distributions", lambda: {"a_library": ["a-library"], "numpy": ["numpy"]}
    )
    monkeypatch.setattr(key, "find_spec", lambda name: found(name, folders))
    keys = set()
    for version in ("1.0", "2.0"):
        monkeypatch.setattr(key, "_version", lambda name, version=version: version if name == "a-library" else "0")
        forget()
        assert key.own_source("theirs") == ("theirs",)
        keys.add(FAKE.key(replace(BASE, method="theirs")))
    assert len(keys) == 2


def found(name: str, folders: list[str]) -> ModuleSpec | None:
    """Return what `find_spec` does, with folders before the others."""
    return find_spec(name) if name == "__main__" else PathFinder.find_spec(name, [*folders, *sys.path])


def test_files_that_are_no_python_import_nothing(tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    for name, text in (("__init__", "import beside_it"), ("template", "print {{ x }}"), ("zero", "\0")):
        (tmp_path / "theirs" / f"{name}.py").write_text(text)
    (tmp_path / "beside_it.py").write_text("")
    monkeypatch.setattr(key, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path), *sys.path]))
    assert key.own_source("theirs") == ("theirs", "beside_it")


def test_library_versions_change_the_key(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = FAKE.key(BASE)
    key.versions_of.cache_clear()
    monkeypatch.setattr(key, "_version", lambda name: "0")
    assert FAKE.key(BASE) != before


@pytest.mark.parametrize(
    ("experiment", "method", "library"),
    [
        ("timing", "moreau", "moreau"),
        ("polyhedra", "moreau_with_coefficients", "moreau"),
        ("devices", "moreau_gpu", "moreau"),
        ("timing", "scs_1e-3_warm", "scs"),
        ("timing", "cvxpy_scs", "scs"),
        ("timing", "cvxpylayers_backward", "diffcp"),
        ("leaderboard", "dcp", "cvxpylayers"),
        ("leaderboard", "dcp+focus", "cvxpylayers"),
    ],
)
def test_a_rival_is_measured_again_once_it_is_installed_or_another_version(
    experiment: str, method: str, library: str, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, keys = find_experiment(experiment), set()
    for version in ("absent", "1.0", "1.1"):
        monkeypatch.setattr(key, "_version", lambda name, version=version: version if name == library else "0")
        key.versions_of.cache_clear()
        keys.add(kind.key(replace(BASE, experiment=experiment, method=method)))
    assert len(keys) == 3


@pytest.fixture
def tree(tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the project's source, of which keys are made."""
    for name, folder in PACKAGES.items():
        shutil.copytree(folder, tmp_path / name, ignore=lambda _, names: [n for n in names if "__pycache__" in n])
    monkeypatch.setattr(key, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path)]))
    return tmp_path


ROWS = [
    *(
        ("leaderboard", method, "exact")
        for method in ("soc", "dcp", "pcf", "pcf_template", "lpcf", "ickan", "quadratic", "affine")
    ),
    *(
        ("leaderboard", method, protocol)
        for method, protocol in (("soc", "paper"), ("dcp", "cvxpylayers"), ("soc+fy", "exact"))
    ),
    *(("factorial", variant, "exact") for variant in ("soc", "dcp_lbfgs")),
    ("factorial", "soc", "cvxpylayers"),
    *(("samples", "soc", protocol) for protocol in ("exact", "cvxpylayers")),
    *(("approximation", method, "values") for method in ("soc", "ickan", "constant")),
    *((name, "soc", "structured") for name in ("smoothing", "restoration")),
    ("rates", "relu", "values"),
    ("equivalence", "trained", "exact"),
    ("scaling", "dense", "values"),
    *(("timing", method, "exact") for method in ("newton", "cvxpylayers")),
    ("polyhedra", "moreau", "exact"),
    ("devices", "moreau_gpu", "exact"),
]
APART = {"soctk_tasks/grid/feeder.py": "voltage", "soctk_tasks/untuned.py": "moving_dispatch"}
"""Files of tasks that have a version of their own."""


def keys() -> dict[tuple[str, str, str], str]:
    """Return a key of each of `ROWS`, of the source as it is now."""
    forget()
    cells = {row: Cell(row[0], "any", 3, row[1], 0, row[2]) for row in ROWS}
    return {row: find_experiment(row[0]).key(cell) for row, cell in cells.items()}


def changed_by(tree: Path, path: str) -> set[tuple[str, str, str]]:
    """Return the rows whose keys change when a line is added to a file, which is made where it does not exist."""
    before = keys()
    with (tree / path).open("a") as file:
        file.write("\nnew = 1\n")
    after = keys()
    return {row for row in ROWS if before[row] != after[row]}


@pytest.mark.parametrize(
    "path",
    [
        *(f"soctk_evaluation/{room}/unlisted.py" for room in ("tables", "cli", "harness")),
        "soctk_evaluation/tables/report.py",
        "soctk_evaluation/cli/command_line.py",
        "soctk_evaluation/harness/sweep.py",
        "soctk_evaluation/experiments/__init__.py",
        "soctk/__init__.py",
        "soctk/io/checkpoint.py",
        "soctk/tables/table.py",
        "soctk/assessment/assess.py",
        "soctk/files.py",
    ],
)
def test_how_results_are_asked_for_run_stored_and_shown_changes_no_key(tree: Path, path: str) -> None:
    assert changed_by(tree, path) == set()


@pytest.mark.parametrize(
    "path",
    [
        "soctk/learn/fit.py",
        "soctk/learn/unlisted.py",
        "soctk/unlisted.py",
        "soctk/models/dense.py",
        "soctk/terms/norm.py",
        "soctk_tasks/families.py",
        "soctk_evaluation/metrics.py",
        "soctk_evaluation/harness/recipe.py",
    ],
)
def test_data_models_terms_and_learning_change_every_key(tree: Path, path: str) -> None:
    assert changed_by(tree, path) == set(ROWS)


def test_a_baseline_changes_its_own_rows(tree: Path) -> None:
    found = changed_by(tree, "soctk_baselines/pcf.py")
    assert {method for _, method, _ in found} == {"pcf", "lpcf"}  # the real lpcf takes its sizes from pcf
    assert {method for _, method, _ in changed_by(tree, "soctk_baselines/policies.py")} == {"affine", "constant"}
    assert changed_by(tree, "soctk_baselines/ickan.py") == {row for row in ROWS if row[1] == "ickan"}


@pytest.mark.parametrize("path", APART)
def test_a_task_with_a_version_of_its_own_changes_its_own_rows(tree: Path, path: str) -> None:
    experiment, cell = find_experiment("leaderboard"), Cell("leaderboard", APART[path], 3, "soc", 0, "exact")
    before = experiment.key(cell)
    assert changed_by(tree, path) == set()
    assert experiment.key(cell) != before


def test_an_experiment_changes_its_own_rows(tree: Path) -> None:
    assert changed_by(tree, "soctk_evaluation/experiments/rates.py") == {("rates", "relu", "values")}
    raced = changed_by(tree, "soctk_evaluation/experiments/moreau.py")
    assert {name for name, _, _ in raced} == {"timing", "polyhedra", "devices"}
    both = changed_by(tree, "soctk_evaluation/experiments/structured.py")
    assert {name for name, _, _ in both} == {"smoothing", "restoration"}


def test_the_certified_solver_changes_only_what_measures_it_or_is_not_certified(tree: Path) -> None:
    found = changed_by(tree, "soctk/decide/minimize.py")
    own = {("leaderboard", "soc", "paper"), ("leaderboard", "soc+fy", "exact")}
    assert own <= found
    measured = {"timing", "polyhedra", "devices", "equivalence", "scaling", "restoration"}
    assert {name for name, _, _ in found - own} == measured


def test_learning_from_decisions_changes_the_rows_of_settings(tree: Path) -> None:
    setting, decided = ("leaderboard", "soc+fy", "exact"), ("leaderboard", "dcp", "cvxpylayers")
    assert changed_by(tree, "soctk_evaluation/harness/from_decisions.py") == {setting}
    found = changed_by(tree, "soctk_baselines/cvxpy_layer.py")
    assert {row for row in found if row[0] == "leaderboard"} == {setting, decided}


def imported(module: str) -> set[str]:
    """Return the modules of the project that a module imports, by name or through a package's own names."""
    package, *rest = module.split(".")
    tree = ast.parse(PACKAGES[package].joinpath(*rest).with_suffix(".py").read_text())
    found = set()
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and each.module):
        if node.module in PACKAGES:
            named = [getattr(import_module(node.module), alias.name) for alias in node.names]
            found |= {each.__module__ for each in named if hasattr(each, "__module__")}
        elif node.module.split(".")[0] in PACKAGES:
            found.add(node.module)
    return found


def declared(name: str) -> tuple[str, ...]:
    """Return the source that an experiment declares, whatever the cell."""
    experiment = find_experiment(name)
    code = {each for row in ROWS if row[0] == name for each in experiment.code(Cell(name, "", 1, row[1], 0, row[2]))}
    return (experiment.run.__module__, *sorted(code))


def test_every_source_file_is_declared_or_neutral() -> None:
    baselines = {name for names in key.BASELINES.values() for name in names}
    own = {name for experiment in BUILT_IN for name in declared(experiment)}
    names = (*key.SHARED, *key.NEUTRAL, *baselines, *own)
    for package in PACKAGES:
        files = key.sources(package)
        assert files
        assert [module for module, _ in files if key.owner(module, names) is None] == []
        modules = {module for module, _ in files}
        for name in (name for name in names if name.split(".")[0] == package and package != "soctk"):
            assert any(key.owner(module, (name,)) for module in modules), f"{name} names nothing"


@pytest.mark.parametrize("method", key.BASELINES)
def test_what_a_baseline_imports_is_declared_with_it(method: str) -> None:
    names = key.BASELINES[method]
    for module in set(names) - {key.PRESETS}:
        assert {other for other in imported(module) if other.startswith("soctk_baselines")} <= set(names)


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_an_experiment_imports_is_declared_with_it(name: str) -> None:
    names = (*declared(name), *(module for modules in key.BASELINES.values() for module in modules))
    for module in (each for each in declared(name) if each.startswith("soctk_evaluation")):
        for other in imported(module):
            assert key.owner(other, (*key.SHARED, *key.NEUTRAL, *names)) is not None, f"{module} imports {other}"


def test_rows_of_an_experiment_share_its_code_version_and_baselines_have_one_of_their_own() -> None:
    experiment = find_experiment("leaderboard")
    soc, pcf = (experiment.versions(Cell("leaderboard", "any", 3, name, 0, "exact")) for name in ("soc", "pcf"))
    assert soc["code"] == pcf["code"]
    assert "method_code" in pcf
    assert "method_code" not in soc


def test_the_machine_is_named_without_its_host_name() -> None:
    assert platform.node() not in workers.machine() or not platform.node()
