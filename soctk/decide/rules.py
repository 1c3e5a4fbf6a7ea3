"""The constants of the smoothing Newton method, for its batched and its compiled form alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from soctk.forms.conic_form import ConicForm

TO_BOUNDARY = 0.995
ARMIJO = 1e-4
BACKTRACK = 0.4
LINE_SEARCH_TRIALS = 12
MULTIPLIER_RANGE = 1e6
STALL_ITERATIONS = 25
WORTH_CERTIFYING = 1.0
"""The barrier's part of the gap, in units of the tolerance, from which on a certificate is tried."""
SETTLED = 30.0
"""The decrement of the last Newton step, in units of the tolerance, up to which a certificate is tried.

Of those after a larger one, measured on all branches, sets and dimensions up to 50, one in a hundred succeeded; of
those after a smaller one two in three.
"""
UNSETTLED = 15
"""Iterations after which it is tried anyway: of an instance that never settles the best point and bound are wanted."""


WARM_SHARE = (0.01, 0.5)
"""The least and the largest share of the centre in a warm start."""


def share_of_centre(gap: np.ndarray, of_centre: np.ndarray) -> np.ndarray:
    """Return the share of the centre in a warm start: the less, the smaller its gap is beside the centre's.

    Close to the boundary a barrier method is quick where the solution is near and slow where it is not.
    """
    return np.clip(gap / np.maximum(of_centre, np.finfo(gap.dtype).tiny), *WARM_SHARE)


class Schedule(NamedTuple):
    """How mu is lowered.

    Attributes:
        first_share: mu begins as this share of the first gap, for each bound and variable.
        last_share: mu ends as this share of the tolerance, for each bound and variable; below WORTH_CERTIFYING, or no
            certificate would be tried.
        rules: (factor, step, decrement): what mu is multiplied by after a step of at least so much and a decrement of
            at most so many mu for each bound; the first of the two rules that holds counts.
    """

    first_share: float
    last_share: float
    rules: tuple[tuple[float, float, float], tuple[float, float, float]]


FAST = Schedule(1.0, 0.5, ((0.05, 0.3, 100.0), (0.05, 0.3, 100.0)))
STEADY = Schedule(0.3, 0.5, ((0.2, 0.95, 10.0), (0.5, 0.3, 30.0)))
"""Without curvature of its own a function is left by fast steps too far from the path to come back to it.

Of the schedules tried the one whose slowest instances take the fewest steps, which all others in SIMD lanes wait for,
and that needed the lift in none of the cases tried: 0.15 and a share of 0.6 save easy functions a step and cost hard
ones four.
"""
CAREFUL = Schedule(0.1, 0.1, ((0.1, 0.9, 1.0), (0.3, 0.5, 10.0)))
"""A third more steps, closer to the path and further along it.

Where only the decision counts, not further than it must be is better: at a mu of 1e-12 rounding moves the dual points
of units at their kinks by so much that a relative gap of 1e-8 may be out of reach.
"""


def schedule_for(form: ConicForm, *, keep_final: bool) -> Schedule:
    """Return the schedule for a form.

    On the path derivatives are those of the minimum, but for those of vertices, which are taken from what rests there
    (soctk.decide.active_set); and Newton steps on terms whose Hessian jumps seldom recover away from it.
    """
    if is_polyhedral(form):
        return STEADY
    jumps = any(term.curvature_kind == "jumps" for term in form.terms)
    return CAREFUL if keep_final or jumps else FAST


def is_polyhedral(form: ConicForm) -> bool:
    """Whether f is piecewise affine: its minimum is attained at a vertex."""
    return {term.curvature_kind for term in form.terms} <= {"none"}
