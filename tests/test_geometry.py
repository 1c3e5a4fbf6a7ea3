"""Curvature, steepness, conjugates, duals and restrictions of conic forms, against what they mean."""

from __future__ import annotations

import pytest
import torch
from tolerances import CONJUGATE, DOUBLE, GRADIENT, INEQUALITY, VALUE, close, size
from zoo import MODELS, SETS, shaken

from soctk import Box, ConicForm, from_quadratic

n = 4
CONTEXTS = torch.tensor([[0.4, -1.2, 0.3], [1.0, 0.2, -0.5]], dtype=DOUBLE)


@pytest.fixture(params=MODELS)
def form(request: pytest.FixtureRequest) -> ConicForm:
    return shaken(MODELS[request.param](n)).conic_form(CONTEXTS).detach()


def test_the_hessian_is_the_derivative_of_the_gradient(form: ConicForm, generator: torch.Generator) -> None:
    x = torch.randn(2, n, generator=generator, dtype=DOUBLE)

    def gradient(point: torch.Tensor) -> torch.Tensor:
        return form.gradient(point)

    step = 1e-6
    columns = [(gradient(x + step * e) - gradient(x - step * e)) / (2 * step) for e in torch.eye(n, dtype=DOUBLE)]
    # Central differences: rounding eps / step = 2e-10 and curvature change step^2, both times the size of the gradient.
    difference = (form.hessian(x) - torch.stack(columns, dim=-1)).abs().max()
    assert float(difference) <= 1e-7 * size(*columns)


def test_the_hessian_is_nan_at_a_kink_only() -> None:
    form = MODELS["norms_only"](n).conic_form(torch.zeros(3)).detach()
    norm = form.norms[0]
    apex = torch.linalg.lstsq(norm.map.matrix[0, : norm.size], -norm.offset[0, 0, : norm.size]).solution
    x = torch.stack([apex, apex + 1.0])
    exact = (norm.inner(x[:1].unsqueeze(0)) == 0).all()
    hessian = form.hessian(x)
    assert bool(torch.isfinite(hessian[1]).all())
    if exact:
        assert bool(torch.isnan(hessian[0]).all())
    lonely = ConicForm(form.constant, form.linear, (norm.apply(torch.zeros_like).scaled(1.0),))
    assert bool(torch.isnan(lonely.hessian(x)).all())  # u = 0 everywhere


def test_strong_convexity_holds_along_segments(form: ConicForm, generator: torch.Generator) -> None:
    modulus = form.strong_convexity()
    assert modulus.shape == (2,)
    for _ in range(50):
        x, y = torch.randn(2, 2, n, generator=generator, dtype=DOUBLE)
        middle = 0.5 * (form.value(x) + form.value(y)) - form.value(0.5 * (x + y))
        assert bool((middle >= modulus / 8 * (x - y).square().sum(-1) - INEQUALITY[DOUBLE] * size(form.value(x))).all())


def test_strong_convexity_of_a_quadratic_is_its_smallest_eigenvalue() -> None:
    values = torch.tensor([0.3, 1.0, 2.0, 5.0], dtype=DOUBLE)
    basis = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)).Q
    form = from_quadratic(basis @ torch.diag(values) @ basis.mT, torch.zeros(n, dtype=DOUBLE)).conic_form()
    assert float(form.strong_convexity()) == pytest.approx(0.3, rel=VALUE[DOUBLE])


@pytest.mark.parametrize("name", SETS)
def test_no_two_points_of_the_set_are_steeper_than_lipschitz(form: ConicForm, name: str) -> None:
    feasible_set = SETS[name](n)
    bound = form.lipschitz(feasible_set)
    points = feasible_set.sample((2, 200, 2), torch.Generator().manual_seed(0))
    steepest = torch.zeros(2, dtype=DOUBLE)
    for row in range(200):
        x, y = points[:, row, 0], points[:, row, 1]
        slope = (form.value(x) - form.value(y)).abs() / torch.linalg.vector_norm(x - y, dim=-1)
        steepest = torch.maximum(steepest, slope)
        assert bool((torch.linalg.vector_norm(form.gradient(x), dim=-1) <= bound * (1 + INEQUALITY[DOUBLE])).all())
    assert bool((steepest <= bound * (1 + INEQUALITY[DOUBLE])).all())
    assert bool((bound <= 20 * steepest + 20).all())  # and it is no idle number


