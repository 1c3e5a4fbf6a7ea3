"""Worker processes are ended without a word, wherever their calls are."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
from joblib.externals.loky import ProcessPoolExecutor

from soctk.processes import end_workers, interrupts_held

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


class Slow:
    """An executor whose one call reaches a worker late."""

    def __init__(self) -> None:
        self.call: Future[None] = Future()
        self.ended: dict[str, Any] = {}
        threading.Timer(0.05, self.call.set_running_or_notify_cancel).start()

    def shutdown(self, **how: Any) -> None:
        assert self.call.running()
        self.ended = how


def test_workers_are_ended_once_no_call_is_on_its_way() -> None:
    slow = Slow()
    end_workers(slow, [slow.call])
    assert slow.ended == {"wait": True, "kill_workers": True}


def test_workers_that_are_busy_are_ended_at_once() -> None:
    executor = ProcessPoolExecutor(2)
    calls = [executor.submit(time.sleep, 600) for _ in range(2)]
    end_workers(executor, calls)
    assert all(isinstance(call.exception(timeout=0), RuntimeError) for call in calls)


def test_an_executor_whose_workers_have_died_is_ended_too() -> None:
    executor = ProcessPoolExecutor(1)
    call = executor.submit(os._exit, 1)
    assert call.exception() is not None
    end_workers(executor, [call])


@pytest.mark.parametrize("others", [0, 1])
def test_ctrl_c_while_workers_start_is_held_back_and_not_lost(others: int) -> None:
    """Also where another thread, which has not blocked the signal, takes it."""
    ended, reached = threading.Event(), False
    threads = [threading.Thread(target=ended.wait) for _ in range(others)]
    for thread in threads:
        thread.start()

    def start_workers() -> None:
        nonlocal reached
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            reached = True

    # A suite that runs in the background inherits an ignored Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start_workers()
    finally:
        signal.signal(signal.SIGINT, before)
        ended.set()
    assert reached
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
