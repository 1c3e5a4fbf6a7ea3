"""The leaderboard: every method on every task, the same data and way to decide for all (Experiment 3)."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import soctk
from soctk import ConvexSurrogate, Decision, FitConfig, ValueData
from soctk.decide.minimize import Method
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment
from soctk_evaluation.harness.key import SOLVER
from soctk_evaluation.harness.names import POLICIES, default_methods, known_methods
from soctk_evaluation.harness.recipe import learn, recipe_config
from soctk_evaluation.harness.request import check_methods, check_names
from soctk_evaluation.metrics import Policy, Scores, evaluate, solver_regret
from soctk_evaluation.tables.leaderboard import write_leaderboard
from soctk_tasks import TASKS, Task, make_task, task_names

PROTOCOLS: dict[str, Method] = {"exact": "newton", "paper": "projected_adam"}
"""How decisions are made: to a certificate, or by the paper's 5 restarts of 200 projected Adam steps."""

TOLERANCE = 1e-6
SIZES = {"train": 1000, "validation": 1000, "test": 200, "candidates": 64}
"""Instances of each data set, and candidates of each instance (the paper's)."""

MEASURED = (
    *("params", "relative_error", "regret_mean", "regret_median", "regret_max", "regret_stderr", "regret_n"),
    *("solver_regret", "decision_error", "gap_max", "fit_seconds", "decide_ms", "decided_by"),
)
"""The measurements in a row."""

QUICK = FitConfig(starts=2, level_iterations=100)
"""The recipe of a quick leaderboard, the same for every method; b0, whose iterations it saves, decides nothing."""

RELATIVE_COST = {"lpcf": 4, "soc": 3, "ickan": 2, "dcp": 1, "pcf": 1, "quad": 1, "norm": 1, "relu": 1, "softplus": 1}


def leaderboard_cells(asked: Any, sizes: Mapping[str, int] | None = None, fit: FitConfig | None = None) -> list[Cell]:
    """Return the cells asked for, long ones first; UsageError at an unknown name.

    Args:
        asked: `soctk_evaluation.cli.commands.Leaderboard`.
        sizes: departures from `SIZES`.
        fit: the training recipe, the same for every method.
    """
    check_methods(asked.methods, known_methods())
    check_names(asked.tasks, task_names(), "task")
    check_names([asked.protocol], list(PROTOCOLS), "protocol")
    dims, seeds, recipe = ((10,), (0,), QUICK) if asked.quick else ((10, 20, 50), (0, 1, 2), FitConfig())
    config = make_config(SIZES | dict(sizes or {}) | recipe_config(fit or recipe) | {"tolerance": TOLERANCE})
    methods = asked.methods or default_methods()
    grid = itertools.product(asked.dims or dims, methods, asked.seeds or seeds, asked.tasks or TASKS)
    cells = [Cell("leaderboard", task, dim, method, seed, asked.protocol, config) for dim, method, seed, task in grid]
    return sorted(cells, key=lambda cell: (-cell.dim, -RELATIVE_COST.get(cell.method, 0)))


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Learn one method on one task, decide, and return the measurements of `MEASURED` and the status.

    Uses one torch thread, so that the same seed gives the same numbers wherever it runs.
    """
    torch.set_num_threads(1)
    config = dict(cell.config)
    problem = load_problem(cell.task, cell.dim, cell.seed, *(config[name] for name in SIZES))
    learned = _learn(cell, problem, config)
    method = None if cell.method in POLICIES else _decision_method(cast(ConvexSurrogate, learned.model), cell.protocol)
    tol = config["tolerance"]
    options = {"tol": tol, "optimum": problem.optimum, "test_data": problem.test}
    scores = evaluate(learned.model, problem.task, problem.test.context, method=method or "newton", **options)
    own = math.nan if method is None else oracle_regret(problem, method, tol)
    return _measurements(learned, scores, own, method)


@dataclass(frozen=True, eq=False)
class Problem:
    """A task with its three data sets and the optima of the test instances."""

    task: Task
    train: ValueData
    validation: ValueData
    test: ValueData
    optimum: Decision


@lru_cache(maxsize=6)
def load_problem(name: str, dim: int, seed: int, train: int, validation: int, test: int, candidates: int) -> Problem:
    """Return the task of this seed and its three data sets, each with its own seed derived from it."""
    task = make_task(name, dim=dim, seed=seed)
    parts = [
        task.sample(count, candidates, seed=data_seed(seed, part))
        for part, count in enumerate((train, validation, test), start=1)
    ]
    return Problem(task, *parts, optimum=task.solve(parts[2].context))


def data_seed(seed: int, part: int) -> int:
    """Return the seed of data set 1 (training), 2 (validation) or 3 (test) of a cell's seed."""
    return int(np.random.SeedSequence((seed, part)).generate_state(1)[0])


