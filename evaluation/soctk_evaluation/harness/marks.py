"""Which cells are being run: a folder beside the store with a file for each, so that a worker that dies names its own.

Workers on other machines see the folder as they see the store. Its sweep holds a lock on it for as long as it lives, so
that the folder of one that was killed is known, and removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from soctk_evaluation.harness.store import ResultsStore, StoreError, locked


@dataclass(frozen=True)
class Marks:
    """The files of the cells that are being run, by key."""

    folder: Path

    def start(self, key: str) -> None:
        """Say that a cell begins."""
        (self.folder / key).touch()

    def end(self, key: str) -> None:
        """Say that a cell is over."""
        (self.folder / key).unlink(missing_ok=True)

    def left(self) -> dict[str, float]:
        """Return the seconds since each cell began that is not over, and forget them."""
        found = {}
        for mark in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a cell that ends just now
                found[mark.name] = time.time() - mark.stat().st_mtime
            self.end(mark.name)
        return found


@contextlib.contextmanager
def marks_of(store: ResultsStore) -> Iterator[Marks]:
    """Make a sweep's folder of marks and remove it in the end, and those that killed sweeps left.

    Raises:
        StoreError: the store's folder cannot be written.
    """
    parent, prefix = store.path.parent, f".{store.path.name}.running-"
    with contextlib.ExitStack() as stack:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with locked(parent, os.O_RDONLY, fcntl.LOCK_EX):  # no other sweep removes a folder that is not locked yet
                for left in parent.glob(f"{glob.escape(prefix)}*"):
                    _remove_unlocked(left)
                folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                stack.enter_context(locked(folder, os.O_RDONLY, fcntl.LOCK_EX))
        except OSError as error:
            raise StoreError(f"cannot write beside {store.path}: {error.strerror or error}") from None
        yield Marks(folder)


def _remove_unlocked(folder: Path) -> None:
    busy = contextlib.suppress(BlockingIOError, FileNotFoundError)
    with busy, locked(folder, os.O_RDONLY, fcntl.LOCK_EX | fcntl.LOCK_NB):
        shutil.rmtree(folder, ignore_errors=True)
