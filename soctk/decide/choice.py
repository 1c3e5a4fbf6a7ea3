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
NEWTON, NEWTON_CG, FIRST_ORDER, EXTERNAL = SmoothingNewton(), NewtonCG(), FirstOrder(), External(second=FirstOrder())


def default_solver(problem: Problem) -> Solver:
    """Return the solver for a problem: Newton steps while n by n systems are cheap.

    Beyond that by conjugate gradients between bounds, which the many kinks of a network slow down, and by projected
    gradients elsewhere. Small sets that Newton steps do not know are left to an outside solver, and so is a surrogate
    that asks for it.
    """
    if problem.model is not None and problem.model.decision_method == EXTERNAL.name:
        return EXTERNAL
    if problem.dim <= NEWTON_DIM or isinstance(problem.feasible_set, SetAt):
        return EXTERNAL if problem.has_form and NEWTON.refuses(problem) is not None else NEWTON
    if problem.has_form and NEWTON_CG.refuses(problem) is None and problem.form.network is None:
        return NEWTON_CG
    return FIRST_ORDER
