"""What a sweep shows while it runs: a moving bar on a terminal, else a line for each finished cell."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from soctk_evaluation.harness.workers import Outcome

Report = Callable[[Outcome], None]


@contextmanager
def shown(total: int, *, enabled: bool) -> Iterator[Report]:
    """Yield a function that shows an outcome on stderr."""
    console = Console(stderr=True)
    if not enabled or total == 0:
        yield lambda outcome: None
    elif console.is_terminal:
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.description}", markup=False), console=console) as bar:
            task = bar.add_task("starting", total=total)

            def advance(outcome: Outcome) -> None:
                bar.update(task, advance=1, description=outcome.job.name)
                if outcome.status.startswith(("failed", "quarantined")):
                    bar.console.print(f"{outcome.job.name}: {outcome.status}", markup=False, highlight=False)

            yield advance
    else:
        numbers = itertools.count(1)

        def line(outcome: Outcome) -> None:
            text = f"[{next(numbers)}/{total}] {outcome.job.name}: {outcome.status} ({outcome.seconds:.1f} s)"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        yield line
