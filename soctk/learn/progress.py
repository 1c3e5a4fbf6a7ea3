"""Progress that costs nothing when it is off: a bar on a terminal, elsewhere a line every so often."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

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
        self._enabled, self._done = enabled, 0
        self._bar: Bar | None = None
        self._console: Console | None = None
        if not enabled:
            return
        from rich.console import Console  # Rich draws from Python's random numbers when it is loaded
        from rich.progress import Progress as Bar
        from rich.progress import TextColumn

        self._console = Console(stderr=True)
        if self._console.is_terminal or self._console.is_jupyter:
            columns = (*Bar.get_default_columns(), TextColumn(f"{figure} {{task.fields[figure]:.3g}}"))
            self._bar = Bar(*columns, console=self._console)
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
