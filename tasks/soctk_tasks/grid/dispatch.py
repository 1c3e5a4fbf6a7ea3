"""A network some of whose generators are decided: the cone programs of the rest and of the whole, and the AC equations.

The programs are the relaxation of `soctk_tasks.grid.network`. A mismatch at a bus costs `MISMATCH` times the dearest
generator's last unit, so that all decisions within the generators' limits have a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from soctk.lazy import cvxpy as cp
from soctk_tasks.grid.ac_flow import admittances, flows, power_flow
from soctk_tasks.grid.case import Case
from soctk_tasks.grid.network import network_of
from soctk_tasks.grid.right_hand_sides import RightHandSides

MISMATCH = 10.0
RAMP = 0.5
"""As a share of the power between a bus's bounds."""
LOST = (1.0, 1.08)
"""What generators give is between these multiples of the load: losses are a few hundredths of it."""
ROUNDING = 1e-9
"""By how much a decision may be beyond the limits of its generators."""


@dataclass(frozen=True, eq=False)
class Dispatch:
    """A network with n set-points: its cone programs.

    Attributes:
        case: the network.
        buses: (n,), whose active power is decided.
    """

    case: Case
    buses: np.ndarray

    @cached_property
    def loaded(self) -> np.ndarray:
        """(p,), the buses with a load."""
        return np.flatnonzero(self.case.load)

    @cached_property
    def decided(self) -> np.ndarray:
        """Which generators are at the decided buses, bool (G,)."""
        return np.isin(self.case.gen_bus, self.buses)

    @cached_property
    def _at(self) -> np.ndarray:
        """Which generator is at which decided bus, (n, G)."""
        return (self.buses[:, None] == self.case.gen_bus[None]).astype(float)

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest x: the generators' limits, within a ramp of the published day's optimum."""
        least, most = self._at @ self.case.p_min, self._at @ self.case.p_max
        program = self._whole(least, most)
        published = self.parameters(torch.ones(len(self.loaded), dtype=torch.float64)).numpy()
        best = program.part(program.solve(np.r_[published, 0.0, most.sum()]), "x")
        step = RAMP * (most - least)
        return np.maximum(least, best - step), np.minimum(most, best + step)

    @cached_property
    def unit(self) -> float:
        """$/h: what the programs count in."""
        return float(self.case.load.sum().real * self._dearest)

    @property
    def _dearest(self) -> float:
        """$/h: the price of the last unit of the dearest generator."""
        return float((2 * self.case.cost[:, 0] * self.case.p_max + self.case.cost[:, 1]).max())

    @cached_property
    def rest(self) -> RightHandSides:
        """The program of the rest of the network; its parameters are the loads, and x."""
        theta = cp.Parameter(2 * self.case.buses + len(self.buses))
        return RightHandSides(self.problem(theta[2 * self.case.buses :], theta), theta)

    @cached_property
    def whole(self) -> RightHandSides:
        """The program of the whole network, x among its variables; its parameters are the loads and `totals`."""
        return self._whole(*self.bounds)

    def _whole(self, least: np.ndarray, most: np.ndarray) -> RightHandSides:
        x, theta = cp.Variable(len(self.buses), name="x"), cp.Parameter(2 * self.case.buses + 2)
        rows = [x >= least, x <= most, cp.sum(x) >= theta[-2], cp.sum(x) <= theta[-1]]
        return RightHandSides(self.problem(x, theta, rows), theta)

    def problem(self, x: cp.Expression, loads: cp.Expression, rows: list[cp.Constraint] | None = None) -> cp.Problem:
        """Return the least cost in `unit`, the costs of standing still aside.

        Args:
            x: (n,).
            loads: at all buses, active then reactive; what follows them is not used.
            rows: further constraints.
        """
        case, count = self.case, self.case.buses
        network, gap = network_of(case), cp.Variable((4, count), nonneg=True, name="gap")
        curved, linear = case.cost[:, 0] / self.unit, case.cost[:, 1] / self.unit
        cost = cp.sum_squares(cp.multiply(np.sqrt(curved), network.p)) + linear @ network.p
        balances = [
            self._at @ network.p == x,
            network.drawn_p == gap[0] - gap[1] - loads[:count],
            network.drawn_q == gap[2] - gap[3] - loads[count : 2 * count],
        ]
        cost += MISMATCH * self._dearest / self.unit * cp.sum(gap)
        return cp.Problem(cp.Minimize(cost), [*network.constraints, *balances, *(rows or [])])

    @property
    def standing(self) -> float:
        """$/h: what generators cost at no power."""
        return float(self.case.cost[:, 2].sum())

    def parameters(self, context: Tensor) -> Tensor:
        """Return the loads at all buses, active then reactive, (*batch, p) -> (*batch, 2 B)."""
        count, load = self.case.buses, torch.from_numpy(self.case.load[self.loaded])
        found = torch.zeros(*context.shape[:-1], 2 * count, dtype=torch.float64)
        found[..., self.loaded], found[..., count + self.loaded] = context * load.real, context * load.imag
        return found

    def totals(self, context: Tensor) -> Tensor:
        """Return the least and the largest sum of x with which the others meet the load, (*batch, p) -> (*batch, 2)."""
        load = self.parameters(context)[..., : self.case.buses].sum(dim=-1)
        others = ~self.decided
        least, most = (float(limit[others].sum()) for limit in (self.case.p_min, self.case.p_max))
        return torch.stack([LOST[1] * load - most, LOST[0] * load - least], dim=-1)

    def cost(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return f in $/h and its slope in x, x (N, M, n), context (N, p) -> (N, M) and (N, M, n).

        Raises:
            ValueError: a power beyond the limits of its generators.
        """
        least, most = (torch.from_numpy(self._at @ limit) for limit in (self.case.p_min, self.case.p_max))
        beyond = float(torch.maximum(least - x, x - most).max()) if x.numel() else 0.0
        if beyond > ROUNDING:
            raise ValueError(f"x: expected powers between the limits of their generators, one is {beyond:.3g} beyond")
        value, slope = torch.empty(x.shape[:2], dtype=torch.float64), torch.empty_like(x)
        for k, loads in enumerate(self.parameters(context).numpy()):
            for m, point in enumerate(x[k].numpy()):
                found = self.rest.solve(np.r_[loads, point])
                value[k, m] = found.value
                slope[k, m] = torch.from_numpy(found.slope[-len(point) :])
        return self.unit * value + self.standing, self.unit * slope