@lru_cache(maxsize=32)
def oracle_regret(problem: Problem, method: Method, tol: float) -> float:
    """Return the decision method's own mean regret on the true objective; NaN where it has no conic form to take."""
    task, contexts = problem.task, problem.test.context
    oracle = task.surrogate()
    if method == "newton" and not oracle.has_conic_form:
        return math.nan
    return solver_regret(oracle, task, contexts, optimum=problem.optimum, method=method, tol=tol)


@dataclass(frozen=True, eq=False)
class _Learned:
    model: ConvexSurrogate | Policy
    params: int | None
    seconds: float
    note: str = ""


def _learn(cell: Cell, problem: Problem, config: Mapping[str, Any]) -> _Learned:
    task = problem.task
    if cell.method == "oracle":
        return _Learned(task.surrogate(), None, math.nan)
    if cell.method in POLICIES:
        return _learn_policy(cell.method, problem)
    surrogate = soctk.make_surrogate(cell.method, cell.dim, context_dim=task.context_dim, seed=cell.seed)
    report, note = learn(surrogate, problem.train, problem.validation, config, cell.seed)
    return _Learned(surrogate, surrogate.parameter_count, report.seconds, note)


def _learn_policy(name: str, problem: Problem) -> _Learned:
    """Fit a policy on the optima of the training instances, which the surrogates never see."""
    from soctk_baselines import AffinePolicy, ConstantDecision

    started = time.perf_counter()
    kind = {"constant": ConstantDecision, "affine": AffinePolicy}[name]
    x_star = problem.task.solve(problem.train.context).x
    policy = kind(problem.task.feasible_set).fit(problem.train.context, x_star)
    return _Learned(policy, policy.parameter_count, time.perf_counter() - started)


def _decision_method(surrogate: ConvexSurrogate, protocol: str) -> Method:
    """Return the protocol's method; a surrogate that brings its own CVXPY export (lpcf) is decided by that."""
    method = PROTOCOLS[protocol]
    return cast(Method, surrogate.decision_method) if method == "newton" else method


def _measurements(learned: _Learned, scores: Scores, own: float, method: Method | None) -> dict[str, Any]:
    notes = [note for note in (learned.note, scores.status.removeprefix("ok")) if note]
    of_scores = set(MEASURED) - {"params", "regret_n", "solver_regret", "fit_seconds", "decided_by"}
    return {name: getattr(scores, name) for name in of_scores} | {
        "params": learned.params,
        "regret_n": len(scores.regret),
        "solver_regret": own,
        "fit_seconds": learned.seconds,
        "decided_by": method or "policy",
        "status": "; ".join(notes) or "ok",
    }


def _code(cell: Cell) -> tuple[str, ...]:
    """The paper's protocol certifies nothing: its own code determines its decisions."""
    return SOLVER if cell.protocol == "paper" else ()


KINDS, TEXT = ("markdown", "figure", "html", "csv"), ("decided_by",)
EXPERIMENT = Experiment(
    "leaderboard", leaderboard_cells, run_cell, MEASURED, write_leaderboard, text=TEXT, kinds=KINDS, code=_code
)
