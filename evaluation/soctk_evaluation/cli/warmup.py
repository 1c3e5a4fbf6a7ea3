"""`soctk warmup`: the decision method compiled beforehand."""

from __future__ import annotations

import time

from soctk_evaluation.cli.commands import Warmup


def warm_up(command: Warmup) -> int:
    """Compile the decision method and say how long that took; return the exit code."""
    import soctk

    started = time.perf_counter()
    soctk.warmup()
    print(f"the decision method is ready ({time.perf_counter() - started:.0f} s)")
    return 0
