"""The page of the scaling experiment: forward passes and solvers of the lift by a model's sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row, last_by
from soctk_evaluation.tables.markdown import escape, head, line
from soctk_evaluation.tables.page import Page

AXES = {
    "width": "width m",
    "depth": "layers L",
    "dim": "dimension d",
    "quadratic_rows": "rows of a quadratic m_h",
    "norm_rows": "rows of a norm k_g",
    "side": "convolutional: side of the image",
    "steps": "recurrent: steps",
}
"""What is varied, in words."""
WAYS = {
    "forward_ms": "forward pass, one point",
    "forward_batch_ms": "forward pass, in a batch",
    "clarabel_ms": "Clarabel on the lift",
    "scs_ms": "SCS on the lift",
    "cvxpy_ms": "CVXPY with Clarabel",
}
"""The ways to a value and their names."""
ERRORS = {"clarabel_error": "Clarabel", "scs_error": "SCS", "cvxpy_error": "CVXPY"}
NEEDED = ("params", "rows", "variables", "nonzeros", "forward_ms", "forward_batch_ms", "build_ms", "cvxpy_ms")
NEEDED += ("cvxpy_error", "clarabel_solved", "scs_solved")
"""The measurements that the tables cannot do without."""

PAGE = Page(
    "How forward passes and solvers grow",
    "soctk scaling",
    """
A SOC-ICNN's value twice: by its forward pass, and as the optimum of the lift at that x, by solvers that know nothing of
networks. Dense models have d = 50 variables, 3 layers of 64 units, and two quadratic and two norm blocks of 12 rows;
one of these sizes is varied at a time. Convolutional and recurrent models have the sizes of the paper's structured
tests (10 channels in three layers; 20 hidden units). Weights, points and contexts are random.

Times are medians of three points in milliseconds on one thread. Clarabel and SCS are given the lift's finished sparse
data (which take "data" to assemble) and are asked for 1e-8 and 1e-6; CVXPY compiles the same program and calls
Clarabel. The error is the largest |optimum − forward pass| / max(1, |value|). A batch has 256 points, its time is one
point's. The model with none of its sizes varied stands in five tables, timed anew in each: where those
times differ, it is by the machine.

The lift is an easy program: x is fixed, so that layer by layer its inequalities say what the answer is. A solver with
a presolve can find it without iterating; the paper's figure, 24.8 ms by Gurobi against 6.2 ms for the forward pass at
d = 100 and 6 layers of 256, is of such a solver. Those here have none that does and factorise. {faster}
""",
    "Time for a value by what is varied",
)


def write_scaling(results: Results, files: Files) -> None:
    """Show the tables, and write the page and the picture asked for."""
    found = by_axis(results)
    text = "\n".join(_table(axis, rows) for axis, rows in found.items())
    print(text or "no scaling rows yet")
    PAGE.write(results, files, text, {"faster": where_solvers_win(found)})
    if "figure" in files and found:
        from soctk_evaluation.tables.figures import scaling_figure

        scaling_figure({AXES[axis]: rows for axis, rows in found.items()}, WAYS, files["figure"])


def by_axis(results: Results) -> dict[str, list[Row]]:
    """Return the rows by what is varied, small sizes first; the last row of each size counts."""
    rows = last_by(results.measured, lambda row: (row["task"], row["config"]["size"])).values()
    found = {axis: [row for row in rows if row["task"] == axis] for axis in AXES}
    return {axis: sorted(own, key=lambda row: row["config"]["size"]) for axis, own in found.items() if own}


def where_solvers_win(found: Mapping[str, Sequence[Row]]) -> str:
    """Return in words at which sizes a solver, given finished data, is faster than the forward pass of one point."""
    solvers = ("clarabel_ms", "scs_ms")
    won = {
        axis: [row for row in rows if any((row[name] or math.inf) < row["forward_ms"] for name in solvers)]
        for axis, rows in found.items()
    }
    places = [
        f"{AXES[axis]} = {', '.join(escape(row['config']['size']) for row in rows)}"
        for axis, rows in won.items()
        if rows
    ]
    if not places:
        return "The forward pass is faster at every size."
    return (
        f"One of them, given finished data, is faster than PyTorch's forward pass of one point at {'; '.join(places)}."
    )


def _table(axis: str, rows: Sequence[Row]) -> str:
    names = [*WAYS.values(), "data", *(f"error, {name}" for name in ERRORS.values()), "CVXPY / forward pass"]
    lines = [f"## By {AXES[axis]}", "", *head([AXES[axis], "weights", "rows", "nonzeros", *names], names=0)]
    for row in rows:
        sizes = (str(row["config"]["size"]), *(f"{row[name]:.0f}" for name in ("params", "rows", "nonzeros")))
        times = (_number(row[name], ".3g") for name in (*WAYS, "build_ms"))
        errors = (_number(row[name], ".0e") for name in ERRORS)
        lines.append(line(*sizes, *times, *errors, f"{row['cvxpy_ms'] / row['forward_ms']:.3g}"))
    return "\n".join([*lines, ""])


def _number(value: float | None, form: str) -> str:
    return "not solved" if value is None else format(value, form)
