"""The constants of the smoothing Newton method, for its batched and its compiled form alike."""

from __future__ import annotations

TO_BOUNDARY = 0.995
ARMIJO = 1e-4
BACKTRACK = 0.4
LINE_SEARCH_TRIALS = 12
MULTIPLIER_RANGE = 1e6
STALL_ITERATIONS = 25
WORTH_CERTIFYING = 10.0
"""The barrier's part of the gap, in units of the tolerance, from which on a certificate is tried."""
