"""A conic form as flat arrays (`soctk.decide.compiled.arrays`). No Numba is loaded here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from soctk.decide.compiled.arrays import ARRAYS, PASS, term_table
from soctk.decide.rules import Schedule, schedule_for
from soctk.forms.conic_form import ConicForm
from soctk.maps.linear import DenseMap
from soctk.terms import Term
from soctk.terms.kernel import Structure
from soctk.terms.registry import BUILT_IN, has_kernel, warn_slow

MOST_KEPT = 2**17
"""Numbers kept of the outer products of rows and groups: a megabyte, about a second-level cache."""
SMALL_DIM = 24
"""Up to this many variables an outer product kept is added more quickly than it is made."""


@dataclass(frozen=True)
class Packed:
    """N functions as flat arrays. `dataclasses.replace(packed, data=...)` gives others that differ in these alone.

    Attributes:
        layout: sizes, where each array begins, and the table of terms.
        shared: matrices, (1 or N, any).
        data: (N, D). Its columns are b0; v; the offsets d of all terms; then term by term what its class names in
            `packs.coefficients`, such as the weights of a quadratic and the weights and kappa of a norm.
        kinds: the classes of the terms that the compiled code is to know.
        schedule: by which they are decided.
        state: where the parts of an instance's state are.
        common: where those of `common` are.
    """

    layout: np.ndarray
    shared: np.ndarray
    data: np.ndarray
    kinds: tuple[type[Term], ...]
    schedule: Schedule
    state: SimpleNamespace
    common: SimpleNamespace
    sizes: dict[str, int]


def supported(form: ConicForm) -> bool:
    """Whether the compiled method may decide a form: kernels for all terms, dense matrices in the processor's memory.

    Warns, once for each class, of terms without a kernel.
    """
    if form.linear.device.type != "cpu":
        return False
    slow = [type(term) for term in form.terms if not has_kernel(type(term))]
    for kind in slow:
        warn_slow(kind)
    return not slow and all(
        isinstance(term.map, DenseMap) and all(isinstance(matrix, Tensor) for matrix in _matrices(term))
        for term in form.terms
    )


def pack(form: ConicForm, *, keep_final: bool = False) -> Packed:
    """Return the flat arrays of a detached form; `keep_final` as `schedule_for`'s."""
    terms, n = form.terms, form.dim
    kinds = (*BUILT_IN, *dict.fromkeys(type(term) for term in terms if type(term) not in BUILT_IN))
    structures = [term.structure() for term in terms]
    matrices = [term.map.matrix for term in terms if isinstance(term.map, DenseMap)]
    matrix = _joined(matrices) if matrices else form.linear.new_zeros(1, 0, n)
    shared = _joined([matrix.flatten(1), matrix.mT.flatten(1), *(part for term in terms for part in _shared(term))])
    offsets = [term.offset[:, 0] for term in terms]
    weights = [getattr(term, name)[:, 0] for term in terms for name in term.packs.coefficients]
    data = _joined([form.constant, form.linear[:, 0], *offsets, *weights], form.size)
    rows, kept = matrix.shape[1], _kept(structures, n)
    table = list(_table(terms, kinds, structures, kept, n, rows))
    stride = max(map(len, table), default=0)
    sizes = {"n": n, "rows": rows, "terms": len(terms), "products": sum(kept), "bordered": n + 2}
    sizes |= {"scratches": 4 * max(n, rows), "jacobian_size": max((s.scratch for s in structures), default=0)}
    sizes |= {"pairs_size": 2 * n * sum(s.rank_ones for s in structures), "term_stride": stride, "one": 1, "six": 6}
    sizes |= {"data_size": data.shape[1], "state_size": ARRAYS.count("state", sizes)}
    sizes["cache_size"] = ARRAYS.count("cache", sizes)
    layout = ARRAYS.measure(sizes)
    places = (ARRAYS.slices(layout, vector) for vector in ("state", "common"))
    whole = np.array([*layout, *(k for row in table for k in row + [0] * (stride - len(row)))], dtype=np.int64)
    schedule = schedule_for(form, keep_final=keep_final)
    return Packed(whole, _array(shared), _array(data), kinds, schedule, *places, sizes)


def _table(
    terms: tuple[Term, ...],
    kinds: tuple[type[Term], ...],
    structures: list[Structure],
    kept: list[int],
    n: int,
    rows: int,
) -> Iterator[list[int]]:
    """Yield the row of each term: its sizes, where its parts begin and how many numbers they have, its counts."""
    first, product, shared, weight = 0, 0, 2 * rows * n, 1 + n + rows
    for term, structure, products in zip(terms, structures, kept, strict=True):
        table, count = term_table(term.packs), term.map.rows
        direct, size, shared_rows, constant, rank_ones, scratch = structure
        sizes = (kinds.index(type(term)), first, count, n, size, count // size)
        sizes += (direct, shared_rows, int(constant), rank_ones, int(scratch > 0), products, product)
        at = {"u": (first, count), "lag": (first, count), "A": (first * n, count * n)}
        at |= {part: (k * rows + first, count) for k, part in enumerate(PASS)}
        for name in term.packs.coefficients:
            at[name] = weight, getattr(term, name).shape[-1]
            weight += at[name][1]
        for name in term.packs.numbers:
            at[name] = shared, 1
            shared += 1
        for name in term.packs.matrices:
            each = sum(matrix.shape[1] * matrix.shape[2] for matrix in getattr(term, name))
            at[name], at[f"{name}_transposed"] = (shared, each), (shared + each, each)
            shared += 2 * each
        counts: list[int] = []
        for name in term.packs.counts:
            at[name] = table.length + len(counts), len(getattr(term, name))
            counts += getattr(term, name)
        yield [*sizes, *(k for name in table.vector_of for k in at[name]), *counts]
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
    numbers = [float(getattr(term, name)) for name in term.packs.numbers]
    yield torch.tensor([numbers], dtype=torch.float64)
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
