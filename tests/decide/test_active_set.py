"""Derivatives where decisions rest at kinks and bounds: against linear programmes and tight decisions, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from tolerances import DOUBLE
from torch import Tensor, nn
from torch.nn.functional import softplus
from zoo import SETS, shaken

from soctk import SOCICNN, Box, Budget, ConicForm, ConvexSurrogate, DecisionLayer, FeasibleSet, Polyhedron, Simplex
from soctk.maps.linear import DenseMap
from soctk.terms import Huber, Logistic, Network, Norms, Quadratic, Term
from soctk.terms.base import Smoothed
from soctk.terms.piece import Piece

STEPS = (1e-4, 1e-5, 1e-6)
WRONG = 1e-2
WIDTHS = ((4,), (8,), (4, 4), (8, 4, 4))


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def linear_program(form: ConicForm, feasible_set: FeasibleSet, noise: np.ndarray | float = 0.0) -> np.ndarray:
    """Return a vertex that minimises one ReLU form: min v'x + c'z_L over z_l >= W_l x + b_l + U_l z_{l-1}, z >= 0."""
    (term,), rows = form.terms, feasible_set.rows()
    assert isinstance(term, Network)
    n, widths = form.dim, term.widths
    blocks = np.concatenate([term.map.to_dense().matrix[0].numpy(), -np.eye(sum(widths))], axis=1)
    first = np.cumsum([0, *widths])
    for level, matrix in enumerate(term.mixing, start=1):
        blocks[first[level] : first[level + 1], n + first[level - 1] : n + first[level]] += matrix[0].numpy()
    cost = np.concatenate([form.linear[0, 0].numpy() + noise, np.zeros(first[-2]), term.weights[0, 0].numpy()])
    ends = [*zip(rows.lower.tolist(), rows.upper.tolist(), strict=True), *[(0, None)] * sum(widths)]
    total = {} if rows.total is None else {"A_eq": [[1.0] * n + [0.0] * sum(widths)], "b_eq": [rows.total]}
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    offset = -term.offset[0, 0].numpy()
    answer = linprog(cost, blocks, offset, bounds=ends, method="highs-ds", options=tight, **total)
    return answer.x[:n]


def slope_of_vertices(model: ConvexSurrogate, feasible_set: FeasibleSet, context: Tensor, along: Tensor) -> np.ndarray:
    """Return the derivative of the linear programme's vertex, NaN where it is not unique or turns."""

    def vertex(step: float) -> np.ndarray:
        return linear_program(model.conic_form(context + step * along).detach(), feasible_set)

    form, middle = model.conic_form(context).detach(), vertex(0.0)
    for seed in range(3):
        if np.abs(linear_program(form, feasible_set, 1e-7 * normal(form.dim, seed=seed).numpy()) - middle).max() > 1e-7:
            return np.full(form.dim, np.nan)
    sides = np.array([[(vertex(h) - middle) / h, (middle - vertex(-h)) / h] for h in STEPS])
    size = 1.0 + np.abs(sides).max()
    return sides[-1, 0] if np.ptp(sides, axis=(0, 1)).max() <= 1e-3 * size else np.full(form.dim, np.nan)


@pytest.mark.parametrize("dim", [3, 8, 20])
@pytest.mark.parametrize("kind", SETS)
def test_derivatives_of_vertices_are_those_of_the_linear_programme(kind: str, dim: int) -> None:
    feasible_set, stable = SETS[kind](dim), 0
    for seed in range(8):
        model = SOCICNN(dim, 2, hidden=WIDTHS[seed % 4], passthrough=seed % 3 > 0, seed=seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.5 * normal(*weight.shape, seed=seed))
        context, along, weights = (normal(size, seed=seed + 99) for size in (2, 2, dim))
        expected = slope_of_vertices(model, feasible_set, context, along)
        if np.isnan(expected).any():
            continue
        stable += 1
        point = context.clone().requires_grad_()
        (slope,) = torch.autograd.grad((DecisionLayer(model, feasible_set)(point) * weights).sum(), point)
        # Vertices are known to about 1e-12, their differences over 1e-6 to 1e-6.
        assert float(slope @ along) == pytest.approx(float(weights.numpy() @ expected), rel=1e-5, abs=1e-5)
    assert stable >= 4


