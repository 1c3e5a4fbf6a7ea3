"""Set-points of generators on PGLib networks: the least cost of running the rest of the network beside them.

x is the active power at n of the buses with generators, the slack bus aside, between bounds and within a ramp of the
published day's optimum; the context is the load at every bus that has one, as a share of the published one (active and
reactive). f(x; theta) in $/h is the optimal value of a second-order cone program, the relaxation of AC optimal power
flow with x given: voltages, flows and all other generators are chosen by it (`soctk_tasks.grid.dispatch`). Those and x
have to meet the day's load, by which the sets of decisions move.

f is convex in x, as the optimal value of a convex program in its right-hand sides. How far the relaxation is from the
AC equations is published: .11 % of the cost for `case14`, .02 % for `case24`, .06 % for `case30`, .91 % for `case118`.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk import Box, ConicForm, ConvexSurrogate, Decision, Polyhedron, ValueData
from soctk.checks import ArrayLike, as_tensor, check_count, check_last_dim, seeded
from soctk.lazy import cvxpy as cp
from soctk.sets import SetAt
from soctk_tasks.grid.case import load_case
from soctk_tasks.grid.certified import decision_of
from soctk_tasks.grid.dispatch import Dispatch, choose_buses
from soctk_tasks.grid.kept import kept_values
from soctk_tasks.task import Task

CASES = {
    "opf_case14": "pglib_opf_case14_ieee",
    "opf_case24": "pglib_opf_case24_ieee_rts",
    "opf_case30": "pglib_opf_case30_as",
    "opf_case118": "pglib_opf_case118_ieee",
}
"""The tasks' names and their networks."""
COMMON, OWN = (0.8, 1.0), (0.85, 1.15)
"""Loads are the published ones times a number for all times one of each bus, uniform in these ranges."""
TOLERANCE = 1e-6
BOUND_ERROR = 4e-7
"""By how much, relative to it, a bound is lowered for what the cone program's solver leaves."""


class _Cost(torch.autograd.Function):
    """The cost, differentiable in x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, context: Tensor, dispatch: Dispatch) -> Tensor:
        value, slope = dispatch.cost(x.detach(), context.detach())
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grad.unsqueeze(-1) * slope, None, None


class RestCost(ConvexSurrogate):
    """The least cost of the rest of a network as a surrogate without weights."""

    decision_method = "cvxpy"

    def __init__(self, dispatch: Dispatch) -> None:
        super().__init__(len(dispatch.buses), len(dispatch.loaded))
        self.dispatch = dispatch

    def _value(self, x: Tensor, context: Tensor) -> Tensor:
        return _Cost.apply(x.expand(context.shape[0], -1, -1), context, self.dispatch)

    def _expression(self, x: cp.Expression, context: Tensor) -> cp.Expression:
        program = self.dispatch.problem(x, self.dispatch.parameters(context[0]).numpy())
        given = {variable.id for variable in x.variables()}
        own = [variable for variable in program.variables() if variable.id not in given]
        least = cp.transforms.partial_optimize.partial_optimize(program, opt_vars=own, solver="CLARABEL")
        return self.dispatch.unit * least + self.dispatch.standing


@dataclass(frozen=True, eq=False)
class Opf(Task):
    """The task; `form` does not exist.

    Attributes:
        dispatch: the network and its set-points.
    """

    dispatch: Dispatch

    def surrogate(self) -> RestCost:
        """Return the true cost as a surrogate without weights."""
        return RestCost(self.dispatch)

    def contexts(self, instances: int, seed: int) -> Tensor:
        """Return loads as shares of the published ones, (instances, p)."""
        check_count(instances, "instances")
        rng = np.random.default_rng([zlib.crc32(self.name.encode()), seed])
        common, own = rng.uniform(*COMMON, (instances, 1)), rng.uniform(*OWN, (instances, self.context_dim))
        return torch.from_numpy(common * own)

    def sets(self, context: ArrayLike) -> SetAt:
        """Return the set-points with which the others meet the load, for contexts (*batch, p)."""
        least, most = self.dispatch.totals(self._checked(context)).unbind(dim=-1)
        return self._base.at(h=torch.stack([most, -least], dim=-1))

    @cached_property
    def _base(self) -> Polyhedron:
        """The bounds, and limits of the sum of x, and of minus it, that no decision exceeds."""
        low, high = self.dispatch.bounds
        sums = [[1.0] * self.dim, [-1.0] * self.dim]
        return Polyhedron(self.dim, low, high, G=sums, h=[float(high.sum()), -float(low.sum())])

    def sample(self, instances: int, candidates: int, seed: int) -> ValueData:
        """Return a data set, candidates uniform on the sets of their contexts; values are kept on disk."""
        check_count(candidates, "candidates")
        context = self.contexts(instances, seed)
        sets, generator = self.sets(context), seeded(seed + 1_000_003)
        x = torch.stack([sets.one(k).sample((candidates,), generator) for k in range(instances)])
        value = kept_values(self.name, self.dispatch.rest.identity, x, context, lambda *part: self._values(*part))
        return ValueData(context, x, value)

    def _values(self, x: Tensor, context: Tensor) -> Tensor:
        return self.dispatch.cost(x, context)[0]

    def solve(self, context: ArrayLike, tol: float = TOLERANCE) -> Decision:
        """Return optima of the whole program with its bounds, for contexts (*batch, p)."""
        started = time.perf_counter()
        contexts = self._checked(context)
        rows, dispatch = contexts.reshape(-1, self.context_dim), self.dispatch
        program = dispatch.whole
        parameters = torch.cat([dispatch.parameters(rows), dispatch.totals(rows)], dim=1).numpy()
        found = [program.solve(row) for row in parameters]
        sets = self.sets(rows)
        point = sets.project(torch.stack([torch.from_numpy(program.part(each, "x")) for each in found]))
        bound = dispatch.unit * torch.tensor([each.value for each in found], dtype=torch.float64) + dispatch.standing
        return decision_of(
            point,
            self.objective(point, rows),
            bound,
            sets.violation(point),
            error=BOUND_ERROR,
            tol=tol,
            batch=tuple(contexts.shape[:-1]),
            started=started,
        )

    def _checked(self, context: ArrayLike) -> Tensor:
        contexts = as_tensor(context, "context").double()
        check_last_dim(contexts, self.context_dim, "context")
        return contexts


def make(name: str, dim: int, seed: int) -> Opf:
    """Return the task of a name in `CASES`; the seed decides nothing, as the network is the published one.

    Raises:
        ValueError: more set-points than buses to set.
        GridDataNotFoundError: the extra `grid` is not installed.
    """
    case = load_case(CASES[name])
    dispatch = Dispatch(case, choose_buses(case, dim))
    return Opf(name, dim, seed, Box(dim, *map(tuple, dispatch.bounds)), len(dispatch.loaded), no_form, dispatch)


opf_case14, opf_case24, opf_case30, opf_case118 = (partial(make, name) for name in CASES)


def no_form(context: Tensor) -> ConicForm:
    """Refuse: the objective is the value of a cone program."""
    raise NotImplementedError("the cost is the optimal value of a cone program, which has no conic form in closed form")
