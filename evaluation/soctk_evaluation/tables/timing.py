"""The page of what a decision takes."""

from __future__ import annotations

from typing import Any

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.markdown import escape, head, line, write_page

PAGE = """# What a decision takes

Written by `soctk timing --dims {dims} --markdown docs/timing.md --figure docs/images/timing.svg` on {machine};
the rows are in `evaluation/results/timing.jsonl`. One process, one thread, the
best of at least three repeats; every method decides the same contexts of the same random SOC-ICNN. The *compact* model
is the leaderboard's with every branch on; the *wide* one has a backbone of two layers of 64 ReLUs, a full quadratic and
a full norm. Gaps are certified by `soctk.certify` whatever the method. CVXPY re-solves one compiled parameterised
program; the solvers alone are called on assembled cone data and only their own solve time counts. Batches are where
this library is fast: a single decision in few variables waits longer for Python than for arithmetic. Below each table
stands what the arithmetic alone would take: all sums, products, quotients and roots of the coefficients, of the
iterations and of the certificates, symmetric matrices halved, at the rate of a large matrix product.

![Milliseconds for a decision by every method](images/timing.svg)

"""
"""What stands above the tables in the docs."""

LABELS = {
    "newton": "`soctk.minimize`",
    "layer": "`soctk.DecisionLayer`, forward and backward",
    "cvxpy_clarabel": "CVXPY re-solve, Clarabel",
    "cvxpy_scs": "CVXPY re-solve, SCS",
    "clarabel": "Clarabel alone, solve time",
    "scs_1e-3": "SCS alone at 1e-3, solve time",
    "cvxpylayers": "cvxpylayers, forward",
    "cvxpylayers_backward": "cvxpylayers, forward and backward",
}


def write_timing(results: Results, files: Files) -> None:
    """Show the tables, and write the page and the picture asked for."""
    rows = results.measured
    table = timing_table(rows)
    print(table)
    if "markdown" in files and rows:
        dims = " ".join(map(str, sorted({row["dim"] for row in rows})))
        write_page(files["markdown"], PAGE.format(machine=escape(rows[-1]["machine"]), dims=dims) + table, rows)
    if "figure" in files:
        from soctk_evaluation.tables.figures import timing_figure

        timing_figure(rows, files["figure"])


def timing_table(rows: list[Row]) -> str:
    """Return Markdown tables, one for each race: time, quality, and how many times this library is faster."""
    races: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        races.setdefault((row["dim"], row["config"]["model"], row["task"]), []).append(row)
    return "\n\n".join(_race(*which, race) for which, race in sorted(races.items())) + "\n"


def _race(dim: int, model: str, name: str, race: list[Row]) -> str:
    largest = max(row["config"]["batch"] for row in race)
    own = {row["method"]: row["decide_ms"] for row in race if row["config"]["batch"] == largest}
    slower = f"times slower than ours at {largest}"
    lines = [f"**d = {dim}, {escape(name)}, {escape(model)} model**\n"]
    lines += head(["method", "batch", "ms a decision", slower, "certified 1e-6", "largest gap"])
    for row in race:
        ours = own.get("layer" if row["method"] in ("layer", "cvxpylayers_backward") else "newton")
        quality = ["", ""] if row["certified"] is None else [f"{row['certified']:.0%}", f"{row['gap_max']:.0e}"]
        ratio = f"{row['decide_ms'] / ours:.3g}" if ours else ""
        label = LABELS.get(row["method"], row["method"])
        lines.append(line(label, str(row["config"]["batch"]), f"{row['decide_ms']:.3g}", ratio, *quality))
    limited = [row for row in race if row["limit_ms"] and row["config"]["batch"] == largest]
    return "\n".join([*lines, "", *map(_limit_line, limited)])


def _limit_line(row: Row) -> str:
    share = row["decide_ms"] / row["limit_ms"]
    return (
        f"Its floating-point operations alone, at the rate of a large matrix product: "
        f"{row['limit_ms']:.2g} ms a decision; `soctk.minimize` takes {share:.2g} times that, "
        f"in {row['iterations']:.0f} iterations (median)."
    )
