"""Derivatives of decisions of pure ReLU models, which are those of a vertex: right or refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from slopes import slope_or_none
from tolerances import TIGHT_OPTIONS
from zoo import MODELS, shaken

import soctk
from soctk.maps.linear import DenseMap
from soctk.terms import Quadratic

SEEDS = range(60)
STEPS = (1e-4, 1e-5)


def derivative(layer: soctk.DecisionLayer, context: torch.Tensor, weights: torch.Tensor) -> float | None:
    """Return d <weights, x_hat> / d context, or None where it is refused."""
    slope = slope_or_none(lambda point: (layer(point) * weights).sum(), context)
    return None if slope is None else float(slope)


def stable_derivative(model, feasible_set, context, weights) -> float | None:
    """Return what central differences of our decisions and of Clarabel's agree on, to either side; None elsewhere."""
    points = torch.stack([context, *(context + sign * step for step in STEPS for sign in (1.0, -1.0))])
    with torch.no_grad():
        own = soctk.DecisionLayer(model, feasible_set)(points)
    options = {"method": "cvxpy", "solver": "CLARABEL", "solver_options": TIGHT_OPTIONS}
    outside = soctk.minimize(model, feasible_set, points, **options).x
    if not float((own - outside).abs().max()) <= 1e-6:
        return None
    middle, *sides = (own @ weights).tolist()
    slopes = [(sides[0] - middle) / STEPS[0], (middle - sides[1]) / STEPS[0], (sides[2] - sides[3]) / (2 * STEPS[1])]
    # Decisions are known to about 1e-9, differences over 1e-5 to 1e-4.
    return slopes[2] if max(slopes) - min(slopes) <= 1e-3 * (1.0 + abs(slopes[2])) else None


@pytest.fixture(scope="module")
def found() -> np.ndarray:
    """The stable derivatives and the layer's of sixty models, NaN for none."""
    feasible_set, context = soctk.Budget(8, 2.4), torch.tensor([0.3], dtype=torch.float64)
    pairs = []
    for seed in SEEDS:
        model = soctk.SOCICNN(8, 1, hidden=(4, 4), seed=seed)
        weights = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        expected = stable_derivative(model, feasible_set, context, weights)
        pairs.append((expected, derivative(soctk.DecisionLayer(model, feasible_set), context, weights)))
    return np.array(pairs, dtype=float)


def test_none_is_wrong(found: np.ndarray) -> None:
    expected, actual = found[~np.isnan(found).any(axis=1)].T
    # The differences' own error is 1e-4.
    assert (np.abs(actual - expected) <= 1e-2 * np.maximum(np.abs(expected), 5e-2)).all()


def test_stable_ones_are_not_refused(found: np.ndarray) -> None:
    expected, actual = found[~np.isnan(found[:, 0])].T
    assert expected.size >= 35
    assert not np.isnan(actual).any()


def test_a_model_without_a_unique_decision_is_refused() -> None:
    """Box: of 8 coordinates 4 kinks at most determine some, the others are left to chance."""
    model = soctk.SOCICNN(8, 1, hidden=(4,), linear=False, seed=0)
    rows = torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    decision = soctk.DecisionLayer(model, soctk.Box(8, -1.0, 1.0))(rows)
    with pytest.raises(RuntimeError, match=r"2 of 3 decisions have no derivative \(instances 0, 2\).*curvature"):
        decision[[0, 2]].sum().backward()
    (0.0 * decision).sum().backward()  # no weight in the loss: nothing to refuse


