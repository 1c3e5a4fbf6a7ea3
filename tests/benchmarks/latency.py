"""Time of one decision at a time, from a file of `soctk.to_runtime` and prepared; memory and start of a process.

    python tests/benchmarks/latency.py --calls 20000

The two decide the same contexts in turns, in one process with one thread. What starts is a process of its own for each:
it loads what it needs and decides once. Its memory is the most that was resident. Columns of the first table: p50, p99
and p99.9 of what passed, then of the processor's time, which other work on the machine does not lengthen; microseconds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

import soctk
from soctk_evaluation.experiments.timing import SETS, example

STARTS = {
    "runtime": "from soctk import runtime; runtime.load('{folder}/plan.soctk')({context})",
    "prepared": (
        "import soctk, torch; torch.set_num_threads(1); "
        "soctk.prepare(soctk.load('{folder}/model.safetensors'), soctk.{feasible_set!r})"
        ".minimize(torch.tensor({context}, dtype=torch.float64))"
    ),
}
SAID = "; print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        calls: decisions of each kind.
        model: "compact" or "wide", as `soctk timing` has them.
        feasible_set: "simplex", "box", "budget", or "rows": a sum and half as many inequalities as variables.
        dims: of decisions.
        starts: processes of each kind, none for "rows".
    """

    calls: int = 20_000
    model: str = "compact"
    feasible_set: str = "simplex"
    dims: tuple[int, ...] = (10, 50)
    starts: int = 7


def measure(options: Options, dim: int, folder: Path) -> None:
    """Print one dimension's rows of the tables."""
    model, feasible_set = example(options.model, dim), (SETS | {"rows": rows})[options.feasible_set](dim)
    random = torch.Generator().manual_seed(0)
    contexts = torch.randn(options.calls, model.context_dim, generator=random, dtype=torch.float64)
    soctk.save(model, folder / "model.safetensors")
    soctk.to_runtime(model, feasible_set, folder / "plan.soctk")
    decide, prepared = soctk.runtime.load(folder / "plan.soctk"), soctk.prepare(model, feasible_set)
    kinds: dict[str, tuple[Callable, list]] = {
        "runtime": (decide, list(contexts.numpy())),
        "prepared": (prepared.minimize, [context.clone() for context in contexts]),
    }
    seconds, apart, optimal = {kind: np.empty((2, options.calls)) for kind in kinds}, 0.0, 0
    for k in range(-200, options.calls):  # the first are not counted
        answers = []
        for kind, (function, given) in kinds.items():
            started, used = time.perf_counter(), time.thread_time()
            answers.append(function(given[k]))
            if k >= 0:
                seconds[kind][:, k] = time.perf_counter() - started, time.thread_time() - used
        apart = max(apart, float(np.abs(answers[0].x - answers[1].x.numpy()).max()))
        optimal += k >= 0 and answers[0].optimal
    for kind, times in seconds.items():
        found = (1e6 * np.quantile(each, share) for each in times for share in (0.5, 0.99, 0.999))
        print(f"| {dim} | {kind} | " + " | ".join(f"{each:.0f}" for each in found) + " |")
    size = (folder / "plan.soctk").stat().st_size / 2**20
    print(f"optimal {optimal / options.calls:.4f}, decisions apart by at most {apart:.1e}, file of {size:.2f} MiB")
    for kind, text in STARTS.items() if options.feasible_set != "rows" else ():
        code = text.format(folder=folder, context=contexts[0].tolist(), feasible_set=feasible_set) + SAID
        found = [start(code) for _ in range(options.starts)]
        took, memory = (statistics.median(each) for each in zip(*found, strict=True))
        print(f"| {dim} | {kind} | {took:.2f} s | {memory / 1024:.0f} MiB |")


def rows(dim: int) -> soctk.Polyhedron:
    """Return {0 <= x <= 1, sum(x) = 0.3 n, G x <= h}, some of whose rows bind."""
    G = np.random.default_rng(0).normal(size=(dim // 2, dim))
    return soctk.Polyhedron(dim, 0.0, 1.0, E=np.ones(dim), f=0.3 * dim, G=G, h=0.3 * G.sum(axis=1) + 0.1)


def start(code: str) -> tuple[float, float]:
    """Return how long a process took from its start to its end, and its memory in KiB."""
    started = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SOCTK_COMPILE": "wait"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return time.perf_counter() - started, float(said.stdout)


def main(options: Options) -> None:
    """Measure every dimension."""
    torch.set_num_threads(1)
    for dim in options.dims:
        with tempfile.TemporaryDirectory() as folder:
            measure(options, dim, Path(folder))


if __name__ == "__main__":
    main(tyro.cli(Options))
