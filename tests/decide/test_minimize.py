"""`minimize` against Clarabel: certified, feasible, and never a bound above the optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import clarabel_optimum
from tolerances import CERTIFIED, DOUBLE, TIGHT_CLARABEL
from zoo import MODELS, SETS, shaken

from soctk import (
    SOCICNN,
    Box,
    Budget,
    Decision,
    FeasibleSet,
    Simplex,
    minimize,
)


def check(decision: Decision, model, feasible_set, context, tol: float = CERTIFIED, references: int = 2) -> None:
    """Assert that every decision is feasible and certified, and the first ones right."""
    scale = decision.value.abs().clamp(min=1.0)
    assert (decision.status == "optimal").all()
    assert bool(decision.optimal.all())
    assert float(feasible_set.violation(decision.x).max()) <= 1e-9
    torch.testing.assert_close(decision.value, model(decision.x, context).detach(), rtol=1e-12, atol=1e-12)
    assert bool((decision.gap <= tol * scale).all())
    for row in range(references):
        optimum = clarabel_optimum(model, feasible_set, context[row])
        slack = TIGHT_CLARABEL * float(scale[row])
        assert float(decision.lower_bound[row]) <= optimum + slack
        assert float(decision.value[row]) >= optimum - slack
        assert float(decision.value[row]) <= optimum + tol * float(scale[row]) + slack


@pytest.mark.parametrize("dim", [1, 3, 10])
@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("model_name", MODELS)
def test_newton_is_certified_and_right(model_name: str, set_name: str, dim: int) -> None:
    model, feasible_set = shaken(MODELS[model_name](dim)), SETS[set_name](dim)
    context = torch.randn(12, 3, generator=torch.Generator().manual_seed(dim), dtype=DOUBLE)
    decision = minimize(model, feasible_set, context)
    assert decision.x.shape == (12, dim)
    assert decision.value.shape == decision.lower_bound.shape == decision.status.shape == (12,)
    check(decision, model, feasible_set, context, references=1 if dim == 10 else 2)


@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("model_name", ["relu", "softplus", "soc", "hyperbolic"])
def test_cvxpy_agrees_and_is_certified_by_its_own_duals(model_name: str, set_name: str) -> None:
    model, feasible_set = shaken(MODELS[model_name](3)), SETS[set_name](3)
    context = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    decision = minimize(model, feasible_set, context, method="cvxpy")
    check(decision, model, feasible_set, context, references=1)
    newton = minimize(model, feasible_set, context, tol=1e-8)
    torch.testing.assert_close(decision.value, newton.value, rtol=1e-6, atol=1e-6)


def test_a_model_without_context_and_every_batch_shape() -> None:
    model = SOCICNN(4, quadratics=(2,), norms=(2,))
    decision = minimize(model, Simplex(4))
    assert decision.x.shape == (4,)
    assert decision.value.shape == decision.gap.shape == decision.status.shape == ()
    assert float(decision.value) == pytest.approx(clarabel_optimum(model, Simplex(4)), abs=2 * CERTIFIED)
    model = SOCICNN(4, 2, quadratics=(2,))
    context = torch.randn(2, 3, 2, dtype=DOUBLE)
    decision = minimize(model, Simplex(4), context)
    assert decision.x.shape == (2, 3, 4)
    single = minimize(model, Simplex(4), context[1, 2])
    assert single.x.shape == (4,)
    torch.testing.assert_close(single.value, decision.value[1, 2], rtol=0, atol=2 * CERTIFIED)
    for empty in (context[:0], context[:, :0]):
        decision = minimize(model, Simplex(4), empty)
        assert decision.x.shape == (*empty.shape[:-1], 4)
        assert decision.status.shape == empty.shape[:-1]


def test_rows_are_decided_alone() -> None:
    model = shaken(MODELS["soc"](5))
    context = torch.randn(8, 3, dtype=DOUBLE)
    order = torch.randperm(8)
    decision, permuted = (minimize(model, Simplex(5), c, tol=1e-9) for c in (context, context[order]))
    torch.testing.assert_close(permuted.value, decision.value[order], rtol=1e-8, atol=1e-8)
    twice = minimize(model, Simplex(5), context[:1].repeat(4, 1))
    torch.testing.assert_close(twice.x, twice.x[:1].expand(4, -1), rtol=0, atol=1e-9)


# -- where optima hide ---------------------------------------------------------------------------------


def quadratic_model(n: int, center: float = 0.0, alpha: float = 1.0) -> SOCICNN:
    """Return alpha / 2 ||x - center||^2 with all of its other parts zero."""
    model = SOCICNN(n, hidden=(), quadratics=(n,))
    with torch.no_grad():
        for weight in model.affine.parameters():
            weight.zero_()
        model.B[0].copy_(torch.eye(n))
        model.e[0].constant.fill_(-center)
        model.alpha.floor.fill_(float(np.log(np.expm1(alpha))))
    return model


def test_an_optimum_at_a_vertex() -> None:
    model = quadratic_model(4)
    with torch.no_grad():
        model.affine.slope.constant.copy_(torch.tensor([5.0, -50.0, 3.0, 6.0]))
    for feasible_set, vertex in (
        (Simplex(4), [0, 1, 0, 0]),
        (Box(4), [0, 1, 0, 0]),
        (Budget(4, 2.0), [0, 1, 1, 0]),
    ):
        decision = minimize(model, feasible_set, tol=1e-9)
        assert decision.status == "optimal"
        torch.testing.assert_close(decision.x, torch.tensor(vertex, dtype=DOUBLE), rtol=0, atol=1e-6)


@pytest.mark.parametrize("feasible_set", [Simplex(4), Box(4), Budget(4, 1.0)], ids=lambda s: type(s).__name__)
def test_an_optimum_at_the_apex_of_a_norm(feasible_set: FeasibleSet) -> None:
    """||x - a|| with a in the set: the minimum is 0, at the kink itself."""
    model = SOCICNN(4, hidden=(), norms=(4,))
    apex = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=DOUBLE)
    with torch.no_grad():
        for weight in model.affine.parameters():
            weight.zero_()
        model.A[0].copy_(torch.eye(4))
        model.d[0].constant.copy_(-apex)
    decision = minimize(model, feasible_set)
    assert decision.status == "optimal"
    assert float(decision.value) <= CERTIFIED
    assert float(decision.lower_bound) <= 1e-12
    torch.testing.assert_close(decision.x, apex, rtol=0, atol=1e-5)


@pytest.mark.parametrize("total", [0.0, 1.0, 3.0, 5.0])
def test_integer_budgets(total: float) -> None:
    """Where the optimum of a budget is a vertex of the hypersimplex, several multipliers are optimal."""
    model = shaken(MODELS["relu"](5))
    context = torch.randn(4, 3, dtype=DOUBLE)
    check(minimize(model, Budget(5, total), context), model, Budget(5, total), context)


def test_duplicated_units_and_coordinates() -> None:
    model = shaken(MODELS["relu"](6))
    with torch.no_grad():
        for matrix in model.W:
            matrix[:, 3:] = matrix[:, :3]
            matrix[1:3] = matrix[0]
        for offset in model.b:
            offset.constant[1:3] = offset.constant[0]
            offset.slope[1:3] = offset.slope[0]
    context = torch.randn(4, 3, dtype=DOUBLE)
    for feasible_set in (Simplex(6), Box(6), Budget(6, 2.0)):
        check(minimize(model, feasible_set, context), model, feasible_set, context, references=1)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("model_name", ["relu", "soc", "softplus"])
def test_scales_of_the_objective(model_name: str, scale: float) -> None:
    """The gap is relative to max(1, |f|); asked for 1e-6 of the objective's own scale, it is reached too."""
    model = shaken(MODELS[model_name](4))
    context = torch.randn(5, 3, dtype=DOUBLE)
    plain = minimize(model, Simplex(4), context, tol=1e-8)
    model.set_standardization(value=(0.0, scale))
    tol = CERTIFIED * min(1.0, scale)
    decision = minimize(model, Simplex(4), context, tol=tol)
    check(decision, model, Simplex(4), context, tol=tol, references=1)
    torch.testing.assert_close(decision.value, scale * plain.value, rtol=2e-6, atol=2e-6 * scale)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_scales_of_the_decision(scale: float) -> None:
    model = shaken(MODELS["soc"](4))
    model.set_standardization(x=(0.0, scale))
    context = torch.randn(5, 3, dtype=DOUBLE)
    for feasible_set in (Simplex(4, total=scale), Box(4, 0.0, scale), Budget(4, 1.2 * scale, 0.0, scale)):
        decision = minimize(model, feasible_set, context)
        assert (decision.status == "optimal").all()
        assert float(feasible_set.violation(decision.x).max()) <= 1e-12 * max(1.0, scale)


