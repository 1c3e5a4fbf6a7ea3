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
