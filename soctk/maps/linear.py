"""Linear maps x -> A x with the operations the conic form needs of them.

One instance of a batch may share the matrix with the others (leading size 1) or have its own (leading
size N). Points have the internal shape (N or 1, M, n): N contexts, M points for each.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from soctk.checks import check_finite
from soctk.lazy import sparse as sp

FEWEST_FOR_OUTER = 4
"""Contexts from which on one product with the outer products of the rows is faster than a product for each."""

LARGEST_OUTER = 2**24
"""Numbers kept of them at most: 128 MB in float64."""


def add_product(total: Tensor, left: Tensor, right: Tensor, sign: float = 1.0) -> None:
    """Add sign * left' right to `total` (N, n, n) in place: (N or 1, K, n) both."""
    size = total.shape[0]
    total.baddbmm_(left.mT.expand(size, -1, -1), right.expand(size, -1, -1), alpha=sign)


class LinearMap(ABC):
    """A linear map x -> A x, K rows by n columns."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """The output dimension K."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """The input dimension n."""

    @property
    def fits_densely(self) -> bool:
        """Whether the matrix is small enough for a dense copy."""
        return self.rows * self.dim <= LARGEST_OUTER

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return A x: (N, M, n) -> (N, M, K)."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """Return A'y: (N, M, K) -> (N, M, n)."""

    @abstractmethod
    def to_sparse(self) -> sp.csr_array:
        """Return A as a SciPy matrix; the map must be shared by all contexts."""

    @abstractmethod
    def compose_scale(self, factor: Tensor | float) -> LinearMap:
        """Return the map x -> A (factor * x)."""

    @abstractmethod
    def restrict(self, columns: Tensor) -> LinearMap:
        """Return the map of the coordinates `columns` alone."""

    @abstractmethod
    def apply(self, fn: Callable[[Tensor], Tensor]) -> LinearMap:
        """Return the map with `fn` applied to its numbers, which have a leading batch dimension."""

    @abstractmethod
    def check(self, name: str) -> None:
        """Raise ValueError naming the map unless all of its numbers are finite."""

    @abstractmethod
    def add_gram(self, total: Tensor, weights: Tensor) -> None:
        """Add A' diag(w) A to `total` (N, n, n) for every context: weights (N or 1, K)."""

    @abstractmethod
    def group_adjoint(self, y: Tensor, size: int) -> Tensor:
        """Return A_g'y_g for each group g of `size` consecutive rows: (N, K) -> (N, K / size, n)."""

    @abstractmethod
    def to_dense(self) -> DenseMap:
        """Return the map with a dense matrix, made once; for small maps alone."""

    def reach(self, largest: Tensor, total: float) -> Tensor:
        """Return a bound of sum_i |A_ki| |x_i| over all |x_i| <= largest_i (n,) with |x|_1 <= total: (N or 1, K)."""
        return self.apply(torch.abs).forward(largest.reshape(1, 1, -1))[:, 0]

    def row_squares(self, like: Tensor) -> Tensor:
        """Return the squared length of every row in the dtype and on the device of `like`, (N or 1, K)."""
        return self.apply(torch.square).forward(like.new_ones(1, 1, self.dim))[:, 0]


Made = TypeVar("Made")


def made_once(cache: dict[str, Any], name: str, make: Callable[[], Made], source: Tensor) -> Made:
    """Return what `make` makes of `source`, kept under its name.

    Not kept where it is made without derivatives that the source has, or in `torch.inference_mode` of a source that is
    not: what comes later may need them.
    """
    if name in cache:
        return cache[name]
    found = make()
    lacks = source.requires_grad and not torch.is_grad_enabled()
    if not lacks and torch.is_inference_mode_enabled() == source.is_inference():
        cache[name] = found
    return found


