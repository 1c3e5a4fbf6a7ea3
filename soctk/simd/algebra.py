"""Dense linear algebra in compiled loops, all of it made of one operation: adding a combination of rows.

Systems here are small, 5 to 100 variables: a call of BLAS would cost as much as its arithmetic. For one instance the
loops go along rows (`algebra_one`), for several in SIMD lanes a number is a vector already (`algebra_lanes`).
"""

from __future__ import annotations

from typing import Any

import numba.extending

from soctk import simd
from soctk.simd import algebra_lanes, algebra_one
from soctk.simd.functions import adopt, stands_for
from soctk.simd.lanes import lanes
from soctk.simd.options import REORDERED, reordered
from soctk.simd.tiles import TARGETS

overload: Any = numba.extending.overload


def _by_type(function):
    """Compile a function, by the type of its first argument, from what bears its name in one module or the other."""
    name = function.__name__
    one, many = getattr(algebra_one, name).py_func, getattr(algebra_lanes, name).py_func

    def pick(first, *others):
        return many if first.dtype == lanes else one

    overload(function, jit_options=REORDERED, strict=False)(pick)
    return function


@_by_type
def add_gram_rows(out, stride, n, i, weights, rows, matrix, first, scratch):
    """Add rows i, ..., i + TARGETS - 1 of the upper triangle of M' diag(w) M to `out`, whose rows are `stride` apart.

    M (rows, n) are the numbers of `matrix` from `first` on.
    """


@_by_type
def add_kept_rows(out, stride, n, i, coefficients, count, matrix, first):
    """Add the same rows of the upper triangle of sum_k c_k M_k, M_k (n, n) one after another from `first` on."""


@_by_type
def subtract_pairs_rows(out, stride, n, i, count, matrix, first, scratch):
    """Subtract the same rows of the upper triangle of the sum of l r' + r l'.

    l and r are neighbouring rows of n numbers, `count` in all, of `matrix` from `first` on.
    """


@_by_type
def factor_upper(factor, n, width, scratch):
    """Overwrite [H R], (n, width), by [U D U^-T R] with U' D^-1 U = H; return whether H is positive definite.

    U is upper triangular and D its diagonal, which is replaced by its reciprocals: no roots are taken.
    """


@_by_type
def solve_upper(factor, n, width, first, second):
    """Fill the solutions of U y = r, r the last two columns of what `factor_upper` made: those of H y = R."""


@reordered
def _add_gram(out, stride, n, weights, rows, matrix, first, scratch):
    for i in range(0, n, TARGETS):
        add_gram_rows(out, stride, n, i, weights, rows, matrix, first, scratch)


stands_for(simd.add_gram, _add_gram)
for _word in (simd.add_rows, simd.add_product):
    stands_for(_word, None)
    _by_type(_word)
adopt(simd.fill)
adopt(simd.dot, reordered)
adopt(simd.sum_of, reordered)
