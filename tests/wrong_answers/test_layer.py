"""Derivatives of decisions of pure ReLU models, which are those of a vertex: right or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tolerances import TIGHT_OPTIONS

import soctk

SEEDS = range(60)
STEPS = (1e-4, 1e-5)


def derivative(layer: soctk.DecisionLayer, context: torch.Tensor, weights: torch.Tensor) -> float | None:
    """Return d <weights, x_hat> / d context, or None where it is refused."""
    point = context.clone().requires_grad_()
    decision = layer(point)
    try:
        (slope,) = torch.autograd.grad((decision * weights).sum(), point)
    except RuntimeError as error:
        if "1 of 1 decisions have no derivative (instance 0)" not in str(error):
            raise
        return None
    return float(slope)


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
