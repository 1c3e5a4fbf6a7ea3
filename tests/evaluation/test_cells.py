"""What changes a cell's key and what does not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake_cells
import pytest
import support

from soctk_evaluation import cells
from soctk_evaluation.cells import Cell, make_config

BASE = fake_cells.cell(0, config=make_config({"train": 1000, "widths": [8, 8]}))


def test_the_key_is_the_same_in_another_process() -> None:
    script = f"from soctk_evaluation.cells import Cell; print({BASE!r}.key)"
    run = subprocess.run([sys.executable, "-c", script], env=support.environment(), capture_output=True, text=True)
    assert run.stdout.strip() == BASE.key, run.stderr


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
    assert other.key != BASE.key


def test_the_order_of_the_config_does_not_matter() -> None:
    assert replace(BASE, config=make_config({"widths": [8, 8], "train": 1000})).key == BASE.key


def test_library_versions_change_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = BASE.key
    monkeypatch.setattr(cells, "versions", lambda method: {"code": cells.code_version(), "torch": "0"})
    assert BASE.key != before


def make_package(root: Path, name: str, **files: str) -> None:
    folder = root / name
    folder.mkdir()
    for file, text in {"__init__": "", **files}.items():
        (folder / f"{file}.py").write_text(text)


def code_version(root: Path) -> str:
    script = f"""
import soctk_evaluation.cells as cells
from importlib.machinery import PathFinder
cells.find_spec = lambda name: PathFinder.find_spec(name, [{str(root)!r}])
print(cells.code_version())
"""
    run = subprocess.run([sys.executable, "-c", script], env=support.environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_changed_source_changes_the_code_version_and_a_changed_report_does_not(tmp_path: Path) -> None:
    make_package(tmp_path, "soctk", model="x = 1")
    make_package(tmp_path, "soctk_evaluation", report="x = 1", metrics="x = 1")
    first = code_version(tmp_path)
    assert code_version(tmp_path) == first
    (tmp_path / "soctk_evaluation" / "report.py").write_text("x = 2")
    assert code_version(tmp_path) == first
    (tmp_path / "soctk_evaluation" / "metrics.py").write_text("x = 2")
    second = code_version(tmp_path)
    (tmp_path / "soctk" / "model.py").write_text("x = 2")
    assert len({first, second, code_version(tmp_path)}) == 3


def test_presentation_files_exist() -> None:
    home = Path(cells.__file__).parent
    assert all((home / name).is_file() for name in cells.PRESENTATION)


def test_the_machine_is_named_without_its_host_name() -> None:
    import platform

    assert platform.node() not in cells.machine() or not platform.node()
