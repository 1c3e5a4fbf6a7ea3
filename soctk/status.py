"""How a search or a solver ended."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How the search for one decision ended, and what to do about it.

    OPTIMAL: x is in the set and its relative gap at most `tol`.
    ITERATION_LIMIT: best feasible point known and honest gap; raise `max_iter` or loosen `tol`.
    TIME_LIMIT: best feasible point known and honest gap; raise `time_limit`.
    STALLED: rounding stopped progress before `tol`; use float64, loosen `tol` or try another method. With a term of
        one's own: its value, slope and conjugate may not be those of one function; `TermContract` tells.
    INACCURATE: the answer is not what it should be. The certificate does not confirm what an outside solver claims: try
        another solver. Or `violation` is more than rounding: the set's projection is at fault. Or the value lies below
        its own lower bound by more than rounding (the gap is then inf): use float64; check terms or sets of one's own.
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
