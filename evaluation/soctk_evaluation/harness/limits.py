"""A limit to the time that a cell takes."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import threading
from collections.abc import Iterator
from pathlib import Path


class TimeLimitError(BaseException):
    """A cell took longer than it may. No `Exception`, so that nothing in the cell takes it for one of its own."""


@contextlib.contextmanager
def time_limit(seconds: float | None, *, own_process: bool) -> Iterator[None]:
    """Raise TimeLimitError in this thread after so many seconds.

    Python raises it between two of its steps. Where it does not come to that, because compiled code does not return,
    the process ends after as long again, if it is the cell's own.

    Args:
        seconds: None for no limit.
        own_process: whether the process may be ended.
    """
    if seconds is None:
        yield
        return
    raise_in, thread = ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(threading.get_ident())
    timer = threading.Timer(seconds, raise_in, (thread, ctypes.py_object(TimeLimitError)))
    timer.daemon = True
    with Path(os.devnull).open("w") as nowhere:
        if own_process:
            faulthandler.dump_traceback_later(2 * seconds + 1, exit=True, file=nowhere)
        try:
            try:
                timer.start()
                yield
            finally:  # a timer that fires now still raises inside this block, once
                timer.cancel()
                timer.join()
        finally:
            if own_process:
                faulthandler.cancel_dump_traceback_later()
