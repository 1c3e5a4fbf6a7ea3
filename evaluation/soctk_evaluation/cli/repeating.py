"""`soctk repeat`: measure a stored row once more, and say what differs."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from soctk_evaluation.cli.commands import Repeat
from soctk_evaluation.experiments import experiment_names, find_experiment
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.compiling import wait_for_compiled_code
from soctk_evaluation.harness.experiment import STORES, Experiment
from soctk_evaluation.harness.request import UsageError
from soctk_evaluation.harness.store import ResultsStore, Row, is_measured

LEAST_LETTERS = 6
"""Of a key."""
TIMES = ("_ms", "_seconds")
"""How the names of measurements end that no two runs share."""


def repeat(command: Repeat) -> int:
    """Measure the row of a key once more; return 1 where a number differs by more than the tolerance, else 0."""
    if not 0 <= command.tolerance < math.inf:
        raise UsageError(f"--tolerance: expected a number of at least 0, got {command.tolerance:g}")
    row = _find(command.key, [command.store] if command.store else sorted(STORES.glob("*.jsonl")))
    experiment = find_experiment(row["experiment"])
    cell = Cell(
        *(row[name] for name in ("experiment", "task", "dim", "method", "seed", "protocol")), make_config(row["config"])
    )
    print(f"measuring {cell.experiment}: {cell.name}", file=sys.stderr)
    wait_for_compiled_code()
    with tempfile.TemporaryDirectory() as folder:
        try:
            again = {"status": "ok", **experiment.run(cell, Path(folder))}
        except Exception as error:  # of a row that other code wrote, or a hand
            raise UsageError(f"the row cannot be measured: {type(error).__name__}: {error}") from error
    changed = [f"{name} {was} is now {now}" for name, was, now in _versions(experiment, cell, row)]
    for line in changed:
        print(f"soctk: {line}", file=sys.stderr)
    return _compare(experiment, row, again, command.tolerance)


def _find(key: str, stores: Sequence[Path]) -> Row:
    if len(key) < LEAST_LETTERS:
        raise UsageError(f"KEY: expected at least {LEAST_LETTERS} letters of a row's key, got {key!r}")
    found: dict[str, Row] = {}
    for store in stores:
        rows = ResultsStore(store).read().latest()
        found |= {name: row for name, row in rows.items() if name.startswith(key) and is_measured(row)}
    known = {name: row for name, row in found.items() if row["experiment"] in experiment_names()}
    if len(known) != 1:
        where = ", ".join(map(str, stores)) or f"{STORES}, which is not here"
        raise UsageError(f"KEY: expected that of one measured row, got {key!r}, of {len(known)} in {where}")
    return next(iter(known.values()))


def _versions(experiment: Experiment, cell: Cell, row: Row) -> list[tuple[str, str, str]]:
    """Return (what, then, now) of what the result depends on and is another now."""
    then, now = row["versions"], experiment.versions(cell)
    pairs = {name: (then.get(name, "absent"), now.get(name, "absent")) for name in (*then, *now)}
    return [(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]


def _compare(experiment: Experiment, row: Row, again: Row, tolerance: float) -> int:
    shown = Table("measurement", "stored", "now", "difference", box=box.SIMPLE_HEAD)
    worst = 0.0
    for name in (*experiment.measured, "status"):
        before, after = row.get(name), again.get(name)
        if isinstance(after, float) and not math.isfinite(after):
            after = None  # as the store writes it
        if before is None and after is None:
            continue
        if name.endswith(TIMES):
            entry = "a time"
        else:
            difference = _difference(before, after)
            worst, entry = max(worst, difference), f"{difference:.1e}"
        shown.add_row(name, *map(_text, (before, after)), entry)
    Console().print(shown)
    print(f"largest difference {worst:.1e}, {tolerance:.0e} allowed")
    return int(worst > tolerance)


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _difference(before: object, after: object) -> float:
    """Return the difference relative to max(1, |before|), infinite between what are not both numbers unless equal."""
    if isinstance(before, int | float) and isinstance(after, int | float):
        return abs(after - before) / max(1.0, abs(before))
    return 0.0 if before == after else math.inf
