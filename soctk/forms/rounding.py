"""How far rounding may put a computed lower bound above the bound itself.

A bound is b0 + sum_j [y_j'd_j - phi_j*(y_j)] + min over the set of g'x, g = v + A'y, A and d of all terms, K rows in n
variables. In floating-point arithmetic of precision eps (twice the unit roundoff) a sum of k products is off by less
than k eps / 2 times the sum of their absolute values, in whatever order it is made (Higham 2002, (3.5)). So

    g_i is off by (K + 1) eps / 2 (|v_i| + sum_k |A_ki| |y_k|), and g'x by as much times |x_i|,
    b0, y'd and the conjugates by (K + 2) eps / 2 times what they add;
    y is a dual point but for a relative error of K eps / 2: what a network's chain of sums is off by;
    v, A, weights, b0 are off by a few eps of themselves, d by (n + 3) eps / 2 (|d| + 2 sum_i |A_ki| |x_mean_i|), as
    units are folded in (`transformed`), and |x_mean_i| is taken to be within the reach of the set,

all together by less than (K + n + 16) eps S,

    S = |b0| + sum_i |v_i| |x_i| + sum_k |y_k| (|d_k| + sum_i |A_ki| |x_i|) + sum_j |phi_j*(y_j)|

with the largest |x_i| and |x|_1 of the set. g'x itself and its minimum are the set's own affair
(`FeasibleSet.linear_minimum`). So what is bounded is the function that the numbers of the weights define, its
coefficients at a context taken as computed: b0, v, d before units are folded in, the arguments of softplus.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from soctk.sets import FeasibleSet, SetAt
from soctk.terms import Term


def rounding(rows: int, dim: int, eps: float) -> float:
    """Return what S is multiplied by, for K rows in n variables."""
    return (rows + dim + 16) * eps


def rounding_margin(
    linear: Tensor,
    terms: Sequence[Term],
    duals: Sequence[Tensor],
    parts: Sequence[Tensor],
    feasible_set: FeasibleSet | SetAt,
) -> Tensor:
    """Return the bound's possible error, (N, M).

    Args:
        linear: v, (N or 1, 1, n).
        terms: of the form.
        duals: y_j of each, (N, M, K_j).
        parts: the other numbers that a bound adds, b0 and the conjugates, (N, M) each.
        feasible_set: the set.
    """
    largest, total = feasible_set.reach[0].to(linear), feasible_set.reach[1]
    size = torch.minimum(linear.abs() @ largest, total * linear.abs().amax(dim=-1))
    for part in parts:
        size = size + part.abs()
    for term, y in zip(terms, duals, strict=True):
        size = size + (y.abs() * (term.offset.abs() + term.map.reach(largest, total).unsqueeze(1))).sum(dim=-1)
    rows = sum(term.map.rows for term in terms)
    return rounding(rows, linear.shape[-1], torch.finfo(linear.dtype).eps) * size
