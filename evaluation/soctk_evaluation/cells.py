"""A cell: one measurement of the leaderboard, and the key under which its result is stored."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = ("soctk", "soctk_tasks", "soctk_baselines", "soctk_evaluation")
"""The packages whose source determines a result."""

PRESENTATION = (
    "cli.py",
    "commands.py",
    "figures.py",
    "measures.py",
    "pages.py",
    "report.py",
    "running.py",
    "structured_report.py",
    "summary.py",
    "theory_report.py",
    "timing.py",
    "timing_report.py",
)
"""Files of `soctk_evaluation` that no learned result depends on: they show results, or measure time alone."""

LIBRARIES = ("torch", "numpy", "scipy", "cvxpy", "clarabel")
"""The libraries whose version determines a result."""

EXTRA_LIBRARIES = {"lpcf": ("lpcf", "jax"), "dcp": ("cvxpylayers", "diffcp", "scs")}
"""Further libraries that determine the result of one method."""

Config = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Cell:
    """One measurement: hashable, cheap to send to a worker, the same on every machine.

    Attributes:
        experiment: for example "leaderboard".
        task: the task's name.
        dim: the decision dimension.
        method: the surrogate's or policy's name.
        seed: of the task, its data and the method.
        protocol: how decisions are made.
        config: everything else that determines the result, as sorted (name, value) pairs of JSON values.
    """

    experiment: str
    task: str
    dim: int
    method: str
    seed: int
    protocol: str
    config: Config = ()

    @property
    def name(self) -> str:
        """The cell in words, for progress lines."""
        return f"{self.task} d={self.dim} {self.method} seed {self.seed}"

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that say which cell this is, `config` as a dictionary."""
        fields = ("experiment", "task", "dim", "method", "seed", "protocol")
        return {field: getattr(self, field) for field in fields} | {"config": dict(self.config)}

    @property
    def versions(self) -> dict[str, str]:
        """The versions of everything that determines this cell's result."""
        return versions(self.method)

    @property
    def key(self) -> str:
        """Hash of everything that determines the result: the cell, the code and the libraries' versions."""
        text = json.dumps(self.identity | {"versions": self.versions}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def make_config(values: Mapping[str, Any]) -> Config:
    """Return a mapping of JSON values as sorted pairs, lists as tuples, so that a cell is hashable."""
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return tuple(sorted(frozen.items()))


@cache
def versions(method: str) -> dict[str, str]:
    """Return the versions that determine a method's result: code, libraries, the package that adds it."""
    names = (*LIBRARIES, *EXTRA_LIBRARIES.get(method, ()), *_provider(method))
    return {"code": code_version()} | {name: _version(name) for name in names}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


def _provider(method: str) -> tuple[str, ...]:
    """Return the distribution that adds a surrogate of this name, where it is not this project's own."""
    found = metadata.entry_points(group="soctk.surrogates", name=method)
    return tuple(sorted({point.dist.name for point in found if point.dist is not None} - {"soctk"}))


@cache
def code_version() -> str:
    """Return a hash of the source files of `PACKAGES`, without those of `PRESENTATION`."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path, file in _sources(package):
            digest.update(f"{package}/{path}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:12]


def _sources(package: str) -> list[tuple[str, Path]]:
    """Return (path inside the package, file) of every source file that determines a result, sorted."""
    spec = find_spec(package)
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    found = [(file.relative_to(root).as_posix(), file) for root in roots for file in root.rglob("*.py")]
    skipped = PRESENTATION if package == "soctk_evaluation" else ()
    return sorted((path, file) for path, file in found if path not in skipped)


@cache
def machine() -> str:
    """Return this machine in words: processor, cores, system. No name or address."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        processor = models[0] if models else processor
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
