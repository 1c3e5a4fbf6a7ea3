"""The page of the rates: errors against affine pieces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.markdown import head, line, write_page

PAGE = """# What curvature costs in affine pieces

Written by `soctk rates --markdown docs/rates.md --figure docs/images/rates.svg`; the rows are in
`evaluation/results/rates.jsonl`.

Left: a function with a quadratic, a norm and a smooth convex rest (log-sum-exp). The first two are held exactly, the
rest is replaced by its tangent planes on a net of N points; the largest error over [-1, 1]^d falls like N^(-2/d), as
the structural absorption theorem says. Right: ReLU-ICNNs trained on ||x||²/2 over [-1, 1]², their affine pieces counted
exactly, above the paper's lower bound for any function of so many pieces. A SOC-ICNN has this function exactly, with
no piece at all.

![Largest error against the number of affine pieces](images/rates.svg)

"""


Bound = Callable[[int, float], float]
"""The least error in a dimension of so many affine pieces."""


def write_rates(results: Results, files: Files, bound: Bound) -> None:
    """Show the tables, and write the page and the picture asked for."""
    text = rates_tables(results)
    print(text)
    if "markdown" in files:
        write_page(files["markdown"], PAGE + text, results.measured)
    if "figure" in files and results.measured:
        from soctk_evaluation.tables.figures import rates_figure

        rates_figure(absorption(results), trained(results), bound, files["figure"])


def rates_tables(results: Results) -> str:
    """Return the tables in Markdown."""
    lines = head(["d", "points N", "largest error", "local order in N", "theorem"], names=0)
    for dim, points in absorption(results).items():
        for index, (count, error) in enumerate(points):
            order = ""
            if index:
                before, last = points[index - 1]
                order = f"{np.log(error / last) / np.log(count / before):.2f}"
            lines.append(line(str(dim), str(count), f"{error:.2e}", order, f"{-2 / dim:.2f}"))
    lines += ["", *head(["ReLU-ICNN", "pieces", "largest error", "lower bound"])]
    for row in trained(results):
        hidden, bound = " + ".join(map(str, row["config"]["hidden"])), row["bound"]
        lines.append(line(f"{hidden} units", str(row["pieces"]), f"{row['sup_error']:.2e}", f"{bound:.2e}"))
    return "\n".join(lines) + "\n"


def absorption(results: Results) -> dict[int, list[tuple[int, float]]]:
    """Return (pieces, largest error) of the tangent planes by dimension."""
    found: dict[int, list[tuple[int, float]]] = {}
    for row in results.measured:
        if row["task"] == "absorption":
            found.setdefault(row["dim"], []).append((row["pieces"], row["sup_error"]))
    return {dim: sorted(points) for dim, points in sorted(found.items())}


def trained(results: Results) -> list[Row]:
    """Return the rows of the trained networks, few pieces first."""
    rows = [row for row in results.measured if row["task"] == "pieces" and row["bound"] is not None]
    return sorted(rows, key=lambda row: row["pieces"])
