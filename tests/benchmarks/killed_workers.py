"""Decides many contexts on a cluster of this machine's whose workers are killed at random; checks that none is lost.

    python tests/benchmarks/killed_workers.py FOLDER --contexts 10000000 --workers 4 --seconds-between-kills 20

FOLDER gets the contexts, the model and the decisions. `soctk decide` runs as it would for anyone.
`--seconds-between-kills 0` kills nobody and measures the throughput alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import dask
import distributed
import numpy as np
import pandas as pd
import tyro
from pyarrow import parquet

import soctk

ROOMY = str(2**28)
"""Bytes that an allocation may have before its memory goes back to the system: dask's workers give back at 64 KiB."""
DIM, CONTEXT_DIM = 10, 5
FILES = 10


@dataclass(frozen=True)
class Options:
    """What is decided and who is killed.

    Attributes:
        folder: where everything is written.
        contexts: how many.
        workers: processes with one thread each.
        seconds_between_kills: on average; 0 for none.
        rows_at_once: contexts of a piece.
        seed: of contexts, weights and deaths.
    """

    folder: tyro.conf.Positional[Path]
    contexts: int = 10_000_000
    workers: int = 4
    seconds_between_kills: float = 20.0
    rows_at_once: int = 50_000
    seed: int = 0


def make_inputs(options: Options) -> None:
    """Write the contexts, ten files with an id in order, and a model with random weights."""
    random = np.random.default_rng(options.seed)
    contexts = options.folder / f"contexts-{options.contexts}"
    if contexts.exists():
        return
    contexts.mkdir(parents=True)
    for number, ids in enumerate(np.array_split(np.arange(options.contexts), FILES)):
        frame = pd.DataFrame(random.normal(size=(len(ids), CONTEXT_DIM)))
        frame.columns = [f"context_{k}" for k in range(CONTEXT_DIM)]
        frame.insert(0, "id", ids)
        frame.to_parquet(contexts / f"part.{number}.parquet", index=False)
    model = soctk.make_surrogate("soc", DIM, CONTEXT_DIM, seed=options.seed)
    soctk.save(model, options.folder / "model.safetensors")


class Killer(threading.Thread):
    """Kills workers at random moments, as a machine that fails does: without a word."""

    def __init__(self, cluster: distributed.LocalCluster, options: Options) -> None:
        super().__init__(daemon=True)
        self.cluster, self.mean = cluster, options.seconds_between_kills
        self.random, self.ended, self.kills = np.random.default_rng(options.seed), threading.Event(), 0

    def run(self) -> None:
        while not self.ended.wait(self.random.exponential(self.mean)):
            alive = [nanny.pid for nanny in self.cluster.workers.values() if nanny.pid]
            if alive:
                os.kill(int(self.random.choice(alive)), signal.SIGKILL)
                self.kills += 1


def decide(options: Options) -> tuple[float, int]:
    """Run the command and return its seconds and how many workers were killed meanwhile."""
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        os.environ.setdefault(name, ROOMY)
    # A worker that is slow to come back is waited for.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})
    limits = {"n_workers": options.workers, "threads_per_worker": 1, "memory_limit": 0, "dashboard_address": None}
    with distributed.LocalCluster(**limits) as cluster:
        killer = Killer(cluster, options)
        command = ["decide", "model.safetensors", f"contexts-{options.contexts}", "--output", "plan", "--keep", "id"]
        command += ["--set", "box", "--rows-at-once", str(options.rows_at_once)]
        started = time.perf_counter()
        if options.seconds_between_kills > 0:
            killer.start()
        program = [sys.executable, "-m", "soctk_evaluation.cli", *command, "--scheduler", cluster.scheduler_address]
        subprocess.run(program, cwd=options.folder, check=True)
        seconds = time.perf_counter() - started
        killer.ended.set()
        return seconds, killer.kills


def check(options: Options) -> None:
    """Raise AssertionError unless every context is there once, in order, with a decision inside of the box."""
    at = 0
    for path in sorted((options.folder / "plan").iterdir()):
        table = parquet.read_table(path)
        assert np.array_equal(table["id"].to_numpy(), np.arange(at, at + len(table))), path
        x = np.stack([table[f"x_{k}"].to_numpy() for k in range(DIM)], axis=1)
        assert ((x >= 0) & (x <= 1)).all(), path
        at += len(table)
    assert at == options.contexts, (at, options.contexts)


if __name__ == "__main__":
    options = tyro.cli(Options, description=__doc__)
    make_inputs(options)
    shutil.rmtree(options.folder / "plan", ignore_errors=True)  # of an earlier run
    seconds, kills = decide(options)
    check(options)
    rate = options.contexts / seconds
    print(
        f"{options.contexts} contexts, {options.workers} workers, {kills} killed: {seconds:.0f} s, {rate:.0f} a second"
    )
    print("every context is decided once, in order")
