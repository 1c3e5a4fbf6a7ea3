"""A conic form as flat arrays (`soctk.decide.compiled.arrays`). No Numba is loaded here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from soctk.decide.compiled.arrays import ARRAYS, PASS, term_table
from soctk.decide.rules import Schedule, schedule_for
from soctk.forms.sum_of_terms import SumOfTerms
from soctk.maps.linear import DenseMap
from soctk.terms import Term
from soctk.terms.kernel import Packs, Structure
from soctk.terms.registry import BUILT_IN, has_kernel, warn_slow

MOST_KEPT = 2**17
"""Numbers kept of the outer products of rows and groups: a megabyte, about a second-level cache."""
SMALL_DIM = 24
"""Up to this many variables an outer product kept is added more quickly than it is made."""


class Shapes(NamedTuple):
    """What the layout depends on of a term."""

    packs: Packs
    structure: Structure
    kind: int
    rows: int
    coefficients: tuple[int, ...]
    matrices: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Layout:
    """Where everything is.

    Attributes:
        numbers: what compiled code is given: sizes, where each array begins, and the table of terms.
        weights: the columns of `Packed.data` that hold weights, one term's after the other's.
        sizes: by name, and of the vectors `common` and `memory`.
        state: where the parts of an instance's state are.
        common: where those of `common` are.
        sides: where those of `sides` are.
    """

    numbers: np.ndarray
    weights: np.ndarray
    sizes: dict[str, int]
    state: SimpleNamespace
    common: SimpleNamespace
    sides: SimpleNamespace


@dataclass(frozen=True)
class Packed:
    """N functions as flat arrays.

    Attributes:
        layout: where everything is.
        shared: matrices, (1 or N, any).
        data: (N, D). Its columns are b0; v; the offsets d of all terms; then term by term what its class names in
            `packs.coefficients`, such as the weights of a quadratic and the weights and kappa of a norm.
        kinds: the classes of the terms that the compiled code is to know.
        schedule: by which they are decided.
        shapes: what the layout follows from, of each term.
        kept: layout and matrices of the last substitution, where all functions have the same matrices (`substituted`).
        common: R of the last set with constraints, and what `soctk.decide.compiled.solve` keeps for it.
    """

    layout: Layout
    shared: np.ndarray
    data: np.ndarray
    kinds: tuple[type[Term], ...]
    schedule: Schedule
    shapes: tuple[Shapes, ...]
    kept: list[Substituted] = field(default_factory=list)
    common: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number N of functions."""
        return self.data.shape[0]

    def given(self, data: np.ndarray) -> Packed:
        """Return functions that differ in `data` alone."""
        return Packed(self.layout, self.shared, data, self.kinds, self.schedule, self.shapes, self.kept, self.common)

    def select(self, index: np.ndarray) -> Packed:
        """Return the functions `index`."""
        if len(self.shared) == 1:
            return self.given(self.data[index])
        return replace(self, shared=self.shared[index], data=self.data[index], kept=[], common=[])

    @property
    def matrices(self) -> np.ndarray:
        """A of all terms, (1 or N, K, n)."""
        n, rows = self.layout.sizes["n"], self.layout.sizes["rows"]
        return self.shared[:, : rows * n].reshape(len(self.shared), rows, n)

    def slopes(self, passes: np.ndarray) -> np.ndarray:
        """Return v + A'y, (N, n), for the dual points y that passes over the terms left, (N, any)."""
        n, rows, A = self.layout.sizes["n"], self.layout.sizes["rows"], self.matrices
        first = list(PASS).index("y") * rows
        y, v = passes[:, first : first + rows], self.data[:, 1 : 1 + n]
        return v + (y @ A[0] if len(A) == 1 else np.einsum("ikj,ik->ij", A, y))


def supported(form: SumOfTerms) -> bool:
    """Whether the compiled method may decide a form as it is: `compilable`, and in the processor's memory."""
    return form.linear.device.type == "cpu" and compilable(form)


def compilable(form: SumOfTerms) -> bool:
    """Whether there are kernels for all terms, and their matrices are dense.

    Warns, once for each class, of terms without a kernel.
    """
    slow = [type(term) for term in form.terms if not has_kernel(type(term))]
    for kind in slow:
        warn_slow(kind)
    return not slow and all(
        isinstance(term.map, DenseMap) and all(isinstance(matrix, Tensor) for matrix in _matrices(term))
        for term in form.terms
    )


