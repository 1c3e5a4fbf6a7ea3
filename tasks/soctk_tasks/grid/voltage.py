"""Reactive power of inverters on a feeder of 33 buses (`case33bw`, Baran and Wu 1989): losses, and voltages in a band.

n inverters inject x MVAr, |x_i| <= .44 of the rating, whatever the sun does (IEEE 1547-2018, category B). With the
voltages V of the AC power flow,

    f(x; theta) = losses in kW + PENALTY sum_j max(0, LOW^2 - |V_j|^2)^2 + max(0, |V_j|^2 - HIGH^2)^2.

theta: for each of four parts of the feeder the loads' share of the published ones, then the sun's share of full output.
The optimum is that of the branch-flow cone relaxation, which bounds it from below; the gap says whether it is exact.
Convexity in x is not proved: no segment was found that contradicts it.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from soctk import Box, ConicForm, ConvexSurrogate, Decision
from soctk.checks import ArrayLike, as_tensor, check_count, check_last_dim
from soctk.lazy import cvxpy as cp
from soctk.lazy import optimize
from soctk_tasks.grid.branch_flow import BranchFlow, relaxed
from soctk_tasks.grid.case import Case, load_case
from soctk_tasks.grid.certified import decision_of
from soctk_tasks.grid.feeder import Feeder, feeder_of
from soctk_tasks.task import Task

NAME, CASE = "voltage", "case33bw"
LOW, HIGH = 0.95, 1.05
PENALTY = 1e4
"""kW for a squared voltage that is 1 outside of its band, squared: 4 kW for a bus that is .01 outside."""
PARTS = (range(2, 19), range(19, 23), range(23, 26), range(26, 34))
"""The numbers of the buses of the trunk and of its three laterals."""
RATED = 4.8
"""MVA of all inverters together; the loads are 3.7 MW and 2.3 MVAr."""
REACTIVE_SHARE = 0.44
TOLERANCE = 1e-6
UNIT = 100.0
"""kW: what the cone program counts in."""
BOUND_ERROR = 1e-7
"""By how much, relative to it, a bound is lowered for what the cone program's solver leaves: ten times as much."""
AT_ONCE = 2**20
"""Voltages that are computed at once: a few dozen megabytes for each array."""


@dataclass(frozen=True, eq=False)
class Inverters:
    """The feeder with inverters on it: powers and voltages by decision and context.

    Attributes:
        case: the grid.
        buses: (n,), of the inverters, counted from 0 without the slack bus.
        rating: (n,), in MVA.
    """

    case: Case
    buses: np.ndarray
    rating: np.ndarray

    @cached_property
    def feeder(self) -> Feeder:
        """The feeder."""
        return feeder_of(self.case)

    @cached_property
    def place(self) -> Tensor:
        """(B - 1, n): which bus an inverter is at."""
        return torch.eye(self.case.buses - 1, dtype=torch.float64)[:, self.buses]

    @cached_property
    def limit(self) -> np.ndarray:
        """(n,), of |x|, in MVAr."""
        return REACTIVE_SHARE * self.rating

    @cached_property
    def _of_context(self) -> Tensor:
        """The complex powers injected at the buses for each number of the context, (p, B - 1)."""
        part = [next(k for k, buses in enumerate(PARTS) if number in buses) for number in self.case.number[1:]]
        loads = np.zeros((len(PARTS), len(part)), complex)
        sun = np.zeros_like(loads)
        loads[part, range(len(part))] = -self.case.load[1:] * self.case.base
        for bus, rating in zip(self.buses, self.rating, strict=True):
            sun[part[bus], bus] += rating
        return torch.from_numpy(np.concatenate([loads, sun]))

    def powers(self, context: Tensor) -> Tensor:
        """Return the complex powers injected at the buses without reactive power of inverters, (*batch, B - 1)."""
        return context.to(torch.complex128) @ self._of_context

    def cost(self, x: Tensor, context: Tensor) -> Tensor:
        """Return f in kW, x (*batch, n), context (*batch, p) -> (*batch)."""
        q = x @ self.place.mT
        injected = self.powers(context) + torch.complex(torch.zeros_like(q), q)
        V = self.feeder.voltages(injected)
        w = V.real.square() + V.imag.square()
        outside = (LOW**2 - w).clamp(min=0).square() + (w - HIGH**2).clamp(min=0).square()
        return 1e3 * self.feeder.losses(injected, V) + PENALTY * outside.sum(dim=-1)

    @cached_property
    def relaxation(self) -> BranchFlow:
        """The cone program whose optimal value, in `UNIT`, bounds the least cost from below."""
        return BranchFlow(self.feeder, relaxed_cost, self.place.numpy(), self.limit)


def relaxed_cost(losses: cp.Expression, w: cp.Expression) -> cp.Expression:
    """Return f in `UNIT` by the losses in MW and the squared voltages."""
    outside = cp.sum_squares(cp.pos(LOW**2 - w)) + cp.sum_squares(cp.pos(w - HIGH**2))
    return (1e3 / UNIT) * losses + (PENALTY / UNIT) * outside