class Distance(soctk.ConvexSurrogate):
    """|x - context|^2 / 2."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim)

    def _conic_form(self, context: torch.Tensor) -> soctk.ConicForm:
        count, unit = len(context), DenseMap(torch.eye(self.dim, dtype=context.dtype).unsqueeze(0))
        square = Quadratic(unit, -context.unsqueeze(1), context.new_ones(1, 1, self.dim))
        return soctk.ConicForm(context.new_zeros(count, 1), context.new_zeros(count, 1, self.dim), (square,), (count,))


def assignments() -> soctk.Polyhedron:
    """Doubly stochastic matrices, 3 x 3: at a vertex nine bounds meet in four dimensions."""
    places = np.eye(9).reshape(3, 3, 9)
    return soctk.Polyhedron(9, 0.0, 1.0, E=np.concatenate([places.sum(axis=0), places.sum(axis=1)]), f=np.ones(6))


DEGENERATE = {
    "sum": lambda: soctk.Polyhedron(4, 0.0, 1.0, E=np.ones(4), f=2.0),
    "most": lambda: soctk.Polyhedron(4, 0.0, 1.0, G=np.ones(4), h=2.0),
    "twice": lambda: soctk.Polyhedron(
        4, 0.0, 1.0, G=[[1.0, 1.0, 0, 0], [0, 0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]], h=[1, 1, 2.0]
    ),
    "assignments": assignments,
}


@pytest.mark.parametrize("kind", ["relu", "quad", "soc", "norm"])
@pytest.mark.parametrize("name", DEGENERATE)
def test_more_bounds_than_dimensions_at_a_vertex_are_no_reason_to_refuse(name: str, kind: str) -> None:
    """Of 5,900 over random ones 3,800 were refused, nearly all of which have derivatives; over a budget none."""
    feasible_set = DEGENERATE[name]()
    model, generator = MODELS[kind](feasible_set.dim), torch.Generator().manual_seed(3)
    moved = torch.randn(4, 30, 3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        model.affine.slope.slope.add_(torch.randn(feasible_set.dim, 3, generator=generator, dtype=torch.float64))
        exact, step, weights = (
            soctk.DecisionLayer(model, feasible_set, tol=1e-11),
            1e-4,
            torch.linspace(1, -0.5, feasible_set.dim),
        )
        ahead, here, behind = (exact(moved[0] + t * moved[1]) @ weights.double() for t in (step, 0.0, -step))
    forward, backward = (ahead - here) / step, (here - behind) / step
    smooth = (forward - backward).abs() <= 1e-3 * (1 + forward.abs())
    point = moved[0].clone().requires_grad_()
    found = soctk.DecisionLayer(model, feasible_set)(point) @ weights.double()
    (slope,) = torch.autograd.grad(found[smooth].sum(), point)
    assert smooth.sum() >= 25
    torch.testing.assert_close((slope * moved[1]).sum(dim=1)[smooth], forward[smooth], rtol=1e-2, atol=2e-3)


NORMALS = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, -1.0, 0], [0, 0, 0, -1.0]], dtype=torch.float64)
"""At (1, 1, 0, 0) of {0 <= x <= 1, sum x = 2}."""


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("rows", [False, True])
def test_decisions_that_bounds_hold_by_nothing_have_no_derivative(rows: bool, size: float) -> None:
    """Over a budget it was .4, between 0 to the one side and 1 to the other, where the projected point is a vertex.

    What is projected onto it is the vertex plus normals. Those of bounds with multipliers that are positive for one
    multiplier of the sum are a, a, b, b with a + b > 0: two of a kind, or three.
    """
    feasible_set = DEGENERATE["sum"]() if rows else soctk.Budget(4, 2.0)
    vertex, layer = torch.tensor([1.0, 1, 0, 0], dtype=torch.float64), soctk.DecisionLayer(Distance(4), feasible_set)
    for count in range(5):
        for some in itertools.combinations(range(4), count):
            point = (vertex + size * NORMALS[list(some)].sum(dim=0)).requires_grad_()
            held = count >= 3 or some in ((0, 1), (2, 3))
            if held and (size == 1.0 or not rows):
                for k in range(4):
                    (slope,) = torch.autograd.grad(layer(point)[k], point)
                    assert float(slope.abs().max()) <= 1e-3
            elif not held:
                with pytest.raises(RuntimeError, match="a kink or bound that holds them by nothing"):
                    layer(point)[0].backward()


def by_side(layer: soctk.DecisionLayer, coordinate: int, **sides: torch.Tensor) -> torch.Tensor:
    (side,) = sides.values()
    return torch.autograd.grad(layer(**sides)[coordinate], side)[0]


def test_a_vertex_of_more_constraints_than_variables_has_no_derivative() -> None:
    """Multipliers are not unique there: the barrier's middle of them gave -.62 where one side is 0, the other -1."""
    model = soctk.from_quadratic(np.eye(2), [1.0, -2.0])
    layer = soctk.DecisionLayer(model, soctk.Polyhedron(2, 0.0, [2.0, 1.0], G=[[-1.0, -1.0]], h=-1.0))
    for name, value in (("h", [-1.0]), ("upper", [2.0, 1.0]), ("lower", [0.0, 0.0])):
        side = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        with pytest.raises(RuntimeError, match="no derivative"):
            by_side(layer, 0, **{name: side})
    away = soctk.DecisionLayer(model, soctk.Polyhedron(2, 0.0, [2.0, 1.0], G=[[-1.0, -1.0]], h=-1.5))
    side = torch.tensor([-1.5], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(by_side(away, 0, h=side), torch.tensor([-1.0], dtype=torch.float64))


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("value", [(0.0, 1e-9), (0.0, 1e-3), (50.0, 1e-4), (-1e5, 1e-2)])
def test_layers_do_not_depend_on_the_unit_of_values(value: tuple[float, float], rows: bool) -> None:
    """A gap of 1e-9 of max(1, |value|) is everything where values vary by that: x was the centre of the set."""
    extra = {"G": [[1.0, 1.0, 1.0]], "h": 2.0} if rows else {}
    feasible_set = soctk.Polyhedron(3, 0.0, 1.0, **extra) if rows else soctk.Box(3)
    context, weights = torch.tensor([0.3], dtype=torch.float64, requires_grad=True), torch.linspace(1, -0.5, 3)
    for seed in (3, 49):
        model = soctk.SOCICNN(3, 1, hidden=(4,), quadratics=(3,), norms=(2,), seed=seed)
        found = []
        for level, unit in ((0.0, 1.0), value):
            model.set_standardization(value=(level, unit))
            layer = soctk.DecisionLayer(model, feasible_set)
            x, least = layer(context), (layer.optimal_value(context) - level) / unit
            slopes = [torch.autograd.grad(each, context)[0] for each in ((x * weights).sum(), least)]
            found.append((x.detach(), least.detach(), *slopes))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_where_there_is_nothing_to_choose_decisions_are_part_of_the_graph() -> None:
    for feasible_set, shape in ((soctk.Polyhedron(2, 0.5, 0.5), (1,)), (soctk.Polyhedron(2, 0.0, 1.0), (0, 1))):
        context = torch.zeros(shape, requires_grad=True)
        soctk.DecisionLayer(soctk.SOCICNN(2, 1), feasible_set)(context).sum().backward()
        assert context.grad is not None
        assert not context.grad.any()


WIDTHS = (1e-4, 1e-6, 1e-7, 1e-8, 1e-9, 1e-11)


@pytest.mark.parametrize("seed", range(5))
def test_values_over_sets_with_next_to_no_room_are_those_of_minimize(seed: int) -> None:
    model = soctk.SOCICNN(2, 3, hidden=(6,), quadratics=(2,), norms=(2,), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(len(WIDTHS), 3, generator=generator, dtype=torch.float64)
    lower = -torch.rand(len(WIDTHS), 2, generator=generator, dtype=torch.float64)
    upper, wide = lower + torch.tensor(WIDTHS).double()[:, None], soctk.Box(2, -2.0, 2.0)
    point, weights = context.clone().requires_grad_(), list(model.parameters())
    value = soctk.DecisionLayer(model, wide).optimal_value(point, lower=lower, upper=upper)
    expected = soctk.minimize(model, wide.at(lower=lower, upper=upper), context, tol=1e-9).value
    torch.testing.assert_close(value.detach(), expected, rtol=0, atol=1e-8)
    slopes = torch.autograd.grad(value.sum(), [point, *weights], allow_unused=True, materialize_grads=True)
    assert all(bool(slope.isfinite().all()) for slope in slopes)
    for index in range(len(WIDTHS)):
        own = soctk.DecisionLayer(model, soctk.Box(2, tuple(lower[index].tolist()), tuple(upper[index].tolist())))
        single = own.optimal_value(point[index])
        torch.testing.assert_close(single.detach(), expected[index], rtol=0, atol=1e-8)
        assert bool(torch.autograd.grad(single, point)[0].isfinite().all())


def test_one_set_without_room_leaves_the_derivatives_of_the_others_alone() -> None:
    model = soctk.SOCICNN(2, 3, hidden=(6,), quadratics=(2,), norms=(2,), seed=0)
    context = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    demand = torch.ones(8, dtype=torch.float64).index_fill(0, torch.tensor([3]), 2 - 1e-8)
    layer = soctk.DecisionLayer(model, soctk.Polyhedron(2, 0.0, 1.0, np.ones(2), 1.0), skip_undefined=True)
    layer.optimal_value(context, f=demand).sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)


@pytest.mark.parametrize("tol", [1e-9, 1e-12])
def test_where_demand_is_what_there_is_the_decision_is_right_or_refused(tol: float) -> None:
    refused: list[str] = []
    for seed in range(10):
        model = soctk.SOCICNN(4, 3, hidden=(6,), quadratics=(4,), norms=(2,), seed=seed)
        layer = soctk.DecisionLayer(model, soctk.Polyhedron(4, 0.0, 1.0, np.ones(4), 2.0), tol=tol)
        context = torch.randn(1, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()
        try:
            decision = layer(context, f=torch.tensor([4.0], dtype=torch.float64))
        except RuntimeError as error:
            refused.append(str(error))
            continue
        torch.testing.assert_close(decision.detach(), torch.ones(1, 4, dtype=torch.float64), rtol=0, atol=1e-6)
    assert not refused or tol < 1e-9
    assert all("too little room" in message for message in refused)


def test_sets_of_each_context_are_no_set_of_a_layer() -> None:
    model, sets = soctk.from_quadratic(np.eye(2), [1.0, -1.0]), soctk.Polyhedron(2, 0.0, 1.0).at(lower=[0.0, 0.5])
    with pytest.raises(TypeError, match=r"got SetAt; right-hand sides .* layer\(context, h=...\)"):
        soctk.DecisionLayer(model, sets)


@pytest.mark.parametrize("kind", ["quad", "soc", "relu"])
def test_coordinates_without_room_in_some_contexts_are_differentiated_in_the_others(kind: str) -> None:
    """What was solved again had other coordinates fixed than the whole: an error of PyTorch's about shapes."""
    n, double = 8, torch.float64
    generator = torch.Generator().manual_seed(1)
    model = shaken(soctk.make_surrogate(kind, dim=n, context_dim=2), 1.0)
    plant = soctk.Polyhedron(n, 0.0, 1.0, E=[np.ones(n)], f=[2.0])
    layer, checked = soctk.DecisionLayer(model, plant, skip_undefined=True), 0
    for _ in range(4):
        context = torch.randn(60, 2, generator=generator, dtype=double)
        upper = (torch.rand(60, n, generator=generator) > 0.4).double()
        upper[:, [0, 3, 5]] = 1.0  # units that are off in some contexts, and three that never are
        point = context.clone().requires_grad_()
        layer(point, upper=upper).sum().backward()
        point.grad = None
        (slope,) = torch.autograd.grad(layer.optimal_value(point, upper=upper).sum(), point)
        shift = 1e-5 * torch.eye(2, dtype=double)
        ends = [
            [soctk.minimize(model, plant.at(upper=upper), context + sign * e, tol=1e-11).value for sign in (1, -1)]
            for e in shift
        ]
        middle = soctk.minimize(model, plant.at(upper=upper), context, tol=1e-11).value
        forward, back = (torch.stack([s * (end[k] - middle) / 1e-5 for end in ends], 1) for k, s in ((0, 1), (1, -1)))
        smooth = ((forward - back).abs() <= 1e-3 * (1 + forward.abs())).all(dim=1) & (slope != 0).any(dim=1)
        checked += int(smooth.sum())
        numeric = 0.5 * (forward + back)
        torch.testing.assert_close(slope[smooth], numeric[smooth], rtol=1e-3, atol=1e-3)
    assert checked > 100


def test_one_context_whose_set_is_a_point_leaves_the_decisions_of_the_others_alone() -> None:
    model = shaken(soctk.make_surrogate("soc", dim=3, context_dim=2))
    layer = soctk.DecisionLayer(model, soctk.Polyhedron(3, 0.0, 1.0, G=np.ones(3), h=3.0), skip_undefined=True)
    context = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    upper = torch.ones(4, 3, dtype=torch.float64).index_fill(0, torch.tensor([0]), 0.0)
    found = layer(context, upper=upper).detach()
    torch.testing.assert_close(found[1:], layer(context[1:], upper=upper[1:]).detach(), rtol=0, atol=1e-6)
    assert float(found[0].abs().max()) <= 1e-9


def test_decisions_without_a_derivative_have_none_in_any_part() -> None:
    """Of min x_0 over a sum the other two are not unique; what the equality alone moves was given as a derivative."""
    model = soctk.from_quadratic(np.diag([1.0, 0.0, 0.0]), np.zeros(3))
    line = soctk.Polyhedron(3, -1.0, 1.0, E=[[1.0, 1.0, 1.0]], f=[0.3])
    total = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    found = soctk.DecisionLayer(model, line, skip_undefined=True)(f=total)
    assert [float(torch.autograd.grad(x, total, retain_graph=True)[0]) for x in found] == [0.0, 0.0, 0.0]