def kinds_of(terms: tuple[Term, ...]) -> tuple[type[Term], ...]:
    """Return the classes of terms that the compiled code is to know: the package's own, and others among `terms`."""
    if all(type(term) in BUILT_IN for term in terms):
        return BUILT_IN
    return (*BUILT_IN, *dict.fromkeys(type(term) for term in terms if type(term) not in BUILT_IN))


def pack(form: SumOfTerms, *, keep_final: bool = False) -> Packed:
    """Return the flat arrays of a detached form; `keep_final` as `schedule_for`'s."""
    terms = form.terms
    kinds = kinds_of(terms)
    matrices = [term.map.matrix for term in terms if isinstance(term.map, DenseMap)]
    matrix = _joined(matrices) if matrices else form.linear.new_zeros(1, 0, form.dim)
    shared = _joined([matrix.flatten(1), matrix.mT.flatten(1), *(part for term in terms for part in _shared(term))])
    offsets = [term.offset[:, 0] for term in terms]
    coefficients = [getattr(term, name)[:, 0] for term in terms for name in term.packs.coefficients]
    data = _joined([form.constant, form.linear[:, 0], *offsets, *coefficients], form.size)
    shapes = tuple(_shapes(term, kinds) for term in terms)
    schedule = schedule_for(form, keep_final=keep_final)
    return Packed(_layout(form.dim, 0, False, shapes), _array(shared), _array(data), kinds, schedule, shapes)


def substituted(packed: Packed, basis: np.ndarray, origin: np.ndarray, constraints: int) -> Packed:
    """Return the functions w -> f(origin + basis w), for a set with constraints; dual points are kept.

    Args:
        packed: f, N functions of n variables.
        basis: (n, d), not changed afterwards: what follows from it and the matrices alone is kept.
        origin: (1 or N, n).
        constraints: how many the set of w has besides bounds.
    """
    (n, d), A = basis.shape, packed.matrices
    known = packed.kept[0] if packed.kept else None
    if known is None or known.basis is not basis or known.constraints != constraints:
        known = Substituted.of(packed, basis, constraints)
        if len(A) == 1:
            packed.kept[:] = [known]
    if n == d:  # there is nothing to eliminate
        return replace(packed, layout=known.layout, kept=[], common=known.common)
    from soctk.decide.compiled.substitution import substitute  # Numba is loaded when it is needed

    inner = np.empty((len(packed.data), packed.data.shape[1] + d - n))
    substitute(packed.shared, A.shape[1], basis, origin, packed.data, inner)
    return Packed(
        *(known.layout, known.shared, inner, packed.kinds, packed.schedule, packed.shapes), common=known.common
    )


@dataclass(frozen=True, eq=False)
class Substituted:
    """What w -> f(origin + basis w) has from f and the basis alone.

    Attributes:
        basis: (n, d).
        constraints: how many the set of w has besides bounds.
        layout: where everything is.
        shared: matrices, (1 or N, any).
        common: `Packed.common` of what it gives.
    """

    basis: np.ndarray
    constraints: int
    layout: Layout
    shared: np.ndarray
    common: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    @classmethod
    def of(cls, packed: Packed, basis: np.ndarray, constraints: int) -> Substituted:
        """Return it for arguments as `substituted`'s."""
        (n, d), rows = basis.shape, packed.layout.sizes["rows"]
        layout = _layout(d, constraints, True, packed.shapes)
        if n == d:
            return cls(basis, constraints, layout, packed.shared)
        inner = packed.matrices @ basis
        parts = (part.reshape(len(inner), rows * d) for part in (inner, inner.transpose(0, 2, 1)))
        return cls(basis, constraints, layout, np.concatenate([*parts, packed.shared[:, 2 * rows * n :]], axis=1))


def _shapes(term: Term, kinds: tuple[type[Term], ...]) -> Shapes:
    packs = term.packs
    return Shapes(
        packs,
        term.structure(),
        kinds.index(type(term)),
        term.map.rows,
        tuple(getattr(term, name).shape[-1] for name in packs.coefficients),
        tuple(sum(m.shape[1] * m.shape[2] for m in getattr(term, name)) for name in packs.matrices),
        tuple(tuple(getattr(term, name)) for name in packs.counts),
    )


