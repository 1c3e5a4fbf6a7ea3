"""What runs inside a worker of a sweep, and the pools of workers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, cast

from threadpoolctl import threadpool_info

from soctk.processes import end_workers, ignore_interrupts, interrupts_held
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.compiling import wait_for_compiled_code
from soctk_evaluation.harness.limits import TimeLimitError, time_limit
from soctk_evaluation.harness.marks import Marks
from soctk_evaluation.harness.store import TIME_LIMIT, ResultsStore, Row

PR_SET_PDEATHSIG = 1
FREED_IS_KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""For the C library of Linux: arrays of up to 32 MB, which every step of a fit makes, get memory that was freed before.
Otherwise it gives this back to the system and asks for it again, in about a tenth of a fit's time."""
LATE = "failed: time limit"
"""How the status of a cell begins that took too long."""


@dataclass(frozen=True)
class Job:
    """Cells whose rows are stored together, most often one; keys and versions are fixed before the sweep starts."""

    cells: tuple[Cell, ...]
    keys: tuple[str, ...]
    versions: tuple[dict[str, str], ...]

    @property
    def name(self) -> str:
        """The job in words, for progress lines."""
        first, more = self.cells[0], len(self.cells) - 1
        return first.name + (f" and {more} more" if more else "")

    @property
    def key(self) -> str:
        """The key of its first cell, which no other job has."""
        return self.keys[0]


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its status ("ok", "failed: ...", "quarantined: ...") and the seconds it took."""

    job: Job
    status: str
    seconds: float


@dataclass(frozen=True)
class Work:
    """Runs jobs in a worker: measures, then appends the rows to the store itself.

    The names in `measured` are null in the row of a cell that failed; `time_limit` is in seconds for each cell.
    """

    run_cell: Callable[[Cell, Path], Mapping[str, Any]]
    store: ResultsStore
    marks: Marks
    measured: tuple[str, ...] = ()
    time_limit: float | None = None

    def __call__(self, job: Job) -> Outcome:
        """Run a job; an exception becomes rows with status "failed: ..." and is not raised."""
        wait_for_compiled_code()
        clock = time.perf_counter()
        if self.store.done(self.time_limit).issuperset(job.keys):
            return Outcome(job, "ok (already stored)", 0.0)
        try:
            rows = [self._measure(job, index) for index in range(len(job.cells))]
        except TimeLimitError:
            return self.late(job, time.perf_counter() - clock)
        except (Exception, SystemExit) as error:  # whatever code of others does
            return self._failed(job, f"failed: {one_line(error)}", time.perf_counter() - clock)
        self.store.append(*rows)
        self.marks.end(job.key)
        status = next((row["status"] for row in rows if row["status"] != "ok"), "ok")
        return Outcome(job, status, time.perf_counter() - clock)

    def late(self, job: Job, seconds: float) -> Outcome:
        """Store that a cell took longer than it may."""
        return self._failed(job, f"{LATE} of {self.time_limit:g} s", seconds, {TIME_LIMIT: self.time_limit})

    def quarantine(self, job: Job) -> Outcome:
        """Store that the job kills whatever runs it, so that no later sweep tries it again."""
        return self._failed(job, "quarantined: killed its worker twice", 0.0)

    def overdue(self, seconds: float) -> bool:
        """Return whether a cell that died after so many seconds did so because it took too long."""
        return self.time_limit is not None and seconds >= self.time_limit

    def _measure(self, job: Job, index: int) -> Row:
        machine()  # takes a second in a new process, which is none of the cell's
        started = datetime.now(UTC)
        self.marks.start(job.key)
        with time_limit(self.time_limit, own_process=_is_worker):
            measurements = dict(self.run_cell(job.cells[index], self.store.folder))
        return self._row(job, index, {"status": "ok", **measurements}, started)

    def _failed(self, job: Job, status: str, seconds: float, more: Mapping[str, Any] | None = None) -> Outcome:
        fields = {"status": status, **(more or {})}
        self.store.append(*(self._row(job, index, fields, datetime.now(UTC)) for index in range(len(job.cells))))
        self.marks.end(job.key)
        return Outcome(job, status, seconds)

    def _row(self, job: Job, index: int, fields: Mapping[str, Any], started: datetime) -> Row:
        """Return the whole row: what the cell is, what was measured, and where and when."""
        identity = job.cells[index].identity
        return {
            **{name: value for name, value in identity.items() if name != "config"},
            **dict.fromkeys(self.measured),
            **{name: value for name, value in fields.items() if name != "status"},
            "status": str(fields["status"]),
            "key": job.keys[index],
            "config": identity["config"],
            "versions": job.versions[index],
            "machine": machine(),
            "started": started.isoformat(timespec="seconds"),
        }


def one_line(error: BaseException) -> str:
    """Return the error's type and message on one line of at most 300 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")[:300]


