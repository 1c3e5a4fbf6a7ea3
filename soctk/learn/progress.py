"""Progress that costs nothing when it is off: a bar on a terminal, elsewhere a line every so often."""

from __future__ import annotations

import math
import time
from types import TracebackType

from rich import progress as rich_progress
from rich.console import Console

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Steps done, the latest figure and the time left, on stderr; used as a context manager.

    Args:
        total: steps expected, at most.
        enabled: whether anything is shown.
        name: of what is in progress.
        figure: what `advance` is given, in a word.
        unit: of the steps.
    """

    def __init__(
        self, total: int, *, enabled: bool, name: str = "fit", figure: str = "loss", unit: str = "steps"
    ) -> None:
        self._total, self._name, self._figure, self._unit = max(1, total), name, figure, unit
        self._enabled, self._done, self._bar = enabled, 0, None
        self._console = Console(stderr=True) if enabled else None
        if self._console is not None and (self._console.is_terminal or self._console.is_jupyter):
            column = rich_progress.TextColumn(f"{figure} {{task.fields[figure]:.3g}}")
            columns = (*rich_progress.Progress.get_default_columns(), column)
            self._bar = rich_progress.Progress(*columns, console=self._console)
            self._task = self._bar.add_task(name, total=self._total, figure=math.nan)

    def __enter__(self) -> Progress:
        self._started = self._last = time.monotonic()
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, figure: float, steps: int = 1) -> None:
        """Count steps and show the figure that they led to."""
        if not self._enabled:
            return
        self._done += steps
        if self._bar is not None:
            self._bar.update(self._task, advance=steps, figure=figure)
        elif time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._line(figure)

    def _line(self, figure: float) -> None:
        assert self._console is not None
        self._last = time.monotonic()
        share, seconds = min(1.0, self._done / self._total), self._last - self._started
        text = f"{self._name}: {share:.0%} of {self._total} {self._unit}, {self._figure} {figure:.3g}, {seconds:.0f} s"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
