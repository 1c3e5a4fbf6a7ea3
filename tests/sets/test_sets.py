"""The three sets against the contract, and what is particular to each."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp, kstest
from set_contract import SetContract
from tolerances import DOUBLE

from soctk import Box, Budget, Simplex


class TestSimplex(SetContract):
    CASES: ClassVar = {
        "one": lambda: Simplex(1),
        "two": lambda: Simplex(2, total=0.3),
        "five": lambda: Simplex(5),
        "thirty": lambda: Simplex(30, total=2.0),
    }


class TestBox(SetContract):
    CASES: ClassVar = {
        "one": lambda: Box(1),
        "unit": lambda: Box(6),
        "per_coordinate": lambda: Box(3, lower=[-1.0, 0.0, 2.0], upper=[1.0, 0.5, 2.5]),
        "fixed_coordinate": lambda: Box(3, lower=[-1.0, 0.7, 0.0], upper=[1.0, 0.7, 1.0]),
    }


class TestBudget(SetContract):
    CASES: ClassVar = {
        "one": lambda: Budget(1, total=0.4),
        "third": lambda: Budget(6, total=1.8),
        "half_of_twelve": lambda: Budget(12, total=6.0),
        "per_coordinate": lambda: Budget(4, total=1.0, lower=[-1.0, 0.0, 0.1, 0.0], upper=[0.5, 2.0, 0.4, 1.0]),
        "fixed_coordinate": lambda: Budget(4, total=1.5, lower=[0.0, 0.5, 0.0, 0.0], upper=[1.0, 0.5, 1.0, 0.3]),
        "lower_corner": lambda: Budget(5, total=0.0),
        "upper_corner": lambda: Budget(5, total=5.0),
        "near_corner": lambda: Budget(5, total=1e-6),
    }


class TestExtremeScales(SetContract):
    """Sizes at which the tolerances of the reference solver, which are absolute, say nothing."""

    CASES: ClassVar = {
        "huge_simplex": lambda: Simplex(4, total=1e8),
        "tiny_simplex": lambda: Simplex(4, total=1e-8),
        "huge_box": lambda: Box(3, lower=-1e8, upper=1e8),
        "huge_budget": lambda: Budget(5, total=1.2e8, upper=1e8),
    }
    test_projection_agrees_with_clarabel = None
    test_constraints_in_cvxpy_are_the_set = None


# -- corners -------------------------------------------------------------------------------------------


def test_a_simplex_of_one_coordinate_is_its_total() -> None:
    assert Simplex(1, total=2.5).project(torch.tensor([-7.0], dtype=DOUBLE)).tolist() == [2.5]
    assert Simplex(1, total=2.5).sample().tolist() == [2.5]


def test_a_budget_of_zero_is_the_lower_corner_and_a_full_one_the_upper() -> None:
    y = torch.tensor([5.0, -3.0, 0.2], dtype=DOUBLE)
    lower, upper = (-1.0, 0.0, 0.25), (0.5, 2.0, 0.75)
    for total, corner in ((sum(lower), lower), (sum(upper), upper)):
        budget = Budget(3, total, lower, upper)
        for point in (budget.project(y), budget.linear_minimizer(y), budget.sample(), budget.center()):
            torch.testing.assert_close(point, torch.tensor(corner, dtype=DOUBLE), rtol=0, atol=1e-15)


def test_a_fixed_coordinate_stays() -> None:
    budget = Budget(3, total=1.0, lower=[0.0, 0.3, 0.0], upper=[1.0, 0.3, 1.0])
    y = torch.tensor([[0.1, 9.0, 1e8], [1.0, -1e8, 0.0]], dtype=DOUBLE)
    assert budget.project(y)[:, 1].tolist() == [0.3, 0.3]
    assert budget.sample(10)[:, 1].tolist() == [0.3] * 10


# -- constructors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Simplex(0), "dim: expected an integer"),
        (lambda: Simplex(2.0), "dim: expected an integer"),
        (lambda: Simplex(True), "dim: expected an integer"),
        (lambda: Simplex(3, total=0.0), "total: expected a positive finite"),
        (lambda: Simplex(3, total=-1.0), "total: expected a positive finite"),
        (lambda: Simplex(3, total=float("nan")), "total: expected a positive finite"),
        (lambda: Simplex(3, total=float("inf")), "total: expected a positive finite"),
        (lambda: Simplex(3, total="1"), "total: expected a number, got '1'"),
        (lambda: Budget(3, total=[1.0]), "total: expected a number, got"),
        (lambda: Box(-1), "dim: expected an integer"),
        (lambda: Box(2, lower=1.0, upper=0.0), "lower > upper at coordinate 0"),
        (lambda: Box(2, lower=[0.0, 2.0], upper=[1.0, 1.0]), "lower > upper at coordinate 1"),
        (lambda: Box(2, lower=[0.0, 0.0, 0.0]), "lower: expected a number or 2 numbers"),
        (lambda: Box(2, upper=float("inf")), "upper: expected finite"),
        (lambda: Box(2, lower=[0.0, float("nan")]), "lower: expected finite"),
        (lambda: Budget(3, total=3.1), "total: expected a number between.*cannot be met"),
        (lambda: Budget(3, total=-0.1), "total: expected a number between.*cannot be met"),
        (lambda: Budget(3, total=float("nan")), "total: expected a number between"),
        (lambda: Budget(3, total=float("inf")), "total: expected a number between"),
        (lambda: Budget(3, total=1.0, upper=[1.0, 1.0]), "upper: expected a number or 3 numbers"),
        (lambda: Budget(3, total=1.0, lower=2.0, upper=1.0), "lower > upper"),
    ],
)
def test_impossible_sets_are_refused_at_construction(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_descriptions_of_every_kind_are_the_same_set() -> None:
    kinds = (list, tuple, np.array, lambda v: torch.tensor(v, dtype=DOUBLE))
    boxes = {Box(2, lower=kind([0.0, 0.1]), upper=kind([1.0, 2.0])) for kind in kinds}
    assert len(boxes) == 1
    kinds = (int, float, np.float32, np.array, torch.tensor)
    assert {Simplex(2, total=kind(1)) for kind in kinds} == {Simplex(2)}
    assert {Budget(2, total=kind(1)) for kind in kinds} == {Budget(2, total=1.0)}
    assert Box(2) != Box(3)
    assert Box(2) != Budget(2, total=1.0)
    assert Budget(2, total=1.0) != Budget(2, total=1.5)


def test_bounds_given_as_an_array_are_copied() -> None:
    upper = np.array([1.0, 2.0])
    box = Box(2, upper=upper)
    upper[0] = 9.0
    assert box.rows().upper.tolist() == [1.0, 2.0]


# -- uniform samples -----------------------------------------------------------------------------------

# A test at level 1e-3 with fixed seeds: it fails for a wrong distribution, never by chance.
LEVEL = 1e-3
COUNT = 4000


def by_rejection(budget: Budget, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw n - 1 coordinates uniformly in their box, keep those whose rest fits the last one's bounds."""
    rows = budget.rows()
    lo, hi = rows.lower, rows.upper
    kept = torch.empty(0, budget.dim, dtype=DOUBLE)
    while len(kept) < count:
        head = lo[:-1] + (hi - lo)[:-1] * torch.rand(20 * count, budget.dim - 1, generator=generator, dtype=DOUBLE)
        last = budget.total - head.sum(dim=-1, keepdim=True)
        drawn = torch.cat([head, last], dim=-1)
        kept = torch.cat([kept, drawn[((last >= lo[-1]) & (last <= hi[-1])).squeeze(-1)]])
    return kept[:count]


