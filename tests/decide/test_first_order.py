"""The first-order method: certified like the Newton method, and in dimensions where that one does not go."""

from __future__ import annotations

import time

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from ball import Ball
from reference import clarabel_optimum
from tolerances import DOUBLE, FIRST_ORDER, TIGHT_CLARABEL
from zoo import MODELS, SETS, shaken

from soctk import SOCICNN, Box, Budget, ConicForm, FirstOrder, NormICNN, Polyhedron, Simplex, SmoothingNewton, minimize
from soctk.decide.choice import NEWTON, default_solver
from soctk.decide.problem import Problem
from soctk.maps.linear import SparseMap
from soctk.sets import FeasibleSet
from soctk.terms import Norms

CURVED = [name for name in MODELS if name not in ("relu", "ickan", "affine", "norms_only", "no_passthrough")]


def contexts(count: int) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", CURVED)
def test_it_reaches_its_tolerance_and_its_bounds_are_bounds(name, kind):
    model, feasible_set, rows = shaken(MODELS[name](8)), SETS[kind](8), contexts(16)
    decision = minimize(model, feasible_set, rows, method="first_order", tol=FIRST_ORDER)
    assert (decision.status == "optimal").all()
    assert float(feasible_set.violation(decision.x).max()) <= 1e-9
    newton = minimize(model, feasible_set, rows, tol=1e-9)
    scale = newton.value.abs().clamp(min=1.0)
    assert float(((decision.lower_bound - newton.value) / scale).max()) <= TIGHT_CLARABEL
    assert float(((newton.lower_bound - decision.value) / scale).max()) <= TIGHT_CLARABEL
    optimum = clarabel_optimum(model, feasible_set, rows[0])
    assert float(decision.lower_bound[0]) <= optimum + TIGHT_CLARABEL * max(1.0, abs(optimum))


def test_it_is_the_default_in_many_dimensions():
    model = SOCICNN(800, 2, hidden=(6,), diagonal=True, norms=(3,), hyperbolics=4, ridges=0, seed=1)
    rows = contexts(3)[:, :2]
    decision = minimize(model, Box(800, -1.0, 1.0), rows, tol=1e-4)
    assert (decision.status == "optimal").all()
    assert int(decision.iterations.max()) > 60  # not Newton steps


def test_limits_return_the_best_point_and_an_honest_gap():
    model, feasible_set, rows = shaken(MODELS["soc"](8)), Simplex(8), contexts(5)
    few = minimize(model, feasible_set, rows, method="first_order", tol=1e-9, max_iter=20)
    assert (few.status == "iteration_limit").all()
    started = time.perf_counter()
    short = minimize(model, feasible_set, rows, method="first_order", tol=1e-13, time_limit=0.05)
    assert time.perf_counter() - started < 5.0
    assert (short.status == "time_limit").all()
    tight = minimize(model, feasible_set, rows, tol=1e-9)
    for decision in (few, short):
        assert float(feasible_set.violation(decision.x).max()) <= 1e-9
        assert bool((decision.lower_bound <= tight.value + 1e-9).all())
        assert bool((decision.value >= tight.lower_bound - 1e-9).all())


@pytest.mark.parametrize("most", [8192, 1])
@pytest.mark.parametrize("feasible_set", [Box(520), Budget(520, 130.0)], ids=["box", "budget"])
def test_what_kinks_keep_from_being_certified_takes_newton_steps(
    feasible_set: FeasibleSet, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together, or one after the other where their systems are large."""
    monkeypatch.setattr("soctk.decide.pieces.PIECE", most)
    monkeypatch.setattr("soctk.decide.choice.FINISHED", FirstOrder(200, second=SmoothingNewton(second=None)))
    model = shaken(SOCICNN(520, 3, hidden=(32,), quadratics=(130,), norms=(130,), seed=0))
    rows = torch.randn(2, 3, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    first = minimize(model, feasible_set, rows, method=FirstOrder(200))
    decision = minimize(model, feasible_set, rows)
    assert set(first.status) == {"iteration_limit"}
    assert set(decision.status) == {"optimal"}
    assert set(decision.solver) == {"newton"}


def knapsacks(dim: int) -> Polyhedron:
    """Return a box that is cut by three knapsacks."""
    sizes = np.random.default_rng(0).uniform(size=(3, dim))
    return Polyhedron(dim, 0.0, 1.0, G=sizes, h=0.3 * sizes.sum(axis=1))


def test_newton_steps_finish_only_what_they_can() -> None:
    """Others get all gradient steps: on sets without rows, and of maps that are too large for a dense copy."""
    model = SOCICNN(520, 0, hidden=(4,), norms=(3,), seed=0)
    large = SparseMap.of(sp.eye_array(33_000, 520))
    zero = torch.zeros(1, 1, 33_000, dtype=DOUBLE)
    term = Norms(large, zero, zero + 1.0, zero + 1.0, 1)
    sparse = ConicForm(zero[0, :, :1], zero[..., :520], (term,), (1,))
    for problem, steps in (
        (Problem(model.conic_form(), Box(520)), 2000),
        (Problem(model.conic_form(), Ball(520, 1.0, 0.2)), 20_000),
        (Problem(sparse, Simplex(520)), 20_000),
        (Problem(NormICNN(2001, 0, seed=0).conic_form(), Box(2001)), 20_000),
        (Problem(NormICNN(2001, 0, seed=0).conic_form(), knapsacks(2001)), 20_000),
    ):
        solver = default_solver(problem)
        assert isinstance(solver, FirstOrder)
        assert solver.max_iter == steps
    assert default_solver(Problem(model.conic_form(), knapsacks(520))) is NEWTON
    assert minimize(model, Ball(520, 1.0, 0.2), max_iter=30).solver == "first_order"
