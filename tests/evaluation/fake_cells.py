"""Cells for the sweep's fault tests; imported by name, since workers must import it too.

As a script it is a sweep: `python fake_cells.py RUN STORE FOLDER COUNT JOBS`, RUN a function below. FOLDER
takes a file `ran-<seed>` with one letter for every start of a cell, and `pid-<number>` for every worker.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from soctk_evaluation.cells import Cell
from soctk_evaluation.store import ResultsStore
from soctk_evaluation.sweep import run_cells


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


def _start(one: Cell) -> Path:
    """Leave a trace of this start and return the folder."""
    folder = Path(dict(one.config)["folder"])
    with (folder / f"ran-{one.seed}").open("a") as trace:
        trace.write("x")
    (folder / f"pid-{os.getpid()}").touch()
    return folder


def good(one: Cell) -> dict[str, Any]:
    """Measure at once."""
    _start(one)
    return {"score": float(one.seed)}


def raising(one: Cell) -> dict[str, Any]:
    """Cell 1 raises an exception, until the file `mended` is there."""
    folder = _start(one)
    if one.seed == 1 and not (folder / "mended").exists():
        raise ValueError("not\nthis one")
    return {"score": 1.0}


def dies_once(one: Cell) -> dict[str, Any]:
    """Cell 2 kills its worker the first time."""
    folder = _start(one)
    if one.seed == 2 and (folder / "ran-2").read_text() == "x":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return {"score": 1.0}


def dies_always(one: Cell) -> dict[str, Any]:
    """Cell 2 kills its worker every time."""
    _start(one)
    if one.seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return {"score": 1.0}


def slow(one: Cell) -> dict[str, Any]:
    """The first two cells measure at once, the others only once the file `quick` is there."""
    folder = _start(one)
    while one.seed > 1 and not (folder / "quick").exists():
        time.sleep(0.05)
    return {"score": 1.0}


def main() -> None:
    """Run a sweep as the command line says and print what it did."""
    name, store, folder, count, jobs = sys.argv[1:]
    cells = [cell(seed, folder) for seed in range(int(count))]
    report = run_cells(cells, globals()[name], ResultsStore(store), jobs=int(jobs), measured=("score",))
    counts = {"done": report.done, "skipped": report.skipped, "failed": len(report.failed)}
    counts["quarantined"] = len(report.quarantined)
    print(*(f"{name}={count}" for name, count in counts.items()))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import fake_cells

    fake_cells.main()
