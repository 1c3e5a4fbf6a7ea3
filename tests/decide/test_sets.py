"""Decisions over general polyhedra and sets of one's own: certified, feasible and the same as Clarabel's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ball import Ball
from reference import clarabel_optimum
from tolerances import CERTIFIED, CLARABEL, DOUBLE, TIGHT_CLARABEL
from zoo import MODELS, shaken

import soctk
from soctk import Box, Budget, ConeProgram, FeasibleSet, Polyhedron, Status
from soctk.forms.cone_program import cone_program

n = 4
CONTEXT = torch.tensor([[0.4, -1.2, 0.3], [1.0, 0.2, -0.5]], dtype=DOUBLE)
SETS: dict[str, FeasibleSet] = {
    "rows": Polyhedron(n, -1.0, 1.0, E=[[1.0, -1.0, 0.5, 0.0]], f=[0.2], G=[[1.0, 1.0, 1.0, 1.0]], h=[0.5]),
    "no_bounds": Polyhedron(
        n, -np.inf, np.inf, G=np.vstack([np.eye(n), -np.ones((1, n))]), h=[1.0, 1.0, 1.0, 1.0, 2.0]
    ),
    "flat": Polyhedron(
        n, 0.0, G=[[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, -1.0, -1.0]], h=[0.0, 1.0, -1.0]
    ),
    "ball": Ball(n, 0.8, 0.1),
}


@pytest.mark.parametrize("kind", ["soc", "relu", "softplus", "ickan"])
@pytest.mark.parametrize("name", SETS)
def test_decisions_are_certified_and_right(kind: str, name: str) -> None:
    model, feasible_set = shaken(MODELS[kind](n)), SETS[name]
    decision = soctk.minimize(model, feasible_set, CONTEXT)
    assert (decision.status == Status.OPTIMAL).all()
    assert float(decision.relative_gap.max()) <= CERTIFIED
    assert float(feasible_set.violation(decision.x).max()) <= 1e-12
    torch.testing.assert_close(decision.value, model(decision.x, CONTEXT))
    for row in range(2):
        optimum = clarabel_optimum(model, feasible_set, CONTEXT[row])
        size = max(1.0, abs(optimum))
        assert float(decision.lower_bound[row]) <= optimum + TIGHT_CLARABEL * size
        assert float(decision.value[row]) == pytest.approx(optimum, abs=2 * CERTIFIED * size)
    certificate = soctk.certify(model, feasible_set, decision.x, CONTEXT)
    assert float(certificate.relative_gap.max()) <= CERTIFIED


@pytest.mark.parametrize("name", SETS)
def test_first_order_steps_know_every_set(name: str) -> None:
    model, feasible_set = MODELS["soc"](n), SETS[name]
    decision = soctk.minimize(model, feasible_set, CONTEXT, method="first_order", tol=1e-4)
    assert (decision.status == Status.OPTIMAL).all()
    assert float(feasible_set.violation(decision.x).max()) <= 1e-12


def test_single_precision_and_units_of_the_gap() -> None:
    model = shaken(MODELS["soc"](n))
    single = soctk.minimize(model.to(torch.float32), SETS["rows"], CONTEXT.float(), tol=1e-4)
    assert single.x.dtype == torch.float32
    assert (single.status == Status.OPTIMAL).all()
    decision = soctk.minimize(model.to(torch.float64), SETS["rows"], CONTEXT, scale=10.0)
    assert (decision.status == Status.OPTIMAL).all()


def test_a_polyhedron_that_is_a_budget_is_decided_by_newton_steps() -> None:
    model = MODELS["soc"](n)
    expected = soctk.minimize(model, Budget(n, 1.2), CONTEXT, method="newton", tol=1e-9)
    for rows in (
        {"upper": 1.0, "E": np.ones(n), "f": 1.2},
        {"upper": 1.0, "E": 2 * np.ones(n), "f": 2.4},
        {"E": np.ones(n), "f": 1.2, "G": np.eye(n), "h": np.ones(n)},
        {"upper": [1.0, np.inf, np.inf, np.inf], "E": np.ones(n), "f": 1.2, "G": np.eye(n)[1:], "h": np.ones(n - 1)},
    ):
        found = soctk.minimize(model, Polyhedron(n, **rows), CONTEXT, method="newton", tol=1e-9)
        assert (found.iterations > 0).all()
        torch.testing.assert_close(found.x, expected.x, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.value, expected.value, rtol=0, atol=1e-8)


def test_a_polyhedron_without_a_choice_is_its_point() -> None:
    model = MODELS["soc"](2)
    point = Polyhedron(2, 0.0, 1.0, E=[[1.0, 1.0], [1.0, -1.0]], f=[1.0, 0.5])
    decision = soctk.minimize(model, point, CONTEXT)
    torch.testing.assert_close(decision.x, torch.tensor([[0.75, 0.25]] * 2, dtype=DOUBLE))
    assert float(decision.gap.max()) <= 1e-12


@pytest.mark.parametrize("name", ["rows", "no_bounds", "flat"])
def test_the_cone_program_has_every_row(name: str) -> None:
    model = shaken(MODELS["soc"](n))
    form = model.conic_form(CONTEXT[0])
    program: ConeProgram = cone_program(form, feasible_set=SETS[name])
    solution = program.solve()
    assert solution.value == pytest.approx(clarabel_optimum(model, SETS[name], CONTEXT[0]), abs=CLARABEL)
    assert float(SETS[name].violation(solution.variables["x"])) <= CLARABEL


def test_what_needs_rows_refuses_a_set_without() -> None:
    form = MODELS["relu"](n).conic_form(CONTEXT[0])
    with pytest.raises(NotImplementedError, match=r"with rows\(\), got Ball"):
        cone_program(form, feasible_set=SETS["ball"])
    with pytest.raises(ValueError, match="expected bounds and inequalities"):
        soctk.affine_pieces(form, SETS["ball"])
    data = soctk.ValueData(torch.zeros(3, 0), torch.zeros(3, 2, n), torch.zeros(3, 2))
    with pytest.raises(NotImplementedError, match="expected one with rows"):
        soctk.fit(soctk.SOCICNN(n), data, optima=torch.zeros(3, n), feasible_set=SETS["ball"])


def test_affine_pieces_within_inequalities() -> None:
    form = MODELS["relu"](n).conic_form(CONTEXT[0])
    inside = Polyhedron(n, -1.0, 1.0, G=[[1.0, 2.0, 0.0, 0.0]], h=[0.3])
    slopes, heights = soctk.affine_pieces(form, inside)
    everywhere, _ = soctk.affine_pieces(form, Box(n, -1.0, 1.0))
    assert len(slopes) <= len(everywhere)
    x = inside.sample(100, torch.Generator().manual_seed(0))
    torch.testing.assert_close((x @ slopes.T + heights).amax(dim=1), form.value(x), rtol=0, atol=1e-9)


def test_steepness_is_bounded_over_the_hull() -> None:
    form = MODELS["soc"](n).conic_form(CONTEXT[0])
    tight = form.lipschitz(Polyhedron(n, -np.inf, np.inf, G=np.vstack([np.eye(n), -np.eye(n)]), h=np.ones(2 * n)))
    torch.testing.assert_close(tight, form.lipschitz(Box(n, -1.0, 1.0)), rtol=1e-9, atol=0)