def test_derivatives_of_vertices_in_all_weights() -> None:
    model, feasible_set = SOCICNN(8, 1, hidden=(4, 4), seed=58), Budget(8, 2.4)
    layer, rows, weights = DecisionLayer(model, feasible_set), torch.full((1, 1), 0.3, dtype=DOUBLE), normal(8, seed=1)
    slopes = torch.autograd.grad((layer(rows) * weights).sum(), list(model.parameters()), allow_unused=True)
    for (name, weight), slope in zip(model.named_parameters(), slopes, strict=True):
        along, ends = normal(*weight.shape, seed=2), []
        for sign in (1.0, -1.0):
            moved = {name: weight.detach() + sign * 1e-5 * along}
            with torch.no_grad(), torch.nn.utils.stateless._reparametrize_module(model, moved):
                ends.append(float((layer(rows) * weights).sum()))
        actual = 0.0 if slope is None else float((slope * along).sum())
        # Decisions are known to 1e-9: their differences over 1e-5 to 1e-4.
        assert actual == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-3), name


def test_a_vertex_that_no_sum_has_to_determine_has_derivative_zero() -> None:
    """6 coordinates at their upper bounds of 1 and 14 at 0 add up to 6 by themselves: one row more than variables."""
    layer = DecisionLayer(shaken(SOCICNN(20, 1, hidden=(4,), seed=3), 1.0), Budget(20, 6.0))
    point = torch.full((1,), 0.3, dtype=DOUBLE, requires_grad=True)
    decision = layer(point)
    assert sorted(decision.detach().round(decimals=6).tolist()) == [0.0] * 14 + [1.0] * 6
    (slope,) = torch.autograd.grad(decision[3], point)
    assert float(slope) == 0.0


class Mixture(ConvexSurrogate):
    """A few terms of some kinds, of `rows` rows each, with offsets and v moved by a context of two numbers."""

    def __init__(self, dim: int, kinds: dict[str, int], seed: int, *, linear: bool = True) -> None:
        super().__init__(dim, 2)
        self.kinds, self.v = kinds, nn.Parameter(0.3 * linear * normal(dim, 3, seed=seed))
        self.A = nn.ParameterList(normal(rows, dim, seed=seed + k) for k, rows in enumerate(kinds.values(), start=1))
        self.d = nn.ParameterList(normal(rows, 3, seed=seed + k) for k, rows in enumerate(kinds.values(), start=11))
        self.w = nn.ParameterList(normal(rows, seed=seed + k) for k, rows in enumerate(kinds.values(), start=21))

    def _term(self, kind: str, matrix: DenseMap, offset: Tensor, weights: Tensor) -> Term:
        if kind.startswith("norm"):
            weights = weights[..., :: int(kind[-1])]
            return Norms(matrix, offset, weights, torch.zeros_like(weights), int(kind[-1]))
        if kind == "relu":
            return Network(matrix, offset, weights, (), (offset.shape[-1],))
        if kind == "huber":
            return Huber(matrix, offset, weights, 0.3)
        return {"quadratic": Quadratic, "logistic": Logistic}[kind](matrix, offset, weights)

    def _conic_form(self, context: Tensor) -> ConicForm:
        row = torch.cat([context, torch.ones_like(context[:, :1])], dim=1)
        terms = [
            self._term(kind, DenseMap(A.unsqueeze(0)), (row @ d.mT).unsqueeze(1), softplus(w)[None, None])
            for kind, A, d, w in zip(self.kinds, self.A, self.d, self.w, strict=True)
        ]
        return ConicForm(row[:, :1] * 0, (row @ self.v.mT).unsqueeze(1), tuple(terms), (context.shape[0],))


MIXTURES = (
    {"norm1": 3, "relu": 4},
    {"norm3": 6, "quadratic": 1},
    {"huber": 6, "norm1": 3},
    {"norm3": 3, "relu": 8, "logistic": 3},
    {"relu": 8, "quadratic": 2},
    {"huber": 3, "norm3": 3, "relu": 4},
)


@pytest.mark.parametrize("kinds", MIXTURES, ids="-".join)
def test_mixtures_of_kinks_and_little_curvature(kinds: dict[str, int]) -> None:
    answered = stable = 0
    for seed in range(6):
        dim, context, along, weights = 8, *(normal(size, seed=seed + 50) for size in (2, 2, 8))
        model = Mixture(dim, kinds, seed)
        feasible_set = (Simplex(dim), Budget(dim, 2.8), Box(dim, -2.0, 2.0))[seed % 3]
        tight = DecisionLayer(model, feasible_set, tol=1e-13, max_iter=200)
        with torch.no_grad():
            moved = torch.stack([context, *(context + h * along for h in (1e-4, -1e-4, 1e-5, -1e-5))])
            middle, *sides = (tight(moved) @ weights).tolist()
        slopes = [(end - middle) / h for end, h in zip(sides, (1e-4, -1e-4, 1e-5, -1e-5), strict=True)]
        if max(slopes) - min(slopes) > WRONG * max(abs(slopes[2]), 0.1):
            continue
        stable += 1
        point = context.clone().requires_grad_()
        decision = DecisionLayer(model, feasible_set)(point)
        (slope,) = torch.autograd.grad((decision * weights).sum(), point)
        answered += 1
        assert float(slope @ along) == pytest.approx(0.5 * (slopes[2] + slopes[3]), rel=WRONG, abs=1e-3)
    assert stable >= 4
    assert answered == stable


