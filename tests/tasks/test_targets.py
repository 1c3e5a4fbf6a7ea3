"""The ten targets against the paper's formulas in NumPy, their CVXPY forms and their data."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from tolerances import CLARABEL, DOUBLE, INEQUALITY, size

from soctk_tasks import TARGETS, make_target
from soctk_tasks.targets import SIZES


def huber(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) <= 1, x**2 / 2, np.abs(x) - 0.5)


def mixed(x: np.ndarray) -> np.ndarray:
    d = x.shape[-1]
    a3 = np.where(np.arange(d) >= d // 2, 1.0, -1.0) if d > 1 else np.array([-1.0])
    pieces = np.stack(
        [x @ np.linspace(-1, 1, d) + 0.2, x @ np.cos(np.linspace(0, np.pi, d)) - 0.1, x @ a3 + 0.4], axis=-1
    )
    quadratic = 0.25 * (x**2 @ np.linspace(0.5, 2, d))
    return quadratic + 0.7 * np.sqrt(x**2 @ np.linspace(2, 0.5, d)) + pieces.max(axis=-1)


FORMULAS = {
    "QuadraticIso": lambda x: 0.5 * (x**2).sum(-1),
    "QuadraticAniso": lambda x: 0.5 * (x**2 @ np.linspace(0.5, 2.5, x.shape[-1])),
    "NormEuclid": lambda x: np.linalg.norm(x, axis=-1),
    "NormAniso": lambda x: np.sqrt(x**2 @ np.linspace(1, 10, x.shape[-1])),
    "Mixed": mixed,
    "SoftplusSum": lambda x: np.log1p(np.exp(x)).sum(-1),
    "LogSumExpQuad": lambda x: np.log(np.exp(x).sum(-1)) + 0.1 * (x**2).sum(-1),
    "Huber": lambda x: huber(x).sum(-1),
    "L1Norm": lambda x: np.abs(x).sum(-1),
    "ICKANPaperTarget": lambda x: (
        (np.abs(x) + np.abs(1 - x)).sum(-1) + 0.25 * (x**2 @ np.linspace(0.5, 2, x.shape[-1]))
    ),
}


def test_the_ten_targets_of_the_paper() -> None:
    assert set(TARGETS) == set(FORMULAS)
    assert len(TARGETS) == 10


@pytest.mark.parametrize("dim", [1, 5, 10])
@pytest.mark.parametrize("name", TARGETS)
def test_the_value_is_the_papers_formula(name: str, dim: int) -> None:
    target = make_target(name, dim)
    x = np.random.default_rng(0).uniform(-3, 3, (200, dim))
    expected = FORMULAS[name](x)
    for values in (target(x), target.objective(torch.from_numpy(x))):
        np.testing.assert_allclose(values.numpy(), expected, rtol=0, atol=INEQUALITY[DOUBLE] * np.abs(expected).max())


@pytest.mark.parametrize("name", TARGETS)
def test_the_cvxpy_form_has_the_value_and_is_convex(name: str) -> None:
    target, point = make_target(name, 3), np.array([0.5, -1.7, 2.0])
    x = cp.Variable(3)
    expression = target.to_cvxpy(x)
    assert expression.is_convex()
    problem = cp.Problem(cp.Minimize(expression), [x == point])
    problem.solve(solver="CLARABEL")
    assert problem.value == pytest.approx(float(target(point)), rel=CLARABEL, abs=CLARABEL)


@pytest.mark.parametrize("name", TARGETS)
def test_convex_along_segments(name: str) -> None:
    a, b = 6 * torch.rand(2, 300, 4, dtype=DOUBLE) - 3
    target = make_target(name, 4)
    chord = 0.5 * (target(a) + target(b))
    assert float((chord - target(0.5 * (a + b))).min()) >= -INEQUALITY[DOUBLE] * size(chord)


def test_data_are_uniform_independent_and_reproducible() -> None:
    target = make_target("Huber", 4, seed=3)
    data = target.sample()
    assert {name: part.candidates for name, part in data.items()} == SIZES
    assert all((part.instances, part.context_dim, part.dim) == (1, 0, 4) for part in data.values())
    x = torch.cat([part.x[0] for part in data.values()])
    assert x.unique(dim=0).shape == x.shape
    assert -3 <= float(x.min()) < -2.99
    assert 2.99 < float(x.max()) <= 3
    assert float(x.mean(dim=0).abs().max()) < 5 * 3 / (3 * len(x)) ** 0.5  # five standard errors of uniform numbers
    again = make_target("Huber", 4, seed=3).sample()["test"]
    assert torch.equal(again.x, data["test"].x)
    assert not torch.equal(make_target("Huber", 4, seed=4).sample()["test"].x, again.x)
    assert torch.equal(target(again.x[0]), again.value[0])
    assert target.sample({"few": 7}, seed=1)["few"].candidates == 7


def test_wrong_requests_say_what_was_expected() -> None:
    with pytest.raises(ValueError, match=r"name: expected one of QuadraticIso.*got 'Cubic'"):
        make_target("Cubic", 3)
    with pytest.raises(ValueError, match="dim: expected an integer of at least 1"):
        make_target("Huber", 0)
    with pytest.raises(ValueError, match="train: expected an integer of at least 1"):
        make_target("Huber", 2).sample({"train": 0})
