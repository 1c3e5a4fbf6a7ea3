"""A conic form as flat arrays: the rows A_j x + d_j of all terms stacked, and a table that says which belong to whom.

The compiled functions are given six vectors: `layout` (integers: sizes, where each part of the others begins, and the
table), `shared` (matrices), `common` (the set, and what follows from the matrices), `data` (one function's other
coefficients), `state` (where one instance stands) and `memory` (scratch). The last three are of lanes where several
instances are treated side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from soctk.decide.rules import Schedule, schedule_for
from soctk.forms.conic_form import ConicForm
from soctk.maps.linear import DenseMap
from soctk.terms import Huber, Logistic, LogSumExp, Network, Norms, Quadratic, Term

QUADRATIC, NORMS, RELU, SOFTPLUS, LOGISTIC, LOG_SUM_EXP, HUBER = range(7)
KINDS: dict[type[Term], int] = {
    Quadratic: QUADRATIC,
    Norms: NORMS,
    Network: RELU,
    Logistic: LOGISTIC,
    LogSumExp: LOG_SUM_EXP,
    Huber: HUBER,
}

DIM, ROWS, TERMS, PRODUCTS, PARTS = range(5)
"""`layout` begins with n, the numbers of rows K, of terms and of outer products kept, and where parts begin."""

(
    # of `shared`: Huber's widths; A, (K, n), and its transpose; the U_l of all networks and their transposes
    DELTA,
    MATRIX,
    TRANSPOSED,
    MIXING,
    MIXING_TRANSPOSED,
    # of `data`: b0, v, d, and the weights (kappa behind a norm's)
    CONSTANT,
    LINEAR,
    OFFSET,
    WEIGHTS,
    # of `state`
    NUMBERS,
    X,
    S_LO,
    S_HI,
    BEST_X,
    LAG,
    U,
    # of `common`: the set; outer products of rows and groups
    SETTINGS,
    LO,
    HI,
    KEPT,
    # of `memory`: data and state in work; vectors (K,), caches (6, K), vectors (n,), the last two of them 1 / (x - lo)
    # and 1 / (hi - x); matrices of n rows, and others
    HELD_DATA,
    HELD_STATE,
    DU,
    TRIAL,
    CURVATURE,
    CACHE,
    OTHER,
    G,
    OTHER_G,
    DX,
    ONES,
    POINT,
    GRADIENT,
    NEAR_LO,
    NEAR_HI,
    FACTOR,
    BASE,
    JACOBIANS,
    COEFFICIENTS,
    REFERENCE,
    SCRATCH,
    PAIRS,
    TABLE,
) = range(PARTS, PARTS + 43)
FIRST_OF = {"shared": DELTA, "data": CONSTANT, "state": NUMBERS, "common": SETTINGS, "memory": HELD_DATA}

KIND, FIRST, COUNT, SIZE, WEIGHT, KAPPA, WIDTHS, LAYERS, MIX, KEPT_COUNT, KEPT_FIRST = range(11)
"""Columns of the table: the kind; first row and number of rows; rows in a group; where its weights and kappa begin
among the weights; where its layers' widths begin in `layout`, and their number; where its mixing matrices begin; how
many outer products are kept for it, and the first."""
COLUMNS = 11

TOTAL, HAS_SUM, HAS_HI, TOL, MAX_ITER, FIRST_SHARE, LAST_SHARE, RULES = range(8)
"""Entries of SETTINGS; from RULES on the two of a `Schedule`, of three numbers each."""
SETTINGS_SIZE = RULES + 6
NUMBERS_SIZE = 12
(
    MU,
    VALUE,
    BEST_VALUE,
    BEST_BOUND,
    ITERATIONS,
    STUCK,
    OUTCOME,
    STARTED,
    CERTIFIED,
    TAKEN,
    FINISHED,
    DECREMENT,
) = range(NUMBERS_SIZE)
"""Entries of NUMBERS. CERTIFIED: after how many iterations the certificate was last tried; TAKEN: iterations since the
instance was last begun; FINISHED: whether nothing more is to be done for it; DECREMENT: that of the last step."""
RUNNING, OPTIMAL, STALLED, ITERATION_LIMIT = range(4)
"""What OUTCOME can be."""

MOST_KEPT = 2**17
"""Numbers kept of the outer products of rows and groups: a megabyte, about a second-level cache."""
SMALL_DIM = 24
"""Up to this many variables an outer product kept is added more quickly than it is made."""


@dataclass
class Packed:
    """N functions: `layout`, `shared` (1 or N, ...), `data` (N, ...); the sizes of the parts and of three vectors.

    And the schedule by which they are decided.
    """

    layout: np.ndarray
    shared: np.ndarray
    data: np.ndarray
    state_size: int
    common_size: int
    memory_size: int
    sizes: dict[int, int]
    schedule: Schedule

    def columns(self, part: int) -> slice:
        """Return where a part is in its vector."""
        return slice(self.layout[part], self.layout[part] + self.sizes[part])


def supported(form: ConicForm) -> bool:
    """Whether the compiled method knows every term of the form, its maps are dense and in the processor's memory."""
    known = all(type(term) in KINDS and isinstance(term.map, DenseMap) for term in form.terms)
    mixing = (matrix for term in form.terms if isinstance(term, Network) for matrix in term.mixing)
    return known and form.linear.device.type == "cpu" and all(isinstance(matrix, Tensor) for matrix in mixing)


