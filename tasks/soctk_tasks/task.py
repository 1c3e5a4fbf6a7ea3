"""The class that every decision task is, and its true objective as a surrogate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk import ConicForm, ConvexSurrogate, Decision, FeasibleSet, ValueData, minimize
from soctk.checks import ArrayLike, check_count, seeded
from soctk.lazy import cvxpy as cp
from soctk.sets import SetAt

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
        return self._objective(context.double())


@dataclass(frozen=True, eq=False)
class Task:
    """A parametric decision problem min f_theta(x) over a feasible set: a name, a set and a function of the context.

    Data, certified optima and the oracle's row follow. A task whose objective is no conic form overrides `surrogate`,
    one whose contexts are not standard normal or whose candidates are not uniform `contexts` and `sample`, one whose
    right-hand sides move with the context `sets`.

    Attributes:
        name: of the task.
        dim: decision dimension n.
        seed: of the task's random constants.
        feasible_set: where decisions live, and candidates are drawn.
        context_dim: dimension p of the context theta, drawn from the standard normal distribution.
        form: float64 contexts (N, p) -> `ConicForm` of the objective.

    Raises:
        ValueError: the set has another dimension.
    """

    name: str
    dim: int
    seed: int
    feasible_set: FeasibleSet
    context_dim: int
    form: Callable[[Tensor], ConicForm]

    def __post_init__(self) -> None:
        check_count(self.context_dim, "context_dim", minimum=0)
        if self.feasible_set.dim != self.dim:
            raise ValueError(f"feasible_set: expected dimension {self.dim} as the task's, got {self.feasible_set.dim}")

    def surrogate(self) -> ConvexSurrogate:
        """Return the true objective as a surrogate: values, certificates and decisions as for a learned one."""
        return TrueObjective(self.dim, self.context_dim, self.form)

    def objective(self, x: ArrayLike, context: ArrayLike) -> Tensor:
        """Return f_theta(x): x (*batch, n), context (*batch, p) or (p,) -> (*batch)."""
        return self.surrogate()(x, context)

    def sets(self, context: ArrayLike) -> FeasibleSet | SetAt:
        """Return where the decisions of contexts (*batch, p) live: the feasible set, or for each a part of it."""
        return self.feasible_set

    def to_cvxpy(self, x: cp.Expression, context: ArrayLike) -> cp.Expression:
        """Return f_theta(x) as a DCP expression at one context (p,)."""
        return self.surrogate().to_cvxpy(x, context)

    def solve(self, context: ArrayLike, tol: float = SOLVE_TOLERANCE) -> Decision:
        """Return certified optima x* and f* for contexts (*batch, p), to a relative gap of 1e-8."""
        return minimize(self.surrogate(), self.sets(context), context, tol=tol, max_iter=100)

    def contexts(self, instances: int, seed: int) -> Tensor:
        """Return contexts (instances, p), reproducible from the seed."""
        check_count(instances, "instances")
        return torch.randn(instances, self.context_dim, generator=seeded(seed), dtype=torch.float64)

    def sample(self, instances: int, candidates: int, seed: int) -> ValueData:
        """Return a data set, reproducible from the seed.

        Args:
            instances: number N of contexts; the same as `contexts(instances, seed)` gives.
            candidates: number M of points for each, uniform on the set.
            seed: of contexts and candidates.
        """
        check_count(instances, "instances")
        check_count(candidates, "candidates")
        context = self.contexts(instances, seed)
        x = self.feasible_set.sample((instances, candidates), seeded(seed + 1_000_003))
        return ValueData(context, x, self.surrogate().evaluate(x, context))
