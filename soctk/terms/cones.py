"""Cone programs in the making: named variables, affine expressions of them, and rows that lie in a cone.

Terms describe their epigraphs with these (`soctk.terms.base.Term.cones`), once, as the paper's lift does; the
sparse data that a solver takes and the `cp.Problem` both follow from the description (`soctk.forms.cone_program`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import numpy as np

from soctk.lazy import sparse as sp

Cone = Literal["zero", "nonneg", "soc", "exp"]
"""{0}; r >= 0; ||(r_2, ..., r_k)|| <= r_1 for each k consecutive rows; cl {r_2 exp(r_1 / r_2) <= r_3, r_2 > 0}."""


@dataclass(frozen=True, eq=False)
class Affine:
    """constant + sum over variables of matrix @ variable.

    Attributes:
        constant: (K,).
        parts: a sparse (K, size of the variable) matrix by the variable's name.
    """

    constant: np.ndarray
    parts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, numbers: np.ndarray | float, size: int = 1) -> Affine:
        """Return a constant expression of `size` numbers."""
        return cls(np.broadcast_to(np.asarray(numbers, dtype=float), (size,)).copy())

    @property
    def size(self) -> int:
        """The number of rows K."""
        return self.constant.size

    def __add__(self, other: Affine) -> Affine:
        parts = dict(self.parts)
        for name, matrix in other.parts.items():
            parts[name] = parts[name] + matrix if name in parts else matrix
        return Affine(self.constant + other.constant, parts)

    def __neg__(self) -> Affine:
        return self.scaled(-1.0)

    def __sub__(self, other: Affine) -> Affine:
        return self + (-other)

    def __getitem__(self, rows: slice | np.ndarray) -> Affine:
        return Affine(self.constant[rows], {name: sp.csr_array(matrix[rows]) for name, matrix in self.parts.items()})

    def scaled(self, factor: np.ndarray | float) -> Affine:
        """Return every row times its number."""
        scale = sp.diags_array(np.broadcast_to(np.asarray(factor, dtype=float), (self.size,)))
        return self.times(scale)

    def times(self, matrix: np.ndarray | sp.sparray) -> Affine:
        """Return matrix @ self, (J, K) @ (K,)."""
        left: Any = sp.csr_array(matrix)
        return Affine(left @ self.constant, {name: sp.csr_array(left @ m) for name, m in self.parts.items()})


def concat(pieces: Sequence[Affine]) -> Affine:
    """Return the rows of several expressions, one after the other."""
    constant = np.concatenate([piece.constant for piece in pieces])
    widths = {name: matrix.shape[1] for piece in pieces for name, matrix in piece.parts.items()}
    parts = {}
    for name, width in widths.items():
        blocks = [piece.parts.get(name, sp.csr_array((piece.size, width))) for piece in pieces]
        parts[name] = sp.csr_array(sp.vstack(blocks))
    return Affine(constant, parts)


def interleave(columns: Sequence[Affine]) -> Affine:
    """Return row 1 of each expression, then row 2 of each, and so on: the groups of a product of cones."""
    rows = np.arange(len(columns) * columns[0].size).reshape(len(columns), -1).T.reshape(-1)
    return concat(columns)[rows]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that lie in a cone, in a product of cones of `group` rows each.

    Attributes:
        name: of the constraint.
        cone: the kind of cone.
        affine: the rows.
        group: rows of one cone of the product.
    """

    name: str
    cone: Cone
    affine: Affine
    group: int


def free_name(name: str, taken: Container[str]) -> str:
    """Return the name, or with the first number from 2 on that makes it new."""
    numbered = (f"{name}_{number}" for number in count(2))
    return name if name not in taken else next(found for found in numbered if found not in taken)


class ConeBuilder:
    """Collects the variables and rows of a cone program.

    Attributes:
        variables: the size of every variable by its name, in the order they were made.
        rows: the constraints.
    """

    def __init__(self) -> None:
        self.variables: dict[str, int] = {}
        self.rows: list[Rows] = []

    def variable(self, name: str, size: int) -> Affine:
        """Return a new variable; a name that is taken gets the next free number: s, s_2, s_3."""
        unique = free_name(name, self.variables)
        self.variables[unique] = size
        return Affine(np.zeros(size), {unique: sp.csr_array(sp.eye_array(size))})

    def require(self, name: str, cone: Cone, affine: Affine, group: int = 1) -> None:
        """Require rows to lie in a product of cones of `group` rows each."""
        self.rows.append(Rows(name, cone, affine, group))

    def above_log1p_exp(self, name: str, t: Affine, a: Affine) -> None:
        """Require t >= log(1 + exp(a)), that is exp(a - t) + exp(-t) <= 1, row by row."""
        p, q = self.variable(f"{name}.p", a.size), self.variable(f"{name}.q", a.size)
        one, none = Affine.of(1.0, a.size), Affine.of(0.0, a.size)
        self.require(f"{name}.sum", "nonneg", one - p - q)
        self.require(f"{name}.exp_a", "exp", interleave([a - t, one, p]), 3)
        self.require(f"{name}.exp_0", "exp", interleave([none - t, one, q]), 3)

    def above_half_square(self, name: str, s: Affine, q: Affine, blocks: Sequence[int]) -> None:
        """Require s_h >= ||q_h||^2 / 2 for blocks of consecutive rows q_h: ||(s - 1, sqrt(2) q)|| <= s + 1."""
        start = 0
        for index, rows in enumerate(blocks):
            one = Affine.of(1.0)
            here, block = s[index : index + 1], q[start : start + rows].scaled(np.sqrt(2.0))
            self.require(f"{name}{index + 1}", "soc", concat([here + one, here - one, block]), rows + 2)
            start += rows
