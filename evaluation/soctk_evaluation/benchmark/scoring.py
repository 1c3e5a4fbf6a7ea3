"""Scores, recomputed from decisions alone: feasibility, cost and regret against certified optima.

    r(task, seed) = mean regret of the entry / mean regret of the constant decision, over the test contexts
    score         = geometric mean of r over tasks and seeds; 0 is optimal, 1 is as good as a constant

The constant decision is the mean of the training optima, projected onto the set. A decision that is missing, not finite
or infeasible is scored at the centre of its set, and counted. Below `FLOOR` r is counted as `FLOOR`: the optima are
certified to little more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from soctk import Decision, ValueData
from soctk.sets import FeasibleSet, SetAt
from soctk_baselines import AffinePolicy, ConstantDecision
from soctk_evaluation.benchmark.versions import Problem, held_out, task_of, training
from soctk_evaluation.harness.request import UsageError

FLOOR = 1e-6
FEASIBLE = 1e-6
"""The largest violation of a constraint that a decision may have; such a decision is scored at its projection."""
EXACT = 1e-9
"""Violations that a projection leaves."""
CONFIDENCE = 0.95
TRIVIAL = ("constant", "affine", "centre")
"""Rows that stand beside all entries."""
NAMED = 5
"""Rows that a message names at most."""


@dataclass(frozen=True, eq=False)
class Judge:
    """What a problem's decisions are scored with; nothing of it reaches an entry but what its track may see."""

    problem: Problem

    @cached_property
    def data(self) -> ValueData:
        """The training data."""
        return training(self.problem)

    @cached_property
    def contexts(self) -> Tensor:
        """The test contexts, (T, p)."""
        return held_out(self.problem)

    @cached_property
    def train_optimum(self) -> Decision:
        """The optima of the training contexts."""
        return task_of(self.problem).solve(self.data.context)

    @cached_property
    def optimum(self) -> Decision:
        """The certified optima of the test contexts."""
        return task_of(self.problem).solve(self.contexts)

    @cached_property
    def sets(self) -> FeasibleSet | SetAt:
        """Where the decisions of the test contexts live."""
        return task_of(self.problem).sets(self.contexts)

    @cached_property
    def centre(self) -> Tensor:
        """The centres of the sets, (T, n)."""
        center = self.sets.center(torch.float64).expand(self.problem.test, self.problem.dim)
        return self.inside(center)

    def inside(self, x: Tensor) -> Tensor:
        """Return decisions (T, n), those with a violation projected onto their sets."""
        if bool((self.sets.violation(x) <= EXACT).all()):
            return x
        return self.sets.project(x)

    def costs(self, x: Tensor) -> Tensor:
        """Return the true objective of decisions, (T, n) -> (T)."""
        with torch.no_grad():
            return task_of(self.problem).objective(x, self.contexts)

    @cached_property
    def trivial(self) -> dict[str, float]:
        """The mean regrets of `TRIVIAL`.

        Raises:
            UsageError: the constant decision is optimal, so that there is nothing to measure by.
        """
        region, found = task_of(self.problem).feasible_set, {"centre": self.centre}
        for name, kind in (("constant", ConstantDecision), ("affine", AffinePolicy)):
            policy = kind(region).fit(self.data.context, self.train_optimum.x)
            found[name] = self.inside(policy.decide(self.contexts))
        best = self.costs(self.optimum.x)
        regrets = {name: float((self.costs(x) - best).mean()) for name, x in found.items()}
        if not regrets["constant"] > EXACT:
            raise UsageError(f"{self.problem.name}: a constant decision is optimal here; choose other tasks or dims")
        return regrets


@cache
def judge_of(problem: Problem) -> Judge:
    """Return the judge of a problem, one for all entries."""
    return Judge(problem)


