"""The decision layer's derivatives against finite differences of tight decisions."""

from __future__ import annotations

import warnings

import pytest
import torch
from tolerances import DOUBLE, IMPLICIT_MEDIAN, IMPLICIT_P90
from zoo import MODELS, SETS, shaken

from soctk import Box, Budget, DecisionLayer, Polyhedron, ReLUICNN, Simplex, UncertifiedWarning, losses, minimize

CURVED = [name for name in MODELS if name not in ("relu", "ickan", "affine", "no_passthrough", "norms_only")]
STEP, SMALL_STEP = 1e-5, 1e-6


def contexts(count: int, dim: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def relative_errors(layer: DecisionLayer, rows: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Return each row's error of d <w, x_hat> / d context along a random direction, relative to its size."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows.shape[0], layer.model.dim, generator=generator, dtype=DOUBLE)
    direction = torch.randn(rows.shape, generator=generator, dtype=DOUBLE)
    point = rows.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((weights * layer(point)).sum(), point)
    with torch.no_grad():
        forward, backward = layer(rows + STEP * direction), layer(rows - STEP * direction)
    expected = (weights * (forward - backward)).sum(dim=-1) / (2 * STEP)
    actual = (gradient * direction).sum(dim=-1)
    return (actual - expected).abs() / expected.abs().clamp(min=1e-2)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", CURVED)
def test_derivatives_in_the_context_are_those_of_finite_differences(name, kind):
    model = shaken(MODELS[name](6))
    errors = relative_errors(DecisionLayer(model, SETS[kind](6), tol=1e-10), contexts(40))
    assert float(errors.median()) <= IMPLICIT_MEDIAN
    assert float(errors.quantile(0.9)) <= IMPLICIT_P90


@pytest.mark.parametrize("name", CURVED)
def test_derivatives_in_the_weights(name):
    model = shaken(MODELS[name](5))
    layer, rows = DecisionLayer(model, Budget(5, 1.5), tol=1e-11), contexts(20)
    target = torch.rand(20, 5, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    weights = list(model.parameters())
    generator = torch.Generator().manual_seed(4)
    direction = [torch.randn(weight.shape, generator=generator, dtype=DOUBLE) for weight in weights]

    def losses(sign: float = 0.0) -> torch.Tensor:
        moved = {
            name: weight + sign * SMALL_STEP * step
            for (name, weight), step in zip(model.named_parameters(), direction, strict=True)
        }
        with torch.nn.utils.stateless._reparametrize_module(model, moved):
            return (layer(rows) - target).square().sum(dim=-1)

    def along(loss: torch.Tensor) -> float:
        slopes = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        return float(sum((slope * step).sum() for slope, step in zip(slopes, direction, strict=True)))

    actual = torch.tensor([along(loss) for loss in losses()], dtype=DOUBLE)
    expected = (losses(1.0) - losses(-1.0)).detach() / (2 * SMALL_STEP)
    errors = (actual - expected).abs() / expected.abs().clamp(min=1e-2)
    assert float(errors.median()) <= IMPLICIT_MEDIAN
    assert float(errors.quantile(0.9)) <= IMPLICIT_P90


def test_gradcheck_where_f_is_smooth():
    model = shaken(MODELS["hyperbolic"](4))
    layer = DecisionLayer(model, Simplex(4), tol=1e-12)
    assert torch.autograd.gradcheck(layer, contexts(3).requires_grad_(), eps=1e-5, atol=1e-5, rtol=1e-4)


def test_right_hand_sides_of_the_optimal_value_have_names():
    layer, rows = DecisionLayer(shaken(MODELS["soc"](3)), Budget(3, 1.0)), torch.zeros(2, 3, dtype=DOUBLE)
    with pytest.raises(TypeError, match="totals"):
        layer.optimal_value(rows, totals=[1.0, 2.0])
    expected = [float(minimize(layer.model, Budget(3, total), rows[0]).value) for total in (1.0, 2.0)]
    value = layer.optimal_value(rows, total=torch.tensor([1.0, 2.0], dtype=DOUBLE))
    torch.testing.assert_close(value, torch.tensor(expected, dtype=DOUBLE), rtol=0, atol=1e-5)


def test_the_optimal_value_has_the_envelope_gradient():
    model = shaken(MODELS["soc"](5))
    layer, rows = DecisionLayer(model, Box(5), tol=1e-10), contexts(10)
    direction = contexts(10, seed=5)
    point = rows.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(layer.optimal_value(point).sum(), point)
    change = (layer.optimal_value(rows + STEP * direction) - layer.optimal_value(rows - STEP * direction)) / (2 * STEP)
    torch.testing.assert_close((gradient * direction).sum(dim=-1), change.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tol", [1e-9, 1e-12])
@pytest.mark.parametrize(
    "place", [Simplex(5, 2.0), Polyhedron(5, 0.0, 2.0, E=[[1.0] * 5], f=[2.0])], ids=["simplex", "polyhedron"]
)
def test_derivatives_of_optimal_values_at_vertices_lie_between_those_to_both_sides(place, tol):
    """Of models without curvature the last multipliers may not be those that prove the value."""
    step = 1e-4
    for seed in (0, 3, 6, 9, 12, 15, 18, 21):
        generator = torch.Generator().manual_seed(seed)
        model = ReLUICNN(5, 2, hidden=(8,), seed=seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.4 * torch.randn(weight.shape, generator=generator, dtype=DOUBLE)
        rows, direction = (torch.randn(40, 2, generator=generator, dtype=DOUBLE) for _ in range(2))
        point = rows.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(DecisionLayer(model, place, tol=tol).optimal_value(point).sum(), point)
        found = (gradient * direction).sum(dim=1)
        behind, here, ahead = (minimize(model, place, rows + k * step * direction, tol=1e-11).value for k in (-1, 0, 1))
        sides = torch.stack([here - behind, ahead - here]).detach() / step
        outside = torch.maximum(sides.amin(dim=0) - found, found - sides.amax(dim=0)).clamp(min=0)
        assert float((outside / (1 + found.abs())).max()) <= 2e-4


def test_it_learns_an_inverse_problem():
    """Decisions of another model are imitated by changing the weights along the layer's derivatives."""
    truth, model = MODELS["quad"](4), shaken(MODELS["quad"](4))
    rows, feasible_set = contexts(32), Budget(4, 1.2)
    wanted = DecisionLayer(truth, feasible_set)(rows).detach()
    layer = DecisionLayer(model, feasible_set)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = (layer(rows) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


def test_shapes_dtypes_and_sets_that_leave_no_choice():
    model = MODELS["soc"](3)
    layer = DecisionLayer(model, Budget(3, 1.0, lower=(0.0, 0.25, 0.0), upper=(1.0, 0.25, 1.0)))
    x = layer(contexts(6).reshape(2, 3, 3).requires_grad_())
    assert x.shape == (2, 3, 3)
    assert float((x.detach()[..., 1] - 0.25).abs().max()) == 0.0
    x[..., 0].sum().backward()
    assert layer(contexts(1)[0]).shape == (3,)
    assert layer(contexts(0)).shape == (0, 3)
    single = DecisionLayer(MODELS["soc"](3).float(), Simplex(3))
    assert single(contexts(4).float()).dtype == torch.float32
    point = DecisionLayer(model, Budget(3, 3.0))(contexts(2).requires_grad_())
    torch.testing.assert_close(point, torch.ones_like(point))
    rows = contexts(2).requires_grad_()
    DecisionLayer(model, Budget(3, 3.0))(rows).sum().backward()
    assert float(rows.grad.abs().max()) == 0.0


def test_a_decision_that_is_too_inaccurate_is_not_differentiated():
    model = shaken(MODELS["soc"](5))
    rows = contexts(4).requires_grad_()
    with pytest.warns(UncertifiedWarning, match="max_gap = 1e-06"):
        x = DecisionLayer(model, Box(5), max_iter=2)(rows)
    assert torch.isfinite(x).all()
    with pytest.raises(RuntimeError, match="4 of 4 decisions have a relative gap above max_gap = 1e-06"):
        x.sum().backward()
    with pytest.warns(UncertifiedWarning):
        x = DecisionLayer(model, Box(5), max_iter=2)(rows)
    (0.0 * x).sum().backward()  # no weight in the loss: nothing to refuse
    with pytest.warns(UncertifiedWarning):
        value = DecisionLayer(model, Box(5), max_iter=2).optimal_value(rows)
    with pytest.raises(RuntimeError, match=r"4 of 4 optimal values, or the multipliers .* above max_gap = 1e-06"):
        value.sum().backward()


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("place", [Box(5), Polyhedron(5, 0.0, 1.0, G=[[1.0] * 5], h=[2.0])], ids=["box", "polyhedron"])
def test_what_is_not_certified_is_not_returned_without_a_word(place, gradient):
    model, rows = shaken(MODELS["soc"](5)), contexts(4)
    strict, usual = DecisionLayer(model, place, max_gap=1e-300), DecisionLayer(model, place)
    with torch.set_grad_enabled(gradient):
        for call in (strict, strict.optimal_value):
            with pytest.warns(UncertifiedWarning, match="not all decisions are certified") as said:
                call(rows)
            assert {each.filename for each in said} == {__file__}  # what calls the layer
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            usual(rows), usual.optimal_value(rows)
            DecisionLayer(model, place, max_gap=1e-300, skip_undefined=True)(rows)


@pytest.mark.parametrize("tol", [1e-10, 1e-12])
@pytest.mark.parametrize("place", ["simplex", "budget"])
def test_a_small_tolerance_costs_models_without_curvature_no_certificate(place, tol):
    """Their last steps can leave the path before a certificate is tried; iterations to a larger tolerance do not."""
    for seed in range(6):
        model, rows = shaken(ReLUICNN(10, 3, seed=seed), (0.1, 0.3, 1.0)[seed % 3]), contexts(20, seed=seed)
        for gradient in (True, False):
            with torch.set_grad_enabled(gradient), warnings.catch_warnings():
                warnings.simplefilter("error")
                layer = DecisionLayer(model, SETS[place](10), tol=tol, skip_undefined=False)
                layer(rows), layer.optimal_value(rows)


def test_wrong_arguments_say_so():
    model = MODELS["soc"](3)
    with pytest.raises(ValueError, match="expected dimension 3"):
        DecisionLayer(model, Box(4))
    with pytest.raises(ValueError, match="tol"):
        DecisionLayer(model, Box(3), tol=0.0)
    with pytest.raises(ValueError, match="context"):
        DecisionLayer(model, Box(3))(torch.full((3,), torch.nan))


def test_decision_losses_are_zero_at_the_truth_and_fall_along_their_gradients():
    model, truth, feasible_set = shaken(MODELS["soc"](5)), MODELS["soc"](5), Budget(5, 1.5)
    rows = contexts(30)
    own, layer = DecisionLayer(truth, feasible_set), DecisionLayer(model, feasible_set)
    with torch.no_grad():
        optima, optimum = own(rows), own.optimal_value(rows)
        assert float(losses.suboptimality_loss(own, optima, rows)) == pytest.approx(0.0, abs=1e-8)
        assert float(losses.regret_loss(own, truth, rows, optimum)) == pytest.approx(0.0, abs=1e-8)
    for loss in (
        lambda: losses.suboptimality_loss(layer, optima, rows),
        lambda: losses.regret_loss(layer, truth, rows, optimum),
    ):
        value = loss()
        assert float(value.detach()) > 1e-3
        slopes = torch.autograd.grad(value, list(model.parameters()), allow_unused=True, materialize_grads=True)
        length = 1e-3 * float(value.detach()) / float(sum(slope.square().sum() for slope in slopes))
        with torch.no_grad():
            for weight, slope in zip(model.parameters(), slopes, strict=True):
                weight.sub_(length * slope)
        assert float(loss().detach()) < float(value.detach()) * (1 - 5e-4)


def test_second_derivatives_are_refused():
    rows = contexts(3).requires_grad_()
    x = DecisionLayer(shaken(MODELS["soc"](5)), Box(5))(rows)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(x.square().sum(), rows, create_graph=True)


def test_decisions_without_a_derivative_are_left_out_on_request():
    """Of a ReLU model some decisions have none: theirs is zero, that of the others as ever."""
    model = MODELS["relu"](6)
    rows, weights = contexts(40), torch.arange(6.0, dtype=DOUBLE)
    strict, lenient = (DecisionLayer(model, Box(6, -1.0, 1.0), skip_undefined=skip) for skip in (False, True))

    def slope(layer: DecisionLayer, given: torch.Tensor) -> torch.Tensor:
        point = given.clone().requires_grad_()
        return torch.autograd.grad((layer(point) @ weights).sum(), point)[0]

    refused = 0
    for row, actual in zip(rows, slope(lenient, rows), strict=True):
        try:
            expected = slope(strict, row[None])[0]
        except RuntimeError:
            refused, expected = refused + 1, torch.zeros_like(row)
        torch.testing.assert_close(actual, expected)
    assert 0 < refused < len(rows)


@pytest.mark.parametrize("side", ["lower", "upper"])
@pytest.mark.parametrize("kind", SETS)
def test_one_bound_of_each_context_alone_has_derivatives(kind, side):
    """All other right-hand sides are shared: differences of tight decisions say the same."""
    feasible_set = SETS[kind](4)
    layer, rows = DecisionLayer(shaken(MODELS["soc"](4)), feasible_set, tol=1e-12), contexts(6)
    ends = feasible_set.rows()
    start = {"lower": ends.lower + 0.02, "upper": (ends.lower + 0.6)}[side].to(DOUBLE).expand(6, 4).clone()
    weights, direction = contexts(6, 4, seed=1), contexts(6, 4, seed=2)
    moved = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((weights * layer(rows, **{side: moved})).sum(), moved)
    with torch.no_grad():
        ahead, behind = (layer(rows, **{side: start + sign * STEP * direction}) for sign in (1, -1))
    expected = (weights * (ahead - behind)).sum(dim=-1) / (2 * STEP)
    error = ((gradient * direction).sum(dim=-1) - expected).abs() / expected.abs().clamp(min=0.1)
    assert float(error.median()) <= IMPLICIT_MEDIAN
    (of_value,) = torch.autograd.grad(layer.optimal_value(rows, **{side: moved}).sum(), moved)
    assert bool(of_value.isfinite().all())


def test_where_a_coordinate_is_fixed_has_a_derivative_if_both_ends_move():
    """x_1 is held at t by lower = upper = t: either end alone has no derivative, both together have that of t."""
    feasible_set = Polyhedron(4, [0.0, 0.3, 0.0, 0.0], [1.0, 0.3, 1.0, 1.0], E=[[1.0] * 4], f=[2.0])
    layer, rows = DecisionLayer(shaken(MODELS["soc"](4)), feasible_set, tol=1e-12), contexts(5)
    lower, upper, held = (
        torch.tensor(end, dtype=DOUBLE) for end in ([0.0, 0, 0, 0], [1.0, 1, 1, 1], [0.0, 1.0, 0.0, 0.0])
    )

    def decided(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        return layer(rows, lower=lower + low * held, upper=torch.where(held > 0, high, upper))[:, 0].sum()

    t = torch.tensor(0.3, dtype=DOUBLE, requires_grad=True)
    (gradient,) = torch.autograd.grad(decided(t, t), t)
    with torch.no_grad():
        expected = (decided(t + STEP, t + STEP) - decided(t - STEP, t - STEP)) / (2 * STEP)
    assert float(gradient) == pytest.approx(float(expected), rel=1e-3)
    with pytest.raises(RuntimeError, match=r"coordinates \[1\] are fixed"):
        torch.autograd.grad(decided(t, t.detach()), t)


@pytest.mark.parametrize("place", [Box(5), Polyhedron(5, 0.0, 1.0, G=[[1.0] * 5], h=[2.0])], ids=["box", "polyhedron"])
def test_second_derivatives_of_values_are_refused_and_first_ones_are_not(place):
    rows = contexts(3).requires_grad_()
    layer = DecisionLayer(shaken(MODELS["soc"](5)), place)
    layer.optimal_value(rows).sum().backward()
    assert float(rows.grad.abs().sum()) > 0
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(layer.optimal_value(rows).sum(), rows, create_graph=True)