@dataclass(frozen=True, eq=False)
class DenseMap(LinearMap):
    """A dense linear map.

    Attributes:
        matrix: (1, K, n), shared by all contexts, or (N, K, n), one for each.
        used: rows after which there are only zeros, which no product is then made with; None for all.
    """

    matrix: Tensor
    used: int | None = None
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
        matrix = self.matrix[:, : self.used]
        product = x @ (matrix[0].mT if self.shared else matrix.mT)
        return product if self.used is None else torch.nn.functional.pad(product, (0, self.rows - self.used))

    def adjoint(self, y: Tensor) -> Tensor:
        """Return A'y: (N, M, K) -> (N, M, n)."""
        matrix = self.matrix[:, : self.used]
        return y[..., : self.used] @ (matrix[0] if self.shared else matrix)

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

    def to_sparse(self) -> sp.csr_array:
        """Return A (K, n) of a map of one context.

        Raises:
            ValueError: the contexts have matrices of their own.
        """
        if not self.shared:
            raise ValueError(f"expected one context, got {self.matrix.shape[0]} with matrices of their own")
        return sp.csr_array(self.matrix[0].detach().cpu().double().numpy())

    def to_dense(self) -> DenseMap:
        """Return the map itself."""
        return self

    def reach(self, largest: Tensor, total: float) -> Tensor:
        """Return the lesser of |A| largest and total times each row's largest number."""
        matrix = self.matrix.abs()
        return torch.minimum(matrix @ largest, total * matrix.amax(dim=-1))

    def _outer_products(self) -> Tensor:
        """Return the products a_k a_k' of the rows as one (K, n^2) matrix, so that a Gram matrix is one GEMM."""
        rows = self.matrix[0]
        return made_once(self._cache, "outer", lambda: (rows[:, :, None] * rows[:, None, :]).flatten(1), self.matrix)

    def compose_scale(self, factor: Tensor | float) -> DenseMap:
        """Return the map x -> A (factor * x)."""
        return DenseMap(self.matrix * factor, self.used)

    def restrict(self, columns: Tensor) -> DenseMap:
        """Return the map of the coordinates `columns` alone."""
        return DenseMap(self.matrix[:, :, columns], self.used)

    def apply(self, fn: Callable[[Tensor], Tensor]) -> DenseMap:
        """Return the map with `fn` applied to its matrix; itself when nothing changes."""
        changed = fn(self.matrix)
        return self if changed is self.matrix else DenseMap(changed, self.used)

    def check(self, name: str) -> None:
        """Raise ValueError unless the matrix is finite."""
        check_finite(self.matrix, name)


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the non-zero numbers of a sparse matrix stand: row by row, and column by column for its transpose.

    Attributes:
        shape: (K, n).
        starts: (K + 1,), where each row begins.
        columns: the column of each number.
        column_starts: (n + 1,), where each column begins.
        rows: the row of each number, column by column.
        order: for each number of the transpose, its place in the row-wise order.
    """

    shape: tuple[int, int]
    starts: Tensor
    columns: Tensor
    column_starts: Tensor
    rows: Tensor
    order: Tensor

    def row_of_each(self) -> Tensor:
        """Return the row of each number in the row-wise order."""
        return torch.repeat_interleave(torch.arange(self.shape[0]), self.starts.diff())

    @classmethod
    def of(cls, matrix: sp.csr_array) -> Pattern:
        """Return the pattern of a matrix in canonical row-wise format."""
        places = sp.csr_array((np.arange(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape).tocsc()
        arrays = (matrix.indptr, matrix.indices, places.indptr, places.indices, places.data)
        rows, dim = matrix.shape  # type: ignore[misc]
        return cls((rows, dim), *(torch.from_numpy(array.astype(np.int64)) for array in arrays))


@dataclass(frozen=True, eq=False)
class SparseMap(LinearMap):
    """A sparse linear map shared by all contexts: stencils, differences, recurrences in thousands of variables.

    What a context does to single rows belongs into the weights and offsets of the term that uses the map.

    Attributes:
        values: (1, nnz), the non-zero numbers row by row.
        pattern: where they stand.
    """

    values: Tensor
    pattern: Pattern
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, matrix: sp.sparray | sp.spmatrix | np.ndarray, dtype: torch.dtype = torch.float64) -> SparseMap:
        """Return the map of a SciPy matrix (K, n)."""
        canonical = sp.csr_array(matrix)
        canonical.sum_duplicates()
        return cls(torch.from_numpy(canonical.data).to(dtype).unsqueeze(0), Pattern.of(canonical))

    @property
    def rows(self) -> int:
        """The output dimension K."""
        return self.pattern.shape[0]

    @property
    def dim(self) -> int:
        """The input dimension n."""
        return self.pattern.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return A x: (N, M, n) -> (N, M, K); differentiable in x and in the values."""
        matrix, transposed = self._matrices()
        return _SparseProduct.apply(x, self.values, self.pattern, matrix, transposed, False)  # type: ignore[return-value]

    def adjoint(self, y: Tensor) -> Tensor:
        """Return A'y: (N, M, K) -> (N, M, n); differentiable in y and in the values."""
        matrix, transposed = self._matrices()
        return _SparseProduct.apply(y, self.values, self.pattern, transposed, matrix, True)  # type: ignore[return-value]

    def add_gram(self, total: Tensor, weights: Tensor) -> None:
        """Add A' diag(w) A to `total` (N, n, n): for small maps alone, through a dense copy."""
        self.to_dense().add_gram(total, weights)

    def group_adjoint(self, y: Tensor, size: int) -> Tensor:
        """Return A_g'y_g for each group of `size` rows: for small maps alone, through a dense copy."""
        return self.to_dense().group_adjoint(y, size)

    def to_dense(self) -> DenseMap:
        """Return the map with a dense matrix, made once.

        Raises:
            NotImplementedError: the matrix is too large for that.
        """
        if not self.fits_densely:
            raise NotImplementedError(
                f'no dense copy is made of a {self.rows} by {self.dim} map; use method="newton_cg" or "first_order"'
            )

        def dense() -> DenseMap:
            places = self.pattern.row_of_each() * self.dim + self.pattern.columns
            flat = self.values.new_zeros(self.rows * self.dim).index_copy(
                0, places.to(self.values.device), self.values[0]
            )
            return DenseMap(flat.reshape(1, self.rows, self.dim))

        return made_once(self._cache, "dense", dense, self.values)

    def to_sparse(self) -> sp.csr_array:
        """Return A as a SciPy matrix."""
        arrays = (part.detach().cpu().numpy() for part in (self.values[0], self.pattern.columns, self.pattern.starts))
        return sp.csr_array(tuple(arrays), shape=self.pattern.shape)

    def reach(self, largest: Tensor, total: float) -> Tensor:
        """Return |A| largest, with |A| made once."""
        absolute = made_once(self._cache, "|A|", lambda: self.apply(torch.abs), self.values)
        return absolute.forward(largest.reshape(1, 1, -1))[:, 0]

    def compose_scale(self, factor: Tensor | float) -> SparseMap:
        """Return the map x -> A (factor * x), a number or one for each coordinate."""
        if isinstance(factor, Tensor) and factor.numel() > 1:
            factor = factor.reshape(-1)[self.pattern.columns]
        return SparseMap(self.values * factor, self.pattern)

    def restrict(self, columns: Tensor) -> SparseMap:
        """Return the map of the coordinates `columns` alone."""
        pattern = self.pattern
        arrays = (np.arange(1, pattern.columns.numel() + 1), pattern.columns.numpy(), pattern.starts.numpy())
        places = sp.csr_array(arrays, shape=pattern.shape)[:, columns.cpu().numpy()]
        places.sort_indices()
        kept = torch.from_numpy(places.data - 1)
        return SparseMap(self.values[:, kept.to(self.values.device)], Pattern.of(places))

    def apply(self, fn: Callable[[Tensor], Tensor]) -> SparseMap:
        """Return the map with `fn` applied to its numbers; itself when nothing changes."""
        changed = fn(self.values)
        return self if changed is self.values else SparseMap(changed, self.pattern)

    def check(self, name: str) -> None:
        """Raise ValueError unless the numbers are finite."""
        check_finite(self.values, name)

    def _matrices(self) -> tuple[Tensor, Tensor]:
        """Return A and A' in torch's format, made once."""
        if "A" not in self._cache:
            pattern, values, (rows, dim) = self.pattern, self.values[0].detach(), self.pattern.shape
            parts = (pattern.starts, pattern.columns, values)
            turned = (pattern.column_starts, pattern.rows, values[pattern.order.to(values.device)])
            for name, given, shape in (("A", parts, (rows, dim)), ("A'", turned, (dim, rows))):
                given = (part.to(values.device) for part in given)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch calls its compressed format a beta version
                    self._cache[name] = torch.sparse_csr_tensor(*given, size=shape, check_invariants=False)
        return self._cache["A"], self._cache["A'"]


