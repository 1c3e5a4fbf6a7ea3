"""The page of what a decision takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.markdown import escape, head, line
from soctk_evaluation.tables.page import Page
from soctk_evaluation.tables.races import at_their_best, largest_gap, races_of, share_certified, write_races

PAGE = Page(
    "What a decision takes",
    "soctk timing",
    """
`--dims`, `--models` and `--sets` are as the headings say. One process, one thread, the best of at least three repeats;
every method decides the same contexts of the same SOC-ICNN, and whoever decides single ones decides the first twenty in
turn (`--count`), whose mean time counts. The *trained* model has the sizes that the leaderboard's `soc` had when this
was measured (dates below), and is learned from 400 instances of the paper's task over that set; the *compact* one is
the same with every branch on, the *wide* one has a backbone of two layers of 64 ReLUs, a full quadratic and a full
norm, both with random weights. Warm starts are from the decisions of contexts .01 standard deviations away; an
interior-point method takes none.

Gaps are certified by `soctk.certify` whatever the method. CVXPY re-solves one compiled parameterised program; the
solvers alone are called on the cone data that CVXPY makes of it, and only their own solve time counts;
[Moreau](https://pypi.org/project/moreau/) is called on the cone data of the same lift, for one context and at its best
batch size, their making not counted. This library and Moreau are asked for 1e-6, SCS alone for 1e-3, the others run at
their own tolerances (Clarabel's is 1e-8). Methods are timed one after the other: small differences may be the
machine's. A ratio below 1 says that the other method is the quicker one.

The first ratio is between single decisions: what a method takes, over what `soctk.prepare` takes for one context (with
derivatives: the `DecisionLayer`). There a decision in few variables waits longer for Python than for arithmetic. The
second ratio is to this library at its largest batch; of the others Moreau alone is timed in batches. Below each table
stands what the arithmetic alone would take: all sums, products, quotients and roots of the coefficients, of the
iterations and of the certificates, symmetric matrices halved, at the rate of a large matrix product of PyTorch. The
compiled code may do less than is counted, or be quicker than that product: then the whole takes less.
""",
    "Milliseconds for a decision by every method, over the set with most rows",
    "The other core had other work meanwhile.",
)

LABELS = {
    "newton": "`soctk.minimize`",
    "newton_warm": "`soctk.minimize`, warm start",
    "prepared": "`soctk.prepare`",
    "prepared_warm": "`soctk.prepare`, warm start",
    "layer": "`soctk.DecisionLayer`, forward and backward",
    "cvxpy_clarabel": "CVXPY re-solve, Clarabel",
    "cvxpy_scs": "CVXPY re-solve, SCS",
    "clarabel": "Clarabel alone, solve time",
    "scs_1e-3": "SCS alone at 1e-3, solve time",
    "scs_1e-3_warm": "SCS alone at 1e-3, warm start, solve time",
    "cvxpylayers": "cvxpylayers, forward",
    "cvxpylayers_backward": "cvxpylayers, forward and backward",
    "moreau": "Moreau, finished cone data",
}
DERIVATIVES = ("layer", "cvxpylayers_backward")


def write_timing(results: Results, files: Files) -> None:
    """Show the tables, and write the page and the picture asked for."""
    write_races(results, files, PAGE, timing_table, _draw)


def _draw(rows: list[Row], path: Path) -> None:
    from soctk_evaluation.tables.figures import timing_figure

    timing_figure([row for race in _races(rows).values() for row in race], path)


def timing_table(rows: list[Row]) -> str:
    """Return Markdown tables, one for each race: time, quality, and how many times as long rivals take."""
    return "\n\n".join(_race(*which, race) for which, race in sorted(_races(rows).items())) + "\n"


def _races(rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows by dimension, model and set, Moreau's for one context and at its best batch size."""
    return {which: at_their_best(race, ("moreau",)) for which, race in races_of(rows).items()}


def _race(dim: int, model: str, name: str, race: list[Row]) -> str:
    largest = max((row["config"]["batch"] for row in race if row["method"] == "newton"), default=1)
    times = {(row["method"], row["config"]["batch"]): row["decide_ms"] for row in race}
    lines = [f"**d = {dim}, {escape(name)}, {escape(model)} model**\n"]
    columns = ["times ours for one context", f"times ours at {largest}", "certified 1e-6", "largest gap"]
    lines += head(["method", "batch", "ms a decision", *columns])
    for row in race:
        one, many = ("layer", "layer") if row["method"] in DERIVATIVES else ("prepared", "newton")
        ours = (one, 1), (many, largest)
        ratios = [f"{row['decide_ms'] / times[own]:.3g}" if own in times else "" for own in ours]
        quality = ["", ""] if row["certified"] is None else [share_certified([row]), largest_gap(row)]
        label = LABELS.get(row["method"], row["method"])
        lines.append(line(label, str(row["config"]["batch"]), f"{row['decide_ms']:.3g}", *ratios, *quality))
    limited = [row for row in race if row["limit_ms"] and row["config"]["batch"] == largest]
    return "\n".join([*lines, "", *map(_limit_line, limited)])


def _limit_line(row: Row) -> str:
    share = row["decide_ms"] / row["limit_ms"]
    return (
        f"Its floating-point operations alone, at the rate of a large matrix product: "
        f"{row['limit_ms']:.2g} ms a decision; `soctk.minimize` takes {share:.2g} times that, "
        f"in {row['iterations']:.0f} iterations (median)."
    )
