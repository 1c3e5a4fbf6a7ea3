"""The first use without compiled code: PyTorch answers, what happens is said once, and waiting is possible."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from soctk.decide.compiled import first_use
from soctk.terms import Quadratic

DECIDE = """
import os, sys, torch, soctk
from soctk.decide.compiled.first_use import method_for
from soctk.terms.registry import BUILT_IN
model, contexts = soctk.SOCICNN(6, 2, seed=0), torch.zeros(3, 2, dtype=torch.float64)
for _ in range(2):
    decision = soctk.minimize(model, soctk.Box(6), contexts)
assert (decision.status == "optimal").all() and float(decision.relative_gap.max()) <= 1e-6
print("compiled" if False in method_for(BUILT_IN)._ready else "compiling")
sys.stdout.flush(), sys.stderr.flush()
os._exit(0)
"""


def run(folder: Path | str, code: str = DECIDE) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "SOCTK_COMPILE"}
    env |= {"NUMBA_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False, timeout=280
    )


def test_the_first_decisions_do_not_wait_for_the_compiler(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["compiling"]
    assert result.stderr.count("soctk compiles its decision method") == 1
    assert str(tmp_path) in result.stderr


def test_where_nothing_can_be_kept_it_is_said_once() -> None:
    """Neither the package's folder nor the user's own can be written to: nothing locates a place for a cache."""
    code = "from numba.core import caching\ncaching.CacheImpl._locator_classes = []\n" + DECIDE
    result = run("", code)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("no folder for compiled code is writable") == 1
    assert "NUMBA_CACHE_DIR" in result.stderr


def test_threads_that_decide_first_share_one_compiled_method(monkeypatch) -> None:
    made = []

    class Slow:
        def __init__(self, kinds: first_use.Kinds) -> None:
            time.sleep(0.05)
            made.append(kinds)

    monkeypatch.setattr(first_use, "Method", Slow)
    monkeypatch.setattr(first_use, "_methods", {})
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(first_use.method_for, [(Quadratic,)] * 8))
    assert made == [(Quadratic,)]
    assert all(method is found[0] for method in found)
