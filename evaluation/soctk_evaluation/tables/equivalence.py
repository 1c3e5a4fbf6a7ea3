"""The page of the equivalence experiment: forward passes against their lifts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.markdown import escape, head, line
from soctk_evaluation.tables.page import Page

Groups = dict[tuple[str, str], list[Row]]
"""Rows by weights and setting."""

DIAGNOSTICS: dict[str, tuple[str, str]] = {
    "primal_dual_gap": ("closed form", "forward pass − dual value, absolute"),
    "relative_gap": ("closed form", "the same, relative"),
    "primal_violation": ("closed form", "z against the lift's rows"),
    "dual_violation": ("closed form", "ν chain and norm balls"),
    "complementarity": ("closed form", "ν (z − a) and (U'ν⁺ − ν) z"),
    "dual_slope": ("closed form", "dual point − derivatives of the value (complex step)"),
} | {
    f"{solver.lower()}_{name}": (solver, label)
    for solver in ("Clarabel", "SCS")
    for name, label in {
        "error": "forward pass − optimum",
        "gap": "primal − dual objective",
        "primal_violation": "rows outside their cones",
        "dual_violation": "stationarity and dual cones",
        "chain_violation": "ν chain",
        "ball_violation": "‖μ‖ − λ",
        "quadratic_tightness": "s − ‖Bx + e‖²/2",
        "norm_tightness": "t − ‖Ax + d‖",
        "alignment": "μ'u − λ‖u‖",
    }.items()
}
TIMES = {
    "forward_ms": "forward pass, one point",
    "frozen_ms": "the same with `soctk.freeze(model)`, whose weights cannot change",
    "forward_batch_ms": "forward pass, in a batch of 1024",
    "backbone_batch_ms": "its ReLU backbone alone, in a batch of 1024",
    "dual_ms": "closed-form dual point",
    "build_ms": "assembling the lift's cone data",
    "clarabel_solve_ms": "Clarabel on them, solve time",
    "scs_solve_ms": "SCS on them, solve time",
    "cvxpy_ms": "CVXPY with Clarabel, build and solve",
}
RATIOS = (
    ("CVXPY / forward pass, one point", "cvxpy_ms", "forward_ms"),
    ("CVXPY / the same with `soctk.freeze(model)`", "cvxpy_ms", "frozen_ms"),
    ("SOC-ICNN / its ReLU backbone, in a batch", "forward_batch_ms", "backbone_batch_ms"),
)
SETTING = {"passthrough": "passthrough", "no_passthrough": "none"}
PAPER = {"primal_dual_gap": "4.3e-14", "clarabel_error": "7.7e-07"}
"""The paper's largest values; its solver is another one."""

PAGE = Page(
    "Is a SOC-ICNN the value function of its lift?",
    "soctk equivalence",
    """
The paper's Experiment 1: d = {dim}, {depth} layers of {width} units, {blocks} quadratic and {blocks} norm blocks of
{rows} rows, with passthrough to every layer and without. Unlike there, biases and contexts are not zero, a trained
model stands beside the random ones, and every diagnostic compares quantities that were computed independently (see
`soctk_evaluation.experiments.equivalence`): a constraint that is tight by definition is not a diagnostic. Values are
the largest over all trials; |f| is of order {value:.0f} for the random models. Residuals are absolute, in the units of
the program that the solver was given.{trained}
""",
    "Largest residual of every diagnostic",
)

NEEDED = ("trials", "value_mean", "clarabel_successes", "scs_successes")
NEEDED += (*(f"{name}_max" for name in DIAGNOSTICS), *TIMES)
"""The measurements that the tables cannot do without."""


def write_equivalence(results: Results, files: Files) -> None:
    """Show the tables, and write the page and the picture asked for."""
    rows, groups = results.measured, grouped(results)
    text = diagnostic_table(groups) + "\n" + time_table(groups)
    print(text)
    if rows:
        config = {name: escape(rows[0]["config"][name]) for name in ("depth", "width", "blocks", "rows")}
        value = max((row["value_mean"] for row in rows if row["method"] == "random"), default=float("nan"))
        PAGE.write(results, files, text, config | {"dim": rows[0]["dim"], "trained": _training(rows), "value": value})
    if "figure" in files and rows:
        from soctk_evaluation.tables.figures import equivalence_figure

        equivalence_figure(dict(zip(_headings(groups), largest(groups), strict=True)), DIAGNOSTICS, files["figure"])


def _training(rows: Sequence[Row]) -> str:
    """Return how well the trained models know their objective, in words."""
    errors = {row["task"]: row["relative_error"] for row in rows if row.get("relative_error") is not None}
    if not errors:
        return ""
    words = {"passthrough": "with", "no_passthrough": "without"}
    named = ", ".join(
        f"{error:.1%} {words.get(setting, escape(setting))} passthrough" for setting, error in sorted(errors.items())
    )
    return f"\nThe trained models' relative errors on their task (`box_socp`) are {named}."


def grouped(results: Results) -> Groups:
    """Return the rows without a trouble by (weights, setting)."""
    groups: Groups = {}
    for row in results.rows:
        if row["status"] == "ok":
            groups.setdefault((row["method"], row["task"]), []).append(row)
    return dict(sorted(groups.items()))


def _headings(groups: Groups) -> list[str]:
    return [f"{method}, {SETTING.get(setting, setting)}" for method, setting in groups]


def largest(groups: Groups) -> list[dict[str, float]]:
    """Return the largest value of every diagnostic in each group."""
    return [{name: max(row[f"{name}_max"] for row in group) for name in DIAGNOSTICS} for group in groups.values()]


def diagnostic_table(groups: Groups) -> str:
    """Return the largest diagnostics in Markdown."""
    lines = head(["of", "largest", *_headings(groups), "paper"], names=2)
    for name, (source, label) in DIAGNOSTICS.items():
        values = (f"{values[name]:.1e}" for values in largest(groups))
        lines.append(line(source, label, *values, PAPER.get(name, "")))
    trials = " | ".join(str(sum(row["trials"] for row in group)) for group in groups.values())
    lines.append(f"| | trials | {trials} | 150 |")
    for solver in ("Clarabel", "SCS"):
        solved = (str(sum(row[f"{solver.lower()}_successes"] for row in group)) for group in groups.values())
        lines.append(f"| {solver} | runs solved | {' | '.join(solved)} | |")
    again = (_total(group, "clarabel_repeated") for group in groups.values())
    lines.append(f"| Clarabel | of these on a later try, with a shorter step | {' | '.join(again)} | |")
    return "\n".join(lines) + "\n"


def _total(rows: Sequence[Row], name: str) -> str:
    """Return the sum of a field, a dash where a row has none."""
    return str(sum(row[name] for row in rows)) if all(name in row for row in rows) else "–"


def time_table(groups: Groups) -> str:
    """Return the median times in Markdown."""
    lines = head(["median milliseconds, one thread", *_headings(groups)])
    for name, label in TIMES.items():
        lines.append(line(label, *(f"{np.median([row[name] for row in rows]):.3g}" for rows in groups.values())))
    for label, above, below in RATIOS:
        ratios = (np.median([row[above] / row[below] for row in rows]) for rows in groups.values())
        lines.append(line(f"ratio: {label}", *(f"{ratio:.3g}" for ratio in ratios)))
    return "\n".join(lines) + "\n"
