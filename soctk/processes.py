"""Worker processes of this machine."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from types import FrameType
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


def ignore_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to workers too, to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back for the moment in which workers are started, and let it come after that.

    Workers and the threads that start further ones inherit the blocked signal, so that a Ctrl-C, which a terminal
    sends to all of them, never meets a worker that is still starting. Another thread of this process may still take
    the signal for all of it: the handler remembers that.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from joblib.externals.loky.backend import resource_tracker

    resource_tracker.ensure_running()  # its start unblocks the signal
    pressed: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if pressed and callable(before):
            before(*pressed[0])
