"""The workers of a dask cluster as an executor, for `soctk.fit(executor=)`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from typing import Any

from soctk.learn.members import Members
from soctk_evaluation.harness.compiling import wait_for_compiled_code
from soctk_evaluation.harness.key import check_code, code_in_use
from soctk_evaluation.harness.workers import one_line

LOOK_EVERY = 1.0
"""Seconds between a worker's questions to the scheduler whether to stop."""


class ClusterExecutor(Executor):
    """Carries out calls on a cluster's workers; one that a worker dies with is carried out by another.

    What all members are learned from is sent once, as a result of its own, which dask has again where it is lost.
    The cluster stays as it is: neither it nor its client is shut down.

    Args:
        client: of the cluster.
    """

    def __init__(self, client: Any) -> None:
        self._client, self._executor = client, client.get_executor(pure=False)
        self._sent: dict[int, tuple[Members, Any]] = {}

    @property
    def workers(self) -> int:
        """How many there are at present; each carries out one call at a time."""
        return len(self._client.nthreads())

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the future of fn(*args, **kwargs)."""
        sent = [self._once(argument) if isinstance(argument, Members) else argument for argument in args]
        return self._executor.submit(_carry_out, code_in_use(), fn, *sent, **kwargs)

    def event(self) -> SchedulerMark:
        """Return a mark that all workers see."""
        from distributed import Event  # pyright: ignore[reportMissingImports]

        return SchedulerMark(Event(client=self._client))

    def _once(self, members: Members) -> Any:
        import dask  # pyright: ignore[reportMissingImports]

        if id(members) not in self._sent:
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):  # it is sent once
                found = self._client.submit(_same, members, pure=False)
            self._client.replicate([found])  # dask places tasks where their data are: everywhere
            self._sent[id(members)] = members, found
        return self._sent[id(members)][1]


class SchedulerMark:
    """An event on the scheduler that is asked for every second at most: members ask after each step."""

    def __init__(self, event: Any) -> None:
        self._event, self._found, self._asked = event, False, -math.inf

    def __reduce__(self) -> tuple[Any, ...]:
        return SchedulerMark, (self._event,)  # clocks are their machine's own

    def set(self) -> None:
        """Set it for all."""
        self._event.set()

    def is_set(self) -> bool:
        """Return whether it was set."""
        now = time.monotonic()
        if not self._found and now - self._asked >= LOOK_EVERY:
            self._found, self._asked = self._event.is_set(), now
        return self._found


def _same(members: Members) -> Members:
    return members


def _carry_out(code: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Carry out a call on a worker."""
    check_code(code)
    wait_for_compiled_code()
    return fn(*args, **kwargs)


@contextmanager
def workers_explained() -> Iterator[None]:
    """Say what becomes of a cluster in one line.

    Raises:
        OSError: a call that kills its workers, whatever else workers fail with, or a scheduler that is gone.
    """
    from distributed import KilledWorker  # pyright: ignore[reportMissingImports]

    try:
        yield
    except KilledWorker:
        raise ChildProcessError(
            "given up, as every worker died that had a certain member, perhaps of too little memory; no model written"
        ) from None
    except CancelledError:
        raise ConnectionError("the scheduler is gone; no model written") from None
    except (OSError, ValueError, ImportError):
        raise  # these say themselves what to do
    except Exception as error:
        raise ChildProcessError(f"a worker failed: {one_line(error)}; no model written") from None
