"""Cells for the sweep's fault tests; imported by name, since workers must import it too.

As a script it is a sweep: `python fake_cells.py RUN STORE FOLDER COUNT JOBS [TIME_LIMIT]`, RUN a function below. FOLDER
takes a file `ran-<seed>` with one letter for every start of a cell, and `pid-<number>` for every worker.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soctk_evaluation.harness import key, workers
from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.experiment import Experiment
from soctk_evaluation.harness.store import ResultsStore
from soctk_evaluation.harness.sweep import run_cells

if "pytest" not in sys.modules:
    # In processes of these cells alone: what machine this is and whose the task is takes PyTorch, seconds to import.
    workers.machine = lambda: "a machine"
    key._source_of_task = lambda name: ()


def cell(seed: int, folder: Path | str = "", **changes: Any) -> Cell:
    """Return a small cell; its seed says which one it is."""
    fields = {
        "experiment": "fake",
        "task": "none",
        "dim": 1,
        "method": "fake",
        "seed": seed,
        "protocol": "exact",
    }
    return Cell(**(fields | {"config": (("folder", str(folder)),)} | changes))


def fake(run: Callable[..., dict[str, Any]], **changes: Any) -> Experiment:
    """Return an experiment that runs its cells by a function of this file."""
    return Experiment("fake", lambda asked: [], run, ("score",), lambda results, files: None, **changes)


def _start(one: Cell) -> Path:
    """Leave a trace of this start and return the folder."""
    folder = Path(dict(one.config)["folder"])
    with (folder / f"ran-{one.seed}").open("a") as trace:
        trace.write("x")
    (folder / f"pid-{os.getpid()}").touch()
    return folder


def good(one: Cell, _: Path | None = None) -> dict[str, Any]:
    """Measure at once."""
    _start(one)
    return {"score": float(one.seed)}


def raising(one: Cell, _: Path | None = None) -> dict[str, Any]:
    """Cell 1 raises an exception, until the file `mended` is there."""
    folder = _start(one)
    if one.seed == 1 and not (folder / "mended").exists():
        raise ValueError("not\nthis one")
    return {"score": 1.0}


def leaving(one: Cell, _: Path | None = None) -> dict[str, Any]:
    """Cell 1 asks Python to end."""
    _start(one)
    if one.seed == 1:
        raise SystemExit("no licence")
    return {"score": 1.0}


def dies_once(one: Cell, _: Path | None = None) -> dict[str, Any]:
    """Cell 2 kills its worker the first time."""
    folder = _start(one)
    if one.seed == 2 and (folder / "ran-2").read_text() == "x":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return {"score": 1.0}


def dies_always(one: Cell, _: Path | None = None) -> dict[str, Any]:
    """Cell 2 kills its worker every time."""
    _start(one)
    if one.seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return {"score": 1.0}


def slow(one: Cell, _: Path | None = None) -> dict[str, Any]:
    """The first two cells measure at once, the others only once the file `quick` is there."""
    folder = _start(one)
    while one.seed > 1 and not (folder / "quick").exists():
        time.sleep(0.05)
    return {"score": 1.0}


def hangs(one: Cell, _: Path | None = None) -> dict[str, Any]:
    """Cell 1 computes without end, and takes every exception for its own, until the file `quick` is there."""
    folder = _start(one)
    while one.seed == 1 and not (folder / "quick").exists():
        with contextlib.suppress(Exception):
            time.sleep(0.01)
    return {"score": 1.0}


def stuck(one: Cell, _: Path | None = None) -> dict[str, Any]:
    """Cell 1 never comes back to Python."""
    _start(one)
    if one.seed == 1:
        time.sleep(1000)
    return {"score": 1.0}


def uneven(one: Cell, _: Path | None = None) -> dict[str, Any]:
    """Cell 1 raises an exception the first time."""
    folder = _start(one)
    if one.seed == 1 and (folder / "ran-1").read_text() == "x":
        raise ValueError("not yet")
    return {"score": float(one.seed)}


def filling(one: Cell, _: Path | None = None) -> dict[str, Any]:
    """Count the pages that the system gives each time for four arrays of 16 MB, once there were ten times four."""
    _start(one)
    for turn in range(20):
        if turn == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        arrays = [b"x" * 2**24 for _ in range(4)]
        del arrays
    return {"score": (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10}


def main() -> None:
    """Run a sweep as the command line says and print what it did."""
    name, store, folder, count, jobs, *limit = sys.argv[1:]
    cells = [cell(seed, folder) for seed in range(int(count))]
    seconds = float(limit[0]) if limit else None
    report = run_cells(cells, fake(globals()[name]), ResultsStore(store), jobs=int(jobs), time_limit=seconds)
    counts = {"done": report.done, "skipped": report.skipped, "failed": len(report.failed)}
    counts["quarantined"] = len(report.quarantined)
    if limit:
        counts["late"] = len(report.late)
    print(*(f"{name}={count}" for name, count in counts.items()))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import fake_cells

    fake_cells.main()
