"""Whether compiled code decides now; until it is compiled others do, where they take less time than to wait for it."""

from __future__ import annotations

from soctk.terms import Term
from soctk.terms.registry import BUILT_IN

MOST_BY_PYTORCH = 4096
"""Instances that PyTorch decides sooner than the method is compiled."""
MOST_BY_A_SOLVER = 100
"""Instances that an outside solver does."""
_others: set[type[Term]] = set()


def is_ready(kinds: tuple[type[Term], ...], size: int, most: int) -> bool:
    """Whether compiled code decides for `size` forms of some kinds of terms now.

    Args:
        kinds: of the terms.
        size: instances.
        most: how many are decided without it rather than waited for; it is being compiled from now on.
    """
    from soctk.decide.compiled.first_use import method_for  # Numba is loaded when it is needed

    _others.update(kind for kind in kinds if kind not in BUILT_IN)
    return method_for(kinds).ready(several=False, wait=size > most)


def kernels_of_others() -> bool:
    """Whether terms from outside of this library have been decided by their kernels since Python started."""
    return len(_others) > 0
