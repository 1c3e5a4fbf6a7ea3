"""What a fit leaves of the process: as many threads as before, Python's random numbers."""

from __future__ import annotations

import subprocess
import sys
import threading

import torch
from threadpoolctl import threadpool_info

from soctk.learn.threads import limited_threads

FIT = """
import random, sys
import numpy as np, soctk
random.seed(5)
x = np.random.default_rng(0).normal(size=(40, 3))
data = soctk.ValueData(np.zeros((40, 0)), x[:, None], (x**2).sum(axis=1)[:, None])
soctk.fit(soctk.make_surrogate("quadratic", dim=3), data)
found = random.random()
random.seed(5)
assert found == random.random()
assert "rich" not in sys.modules
"""


def test_fits_that_overlap_leave_the_process_as_it_was() -> None:
    """Each gave back what it had found: one in place of two, for good, where the first to begin ended first."""
    before, seen = torch.get_num_threads(), []
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with limited_threads(1):
            first_in.set()
            second_in.wait(10)
        first_out.set()

    def second() -> None:
        first_in.wait(10)
        with limited_threads(1):
            second_in.set()
            first_out.wait(10)
            seen.append(torch.get_num_threads())

    def fresh() -> None:
        seen.append(torch.get_num_threads())

    libraries = threadpool_info()
    torch.set_num_threads(2)
    try:
        for together in ((first, second), (fresh,)):
            threads = [threading.Thread(target=run) for run in together]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]
    assert threadpool_info() == libraries


def test_the_first_fit_leaves_random_numbers_alone() -> None:
    """Rich, which shows progress, draws one where it is loaded."""
    found = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
