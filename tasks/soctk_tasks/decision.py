"""The six parametric decision tasks of the paper (Experiment 3), and the class any task is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import torch
from torch import Tensor

from soctk import ConicForm, ConvexSurrogate, Decision, FeasibleSet, ValueData, minimize
from soctk.checks import ArrayLike, check_count
from soctk_tasks.families import CONTEXT_DIM, FAMILIES, GEOMETRIES, Stream, base

TASKS = tuple(FAMILIES)
"""The paper's six families."""

SOLVE_TOLERANCE = 1e-8


class TrueObjective(ConvexSurrogate):
    """A task's own objective as a surrogate without weights: the oracle row of a comparison.

    Args:
        dim: the decision dimension.
        context_dim: the context dimension.
        form: (N, p) contexts -> `ConicForm` of the objective.
    """

    def __init__(self, dim: int, context_dim: int, form: Callable[[Tensor], ConicForm]) -> None:
        super().__init__(dim, context_dim)
        self._objective = form

    def _conic_form(self, context: Tensor) -> ConicForm:
        return self._objective(context)


@dataclass(frozen=True, eq=False)
class Task:
    """A parametric decision problem min f_theta(x) over a feasible set.

    Attributes:
        name: of the family.
        dim: decision dimension n.
        seed: of the family's random constants.
        feasible_set: where decisions live.
        context_dim: dimension p of the context theta, drawn from the standard normal distribution.
        form: contexts (N, p) -> `ConicForm` of the objective.
    """

    name: str
    dim: int
    seed: int
    feasible_set: FeasibleSet
    context_dim: int
    form: Callable[[Tensor], ConicForm]

    def surrogate(self) -> TrueObjective:
        """Return the true objective as a surrogate: values, certificates and decisions as for a learned one."""
        return TrueObjective(self.dim, self.context_dim, self.form)

    def objective(self, x: ArrayLike, context: ArrayLike) -> Tensor:
        """Return f_theta(x): x (*batch, n), context (*batch, p) or (p,) -> (*batch)."""
        return self.surrogate()(x, context)

    def to_cvxpy(self, x: cp.Expression, context: ArrayLike) -> cp.Expression:
        """Return f_theta(x) as a DCP expression at one context (p,)."""
        return self.surrogate().to_cvxpy(x, context)

    def solve(self, context: ArrayLike, tol: float = SOLVE_TOLERANCE) -> Decision:
        """Return certified optima x* and f* for contexts (*batch, p), to a relative gap of 1e-8."""
        return minimize(self.surrogate(), self.feasible_set, context, tol=tol, max_iter=100)

    def contexts(self, instances: int, seed: int) -> Tensor:
        """Return contexts (instances, p), reproducible from the seed."""
        check_count(instances, "instances")
        return torch.randn(instances, self.context_dim, generator=_generator(seed), dtype=torch.float64)

    def sample(self, instances: int, candidates: int, seed: int) -> ValueData:
        """Return a data set, reproducible from the seed.

        Args:
            instances: number N of contexts; the same as `contexts(instances, seed)` gives.
            candidates: number M of points for each, uniform on the set.
            seed: of contexts and candidates.
        """
        check_count(candidates, "candidates")
        context = self.contexts(instances, seed)
        x = self.feasible_set.sample((instances, candidates), _generator(seed + 1_000_003))
        return ValueData(context, x, self.surrogate().evaluate(x, context))


def make_task(name: str, dim: int = 10, seed: int = 0) -> Task:
    """Return one of the paper's six tasks, its constants fixed by (name, dim, seed).

    Raises:
        ValueError: an unknown name or dim < 1.
    """
    if name not in FAMILIES:
        raise ValueError(f"name: expected one of {', '.join(TASKS)}, got {name!r}")
    check_count(dim, "dim")
    family = FAMILIES[name]
    stream = Stream(name, dim, seed)
    common = base(stream, dim, family.kind, family.strength)
    structure = family.structure(stream, dim)

    def form(context: Tensor) -> ConicForm:
        context = context.to(torch.float64)
        cost, terms = common(context)
        constant = torch.zeros(context.shape[0], 1, dtype=torch.float64)
        return ConicForm(constant, cost, (*terms, *structure(context)), (context.shape[0],))

    return Task(name, dim, seed, GEOMETRIES[family.kind].make_set(dim), CONTEXT_DIM, form)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
