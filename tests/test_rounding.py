"""Bounds against the same in fifty digits: never above them, and not far below."""

from __future__ import annotations

import mpmath as mp
import pytest
import torch
from exact import ExactForm, at
from hypothesis import given
from hypothesis import strategies as st
from tolerances import DOUBLE, SINGLE
from torch import Tensor

from soctk import Box, Budget, ConicForm, FeasibleSet, Simplex, certify, minimize
from soctk.forms.rounding import rounding
from soctk.maps.linear import DenseMap
from soctk.models.exact import ExactSurrogate
from soctk.sets.rounding import directed
from soctk.terms import Huber, Logistic, LogSumExp, Network, Norms, Quadratic, Term
from soctk.terms.base import Dual

DIM, ROWS, EPS = 4, 6, 2.0**-52
KINDS = ("quadratic", "norms", "hyperbolic", "relu", "softplus", "logistic", "log_sum_exp", "huber")


def make_term(kind: str, generator: torch.Generator, size: float) -> Term:
    """Return a term of six rows whose arguments are of some size."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(1, *shape, dtype=DOUBLE, generator=generator)

    matrix, offset, weights = DenseMap(size * normal(ROWS, DIM)), size * normal(1, ROWS), normal(1, ROWS).abs()
    pairs = weights[..., ::2]
    if kind in ("relu", "softplus"):
        return Network(matrix, offset, weights[..., :2], (normal(2, 4).abs(),), (4, 2), kind)  # type: ignore[arg-type]
    return {
        "quadratic": lambda: Quadratic(matrix, offset, weights / size**2),
        "norms": lambda: Norms(matrix, offset, pairs, torch.zeros_like(pairs), 2),
        "hyperbolic": lambda: Norms(matrix, offset, pairs, normal(1, ROWS // 2), 2),
        "logistic": lambda: Logistic(matrix, offset, weights),
        "log_sum_exp": lambda: LogSumExp(matrix, offset, pairs, 2),
        "huber": lambda: Huber(matrix, offset, weights, 0.3),
    }[kind]()


@st.composite
def problems(draw: st.DrawFn) -> tuple[ConicForm, tuple[Tensor, Tensor], tuple[float, float], FeasibleSet, int]:
    """Return a form in its own units, the units of x and of the value, a set in the users' and a seed."""
    seed = draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)
    size = draw(st.sampled_from([1e-3, 1.0, 30.0]))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    terms = tuple(make_term(kind, generator, size) for kind in kinds)
    linear = torch.randn(1, 1, DIM, dtype=DOUBLE, generator=generator)
    form = ConicForm(torch.randn(1, 1, dtype=DOUBLE, generator=generator), linear, terms)
    alike = [(0.0, 1.0), (0.5, 0.3), (1e3, 1.0), (-1e6, 7.0)]
    pairs = draw(st.one_of(st.sampled_from(alike).map(lambda pair: [pair] * DIM), st.permutations(alike)))
    mean, scale = torch.tensor(pairs, dtype=DOUBLE).T
    value = draw(st.sampled_from([(0.0, 1.0), (1e4, 0.01), (-3.0, 1e3)]))
    low, high = mean - 2 * scale, mean + 1.7 * scale
    total = float((mean + 0.3 * scale / DIM).sum())
    sets = [Box(DIM, low, high), Budget(DIM, total, low, high)]
    return form, (mean, scale), value, draw(st.sampled_from([*sets, Simplex(DIM, total)] if total > 0 else sets)), seed


def surrogate(form: ConicForm, x: tuple[Tensor, Tensor], value: tuple[float, float], dtype: torch.dtype):
    """Return the model of a form in other units, its numbers in a precision, and the exact function that it is."""
    model = ExactSurrogate.of(form.to(dtype))
    model.set_standardization(x=x, value=value)
    units = (model.x_mean, model.x_scale), (float(model.value_mean), float(model.value_scale))
    return model, ExactForm(form.to(dtype).to(DOUBLE), *units)


