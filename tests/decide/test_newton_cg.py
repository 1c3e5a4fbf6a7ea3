"""Newton steps by conjugate gradients: certified like the Newton method, without a matrix in n by n."""

from __future__ import annotations

import dataclasses

import pytest
import scipy.sparse as sp
import torch
from tolerances import DOUBLE, FIRST_ORDER, TIGHT_CLARABEL
from torch import Tensor
from zoo import MODELS, shaken

from soctk import SOCICNN, Box, ConicForm, Simplex, certify, minimize
from soctk.decide.choice import default_solver
from soctk.decide.newton import SmoothingNewton
from soctk.decide.newton_cg import NewtonCG, conjugate_gradients
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result
from soctk.maps.linear import SparseMap
from soctk.terms import Norms, Quadratic

BOX = Box(8, -1.0, 1.5)


def contexts(count: int) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)


def solve(form: ConicForm, feasible_set: Box, limits: Limits, **options) -> Result:
    """Solve by conjugate gradients alone."""
    return NewtonCG(second=None).solve(Problem(form, feasible_set, options.get("unit")), limits, options.get("start"))


def chain(dim: int, instances: int, kappa: float = 1e-2) -> ConicForm:
    """Return 1/2 ||x - y||^2 + sum sqrt((x_{i+1} - x_i)^2 + kappa^2), divided by n, for random y that leave the box."""
    y = 2 * torch.randn(instances, 1, dim, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    step = SparseMap.of(sp.eye_array(dim - 1, dim, k=1) - sp.eye_array(dim - 1, dim))
    row = torch.ones(1, 1, dim, dtype=DOUBLE)
    terms = (
        Quadratic(SparseMap.of(sp.eye_array(dim)), -y, row / dim),
        Norms(step, 0 * row[..., 1:], row[..., 1:] / dim, kappa * row[..., 1:], 1),
    )
    return ConicForm(0 * row[0, :, :1], 0 * row, terms, (instances,))


@pytest.mark.parametrize("name", MODELS)
def test_it_reaches_its_tolerance_and_its_bounds_are_bounds(name):
    model, rows = shaken(MODELS[name](8)), contexts(16)
    decision = minimize(model, BOX, rows, method=NewtonCG(second=None), tol=FIRST_ORDER)
    assert (decision.status == "optimal").all()
    assert (decision.solver == "newton_cg").all()
    assert float(BOX.violation(decision.x).max()) == 0.0
    newton = minimize(model, BOX, rows, tol=1e-9)
    scale = newton.value.abs().clamp(min=1.0)
    assert float(((decision.lower_bound - newton.value) / scale).max()) <= TIGHT_CLARABEL
    assert float(((newton.lower_bound - decision.value) / scale).max()) <= TIGHT_CLARABEL


@pytest.mark.parametrize("kappa", [1e-2, 0.0])
def test_thousands_of_variables_and_their_reference_in_a_few(kappa):
    form = chain(40, 5, kappa)
    dense = SmoothingNewton().solve(Problem(form, Box(40)), Limits(1e-9))
    sparse = solve(form, Box(40), Limits(1e-8))
    assert (sparse.status == "optimal").all()
    differences = (sparse.value - dense.value).abs() / dense.value.abs().clamp(min=1.0)
    assert float(differences.max()) <= 1e-8 + 1e-9  # each is within its own relative gap of the minimum
    large = chain(3000, 2, kappa)
    decision = solve(large, Box(3000), Limits(1e-4), unit=torch.full((2,), 0.1, dtype=DOUBLE))
    assert (decision.status == "optimal").all()
    assert float((decision.value - decision.lower_bound).max()) <= 1e-5


def test_many_variables_between_bounds_are_its_default():
    large = chain(600, 1)
    with_network = SOCICNN(600, 0, hidden=(3,), seed=1).conic_form()
    for form, feasible_set, name in (
        (large, Box(600), "newton_cg"),
        (large, Simplex(600), "first_order"),
        (chain(500, 1), Box(500), "newton"),
        (with_network, Box(600), "first_order"),
    ):
        assert default_solver(Problem(form, feasible_set)).name == name


def test_a_set_with_a_sum_is_refused():
    with pytest.raises(NotImplementedError, match="first_order"):
        minimize(MODELS["quad"](8), Simplex(8), contexts(2), method="newton_cg")


def test_a_warm_start_at_the_optimum_is_certified_at_once():
    form = chain(600, 3)
    first = solve(form, Box(600), Limits(1e-9))
    again = solve(form, Box(600), Limits(1e-4), start=first.x)
    assert int(again.iterations.max()) < int(first.iterations.min())


def test_limits_return_the_best_point_and_an_honest_gap():
    form, feasible_set = chain(600, 3), Box(600)
    tight = solve(form, feasible_set, Limits(1e-9))
    for limits, status in ((Limits(1e-9, 2), "iteration_limit"), (Limits(1e-9, None, 0.0), "time_limit")):
        short = solve(form, feasible_set, limits)
        assert (short.status == status).all()
        assert bool((short.lower_bound <= tight.value).all())
        assert bool((short.value >= tight.lower_bound).all())


@pytest.mark.parametrize("method", ["newton", "newton_cg", "first_order", "cvxpy", "projected_gradient"])
def test_gaps_are_measured_in_units_of_the_scale(method):
    """In f / 1000 - 5 a gap of 1e-6 is one of 1e-3 in f."""
    model, rows = shaken(MODELS["soc"](8)), contexts(4)
    model.set_standardization(value=(-5.0, 1e-3))
    tol = 1e-3 if method == "first_order" else 1e-5
    exact = minimize(model, BOX, rows, tol=1e-9, scale=1e-3)
    decision = minimize(model, BOX, rows, tol=tol, method=method, scale=torch.full((4,), 1e-3))
    torch.testing.assert_close(decision.relative_gap, decision.gap / 1e-3)
    assert bool(((decision.relative_gap <= tol) == decision.optimal).all())
    assert bool((decision.lower_bound <= exact.value).all())
    if method not in ("projected_gradient", "cvxpy"):
        assert (decision.status == "optimal").all()
        torch.testing.assert_close(decision.value, certify(model, BOX, decision.x, rows, tol=torch.inf).value)
    loose = minimize(model, BOX, rows, tol=tol, method=method)
    assert bool((loose.relative_gap <= decision.relative_gap + 1e-9).all() or loose.optimal.all())


@pytest.mark.parametrize(
    ("scale", "message"), [(0.0, "positive"), (torch.ones(3), "batch shape"), (torch.nan, "finite")]
)
def test_bad_scales_are_refused(scale, message):
    with pytest.raises(ValueError, match=rf"scale: expected .*{message}"):
        minimize(MODELS["quad"](8), BOX, contexts(2), scale=scale)


def test_conjugate_gradients_solve_to_their_tolerance():
    generator = torch.Generator().manual_seed(3)
    factor = torch.randn(4, 12, 12, generator=generator, dtype=DOUBLE)
    matrix, right = factor @ factor.mT, torch.randn(4, 12, generator=generator, dtype=DOUBLE)
    right[0] = 0.0
    tolerance = torch.tensor([[0.1], [0.1], [1e-3], [1e-8]], dtype=DOUBLE)
    d = conjugate_gradients(lambda p: (matrix @ p.unsqueeze(-1)).squeeze(-1), right, tolerance)
    residual = ((matrix @ d.unsqueeze(-1)).squeeze(-1) - right).norm(dim=-1)
    assert bool((residual <= 1.01 * tolerance.squeeze(-1) * right.norm(dim=-1)).all())
    assert bool((d[0] == 0).all())


def test_one_dimension_and_one_instance():
    form = dataclasses.replace(chain(2, 1), batch_shape=(1,))
    alone = solve(form, Box(2), Limits(1e-9))
    assert (alone.status == "optimal").all()
    single = solve(form, Box(2, 0.0, (1.0, 0.0)), Limits(1e-9))
    assert (single.status == "optimal").all()
