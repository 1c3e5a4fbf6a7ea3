"""Surrogates that were learned, kept beside the store: what several cells begin with is learned once.

METHOD+fy, +regret and others go on where METHOD ended, and protocols decide with one and the same surrogate. A file's
name is the key of the row of METHOD itself, so that the surrogate of every row can be looked at (`soctk.load`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from soctk import CheckpointError, ConvexSurrogate, load, save
from soctk.io.checkpoint import read_notes
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.from_decisions import FIELDS
from soctk_evaluation.harness.names import FROM_DECISIONS, split
from soctk_evaluation.harness.recipe import PREFIX

FOLDER = "fits"


@dataclass(frozen=True, eq=False)
class Fit:
    """What learning from values gives.

    Attributes:
        model: the surrogate.
        seconds: that it took.
        note: for the row's status, "" unless the fit ended badly.
        fields: `soctk_evaluation.harness.recipe.FIT_FIELDS`.
    """

    model: ConvexSurrogate
    seconds: float
    note: str
    fields: Mapping[str, str | None]


def values_cell(cell: Cell) -> Cell:
    """Return the cell whose surrogate this one's is, but for what it learns from decisions."""
    method, setting = split(cell.method)
    own = {name: value for name, value in cell.config if name.removeprefix(PREFIX) not in FIELDS}
    name = method if setting in FROM_DECISIONS else cell.method
    return replace(cell, method=name, protocol="exact", config=make_config(own))


def kept(path: Path, learn: Callable[[], Fit]) -> Fit:
    """Return the fit in a file, or learn it and keep it there: where there is none, or none that can be read.

    What cannot be saved, such as a surrogate of a class that is not registered or one that diverged, is learned by
    every cell anew.
    """
    with suppress(FileNotFoundError, CheckpointError, KeyError):
        notes = read_notes(path)
        return Fit(load(path), notes["seconds"], notes["note"], notes["fields"])
    fit = learn()
    with suppress(NotImplementedError, TypeError, ValueError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        save(fit.model, path, notes={"seconds": fit.seconds, "note": fit.note, "fields": dict(fit.fields)})
    return fit
