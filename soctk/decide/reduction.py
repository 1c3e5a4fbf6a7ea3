"""What solvers ask of a set first: the coordinates that cannot move, and whether Newton steps know its rows."""

from __future__ import annotations

from soctk.forms.conic_form import ConicForm
from soctk.sets import FeasibleSet, Presolved, Rows


def reduced(form: ConicForm, presolved: Presolved) -> ConicForm:
    """Return the form as a function of the free coordinates."""
    if presolved.trivial:
        return form
    return form.restricted(presolved.columns.to(form.linear.device), presolved.point.to(form.linear))


def newton_refuses(feasible_set: FeasibleSet) -> str | None:
    """Return why Newton steps cannot decide over a set, None where they can."""
    rows = feasible_set.presolve().reduced.rows()
    if rows is not None and len(rows.G) == 0:
        return None
    what = "is known by its projection alone" if rows is None else "has inequalities besides"
    return f"Newton steps need bounds and equalities, and {type(feasible_set).__name__} {what}"


def newton_rows(reduced_set: FeasibleSet) -> Rows:
    """Return the rows of a presolved set that compiled Newton steps take: bounds and at most a sum."""
    rows = reduced_set.rows()
    assert rows is not None
    assert rows.at_most_a_sum
    return rows
