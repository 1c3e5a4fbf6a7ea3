"""CONTRIBUTING.md's walks, run as they stand: every file, its entry points, what is done with it, its contract tests.

A fenced block that begins with `# NAME.py` is a file, a toml block declares entry points, other Python blocks are run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packages import installed

import soctk
from soctk import registry
from soctk.decide.compiled.form import supported
from soctk_evaluation.cli.commands import Leaderboard
from soctk_evaluation.experiments.leaderboard import leaderboard_cells, run_cell
from soctk_tasks import task_names

TESTS = Path(__file__).parent
SIZES = {"train": 20, "validation": 10, "test": 6, "candidates": 8}
PAGE = (TESTS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


@dataclass
class Walk:
    """One section of the page.

    Attributes:
        files: text by name.
        entries: entry points, group -> name -> value.
        code: what is run once they are installed.
    """

    files: dict[str, str] = field(default_factory=dict)
    entries: dict[str, dict[str, str]] = field(default_factory=dict)
    code: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, section: str) -> Walk:
        walk = cls()
        for language, block in re.findall(r"```(\w+)\n(.*?)```", section, flags=re.DOTALL):
            name = re.match(r"# (\w+\.py)\n", block)
            if language == "toml":
                walk.entries |= tomllib.loads(block)["project"]["entry-points"]
            elif name:
                walk.files[name[1]] = block
            else:
                walk.code.append(block)
        return walk

    @property
    def modules(self) -> list[str]:
        return [name.removesuffix(".py") for name in self.files]

    @contextmanager
    def installed(self, folder: Path) -> Iterator[None]:
        """Put the files and the package's metadata on the path, and take away again what was imported from them."""
        with installed(folder, "walk", self.files, self.entries):
            yield

    def run(self) -> SimpleNamespace:
        """Run the code in order; return its names."""
        namespace: dict[str, object] = {}
        for block in self.code:
            exec(compile(block, "CONTRIBUTING.md", "exec"), namespace)
        return SimpleNamespace(**namespace)


WALKS = {
    title: Walk.of(section) for title, section in re.findall(r"^## Add a (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_surrogate(folder: Path) -> None:
    with WALKS["surrogate"].installed(folder):
        assert "separable" in soctk.surrogate_names()
        walk = WALKS["surrogate"].run()
        assert type(walk.model).__module__ == "separable"
        assert (walk.decision.status == "optimal").all()
        assert float(walk.decision.gap.max()) <= 1e-5
        assert torch.equal(walk.decision.lower_bound <= walk.decision.value, torch.ones(10, dtype=torch.bool))
    assert "separable" not in soctk.surrogate_names()
    with pytest.raises(soctk.CheckpointError, match=r"class: expected .* got 'separable:Separable'"):
        soctk.load("separable.safetensors")


def test_a_fresh_process_loads_the_surrogates_file_through_its_entry_point(folder: Path) -> None:
    """Nothing of the package is imported when `load` meets its name, nor is its name enough."""
    walk = WALKS["surrogate"]
    with walk.installed(folder):
        soctk.save(soctk.make_surrogate("separable", dim=3), "model")
        registry._classes.clear()
        sys.modules.pop("separable")
        assert type(soctk.load("model")) is sys.modules["separable"].Separable
        registry._classes.clear()
        (folder / "walk-1.0.dist-info" / "entry_points.txt").write_text("")
        with pytest.raises(soctk.CheckpointError, match="registered"):
            soctk.load("model")


def test_a_task(folder: Path) -> None:
    with WALKS["task"].installed(folder):
        assert task_names()[-1] == "newsvendor"
        walk = WALKS["task"].run()
        assert (walk.optimum.status == "optimal").all()
        assert float(walk.optimum.relative_gap.max()) <= 1e-8
        assert 0 <= walk.scores.regret_mean < 0.01 * float(walk.data.value.std())
        asked = Leaderboard(tasks=("newsvendor",), dims=(3,), methods=("quadratic",), seeds=(0,))
        (cell,) = leaderboard_cells(asked, sizes=SIZES)
        assert run_cell(cell)["status"] == "ok"
        assert bool((walk.task.feasible_set.violation(walk.data.x) <= 1e-12).all())


def test_a_baseline(folder: Path) -> None:
    with WALKS["baseline"].installed(folder):
        walk = WALKS["baseline"].run()
        assert walk.report.status == "converged"
        assert walk.scores.regret_mean >= 0
        data = walk.data
        ((walk.model.evaluate(data.x, data.context) - data.value) ** 2).mean().backward()
        assert bool(walk.model.w > 0)
        gradients = torch.cat([weight.grad.flatten() for weight in walk.model.parameters()])
        assert float(gradients.abs().max()) <= 1e-10 * float(data.value.square().mean())  # the least of all squares


def test_a_feasible_set(folder: Path) -> None:
    with WALKS["feasible set"].installed(folder):
        walk = WALKS["feasible set"].run()
        for decision in (walk.decision, walk.again):
            assert (decision.status == "optimal").all()
            assert float(decision.relative_gap.max()) <= 1e-6
            assert float(walk.feasible_set.violation(decision.x).max()) <= 1e-9
        candidates = walk.feasible_set.sample((2, 500))
        values = walk.model.evaluate(candidates, torch.tensor(walk.contexts, dtype=torch.float64))
        assert bool((walk.decision.lower_bound <= values.amin(dim=1)).all())
        assert bool((values.amin(dim=1) - walk.decision.value > 0).all())


def test_a_term(folder: Path) -> None:
    with WALKS["term"].installed(folder), warnings.catch_warnings():
        warnings.simplefilter("error", soctk.terms.SlowTermWarning)
        walk = WALKS["term"].run()
        assert walk.decision.status == "optimal"
        assert walk.decision.solver == "newton"
        assert supported(walk.model.conic_form())  # by its kernel
        other = soctk.minimize(walk.model, soctk.Box(5, -1.0, 1.0), method="cvxpy")
        assert float(other.value) == pytest.approx(float(walk.decision.value), rel=2e-6, abs=2e-6)
        x = soctk.Box(5, -1.0, 1.0).sample(500)
        assert bool((walk.model(x) >= walk.decision.lower_bound).all())
    with pytest.raises(soctk.CheckpointError, match=r"expected a registered term .*got 'DeadZone'"):
        soctk.load("dead_zone.safetensors")


def test_the_contract_tests_that_the_page_inherits_pass(tmp_path: Path) -> None:
    for walk in WALKS.values():
        for name, text in walk.files.items():
            (tmp_path / name).write_text(text)
    tests = sorted(path.name for path in tmp_path.glob("test_*.py"))
    assert len(tests) == len(WALKS) == 5
    options = ["-p", "conftest", "-c", str(TESTS.parent / "pyproject.toml"), "-p", "no:cacheprovider"]
    paths = [str(tmp_path), str(TESTS), *sys.path]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:]
    assert re.search(r"\d+ passed", result.stdout) or "[100%]" in result.stdout
