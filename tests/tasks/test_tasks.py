"""The six families against the paper's formulas rebuilt in CVXPY and NumPy, and their certified optima."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar

import cvxpy as cp
import numpy as np
import pytest
import torch
from packages import installed
from task_contract import TaskContract
from tolerances import DOUBLE
from torch import Tensor

from soctk import Box, Budget, Simplex
from soctk.plugins import PluginError
from soctk.terms import Huber, Logistic, LogSumExp, Norms, Quadratic
from soctk_tasks import TASKS, UNTUNED, Task, make_task, task_names
from soctk_tasks.registry import HOMES

KINDS = {"simplex": Simplex, "box": Box, "budget": Budget}
STRENGTH = {"socp": 1.0, "huber": 1.0, "logistic": 0.35, "logsumexp": 0.35}
STRUCTURE = {"socp": Norms, "huber": Huber, "logistic": Logistic, "logsumexp": LogSumExp}


def constants(task: Task, theta: Tensor) -> tuple[np.ndarray, list[dict[str, np.ndarray]]]:
    """Return c(theta) and A, b, weight of every block at one context, the separable quadratic first."""
    form = task.form(theta[None])
    blocks = [
        {"A": t.map.matrix[0].numpy(), "b": t.offset[0, 0].numpy(), "weight": t.weights[0, 0].numpy()}
        for t in form.terms
    ]
    assert float(form.constant) == 0.0
    return form.linear[0, 0].numpy(), blocks


def structure_of(task: Task) -> str:
    return task.name.rsplit("_", 1)[1]


def papers_objective(task: Task, theta: Tensor, x: cp.Expression) -> cp.Expression:
    """Return a/2 sum w (x - m)^2 + c'x + f_struct with CVXPY atoms only."""
    c, (base, *blocks) = constants(task, theta)
    m, w = -base["b"], base["weight"]
    total = 0.5 * cp.sum(cp.multiply(w, cp.square(x - m))) + c @ x
    for block in blocks:
        u, weight = block["A"] @ x + block["b"], block["weight"]
        match structure_of(task):
            case "socp":
                total += float(weight[0]) * cp.norm2(u)
            case "logistic":
                total += weight @ cp.logistic(u)
            case "logsumexp":
                size = len(block["b"]) // len(weight)
                total += sum(float(w) * cp.log_sum_exp(u[j * size : (j + 1) * size]) for j, w in enumerate(weight))
            case "huber":
                total += weight @ (0.5 * cp.huber(u, 0.35))
    return total


def papers_value(task: Task, theta: Tensor, x: np.ndarray) -> float:
    """Return the same in NumPy."""
    c, (base, *blocks) = constants(task, theta)
    total = 0.5 * np.sum(base["weight"] * (x + base["b"]) ** 2) + c @ x
    for block in blocks:
        u, weight = block["A"] @ x + block["b"], block["weight"]
        match structure_of(task):
            case "socp":
                total += weight[0] * np.sqrt(np.sum(u**2))
            case "logistic":
                total += np.sum(weight * np.log1p(np.exp(u)))
            case "logsumexp":
                total += np.sum(weight * np.log(np.exp(u.reshape(len(weight), -1)).sum(axis=1)))
            case "huber":
                total += np.sum(weight * np.where(np.abs(u) <= 0.35, u**2 / 2, 0.35 * (np.abs(u) - 0.175)))
    return float(total)


class TestTasks(TaskContract):
    CASES: ClassVar = {name: partial(make_task, name, 10) for name in TASKS}


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return make_task(request.param, dim=10, seed=0)


def test_the_six_families_of_the_paper() -> None:
    assert len(TASKS) == 6
    assert {name.split("_")[0] for name in TASKS} == set(KINDS)
    assert {name.rsplit("_", 1)[1] for name in TASKS} == set(STRENGTH)


def test_sets_and_dimensions(task: Task) -> None:
    assert task.context_dim == 8
    expected = {"simplex": Simplex(10), "box": Box(10), "budget": Budget(10, 3.0)}
    assert task.feasible_set == expected[task.name.split("_")[0]]


