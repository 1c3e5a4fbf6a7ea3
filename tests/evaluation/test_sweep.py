"""Real faults of a sweep: exceptions, killed workers, a killed parent, two sweeps at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fake_cells
import pytest
import support

from soctk_evaluation.harness.limits import TimeLimitError, time_limit
from soctk_evaluation.harness.store import ResultsStore, StoreError
from soctk_evaluation.harness.sweep import run_cells
from soctk_evaluation.harness.workers import FREED_IS_KEPT


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def starts(folder: Path) -> dict[int, int]:
    """Return how often each cell was started."""
    return {int(trace.name[4:]): len(trace.read_text()) for trace in folder.glob("ran-*")}


def alive(folder: Path) -> list[int]:
    """Return the workers that are still running (not zombies)."""
    found = []
    for trace in folder.glob("pid-*"):
        stat = Path(f"/proc/{trace.name[4:]}/stat")
        try:
            state = stat.read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            found.append(int(trace.name[4:]))
    return found


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    return ResultsStore(tmp_path / "results.jsonl")


def statuses(store: ResultsStore) -> dict[int, str]:
    return {one["seed"]: one["status"] for one in store.read().latest().values()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_second_run_has_nothing_to_do(store: ResultsStore, tmp_path: Path, jobs: int) -> None:
    folder = tmp_path / "trace"
    assert support.sweep("good", store.path, folder, 4, jobs) == "done=4 skipped=0 failed=0 quarantined=0"
    assert support.sweep("good", store.path, folder, 4, jobs) == "done=0 skipped=4 failed=0 quarantined=0"
    assert starts(folder) == dict.fromkeys(range(4), 1)
    assert {one["score"] for one in store.read().rows} == {0.0, 1.0, 2.0, 3.0}


@pytest.mark.skipif(sys.platform != "linux", reason="memory of the C library of Linux")
def test_memory_that_is_freed_is_used_again(
    store: ResultsStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FREED_IS_KEPT:  # dask sets one, for its own workers
        monkeypatch.delenv(name, raising=False)
    support.sweep("filling", store.path, tmp_path / "trace", 1, 1)
    assert store.read().rows[0]["score"] < 10
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")  # what is set already stays
    support.sweep("filling", store.path, tmp_path / "trace", 2, 1)
    assert store.read().rows[1]["score"] > 10


def test_an_exception_is_a_failed_row_and_is_run_again(store: ResultsStore, tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    assert support.sweep("raising", store.path, folder, 3, 2) == "done=2 skipped=0 failed=1 quarantined=0"
    assert statuses(store) == {0: "ok", 1: "failed: ValueError: not this one", 2: "ok"}
    assert [one["score"] for one in store.read().rows if one["seed"] == 1] == [None]
    (folder / "mended").touch()
    assert support.sweep("raising", store.path, folder, 3, 2) == "done=1 skipped=2 failed=0 quarantined=0"
    assert set(statuses(store).values()) == {"ok"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_worker_killed_once_costs_nothing(store: ResultsStore, tmp_path: Path, jobs: int) -> None:
    folder = tmp_path / "trace"
    assert support.sweep("dies_once", store.path, folder, 6, jobs) == "done=6 skipped=0 failed=0 quarantined=0"
    assert statuses(store) == dict.fromkeys(range(6), "ok")
    assert len(store.read().rows) == 6
    assert starts(folder)[2] == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_that_kills_its_worker_twice_is_quarantined(store: ResultsStore, tmp_path: Path, jobs: int) -> None:
    folder = tmp_path / "trace"
    assert support.sweep("dies_always", store.path, folder, 6, jobs) == "done=5 skipped=0 failed=0 quarantined=1"
    quarantined = {seed for seed, status in statuses(store).items() if status.startswith("quarantined")}
    assert quarantined == {2}
    assert starts(folder)[2] == 2
    assert support.sweep("dies_always", store.path, folder, 6, jobs) == "done=0 skipped=6 failed=0 quarantined=0"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("jobs", [1, 2])
def test_no_orphans_when_the_parent_ends_and_a_restart_runs_only_what_is_missing(
    store: ResultsStore, tmp_path: Path, ending: signal.Signals, jobs: int
) -> None:
    folder = tmp_path / "trace"
    process = support.start_sweep("slow", store.path, folder, 5, jobs)
    try:
        wait_until(lambda: len(store.done()) == 2 and len(starts(folder)) >= 2 + jobs)
        assert alive(folder)
        if ending == signal.SIGINT:
            os.killpg(process.pid, ending)  # as a terminal does: to the workers too
        else:
            process.send_signal(ending)
        process.communicate(timeout=20)
        wait_until(lambda: not alive(folder), seconds=10)
    finally:
        process.kill()
        process.wait()
    assert len(store.done()) == 2
    (folder / "quick").touch()
    assert support.sweep("slow", store.path, folder, 5, jobs) == "done=3 skipped=2 failed=0 quarantined=0"
    assert (starts(folder)[0], starts(folder)[1]) == (1, 1)


def test_two_sweeps_on_one_store_leave_no_bad_line_and_count_no_cell_twice(store: ResultsStore, tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    both = [support.start_sweep("dies_once", store.path, folder, 12, 1) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    contents = store.read()
    assert contents.bad == []
    assert sorted(one["seed"] for one in contents.latest().values()) == list(range(12))
    assert set(statuses(store).values()) == {"ok"}


def test_a_full_disk_stops_the_sweep_with_a_clear_error_and_a_resume_works(store: ResultsStore, tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    folder.mkdir()
    support.sweep("good", store.path, folder, 1, 1)
    limit = store.path.stat().st_size + 100
    script = f"""
