"""How strictly the compiled code treats floating-point arithmetic."""

from __future__ import annotations

from typing import Any

from numba import config, njit

if config.DISABLE_JIT:
    raise RuntimeError(
        "NUMBA_DISABLE_JIT is set: decisions are made by code that Numba compiles, and as plain Python it would take "
        "minutes for each; unset it in the process that decides"
    )

COMMON: dict[str, Any] = {
    "error_model": "numpy",
    "nogil": True,
    "_nrt": False,  # nothing is allocated inside, so that no references need to be counted
}
# What is called from Python holds the others in its cache; wrappers and caches of their own would double the time to
# compile them.
OPTIONS: dict[str, Any] = {**COMMON, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "no_rewrites": True}
FREE = {"contract", "reassoc"}
# A name for each level of strictness.
compiled = njit(**OPTIONS)
"""Strict floating-point arithmetic, but that lanes fuse products and sums: what certificates are made of."""
inlined = njit(**OPTIONS, inline="always")
"""The same, compiled as part of what calls it."""
REORDERED: dict[str, Any] = {**OPTIONS, "fastmath": FREE}
reordered = njit(**REORDERED)
"""Sums may be reordered and products fused, as in any BLAS; NaN and infinities mean what they always do."""


def called_from_python(function: Any, **more: Any) -> Any:
    """Return a function that is compiled when it is first called, its code kept on disk."""
    try:
        return njit(cache=True, **COMMON, **more)(function)
    except RuntimeError:  # neither the package's folder nor the user's own can be written to
        return njit(**COMMON, **more)(function)
