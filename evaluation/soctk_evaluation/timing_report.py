"""The page and the picture of what a decision takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from soctk_evaluation.store import Row


def timing_table(rows: Sequence[Row]) -> str:
    """Return Markdown tables, one for each race: time, quality, and how many times this library is faster."""
    races: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        races.setdefault((row["dim"], row["config"]["model"], row["task"]), []).append(row)
    parts = []
    for (dim, model, name), race in sorted(races.items()):
        largest = max(row["config"]["batch"] for row in race)
        own = {row["method"]: row["decide_ms"] for row in race if row["config"]["batch"] == largest}
        lines = [
            f"**d = {dim}, {name}, {model} model**\n",
            f"| method | batch | ms a decision | times slower than ours at {largest} | certified 1e-6 | largest gap |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
        ]
        for row in race:
            ours = own["layer" if row["method"] in ("layer", "cvxpylayers_backward") else "newton"]
            quality = ["", ""] if row["certified"] is None else [f"{row['certified']:.0%}", f"{row['gap_max']:.0e}"]
            label, batch = LABELS[row["method"]], row["config"]["batch"]
            lines.append(
                "| "
                + " | ".join([label, str(batch), f"{row['decide_ms']:.3g}", f"{row['decide_ms'] / ours:.3g}", *quality])
                + " |"
            )
        limits = [row for row in race if row["limit_ms"]]
        lines += ["", *(_limit_line(row) for row in limits if row["config"]["batch"] == largest)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def write_timing(rows: Sequence[Row], markdown: Path | None, figure: Path | None) -> str:
    """Write the page and the picture asked for; return the tables in Markdown."""
    rows = [row for row in rows if row["experiment"] == "timing"]
    table = timing_table(rows)
    if markdown is not None and rows:
        dims, where = " ".join(map(str, sorted({row["dim"] for row in rows}))), rows[-1]["machine"]
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(PAGE.format(machine=where, dims=dims) + table, encoding="utf-8")
    if figure is not None:
        from soctk_evaluation.figures import timing_figure

        timing_figure(rows, figure)
    return table


PAGE = """# What a decision takes

Written by `soctk timing --dims {dims} --markdown docs/timing.md --figure docs/images/timing.svg` on {machine};
the rows are in [`evaluation/results/timing.jsonl`](../evaluation/results/timing.jsonl). One process, one thread, the
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


def _limit_line(row: Row) -> str:
    share = row["decide_ms"] / row["limit_ms"]
    return (
        f"Its floating-point operations alone, at the rate of a large matrix product: "
        f"{row['limit_ms']:.2g} ms a decision; `soctk.minimize` takes {share:.2g} times that, "
        f"in {row['iterations']:.0f} iterations (median)."
    )
