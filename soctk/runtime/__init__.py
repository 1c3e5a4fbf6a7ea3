"""Decisions from a file of `soctk.to_runtime`, without PyTorch, Numba or the rest of the package.

    decide = soctk.runtime.load("plan.soctk")
    answer = decide([0.2, -1.0, 0.4])

NumPy and llvmlite are all that it needs.
"""

from soctk.runtime.decider import Decided, Decider, load
from soctk.runtime.file import RuntimeFileError

__all__ = ["Decided", "Decider", "RuntimeFileError", "load"]