def test_conjugate_of_a_quadratic(generator: torch.Generator) -> None:
    """Fenchel's inequality at any pair, equality at y = gradient, infinity outside of the range of a singular Q."""
    R = torch.randn(2, n, generator=generator, dtype=DOUBLE)
    a = torch.randn(n, generator=generator, dtype=DOUBLE)
    form = from_quadratic(R.mT @ R, a, 0.7).conic_form()
    x, other = torch.randn(2, 10, n, generator=generator, dtype=DOUBLE)
    y = form.gradient(x)
    close(form.value(x) + form.conjugate(y), (x * y).sum(-1), GRADIENT)
    assert bool((form.value(other) + form.conjugate(y) - (other * y).sum(-1) >= -INEQUALITY[DOUBLE] * 10).all())
    assert bool(torch.isinf(form.conjugate(y + torch.randn(n, generator=generator, dtype=DOUBLE))).all())


def test_conjugates_without_a_closed_form_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="Network"):
        MODELS["soc"](n).conic_form(torch.zeros(3)).conjugate(torch.zeros(n))


def test_the_closed_form_dual_is_feasible_and_tight(form: ConicForm, generator: torch.Generator) -> None:
    x = 30 * torch.randn(2, n, generator=generator, dtype=DOUBLE)
    dual = form.dual(x)
    value = form.value(x)
    if form.terms:
        assert float(form.dual_violation(dual).max()) <= VALUE[DOUBLE] * size(*dual.parts)
    # Conjugates of hyperbolic norms lose half of the digits near the ball's boundary; see CONJUGATE.
    close(form.dual_value(dual, x), value, CONJUGATE)
    assert float(form.complementarity(dual, x).max()) <= CONJUGATE[DOUBLE] * size(value)


def test_an_infeasible_dual_is_seen(form: ConicForm) -> None:
    if not form.terms:
        return
    x = torch.zeros(2, n, dtype=DOUBLE)
    dual = form.dual(x)
    far = type(dual)(tuple(y + 1e3 for y in dual.parts))
    quadratics_only = all(type(term).__name__ == "Quadratic" for term in form.terms)
    assert quadratics_only or float(form.dual_violation(far).min()) > 1.0


def test_restriction_to_a_subspace(form: ConicForm, generator: torch.Generator) -> None:
    basis = torch.randn(n, 2, generator=generator, dtype=DOUBLE)
    origin = torch.randn(n, generator=generator, dtype=DOUBLE)
    w = torch.randn(2, 2, generator=generator, dtype=DOUBLE)
    part = form.composed(basis, origin)
    assert part.dim == 2
    close(part.value(w), form.value(origin + w @ basis.mT), VALUE)
    close(part.gradient(w), form.gradient(origin + w @ basis.mT) @ basis, GRADIENT)
    with pytest.raises(ValueError, match="expected a basis"):
        form.composed(basis.mT, origin)


def test_lipschitz_wants_a_set_of_its_dimension(form: ConicForm) -> None:
    with pytest.raises(ValueError, match="dimension 4"):
        form.lipschitz(Box(3))


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_conjugates_do_not_depend_on_the_unit_of_x(unit: float) -> None:
    """f(x) = |x_1 / unit|^2 / 2 has f*(y) = |unit y_1|^2 / 2 where y_2 = 0, and inf elsewhere."""
    form = from_quadratic([[unit**-2, 0.0], [0.0, 0.0]], [0.0, 0.0]).conic_form()
    inside, outside = torch.tensor([[3 / unit, 0.0], [3 / unit, 1 / unit]], dtype=DOUBLE)
    assert float(form.conjugate(inside)) == pytest.approx(4.5)
    assert float(form.conjugate(outside)) == torch.inf


def test_a_form_without_terms_has_no_dual_violation() -> None:
    form = ConicForm(torch.zeros(3, 1, dtype=DOUBLE), torch.zeros(3, 1, 2, dtype=DOUBLE), (), (3,))
    violation = form.dual_violation(form.dual(torch.ones(3, 2, dtype=DOUBLE)))
    assert violation.dtype == DOUBLE
    assert not violation.any()
