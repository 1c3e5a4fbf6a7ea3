"""What solvers ask of a set first: the coordinates that cannot move, and whether Newton steps know its rows."""

from __future__ import annotations

from soctk.forms.conic_form import ConicForm
from soctk.sets import FeasibleSet, Presolved, SetAt


def reduced(form: ConicForm, presolved: Presolved[FeasibleSet]) -> ConicForm:
    """Return the form as a function of the free coordinates."""
    if presolved.trivial:
        return form
    return form.restricted(presolved.columns.to(form.linear.device), presolved.point.to(form.linear))


def newton_refuses(feasible_set: FeasibleSet | SetAt) -> str | None:
    """Return why Newton steps cannot decide over a set, None where they can."""
    if isinstance(feasible_set, SetAt) or feasible_set.presolve().reduced.rows() is not None:
        return None
    return f"Newton steps need a set with rows, and {type(feasible_set).__name__} is known by its projection alone"
