"""Every tolerance of the suite, by operation and dtype, with the arithmetic it follows from.

eps is 2.2e-16 in float64 and 1.2e-7 in float32. Numbers are relative to the size of what is compared; `close`
takes the absolute part from the operands' largest magnitude.
"""

from __future__ import annotations

import torch
from torch import Tensor

DOUBLE, SINGLE = torch.float64, torch.float32

# A sum of up to 50 numbers of order one, each rounded: 50 eps = 1e-14 and 6e-6; the promise made is 1e-12.
PROJECTION = {DOUBLE: 1e-12, SINGLE: 2e-5}

# General polyhedra: relative to the larger of the set and of the point that is projected; exact but for the rounding of
# one factorisation, whose condition is that of the active rows: 1e6 eps.
GENERAL_PROJECTION = {DOUBLE: 1e-9, SINGLE: 2e-5}

# Linear minimisers: a few eps for each coordinate, in units of |g| times the set's size; of general polyhedra the dual
# tolerance of the solver.
LINEAR = 1e-15
LINEAR_PROGRAM = 1e-10

# Values: at most a few hundred products and sums, in another order than the reference: 500 eps.
VALUE = {DOUBLE: 1e-12, SINGLE: 1e-4}

# Inequalities that hold exactly and are evaluated in floating point: as for values.
INEQUALITY = VALUE

# Conjugates: p log p and square roots of differences near the domain's boundary lose half of the digits of a
# distance, sqrt(eps) = 1.5e-8, times a weight of order one.
CONJUGATE = {DOUBLE: 1e-7, SINGLE: 2e-3}

# Gradients against autograd: the same sums in another order.
GRADIENT = {DOUBLE: 1e-10, SINGLE: 1e-3}

# Hessians of smoothed kinks: entries up to 1 / mu, here mu >= 1e-2, so 100 times a value's error.
HESSIAN = {DOUBLE: 1e-9}

# Clarabel's default tolerances are 1e-8 absolute and relative; cone programs here add a few dozen of them.
CLARABEL = 1e-6

# Clarabel asked for 1e-10 in gap and feasibility; multipliers of order one turn infeasibility into value.
TIGHT_CLARABEL = 1e-9
TIGHT_OPTIONS = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}

# Derivatives of decisions against central differences of step 1e-5, whose own error is eps_decision / 1e-5 plus 1e-10:
# a decision solved to 1e-10 in value is known to about 1e-11 where there is curvature of order one.
IMPLICIT_MEDIAN, IMPLICIT_P90 = 1e-6, 1e-4
# The same against the exact system of kinks and apexes, in each of the weights, a thousandth or more from others. The
# smoothed curvature is 1e9 to 1e12 there: of 16 digits some are lost.
EXACT_WEIGHTS = 1e-2

# What first-order steps reach on small kinky problems in a few thousand iterations.
FIRST_ORDER = 1e-5

# A decision's certified relative gap, as asked for.
CERTIFIED = 1e-6

# Least squares with a ridge of 1e-9 of the mean diagonal; the same function in other weights, by pseudo-inverses of
# condition 30; central differences with a step of 1e-6 of residuals of order ten.
NORMAL_EQUATIONS, LEARNED_VALUE, DIFFERENCES = 1e-7, 1e-9, 1e-6


def size(*tensors: Tensor) -> float:
    """Return the largest magnitude among the operands, at least 1."""
    return max([1.0, *(float(t.detach().abs().max()) for t in tensors if t.numel())])


def close(actual: Tensor, expected: Tensor, table: dict[torch.dtype, float]) -> None:
    """Assert equality up to the table's entry for the dtype, relative to the operands' size."""
    tolerance = table[actual.dtype] * size(actual, expected)
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance, check_dtype=True)
