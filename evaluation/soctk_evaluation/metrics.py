"""How good a surrogate or a policy is on a task: its error, its decisions' regret, their cost."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor, check_last_dim
from soctk.decide.compiled.solve import FEWEST_IN_LANES
from soctk.decide.decision import Decision
from soctk.decide.minimize import Method, minimize
from soctk.decide.reduction import newton_refuses
from soctk.learn.data import ValueData
from soctk.losses import relative_error
from soctk.sets import FeasibleSet, SetAt
from soctk.surrogate import ConvexSurrogate

FEASIBLE_ATOL = 1e-7
"""The largest constraint violation a decision is scored with as it is; beyond it, its projection is."""


class Task(Protocol):
    """What `evaluate` needs of a task."""

    @property
    def feasible_set(self) -> FeasibleSet:
        """Where all decisions live."""

    @property
    def context_dim(self) -> int:
        """The context dimension p."""

    def sets(self, context: Tensor) -> FeasibleSet | SetAt:
        """Return where the decisions of contexts (*batch, p) live."""

    def objective(self, x: Tensor, context: Tensor) -> Tensor:
        """Return the true objective, x (*batch, n), context (*batch, p) -> (*batch)."""

    def solve(self, context: Tensor) -> Decision:
        """Return the true optimum of every context."""


class Policy(Protocol):
    """Maps a context to a decision without a surrogate in between."""

    def decide(self, context: Tensor) -> Tensor:
        """Return decisions, context (*batch, p) -> (*batch, n)."""


@dataclass(frozen=True, eq=False)
class Scores:
    """How a surrogate or a policy did on N test instances.

    Attributes:
        regret: f(x_hat) - f(x*) of every instance, (N,), unnormalised; x* is certified to a tolerance, so
            an exact decision may score that much below 0.
        decision_error: mean of ||x_hat - x*||_2.
        relative_error: ||f_hat - f||_2 / ||f||_2 over the test candidates; None without test data, and for
            a policy.
        gap_max: the largest certified gap of a decision on the surrogate; None for a policy.
        decide_ms: milliseconds for one decision, the whole batch decided at once.
        status: "ok", or what went wrong and how often. No instance is ever left out of `regret`.
    """

    regret: Tensor
    decision_error: float
    relative_error: float | None
    gap_max: float | None
    decide_ms: float
    status: str

    @property
    def regret_mean(self) -> float:
        """Mean regret."""
        return float(self.regret.mean())

    @property
    def regret_median(self) -> float:
        """Median regret, the average of the two middle ones for an even number."""
        return float(self.regret.quantile(0.5))

    @property
    def regret_max(self) -> float:
        """Largest regret."""
        return float(self.regret.max())

    @property
    def regret_stderr(self) -> float:
        """Standard error of the mean regret; NaN for a single instance."""
        return float(self.regret.std() / len(self.regret) ** 0.5)


def evaluate(
    surrogate: ConvexSurrogate | Policy,
    task: Task,
    contexts: ArrayLike,
    *,
    method: Method = "newton",
    tol: float = 1e-6,
    optimum: Decision | None = None,
    test_data: ValueData | None = None,
) -> Scores:
    """Score the decisions of a surrogate, or of a policy (anything with `decide`), on a task.

    A decision that fails (NaN) is scored at the feasible set's centre, an infeasible one at its projection;
    `status` counts both.

    Args:
        surrogate: the surrogate or the policy.
        task: the task: its feasible set and its true objective.
        contexts: (N, p) test contexts, N >= 1.
        method: how the surrogate is minimised; not used for a policy. Over a set of one's own without rows, where there
            are no Newton steps, `minimize` chooses instead of "newton".
        tol: the relative gap to reach; not used for a policy.
        optimum: `task.solve(contexts)` where it is known already.
        test_data: candidates with their true values, for the relative error.

    Returns:
        `Scores` over all N instances.

    Raises:
        ValueError: contexts of a wrong shape, empty or not finite, or an optimum of another shape.
    """
    points = as_tensor(contexts, "contexts")
    check_last_dim(points, task.context_dim, "contexts")
    if points.ndim != 2 or points.shape[0] == 0:
        raise ValueError(f"contexts: expected shape (instances, {task.context_dim}), got {tuple(points.shape)}")
    best = task.solve(points) if optimum is None else optimum
    expected = (points.shape[0], task.feasible_set.dim)
    if tuple(best.x.shape) != expected:
        raise ValueError(f"optimum: expected decisions of shape {expected}, got {tuple(best.x.shape)}")
    if isinstance(surrogate, ConvexSurrogate):
        chosen = None if method == "newton" and newton_refuses(task.feasible_set) else method
        decision, seconds = _minimize_warm(surrogate, task, points, chosen, tol)
        x, gap_max, ended = decision.x, _largest(decision.gap), _endings(decision)
        error = None if test_data is None else relative_error(surrogate, test_data)
    else:
        x, seconds = _decide_warm(surrogate, points)
        gap_max, ended, error = None, [], None
    x, repaired = _repair(x.to(best.x.dtype), task.sets(points))
    with torch.no_grad():
        regret = task.objective(x, points) - task.objective(best.x, points)
    return Scores(
        regret=regret,
        decision_error=float((x - best.x).norm(dim=-1).mean()),
        relative_error=error,
        gap_max=gap_max,
        decide_ms=1e3 * seconds / points.shape[0],
        status="; ".join(repaired + ended) or "ok",
    )


def solver_regret(
    oracle: ConvexSurrogate, task: Task, contexts: ArrayLike, *, optimum: Decision, method: Method, tol: float = 1e-6
) -> float:
    """Return a decision method's mean regret given the true objective: its own share of any regret.

    Args:
        oracle: `task.surrogate()`, the true objective.
        task: the task.
        contexts: (N, p).
        optimum: `task.solve(contexts)`.
        method: the decision method.
        tol: the relative gap to reach.
    """
    return evaluate(oracle, task, contexts, method=method, tol=tol, optimum=optimum).regret_mean


def _minimize_warm(
    surrogate: ConvexSurrogate, task: Task, contexts: Tensor, method: Method | None, tol: float
) -> tuple[Decision, float]:
    """Decide all contexts after unmeasured decisions, so that one-time costs are not counted."""
    for few in (contexts[:1], contexts[:FEWEST_IN_LANES]):  # each is decided by code that is compiled apart
        minimize(surrogate, task.sets(few), few, tol=tol, method=method)
    decision = minimize(surrogate, task.sets(contexts), contexts, tol=tol, method=method)
    return decision, decision.seconds


def _decide_warm(policy: Policy, contexts: Tensor) -> tuple[Tensor, float]:
    policy.decide(contexts[:1])
    started = time.perf_counter()
    x = torch.as_tensor(policy.decide(contexts)).detach()
    return x, time.perf_counter() - started


def _repair(x: Tensor, feasible_set: FeasibleSet | SetAt) -> tuple[Tensor, list[str]]:
    """Return feasible decisions and what had to be done to get them."""
    notes = []
    missing = ~torch.isfinite(x).all(dim=-1)
    if bool(missing.any()):
        x = torch.where(missing.unsqueeze(-1), feasible_set.center(x.dtype, x.device), x)
        notes.append(f"{int(missing.sum())} of {len(x)} decisions failed (scored at the set's centre)")
    outside = ~feasible_set.contains(x, atol=FEASIBLE_ATOL)
    if bool(outside.any()):
        x = torch.where(outside.unsqueeze(-1), feasible_set.project(x), x)
        notes.append(f"{int(outside.sum())} of {len(x)} decisions infeasible (scored at their projection)")
    return x, notes


def _endings(decision: Decision) -> list[str]:
    """Say how many decisions ended otherwise than optimal."""
    counts: Counter[Any] = Counter(str(status) for status in decision.status if status != "optimal")
    return [f"{count} of {decision.status.size} decisions {status}" for status, count in sorted(counts.items())]


def _largest(gap: Tensor) -> float:
    """Return the largest gap; infinite where one decision has no bound or failed."""
    return float(torch.nan_to_num(gap, nan=torch.inf).max())
