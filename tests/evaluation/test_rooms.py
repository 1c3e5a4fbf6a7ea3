"""The order of the evaluation's rooms: each imports itself and those below it, typing imports counted."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from circles import check_no_circles

HOME = Path(__file__).resolve().parents[2] / "evaluation" / "soctk_evaluation"
FLOORS = {"harness": 1, "metrics": 1, "tables": 2, "experiments": 3, "benchmark": 3, "cli": 4}
FILES = sorted(HOME.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, inside functions and for types too."""
    nodes = ast.walk(ast.parse(path.read_text()))
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name for name in modules if name.split(".")[0] == "soctk_evaluation"}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent != HOME], ids=lambda p: str(p.relative_to(HOME))
)
def test_a_room_imports_only_those_below_it(path: Path) -> None:
    here = path.relative_to(HOME).parts[0]
    for name in imported(path):
        there = name.split(".")[1]
        assert FLOORS[there] <= FLOORS[here], f"{here} imports {name}"


def test_there_are_no_circles() -> None:
    modules = {".".join(("soctk_evaluation", *path.relative_to(HOME).with_suffix("").parts)): path for path in FILES}
    edges = {
        name: imported(path) & set(modules) for name, path in modules.items() if name != "soctk_evaluation.__init__"
    }
    check_no_circles(edges)


def test_the_command_line_and_the_reports_name_no_experiment() -> None:
    """They find them in the registry; only what each command takes is listed, in `cli/commands.py`."""
    helpers = {"__init__", "structured", "moreau", "operations", "direct", "race"}
    names = {path.stem for path in (HOME / "experiments").glob("*.py")} - helpers
    for path in (HOME / "cli" / "command_line.py", HOME / "cli" / "report.py", *(HOME / "harness").glob("*.py")):
        constants = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        if path.name != "names.py":
            assert not names & {value for value in constants if isinstance(value, str)}, path
