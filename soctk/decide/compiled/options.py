"""How strictly the compiled code treats floating-point arithmetic."""

from __future__ import annotations

from typing import Any

from numba import njit

# A name for each level of strictness. Only `iteration.advance_all` is called from Python, and its cache holds the
# others; wrappers and caches of their own would double the time to compile them.
OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "no_rewrites": True,
    "_nrt": False,
}
compiled = njit(**OPTIONS)
"""Strict floating-point arithmetic, but that lanes fuse products and sums: what certificates are made of."""
inlined = njit(**OPTIONS, inline="always")
"""The same, compiled as part of what calls it."""
REORDERED: dict[str, Any] = {**OPTIONS, "fastmath": {"contract", "reassoc"}}
reordered = njit(**REORDERED)
"""Sums may be reordered and products fused, as in any BLAS; NaN and infinities mean what they always do."""
