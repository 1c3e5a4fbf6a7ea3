"""Sums whose rounding errors are taken off.

In floating-point arithmetic of precision eps a sum of n products is off by less than n eps times the sum of their
absolute values, in whatever order it is made (Higham 2002, Accuracy and Stability of Numerical Algorithms, (3.5)).
"""

from __future__ import annotations

from torch import Tensor, finfo


def rounded_down(products: Tensor, more: Tensor | float = 0.0) -> Tensor:
    """Return the sum of rounded products over the last dimension, less what rounding may have added.

    Args:
        products: (*batch, n).
        more: n eps times this, (*batch), is taken off besides.
    """
    error = (products.shape[-1] + 2) * finfo(products.dtype).eps
    return products.sum(dim=-1) - error * (products.abs().sum(dim=-1) + more)