def test_simplex_samples_are_uniform(generator: torch.Generator) -> None:
    """Dirichlet(1): each coordinate is Beta(1, n - 1), and the covariance is (n I - 1 1') / (n^2 (n + 1))."""
    n = 4
    x = Simplex(n, total=2.0).sample(COUNT, generator) / 2.0
    assert all(kstest(x[:, i].numpy(), "beta", args=(1, n - 1)).pvalue > LEVEL for i in range(n))
    expected = (n * torch.eye(n, dtype=DOUBLE) - 1.0) / (n**2 * (n + 1))
    # The standard error of a covariance entry is below var / sqrt(COUNT) = 0.0006; four of them.
    torch.testing.assert_close(torch.cov(x.T), expected, rtol=0, atol=0.0024)


@pytest.mark.parametrize(
    "budget",
    [
        Budget(3, total=0.9),  # nearly a simplex
        Budget(3, total=2.4),  # nearly a mirrored simplex
        Budget(4, total=1.0, lower=[-1.0, 0.0, 0.1, 0.0], upper=[0.5, 2.0, 0.4, 1.0]),
        Budget(12, total=6.0),
        Budget(80, total=36.0),  # no simplex accepts enough: hit and run
        Budget(7, total=3.5, upper=[1.0, 0.2, 1.0, 3.0, 0.5, 1.0, 1.0]),
    ],
    ids=lambda b: f"{b.dim}-{b.total}",
)
def test_budget_samples_are_uniform(budget: Budget, generator: torch.Generator) -> None:
    x = budget.sample(COUNT, generator)
    reference = by_rejection(budget, COUNT, generator)
    for i in range(budget.dim):
        assert ks_2samp(x[:, i].numpy(), reference[:, i].numpy()).pvalue > LEVEL
    pair = (x[:, 0] - x[:, 1]).numpy(), (reference[:, 0] - reference[:, 1]).numpy()
    assert ks_2samp(*pair).pvalue > LEVEL


def test_box_samples_are_uniform(generator: torch.Generator) -> None:
    x = Box(2, lower=[-1.0, 2.0], upper=[1.0, 2.5]).sample(COUNT, generator)
    assert kstest(x[:, 0].numpy(), "uniform", args=(-1.0, 2.0)).pvalue > LEVEL
    assert kstest(x[:, 1].numpy(), "uniform", args=(2.0, 0.5)).pvalue > LEVEL
