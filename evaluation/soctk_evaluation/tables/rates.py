"""The page of the rates: errors against affine pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.markdown import head, line
from soctk_evaluation.tables.page import Page

PAGE = Page(
    "What curvature costs in affine pieces",
    "soctk rates",
    """
Left: a function with a quadratic, a norm and a smooth convex rest h (log-sum-exp). The first two are held exactly, h is
replaced by its tangent planes on a net of N points; the largest error over [-1, 1]^d falls like N^(-2/d), as the
structural absorption theorem says (at d = 3 with scatter, as the nets are coarse), and stays below M d / 2 N^(-2/d),
with M a bound of h's curvature (lines). Right: ReLU-ICNNs trained on ||x||²/2 over [-1, 1]^d, their affine pieces
counted exactly, above the paper's lower bound for any function of so many pieces (lines). A SOC-ICNN has this
function exactly, with no piece at all. Errors are looked for on a grid, so the largest may be a little larger.
""",
    "Largest error against the number of affine pieces",
)


Bound = Callable[[int, float], float]
"""The least error in a dimension of so many affine pieces."""


def write_rates(results: Results, files: Files, bound: Bound) -> None:
    """Show the tables, and write the page and the picture asked for."""
    text = rates_tables(results)
    print(text)
    PAGE.write(results, files, text)
    if "figure" in files and results.measured:
        from soctk_evaluation.tables.figures import rates_figure

        rates_figure(by_dim(results, "absorption"), by_dim(results, "pieces"), bound, files["figure"])


def rates_tables(results: Results) -> str:
    """Return the tables in Markdown."""
    lines = head(["d", "points N", "largest error", "upper bound", "local order in N", "theorem"], names=0)
    for dim, rows in by_dim(results, "absorption").items():
        for before, row in zip([None, *rows], rows, strict=False):
            order = "" if before is None else _order(before, row)
            numbers = (str(row["pieces"]), f"{row['sup_error']:.2e}", f"{row['bound']:.2e}", order)
            lines.append(line(str(dim), *numbers, f"{-2 / dim:.2f}"))
    lines += ["", *head(["d", "ReLU-ICNN", "pieces", "largest error", "lower bound"], names=2)]
    for dim, rows in by_dim(results, "pieces").items():
        for row in rows:
            hidden = f"{' + '.join(map(str, row['config'].get('hidden') or []))} units"
            numbers = (str(row["pieces"]), f"{row['sup_error']:.2e}", f"{row['bound']:.2e}")
            lines.append(line(str(dim), hidden, *numbers))
    return "\n".join(lines) + "\n"


def _order(before: Row, row: Row) -> str:
    """Return how the error goes with the number of pieces from one row to the next, nothing where it cannot be told."""
    if min(row["sup_error"], before["sup_error"], before["pieces"]) <= 0 or row["pieces"] <= before["pieces"]:
        return ""
    order = np.log(row["sup_error"] / before["sup_error"]) / np.log(row["pieces"] / before["pieces"])
    return f"{order:.2f}"


def by_dim(results: Results, task: str) -> dict[int, list[Row]]:
    """Return the rows of a task by dimension, few pieces first."""
    rows = sorted((row for row in results.measured if row["task"] == task), key=lambda row: (row["dim"], row["pieces"]))
    return {dim: list(own) for dim, own in itertools.groupby(rows, key=lambda row: row["dim"])}