@dataclass(frozen=True)
class Scored:
    """How an entry did on one problem.

    Attributes:
        problem: the problem.
        regret: mean of f(x) - f(x*) over the test contexts.
        cost: mean of f(x).
        failures: the rows of decisions that were missing, not finite, infeasible.
        violation: the largest of infeasible decisions.
        trivial: mean regrets of the trivial rows.
    """

    problem: Problem
    regret: float
    cost: float
    failures: dict[str, list[int]]
    violation: float
    trivial: dict[str, float]

    @property
    def ratio(self) -> float:
        """The regret over the constant decision's, at least `FLOOR`."""
        return ratio_of(self.regret, self.trivial["constant"])

    @property
    def failed(self) -> int:
        """How many decisions were scored at the centre."""
        return sum(map(len, self.failures.values()))

    @property
    def status(self) -> str:
        """How many decisions failed how, with the first few rows; empty where none did."""
        said = []
        for kind, rows in self.failures.items():
            some = ", ".join(map(str, rows[:NAMED])) + (", ..." if len(rows) > NAMED else "")
            by = f", by up to {self.violation:.2g}" if kind == "infeasible" else ""
            said.append(f"{len(rows)} {kind} ({'row' if len(rows) == 1 else 'rows'} {some}{by})")
        return "; ".join(said) + (", scored at the centre" if said else "")


def ratio_of(regret: float, constant: float) -> float:
    """Return a regret over the constant decision's, at least `FLOOR`."""
    return max(regret / constant, FLOOR)


def score_problem(problem: Problem, decisions: np.ndarray) -> Scored:
    """Score decisions (T, n) of the test contexts; NaN where there are none.

    Raises:
        UsageError: another shape.
    """
    expected = (problem.test, problem.dim)
    if np.shape(decisions) != expected:
        raise UsageError(f"{problem.name}: expected decisions {expected}, got {np.shape(decisions)}")
    judge = judge_of(problem)
    x = torch.from_numpy(np.array(decisions, dtype=float))
    missing = x.isnan().all(dim=1)
    broken = ~x.isfinite().all(dim=1) & ~missing
    x = torch.where((missing | broken).unsqueeze(1), judge.centre, x)
    violation = judge.sets.violation(x)
    outside = ~(violation <= FEASIBLE)
    x = judge.inside(torch.where(outside.unsqueeze(1), judge.centre, x))
    costs = judge.costs(x)
    kinds = {"missing": missing, "not finite": broken, "infeasible": outside}
    failures = {kind: which.nonzero().flatten().tolist() for kind, which in kinds.items() if which.any()}
    worst = float(violation[outside].max()) if outside.any() else 0.0
    regret = float((costs - judge.costs(judge.optimum.x)).mean())
    return Scored(problem, regret, float(costs.mean()), failures, worst, judge.trivial)


def score_all(problems: Sequence[Problem], decisions: Mapping[str, np.ndarray]) -> list[Scored]:
    """Score the decisions of every problem, arrays (T, n) by name."""
    return [score_problem(problem, decisions[problem.name]) for problem in problems]


@dataclass(frozen=True)
class Summary:
    """A score with its interval over seeds.

    Attributes:
        score: geometric mean over seeds of the geometric means over tasks.
        low, high: ends of the 95 % interval, by Student's t of the seeds' logarithms; None of a single seed.
        tasks: geometric means over seeds by (task, dim).
    """

    score: float
    low: float | None
    high: float | None
    tasks: dict[tuple[str, int], float]


def summarize(ratios: Mapping[tuple[str, int, int], float]) -> Summary:
    """Return the summary of ratios by (task, dim, seed), every task with the same seeds."""
    by_seed, by_task = defaultdict(list), defaultdict(list)
    for (task, dim, seed), ratio in ratios.items():
        by_seed[seed].append(np.log(ratio))
        by_task[task, dim].append(np.log(ratio))
    seeds = np.array([np.mean(logs) for logs in by_seed.values()])
    tasks = {case: float(np.exp(np.mean(logs))) for case, logs in by_task.items()}
    score = float(np.exp(seeds.mean()))
    if len(seeds) < 2:
        return Summary(score, None, None, tasks)
    half = stats.t.ppf(0.5 + CONFIDENCE / 2, len(seeds) - 1) * seeds.std(ddof=1) / len(seeds) ** 0.5
    return Summary(score, float(np.exp(seeds.mean() - half)), float(np.exp(seeds.mean() + half)), tasks)