@pytest.mark.parametrize("dim", [10, 20, 50])
@pytest.mark.parametrize("name", TASKS)
def test_constants_lie_where_the_paper_draws_them(name: str, dim: int) -> None:
    task = make_task(name, dim)
    theta = torch.randn(20, 8, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    form = task.form(theta)
    base, *blocks = form.terms
    kind, structure = name.split("_")[0], structure_of(task)
    assert isinstance(base, Quadratic)
    assert torch.equal(base.map.matrix[0], torch.eye(dim, dtype=DOUBLE))
    strength = STRENGTH[structure]
    assert 0.8 * strength <= float(base.weights.min()) <= float(base.weights.max()) <= 1.6 * strength
    m = -base.offset[:, 0]
    assert float(m.min()) >= 0.0
    assert float(m.max()) <= 1.0
    if kind == "simplex":
        torch.testing.assert_close(m.sum(dim=-1), torch.ones(20, dtype=DOUBLE))
    assert float(form.linear.abs().max()) <= 2.0
    assert all(isinstance(block, STRUCTURE[structure]) for block in blocks)
    rows = [block.map.rows for block in blocks]
    sizes = {
        "socp": [max(4, dim // 4), max(3, dim // 5)] if "twocone" in name else [max(4, dim // 3)],
        "logistic": [max(6, dim // 3)],
        "logsumexp": [2 * max(4, dim // 5)],
        "huber": [max(8, dim // 2)],
    }
    assert rows == sizes[structure]
    least = 0.10 if structure == "socp" else 0.05
    assert all(float(block.weights.min()) > least for block in blocks)
    # Rows a_k have standard normal entries over sqrt(dim): mean square norm 1, within 5 standard errors.
    squares = torch.cat([block.map.matrix[0] for block in blocks]).square().sum(dim=-1)
    assert abs(float(squares.mean()) - 1.0) <= 5 * (2 / dim / len(squares)) ** 0.5


def test_the_context_moves_every_coefficient(task: Task) -> None:
    form = task.form(torch.stack([torch.zeros(8), torch.ones(8)]).double())
    tensors = [form.linear, form.terms[0].offset]
    tensors += [tensor for block in form.terms[1:] for tensor in (block.offset, block.weights)]
    assert all(bool((tensor[0] != tensor[1]).any()) for tensor in tensors)


def test_the_objective_is_the_papers(task: Task) -> None:
    theta = task.contexts(4, seed=3)
    x = task.feasible_set.sample(4, torch.Generator().manual_seed(0))
    values = task.objective(x, theta)
    variable = cp.Variable(10)
    for row in range(4):
        expected = papers_value(task, theta[row], x[row].numpy())
        assert float(values[row]) == pytest.approx(expected, rel=1e-12, abs=1e-12)
        variable.value = x[row].numpy()
        assert papers_objective(task, theta[row], variable).value == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert task.to_cvxpy(variable, theta[row]).value == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_the_papers_objective_is_disciplined_and_has_the_same_optimum(task: Task) -> None:
    theta = task.contexts(20, seed=5)
    decision = task.solve(theta)
    for row in range(2):
        x = cp.Variable(10)
        objective = papers_objective(task, theta[row], x)
        assert objective.is_dcp()
        problem = cp.Problem(cp.Minimize(objective), task.feasible_set.constraints(x))
        problem.solve(solver="CLARABEL")
        assert float(decision.value[row]) == pytest.approx(problem.value, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", [*TASKS, *UNTUNED])
def test_a_task_is_fixed_by_name_dimension_and_seed(name: str) -> None:
    first, same, other = (make_task(name, 6, seed).sample(3, 3, seed=0) for seed in (0, 0, 1))
    assert torch.equal(first.value, same.value)
    assert torch.equal(first.context, other.context)
    assert not torch.equal(first.value, other.value)


@pytest.mark.parametrize("name", TASKS)
def test_one_dimension(name: str) -> None:
    task = make_task(name, dim=1)
    data = task.sample(4, 3, seed=0)
    decision = task.solve(data.context)
    assert (decision.status == "optimal").all()
    assert bool((data.value.amin(dim=1) >= decision.lower_bound - 1e-15).all())
    fixed = {"simplex": 1.0, "budget": 0.3}.get(name.split("_")[0])
    if fixed is not None:
        torch.testing.assert_close(decision.x, torch.full((4, 1), fixed, dtype=DOUBLE), rtol=0, atol=1e-15)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"name: expected one of simplex_socp.*got 'knapsack'"):
        make_task("knapsack")
    with pytest.raises(ValueError, match="dim"):
        make_task("box_socp", dim=0)
    with pytest.raises(ValueError, match="seed"):
        make_task("box_socp", seed=-1)
    with pytest.raises(ValueError, match="feasible_set: expected dimension 3 as the task's, got 4"):
        Task("mine", 3, 0, Box(4), 2, make_task("box_socp", dim=3).form)


# -- other packages ----------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Install a package of one module with entry points in the group `soctk.tasks`: name -> function of the module."""
    with ExitStack() as stack:

        def install(module: str, code: str, **entries: str) -> None:
            own = {"soctk.tasks": {name: f"{module}:{function}" for name, function in entries.items()}}
            stack.enter_context(installed(tmp_path, module, {f"{module}.py": code}, own))

        yield install


OTHER = """
from soctk_tasks import Task, make_task

def make(dim, seed):
    task = make_task("box_socp", dim, seed)
    return Task("another", dim, seed, task.feasible_set, task.context_dim, task.form)

def nothing(dim, seed):
    return None
"""


def test_a_task_of_another_package_is_found_and_changes_none_of_ours(package: Callable[..., None]) -> None:
    before = make_task("box_socp", 4).sample(2, 2, seed=0)
    package("other_tasks", OTHER, another="make", box_socp="nothing", broken="nothing")
    assert task_names() == (*TASKS, *HOMES, "another", "broken")
    assert len(TASKS) == 6
    assert make_task("another", 4).name == "another"
    for name in ("another", "box_socp"):
        assert torch.equal(make_task(name, 4).sample(2, 2, seed=0).value, before.value)
    with pytest.raises(PluginError, match=r"of the package other-tasks.*made no soctk_tasks\.Task: NoneType"):
        make_task("broken")


@pytest.mark.parametrize(
    ("asked", "message"),
    [((3, 0), "of dim 5, asked for 3"), ((5, 1), "of seed 0, asked for 1"), ((0, 0), "TypeError: made for 5")],
)
def test_a_task_of_another_package_is_what_was_asked_for(package, asked: tuple[int, int], message: str) -> None:
    """A task of five variables had rows under "d = 3", one of one seed had three seeds."""
    code = (
        OTHER
        + """
def fixed(dim, seed):
    if dim == 1:
        raise TypeError("made for 5")
    return make(5, 0)
"""
    )
    package("fixed_tasks", code, another="fixed")
    assert make_task("another", 5, 0).dim == 5
    with pytest.raises(PluginError, match=rf"'another' of the package fixed-tasks.*{message}"):
        make_task("another", asked[0] or 1, asked[1])


def test_a_name_that_two_packages_claim_is_refused(package: Callable[..., None]) -> None:
    package("first_tasks", OTHER, another="make")
    package("second_tasks", OTHER, another="make")
    with pytest.raises(ValueError, match=r"'another' is claimed by first-tasks \(first_tasks:make\) and second-tasks"):
        make_task("another")
