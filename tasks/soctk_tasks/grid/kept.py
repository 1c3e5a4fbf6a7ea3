"""Values that take long to compute, kept on disk: found again by a hash of what they were computed from."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from soctk.files import replacing
from soctk.learn.progress import Progress

VARIABLE = "SOCTK_CACHE"
"""The environment variable that names the folder; by default `soctk` in the user's folder for caches."""
INSTANCES = 20
"""Instances in a file: what an interruption loses."""


def folder() -> Path:
    """Return where values are kept."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "soctk"


def kept_values(
    name: str, identity: str, x: Tensor, context: Tensor, compute: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return the values of candidates, (N, M); those that were computed before are read, the others are written.

    Progress is shown on stderr, if it takes longer than ten seconds. Files are computed in an order that is each
    process's own: of two that want the same values at the same time, each computes about half of them.

    Args:
        name: of the function.
        identity: a hash of all that determines it.
        x: candidates (N, M, n), float64.
        context: (N, p), float64.
        compute: candidates and contexts of some instances -> their values.
    """
    place, pieces = folder() / name, list(zip(x.split(INSTANCES), context.split(INSTANCES), strict=True))
    parts: dict[int, Tensor] = {}
    with Progress(context.shape[0], enabled=True, name=name, figure="mean value", unit="instances") as progress:
        for index in random.Random(os.getpid()).sample(range(len(pieces)), len(pieces)):
            parts[index] = _one(place, identity, *pieces[index], compute)
            progress.advance(float(parts[index].mean()), len(pieces[index][1]))
    return torch.cat([parts[index] for index in range(len(pieces))])


def _one(place: Path, identity: str, x: Tensor, context: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    digest = hashlib.sha256(identity.encode())
    for part in (x, context):
        digest.update(repr(tuple(part.shape)).encode() + part.contiguous().numpy().tobytes())
    path = place / f"{digest.hexdigest()[:32]}.npy"
    if path.is_file():
        found = torch.from_numpy(np.load(path))
        if found.shape == x.shape[:2]:
            return found
    value = compute(x, context)
    place.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:  # whole or not at all, whoever else writes it
        np.save(partial, value.numpy())
    return value
