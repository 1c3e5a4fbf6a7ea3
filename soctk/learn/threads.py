"""How many cores one fit takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from threadpoolctl import threadpool_limits


class _Process:
    """What all threads of the process share: fits in several of them begin and end in any order."""

    def __init__(self) -> None:
        self.lock, self.inside, self.before = threading.Lock(), 0, 1

    def enter(self) -> bool:
        """Return whether no other fit is going on."""
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.before = torch.get_num_threads()
            return self.inside == 1

    def leave(self, own: int) -> int:
        """Return the number of threads for the thread that leaves: its own; of the last one what was before the first.

        It becomes that of new threads, too.
        """
        with self.lock:
            self.inside -= 1
            return own if self.inside else self.before


_PROCESS = _Process()


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Let PyTorch, NumPy and SciPy work with so many threads, as long as this lasts.

    Their products are small here and follow each other: a second thread saves about a tenth of the time. Waiting
    threads keep their cores busy, though, those of NumPy against those of PyTorch as well, so that on cores that are
    shared with anything else each product takes many times as long. NumPy's and SciPy's number is the process's: where
    fits overlap, it is the first one's matter.
    """
    own, first = torch.get_num_threads(), _PROCESS.enter()
    with threadpool_limits(limits=count, user_api="blas") if first else nullcontext():
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(_PROCESS.leave(own))
