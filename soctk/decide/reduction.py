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
    if rows is None:
        return f"{type(feasible_set).__name__} is known by its projection alone (its rows() is None)"
    if not rows.at_most_a_sum:
        return f"{type(feasible_set).__name__} has rows other than bounds and one sum"
    return None


def newton_rows(reduced_set: FeasibleSet) -> Rows:
    """Return the rows of a presolved set that Newton steps take.

    Raises:
        NotImplementedError: they refuse it.
    """
    rows = reduced_set.rows()
    if rows is None or not rows.at_most_a_sum:
        raise NotImplementedError(f"Newton steps need bounds and at most one sum, but {newton_refuses(reduced_set)}")
    return rows
