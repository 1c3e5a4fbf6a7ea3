"""Packages that are installed for a while: modules and metadata with entry points, in a folder on the path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from soctk import registry
from soctk.terms import registry as terms

Entries = Mapping[str, Mapping[str, str]]
"""Group -> name -> what it names."""


@contextmanager
def installed(folder: Path, name: str, files: Mapping[str, str], entries: Entries) -> Iterator[None]:
    """Put a package's files and metadata into a folder and that on the path; take away again what was imported."""
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [line for group, own in entries.items() for line in (f"[{group}]", *(f"{n} = {v}" for n, v in own.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines))
    tables = [(table, table.copy()) for table in (registry._classes, terms._registered, terms._failed)]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for module in [module for module in sys.modules if _is_of(module, files)]:
            del sys.modules[module]
        for table, before in tables:
            table.clear()
            table.update(before)


def _is_of(module: str, files: Mapping[str, str]) -> bool:
    return module.split(".")[0] in {file.split("/")[0].removesuffix(".py") for file in files}
