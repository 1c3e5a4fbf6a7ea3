"""Which rows of a log a model learns from and which are held out, and how they are known again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from soctk import Log, ValueData
from soctk.learn.data import HELD_OUT, split_indices

NOTE = "log"
"""The note of a saved model that tells its log."""
DIGITS = 6
"""Of numbers that are compared: a log that was written again with fewer is the same one."""
KNOWN = 64
"""Rows that a model's file remembers."""


class Parts(NamedTuple):
    """Data to learn from, to choose the state kept (None: `fit` takes some of the former), and to measure on.

    The optima are those of the former, from the rows `rows` of the file.

    Attributes:
        held: the instances of the log that the last is of.
    """

    train: ValueData
    validation: ValueData | None
    test: ValueData
    optima: Tensor | None
    rows: Tensor
    held: Tensor


def split(logged: Log, seed: int) -> Parts:
    """Split by contexts, so that none is on two sides; few contexts are on both, as `ValueData.split` has them."""
    data, optima = logged.data, logged.optima
    if data.splits_candidates():
        train, test = data.split(seed=seed)
        return Parts(train, None, test, optima, logged.rows, data.split_within().nonzero()[:, 0])
    if data.splits_contexts():
        learned, held = data.split_instances(seed=seed)
        known = None if optima is None else optima[learned]
        return Parts(data.rows(learned), None, data.rows(held), known, logged.rows[learned], held)
    contexts = int(logged.contexts.max()) + 1
    rest, test = split_indices(contexts, HELD_OUT, seed)
    validation = rest[:0]
    if len(rest) > 1 and contexts < data.instances:  # otherwise `fit` splits as well, and uses all in the end
        learned, held = split_indices(len(rest), HELD_OUT, seed)
        rest, validation = rest[learned], rest[held]
    train, validation, test = (torch.isin(logged.contexts, part).nonzero()[:, 0] for part in (rest, validation, test))
    chosen = data.rows(validation) if len(validation) else None
    known = None if optima is None else optima[train]
    return Parts(data.rows(train), chosen, data.rows(test), known, logged.rows[train], test)


def fingerprint(logged: Log, parts: Parts, seed: int) -> dict[str, Any]:
    """Return what `soctk.save(notes=)` takes, so that `origin` knows the log and its rows again."""
    rows = _row_digests(parts.train)
    chosen = np.random.default_rng(seed).permutation(len(rows))[:KNOWN]
    known = [rows[k] for k in chosen]
    return {NOTE: {"sha256": _digest(logged.data), "seed": seed, "held": _digest(parts.test), "rows": known}}


def origin(notes: Mapping[str, Any], logged: Log) -> Parts | bool:
    """Return the parts of the log that a model was learned from, where it is this one.

    Returns:
        `Parts`; where it is another one, whether the model has learned from rows of it. Written again with fewer
        digits, contexts that differed by less are one, and other rows are held out: it is another one then.
    """
    note = notes.get(NOTE)
    if not isinstance(note, Mapping):
        return False
    if note.get("sha256") == _digest(logged.data) and isinstance(note.get("seed"), int):
        parts = split(logged, note["seed"])
        return parts if note.get("held", "") in ("", _digest(parts.test)) else True
    known = note.get("rows")
    return isinstance(known, list) and not set(map(str, known)).isdisjoint(_row_digests(logged.data))


def _digest(data: ValueData) -> str:
    parts = (_rounded(part).tobytes() for part in (data.context, data.x, data.value))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _rounded(numbers: Tensor) -> np.ndarray:
    """Return numbers to the digits that files keep: `DIGITS` significant ones."""
    array = numbers.double().contiguous().numpy()
    array = np.where(np.abs(array) < 1e-290, 0.0, array)
    size = np.floor(np.log10(np.abs(array), where=array != 0, out=np.zeros_like(array)))
    unit = 10.0 ** (size - DIGITS + 1)
    return np.round(array / unit).astype(np.int64) * 1000 + size.astype(np.int64)


def _row_digests(data: ValueData) -> list[str]:
    """Return a digest of each observed value with its context and decision."""
    context = data.context.unsqueeze(1).expand(-1, data.candidates, -1)
    whole = torch.cat([context, data.x, data.value.unsqueeze(-1)], dim=-1).flatten(end_dim=1)
    return [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in _rounded(whole)]
