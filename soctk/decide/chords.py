"""Points along two chords of a polyhedron, between which a function varies by about as much as over all of it.

Over rows, what f's linearisation falls by is known within the bounds alone, and these may lie anywhere outside of the
set. Values of f at points of the set say what f varies by at least. PyTorch is not loaded here.
"""

from __future__ import annotations

import numpy as np

NARROW = 1e-8
"""A set none of whose chords is longer than this, relative to max(1, |x|), is one point but for rounding."""


def chord_ends(
    x: np.ndarray,
    inside: np.ndarray,
    basis: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    G: np.ndarray,
    h: np.ndarray,
) -> np.ndarray:
    """Return the ends of two chords of each set, (N, 4, n): through both of its points, and across, half-way of that.

    Args:
        x: a point of each set, (N, n).
        inside: one in its relative interior, (N, n).
        basis: of the directions that the equalities leave, (n, d).
        lower: (1 or N, n).
        upper: (1 or N, n).
        G: of G x <= h, (m, n).
        h: (1 or N, m).
    """
    middle = 0.5 * (x + inside)
    across = np.broadcast_to(basis @ np.cos(np.arange(1.0, basis.shape[1] + 1) ** 2), x.shape)  # like no coordinate
    ends = []
    for start, along in ((x, inside - x), (middle, across)):
        rates = np.concatenate([along, -along, along @ G.T], axis=1)
        sides = (upper - start, start - lower, h - start @ G.T)
        room = np.concatenate([np.maximum(side, 0.0) for side in sides], axis=1)
        for sign in (1.0, -1.0):
            towards = sign * rates > 0
            with np.errstate(over="ignore"):  # no end, if the direction is nearly none
                steps = room / np.where(towards, np.abs(rates), 1.0)
            steps = np.where(towards, steps, np.inf).min(axis=1, initial=np.inf)
            ends.append(start + sign * np.where(np.isfinite(steps), steps, 0.0)[:, None] * along)
    return np.stack(ends, axis=1)


def narrow(points: np.ndarray) -> np.ndarray:
    """Return whether points (N, any, n) of a set, the ends of its chords among them, are one but for rounding, (N,)."""
    size = np.maximum(np.abs(points).max(axis=(1, 2)), 1.0)
    return (points.max(axis=1) - points.min(axis=1)).max(axis=1) <= NARROW * size