@dataclass(frozen=True, eq=False)
class AcDispatch:
    """What the AC equations make of a decision and of what the relaxation chooses beside it.

    Attributes:
        cost: $/h, the slack bus's generators giving what is missing.
        voltage, reactive, flow: by how much voltages, reactive powers at buses and branches are beyond their limits at
            most, in per unit.
    """

    cost: float
    voltage: float
    reactive: float
    flow: float


def ac_dispatch(dispatch: Dispatch, x: np.ndarray, context: np.ndarray) -> AcDispatch:
    """Return the AC power flow at the powers and the generators' voltages that the relaxation chooses beside x.

    Args:
        dispatch: the network.
        x: (n,).
        context: (p,).

    Raises:
        PowerFlowError: the equations have no solution near.
    """
    case, rest = dispatch.case, dispatch.rest
    loads = dispatch.parameters(torch.from_numpy(context)).numpy()
    found = rest.solve(np.r_[loads, x])
    p, w = rest.part(found, "p").copy(), rest.part(found, "w")
    load = loads[: case.buses] + 1j * loads[case.buses :]
    held = np.bincount(case.gen_bus, minlength=case.buses) > 0
    given = np.bincount(case.gen_bus, p, case.buses)
    V = power_flow(case, given - load, np.sqrt(w), held)
    supplied = V * np.conj(admittances(case) @ V) + load
    at_slack = case.gen_bus == case.slack
    p[at_slack] += (supplied[case.slack].real - given[case.slack]) / at_slack.sum()
    low, high = (np.bincount(case.gen_bus, limit, case.buses) for limit in (case.q_min, case.q_max))
    q, size = supplied.imag[held], np.abs(V)
    return AcDispatch(
        cost=float((case.cost * np.column_stack([p**2, p, np.ones(len(p))])).sum()),
        voltage=_beyond(size, case.v_min, case.v_max),
        reactive=_beyond(q, low[held], high[held]),
        flow=max(_beyond(np.abs(power), 0.0, case.limit) for power in flows(case, V)),
    )


def _beyond(number: np.ndarray, low: np.ndarray | float, high: np.ndarray) -> float:
    return float(np.maximum(low - number, number - high).max(initial=0.0))


def choose_buses(case: Case, count: int) -> np.ndarray:
    """Return the `count` buses with the most power between their generators' bounds, the slack bus aside.

    Raises:
        ValueError: there are not so many.
    """
    room = np.zeros(case.buses)
    np.add.at(room, case.gen_bus, case.p_max - case.p_min)
    room[case.slack] = 0.0
    known = int((room > 0).sum())
    if count > known:
        raise ValueError(f"dim: expected at most {known}, the buses of {case.name} with power to set, got {count}")
    return np.sort(np.argsort(-room, kind="stable")[:count])
