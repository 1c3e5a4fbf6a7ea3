"""Derivatives of decisions next to where a kink, an apex or a bound begins or ceases to hold them: right or refused."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from slopes import slope_or_none
from zoo import shaken

import soctk

DISTANCES = [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7]
"""From where a kink or a bound begins to hold, in units of x; less than 1e-9 of x, or of 1, is taken for none."""


@pytest.mark.parametrize(("unit", "distance"), [(u, d) for u in (1.0, 1e3, 1e-3) for d in DISTANCES if u * d > 5e-9])
@pytest.mark.parametrize(
    ("holding", "at", "below"),
    [
        ("kink", 0.75, 2 / 3),
        ("kink", 0.95, 0.0),
        ("absolute", 0.65, 2 / 3),
        ("absolute", 0.85, 0.0),
        ("bound", 0.75, 2 / 3),
    ],
)
def test_on_either_side_of_where_a_kink_or_a_bound_begins_to_hold(
    unit: float, holding: str, at: float, below: float, distance: float
) -> None:
    """min of x^2 / 2 + y^2 + w max(x - .5, 0) over x + y = t: x is 2t / 3 up to t = .75, .5, and (2t - w) / 3 from .95.

    Smoothing by mu reaches as far as sqrt(mu); what was given there was anything between 0 and 2 / 3. With half of
    w |x - .5| in its place the same is so .1 earlier.
    """
    point = cp.Variable(2)
    x, y = point[0] / unit, point[1] / unit
    cost, upper = 0.5 * cp.square(x) + cp.square(y), 5.0
    if holding == "kink":
        cost += 0.4 * cp.pos(x - 0.5)
    elif holding == "absolute":
        cost += 0.2 * cp.abs(x - 0.5)
    else:
        upper = 0.5
    line = soctk.Polyhedron(2, -5.0 * unit, [upper * unit, 5.0 * unit], E=[[1.0, 1.0]], f=[unit])
    layer = soctk.DecisionLayer(soctk.from_cvxpy(cost, point), line)
    for side, expected in ((-1, below), (1, 2 / 3 - below)):
        total = torch.tensor([unit * (at + side * distance)], dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(layer(f=total)[0], total)
        assert float(slope) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("distance", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("rows", [2, 3])
def test_on_either_side_of_where_the_apex_of_a_norm_begins_to_hold(rows: int, distance: float) -> None:
    """min of ||x - t||^2 / 2 + w ||x||: x = 0 up to ||t|| = w, (1 - w / ||t||) t beyond."""
    point = cp.Variable(2 * rows)
    cost = 0.5 * cp.sum_squares(point[:rows] - point[rows:]) + 0.3 * cp.norm(point[:rows], 2)
    fixed = np.hstack([np.zeros((rows, rows)), np.eye(rows)])
    layer = soctk.DecisionLayer(
        soctk.from_cvxpy(cost, point), soctk.Polyhedron(2 * rows, -5.0, 5.0, E=fixed, f=np.ones(rows))
    )
    along = torch.arange(1.0, rows + 1, dtype=torch.float64)
    along /= along.norm()
    for side in (-1, 1):
        length = 0.3 + side * distance
        t, weights = (length * along).requires_grad_(), torch.linspace(-1, 2, rows, dtype=torch.float64)
        (slope,) = torch.autograd.grad((layer(f=t)[:rows] * weights).sum(), t)
        away = (1 - 0.3 / length) * weights + 0.3 / length * (weights @ along) * along
        torch.testing.assert_close(slope, away if side > 0 else torch.zeros_like(away), rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", ["kink", "absolute", "row"])
@pytest.mark.parametrize("angle", [1.0, 0.1, 0.03, 0.01, 0.003, 0.001])
def test_what_holds_together_and_is_nearly_parallel(angle: float, kind: str) -> None:
    """min of ||x - t||^2 / 2 + w max(a'x, 0) + w max(b'x, 0): x = 0 as long as t = p a + q b with p and q in [0, w].

    What one holds that another does not is b's part across a: its stiffness counted as if that were all of b. Rows
    a'x <= 0 and b'x <= 0 hold x = 0 where p and q are positive.
    """
    a, b = np.array([1.0, 0.0]), np.array([np.cos(angle), np.sin(angle)])
    point, w, shift, rows = cp.Variable(4), 0.4, 0.0, {}
    cost = 0.5 * cp.sum_squares(point[:2] - point[2:])
    for normal in (a, b):
        if kind == "kink":
            cost += w * cp.pos(normal @ point[:2])
        elif kind == "absolute":
            cost, shift = cost + 0.5 * w * cp.abs(normal @ point[:2]), 0.5 * w
        else:
            rows = {"G": np.hstack([[a, b], np.zeros((2, 2))]), "h": np.zeros(2)}
    fixed = np.hstack([np.zeros((2, 2)), np.eye(2)])
    plane = soctk.Polyhedron(4, -5.0, 5.0, E=fixed, f=[1.0, 1.0], **rows)
    layer = soctk.DecisionLayer(soctk.from_cvxpy(cost, point), plane)
    across, weights = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0.5, -1.0], dtype=torch.float64)
    refused = 0
    for q in (1e-1, 1e-2, 1e-3, 1e-4):
        for sign, expected in ((1, torch.zeros(2, dtype=torch.float64)), (-1, (weights @ across) * across)):
            t = torch.tensor((0.2 - shift) * a + (sign * q - shift) * b)
            slope = slope_or_none(lambda t: (layer(f=t)[:2] * weights).sum(), t)
            refused += slope is None
            if slope is not None:
                torch.testing.assert_close(slope, expected, rtol=0, atol=3e-3)
    assert refused <= (0 if angle >= 0.01 else 2)


@pytest.mark.parametrize("steepest", [1.0, 1e4, 1e7, 1e10])
@pytest.mark.parametrize("holding", ["kink", "absolute", "bound"])
def test_what_holds_beside_a_far_larger_curvature(holding: str, steepest: float) -> None:
    """min of S x^2 / 2 + (y - t)^2 / 2 + w max(y, 0), or over y >= 0: y moves with t, or not, whatever S is."""
    point = cp.Variable(3)
    cost = 0.5 * steepest * cp.square(point[0]) + 0.5 * cp.square(point[1] - point[2])
    kinks = {"kink": 0.4 * cp.pos(point[1]), "absolute": 0.4 * cp.abs(point[1]), "bound": 0.0}
    plane = soctk.Polyhedron(3, [-5.0, 0.0 if holding == "bound" else -5.0, -5.0], 5.0, E=[[0, 0, 1.0]], f=[1.0])
    layer = soctk.DecisionLayer(soctk.from_cvxpy(cost + kinks[holding], point), plane)
    for distance in (1e-2, 1e-4, 6e-5, 1e-5, 1e-6):
        for sign in (1, -1):
            t = torch.tensor([(0.0 if holding == "bound" else 0.4) + sign * distance], dtype=torch.float64)
            slope = slope_or_none(lambda t: layer(f=t)[1], t)
            assert slope is not None
            assert float(slope) == pytest.approx(float(sign > 0), abs=2e-3)


@pytest.mark.parametrize("copies", [10, 100, 400])
@pytest.mark.parametrize("kind", ["kink", "absolute"])
def test_many_that_each_hold_a_little(kind: str, copies: int) -> None:
    """min of (x - t)^2 / 2 + sum of w / N max(x, 0), N times: as with one of them, or refused."""
    point = cp.Variable(2)
    stacked = 0.4 / copies * np.ones((copies, 1)) @ point[:1]
    cost = 0.5 * cp.square(point[0] - point[1])
    cost += cp.sum(cp.pos(stacked)) if kind == "kink" else cp.norm1(stacked)
    line = soctk.Polyhedron(2, -5.0, 5.0, E=[[0, 1.0]], f=[1.0])
    layer = soctk.DecisionLayer(soctk.from_cvxpy(cost, point), line)
    for distance in (1e-2, 1e-3, 1e-4, 1e-5):
        for sign in (1, -1):
            slope = slope_or_none(lambda t: layer(f=t)[0], torch.tensor([0.4 + sign * distance], dtype=torch.float64))
            assert slope is not None or distance < 1e-3
            if slope is not None:
                assert float(slope) == pytest.approx(float(sign > 0), abs=3e-3)


@pytest.mark.parametrize("price", [1.0, 1e4, 1e6, 1e8])
def test_the_apex_of_a_norm_beside_a_high_price(price: float) -> None:
    """min of ||x - t||^2 / 2 + w ||x|| + P y over y >= 1: P, most of the gradient, is no measure of x's part of it."""
    point = cp.Variable(5)
    cost = 0.5 * cp.sum_squares(point[:2] - point[3:]) + 0.3 * cp.norm(point[:2], 2) + price * point[2]
    fixed = np.hstack([np.zeros((2, 3)), np.eye(2)])
    plane = soctk.Polyhedron(5, [-5.0, -5.0, 1.0, -5.0, -5.0], 5.0, E=fixed, f=np.ones(2))
    layer = soctk.DecisionLayer(soctk.from_cvxpy(cost, point), plane)
    along = torch.tensor([0.6, 0.8], dtype=torch.float64)
    for distance in (1e-2, 1e-3, 1e-4, 1e-5):
        slope = slope_or_none(lambda t: layer(f=t)[0], (0.3 + distance) * along)
        share = 0.3 / (0.3 + distance)
        expected = (1 - share) * torch.tensor([1.0, 0.0], dtype=torch.float64) + share * along[0] * along
        assert slope is not None or price / distance > 1e10
        if slope is not None:
            torch.testing.assert_close(slope, expected, rtol=0, atol=3e-3)


