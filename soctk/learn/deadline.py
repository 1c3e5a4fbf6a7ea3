"""When a fit ends, whatever it has reached."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from soctk.learn.report import FitStatus


def check_stop(stop: Callable[[], bool] | None) -> None:
    """Raise TypeError unless `stop` is a function or None."""
    if stop is not None and not callable(stop):
        raise TypeError(f"stop: expected a function that says whether to stop, got {stop!r}")


class Deadline:
    """A time, or being told to stop; once it has passed it stays so.

    Args:
        seconds: from now; None for no limit.
        stop: asked after each step; the fit ends with what it has once it says True.
    """

    def __init__(self, seconds: float | None = None, stop: Callable[[], bool] | None = None) -> None:
        self._time = math.inf if seconds is None else time.perf_counter() + seconds
        self._stop, self._stopped = stop, False

    @property
    def limited(self) -> bool:
        """Whether it may ever pass."""
        return self._stop is not None or self._time < math.inf

    @property
    def passed(self) -> bool:
        """Whether to end now."""
        self._stopped = self._stopped or (self._stop is not None and self._stop())
        return self._stopped or time.perf_counter() > self._time

    @property
    def status(self) -> FitStatus:
        """Why a fit ends that this deadline ends."""
        return FitStatus.STOPPED if self._stopped else FitStatus.TIME_LIMIT
