"""A term's kernel run by the Python interpreter, as it stands: one term of one function, numbers in NumPy arrays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from soctk.terms import Term
from soctk.terms.kernel import Kernel


class PlainKernel:
    """The kernel of a term, of the function `row` of its batch, at u (K,)."""

    def __init__(self, term: Term, row: int, u: np.ndarray) -> None:
        assert term.kernel is not None
        self.kernel: Kernel = term.kernel
        self.structure, self.K, self.n = term.structure(), u.size, term.map.dim

        def own(tensor) -> np.ndarray:
            return np.ascontiguousarray(tensor[row if tensor.shape[0] > 1 else 0]).reshape(-1)

        self.A = own(term.map.matrix)
        t: dict[str, Any] = {part: np.zeros(self.K) for part in ("a", "inverse", "z", "p", "nubar", "y", "lag")}
        t |= {"rows": self.K, "n": self.n, "size": self.structure.size, "groups": self.K // self.structure.size}
        t |= {name: own(getattr(term, name)) for name in term.packs.coefficients}
        t |= {name: float(getattr(term, name)) for name in term.packs.numbers}
        t |= {name: np.array(getattr(term, name)) for name in term.packs.counts}
        for name in term.packs.matrices:
            matrices = getattr(term, name)
            t[name] = np.concatenate([np.zeros(0), *map(own, matrices)])
            t[f"{name}_transposed"] = np.concatenate([np.zeros(0), *(own(matrix.mT) for matrix in matrices)])
        self.t = SimpleNamespace(**t, u=u, A=self.A)
        self.reference = self.kernel.reference(self.t) if self.kernel.reference else 0.0

    def smooth(self, mu: float) -> float:
        """Return the smoothed value, and leave the dual point in t.y."""
        with np.errstate(all="ignore"):  # quotients that nothing is chosen from
            value = self.kernel.value(self.t, mu, self.reference)
            self.kernel.dual(self.t)
        return float(value)

    def conjugate(self) -> float:
        with np.errstate(all="ignore"):
            return float(self.kernel.conjugate(self.t))

    def begin_lag(self) -> None:
        self.t.lag[:] = self.t.y
        if self.kernel.initial_lag:
            self.kernel.initial_lag(self.t, self.t.lag)

    def advance_lag(self, du: np.ndarray) -> None:
        if self.kernel.advance_lag:
            self.kernel.advance_lag(self.t, du, np.zeros(self.K))

    def lagged_dual(self) -> np.ndarray:
        """Return the dual point of the dual iterates, that of the last pass where the term has none."""
        if self.kernel.lagged_dual:
            self.kernel.lagged_dual(self.t)
        return self.t.y

    def hessian(self) -> np.ndarray:
        """Return the Hessian in x that the parts make up, (n, n)."""
        n, A, structure = self.n, self.A.reshape(-1, self.n), self.structure
        curvature, out = np.zeros(self.K), np.zeros((n, n + 2))
        self.kernel.curvature(self.t, curvature)
        for k in range(0, structure.direct, structure.shared):
            assert (curvature[k : k + structure.shared] == curvature[k]).all()
        rows = A[: structure.direct]
        total = rows.T @ (curvature[: structure.direct, None] * rows)
        if structure.rank_ones:
            scales = np.zeros(self.t.groups)
            left, right = self.kernel.rank_one(self.t, scales)
            for g, scale in enumerate(scales):
                here = slice(g * structure.size, (g + 1) * structure.size)
                pair = scale * np.outer(A[here].T @ left[here], A[here].T @ right[here])
                total -= pair + pair.T
        if structure.scratch:
            jacobians, scratch = np.zeros(structure.scratch), np.zeros(4 * max(n, self.K))
            self.kernel.add_inner(self.t, curvature, out.reshape(-1), jacobians, scratch)
        inner = np.triu(out[:, :n])
        return total + inner + np.triu(inner, 1).T
