"""What is sent to another process: PyTorch moves the memory of its tensors, and frees what they had.

An array that shared that memory would hold whatever comes there next: decisions of other functions, "optimal".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from tolerances import DOUBLE

import soctk

DIM, CONTEXT = 3, 2
OURS = ("soctk", "cvxpy", "builtins", "collections", "torch.nn")
"""The modules whose objects are looked into."""


def numbers(item: Any, seen: dict[int, Any]) -> Iterator[np.ndarray | torch.Tensor]:
    """Yield the arrays and tensors that an object keeps, wherever in it."""
    if id(item) in seen or isinstance(item, type):
        return
    seen[id(item)] = item
    if isinstance(item, (np.ndarray, torch.Tensor)):
        yield item
        return
    if type(item).__module__.startswith(OURS):
        parts = list(getattr(item, "__dict__", {}).values())
        parts += [getattr(item, slot, None) for kind in type(item).__mro__ for slot in getattr(kind, "__slots__", ())]
        parts += item.values() if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else ()
        for part in parts:
            yield from numbers(part, seen)


def root(array: np.ndarray) -> Any:
    """Return what owns an array's memory."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def borrowed(item: Any) -> list[np.ndarray]:
    """Return the arrays in an object whose memory is that of a tensor in it."""
    found = list(numbers(item, {}))
    tensors = {part.untyped_storage().data_ptr() for part in found if isinstance(part, torch.Tensor)}
    arrays = [part for part in found if isinstance(part, np.ndarray) and isinstance(root(part), torch.Tensor)]
    return [part for part in arrays if root(part).untyped_storage().data_ptr() in tensors]


def contexts() -> torch.Tensor:
    return torch.randn(40, CONTEXT, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)


def model() -> soctk.SOCICNN:
    return soctk.SOCICNN(DIM, CONTEXT, hidden=(4,), quadratics=(3,), norms=(3,), seed=0)


def polyhedron() -> soctk.Polyhedron:
    sides = {"E": torch.ones(1, DIM, dtype=DOUBLE), "f": torch.ones(1, dtype=DOUBLE)}
    G, h = torch.eye(DIM, dtype=DOUBLE)[:2], torch.tensor([0.6, 0.7], dtype=DOUBLE)
    return soctk.Polyhedron(DIM, torch.zeros(DIM, dtype=DOUBLE), torch.ones(DIM, dtype=DOUBLE), **sides, G=G, h=h)


def ball() -> soctk.ConicSet:
    eye, none = torch.eye(DIM, dtype=DOUBLE), torch.zeros(DIM, dtype=DOUBLE)
    return soctk.ConicSet(soctk.Box(DIM), [(eye, none, none, 1.0)])


SETS: dict[str, Callable[[], Any]] = {
    "simplex": lambda: soctk.Simplex(DIM),
    "box": lambda: soctk.Box(DIM),
    "budget": lambda: soctk.Budget(DIM, 1.0),
    "polyhedron": polyhedron,
    "conic": ball,
    "budgets": lambda: soctk.Budget(DIM, 1.0).at(total=torch.linspace(0.5, 1.2, 40, dtype=DOUBLE)),
    "boxes": lambda: soctk.Box(DIM).at(upper=torch.linspace(0.5, 1.0, 40 * DIM, dtype=DOUBLE).reshape(40, DIM)),
    "polyhedra": lambda: polyhedron().at(f=torch.linspace(0.6, 1.2, 40, dtype=DOUBLE)[:, None]),
}


def send(item: Any) -> None:
    """Do what a pool or a queue does with an argument, and use the memory that is free then."""
    ForkingPickler.dumps(item)
    for size in range(1, 300):
        torch.full((size,), torch.nan, dtype=DOUBLE)


@pytest.mark.parametrize("name", list(SETS))
def test_sets_are_the_same_after_they_were_sent(name: str) -> None:
    sets, x = SETS[name](), cp.Variable(DIM)
    before = soctk.minimize(model(), sets, contexts())
    constraints = sets.constraints(x) if isinstance(sets, soctk.FeasibleSet) else []
    sets.project(contexts()[:, :1].expand(-1, DIM))
    assert not borrowed((sets, constraints))
    send(sets)
    after = soctk.minimize(model(), sets, contexts())
    assert torch.equal(before.x, after.x)
    assert torch.equal(before.lower_bound, after.lower_bound)


@pytest.mark.parametrize("name", ["simplex", "box", "budget", "polyhedron", "conic"])
def test_what_is_prepared_is_the_same_after_it_was_sent(name: str) -> None:
    prepared = soctk.prepare(model(), SETS[name]())
    before = prepared.minimize(contexts())
    assert not borrowed(prepared)
    send(prepared)
    assert torch.equal(prepared.minimize(contexts()).x, before.x)


def test_a_frozen_model_and_expressions_are_the_same_after_a_model_was_sent() -> None:
    given, x = model(), cp.Variable(DIM)
    frozen, box = soctk.freeze(given), soctk.Box(DIM)
    before = soctk.minimize(frozen, box, contexts())
    kept = given.to_cvxpy(x, contexts()[0])
    assert not borrowed((frozen, given, kept))
    x.value = np.full(DIM, 0.3)
    value = float(kept.value)
    send(frozen)
    send(given)
    assert torch.equal(soctk.minimize(frozen, box, contexts()).x, before.x)
    assert float(kept.value) == value
