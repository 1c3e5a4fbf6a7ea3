"""Which code decides where something is measured."""

from __future__ import annotations

import os


def wait_for_compiled_code() -> None:
    """Let this process decide nothing before its code is compiled: how long that takes is not to change a result."""
    os.environ.setdefault("SOCTK_COMPILE", "wait")
