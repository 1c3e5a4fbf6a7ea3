"""Pictures of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from soctk_evaluation.store import Row
from soctk_evaluation.summary import Line, Table

PAPER = {"dcp": 0.284, "pcf": 0.139, "relu": 0.234, "softplus": 0.507, "norm": 0.229, "quad": 0.179, "soc": 0.197}
"""The paper's mean regrets over the six tasks at d = 10 (arXiv 2604.22355, Experiment 3)."""
INK, LEARNED, TRIVIAL, PUBLISHED = "#333333", "#1f6fb4", "#8a8a8a", "#c0392b"


def regret_figure(table: Table, path: Path) -> None:
    """Draw the mean regret of every method over the tasks, each task as a dot, beside the paper's figure.

    Args:
        table: one dimension and protocol; at d = 10 the paper's means are drawn too.
        path: where to write; the ending says the format.
    """
    lines = [line for line in (*table.learned, *table.trivial) if line.mean is not None]
    lines.sort(key=lambda line: -(line.mean or 0.0))
    trivial = {line.method for line in table.trivial}
    figure, axes = plt.subplots(figsize=(7.2, 0.36 * len(lines) + 1.3), layout="constrained")
    for row, line in enumerate(lines):
        _draw(axes, row, line, TRIVIAL if line.method in trivial else LEARNED)
        if table.dim == 10 and line.method in PAPER:
            axes.plot([PAPER[line.method]], [row], marker="D", ms=6, mfc="none", mec=PUBLISHED, mew=1.3, zorder=4)
    axes.set_xscale("log")
    axes.set_yticks(range(len(lines)), [line.method for line in lines])
    for label, line in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_color(TRIVIAL if line.method in trivial else INK)
    axes.set_xlabel("mean regret f(x̂) − f(x*), log scale")
    axes.set_title(f"Six decision tasks, d = {table.dim}: smaller is better", loc="left", fontsize=10)
    axes.grid(axis="x", color="#e5e5e5")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [
        Line2D([], [], marker="o", ls="", color=LEARNED, ms=8, label="learned, mean of tasks"),
        Line2D([], [], marker="o", ls="", color=TRIVIAL, ms=8, label="trivial row"),
        Line2D([], [], marker="o", ls="", color=LEARNED, ms=4, alpha=0.35, label="one task"),
    ]
    if table.dim == 10:
        handles.append(Line2D([], [], marker="D", ls="", mfc="none", mec=PUBLISHED, label="mean in the paper"))
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw(axes: Axes, row: int, line: Line, color: str) -> None:
    tasks = [regret.mean for regret in line.regrets if regret.mean is not None]
    axes.plot([max(value, 1e-9) for value in tasks], [row] * len(tasks), "o", ms=4, color=color, alpha=0.35)
    axes.plot([line.mean or 0.0], [row], "o", ms=8, color=color, zorder=3)


def timing_figure(rows: Sequence[Row], path: Path) -> None:
    """Draw time for a decision against the worst certified gap, one panel for each dimension of the wide model.

    Args:
        rows: of `soctk timing`.
        path: where to write; the ending says the format.
    """
    shown = [row for row in rows if row["config"]["model"] == "wide" and row["gap_max"] is not None] or list(rows)
    dims = sorted({row["dim"] for row in shown})
    figure, panels = plt.subplots(
        1, len(dims), figsize=(3.6 * len(dims) + 0.6, 3.4), layout="constrained", sharey=True, squeeze=False
    )
    for axes, dim in zip(panels[0], dims, strict=True):
        for row in shown:
            if row["dim"] != dim or row["gap_max"] is None:
                continue
            ours = row["method"] == "newton"
            label = f"soctk, batch {row['config']['batch']}" if ours else row["method"].replace("_", " ")
            gap = max(row["gap_max"], 1e-10)
            axes.plot([row["decide_ms"]], [gap], "o", ms=7, color=LEARNED if ours else TRIVIAL)
            axes.annotate(
                label, (row["decide_ms"], gap), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=7
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(x=0.25, y=0.2)
        axes.axhline(1e-6, color="#bbbbbb", lw=0.8, ls="--")
        axes.set_title(f"d = {dim}", loc="left", fontsize=10)
        axes.set_xlabel("milliseconds for a decision")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("largest certified relative gap")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
