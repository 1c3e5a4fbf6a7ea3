"""A term in compiled code.

The decision method is compiled once for the terms of a form, for one function and for several in SIMD lanes. Of each
term it needs the functions of a `Kernel`, written with the words of `soctk.simd`, and how its Hessian is made up, a
`Structure`. A kernel's functions are given a view `t` of one term of one function, or of several in lanes:

    t.u, t.lag          A x + d and the dual iterates, where they are known, (K,)
    t.y                 the dual point, (K,)
    t.a, t.inverse,     (K,), where a function finds what `value` and `dual` left for the same point: preactivations,
    t.z, t.p, t.nubar   reciprocals, activations, slopes, what multiplies a slope in a dual chain
    t.weights, ...      everything that the term `packs`, under its own name: vectors, numbers, whole numbers;
                        matrices one after another, row by row, and transposed under `name_transposed`
    t.A, t.n            the matrix, row by row, and its number of columns
    t.rows, t.size, t.groups    K, rows in a group and the number of groups

Indices are not checked. The functions are plain Python, so that they run, and can be tested, without a compiler
(`tests/helpers/plain_kernel.py`); `tests/helpers/squared_hinge.py` is a term complete in one file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

TINY = float(np.finfo(np.float64).tiny)
"""The least number whose root is taken, and that is divided by."""
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Kernel:
    """The functions of a term.

    The first four every term has; the others those that are smoothed or whose Hessian is not diagonal in u.

    Attributes:
        value: (t, mu, reference) -> phi smoothed as `Term.smooth` does, phi itself for mu = 0.
        dual: (t), fills t.y with the gradient in u of what `value` returned last, moved into the domain of phi*.
        conjugate: (t) -> phi*(t.y), as `Term.conjugate` not below it by more than sums round.
        curvature: (t, out), fills the diagonal part (K,) of the Hessian in u with the dual iterates.
        reference: (t) -> what 2 mu is divided by to give the width of the smoothing, `SMALLEST_WEIGHT` at least.
        rank_one: (t, scales) -> (left, right), both (K,); fills scales (groups,): scales_g (l_g r_g' + r_g l_g') is
            subtracted from the Hessian in u of group g.
        add_inner: (t, curvature, total, jacobians, scratch), adds to the upper triangle of the Hessian in x, whose rows
            are n + 2 apart, what the rows from `Structure.direct` on contribute; jacobians has `Structure.scratch`
            numbers, scratch 4 max(n, K).
        initial_lag: (t, out), fills the dual iterates (K,) that agree with the last pass; the dual point otherwise.
        advance_lag: (t, du, scratch), updates t.lag by the linearised optimality condition after a step du (K,).
        lagged_dual: (t), fills t.y, and what `conjugate` needs, with the dual point that t.lag stands for.
    """

    value: Any
    dual: Any
    conjugate: Any
    curvature: Any
    reference: Any = None
    rank_one: Any = None
    add_inner: Any = None
    initial_lag: Any = None
    advance_lag: Any = None
    lagged_dual: Any = None


class Packs(NamedTuple):
    """Names of a term's attributes that compiled code is given.

    Attributes:
        coefficients: tensors (N or 1, 1, any), vectors that each function may have of its own.
        numbers: what all functions share, such as a width or a switch (0 or 1).
        matrices: tuples of tensors (N or 1, rows, columns).
        counts: tuples of whole numbers.
    """

    coefficients: tuple[str, ...] = ("weights",)
    numbers: tuple[str, ...] = ()
    matrices: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()


class Structure(NamedTuple):
    """How the Hessian of a term is made up.

    Attributes:
        direct: rows from the first on whose curvature multiplies their own outer product, all K but for networks.
        size: rows in a group.
        shared: consecutive rows that always have the same curvature.
        constant: whether the Hessian never changes.
        rank_ones: groups from which `Kernel.rank_one` subtracts.
        scratch: numbers that `Kernel.add_inner` needs for itself; 0 where the term has none to add.
    """

    direct: int
    size: int = 1
    shared: int = 1
    constant: bool = False
    rank_ones: int = 0
    scratch: int = 0
