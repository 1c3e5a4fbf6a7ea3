"""Run many cells in parallel so that nothing that is measured is ever lost."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from soctk_evaluation.cells import Cell
from soctk_evaluation.store import ResultsStore
from soctk_evaluation.workers import Job, Outcome, RunCell, Work, run_alone, run_parallel

BACKENDS = ("loky", "dask")
BLIND_CRASHES = 3
"""So many deaths of workers in a row before any of them started a cell end the sweep."""

Report = Callable[[Outcome], None]


@dataclass
class SweepReport:
    """What a sweep did.

    Attributes:
        done: cells measured now.
        skipped: cells that were in the store already.
        failed: outcomes of the cells that raised an exception; the next sweep runs them again.
        quarantined: outcomes of the cells that killed their worker twice; no sweep runs them again.
    """

    done: int = 0
    skipped: int = 0
    failed: list[Outcome] = field(default_factory=list)
    quarantined: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        if outcome.status.startswith("failed"):
            self.failed.append(outcome)
        elif outcome.status.startswith("quarantined"):
            self.quarantined.append(outcome)
        else:
            self.done += 1


def run_cells(
    cells: Sequence[Cell],
    run_cell: RunCell,
    store: ResultsStore,
    *,
    jobs: int = 1,
    backend: str = "loky",
    progress: bool = True,
    measured: Sequence[str] = (),
) -> SweepReport:
    """Run the cells that the store does not have, each in a worker that stores its own row.

    A cell that raises an exception gets a row with status "failed: ..."; the others go on, and the next call
    runs it again. When a worker dies the cells in flight are lost and run again, each alone; one that kills
    its worker a second time gets a row with status "quarantined: ...". Workers end with this process however
    it ends. Cells start in the order given, so give long ones first.

    Args:
        cells: what to measure.
        run_cell: importable function, cell -> measurements, with an optional "status" among them.
        store: where the rows go.
        jobs: worker processes; with "dask" the cluster's size decides.
        backend: "loky" (this machine) or "dask" (the current `distributed.Client`'s cluster; every worker
            must see the store's folder).
        progress: show a progress bar on stderr, or a line for each finished cell where that is no terminal.
        measured: names that are null in the row of a cell without measurements.

    Raises:
        ValueError: an unknown backend, or jobs < 1.
        StoreError: the store cannot be written.
        RuntimeError: workers die before they start any cell.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if jobs < 1:
        raise ValueError(f"jobs: expected at least 1, got {jobs}")
    finished = store.done()
    unique = list(dict.fromkeys(cells))
    queue = [job for job in (Job(cell, cell.key, cell.versions) for cell in unique) if job.key not in finished]
    report = SweepReport(skipped=len(unique) - len(queue))
    with _marks(store, backend) as marks, _shown(len(queue), enabled=progress) as show, _interrupts() as heed:
        work = Work(run_cell, store, marks, tuple(measured))
        for outcome in _outcomes(work, queue, jobs, backend):
            report.add(outcome)
            show(outcome)
            heed()
    return report


def _outcomes(work: Work, queue: list[Job], jobs: int, backend: str) -> Iterator[Outcome]:
    """Yield one outcome for each job, going on with a new pool after every worker that dies."""
    pending = {job.key: job for job in queue}
    suspects: dict[str, Job] = {}
    blind = 0
    while pending:
        try:
            for outcome in _run(work, list(pending.values()), jobs, backend):
                blind = 0
                del pending[outcome.job.key]
                yield outcome
        except _dead_worker_errors() as error:
            found = {key: pending.pop(key) for key in work.suspects() if key in pending}
            blind = 0 if found else blind + 1
            if blind == BLIND_CRASHES:
                raise RuntimeError(f"workers die before they start a cell ({error})") from None
            suspects |= found
    for job in suspects.values():
        yield from _second_try(work, job)


def _run(work: Work, queue: list[Job], jobs: int, backend: str) -> Iterator[Outcome]:
    return run_alone(work, queue) if backend == "loky" and jobs == 1 else run_parallel(work, queue, jobs, backend)


def _second_try(work: Work, job: Job) -> Iterator[Outcome]:
    """Run a cell whose worker died, alone: dying again, it is the cause."""
    try:
        yield from run_alone(work, [job])
    except BrokenProcessPool:
        work.suspects()
        yield work.quarantine(job)


def _dead_worker_errors() -> tuple[type[BaseException], ...]:
    """Return what a backend raises when a worker dies."""
    try:
        from distributed import KilledWorker  # type: ignore[import-not-found]
    except ImportError:
        return (BrokenProcessPool,)
    return (BrokenProcessPool, KilledWorker)


@contextmanager
def _marks(store: ResultsStore, backend: str) -> Iterator[Path]:
    """Make the folder of the cells in flight; beside the store where workers are on other machines."""
    if backend == "dask":
        store.path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".running-", dir=store.path.parent if backend == "dask" else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt when Ctrl-C was pressed but its exception came to nothing.

    Python drops an exception that a signal raises inside a callback of the garbage collector; the workers, whom the
    terminal signals too, then look like crashed ones, and the sweep would go on.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: None
        return
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        before(number, frame)

    def heed() -> None:
        if pressed:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, press)
    try:
        yield heed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _shown(total: int, *, enabled: bool) -> Iterator[Report]:
    """Yield a function that shows an outcome: a moving bar on a terminal, else a line each."""
    console = Console(stderr=True)
    if not enabled or total == 0:
        yield lambda outcome: None
    elif console.is_terminal:
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("starting", total=total)
            counts: Counter[str] = Counter()

            def advance(outcome: Outcome) -> None:
                counts[outcome.status.split(":")[0]] += 1
                bar.update(task, advance=1, description=outcome.job.cell.name)
                if outcome.status.startswith(("failed", "quarantined")):
                    bar.console.print(f"{outcome.job.cell.name}: {outcome.status}", markup=False, highlight=False)

            yield advance
    else:
        yield _line_printer(console, total)


def _line_printer(console: Console, total: int) -> Report:
    count = 0

    def line(outcome: Outcome) -> None:
        nonlocal count
        count += 1
        text = f"[{count}/{total}] {outcome.job.cell.name}: {outcome.status} ({outcome.seconds:.1f} s)"
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return line
