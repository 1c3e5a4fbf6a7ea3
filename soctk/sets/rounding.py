"""Sums whose rounding errors are taken off.

In floating-point arithmetic of precision eps a sum of n products is off by less than n eps times the sum of their
absolute values, in whatever order it is made (Higham 2002, Accuracy and Stability of Numerical Algorithms, (3.5)).
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Numbers = TypeVar("Numbers", Tensor, np.ndarray)

FEASIBLE = 1e-9
"""What rounding may put a point outside of its set by in float64, as a share of what a row adds."""


@cache
def eps_of(dtype: Any) -> float:
    """Return eps of a floating-point type of PyTorch or NumPy."""
    return float(torch.finfo(dtype).eps if isinstance(dtype, torch.dtype) else np.finfo(dtype).eps)


def rounded_down(products: Numbers, more: Numbers | float = 0.0) -> Numbers:
    """Return the sum of rounded products over the last dimension, less what rounding may have added.

    Args:
        products: (*batch, n).
        more: n eps times this, (*batch), is taken off besides.
    """
    error = (products.shape[-1] + 2) * eps_of(products.dtype)
    return products.sum(axis=-1) - error * (abs(products).sum(axis=-1) + more)


def directed(number: Tensor, dtype: torch.dtype, toward: float) -> Tensor:
    """Return numbers in a lower precision, rounded towards one of the infinities."""
    rounded = number.to(dtype)
    wrong = rounded.to(number.dtype) < number if toward > 0 else rounded.to(number.dtype) > number
    return torch.where(wrong, torch.nextafter(rounded, torch.full_like(rounded, toward)), rounded)
