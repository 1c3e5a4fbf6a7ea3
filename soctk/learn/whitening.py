"""Whitened coordinates of windows: in those of the signals, whose neighbours are much alike, L-BFGS is slow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor

from soctk.learn.residuals import Residuals
from soctk.traits import Windowed

SMALLEST_SHARE = 1e-8
"""Directions of windows with a smaller share of the largest variance are not blown up further by whitening."""


@contextmanager
def whitened(model: Windowed, *parts: Residuals) -> Iterator[list[Residuals]]:
    """Hold the branches' kernels in whitened coordinates, K w = (K R^-1) (R w), and yield the residuals in these.

    Args:
        model: a surrogate of windowed branches; inside only its `value_of` has a meaning.
        parts: residuals with features; the first ones' windows are white then.
    """
    branches: dict[str, Any] = dict(model.branches.items())
    bases = {name: whitening(branch.mean_gram(parts[0].features[name])) for name, branch in branches.items()}
    inside = [copy(part) for part in parts]
    for part in inside:
        part.features = {name: branch.changed(part.features[name], bases[name]) for name, branch in branches.items()}
    for name, branch in branches.items():
        branch.place(torch.linalg.solve(bases[name], branch.stacked().detach(), left=False))
    try:
        yield inside
    finally:
        for name, branch in branches.items():
            branch.place(branch.stacked().detach() @ bases[name])


def whitening(gram: Tensor) -> Tensor:
    """Return R with R gram R' = I, but for directions that hardly occur; I where none does, as without a place."""
    values, vectors = torch.linalg.eigh(gram)
    if float(values[-1]) <= 0:
        return torch.eye(len(values)).to(gram)
    return (vectors / values.clamp(min=SMALLEST_SHARE * float(values[-1])).sqrt()).mT
