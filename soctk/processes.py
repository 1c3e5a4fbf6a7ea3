"""Worker processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future
from typing import Any

LONGEST_WAIT = 5.0
"""Seconds for a call to reach a worker, which takes milliseconds unless the executor is broken."""


def end_workers(executor: Any, calls: Collection[Future[Any]]) -> None:
    """Kill the workers of an executor of loky, whatever they are doing, and wait until they are gone.

    Its `shutdown(kill_workers=True)` forgets calls that no worker has had yet but not their numbers, and its thread
    then ends with a KeyError on the terminal. So no more calls may be submitted at a time than there are workers, and
    those on their way are waited for here.

    Args:
        executor: a `loky.ProcessPoolExecutor`.
        calls: all that may not have ended.
    """
    deadline = time.monotonic() + LONGEST_WAIT
    while any(not (call.running() or call.done()) for call in calls) and time.monotonic() < deadline:
        time.sleep(0.001)
    executor.shutdown(wait=True, kill_workers=True)
