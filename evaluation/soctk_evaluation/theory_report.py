"""Tables and pictures of the experiments on the theory: equivalence with the lift, and the rates of affine pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from soctk_evaluation.figures import save_figure
from soctk_evaluation.rates import least_error
from soctk_evaluation.store import Row

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
SETTING = {"passthrough": "passthrough", "no_passthrough": "none"}
PAPER = {"primal_dual_gap": "4.3e-14", "clarabel_error": "7.7e-07"}
"""The paper's largest values; its solver is another one."""
COLORS = {"closed form": "#1f6fb4", "Clarabel": "#c0392b", "SCS": "#8a6d1f"}
GREY, SMALLEST = "#8a8a8a", 1e-18

EQUIVALENCE_PAGE = """# Is a SOC-ICNN the value function of its lift?

Written by `soctk equivalence --markdown docs/equivalence.md --figure docs/images/equivalence.svg` on {machine}; the
rows are in [`evaluation/results/equivalence.jsonl`](../evaluation/results/equivalence.jsonl).

The paper's Experiment 1: d = {dim}, {depth} layers of {width} units, {blocks} quadratic and {blocks} norm blocks of
{rows} rows, with passthrough to every layer and without. Unlike there, biases and contexts are not zero, a trained
model stands beside the random ones, and every diagnostic compares quantities that were computed independently (see
`soctk_evaluation.equivalence`): a constraint that is tight by definition is not a diagnostic. Values are the largest
over all trials; |f| is of order {value:.0f} for the random models. Residuals are absolute, in the units of the program
that the solver was given.{trained}

![Largest residual of every diagnostic](images/equivalence.svg)

"""

RATES_PAGE = """# What curvature costs in affine pieces

Written by `soctk rates --markdown docs/rates.md --figure docs/images/rates.svg`; the rows are in
[`evaluation/results/rates.jsonl`](../evaluation/results/rates.jsonl).

Left: a function with a quadratic, a norm and a smooth convex rest (log-sum-exp). The first two are held exactly, the
rest is replaced by its tangent planes on a net of N points; the largest error over [-1, 1]^d falls like N^(-2/d), as
the structural absorption theorem says. Right: ReLU-ICNNs trained on ||x||²/2 over [-1, 1]², their affine pieces counted
exactly, above the paper's lower bound for any function of so many pieces. A SOC-ICNN has this function exactly, with
no piece at all.

![Largest error against the number of affine pieces](images/rates.svg)

"""


def write_equivalence(rows: Sequence[Row], markdown: Path | None, figure: Path | None) -> str:
    """Write the page and the picture asked for; return the tables in Markdown."""
    groups = _grouped(rows)
    text = _diagnostic_table(groups) + "\n" + _time_table(groups)
    if markdown is not None and rows:
        config = rows[0]["config"]
        value = max((row["value_mean"] for row in rows if row["method"] == "random"), default=float("nan"))
        head = EQUIVALENCE_PAGE.format(
            machine=rows[-1]["machine"], dim=rows[0]["dim"], value=value, trained=_training(rows), **config
        )
        _write(markdown, head + text)
    if figure is not None and rows:
        _equivalence_figure(groups, figure)
    return text


def _training(rows: Sequence[Row]) -> str:
    """Return how well the trained models know their objective, in words."""
    errors = {row["task"]: row["relative_error"] for row in rows if row.get("relative_error") is not None}
    if not errors:
        return ""
    words = {"passthrough": "with", "no_passthrough": "without"}
    named = ", ".join(f"{error:.1%} {words[setting]} passthrough" for setting, error in sorted(errors.items()))
    return f"\nThe trained models' relative errors on their task (`box_socp`) are {named}."


def _grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the measured rows by (weights, setting)."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["status"] == "ok":
            groups.setdefault((row["method"], row["task"]), []).append(row)
    return dict(sorted(groups.items()))


def _headings(groups: Mapping[tuple[str, str], list[Row]]) -> str:
    return " | ".join(f"{method}, {SETTING[setting]}" for method, setting in groups)


def _diagnostic_table(groups: Mapping[tuple[str, str], list[Row]]) -> str:
    lines = [f"| of | largest | {_headings(groups)} | paper |", "| --- | --- |" + " ---: |" * (len(groups) + 1)]
    for name, (source, label) in DIAGNOSTICS.items():
        values = (max(row[f"{name}_max"] for row in group) for group in groups.values())
        cells = " | ".join(f"{value:.1e}" for value in values)
        lines.append(f"| {source} | {label} | {cells} | {PAPER.get(name, '')} |")
    trials = " | ".join(str(sum(row["trials"] for row in group)) for group in groups.values())
    lines.append(f"| | trials | {trials} | 150 |")
    for solver in ("Clarabel", "SCS"):
        solved = (str(sum(row[f"{solver.lower()}_successes"] for row in group)) for group in groups.values())
        lines.append(f"| {solver} | runs solved | {' | '.join(solved)} | |")
    again = (_total(group, "clarabel_repeated") for group in groups.values())
    lines.append(f"| Clarabel | of these with a shorter step | {' | '.join(again)} | |")
    return "\n".join(lines) + "\n"


def _total(rows: Sequence[Row], name: str) -> str:
    """Return the sum of a field, a dash where a row has none."""
    return str(sum(row[name] for row in rows)) if all(name in row for row in rows) else "–"