import resource, fake_cells
from soctk_evaluation.harness.store import ResultsStore, StoreError
from soctk_evaluation.harness.sweep import run_cells
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
try:
    run_cells([fake_cells.cell(seed, {str(folder)!r}) for seed in range(3)], fake_cells.fake(fake_cells.good),
              ResultsStore({str(store.path)!r}), progress=False)
except StoreError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], env=support.environment(), capture_output=True, text=True)
    assert "cannot write" in run.stdout, run.stderr
    assert store.read().bad == []
    assert support.sweep("good", store.path, folder, 3, 1) == "done=2 skipped=1 failed=0 quarantined=0"


def test_wrong_arguments_are_refused_before_anything_runs(store: ResultsStore, tmp_path: Path) -> None:
    cells = [fake_cells.cell(0, tmp_path)]
    with pytest.raises(ValueError, match="loky, dask"):
        run_cells(cells, fake_cells.fake(fake_cells.good), store, backend="ray")
    with pytest.raises(ValueError, match="jobs"):
        run_cells(cells, fake_cells.fake(fake_cells.good), store, jobs=0)
    with pytest.raises(ValueError, match="time_limit"):
        run_cells(cells, fake_cells.fake(fake_cells.good), store, time_limit=0.0)
    with pytest.raises(StoreError):
        run_cells(cells, fake_cells.fake(fake_cells.good), ResultsStore(tmp_path))
    assert starts(tmp_path) == {}
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("run", ["hangs", "stuck"])
def test_a_cell_that_takes_too_long_fails_and_is_run_again_only_with_a_larger_limit(
    store: ResultsStore, tmp_path: Path, run: str, jobs: int
) -> None:
    """One that computes is interrupted; one that never comes back to Python loses its worker."""
    folder = tmp_path / "trace"
    counts = "done={} skipped={} failed=0 quarantined=0 late={}"
    assert support.sweep(run, store.path, folder, 3, jobs, 0.5) == counts.format(2, 0, 1)
    assert statuses(store) == {0: "ok", 1: "failed: time limit of 0.5 s", 2: "ok"}
    assert support.sweep(run, store.path, folder, 3, jobs, 0.5) == counts.format(0, 3, 0)
    assert support.sweep(run, store.path, folder, 3, jobs) == "done=0 skipped=3 failed=0 quarantined=0"
    assert starts(folder)[1] == 1
    (folder / "quick").touch()
    if run == "hangs":
        assert support.sweep(run, store.path, folder, 3, jobs, 20.0) == counts.format(1, 2, 0)
        assert set(statuses(store).values()) == {"ok"}
    wait_until(lambda: not alive(folder))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_that_asks_python_to_end_is_a_failed_one(jobs: int, store: ResultsStore, tmp_path: Path) -> None:
    assert (
        support.sweep("leaving", store.path, tmp_path / "cells", 3, jobs) == "done=2 skipped=0 failed=1 quarantined=0"
    )
    assert "failed: SystemExit: no licence" in statuses(store).values()


def test_a_limit_is_over_with_its_block() -> None:
    with time_limit(0.05, own_process=False):
        pass
    with pytest.raises(TimeLimitError), time_limit(0.05, own_process=False):
        wait_until(lambda: False)
    time.sleep(0.1)


def test_cells_that_belong_together_are_stored_all_or_none(store: ResultsStore, tmp_path: Path) -> None:
    experiment = fake_cells.fake(fake_cells.uneven, together=lambda cell: cell.seed // 2)
    cells = [fake_cells.cell(seed, tmp_path) for seed in range(4)]
    report = run_cells(cells, experiment, store, progress=False)
    assert (report.done, len(report.failed)) == (2, 1)
    assert statuses(store) == {0: "failed: ValueError: not yet", 1: "failed: ValueError: not yet", 2: "ok", 3: "ok"}
    report = run_cells(cells, experiment, store, progress=False)
    assert (report.done, report.skipped, report.failed) == (2, 2, [])
    assert starts(tmp_path) == {0: 2, 1: 2, 2: 1, 3: 1}
    assert [one["score"] for one in store.read().latest().values() if one["seed"] < 2] == [0.0, 1.0]


def test_the_next_sweep_removes_what_a_killed_one_left_and_nothing_of_one_that_runs(
    store: ResultsStore, tmp_path: Path
) -> None:
    folder = tmp_path / "trace"

    def left() -> list[Path]:
        return list(store.path.parent.glob(".*running*"))

    killed, running = (support.start_sweep("slow", store.path, folder, 4, 1) for _ in range(2))
    try:
        wait_until(lambda: len(left()) == 2 and len(store.done()) == 2)
        killed.kill()
        killed.wait()
        assert len(left()) == 2
        assert support.sweep("good", store.path, folder, 5, 1).startswith("done=")
        assert [str(running.pid) in one.name for one in left()] == [True]
        (folder / "quick").touch()
        assert running.wait(timeout=30) == 0
    finally:
        killed.kill()
        running.kill()
    assert left() == []


def test_a_limit_leaves_the_timers_of_others_alone(tmp_path: Path) -> None:
    import faulthandler

    with (tmp_path / "dump").open("w+") as file:
        faulthandler.dump_traceback_later(0.2, file=file)
        try:
            with time_limit(5.0, own_process=False):
                pass
            time.sleep(0.6)
        finally:
            faulthandler.cancel_dump_traceback_later()
        assert (tmp_path / "dump").stat().st_size > 0
