"""A quadratic for fewer values than coefficients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tolerances import DOUBLE

import soctk
from soctk.learn.isotropic import isotropic_quadratic, solve
from soctk.learn.units import Standardized

DIM, P = 60, 2


def bowl(x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """Return half the squared distance from a centre that is affine in the context, (N, M, n) -> (N, M)."""
    matrix = torch.randn(P, DIM, generator=torch.Generator().manual_seed(5), dtype=DOUBLE) * 0.15
    return 0.5 * (x - 0.5 - (context @ matrix).unsqueeze(-2)).square().sum(dim=-1)


def observed(instances: int, candidates: int, seed: int = 0) -> soctk.ValueData:
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(instances, P, generator=generator, dtype=DOUBLE)
    x = torch.rand(instances, candidates, DIM, generator=generator, dtype=DOUBLE)
    return soctk.ValueData(context, x, bowl(x, context) + 3.0 + context[:, :1])


@pytest.mark.parametrize(("instances", "candidates"), [(300, 2), (600, 1), (40, 16)])
def test_enough_values_of_a_round_bowl_tell_it(instances: int, candidates: int) -> None:
    """Its curvature is 1 and its slope minus the centre; with R values for some 3 n coefficients both are found."""
    data = observed(instances, candidates)
    found = isotropic_quadratic(Standardized(data.context, data.x - 0.5, data.value))
    assert float(found.Q[0, 0]) == pytest.approx(1.0, rel=0.02)
    assert torch.equal(found.Q, found.Q[0, 0] * torch.eye(DIM, dtype=DOUBLE))
    matrix = torch.randn(P, DIM, generator=torch.Generator().manual_seed(5), dtype=DOUBLE) * 0.15
    error = found.slope[:, :P] + matrix.mT
    assert float(error.norm() / matrix.norm()) < 0.1


def test_leave_one_out_errors_are_those_of_refits() -> None:
    """Dubrule's formula, which chooses lambda, against leaving every value out."""
    generator = np.random.default_rng(0)
    points, square, y = generator.normal(size=(12, 5)), generator.normal(size=12), generator.normal(size=12)
    kernel, share = points @ points.T, 0.3
    scale = np.linalg.eigvalsh(kernel).clip(min=0).mean()
    system = kernel + share * scale * np.eye(12)
    errors = []
    for k in range(12):
        kept = np.arange(12) != k
        inverse = np.linalg.inv(system[np.ix_(kept, kept)])
        q = (square[kept] @ inverse @ y[kept]) / (square[kept] @ inverse @ square[kept])
        errors.append(y[k] - q * square[k] - kernel[k, kept] @ inverse @ (y[kept] - q * square[kept]))
    values, axes = np.linalg.eigh(kernel)
    _, alpha, precision = solve(values.clip(min=0) + share * scale, axes, square, y, floor=-np.inf)
    np.testing.assert_allclose(alpha / precision, errors, rtol=1e-9)


@pytest.mark.parametrize("candidates", [1, 8])
def test_decisions_from_too_few_values_are_better_than_the_middle(candidates: int) -> None:
    """A quadratic has 60 + 180 coefficients beside those of b0; there are 128 values."""
    data, test = observed(128 // candidates, candidates), observed(50, 1, seed=1).context
    model = soctk.make_surrogate("soc", DIM, P)
    soctk.fit(model, data, soctk.FitConfig(starts=1))
    box = soctk.Box(DIM)
    x = soctk.minimize(model, box, test).x
    middle = torch.full_like(x, 0.5)
    cost = [float(bowl(each.unsqueeze(1), test).mean()) for each in (x, middle)]
    assert cost[0] < 0.97 * cost[1]
