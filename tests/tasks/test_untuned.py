"""The tasks that no recipe was chosen by: the contract, the laws of their contexts, and the sets that move."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import pytest
import torch
from task_contract import TaskContract, set_of
from tolerances import DOUBLE

from soctk_tasks import UNTUNED, make_task, task_names


class TestUntuned(TaskContract):
    CASES: ClassVar = {
        **{name: partial(make_task, name, 7) for name in UNTUNED},
        "moving_dispatch, two": partial(make_task, "moving_dispatch", 2, 4),
    }


def test_they_have_names() -> None:
    assert set(UNTUNED) < set(task_names())


def test_curvature_is_dense_and_anisotropic() -> None:
    spring = make_task("box_dense", 8).form(torch.zeros(1, 6, dtype=DOUBLE)).terms[0]
    rows = spring.map.matrix[0] * spring.weights[0, 0].sqrt()[:, None]
    Q = rows.mT @ rows
    eigenvalues = torch.linalg.eigvalsh(Q)
    assert float(eigenvalues[-1] / eigenvalues[0]) == pytest.approx(1e3, rel=1e-6)
    assert float((Q - torch.diag(Q.diagonal())).norm()) > 0.5 * float(Q.diagonal().norm())


def test_contexts_are_heavy_tailed_or_categories() -> None:
    theta = make_task("box_dense", 3).contexts(4000, seed=0)
    assert float((theta.abs() > 5).double().mean()) > 0.01  # of normal ones 6e-7; of Student's t with 3 freedoms .015
    theta = make_task("budget_categorical", 3).contexts(4000, seed=0)
    assert torch.equal(theta[:, :4].sum(dim=1), torch.ones(4000, dtype=DOUBLE))
    assert 0.04 < float(theta[:, 3].mean()) < 0.06


def test_the_category_moves_every_coefficient() -> None:
    theta = torch.cat([torch.eye(4), torch.ones(4, 3)], dim=1).double()
    form = make_task("budget_categorical", 5).form(theta)
    for term in form.terms:
        assert len({tuple(row) for row in term.offset[:, 0].tolist()}) == 4
        assert len({tuple(row) for row in term.weights[:, 0].tolist()}) == 4


def test_sets_move_within_the_feasible_set_and_are_never_empty() -> None:
    task = make_task("moving_dispatch", 6)
    theta = task.contexts(40, seed=0)
    sets = task.sets(theta)
    decision = task.solve(theta)
    assert (decision.status == "optimal").all()
    assert float(sets.violation(decision.x).max()) <= 1e-11
    assert float(task.feasible_set.violation(decision.x).max()) <= 1e-11
    totals = decision.x.sum(dim=1)
    assert float(totals.max() - totals.min()) > 0.5
    assert bool((sets.violation(decision.x.roll(1, dims=0)) > 1e-3).all())  # another day's decision does not do
    assert set_of(task, theta[0]) != set_of(task, theta[1])
    with pytest.raises(ValueError, match="context: expected last dimension 4"):
        task.sets(torch.zeros(3))