@cache
def machine() -> str:
    """Return this machine in words: processor, cores, a GPU if there is one, system. No name or address.

    Beside the processor stand the vector instructions that PyTorch uses and the processor whose code OpenBLAS uses
    (which `OPENBLAS_CORETYPE` chooses): other code sums in another order, and a fit ends at slightly other weights.
    """
    import torch  # takes a second

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.processor() or platform.machine()
    gpu = (torch.cuda.get_device_name(),) if torch.cuda.is_available() else ()
    vectors = ", ".join((torch.backends.cpu.get_cpu_capability(), *_openblas()))
    system = (platform.system(), f"Python {platform.python_version()}")
    return ", ".join((f"{processor} ({vectors})", f"{os.cpu_count()} cores", *gpu, *system))


def _openblas() -> list[str]:
    """Return whose code OpenBLAS uses: in the wheels of NumPy and SciPy, if it is there; some solvers bring another."""
    libraries = [library for library in threadpool_info() if library["internal_api"] == "openblas"]
    theirs = [library for library in libraries if library["prefix"] == "libscipy_openblas"]
    return sorted({f"OpenBLAS {library['architecture']}" for library in theirs or libraries})


_is_worker = False


def prepare_worker(parent: int) -> None:
    """Tie this worker's life to its parent's and leave Ctrl-C to the parent.

    Without this, killing the parent leaves the workers running and writing. Linux only; elsewhere workers end
    when their queue breaks.
    """
    global _is_worker
    _is_worker = True
    ignore_interrupts()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def run_here(work: Work, jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Run jobs in processes of this machine, outcomes as they come; a worker's death ends all with an error."""
    from joblib.externals.loky import ProcessPoolExecutor

    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    env = {name: usual for name, usual in FREED_IS_KEPT.items() if name not in os.environ} | limits
    workers = min(workers, len(jobs))
    # Workers grow by design (`FREED_IS_KEPT`): that loky replaces one, between two cells, is no news.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor", UserWarning)
    pool = ProcessPoolExecutor(workers, initializer=prepare_worker, initargs=(os.getpid(),), env=env)
    waiting, running = iter(jobs), set[Future[Outcome]]()
    try:
        while True:
            # A cell for each worker and none waiting in the pool: the marks then name exactly the cells in flight.
            with interrupts_held():
                running |= {pool.submit(work, job) for job in islice(waiting, workers - len(running))}
            if not running:
                return
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield future.result()
    finally:
        end_workers(pool, running)


def run_on_dask(work: Work, jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Run jobs on the current dask client's cluster, outcomes as they come; a worker's death ends all with an error."""
    from joblib import Parallel, delayed, parallel_config

    with parallel_config(backend="dask", n_jobs=workers):
        pool = Parallel(return_as="generator_unordered", batch_size=cast(Any, 1), pre_dispatch="n_jobs")
        with interrupts_held():
            outcomes = cast(Generator[Outcome, None, None], pool(delayed(work)(job) for job in jobs))
        with contextlib.closing(outcomes):
            yield from outcomes
