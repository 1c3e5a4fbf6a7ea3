"""Libraries that are loaded when they are first used, as neither learning nor a decision needs them: half of the time
that everything together would take to load.

    from soctk.lazy import cvxpy as cp
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cvxpy
    import pandas
    import scs
    from scipy import linalg, optimize, sparse

    clarabel: Any  # a compiled module without type stubs
    arrow: Any  # pyarrow, which an extra brings
    parquet: Any  # of it
else:

    class _Lazy:
        """A module's stand-in."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    clarabel, cvxpy, pandas, scs = (_Lazy(name) for name in ("clarabel", "cvxpy", "pandas", "scs"))
    arrow, parquet = _Lazy("pyarrow"), _Lazy("pyarrow.parquet")
    linalg, optimize, sparse = (_Lazy(f"scipy.{name}") for name in ("linalg", "optimize", "sparse"))

__all__ = ["arrow", "clarabel", "cvxpy", "linalg", "optimize", "pandas", "parquet", "scs", "sparse"]
