"""What the commands that run an experiment take, and how a request is checked. Light, so that `--help` is fast."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from soctk_evaluation.harness.names import default_methods

LEAST = {"dims": 1, "seeds": 0, "batches": 1, "count": 1}
"""The least integer that an option of this name may hold."""
MOST = 2**63
"""Larger integers some readers of results cannot hold."""
LONGEST = 1e9
"""Seconds, 32 years: longer ones clocks cannot hold."""
FIGURE_FORMATS = (".svg", ".png")


class UsageError(ValueError):
    """What was asked for does not exist or makes no sense; the message is for the user."""


@dataclass(frozen=True)
class Run:
    """Run an experiment; cells already in the store are not run again.

    Attributes:
        store: the results file, made where it does not exist.
        any_code: take cells that another version of the code measured as done.
        cell_time_limit: seconds that a cell may take; one that took longer is tried again only with a larger limit.
        markdown: where to write the tables.
        figure: where to draw the results, SVG or PNG.
    """

    store: Path = Path("results.jsonl")
    any_code: bool = False
    cell_time_limit: float | None = None
    markdown: Path | None = None
    figure: Path | None = None


@dataclass(frozen=True)
class Sweep(Run):
    """Run an experiment in parallel; cells already in the store are not run again.

    Attributes:
        jobs: worker processes, one thread each; 0 for one a core.
        backend: run on this machine (loky) or on the dask cluster of the scheduler.
        scheduler: address of a dask cluster's scheduler, as tcp://host:8786, to run there.
    """

    jobs: int = 0
    backend: Literal["loky", "dask"] = "loky"
    scheduler: str | None = None


def check_request(request: Run) -> None:
    """Check the numbers of a request.

    Raises:
        UsageError: a number out of range.
    """
    for name, least in LEAST.items():
        given = getattr(request, name, ())
        values = given if isinstance(given, tuple) else (given,)
        if any(value < least for value in values):
            raise UsageError(f"--{name}: expected integers of at least {least}, got {' '.join(map(str, values))}")
        if any(value >= MOST for value in values):
            raise UsageError(f"--{name}: expected integers below 2^63, got {' '.join(map(str, values))}")
    if request.cell_time_limit is not None:
        check_seconds(request.cell_time_limit, "--cell-time-limit")
    if isinstance(request, Sweep) and request.jobs < 0:
        raise UsageError(f"--jobs: expected the number of workers, or 0 for one a core, got {request.jobs}")
    check_figure(request.figure)


def check_seconds(seconds: float, option: str) -> None:
    """Raise UsageError unless a number of seconds is positive, and 32 years at most."""
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{option}: expected a positive number of seconds, got {seconds:g}")
    if seconds > LONGEST:
        raise UsageError(f"{option}: expected at most {LONGEST:g} seconds, got {seconds:g}")


def check_figure(path: Path | None) -> None:
    """Raise UsageError at a picture's file whose ending is no format that is drawn."""
    if path is not None and path.suffix.lower() not in FIGURE_FORMATS:
        raise UsageError(f"--figure: expected a file ending in {' or '.join(FIGURE_FORMATS)}, got {path}")


def check_names(given: Sequence[str], known: Sequence[str], kind: str) -> None:
    """Raise UsageError at a name that is not known, with the nearest that is."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise UsageError(f"unknown {kind} {name!r}{hint}; expected some of {' '.join(known)}")


def check_methods(given: Sequence[str], known: Sequence[str]) -> None:
    """Raise UsageError at a method that is not known or whose package is missing."""
    check_names(given, known, "method")
    if "lpcf" in given and "lpcf" not in default_methods():
        raise UsageError('method lpcf needs a package that is missing: pip install "soctk[pcf]"')