@given(problems(), st.sampled_from([DOUBLE, SINGLE]))
def test_bounds_of_dual_points_are_not_above_those_in_exact_arithmetic(problem, dtype: torch.dtype) -> None:
    form, x, value, feasible_set, seed = problem
    model, truth = surrogate(form, x, value, dtype)
    folded, generator = model.conic_form(), torch.Generator().manual_seed(seed)
    points = feasible_set.sample(3, generator).unsqueeze(0)
    duals = [folded.subgradients(points[:, k : k + 1]) for k in range(3)]
    # Points outside of the conjugates' domains too.
    duals += [Dual(tuple(1.5 * y + 0.1 * y.abs().mean() for y in dual.parts)) for dual in duals]
    largest = feasible_set.reach[0]
    for dual in duals:
        bound, expected = float(folded.bound(dual, feasible_set)), truth.bound(dual, feasible_set)
        assert mp.mpf(bound) <= expected
        size = abs(truth.constant) + sum(abs(a) for a in truth.linear) * float(largest.max())
        for term, y in zip(folded.terms, dual.parts, strict=True):
            inner = term.map.to_dense().matrix.abs() @ largest + term.offset[0].abs()
            size += float((term.nearest_dual(y).abs() * inner).sum() + term.conjugate(term.nearest_dual(y)).abs())
        assert expected - mp.mpf(bound) <= 8 * rounding(ROWS * len(form.terms), DIM, EPS) * size


@given(problems(), st.sampled_from([DOUBLE, SINGLE]))
def test_bounds_of_decisions_are_not_above_the_function_in_exact_arithmetic(problem, dtype: torch.dtype) -> None:
    form, x, value, feasible_set, _ = problem
    feasible_set = Box(DIM, x[0] - 2 * x[1], x[0] + 1.7 * x[1])  # whose points are feasible to the last bit
    model, truth = surrogate(form, x, value, dtype)
    decision = minimize(model, feasible_set, tol=1e-13)
    best = minimize(ExactSurrogate.of(model.conic_form()), feasible_set, tol=1e-13)
    least = truth.value(at(best.x))
    assert mp.mpf(float(decision.lower_bound)) <= least
    assert mp.mpf(float(certify(model, feasible_set, decision.x).lower_bound)) <= least
    if dtype == SINGLE:
        assert decision.x.dtype == decision.value.dtype == decision.lower_bound.dtype == SINGLE
        # Rounded up: 1e-12 is what float64 may have lost of it.
        assert mp.mpf(float(decision.value)) >= truth.value(at(decision.x)) - 1e-12 * max(1, abs(least))


def test_margins_are_small_on_ordinary_problems_and_grow_with_offsets() -> None:
    generator = torch.Generator().manual_seed(0)
    form = ConicForm(
        torch.zeros(1, 1, dtype=DOUBLE),
        torch.zeros(1, 1, DIM, dtype=DOUBLE),
        (make_term("quadratic", generator, 1.0), make_term("relu", generator, 1.0)),
    )
    gaps = {}
    for mean in (0.0, 1e6):
        model, _ = surrogate(form, (mean, 1.0), (0.0, 1.0), DOUBLE)
        feasible_set = Box(DIM, mean - 2.0, mean + 2.0)
        folded = model.conic_form()
        dual = folded.subgradients(torch.full((1, 1, DIM), mean, dtype=DOUBLE))
        exactly = ExactForm(form, (mean, 1.0)).bound(dual, feasible_set)
        gaps[mean] = float(exactly - mp.mpf(float(folded.bound(dual, feasible_set))))
    assert 0 < gaps[0.0] <= 1e-12
    assert 1e-10 <= gaps[1e6] <= 1e-5


@pytest.mark.parametrize("toward", [torch.inf, -torch.inf])
def test_directed_rounding(toward: float) -> None:
    numbers = torch.randn(100, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    numbers = torch.cat([numbers, torch.tensor([0.0, 1.0, 1e-60, -1e-60, torch.inf, -torch.inf], dtype=DOUBLE)])
    rounded = directed(numbers, SINGLE, toward)
    assert bool((rounded.double() >= numbers if toward > 0 else rounded.double() <= numbers).all())
    torch.testing.assert_close(rounded.double(), numbers, rtol=2.0**-23, atol=1e-40)
