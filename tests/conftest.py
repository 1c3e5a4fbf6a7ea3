"""Strictness of the whole suite, set once: one thread, fixed seeds, derandomised examples."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # of each of the processes that run tests side by side

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "helpers"))
pytest.register_assert_rewrite("set_contract", "term_contract", "surrogate_contract", "task_contract")

settings.register_profile(
    "soctk",
    deadline=None,
    derandomize=True,
    max_examples=15,
    # The contract classes are inherited on purpose: one property, many executors.
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
settings.load_profile("soctk")
torch.set_num_threads(1)
os.environ["SOCTK_COMPILE"] = "wait"  # what is tested is the compiled method, from the first decision on


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that asks for a `case` once for each entry of its class's CASES (name -> maker)."""
    cases = getattr(metafunc.cls, "CASES", None)
    if cases and "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(cases.values()), ids=list(cases))


@pytest.fixture(scope="session", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let processes that run tests side by side compile a variant of the decision method each, not all of them both."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    from soctk.decide.compiled.first_use import method_for
    from soctk.terms.registry import BUILT_IN

    first = int(worker.removeprefix("gw")) % 2 == 1
    for several in (first, not first):
        with (tmp_path_factory.getbasetemp().parent / f"several-{several}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # who comes later finds the code on the disk
            method_for(BUILT_IN).ready(several, wait=True)


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Seed torch, keep its default dtype at float32, so that a forgotten dtype shows as a loss of digits."""
    torch.manual_seed(0)
    assert torch.get_default_dtype() == torch.float32
    yield
    assert torch.get_default_dtype() == torch.float32


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh seeded stream of random numbers."""
    return torch.Generator().manual_seed(20)
