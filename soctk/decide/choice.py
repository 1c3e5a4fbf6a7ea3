"""Which solver a problem is given to by default."""

from __future__ import annotations

from soctk.decide.external import External
from soctk.decide.first_order import FirstOrder
from soctk.decide.newton import SmoothingNewton
from soctk.decide.newton_cg import NewtonCG
from soctk.decide.problem import Problem
from soctk.decide.solver import Solver
from soctk.sets import SetAt

NEWTON_DIM = 500
"""Beyond this many variables the n by n systems of Newton steps cost more than iterative methods."""
FINISHED_DIM = 2000
"""Up to this many variables Newton steps finish what iterative methods leave: seconds for each decision."""
FEW_STEPS = 2000
"""Gradient steps before that: where they reach the tolerance, some hundreds do."""
LAST_STEPS = 200
"""Gradient steps without progress that end the search for what an outside solver left open: tens finish it, or none."""
NEWTON, NEWTON_CG, FIRST_ORDER = SmoothingNewton(), NewtonCG(), FirstOrder()
EXTERNAL = External(second=FirstOrder(patience=LAST_STEPS))
FINISHED = FirstOrder(FEW_STEPS, second=NEWTON)
CG_FINISHED = NewtonCG(second=FINISHED)


def default_solver(problem: Problem) -> Solver:
    """Return the solver for a problem: Newton steps while n by n systems are cheap.

    Beyond that by conjugate gradients between bounds, which the many kinks of a network slow down, and by projected
    gradients elsewhere; what kinks keep them from certifying is left to Newton steps, up to `FINISHED_DIM`. These come
    first over polyhedra with more rows than a sum, onto which each projection is a program of its own. Small sets
    that Newton steps do not know are left to an outside solver, and so is a surrogate that asks for it.
    """
    if problem.model is not None and problem.model.decision_method == EXTERNAL.name:
        return EXTERNAL
    if problem.dim <= NEWTON_DIM or isinstance(problem.feasible_set, SetAt):
        return EXTERNAL if problem.has_form and NEWTON.refuses(problem) is not None else NEWTON
    finished = _can_be_finished(problem)
    if finished and not problem.has_closed_forms:
        return NEWTON
    if problem.has_form and NEWTON_CG.refuses(problem) is None and problem.form.network is None:
        return CG_FINISHED if finished else NEWTON_CG
    return FINISHED if finished else FIRST_ORDER


def _can_be_finished(problem: Problem) -> bool:
    """Return whether Newton steps can finish a problem: its size, its set and its maps, which need dense copies."""
    if problem.dim > FINISHED_DIM or NEWTON.refuses(problem) is not None:
        return False
    return all(term.map.fits_densely for term in problem.form.terms)
