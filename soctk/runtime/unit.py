"""The unit of the gap where f hardly varies over the set (`soctk.decide.ranges`, `soctk.decide.units`), for one f."""

from __future__ import annotations


def finer(usual: float, gap: float, share: float, rounding: float) -> float:
    """Return a unit that is at most `share` times what f can fall below its value at the first point.

    Args:
        usual: the unit elsewhere, max(1, |value|).
        gap: that of the linearisation at the first point.
        share: `soctk.decide.ranges.LARGEST_SHARE`.
        rounding: gaps below this share of `usual` are rounding.
    """
    return min(usual, share * gap) if gap > rounding * usual else usual


def exact_difference(a: float, b: float) -> tuple[float, float]:
    """Return fl(a - b) and what its rounding lost, exactly (Knuth 1969)."""
    difference = a - b
    part = difference - a
    return difference, (a - (difference - part)) - (b + part)
