"""What the tests of the evaluation share: a row, and a sweep in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def row(**changes: Any) -> dict[str, Any]:
    """Return a valid leaderboard row with some fields changed; its key follows from what it is."""
    fields: dict[str, Any] = {
        "experiment": "leaderboard",
        "task": "box",
        "dim": 10,
        "method": "soc",
        "seed": 0,
        "protocol": "exact",
        "params": 100,
        "relative_error": 0.1,
        "regret_mean": 0.5,
        "regret_stderr": 0.01,
        "regret_n": 200,
        "solver_regret": 1e-9,
        "decided_by": "newton",
        "gap_max": 1e-7,
        "fit_seconds": 2.0,
        "decide_ms": 0.5,
        "status": "ok",
        "config": {},
        "versions": {"code": "aaa"},
        "machine": "test",
        "started": "2026-01-01T00:00:00+00:00",
    }
    fields |= changes
    which = ("task", "dim", "method", "seed", "protocol")
    named = [*(fields[name] for name in which), fields["versions"].get("code")]
    return {"key": "-".join(map(str, named))} | fields


def environment() -> dict[str, str]:
    """Return the environment of a child that imports what this process can, and these helpers."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}


def heed_ctrl_c() -> None:
    """Undo what a shell does to the jobs it starts in the background: they ignore Ctrl-C, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_sweep(run: str, store: Path, folder: Path, count: int, jobs: int, *more: float) -> subprocess.Popen[str]:
    """Start a sweep of `count` fake cells."""
    folder.mkdir(exist_ok=True)
    command = [
        sys.executable,
        str(HERE / "fake_cells.py"),
        run,
        str(store),
        str(folder),
        str(count),
        str(jobs),
        *map(str, more),
    ]
    return subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )


def sweep(run: str, store: Path, folder: Path, count: int, jobs: int, *more: float) -> str:
    """Run a sweep to its end and return what it printed; its errors where it failed."""
    process = start_sweep(run, store, folder, count, jobs, *more)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out.strip()
