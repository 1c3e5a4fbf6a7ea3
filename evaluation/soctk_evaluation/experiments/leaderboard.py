"""The leaderboard: every method on every task, the same data and way to decide for all (Experiment 3)."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import soctk
from soctk import ConvexSurrogate, Decision, FitConfig, ValueData
from soctk.decide.minimize import Method
from soctk.decide.solver import Solver
from soctk_evaluation.experiments.recipes import DIMS, OWN_DIMS, OWN_SIZES, SIZES, own_recipe
from soctk_evaluation.harness.cell import Cell, Config, make_config
from soctk_evaluation.harness.experiment import Experiment
from soctk_evaluation.harness.fits import FOLDER, Learned, kept, values_cell
from soctk_evaluation.harness.from_decisions import learn_from_decisions, setting_config
from soctk_evaluation.harness.key import SOLVER
from soctk_evaluation.harness.names import FROM_DECISIONS, POLICIES, base_of, decision_methods, default_methods, split
from soctk_evaluation.harness.recipe import FIT_FIELDS, SETTINGS, fit_fields, learn, recipe_config
from soctk_evaluation.harness.request import check_methods, check_names
from soctk_evaluation.metrics import Scores, evaluate, solver_regret
from soctk_evaluation.tables.leaderboard import write_leaderboard
from soctk_tasks import TASKS, Task, make_task, task_names

PROTOCOLS: dict[str, Method | None] = {"exact": "newton", "paper": "projected_adam", "cvxpylayers": None}
"""How decisions are made: to a certificate, by the paper's 5 restarts of 200 projected Adam steps, by cvxpylayers."""

TOLERANCE = 1e-6
MEASURED = (
    *("params", "relative_error", "regret_mean", "regret_median", "regret_max", "regret_stderr", "regret_n"),
    *("solver_regret", "decision_error", "gap_max", "fit_seconds", "step_seconds", "decide_ms", "decided_by"),
    *FIT_FIELDS,
)
"""The measurements in a row."""

Make = Callable[..., ConvexSurrogate]
"""Makes a surrogate of a method's name and decision dimension, as `soctk.make_surrogate` does."""

RELATIVE_COST = {"lpcf": 4, "soc": 3, "ickan": 2, "dcp": 1, "pcf": 1, "quad": 1, "norm": 1, "relu": 1, "softplus": 1}


def leaderboard_cells(asked: Any, sizes: Mapping[str, int] | None = None, fit: FitConfig | None = None) -> list[Cell]:
    """Return the cells asked for, long ones first; UsageError at an unknown name.

    Args:
        asked: `soctk_evaluation.cli.commands.Leaderboard`.
        sizes: departures from `SIZES`.
        fit: the training recipe, the same for every method; by default `recipes.own_recipe`.
    """
    check_methods(asked.methods, decision_methods())
    check_names(asked.tasks, task_names(), "task")
    check_names([asked.protocol], list(PROTOCOLS), "protocol")
    dims, seeds = (DIMS[:1], (0,)) if asked.quick else (DIMS, (0, 1, 2))
    grid = itertools.product(asked.methods or default_methods(), asked.seeds or seeds, asked.tasks or TASKS)
    cells = []
    for method, seed, task in grid:
        for dim in asked.dims or OWN_DIMS.get(task, dims):
            config = config_of(method, task, dim, asked.protocol, sizes, fit)
            cells.append(Cell("leaderboard", task, dim, method, seed, asked.protocol, config))
    return sorted(cells, key=lambda cell: (-cell.dim, -RELATIVE_COST.get(base_of(cell.method), 0)))


def config_of(
    method: str,
    task: str,
    dim: int,
    protocol: str = "exact",
    sizes: Mapping[str, int] | None = None,
    fit: FitConfig | None = None,
) -> Config:
    """Return the configuration of a method's cell, METHOD or METHOD+SETTING; arguments as of `leaderboard_cells`."""
    base, setting = split(method)
    own = replace(fit or own_recipe(base, dim, task), **SETTINGS.get(setting, {}))
    more = setting_config(own, protocol) if setting in FROM_DECISIONS else {}
    return cell_config(own, OWN_SIZES.get(task, {}) | dict(sizes or {}), more)


def cell_config(recipe: FitConfig, sizes: Mapping[str, int] | None, more: Mapping[str, Any]) -> Config:
    """Return a cell's configuration: `SIZES` with departures, the tolerance, the recipe and what there is more."""
    return make_config(SIZES | dict(sizes or {}) | {"tolerance": TOLERANCE} | recipe_config(recipe) | dict(more))


def run_cell(cell: Cell, folder: Path | None = None) -> dict[str, Any]:
    """Measure one method on one task (`measure`), its surrogate kept in a folder or found there."""
    return measure(cell, folder=folder)


