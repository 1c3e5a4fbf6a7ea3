"""What the commands that run cells share: checked requests, one sweep, one way to end. Light, so `--help` is fast."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from soctk_evaluation.names import default_methods
from soctk_evaluation.store import Contents, ResultsStore, cell_of, is_done

if TYPE_CHECKING:
    from soctk_evaluation.cells import Cell
    from soctk_evaluation.workers import RunCell


class UsageError(ValueError):
    """What was asked for does not exist or makes no sense; the message is for the user."""


class Request(Protocol):
    """What every command that runs cells was asked for; some have dims, methods and seeds too."""

    @property
    def store(self) -> Path:
        """The results file."""
        ...

    @property
    def jobs(self) -> int:
        """Worker processes; 0 for one a core."""
        ...

    @property
    def any_code(self) -> bool:
        """Whether cells that another version of the code measured are done."""
        ...


def run_experiment(
    cells: list[Cell],
    run_cell: RunCell,
    measured: Sequence[str],
    request: Request,
    show: Callable[[Contents], None],
    backend: str = "loky",
) -> int:
    """Run the cells that the store lacks and show all that were asked for.

    Args:
        cells: what was asked for.
        run_cell: measures one.
        measured: names that are null in the row of a cell without measurements.
        request: the request.
        show: prints and writes the cells' rows.
        backend: "loky" or "dask".

    Returns:
        The command's exit code.
    """
    from soctk_evaluation.sweep import run_cells

    store = ResultsStore(request.store)
    earlier = {cell_of(row): row["key"] for row in store.read().newest() if is_done(row)} if request.any_code else {}
    asked = {cell: earlier.get(cell_of(cell.identity)) for cell in cells}
    taken = {key for key in asked.values() if key is not None}
    cells = [cell for cell, key in asked.items() if key is None]
    try:
        jobs = request.jobs or os.cpu_count() or 1
        report = run_cells(cells, run_cell, store, jobs=jobs, backend=backend, measured=measured)
    except KeyboardInterrupt:
        done = store.done()
        stored = len(taken) + sum(cell.key in done for cell in cells)
        return fail(
            f"interrupted: {stored} of {len(asked)} cells are in {store.path}; run it again for the rest",
            130,
        )
    if report.skipped or taken:
        print(f"{report.skipped + len(taken)} of {len(asked)} cells were in {store.path} already", file=sys.stderr)
    wanted = {cell.key for cell in cells} | taken
    contents = store.read()
    show(Contents([row for row in contents.rows if row["key"] in wanted], contents.bad))
    if report.failed:
        print(f"soctk: {len(report.failed)} cells failed; the same command tries them again", file=sys.stderr)
    return 1 if report.failed or report.quarantined else 0


def check_request(request: Request) -> None:
    """Check what every sweep takes."""
    if "lpcf" in getattr(request, "methods", ()) and "lpcf" not in default_methods():
        raise UsageError('method lpcf needs a package that is missing: pip install "soctk[pcf]"')
    for name, least in (("dims", 1), ("seeds", 0)):
        values: tuple[int, ...] = getattr(request, name, ())
        if any(value < least for value in values):
            raise UsageError(f"--{name}: expected integers of at least {least}, got {' '.join(map(str, values))}")
    if request.jobs < 0:
        raise UsageError(f"--jobs: expected a positive number, got {request.jobs}")


def check_names(given: Sequence[str], known: Sequence[str], kind: str) -> None:
    """Raise UsageError at a name that is not known, with the nearest that is."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise UsageError(f"unknown {kind} {name!r}{hint}; expected some of {' '.join(known)}")


def fail(message: str, code: int) -> int:
    """Print a message for the user and return the exit code."""
    print(f"soctk: {message}", file=sys.stderr)
    return code
