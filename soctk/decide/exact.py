"""Rounding, of numbers, arrays or tensors. PyTorch is not loaded here.

`soctk.decide.units` has the derivation.
"""

from __future__ import annotations

from typing import TypeVar

Number = TypeVar("Number")
"""A number, an array or a tensor."""


def exact_difference(a: Number, b: Number) -> tuple[Number, Number]:
    """Return fl(a - b) and what its rounding lost, exactly, of numbers of any sizes (Knuth 1969)."""
    difference = a - b  # type: ignore[operator]
    part = difference - a
    return difference, (a - (difference - part)) - (b + part)


def bound_given(bound: Number, scale: Number, level: Number, lost: Number, eps: float) -> Number:
    """Return a lower bound of f = scale g + level + lost, below it by what rounding may add, of one of g.

    Args:
        bound: of g.
        scale: a power of two.
        level: what was subtracted from f.
        lost: what rounding lost of that.
        eps: of the precision.
    """
    total = scale * bound + level  # type: ignore[operator]
    return total + lost - 2 * eps * (abs(total) + abs(lost))


def magnitude(constant: Number, products: Number, total: Number, value: Number) -> Number:
    """Return the size of the numbers that a value of f is a sum of: its rounding is a share of that.

    Args:
        constant: b0.
        products: sum |v_i x_i|.
        total: sum v_i x_i.
        value: f(x); what is left of it are terms, which are not negative but for log-sum-exp.
    """
    return abs(constant) + products + abs(value - constant - total)  # type: ignore[operator]