def measure(cell: Cell, make: Make = soctk.make_surrogate, folder: Path | None = None) -> dict[str, Any]:
    """Learn one method on one task, decide, and return the measurements of `MEASURED` and the status.

    Uses one torch thread, so that the same seed gives the same numbers wherever it runs.

    Args:
        cell: of the leaderboard, or one with its configuration.
        make: makes the surrogate.
        folder: where surrogates are kept (`soctk_evaluation.harness.fits`); None to learn whatever is there.
    """
    torch.set_num_threads(1)
    config = dict(cell.config)
    problem = load_problem(cell.task, cell.dim, cell.seed, *(config[name] for name in SIZES))
    learned = _learn(cell, problem, config, make, folder)
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

    @cached_property
    def train_optimum(self) -> Decision:
        """The optima of the training instances."""
        return self.task.solve(self.train.context)


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
def oracle_regret(problem: Problem, method: Method | Solver, tol: float) -> float:
    """Return the decision method's own mean regret on the true objective; NaN where it has no conic form to take."""
    task, contexts = problem.task, problem.test.context
    oracle = task.surrogate()
    if method == "newton" and not oracle.has_conic_form:
        return math.nan
    return solver_regret(oracle, task, contexts, optimum=problem.optimum, method=method, tol=tol)


def _learn(cell: Cell, problem: Problem, config: Mapping[str, Any], make: Make, folder: Path | None) -> Learned:
    task = problem.task
    if cell.method == "oracle":
        return Learned(task.surrogate(), None, math.nan)
    if cell.method in POLICIES:
        return _learn_policy(cell.method, problem)
    base, setting = split(cell.method)

    def from_values() -> Learned:
        surrogate = make(base, cell.dim, context_dim=task.context_dim, seed=cell.seed)
        report, note = learn(surrogate, problem.train, problem.validation, config, cell.seed)
        model = cast(ConvexSurrogate, report.model)
        return Learned(model, model.parameter_count, report.seconds, note, fit=fit_fields(report))

    if folder is None:
        learned = from_values()
    else:
        learned = kept(folder / FOLDER / f"{EXPERIMENT.key(values_cell(cell))}.safetensors", from_values)
    if setting not in FROM_DECISIONS:
        return learned
    surrogate, more = cast(ConvexSurrogate, learned.model), (setting, cell.protocol, config, cell.seed)
    tuned = learn_from_decisions(surrogate, task, problem.train, problem.train_optimum, *more)
    return replace(learned, seconds=learned.seconds + tuned.seconds, step_seconds=tuned.step_seconds)


def _learn_policy(name: str, problem: Problem) -> Learned:
    """Fit a policy on the optima of the training instances, which the surrogates never see."""
    from soctk_baselines import AffinePolicy, ConstantDecision

    started = time.perf_counter()
    kind = {"constant": ConstantDecision, "affine": AffinePolicy}[name]
    policy = kind(problem.task.feasible_set).fit(problem.train.context, problem.train_optimum.x)
    return Learned(policy, policy.parameter_count, time.perf_counter() - started)


def _decision_method(surrogate: ConvexSurrogate, protocol: str) -> Method | Solver:
    """Return the protocol's method; a surrogate that brings its own CVXPY export (lpcf) is decided by that."""
    method = PROTOCOLS[protocol]
    if method is None:
        from soctk_baselines import CvxpyLayers

        return CvxpyLayers()
    return cast(Method, surrogate.decision_method) if method == "newton" else method


def _measurements(learned: Learned, scores: Scores, own: float, method: Method | Solver | None) -> dict[str, Any]:
    notes = [note for note in (learned.note, scores.status.removeprefix("ok")) if note]
    others = {"params", "regret_n", "solver_regret", "fit_seconds", "step_seconds", "decided_by", *FIT_FIELDS}
    return {name: getattr(scores, name) for name in MEASURED if name not in others} | {
        **learned.fit,
        "params": learned.params,
        "regret_n": len(scores.regret),
        "solver_regret": own,
        "fit_seconds": learned.seconds,
        "step_seconds": learned.step_seconds,
        "decided_by": method.name if isinstance(method, Solver) else method or "policy",
        "status": "; ".join(notes) or "ok",
    }


def protocol_code(cell: Cell) -> tuple[str, ...]:
    """Return the code that determines the decisions of protocols that do not certify theirs by our solver."""
    return {"exact": (), "paper": SOLVER, "cvxpylayers": ("soctk_baselines.cvxpy_layer",)}[cell.protocol]


KINDS, TEXT = ("markdown", "figure", "html", "csv", "latex", "readme", "overview"), ("decided_by", *FIT_FIELDS)
PAGES = {
    "readme": "README.md",
    "overview": "docs/results.md",
    "markdown": "docs/leaderboard.md",
    "figure": "docs/images/regret.svg",
}
EXPERIMENT = Experiment(
    "leaderboard",
    leaderboard_cells,
    run_cell,
    MEASURED,
    write_leaderboard,
    text=TEXT,
    kinds=KINDS,
    code=protocol_code,
    pages=PAGES,
)
