"""Bounds of float32 models, once of another function: that of coefficients with units folded in in float32."""

from __future__ import annotations

import copy

import mpmath as mp
import pytest
import torch
from exact import ExactForm, at, softplus

import soctk

UNITS = {"x": (1000.0, 1.0), "value": (0.0, 1.0)}


def make(seed: int) -> tuple[soctk.SOCICNN, ExactForm]:
    """Return a float32 model far from 0, and the function that its numbers define."""
    model = soctk.SOCICNN(5, 0, hidden=(6,), quadratics=(5,), norms=(2,), seed=seed, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)))
    truth = ExactForm(copy.deepcopy(model).double()._conic_form(torch.zeros(1, 0, dtype=torch.float64)), **UNITS)
    weights = [softplus(part.floor.detach()) for part in (model.c, model.alpha, model.lam)]
    truth.weights = [weights[0], weights[1] * 5, weights[2]]
    model.set_standardization(**UNITS)
    return model, truth


@pytest.mark.parametrize("seed", range(12))
def test_bounds_are_of_the_function_that_the_weights_define(seed: int) -> None:
    model, truth = make(seed)
    feasible_set = soctk.Box(5, 998.0, 1002.0)
    best = soctk.minimize(copy.deepcopy(model).double(), feasible_set, tol=1e-12).x
    least = truth.value(at(best))
    decision = soctk.minimize(model, feasible_set)
    assert mp.mpf(float(decision.lower_bound)) <= least
    assert mp.mpf(float(decision.value)) >= truth.value(at(decision.x)) - mp.mpf("1e-9")
    for x in (decision.x, decision.x.double(), best):
        certificate = soctk.certify(model, feasible_set, x)
        assert mp.mpf(float(certificate.lower_bound)) <= least
        # In float32 a point near 1,000 is known to 3e-5; so it cannot be better than that.
        assert float(certificate.relative_gap) <= 1e-4
    assert float(certificate.relative_gap) <= 1e-8


def test_a_value_below_its_own_bound_is_no_gap_of_zero() -> None:
    """A point outside of the set may lie below the set's minimum."""
    model = soctk.from_quadratic(torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64), 0.0)
    certificate = soctk.certify(model, soctk.Box(2, 1.0, 2.0), torch.zeros(2, dtype=torch.float64))
    assert float(certificate.value) < float(certificate.lower_bound)
    assert float(certificate.gap) == float(certificate.relative_gap) == float("inf")


def test_derivatives_reach_float32_weights_through_float64_coefficients() -> None:
    model, _ = make(0)
    feasible_set, weights = soctk.Box(5, 998.0, 1002.0), torch.arange(5.0)
    (soctk.DecisionLayer(model, feasible_set)() * weights).sum().backward()
    double = copy.deepcopy(model).double()
    double.zero_grad()
    (soctk.DecisionLayer(double, feasible_set)() * weights).sum().backward()
    for slope, expected in zip(model.parameters(), double.parameters(), strict=True):
        if expected.grad is not None:
            assert slope.grad is not None
            torch.testing.assert_close(slope.grad, expected.grad.float(), rtol=1e-5, atol=1e-6)
