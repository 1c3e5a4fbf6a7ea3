"""Run many cells in parallel so that nothing that is measured is ever lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from types import FrameType

from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.experiment import Experiment
from soctk_evaluation.harness.marks import marks_of
from soctk_evaluation.harness.progress import shown
from soctk_evaluation.harness.store import ResultsStore, StoreError
from soctk_evaluation.harness.workers import LATE, Job, Outcome, Work, run_here, run_on_dask

BACKENDS = ("loky", "dask")
BLIND_CRASHES = 3
"""So many deaths of workers in a row before any of them started a cell end the sweep."""


@dataclass
class SweepReport:
    """What a sweep did.

    Attributes:
        done: cells measured now.
        skipped: cells that were in the store already.
        failed: outcomes of the jobs that raised an exception; the next sweep runs them again.
        late: outcomes of the jobs that reached the time limit; a sweep with a larger one runs them again.
        quarantined: outcomes of the jobs that killed their worker twice; no sweep runs them again.
    """

    done: int = 0
    skipped: int = 0
    failed: list[Outcome] = field(default_factory=list)
    late: list[Outcome] = field(default_factory=list)
    quarantined: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        for beginning, found in ((LATE, self.late), ("failed", self.failed), ("quarantined", self.quarantined)):
            if outcome.status.startswith(beginning):
                found.append(outcome)
                return
        self.done += len(outcome.job.cells)


def run_cells(
    cells: Sequence[Cell],
    experiment: Experiment,
    store: ResultsStore,
    *,
    jobs: int = 1,
    backend: str = "loky",
    time_limit: float | None = None,
    progress: bool = True,
) -> SweepReport:
    """Run the cells that the store does not have, each in a worker that stores its own row.

    A cell that raises an exception gets a row with status "failed: ..."; the others go on, and the next call
    runs it again. When a worker dies the cells in flight are lost and run again, each alone; one that kills
    its worker a second time gets a row with status "quarantined: ...". Workers end with this process however
    it ends. Cells start in the order given, so give long ones first.

    Args:
        cells: what to measure.
        experiment: how to measure them.
        store: where the rows go.
        jobs: worker processes; with "dask" the cluster's size decides.
        backend: "loky" (this machine) or "dask" (the current `distributed.Client`'s cluster; every worker
            must see the store's folder).
        time_limit: seconds that a cell may take; one that takes longer gets a row with status "failed: time limit ..."
            and is run again only with a larger limit.
        progress: show a progress bar on stderr, or a line for each finished cell where that is no terminal.

    Raises:
        ValueError: an unknown backend, jobs < 1, or a time limit that is not positive.
        StoreError: the store or its folder cannot be written, or workers die before they start any cell.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if jobs < 1:
        raise ValueError(f"jobs: expected at least 1, got {jobs}")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit: expected a positive number, got {time_limit}")
    finished = store.done(time_limit)
    queue = [job for job in _jobs(experiment, cells) if not finished.issuperset(job.keys)]
    report = SweepReport(skipped=len(set(cells)) - sum(len(job.cells) for job in queue))
    if not queue:
        return report
    with marks_of(store) as marks, shown(len(queue), enabled=progress) as show, _interrupts() as heed:
        work = Work(experiment.run, store, marks, experiment.measured, time_limit)
        for outcome in _outcomes(work, queue, jobs, backend):
            report.add(outcome)
            show(outcome)
            heed()
    return report


def _jobs(experiment: Experiment, cells: Sequence[Cell]) -> list[Job]:
    """Return the cells as jobs, those together that the experiment measures together."""
    groups: dict[Hashable, dict[Cell, None]] = {}
    for cell in cells:
        groups.setdefault(experiment.together(cell), {})[cell] = None
    return [
        Job(tuple(group), tuple(map(experiment.key, group)), tuple(map(experiment.versions, group)))
        for group in groups.values()
    ]


def _outcomes(work: Work, queue: list[Job], jobs: int, backend: str) -> Iterator[Outcome]:
    """Yield one outcome for each job, going on with a new pool after every worker that dies."""
    pending = {job.key: job for job in queue}
    suspects: list[Job] = []
    blind = 0
    while pending:
        try:
            waiting = list(pending.values())
            run = run_on_dask if backend == "dask" else run_here
            for outcome in run(work, waiting, jobs):
                blind = 0
                del pending[outcome.job.key]
                yield outcome
        except _dead_worker_errors() as error:
            found = [(pending.pop(key), seconds) for key, seconds in work.marks.left().items() if key in pending]
            blind = 0 if found else blind + 1
            if blind == BLIND_CRASHES:
                raise StoreError(f"workers die before they start a cell ({error})") from None
            yield from (work.late(job, seconds) for job, seconds in found if work.overdue(seconds))
            suspects += [job for job, seconds in found if not work.overdue(seconds)]
    for job in suspects:
        yield from _second_try(work, job)


def _second_try(work: Work, job: Job) -> Iterator[Outcome]:
    """Run a cell whose worker died, alone: dying again, it is the cause."""
    try:
        yield from run_here(work, [job], 1)
    except BrokenProcessPool:
        seconds = work.marks.left().get(job.key, 0.0)
        yield work.late(job, seconds) if work.overdue(seconds) else work.quarantine(job)


def _dead_worker_errors() -> tuple[type[BaseException], ...]:
    """Return what a backend raises when a worker dies."""
    with contextlib.suppress(ImportError):
        from distributed import KilledWorker  # type: ignore[import-not-found]

        return (BrokenProcessPool, KilledWorker)
    return (BrokenProcessPool,)


@contextlib.contextmanager
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
