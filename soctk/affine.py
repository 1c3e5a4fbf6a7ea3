"""Linear maps x -> A x with the operations the conic form needs of them.

One instance of a batch may share the matrix with the others (leading size 1) or have its own (leading
size N). Points have the internal shape (N or 1, M, n): N contexts, M points for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import scipy.sparse as sp
import torch
from torch import Tensor

FEWEST_FOR_OUTER = 4
"""Contexts from which on one product with the outer products of the rows is faster than a product for each."""

LARGEST_OUTER = 2**24
"""Numbers kept of them at most: 128 MB in float64."""


def add_product(total: Tensor, left: Tensor, right: Tensor, sign: float = 1.0) -> None:
    """Add sign * left' right to `total` (N, n, n) in place: (N or 1, K, n) both."""
    size = total.shape[0]
    total.baddbmm_(left.mT.expand(size, -1, -1), right.expand(size, -1, -1), alpha=sign)


@dataclass(frozen=True, eq=False)
class DenseMap:
    """A dense linear map.

    Attributes:
        matrix: (1, K, n), shared by all contexts, or (N, K, n), one for each.
    """

    matrix: Tensor
    _cache: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        """The output dimension K."""
        return self.matrix.shape[1]

    @property
    def dim(self) -> int:
        """The input dimension n."""
        return self.matrix.shape[2]

    @property
    def shared(self) -> bool:
        """Whether all contexts use the same matrix."""
        return self.matrix.shape[0] == 1

    def forward(self, x: Tensor) -> Tensor:
        """Return A x: (N, M, n) -> (N, M, K)."""
        return x @ (self.matrix[0].mT if self.shared else self.matrix.mT)

    def adjoint(self, y: Tensor) -> Tensor:
        """Return A'y: (N, M, K) -> (N, M, n)."""
        return y @ (self.matrix[0] if self.shared else self.matrix)

    def add_gram(self, total: Tensor, weights: Tensor) -> None:
        """Add A' diag(w) A to `total` (N, n, n) for every context: weights (N or 1, K)."""
        if self.shared and total.shape[0] >= FEWEST_FOR_OUTER and self.rows * self.dim**2 <= LARGEST_OUTER:
            weights = weights.expand(total.shape[0], -1)
            total.view(total.shape[0], -1).addmm_(weights, self._outer_products())
        else:
            add_product(total, self.matrix * weights[:, :, None], self.matrix)

    def group_adjoint(self, y: Tensor, size: int) -> Tensor:
        """Return A_g'y_g for each group g of `size` consecutive rows: (N, K) -> (N, K / size, n)."""
        blocks, groups = self.matrix.unflatten(1, (-1, size)), y.unflatten(-1, (-1, size))
        if self.shared:
            return torch.einsum("ngk,gki->ngi", groups, blocks[0])
        return torch.einsum("ngk,ngki->ngi", groups, blocks)

    def row_squares(self) -> Tensor:
        """Return the squared length of every row, (N or 1, K)."""
        return self.matrix.square().sum(dim=-1)

    def to_sparse(self) -> sp.csr_array:
        """Return A (K, n) of a map of one context.

        Raises:
            ValueError: the contexts have matrices of their own.
        """
        if not self.shared:
            raise ValueError(f"expected one context, got {self.matrix.shape[0]} with matrices of their own")
        return sp.csr_array(self.matrix[0].detach().cpu().double().numpy())

    def _outer_products(self) -> Tensor:
        """Return the products a_k a_k' of the rows as one (K, n^2) matrix, so that a Gram matrix is one GEMM."""
        if "outer" not in self._cache:
            matrix = self.matrix[0]
            self._cache["outer"] = (matrix[:, :, None] * matrix[:, None, :]).reshape(matrix.shape[0], -1)
        return self._cache["outer"]

    def compose_scale(self, factor: Tensor | float) -> DenseMap:
        """Return the map x -> A (factor * x)."""
        return DenseMap(self.matrix * factor)

    def restrict(self, columns: Tensor) -> DenseMap:
        """Return the map of the coordinates `columns` alone."""
        return DenseMap(self.matrix[:, :, columns])

    def apply(self, fn: Callable[[Tensor], Tensor]) -> DenseMap:
        """Return the map with `fn` applied to its matrix; itself when nothing changes."""
        changed = fn(self.matrix)
        return self if changed is self.matrix else DenseMap(changed)