def _time_table(groups: Mapping[tuple[str, str], list[Row]]) -> str:
    lines = [f"| median milliseconds, one thread | {_headings(groups)} |", "| --- |" + " ---: |" * len(groups)]
    for name, label in TIMES.items():
        values = (float(np.median([row[name] for row in group])) for group in groups.values())
        lines.append(f"| {label} | {' | '.join(f'{value:.3g}' for value in values)} |")
    for label, above, below in (
        ("CVXPY / forward pass, one point", "cvxpy_ms", "forward_ms"),
        ("CVXPY / the same with `soctk.freeze(model)`", "cvxpy_ms", "frozen_ms"),
        ("SOC-ICNN / its ReLU backbone, in a batch", "forward_batch_ms", "backbone_batch_ms"),
    ):
        ratios = (float(np.median([row[above] / row[below] for row in group])) for group in groups.values())
        lines.append(f"| ratio: {label} | {' | '.join(f'{value:.3g}' for value in ratios)} |")
    return "\n".join(lines) + "\n"


def _equivalence_figure(groups: Mapping[tuple[str, str], list[Row]], path: Path) -> None:
    """Draw the largest value of every diagnostic, one mark for each kind of weights and setting."""
    names = list(DIAGNOSTICS)[::-1]
    drawn, axes = plt.subplots(figsize=(7.6, 0.26 * len(names) + 1.2), layout="constrained")
    for marker, (key, group) in zip("osD^", groups.items(), strict=False):
        for place, name in enumerate(names):
            value = max(row[f"{name}_max"] for row in group)
            axes.plot([max(value, SMALLEST)], [place], marker, ms=5, color=COLORS[DIAGNOSTICS[name][0]], alpha=0.75)
        axes.plot([], [], marker, color=GREY, label=f"{key[0]}, {SETTING[key[1]]}")
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), [f"{DIAGNOSTICS[n][0]}: {DIAGNOSTICS[n][1]}" for n in names], fontsize=8)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_color(COLORS[DIAGNOSTICS[name][0]])
    axes.set_xlabel(f"largest over all trials, log scale; exact zeros at {SMALLEST:.0e}")
    axes.legend(fontsize=7.5, frameon=False, loc="upper right", title="weights, passthrough", title_fontsize=7.5)
    _finish(axes)
    save_figure(drawn, path)


def write_rates(rows: Sequence[Row], markdown: Path | None, figure: Path | None) -> str:
    """Write the page and the picture asked for; return the tables in Markdown."""
    lines = ["| d | points N | largest error | local order in N | theorem |", "| ---: | ---: | ---: | ---: | ---: |"]
    for dim, points in _absorption(rows).items():
        for index, (count, error) in enumerate(points):
            order = ""
            if index:
                before, last = points[index - 1]
                order = f"{np.log(error / last) / np.log(count / before):.2f}"
            lines.append(f"| {dim} | {count} | {error:.2e} | {order} | {-2 / dim:.2f} |")
    lines += ["", "| ReLU-ICNN | pieces | largest error | lower bound |", "| --- | ---: | ---: | ---: |"]
    for row in sorted((row for row in rows if row["task"] == "pieces"), key=lambda row: row["pieces"]):
        hidden = " + ".join(map(str, row["config"]["hidden"]))
        lines.append(f"| {hidden} units | {row['pieces']} | {row['sup_error']:.2e} | {row['bound']:.2e} |")
    text = "\n".join(lines) + "\n"
    if markdown is not None:
        _write(markdown, RATES_PAGE + text)
    if figure is not None:
        _rates_figure(rows, figure)
    return text


def _absorption(rows: Sequence[Row]) -> dict[int, list[tuple[int, float]]]:
    found: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        if row["task"] == "absorption" and row["status"] == "ok":
            found.setdefault(row["dim"], []).append((row["pieces"], row["sup_error"]))
    return {dim: sorted(points) for dim, points in sorted(found.items())}


def _rates_figure(rows: Sequence[Row], path: Path) -> None:
    drawn, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained")
    for color, (dim, points) in zip(COLORS.values(), _absorption(rows).items(), strict=False):
        counts, errors = np.array(points).T
        left.plot(counts, errors, "o", ms=5, color=color, label=f"d = {dim}, measured")
        left.plot(counts, errors[-1] * (counts / counts[-1]) ** (-2 / dim), "-", lw=1, color=color, alpha=0.6)
    left.plot([], [], "-", lw=1, color=GREY, label="N^(-2/d) through the last point")
    left.set_title("Tangent planes on a net", loc="left", fontsize=10)
    networks = sorted((r["pieces"], r["sup_error"]) for r in rows if r["task"] == "pieces" and r["status"] == "ok")
    if networks:
        counts, errors = np.array(networks).T
        right.plot(counts, errors, "o", ms=5, color=COLORS["closed form"], label="trained ReLU-ICNN")
        span = np.geomspace(1, 2 * counts.max(), 50)
        right.plot(span, [least_error(2, n) for n in span], "-", color=COLORS["Clarabel"], label="no fewer pieces can")
        right.fill_between(span, [least_error(2, n) for n in span], 1e-4, color=COLORS["Clarabel"], alpha=0.08)
        right.set_ylim(5e-4, 0.5)
    right.set_title("Affine pieces of ||x||²/2 on [-1, 1]²", loc="left", fontsize=10)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("affine pieces N")
        axes.set_ylabel("largest error")
        axes.legend(fontsize=7.5, frameon=False, loc="lower left")
        _finish(axes)
    save_figure(drawn, path)


def _finish(axes: Axes) -> None:
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