class _SparseProduct(torch.autograd.Function):
    """x -> x A' for points in rows, its derivative in x the same with A and A' exchanged; y -> y A where `turned`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, pattern: Pattern, matrix: Tensor, other: Tensor, turned: bool
    ) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.rest = pattern, matrix, other, turned
        flat = x.reshape(-1, x.shape[-1])
        return (matrix @ flat.mT).mT.reshape(*x.shape[:-1], matrix.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, values), (pattern, matrix, other, turned) = ctx.saved_tensors, ctx.rest
        g = gradients[0]
        slope = in_values = None
        if ctx.needs_input_grad[0]:
            slope = _SparseProduct.apply(g, values, pattern, other, matrix, not turned)
        if ctx.needs_input_grad[1]:
            in_values = _sampled_product(*((x, g) if turned else (g, x)), pattern).unsqueeze(0)
        return slope, in_values, None, None, None, None  # type: ignore[return-value]


def _sampled_product(left: Tensor, right: Tensor, pattern: Pattern) -> Tensor:
    """Return the entries of left'right that the pattern has, (nnz,), in pieces: points in rows, (.., K) and (.., n)."""
    left, right = left.reshape(-1, left.shape[-1]), right.reshape(-1, right.shape[-1])
    rows, columns = pattern.row_of_each().to(left.device), pattern.columns.to(left.device)
    piece = max(1, LARGEST_OUTER // max(1, left.shape[0]))
    parts = zip(rows.split(piece), columns.split(piece), strict=True)
    return torch.cat([(left[:, i] * right[:, j]).sum(dim=0) for i, j in parts])
