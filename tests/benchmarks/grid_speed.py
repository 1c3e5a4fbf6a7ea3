"""Time of a decision on a grid: learned and decided one at a time or in a batch, against the cone program of the whole.

    python tests/benchmarks/grid_speed.py --task opf_case24 --dim 9

Every way decides the same test contexts, over the set of each, in turns, in one process with one thread: from a file of
`soctk.to_runtime`, prepared, in a batch of 1,024 (the test contexts again and again), and as Clarabel solves the whole
program with its ordering kept from one context to the next. Each time is the median over the contexts, or over the
turns of the batch; ratios are to the cone program of the same run. The model is learned first, by the recipe of
`soctk leaderboard`, and kept in a file, which a second run takes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

import soctk
from soctk_evaluation.experiments.leaderboard import SIZES, Problem, config_of, load_problem
from soctk_evaluation.harness.recipe import learn
from soctk_tasks.grid.opf import Opf

BATCH = 1024


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        task: one of the grids' dispatches.
        dim: number of set-points.
        method: soc, or soc+focus for the mean of six.
        seed: of the data and of the initial weights.
        turns: of the whole comparison.
        model: the learned model's file, written where it does not exist; by default not kept.
    """

    task: str = "opf_case24"
    dim: int = 9
    method: str = "soc"
    seed: int = 0
    turns: int = 5
    model: Path | None = None


def model_of(options: Options, problem: Problem, config: dict[str, Any], path: Path) -> soctk.ConvexSurrogate:
    """Return the learned model, from its file if there is one."""
    if not path.exists():
        surrogate = soctk.make_surrogate(
            options.method.partition("+")[0], options.dim, context_dim=problem.task.context_dim, seed=options.seed
        )
        report, _ = learn(surrogate, problem.train, problem.validation, config, options.seed)
        print(f"learned in {report.seconds:.0f} s")
        soctk.save(report.model, path)
    return soctk.load(path)


def measure(options: Options, folder: Path) -> None:
    """Print one row for each way to decide."""
    config = dict(config_of(options.method, options.task, options.dim))
    problem = load_problem(options.task, options.dim, options.seed, *(config[name] for name in SIZES))
    task, contexts = problem.task, problem.test.context
    assert isinstance(task, Opf)
    model = model_of(options, problem, config, options.model or folder / "model.safetensors")
    sets = task.sets(contexts)
    soctk.to_runtime(model, sets.base, folder / "plan.soctk")
    file, prepared = soctk.runtime.load(folder / "plan.soctk"), soctk.prepare(model, sets.base)
    many = contexts.repeat(BATCH // len(contexts) + 1, 1)[:BATCH]
    dispatch = task.dispatch
    parameters = torch.cat([dispatch.parameters(contexts), dispatch.totals(contexts)], dim=1).numpy()
    arrays, sides = contexts.numpy(), sets.h.numpy()
    single: dict[str, Callable] = {
        "file, alone": lambda k: file(arrays[k], h=sides[k]),
        "prepared, alone": lambda k: prepared.minimize(contexts[k], h=sets.h[k]),
        "cone program": lambda k: dispatch.whole.solve(parameters[k]),
    }
    soctk.minimize(model, task.sets(many), many)  # compiles, and is not counted
    seconds: dict[str, list[float]] = {name: [] for name in [*single, "batch of 1,024"]}
    apart, optimal = 0.0, True
    for turn in range(-1, options.turns):  # the first is not counted
        answers = {}
        for name, function in single.items():
            for k in range(len(contexts)):
                started = time.perf_counter()
                answers[name, k] = function(k)
                if turn >= 0:
                    seconds[name].append(time.perf_counter() - started)
        started = time.perf_counter()
        batch = soctk.minimize(model, task.sets(many), many)
        if turn >= 0:
            seconds["batch of 1,024"].append((time.perf_counter() - started) / BATCH)
        for k in range(len(contexts)):
            one = answers["file, alone", k]
            optimal &= one.optimal and batch.status[k] == "optimal"
            apart = max(apart, float(np.abs(one.x - answers["prepared, alone", k].x.numpy()).max()))
    median = {name: float(np.median(each)) for name, each in seconds.items()}
    print("| way | ms | cone program ÷ this |\n| --- | ---: | ---: |")
    for name, each in median.items():
        print(f"| {name} | {1e3 * each:.3f} | {median['cone program'] / each:,.0f} |")
    print(f"all optimal: {optimal}; file and prepared apart by at most {apart:.1e}; {len(contexts)} contexts")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        measure(tyro.cli(Options), Path(temporary))
