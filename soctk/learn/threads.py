"""How many cores one fit takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Let PyTorch, NumPy and SciPy work with so many threads, as long as this lasts.

    Their products are small here and follow each other: a second thread saves about a tenth of the time. Waiting
    threads keep their cores busy, though, those of NumPy against those of PyTorch as well, so that on cores that are
    shared with anything else each product takes many times as long.
    """
    before = torch.get_num_threads()
    with threadpool_limits(limits=count, user_api="blas"):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
