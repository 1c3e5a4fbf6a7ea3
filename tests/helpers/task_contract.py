"""What every task promises. A task's test class supplies CASES: name -> maker of a task; and what its optima reach."""

from __future__ import annotations

from typing import ClassVar

import cvxpy as cp
import pytest
import torch
from reference import clarabel_optimum
from tolerances import DOUBLE, INEQUALITY, VALUE, close, size
from torch import Tensor

from soctk import FeasibleSet, ValueData
from soctk.sets import SetAt
from soctk_tasks import Task


def set_of(task: Task, context: Tensor) -> FeasibleSet:
    """Return the set that decisions live in at one context (p,)."""
    found = task.sets(context)
    return found.one(0) if isinstance(found, SetAt) else found


class TaskContract:
    GAP: ClassVar[float] = 1e-8
    """The relative gap of `solve`."""
    REFERENCE: ClassVar[float] = 2e-8
    """How far its values may be from Clarabel's."""

    def pairs(self, task: Task, count: int) -> Tensor:
        """Return points between which the objective is to be convex, (2, count, n)."""
        return 3 * torch.randn(2, count, task.dim, dtype=DOUBLE)

    def test_the_objective_is_convex(self, case) -> None:
        task = case()
        x, y = self.pairs(task, 100)
        theta = task.contexts(1, seed=0)[0]
        share = torch.rand(100, dtype=DOUBLE)
        mixed = task.objective(share[:, None] * x + (1 - share[:, None]) * y, theta)
        chord = share * task.objective(x, theta) + (1 - share) * task.objective(y, theta)
        assert float((chord - mixed).min()) >= -INEQUALITY[DOUBLE] * size(chord)
        assert task.to_cvxpy(cp.Variable(task.dim), theta).is_convex()

    def test_solve_is_certified_and_equal_to_clarabel(self, case) -> None:
        task = case()
        theta = task.contexts(20, seed=5)
        decision = task.solve(theta)
        assert (decision.status == "optimal").all()
        assert float(decision.relative_gap.max()) <= self.GAP
        assert float(task.sets(theta).violation(decision.x).max()) <= 1e-12 * task.dim
        close(task.objective(decision.x, theta), decision.value, VALUE)
        for row in range(2):
            optimum = clarabel_optimum(task.surrogate(), set_of(task, theta[row]), theta[row])
            assert optimum == pytest.approx(float(decision.value[row]), rel=self.REFERENCE, abs=self.REFERENCE)

    def test_the_optimum_beats_every_candidate(self, case) -> None:
        task = case()
        data = task.sample(10, 50, seed=2)
        decision = task.solve(data.context)
        scale = decision.value.abs().clamp(min=1.0)
        nearest = torch.stack([set_of(task, theta).project(x) for theta, x in zip(data.context, data.x, strict=True)])
        value = task.surrogate().evaluate(nearest, data.context).amin(dim=1)
        assert bool((value >= decision.lower_bound).all())
        assert bool((value >= decision.value - self.GAP * scale).all())

    def test_samples_are_feasible_reproducible_and_right(self, case) -> None:
        task = case()
        n, p = task.dim, task.context_dim
        data = task.sample(7, 5, seed=1)
        assert isinstance(data, ValueData)
        assert (data.context.shape, data.x.shape, data.value.shape) == ((7, p), (7, 5, n), (7, 5))
        assert float(task.feasible_set.violation(data.x).max()) <= 1e-12
        close(task.objective(data.x[:, 0], data.context), data.value[:, 0], VALUE)
        same, other = task.sample(7, 5, seed=1), task.sample(7, 5, seed=2)
        for name in ("context", "x", "value"):
            assert torch.equal(getattr(data, name), getattr(same, name))
            assert not torch.equal(getattr(data, name), getattr(other, name))
        assert torch.equal(data.context, task.contexts(7, seed=1))
        assert len({tuple(point) for point in data.x.reshape(-1, n).tolist()}) == 35  # no candidate twice

    def test_a_task_is_made_the_same_again(self, case) -> None:
        first, same = case().sample(3, 3, seed=0), case().sample(3, 3, seed=0)
        assert torch.equal(first.value, same.value)

    def test_bad_arguments_are_refused(self, case) -> None:
        task = case()
        with pytest.raises(ValueError, match="instances"):
            task.sample(0, 5, seed=0)
        with pytest.raises(ValueError, match="candidates"):
            task.sample(5, 0, seed=0)
        with pytest.raises(ValueError, match=f"context: expected last dimension {task.context_dim}"):
            task.objective(torch.zeros(task.dim), torch.zeros(task.context_dim + 1))
