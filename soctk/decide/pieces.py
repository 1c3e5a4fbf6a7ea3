"""Large batches in pieces: of bounded memory, on as many threads as PyTorch may use.

Instances do not depend on each other, and compiled code and PyTorch leave Python's lock to others, so pieces are
decided side by side, each on one thread. One call for 100,000 instances would work through arrays that no cache holds,
and its threads would wait for each other at every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

PIECE = 8192
"""Instances decided at a time: 10 to 100 megabytes in few variables."""
NUMBERS = 1 << 25
"""In the n by n systems of all instances of a piece: 256 megabytes each time that they are held."""
Answer = TypeVar("Answer")


def piece(dim: int) -> int:
    """Return how many instances in so many variables are decided at a time where each has an n by n system."""
    return min(PIECE, max(NUMBERS // dim**2, 1))


def pieces(size: int, threads: int, most: int) -> list[slice]:
    """Return slices of about equal size, `most` at most, a multiple of `threads` of them."""
    count = -(-size // most)
    count = -(-count // threads) * threads
    step = -(-size // count)
    return [slice(first, min(first + step, size)) for first in range(0, size, step)]


def side_by_side(decide: Callable[[slice], Answer], size: int, most: int) -> Iterator[Answer]:
    """Yield the answers to the pieces of a batch in their order; what is not begun is dropped with the iterator."""
    threads = torch.get_num_threads()
    parts = pieces(size, threads, most)
    if threads == 1:
        yield from map(decide, parts)
        return
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def one(part: slice) -> Answer:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            return decide(part)

    pool = ThreadPoolExecutor(threads, "soctk", initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from pool.map(one, parts)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # a thread's own number is also what later threads begin with