def pack(form: ConicForm, *, keep_final: bool = False) -> Packed:
    """Return the flat arrays of a detached form; `keep_final` as `schedule_for`'s."""
    size, n, terms = form.size, form.dim, form.terms
    networks = [term for term in terms if isinstance(term, Network)]
    mixing = [m for term in networks for m in term.mixing if isinstance(m, Tensor)]
    matrices = [term.map.matrix for term in terms if isinstance(term.map, DenseMap)]
    own = size if any(m.shape[0] != 1 for m in (*matrices, *mixing)) else 1
    delta = torch.tensor([[getattr(term, "delta", 0.0) for term in terms]], dtype=torch.float64)
    matrix = _joined(matrices, own) if matrices else form.linear.new_zeros(own, 0, n)
    shared = _joined(
        [part.flatten(1) for part in (delta, matrix, matrix.mT, *mixing, *(m.mT for m in mixing))],
        own,
    )
    weights = [part for term in terms for part in _weights(term)]
    offsets = [term.offset[:, 0] for term in terms]
    data = _joined([form.constant, form.linear[:, 0], *offsets, *weights], size)
    rows = matrix.shape[1]
    table, kept = _table(terms, n)
    widths = [width for term in networks for width in term.widths]
    mixed = sum(m.shape[1] * m.shape[2] for m in mixing)
    groups = sum(term.map.rows // term.size for term in terms if isinstance(term, Norms | LogSumExp) and term.size > 1)
    data_parts = (1, n, rows, sum(w.shape[-1] for w in weights))
    state_parts = (NUMBERS_SIZE, n, n, n, n, rows, rows)
    sizes = dict(
        zip(
            range(PARTS, TABLE),
            (
                *(len(terms), rows * n, n * rows, mixed, mixed),
                *data_parts,
                *state_parts,
                *(SETTINGS_SIZE, n, n, kept * n * n),
                *(sum(data_parts), sum(state_parts)),
                *(rows, rows, rows, 6 * rows, 6 * rows),
                *(n, n, n, n, n, n, n, n),
                *(n * (n + 2), n * n),
                *(2 * n * max(widths, default=0), kept, len(terms), 4 * max(n, rows), 2 * groups * n),
            ),
            strict=True,
        )
    )
    starts, ends = _starts(sizes)
    layout = np.array(
        [n, rows, len(terms), kept, *starts, *(c for line in table for c in line), *widths], dtype=np.int64
    )
    schedule = schedule_for(form, keep_final=keep_final)
    return Packed(layout, _array(shared), _array(data), ends["state"], ends["common"], ends["memory"], sizes, schedule)


def _starts(sizes: dict[int, int]) -> tuple[list[int], dict[str, int]]:
    """Return where each part begins in its vector, and the vectors' sizes."""
    starts: list[int] = []
    position, ends, vectors = 0, {}, {first: name for name, first in FIRST_OF.items()}
    current = "shared"
    for part, size in sizes.items():
        if part in vectors:
            current, position = vectors[part], 0
        starts.append(position)
        position += size
        ends[current] = position
    return starts, ends


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.numpy())


def _weights(term: Term) -> list[Tensor]:
    if isinstance(term, Norms):
        return [term.weights[:, 0], term.kappa[:, 0]]
    return [term.weights[:, 0]]


def weight_columns(form: ConicForm) -> np.ndarray:
    """Return for each weight of the terms, one term's after the other's, its column of `Packed.data`."""
    columns, first = [np.zeros(0, dtype=np.int64)], 1 + form.dim + sum(term.map.rows for term in form.terms)
    for term in form.terms:
        columns.append(np.arange(first, first + term.weights.shape[-1]))
        first += sum(part.shape[-1] for part in _weights(term))
    return np.concatenate(columns)


def _joined(parts: list[Tensor], size: int) -> Tensor:
    """Concatenate tensors whose leading sizes are 1 or `size` along their second dimension, in float64."""
    wide = [part if part.shape[0] == size else part.expand(size, *part.shape[1:]) for part in parts]
    return torch.cat(wide, dim=1).to(torch.float64)


def _table(terms: tuple[Term, ...], n: int) -> tuple[list[tuple[int, ...]], int]:
    table = []
    row = weight = mixing = products = 0
    layer = TABLE + COLUMNS * len(terms)
    for term in terms:
        kind, rows, size = KINDS[type(term)], term.map.rows, getattr(term, "size", 1)
        count = term.weights.shape[-1]
        widths = term.widths if isinstance(term, Network) else ()
        if isinstance(term, Network) and term.activation == "softplus":
            kind = SOFTPLUS
        wanted = _products(kind, rows, size, widths, n)
        kept = wanted if (products + wanted) * n * n <= MOST_KEPT else 0
        table.append((kind, row, rows, size, weight, weight + count, layer, len(widths), mixing, kept, products))
        row, layer, products = row + rows, layer + len(widths), products + kept
        weight += count * (2 if kind == NORMS else 1)
        mixing += sum(outer * inner for outer, inner in zip(widths[1:], widths[:-1], strict=True))
    return table, products


def _products(kind: int, rows: int, size: int, widths: tuple[int, ...], n: int) -> int:
    """Return how many outer products of a term are worth keeping."""
    if kind in (QUADRATIC, LOG_SUM_EXP):
        return 0  # the one is added once for each instance; the rows of the other's groups have weights of their own
    if kind == NORMS and size > 1:
        return rows // size
    if n > SMALL_DIM:
        return 0
    return widths[0] if widths else rows