@pytest.mark.parametrize("kinds", [{"relu": 8}, {"norm3": 6, "relu": 4}, {"quadratic": 8, "relu": 4}], ids="-".join)
def test_derivatives_under_several_equalities(kinds: dict[str, int]) -> None:
    """Flows: what goes in comes out, at two places."""
    feasible_set = Polyhedron(8, 0.0, 1.0, E=[[1, 1, 1, -1, -1, 0, 0, 0], [0, 0, 0, 1, 1, -1, 2, -1]], f=[0.7, 0.2])
    answered = 0
    for seed in range(6):
        context, along, weights = (normal(size, seed=seed + 50) for size in (2, 2, 8))
        layer = DecisionLayer(Mixture(8, kinds, seed), feasible_set)
        with torch.no_grad():
            middle, *sides = (layer(context + h * along) @ weights for h in (0.0, 1e-4, -1e-4))
        ahead, behind = (float(sides[0] - middle) / 1e-4, float(middle - sides[1]) / 1e-4)
        if abs(ahead - behind) > WRONG * max(abs(ahead), 0.1):
            continue
        point = context.clone().requires_grad_()
        (slope,) = torch.autograd.grad((layer(point) * weights).sum(), point)
        answered += 1
        assert float(slope @ along) == pytest.approx(0.5 * (ahead + behind), rel=WRONG, abs=1e-3)
    assert answered >= 4


@pytest.mark.parametrize("kind", ["norm1", "norm3", "huber", "quadratic", "relu"])
def test_flat_minima_are_refused(kind: str) -> None:
    """Three rows of twelve variables in a box that holds their zeros: a set of minimisers of nine dimensions."""
    layer = DecisionLayer(Mixture(12, {kind: 3}, seed=4, linear=False), Box(12, -3.0, 3.0))
    point = normal(2, seed=0).requires_grad_()
    with pytest.raises(RuntimeError, match="1 of 1 decisions have no derivative"):
        layer(point)[0].backward()
    skipping = DecisionLayer(layer.model, layer.feasible_set, skip_undefined=True)
    skipping(normal(4, 2, seed=0)).sum().backward()
    assert all(bool((weight.grad == 0).all()) for weight in layer.model.parameters() if weight.grad is not None)


def test_each_instance_of_a_batch_is_treated_as_it_is_alone() -> None:
    """Some rest at kinks, others where there is curvature: two ways to differentiate, put back in order."""
    layer = DecisionLayer(Mixture(4, {"norm3": 3, "quadratic": 3, "relu": 4}, seed=0), Budget(4, 1.6))
    rows, weights = 2 * normal(24, 2, seed=1), normal(24, 4, seed=2)

    def slopes(points: Tensor, incoming: Tensor) -> Tensor:
        points = points.clone().requires_grad_()
        (layer(points) * incoming).sum().backward()
        assert points.grad is not None
        return points.grad

    def in_batches_of(size: int) -> Tensor:
        return torch.cat([slopes(*pair) for pair in zip(rows.split(size), weights.split(size), strict=True)])

    alone = in_batches_of(1)
    for size in (4, 24):  # as many as variables: what belongs to instances is not told by its size
        torch.testing.assert_close(in_batches_of(size), alone, rtol=1e-6, atol=1e-9)


def test_kinks_of_an_unknown_kind_are_refused_where_decisions_rest_at_them() -> None:
    class Strange(Norms):
        """A norm that does not say where its kinks are."""

        def piece(self, smoothed: Smoothed, lag: Tensor) -> Piece:
            return Term.piece(self, smoothed, lag)

    class Model(Mixture):
        def _term(self, kind: str, matrix: DenseMap, offset: Tensor, weights: Tensor) -> Term:
            norms = super()._term(kind, matrix, offset, weights)
            return Strange(norms.map, norms.offset, norms.weights, norms.kappa, norms.size)  # type: ignore[attr-defined]

    known = DecisionLayer(Mixture(6, {"norm1": 3}, seed=1), Budget(6, 2.4))
    point = normal(2, seed=0).requires_grad_()
    known(point)[0].backward()
    unknown = DecisionLayer(Model(6, {"norm1": 3}, seed=1), Budget(6, 2.4))
    decision = unknown(point)
    torch.testing.assert_close(decision, known(point))
    with pytest.raises(RuntimeError, match="no derivative"):
        decision[0].backward()