@lru_cache(maxsize=256)
def _layout(n: int, constraints: int, keep_duals: bool, terms: tuple[Shapes, ...]) -> Layout:
    """Return where everything is, for n variables, constraints of the set, and terms of these shapes."""
    rows, structures = sum(term.rows for term in terms), [term.structure for term in terms]
    kept = _kept(structures, n)
    table = list(_table(terms, kept, n, rows))
    stride = max(map(len, table), default=0)
    sizes = {"n": n, "rows": rows, "constraints": constraints, "terms": len(terms), "products": sum(kept)}
    sizes |= {"bordered": n + 2, "kept": len(PASS) * rows if keep_duals else 0}
    sizes |= {
        "scratches": 4 * max(n, rows, constraints),
        "jacobian_size": max((s.scratch for s in structures), default=0),
    }
    sizes |= {"pairs_size": 2 * n * sum(s.rank_ones for s in structures), "term_stride": stride, "one": 1, "six": 6}
    sizes["data_size"] = 1 + n + rows + sum(sum(term.coefficients) for term in terms)
    for vector in ("state", "cache", "common", "sides", "memory"):
        sizes[f"{vector}_size"] = ARRAYS.count(vector, sizes)
    layout = ARRAYS.measure(sizes)
    numbers = [*layout, *(number for row in table for number in row + [0] * (stride - len(row)))]
    places = (ARRAYS.slices(layout, vector) for vector in ("state", "common", "sides"))
    return Layout(np.array(numbers, dtype=np.int64), _weight_columns(terms, 1 + n + rows), sizes, *places)


def _weight_columns(terms: tuple[Shapes, ...], first: int) -> np.ndarray:
    """Return the columns of "weights" among the terms' coefficients, which begin at `first`."""
    held = [
        np.full(size, name == "weights")
        for term in terms
        for name, size in zip(term.packs.coefficients, term.coefficients, strict=True)
    ]
    return first + np.flatnonzero(np.concatenate([np.zeros(0, dtype=bool), *held]))


def _table(terms: tuple[Shapes, ...], kept: list[int], n: int, rows: int) -> Iterator[list[int]]:
    """Yield the row of each term: its sizes, where its parts begin and how many numbers they have, its counts."""
    first, product, shared, weight = 0, 0, 2 * rows * n, 1 + n + rows
    for term, products in zip(terms, kept, strict=True):
        packs, count, length = term.packs, term.rows, term_table(term.packs).length
        direct, size, shared_rows, constant, rank_ones, scratch = term.structure
        sizes = (term.kind, first, count, n, size, count // size)
        sizes += (direct, shared_rows, int(constant), rank_ones, int(scratch > 0), products, product)
        at = {"u": (first, count), "lag": (first, count), "A": (first * n, count * n)}
        at |= {part: (k * rows + first, count) for k, part in enumerate(PASS)}
        for name, width in zip(packs.coefficients, term.coefficients, strict=True):
            at[name], weight = (weight, width), weight + width
        for name in packs.numbers:
            at[name], shared = (shared, 1), shared + 1
        for name, each in zip(packs.matrices, term.matrices, strict=True):
            at[name], at[f"{name}_transposed"] = (shared, each), (shared + each, each)
            shared += 2 * each
        counts: list[int] = []
        for name, numbers in zip(packs.counts, term.counts, strict=True):
            at[name] = length + len(counts), len(numbers)
            counts += numbers
        yield [*sizes, *(number for name in term_table(packs).vector_of for number in at[name]), *counts]
        first, product = first + count, product + products


def _kept(structures: list[Structure], n: int) -> list[int]:
    """Return how many outer products of rows, or of groups that share their curvature, are kept for each term."""
    kept: list[int] = []
    for structure in structures:
        worth = not structure.constant and (structure.shared > 1 or n <= SMALL_DIM)
        wanted = structure.direct // structure.shared if worth else 0
        kept.append(wanted if (sum(kept) + wanted) * n * n <= MOST_KEPT else 0)
    return kept


def _matrices(term: Term) -> Iterator[Tensor]:
    for name in term.packs.matrices:
        yield from getattr(term, name)


def _shared(term: Term) -> Iterator[Tensor]:
    """Yield the numbers and matrices that a term packs, each (1 or N, any), in the order of `_table`."""
    if term.packs.numbers:
        yield torch.tensor([[float(getattr(term, name)) for name in term.packs.numbers]], dtype=torch.float64)
    for name in term.packs.matrices:
        yield from (matrix.flatten(1) for matrix in getattr(term, name))
        yield from (matrix.mT.flatten(1) for matrix in getattr(term, name))


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.numpy())


def _joined(parts: list[Tensor], size: int | None = None) -> Tensor:
    """Concatenate tensors whose leading sizes are 1 or `size`, any other number, along their second dimension."""
    if size is None:
        size = next((part.shape[0] for part in parts if part.shape[0] != 1), 1)
    wide = [part if part.shape[0] == size else part.expand(size, *part.shape[1:]) for part in parts]
    return torch.cat(wide, dim=1).to(torch.float64)
