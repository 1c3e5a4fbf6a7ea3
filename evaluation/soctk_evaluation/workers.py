"""What runs inside a worker of a sweep, and how a worker that dies gives away the cell it was running."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, cast

from soctk_evaluation.cells import Cell, machine
from soctk_evaluation.store import ResultsStore, Row

RunCell = Callable[[Cell], Mapping[str, Any]]

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """One cell with the key and versions its result is stored under, fixed before the sweep starts."""

    cell: Cell
    key: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """How one cell ended: its status ("ok", "failed: ...", "quarantined: ...") and the seconds it took."""

    job: Job
    status: str
    seconds: float


@dataclass(frozen=True)
class Work:
    """Runs jobs in a worker: measures, then appends the row to the store itself.

    Attributes:
        run_cell: cell -> its measurements.
        store: where the row goes.
        marks: a folder with one file for each cell that is being run.
        measured: the measurements' names, null in the row of a cell that failed.
    """

    run_cell: RunCell
    store: ResultsStore
    marks: Path
    measured: tuple[str, ...] = ()

    def __call__(self, job: Job) -> Outcome:
        """Run one cell; an exception becomes a row with status "failed: ..." and is not raised."""
        started, clock = datetime.now(UTC), time.perf_counter()
        if job.key in self.store.done():
            return Outcome(job, "ok (already stored)", 0.0)
        mark = self.marks / job.key
        mark.touch()
        try:
            measurements = dict(self.run_cell(job.cell))
            status = str(measurements.pop("status", "ok"))
        except Exception as error:
            measurements, status = {}, f"failed: {one_line(error)}"
        self.store.append(self.row(job, measurements, status, started))
        mark.unlink(missing_ok=True)
        return Outcome(job, status, time.perf_counter() - clock)

    def quarantine(self, job: Job) -> Outcome:
        """Store that the cell kills whatever runs it, so that no later sweep tries it again."""
        status = "quarantined: killed its worker twice"
        self.store.append(self.row(job, {}, status, datetime.now(UTC)))
        return Outcome(job, status, 0.0)

    def row(self, job: Job, measurements: Mapping[str, Any], status: str, started: datetime) -> Row:
        """Return the whole row: what the cell is, what was measured, and where and when."""
        return {
            **{name: value for name, value in job.cell.identity.items() if name != "config"},
            **dict.fromkeys(self.measured),
            **measurements,
            "status": status,
            "key": job.key,
            "config": dict(job.cell.config),
            "versions": job.versions,
            "machine": machine(),
            "started": started.isoformat(timespec="seconds"),
        }

    def suspects(self) -> set[str]:
        """Return the keys of the cells that were being run when a worker died, and forget them."""
        found = {mark.name for mark in self.marks.iterdir()}
        for name in found:
            (self.marks / name).unlink(missing_ok=True)
        return found


def one_line(error: BaseException) -> str:
    """Return the error's type and message on one line of at most 300 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")[:300]


def prepare_worker(parent: int) -> None:
    """Tie this worker's life to its parent's and leave Ctrl-C to the parent.

    Without this, killing the parent leaves the workers running and writing. Linux only; elsewhere workers end
    when their queue breaks.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back for the moment in which workers are started, and let it come after that.

    Workers and the threads that start further ones inherit the blocked signal, so that a Ctrl-C, which a terminal
    sends to all of them, never meets a worker that is still starting. Another thread of this process may still take
    the signal for all of it: the handler remembers that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from joblib.externals.loky.backend import resource_tracker

    resource_tracker.ensure_running()  # its start unblocks the signal
    pressed: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if pressed and callable(before):
            before(*pressed[0])


def run_parallel(work: Work, jobs: Iterable[Job], workers: int, backend: str) -> Iterator[Outcome]:
    """Run jobs in a pool, outcomes as they come; a worker's death ends the whole pool with an error."""
    from joblib import Parallel, delayed, parallel_config

    options: dict[str, Any] = {}
    if backend == "loky":
        options = {"inner_max_num_threads": 1, "initializer": prepare_worker, "initargs": (os.getpid(),)}
    with parallel_config(backend=backend, n_jobs=workers, **options):
        # One cell a task, and none waiting in the pool: the marks then name exactly the cells in flight.
        pool = Parallel(return_as="generator_unordered", batch_size=cast(Any, 1), pre_dispatch="n_jobs")
        with interrupts_held():
            outcomes = cast(Generator[Outcome, None, None], pool(delayed(work)(job) for job in jobs))
        with contextlib.closing(outcomes):
            yield from outcomes


def run_alone(work: Work, jobs: Iterable[Job]) -> Iterator[Outcome]:
    """Run jobs one after the other in one worker process, so that its death has one possible cause."""
    from joblib.externals.loky import ProcessPoolExecutor

    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    pool = ProcessPoolExecutor(1, initializer=prepare_worker, initargs=(os.getpid(),), env=limits)
    try:
        for job in jobs:
            with interrupts_held():
                future = pool.submit(work, job)
            yield future.result()
    finally:
        pool.shutdown(wait=True, kill_workers=True)
