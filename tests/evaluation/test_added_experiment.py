"""An experiment of another package: found by its entry point, run, limited, spread over a cluster and reported."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import fake_cells
import pytest
import support

from soctk_evaluation import experiments
from soctk_evaluation.cli import main
from soctk_evaluation.harness import dask_client
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.experiment import Experiment, Results
from soctk_evaluation.harness.request import Sweep
from soctk_evaluation.harness.store import ResultsStore


@dataclass(frozen=True)
class Options(Sweep):
    """Try something.

    Attributes:
        trace: where cells leave traces.
        count: how many cells.
    """

    trace: Path = Path()
    count: int = 3


def _cells(asked: Options) -> list[Cell]:
    return [fake_cells.cell(seed, asked.trace) for seed in range(asked.count)]


def _write(results: Results, files) -> None:
    print(f"scores {[row['score'] for row in results.rows]} of {len(results.cells)} in {results.folder.name}, {files}")


ADDED = Experiment("fake", _cells, fake_cells.hangs, ("score",), _write, options=Options)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("another_package")
    module.ADDED = ADDED
    monkeypatch.setitem(sys.modules, "another_package", module)
    point = EntryPoint("fake", "another_package:ADDED", experiments.GROUP)
    monkeypatch.setattr("soctk.plugins.entry_points", lambda group, name="fake": [point] if name == "fake" else [])


def asked(tmp_path: Path, *more: str) -> list[str]:
    return ["fake", "--trace", str(tmp_path), "--jobs", "1", "--store", str(tmp_path / "own.jsonl"), *more]


@pytest.mark.parametrize("value", ["another_package:NONE", "another_package:__name__", "no_such_package:X"])
def test_one_that_is_none_is_refused_by_name(value: str, added, monkeypatch, capsys) -> None:
    point = EntryPoint("fake", value, experiments.GROUP)
    monkeypatch.setattr("soctk.plugins.entry_points", lambda group, name="fake": [point] if name == "fake" else [])
    assert main(["fake"]) == 2
    assert "experiment 'fake'" in capsys.readouterr().err


def test_it_is_run_limited_and_reported(added, tmp_path, capsys) -> None:
    assert main(asked(tmp_path, "--cell-time-limit", "0.5")) == 1
    shown = capsys.readouterr()
    assert "scores [0.0, 1.0, None] of 3 in own" in shown.out.replace("1.0, None, 1.0", "0.0, 1.0, None")
    assert "1 cells reached the time limit; a larger one tries them again" in shown.err
    assert main(asked(tmp_path)) == 0
    said = capsys.readouterr().err
    assert "3 of 3 cells were in" in said
    assert "1 of them without a result, a time limit having ended them: a larger one tries them again" in said
    (tmp_path / "quick").touch()
    assert main(asked(tmp_path, "--cell-time-limit", "30")) == 0
    said = capsys.readouterr().err
    assert "2 of 3 cells were in" in said
    assert "without a result" not in said
    assert {row["status"] for row in ResultsStore(tmp_path / "own.jsonl").read().newest()} == {"ok"}
    assert main(["report", str(tmp_path / "own.jsonl"), "--markdown", "page.md"]) == 0
    assert "scores [1.0, 1.0, 1.0] of 0 in own, {'markdown': PosixPath('page.md')}" in capsys.readouterr().out


def test_help_names_it_and_imports_it_only_when_it_is_asked_for(added, capsys, monkeypatch) -> None:
    with pytest.raises(SystemExit):
        main(["fake", "--help"])
    assert "where cells leave traces" in capsys.readouterr().out
    monkeypatch.delitem(sys.modules, "another_package")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "fake" in capsys.readouterr().out


def test_a_name_of_ours_stays_ours(monkeypatch, capsys) -> None:
    """One called "fit" that was none ended `soctk fit --help`."""
    points = {name: [EntryPoint(name, "no_such_package:X", experiments.GROUP)] for name in ("fit", "timing")}
    every = [point for own in points.values() for point in own]
    monkeypatch.setattr("soctk.plugins.entry_points", lambda group, name=None: points.get(name, []) if name else every)
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert "--model" in capsys.readouterr().out
    assert experiments.find_experiment("timing").name == "timing"


def test_an_unknown_experiment_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match=r"leaderboard, .* got 'other'"):
        experiments.find_experiment("other")


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A stand-in for the package distributed; the list has what its clients connect to and when they part."""
    made: list[str] = []

    class Client:
        def __init__(self, address: str) -> None:
            self.address = address

        def nthreads(self) -> dict[str, int]:
            return {"a worker": 1}

        def __enter__(self) -> None:
            made.append(f"open {self.address}")

        def __exit__(self, *_) -> None:
            made.append(f"close {self.address}")

    def get_client() -> None:
        raise ValueError("no clients found")

    module = types.ModuleType("distributed")
    module.Client, module.get_client = Client, get_client
    module.KilledWorker = type("KilledWorker", (Exception,), {})
    monkeypatch.setitem(sys.modules, "distributed", module)
    monkeypatch.setattr(dask_client, "find_spec", lambda name: object())
    return made


def test_a_cluster_is_named_by_its_scheduler(added, clients, tmp_path, capsys, monkeypatch) -> None:
    from soctk_evaluation.harness import sweep

    def run_cells(cells, experiment, store, *, jobs, backend, time_limit):
        clients.append(f"run {len(cells)} on {backend}")
        return sweep.SweepReport()

    monkeypatch.setattr(sweep, "run_cells", run_cells)
    assert main(asked(tmp_path, "--backend", "dask", "--scheduler", "tcp://here:8786")) == 0
    assert clients == ["open tcp://here:8786", "run 3 on dask", "close tcp://here:8786"]
    assert main(asked(tmp_path, "--scheduler", "tcp://there:8786")) == 0
    assert clients[3:] == ["open tcp://there:8786", "run 3 on dask", "close tcp://there:8786"]
    assert main(asked(tmp_path, "--backend", "dask")) == 2
    assert "--backend dask: expected --scheduler ADDRESS" in capsys.readouterr().err


def test_a_cluster_without_its_package_says_what_to_install(added, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(dask_client, "find_spec", lambda name: None)
    assert main(asked(tmp_path, "--backend", "dask", "--scheduler", "tcp://here:8786")) == 2
    assert 'pip install "soctk[cluster]"' in capsys.readouterr().err


def test_the_command_line_is_light_however_it_is_started() -> None:
    script = """
import sys
from soctk_evaluation.cli import main
try:
    main(["leaderboard", "--help"])
except SystemExit:
    print(*(name in sys.modules for name in ("torch", "pandas", "matplotlib", "rich", "numpy")))
"""
    run = subprocess.run([sys.executable, "-c", script], env=support.environment(), capture_output=True, text=True)
    assert run.stdout.splitlines()[-1].split() == ["False"] * 5, run.stderr
