"""Decisions within `torch.inference_mode()`: those outside of it, whatever solver they need derivatives for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import soctk
from soctk import Decision

MODEL = soctk.SOCICNN(3, 2, quadratics=(3,), norms=(2,), seed=0)
LIMITS = [(soctk.SOCICNN(3, 2, hidden=(3,), seed=seed), 5.0) for seed in (1, 2)]
FLAT = soctk.from_quadratic(1e-9 * np.eye(3), np.zeros(3))
BOX = soctk.Box(3)
PLANT = soctk.Polyhedron(3, 0.0, [4.0, 2.0, 3.0], E=[[1.0, 1.0, 1.0]], f=[5.0])
CALM = soctk.ConicSet(PLANT, [(np.diag([1.0, 0.5, 0.8]), 0.0, 0.0, 3.0)])


def contexts() -> torch.Tensor:
    """Return contexts; within the mode they are tensors without derivatives for ever."""
    return torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


CASES: dict[str, Callable[[], Decision]] = {
    "newton": lambda: soctk.minimize(MODEL, BOX, contexts()),
    "cones": lambda: soctk.minimize(MODEL, CALM, contexts()),
    "cvxpy": lambda: soctk.minimize(MODEL, BOX, contexts(), method="cvxpy"),
    "paper": lambda: soctk.minimize(MODEL, BOX, contexts(), method="projected_adam"),
    "learned limits": lambda: soctk.minimize(MODEL, PLANT, contexts(), subject_to=LIMITS),
    "flat": lambda: soctk.minimize(FLAT, BOX),
    "flat, prepared": lambda: soctk.prepare(FLAT, BOX).minimize(),
}


@pytest.mark.parametrize("name", CASES)
def test_it_changes_no_decision(name: str) -> None:
    with torch.inference_mode():
        found = CASES[name]()
    expected = CASES[name]()
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.lower_bound, expected.lower_bound)
    assert np.array_equal(found.status, expected.status)


def test_what_was_made_in_it_is_decided_and_differentiated_outside() -> None:
    with torch.inference_mode():
        given = contexts()
    layer = soctk.DecisionLayer(MODEL, BOX)
    layer(given).sum().backward()
    assert torch.equal(soctk.minimize(MODEL, CALM, given).x, soctk.minimize(MODEL, CALM, contexts()).x)
    certificates = [soctk.certify(MODEL, BOX, layer(each), each) for each in (given, contexts())]
    assert torch.equal(certificates[0].lower_bound, certificates[1].lower_bound)


HELD = {
    "box": lambda: soctk.Box(3, [0.0, 0.5, 0.0], [1.0, 0.5, 1.0]),
    "simplex": lambda: soctk.Simplex(3),
    "point": lambda: soctk.Box(3, 0.5, 0.5),
    "rows": lambda: soctk.Polyhedron(3, 0.0, 1.0, E=[[1.0, 1.0, 1.0]], f=[2.0], G=[[1.0, -1.0, 0.0]], h=[0.3]),
}


@pytest.mark.parametrize("name", HELD)
def test_what_a_set_keeps_from_it_is_differentiated_outside(name: str) -> None:
    """A model is looked at first, and trained after: "Inference tensors cannot be saved for backward"."""
    feasible_set = HELD[name]()
    with torch.inference_mode():
        fresh, points = HELD[name](), torch.zeros(2, 3, dtype=torch.float64)
        for one in (feasible_set, fresh):
            soctk.DecisionLayer(MODEL, one)(contexts())
            for use in (one.violation, one.project, one.linear_minimum):
                use(points)
    for one in (feasible_set, fresh):
        point, given = points.clone().requires_grad_(), contexts().requires_grad_()
        layer = soctk.DecisionLayer(MODEL, one, skip_undefined=True)
        (one.violation(point).sum() + layer(given).sum() + layer.optimal_value(given).sum()).backward()
        assert bool(given.grad.isfinite().all())
        assert torch.equal(one.project(point).detach(), HELD[name]().project(points))
