"""Trajectory smoothing against the paper's energy written out in loops, and against Clarabel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tolerances import DOUBLE, VALUE, close
from torch import Tensor

from soctk import Box, minimize
from soctk_tasks import choose_width, make_smoothing
from soctk_tasks.smoothing import Smoothing

STEPS, CHANNELS = 6, 2


@pytest.fixture(scope="module")
def task() -> Smoothing:
    return make_smoothing(STEPS, CHANNELS)


def papers_energy(u: np.ndarray, r: np.ndarray) -> float:
    """Return the energy of one trajectory (T, p), step by step, with the constants of the paper."""
    steps = len(u)
    total = sum(0.5 * np.sum((u[t] - r[t]) ** 2) / steps for t in range(steps))
    total += sum(0.5 * 0.20 * np.sum((u[t + 1] - 2 * u[t] + u[t - 1]) ** 2) / (steps - 2) for t in range(1, steps - 1))
    total += sum(0.18 * math.sqrt(np.sum((u[t] - u[t - 1]) ** 2) + 1e-5) / (steps - 1) for t in range(1, steps))
    return float(total + sum(0.5 * 0.02 * np.sum(u[t] ** 2) / steps for t in range(steps)))


def test_the_papers_sizes_and_set() -> None:
    task = make_smoothing()
    assert (task.steps, task.channels, task.sizes, task.count) == (40, 4, (1200, 200, 200), 14)
    assert task.feasible_set == Box(160, -1.0, 1.0)
    assert task.dim == task.context_dim == 160


@pytest.mark.parametrize(("steps", "channels"), [(6, 2), (3, 1), (40, 4)])
def test_the_energy_is_the_papers(steps: int, channels: int) -> None:
    task = make_smoothing(steps, channels)
    data = task.sample(2, 14, seed=1)
    for i in range(2):
        for j in range(14):
            u, r = (part.reshape(steps, channels).numpy() for part in (data.x[i, j], data.context[i]))
            assert float(data.value[i, j]) == pytest.approx(papers_energy(u, r), rel=1e-12)
    close(task.objective(data.x[:, 3], data.context), data.value[:, 3], VALUE)


def test_the_library_decides_it_by_every_certified_method(task: Smoothing) -> None:
    context = task.contexts(4, seed=3)
    best = task.solve(context, tol=1e-8)
    for method in ("newton", "newton_cg", "first_order", "cvxpy"):
        found = minimize(task.surrogate(), task.feasible_set, context, method=method, tol=1e-5, scale=task.spread)
        close(found.value, best.value, {DOUBLE: 1e-5})
        assert bool((found.lower_bound <= best.value).all())


def test_samples_have_the_published_shapes_and_kinds(task: Smoothing) -> None:
    data = task.sample(7, 14, seed=1)
    assert (data.context.shape, data.x.shape, data.value.shape) == ((7, 12), (7, 14, 12), (7, 14))
    assert float(data.context.abs().max()) <= 1.0
    assert torch.equal(data.x[:, 0], data.context)
    assert bool((data.x[:, 2] == 0).all())
    assert task.sample(2, 1, seed=0).x.shape == (2, 1, 12)


def test_references_are_drawn_as_described() -> None:
    """Sines of amplitude U[.25, .70] and cosines of U[.10, .35] have variances .120 and .028 over whole periods."""
    whole = make_smoothing().contexts(500, seed=0)
    noise = 0.04**2 / (1 - 0.85**2)
    assert 0.9 <= float(whole.var()) / (0.120 + 0.028 + noise) <= 1.25  # jumps add some
    assert float((whole.abs() == 1.0).double().mean()) < 0.05


def test_splits_have_the_asked_sizes_and_share_no_instance(task: Smoothing) -> None:
    splits = task.splits(seed=4, sizes=(5, 3, 2), candidates=4)
    parts = (splits.train, splits.validation, splits.test)
    assert [part.data.instances for part in parts] == [5, 3, 2]
    assert all(torch.equal(part.clean, part.data.context) for part in parts)
    contexts = torch.cat([part.data.context for part in parts])
    assert len({tuple(row) for row in contexts.tolist()}) == 10


def test_trivial_decisions(task: Smoothing) -> None:
    context = task.contexts(6, seed=5)
    assert torch.equal(task.reference(context), context)
    assert bool((task.zero(context) == 0).all())
    assert torch.equal(task.moving_average(context, 1), context)
    paths = context.reshape(6, STEPS, CHANNELS)
    for step in range(STEPS):
        window = paths[:, max(0, step - 1) : step + 2].mean(dim=1)
        close(task.moving_average(context, 3).reshape(6, STEPS, CHANNELS)[:, step], window, VALUE)
    width = choose_width(task, context, task.moving_average)
    means = {w: float(task.objective(task.moving_average(context, w), context).mean()) for w in (1, 3, 5, 7, 9, 11)}
    assert means[width] == min(means.values())


def test_decision_errors_are_root_mean_squares(task: Smoothing) -> None:
    x = torch.zeros(2, task.dim, dtype=DOUBLE)
    best: Tensor = x.clone()
    best[1] = 0.5
    assert task.decision_error(x, best).tolist() == [0.0, 0.5]


def test_the_trivial_rows_are_those_measured_before() -> None:
    """Regret .0105 and error .0588 of the reference, three standard errors of 200 trajectories wide."""
    task = make_smoothing()
    context = task.contexts(200, seed=0)
    best = task.solve(context, tol=1e-4)
    regret = (task.objective(context, context) - best.value).mean()
    assert float(regret) == pytest.approx(0.0105, abs=6e-4)
    assert float(task.decision_error(context, best.x).mean()) == pytest.approx(0.0588, abs=2e-3)


def test_bad_arguments_are_refused(task: Smoothing) -> None:
    with pytest.raises(ValueError, match="steps"):
        make_smoothing(2)
    with pytest.raises(ValueError, match="channels"):
        make_smoothing(5, 0)
    with pytest.raises(ValueError, match="candidates"):
        task.sample(2, 0, seed=0)
    with pytest.raises(ValueError, match="context: expected last dimension 12"):
        task.solve(torch.zeros(2, 11))
