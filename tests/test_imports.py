"""The import directions of the design: rooms import what they may, the library only downwards."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from circles import check_no_circles

import soctk

ROOT = Path(__file__).resolve().parents[1]

ROOMS = {
    "soctk": (ROOT / "soctk", set()),
    "soctk_baselines": (ROOT / "baselines" / "soctk_baselines", {"soctk"}),
    "soctk_tasks": (ROOT / "tasks" / "soctk_tasks", {"soctk"}),
    "soctk_evaluation": (
        ROOT / "evaluation" / "soctk_evaluation",
        {"soctk", "soctk_baselines", "soctk_tasks"},
    ),
}

FLOORS = {
    "checks": 1,
    "plugins": 1,
    "lazy": 1,
    "status": 1,
    "files": 1,
    "processes": 1,
    "support": 1,
    "maps": 1,
    "simd": 1,
    "conditioning": 1,
    "context_units": 1,
    "sets": 2,
    "terms": 2,
    "forms": 3,
    "traits": 4,
    "function": 4,
    "tilted": 4,
    "surrogate": 4,
    "registry": 4,
    "models": 4,
    "decide": 5,
    "runtime": 5,
    "learn": 6,
    "losses": 6,
    "imports": 6,
    "exports": 6,
    "assessment": 7,
    "io": 7,
    "tables": 7,
    "sklearn": 7,
}


def imported(path: Path) -> Iterator[str]:
    """Yield the modules a file imports, inside functions and under `if TYPE_CHECKING:` too."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))


def unit(path: Path) -> str:
    """Return the floor plan's name of a file of the library: its module, or the folder it is in."""
    relative = path.relative_to(ROOT / "soctk")
    return relative.parts[0].removesuffix(".py")


def library_files() -> list[Path]:
    return sorted(path for path in (ROOT / "soctk").rglob("*.py") if path != ROOT / "soctk" / "__init__.py")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    folder, allowed = ROOMS[room]
    files = sorted(folder.rglob("*.py"))
    assert files
    for path in files:
        ours = {name.split(".")[0] for name in imported(path)} & set(ROOMS)
        assert ours <= allowed | {room}, f"{path.relative_to(ROOT)} imports {ours - allowed - {room}}"
        assert "tests" not in {name.split(".")[0] for name in imported(path)}


def test_every_module_of_the_library_has_its_floor() -> None:
    assert {unit(path) for path in library_files()} <= set(FLOORS)


@pytest.mark.parametrize("path", library_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_library_imports_only_downwards(path: Path) -> None:
    here = unit(path)
    for name in imported(path):
        parts = name.split(".")
        if parts[0] != "soctk" or len(parts) == 1:
            continue
        there = parts[1]
        assert there in FLOORS, f"{name}: import from the module, not from the package soctk"
        assert FLOORS[there] <= FLOORS[here], f"{here} (floor {FLOORS[here]}) imports {name} (floor {FLOORS[there]})"


def test_the_library_has_no_circles() -> None:
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in library_files()}
    edges = {name: {other for other in imported(path) if other in modules} for name, path in modules.items()}
    check_no_circles(edges)


DECIDING = (
    "SOCICNN, Box, Budget, Polyhedron, Simplex, ConicForm, DecisionLayer, certify, freeze, load, minimize, prepare"
)


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import soctk", "torch numpy"),
        (f"from soctk import {DECIDING}", "cvxpy scipy clarabel scs numba rich"),
        ("import soctk_baselines, soctk_tasks", "cvxpy cvxpylayers numba jax lpcf sklearn"),
        ("from soctk import *", "soctk_baselines soctk_tasks soctk_evaluation numba jax matplotlib pandas joblib"),
    ],
)
def test_nothing_is_loaded_before_it_is_needed(code: str, unwanted: str) -> None:
    names = set(unwanted.split())
    if "cvxpy" not in names and find_spec("moreau") is not None:
        names -= {"numba", "jax"}  # CVXPY loads the solver Moreau where it is installed, and that these
    program = f"import sys\n{code}\nprint(sorted({names} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_public_names_are_found_where_type_checkers_look() -> None:
    """The table of what is loaded when used, the imports that type checkers see, and `__all__` have the same names."""
    tree = ast.parse((ROOT / "soctk" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}  # type: ignore[attr-defined]
    assert seen.pop("losses") == "soctk"
    assert seen == {name: f"soctk.{module}" for name, module in soctk._HOME.items()}
    assert set(soctk.__all__) == {*seen, "losses"}
    for name in soctk.__all__:
        assert getattr(soctk, name) is not None
    assert set(soctk.__all__) <= set(dir(soctk))
    assert soctk.terms.Norms.__module__ == "soctk.terms.norm"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = soctk.nothing