class PowerFlowCost(ConvexSurrogate):
    """The cost by the AC power flow; its CVXPY expression is that of the relaxation, equal where that is exact."""

    decision_method = "cvxpy"

    def __init__(self, inverters: Inverters) -> None:
        super().__init__(len(inverters.buses), 2 * len(PARTS))
        self.inverters = inverters

    def _value(self, x: Tensor, context: Tensor) -> Tensor:
        rows = max(1, AT_ONCE // (x.shape[1] * (self.inverters.case.buses - 1)))
        x = x.expand(context.shape[0], -1, -1)
        parts = zip(x.split(rows), context.unsqueeze(1).split(rows), strict=True)
        return torch.cat([self.inverters.cost(points, theta) for points, theta in parts])

    def _expression(self, x: cp.Expression, context: Tensor) -> cp.Expression:
        s = self.inverters.powers(context[0]).numpy()
        constraints, losses, w = relaxed(self.inverters.feeder, s.real, s.imag + self.inverters.place.numpy() @ x)
        program = cp.Problem(cp.Minimize(UNIT * relaxed_cost(losses, w)), constraints)
        given = {variable.id for variable in x.variables()}
        own = [variable for variable in program.variables() if variable.id not in given]
        return cp.transforms.partial_optimize.partial_optimize(program, opt_vars=own, solver="CLARABEL")


@dataclass(frozen=True, eq=False)
class Voltage(Task):
    """The task; `form` does not exist.

    Attributes:
        inverters: where they are, and how large.
    """

    inverters: Inverters

    def surrogate(self) -> PowerFlowCost:
        """Return the true cost as a surrogate without weights."""
        return PowerFlowCost(self.inverters)

    def contexts(self, instances: int, seed: int) -> Tensor:
        """Return contexts (instances, 8): loads of .4 to 1.1 times .8 to 1.2 for each part, sun of 0 to 1."""
        check_count(instances, "instances")
        rng = np.random.default_rng([zlib.crc32(NAME.encode()), seed])
        loads = rng.uniform(0.4, 1.1, (instances, 1)) * rng.uniform(0.8, 1.2, (instances, len(PARTS)))
        return torch.from_numpy(np.hstack([loads, rng.uniform(0, 1, loads.shape)]))

    def solve(self, context: ArrayLike, tol: float = TOLERANCE) -> Decision:
        """Return optima with bounds by the relaxation, for contexts (*batch, p); "inaccurate" where it is not exact."""
        started = time.perf_counter()
        contexts = as_tensor(context, "context").double()
        check_last_dim(contexts, self.context_dim, "context")
        rows = contexts.reshape(-1, self.context_dim)
        program, limit = self.inverters.relaxation, torch.from_numpy(self.inverters.limit)
        found = [program.solve(s.real, s.imag) for s in self.inverters.powers(rows).numpy()]
        x = torch.stack([torch.from_numpy(point) for point, _ in found]).clamp(-limit, limit)
        return decision_of(
            x,
            self.objective(x, rows),
            UNIT * torch.tensor([value for _, value in found], dtype=torch.float64),
            self.feasible_set.violation(x),
            error=BOUND_ERROR,
            tol=tol,
            batch=tuple(contexts.shape[:-1]),
            started=started,
        )

    def descend(self, context: ArrayLike, start: ArrayLike | None = None) -> tuple[Tensor, float]:
        """Return a local minimiser of the power flow's cost at one context (p,), by L-BFGS-B, and its value.

        Args:
            context: one.
            start: (n,); no reactive power by default.
        """
        theta, cost = as_tensor(context, "context").double(), self.inverters.cost
        first = np.zeros(self.dim) if start is None else as_tensor(start, "start").double().numpy()

        def value_and_slope(point: np.ndarray) -> tuple[float, np.ndarray]:
            x = torch.from_numpy(point).requires_grad_()
            value = cost(x, theta)
            (slope,) = torch.autograd.grad(value, x)
            return float(value.detach()), slope.numpy()

        limit = self.inverters.limit
        options = {"ftol": 1e-12, "gtol": 1e-6, "maxiter": 500}
        end = optimize.minimize(
            value_and_slope, first, jac=True, method="L-BFGS-B", bounds=optimize.Bounds(-limit, limit), options=options
        )
        return torch.from_numpy(end.x), float(end.fun)


def make(dim: int, seed: int) -> Voltage:
    """Return the task with `dim` inverters, at most one a bus, where and how large they are by the seed.

    Raises:
        ValueError: more inverters than buses.
        GridDataNotFoundError: the extra `grid` is not installed.
    """
    case = load_case(CASE)
    if dim > case.buses - 1:
        raise ValueError(f"dim: expected at most {case.buses - 1} inverters, one a bus, got {dim}")
    rng = np.random.default_rng([zlib.crc32(NAME.encode()), dim, seed])
    buses = np.sort(rng.permutation(case.buses - 1)[:dim])
    inverters = Inverters(case, buses, RATED / dim * rng.uniform(0.7, 1.3, dim))
    feasible_set = Box(dim, tuple(-inverters.limit), tuple(inverters.limit))
    return Voltage(NAME, dim, seed, feasible_set, 2 * len(PARTS), no_form, inverters)


def no_form(context: Tensor) -> ConicForm:
    """Refuse: the objective is a power flow's."""
    raise NotImplementedError(f"{NAME}: the cost is that of an AC power flow, which has no conic form")
