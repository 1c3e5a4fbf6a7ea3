"""What was learned in a cell; surrogates kept beside the store, so that what several cells begin with is learned once.

METHOD+fy, +regret and others go on where METHOD ended, and protocols decide with one and the same surrogate. A file's
name is the key of the row of METHOD itself, whose surrogate can so be looked at (`soctk.load`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from soctk import CheckpointError, ConvexSurrogate, load, save
from soctk.io.checkpoint import read_notes
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.from_decisions import FIELDS
from soctk_evaluation.harness.names import FROM_DECISIONS, split
from soctk_evaluation.harness.recipe import FIT_FIELDS, PREFIX
from soctk_evaluation.metrics import Policy

FOLDER = "fits"


@dataclass(frozen=True, eq=False)
class Learned:
    """What was learned, and how.

    Attributes:
        model: the surrogate or policy.
        params: its weights.
        seconds: that it took.
        note: for the row's status, "" unless the fit ended badly.
        step_seconds: of a step of learning from decisions; NaN without.
        fit: `soctk_evaluation.harness.recipe.FIT_FIELDS`.
    """

    model: ConvexSurrogate | Policy
    params: int | None
    seconds: float
    note: str = ""
    step_seconds: float = math.nan
    fit: Mapping[str, str | None] = field(default_factory=lambda: dict.fromkeys(FIT_FIELDS))


def values_cell(cell: Cell) -> Cell:
    """Return the cell whose surrogate this one's is, but for what it learns from decisions."""
    method, setting = split(cell.method)
    own = {name: value for name, value in cell.config if name.removeprefix(PREFIX) not in FIELDS}
    name = method if setting in FROM_DECISIONS else cell.method
    return replace(cell, method=name, protocol="exact", config=make_config(own))


def kept(path: Path, learn: Callable[[], Learned]) -> Learned:
    """Return what was learned from values and is in a file, or learn it and keep it there if none can be read.

    What cannot be saved, such as a surrogate of a class that is not registered or one that diverged, is learned by
    every cell anew.
    """
    with suppress(FileNotFoundError, CheckpointError, KeyError):
        notes, model = read_notes(path), load(path)
        return Learned(model, model.parameter_count, notes["seconds"], notes["note"], fit=notes["fit"])
    learned = learn()
    with suppress(NotImplementedError, TypeError, ValueError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        notes = {"seconds": learned.seconds, "note": learned.note, "fit": dict(learned.fit)}
        save(cast(ConvexSurrogate, learned.model), path, notes=notes)
    return learned
