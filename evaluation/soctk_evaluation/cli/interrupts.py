"""Ctrl-C that asks before it ends."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_interrupt(message: str) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether there was a first SIGINT; the second one raises KeyboardInterrupt.

    Args:
        message: what the first one says.
    """
    found = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        yield found.is_set
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        found.set()
        print(f"soctk: {message}", file=sys.stderr)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield found.is_set
    finally:
        signal.signal(signal.SIGINT, before)
