"""Compile the decision method before it is needed."""

from __future__ import annotations

from soctk.terms.registry import BUILT_IN


def warmup() -> None:
    """Compile everything that deciding compiles, or load it from the disk where it lies already.

    One to three minutes the first time, less than two seconds afterwards. Without it the first decisions of
    all are made by PyTorch while the method is compiled.
    """
    from soctk.decide.compiled.first_use import method_for  # Numba is loaded when something is to be compiled

    for several in (False, True):
        method_for(BUILT_IN).ready(several, wait=True)
