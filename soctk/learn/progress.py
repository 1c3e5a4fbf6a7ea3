"""A progress bar that costs nothing when it is off."""

from __future__ import annotations

from types import TracebackType

from rich import progress as rich_progress


class Progress:
    """Steps done, the current loss and the time left; used as a context manager.

    Args:
        total: steps expected.
        enabled: whether anything is shown.
    """

    def __init__(self, total: int, *, enabled: bool) -> None:
        self._bar = None
        if enabled:
            columns = rich_progress.TextColumn("loss {task.fields[loss]:.3e}")
            self._bar = rich_progress.Progress(*rich_progress.Progress.get_default_columns(), columns)
            self._task = self._bar.add_task("fit", total=total, loss=float("nan"))

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, loss: float) -> None:
        """Count one step and show its loss."""
        if self._bar is not None:
            self._bar.update(self._task, advance=1, loss=loss)