def slopes_by_tolerance(
    model: soctk.ConvexSurrogate, box: soctk.FeasibleSet, seed: int, *tolerances: float
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return derivatives at 400 contexts by each tolerance, and where all are given."""
    generator = torch.Generator().manual_seed(seed)
    context, weights = (torch.randn(400, width, generator=generator, dtype=torch.float64) for width in (3, 5))
    found = []
    for tol in tolerances:
        layer, point = soctk.DecisionLayer(model, box, tol=tol, skip_undefined=True), context.clone().requires_grad_()
        found.append(torch.autograd.grad((layer(point) * weights).sum(), point)[0])
    return found, torch.stack([(slope != 0).any(dim=1) for slope in found]).all(dim=0)


@pytest.mark.parametrize("seed", range(4))
def test_derivatives_do_not_depend_on_how_far_the_smoothing_reaches(seed: int) -> None:
    model = shaken(soctk.SOCICNN(5, 3, hidden=(8, 8), quadratics=(5,), norms=(2,), seed=seed), 0.3)
    found, given = slopes_by_tolerance(model, soctk.Box(5, -1.0, 1.0), seed, 1e-9, 1e-12)
    assert int(given.sum()) > 380
    size = found[1][given].abs().amax(dim=1, keepdim=True).clamp(min=0.1)
    assert float(((found[0] - found[1])[given] / size).abs().max()) < 0.01


@pytest.mark.parametrize("seed", [1, 2])
def test_derivatives_in_matrices_that_the_context_makes(seed: int) -> None:
    """Their change multiplies the dual iterates, of which the last step may leave an error; tight tolerances agree."""
    model = shaken(soctk.make_surrogate("pcf", dim=5, context_dim=3, seed=seed), 0.3)
    found, given = slopes_by_tolerance(model, soctk.Box(5, -1.0, 1.5), seed, 1e-9, 1e-12, 1e-13)
    size = found[2].abs().amax(dim=1, keepdim=True).clamp(min=0.1)
    given &= ((found[1] - found[2]).abs() <= 1e-4 * size).all(dim=1)
    assert int(given.sum()) > 350
    assert float(((found[0] - found[2]).abs() / size)[given].max()) < 0.01


@pytest.mark.parametrize("flat", [1e-2, 1e-4, 1e-6])
def test_a_kink_that_holds_a_nearly_flat_direction(flat: float) -> None:
    """min of flat x^2 / 2 - t x + y^2 / 2 + max(x - y, 0): x = y = t / (1 + flat) up to t = 1 + flat, t / flat beyond.

    What the kink leaves of the move is so small a share of what there were without it that its smoothing counts.
    """
    point, root = cp.Variable(3), flat**0.5
    cost = 0.5 * cp.square(root * point[0] - point[2] / root) + 0.5 * cp.square(point[1]) + cp.pos(point[0] - point[1])
    layer = soctk.DecisionLayer(soctk.from_cvxpy(cost, point), soctk.Polyhedron(3, -5.0, 5.0, E=[[0, 0, 1.0]], f=[1.0]))
    for distance in (1e-2, 1e-4, 1e-6):
        t = torch.tensor([1 + flat - distance], dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(layer(f=t)[0], t)
        assert float(slope) == pytest.approx(1 / (1 + flat), abs=2e-3)
