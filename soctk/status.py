"""How a search or a solver ended."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How the search for one decision ended, and what to do about it.

    OPTIMAL: the relative gap is at most `tol`.
    ITERATION_LIMIT: best feasible point and honest gap; raise `max_iter` or loosen `tol`.
    TIME_LIMIT: best feasible point and honest gap; raise `time_limit`.
    STALLED: rounding stopped progress before `tol`; use float64 or loosen `tol`.
    INACCURATE: an outside solver answered, and our certificate does not confirm its accuracy.
    INFEASIBLE: the constraints cannot be met; x is NaN.
    UNBOUNDED: the objective has no minimum under the constraints; x is NaN.
    FAILED: an outside solver broke down; x is NaN. Try another solver.
    """

    OPTIMAL = "optimal"
    ITERATION_LIMIT = "iteration_limit"
    TIME_LIMIT = "time_limit"
    STALLED = "stalled"
    INACCURATE = "inaccurate"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    FAILED = "failed"
