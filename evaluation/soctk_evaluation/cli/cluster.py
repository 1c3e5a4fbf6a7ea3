"""The pieces of a plan on the workers of a dask cluster.

A piece that a worker has not finished when it dies is given to another one. Whoever decides it writes the same file,
which appears only when it is whole (`soctk_evaluation.cli.pieces`), so that none is lost and none is there twice.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from soctk.tables.errors import TableError
from soctk_evaluation.cli.in_pieces import Do, own_files
from soctk_evaluation.cli.log_commands import Decide
from soctk_evaluation.cli.pieces import digest
from soctk_evaluation.cli.planner import Planner
from soctk_evaluation.harness.compiling import wait_for_compiled_code
from soctk_evaluation.harness.key import check_code, code_in_use
from soctk_evaluation.harness.request import UsageError
from soctk_evaluation.harness.workers import one_line

FOR_THE_USER = (UsageError, TableError)
"""Errors of a worker that say themselves what to do."""


@dataclass(frozen=True)
class Work:
    """What a worker makes its planner of.

    Attributes:
        command: the options, with the files' whole paths.
        digests: what its own files hold (`own_files`).
        code: `code_in_use` of the client.
    """

    command: Decide
    digests: tuple[str, ...]
    code: str

    @classmethod
    def of(cls, command: Decide) -> Work:
        return cls(command, tuple(map(digest, own_files(command))), code_in_use())


class Cluster:
    """Carries out the steps of a plan on the workers of a cluster, which see the same files under the same names."""

    def __init__(self, client: Any, command: Decide) -> None:
        self.client, self.work = client, Work.of(command)

    def each(self, do: Do, items: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield the number and `do(planner, number, item)` of each numbered item, as they come.

        Raises:
            UsageError: what a worker says of the request.
            OSError: a step that kills its workers or fails, or the scheduler is gone.
        """
        numbered = dict(items)
        suspects = yield from self._side_by_side(do, numbered)
        # Dask blames all that a dead worker had been given: what kills it shows when each is alone.
        guilty = []
        for number in sorted(suspects):
            guilty += yield from self._side_by_side(do, {number: numbered[number]})
        if guilty:
            more = f" (and {len(guilty) - 1} others are so)" if len(guilty) > 1 else ""
            raise ChildProcessError(
                f"{_place(guilty[0], numbered)}{more}: given up, as every worker died that had it, perhaps of too "
                "little memory: try a smaller --rows-at-once; the other pieces are kept"
            )

    def _side_by_side(self, do: Do, numbered: Mapping[int, Any]) -> Generator[tuple[int, Any], None, list[int]]:
        """Yield the results as they come; return the numbers of those that dask gave up, as its workers died."""
        from distributed import KilledWorker, as_completed  # pyright: ignore[reportMissingImports]

        call, suspects = uuid.uuid4().hex, []
        futures = {
            self.client.submit(_carry_out, self.work, do, number, item, key=f"soctk-{call}-{number}"): number
            for number, item in numbered.items()
        }
        try:
            for future in as_completed(futures):
                number = futures.pop(future)
                try:
                    found = _result(future, _place(number, numbered))
                except KilledWorker:
                    suspects.append(number)
                else:
                    yield number, found
        finally:
            self.client.cancel(list(futures))
        return suspects


def _place(number: int, numbered: Mapping[int, Any]) -> str:
    return f"piece {number + 1}, {numbered[number]}"


def _result(future: Any, place: str) -> Any:
    """Return a step's result, its errors with the place where they are from, as far as they do not say it."""
    from distributed import KilledWorker  # pyright: ignore[reportMissingImports]

    try:
        return future.result()
    except (KilledWorker, *FOR_THE_USER):
        raise
    except CancelledError:
        raise ConnectionError("the scheduler is gone; what is decided is kept, the same command goes on") from None
    except Exception as error:
        raise ChildProcessError(f"{place}: {one_line(error)}; what is decided is kept") from None


_one_at_a_time = threading.Lock()
"""Held by the thread of a worker that decides: a planner is not made for several."""


def _carry_out(work: Work, do: Do, number: int, item: Any) -> Any:
    """Carry out a step on a worker."""
    wait_for_compiled_code()
    with _one_at_a_time:
        return do(_planner(work), number, item)


@lru_cache(maxsize=1)
def _planner(work: Work) -> Planner:
    """Return a worker's planner, made of the same files as the client's.

    Raises:
        UsageError: the worker has other code of soctk, or sees no such files or others.
    """
    check_code(work.code)
    for path, expected in zip(own_files(work.command), work.digests, strict=True):
        if not path.is_file() or digest(path) != expected:
            raise UsageError(f"a worker sees no such file {path}, or another one: expected a folder that all share")
    return Planner.of(work.command)


def shared(command: Decide) -> Decide:
    """Return a command whose files have their whole paths, as workers start in folders of their own."""
    given = command.feasible
    if len(own_files(command)) > 1:
        given = replace(given, set=str(Path(str(given.set)).resolve()))
    contexts = None if command.contexts is None else command.contexts.resolve()
    return replace(command, model=command.model.resolve(), contexts=contexts, feasible=given)