def test_fixed_coordinates() -> None:
    model = shaken(MODELS["soc"](4))
    context = torch.randn(4, 3, dtype=DOUBLE)
    box = Box(4, lower=[0.0, 0.3, -1.0, 2.0], upper=[1.0, 0.3, 1.0, 2.0])
    budget = Budget(4, 1.5, lower=[0.0, 0.3, 0.0, 0.0], upper=[1.0, 0.3, 1.0, 1.0])
    point = Box(4, lower=0.25, upper=0.25)
    for feasible_set in (box, budget, point, Budget(4, 0.0), Budget(4, 4.0)):
        decision = minimize(model, feasible_set, context)
        check(decision, model, feasible_set, context, references=0)
    decision = minimize(model, box, context)
    assert decision.x[:, 1].tolist() == [0.3] * 4
    assert decision.x[:, 3].tolist() == [2.0] * 4
    optimum = clarabel_optimum(model, box, context[0])
    assert abs(float(decision.value[0]) - optimum) <= 2 * CERTIFIED * max(1.0, abs(optimum))


def test_single_precision_models_reach_a_tolerance_of_theirs() -> None:
    for name in ("relu", "soc"):
        model = shaken(MODELS[name](4)).float()
        context = torch.randn(5, 3)
        decision = minimize(model, Simplex(4), context, tol=1e-3)
        assert decision.x.dtype == torch.float32
        assert (decision.status == "optimal").all()
        assert float(Simplex(4).violation(decision.x).max()) <= 1e-5


def test_nothing_given_is_changed() -> None:
    model = shaken(MODELS["soc"](4))
    context, x0 = torch.randn(5, 3, dtype=DOUBLE), torch.rand(5, 4, dtype=DOUBLE)
    before = context.clone(), x0.clone(), [weight.clone() for weight in model.parameters()]
    minimize(model, Simplex(4), context, x0=x0)
    assert torch.equal(context, before[0])
    assert torch.equal(x0, before[1])
    assert all(torch.equal(w, old) for w, old in zip(model.parameters(), before[2], strict=True))
