"""What image restoration and trajectory smoothing have in common: the energy's theory, Clarabel, and the samples."""

from __future__ import annotations

import math

import cvxpy as cp
import pytest
import torch
from tolerances import CLARABEL, DOUBLE, GRADIENT, close

from soctk import ValueData
from soctk_tasks import load_faces, make_restoration, make_smoothing
from soctk_tasks.structured import StructuredTask

WITHIN = {"restoration": CLARABEL * 1e-2, "smoothing": CLARABEL}
"""What Clarabel's optimal values may differ by: energies of images are smaller."""
STRONG = {"smoothing": 1.02 / 12}
"""Energies of which gap >= STRONG ||x - x*||^2: smoothing's is at least (rho + gamma) / (2 T) strongly convex."""


@pytest.fixture(scope="module", params=["restoration", "smoothing"])
def task(request: pytest.FixtureRequest) -> StructuredTask:
    if request.param == "smoothing":
        return make_smoothing(6, 2)
    return make_restoration(8, faces=load_faces(source="stand-in"))


def test_the_gradient_is_autograds(task: StructuredTask) -> None:
    data = task.sample(3, 5, seed=0)
    x = data.x[:, 4].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(task.objective(x, data.context).sum(), x)
    close(task.surrogate().conic_form(data.context).gradient(data.x[:, 4]), gradient, GRADIENT)


def test_the_energy_is_convex(task: StructuredTask) -> None:
    x, y = 2 * torch.randn(2, 100, task.dim, dtype=DOUBLE)
    context = task.contexts(1, seed=0)[0]
    share = torch.rand(100, dtype=DOUBLE)
    mixed = task.objective(share[:, None] * x + (1 - share[:, None]) * y, context)
    chord = share * task.objective(x, context) + (1 - share) * task.objective(y, context)
    assert float((chord - mixed).min()) >= -1e-12 * float(chord.abs().max())
    assert task.to_cvxpy(cp.Variable(task.dim), context).is_dcp()


def test_solve_is_certified_and_equal_to_clarabel(task: StructuredTask) -> None:
    context = task.contexts(5, seed=2)
    decision = task.solve(context)
    assert (decision.status == "optimal").all()
    assert float(decision.gap.max()) <= 1e-6 * task.spread
    for row in range(3):
        x = cp.Variable(task.dim)
        problem = cp.Problem(cp.Minimize(task.to_cvxpy(x, context[row])), task.feasible_set.constraints(x))
        problem.solve(solver="CLARABEL")
        assert float(decision.value[row]) == pytest.approx(problem.value, abs=WITHIN[task.name])
        if task.name in STRONG:
            apart = float((decision.x[row] - torch.from_numpy(x.value)).norm())
            assert apart <= math.sqrt(CLARABEL / STRONG[task.name])


def test_samples_are_feasible_and_reproducible(task: StructuredTask) -> None:
    data, same, other = (task.sample(7, 14, seed=seed) for seed in (1, 1, 2))
    assert isinstance(data, ValueData)
    assert float(task.feasible_set.violation(data.x).max()) == 0.0
    for name in ("context", "x", "value"):
        assert torch.equal(getattr(data, name), getattr(same, name))
        assert not torch.equal(getattr(data, name), getattr(other, name))
    assert torch.equal(data.context, task.contexts(7, seed=1))
