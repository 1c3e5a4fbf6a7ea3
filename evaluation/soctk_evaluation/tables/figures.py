"""Pictures of results. The ending of a path says the format."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from soctk_evaluation.harness.names import TRIVIAL as TRIVIAL_METHODS
from soctk_evaluation.harness.names import split
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.paired import Ratio
from soctk_evaluation.tables.summary import Line, Table

INK, LEARNED, TRIVIAL, CONTRAST = "#333333", "#1f6fb4", "#8a8a8a", "#c0392b"
METHOD_STYLES = tuple(
    {"marker": marker, "color": color}
    for marker, color in zip("os^Dv", (LEARNED, CONTRAST, "#d98e04", "#5b3a8c", "#2e7d32"), strict=True)
)
STYLES, STYLE_COLORS = ("o-", "o--", "s-", "^-", "D-"), (LEARNED, LEARNED, CONTRAST, "#d98e04", "#5b3a8c")


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a picture and close it; the path's ending says the format. The same picture is the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context({"svg.hashsalt": "soctk"}):
        figure.savefig(path, dpi=dpi, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    print(f"wrote {path}", file=sys.stderr)


def open_frame(axes: Axes, grid: Literal["both", "x", "none"] = "none") -> None:
    """Draw a frame without top and right, and a light grid below the data."""
    if grid != "none":
        axes.grid(axis=grid, color="#e5e5e5")
        axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def regret_figure(table: Table, path: Path) -> None:
    """Draw the mean regret of every method over the tasks, each task as a dot."""
    lines = [line for line in (*table.learned, *table.trivial) if line.mean is not None]
    lines.sort(key=lambda line: -(line.mean or 0.0))
    trivial = {line.method for line in table.trivial}
    figure, axes = plt.subplots(figsize=(7.2, 0.36 * len(lines) + 1.3), layout="constrained")
    for row, line in enumerate(lines):
        _draw(axes, row, line, TRIVIAL if line.method in trivial else LEARNED)
    axes.set_xscale("log")
    axes.set_yticks(range(len(lines)), [line.method for line in lines])
    for label, line in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_color(TRIVIAL if line.method in trivial else INK)
    axes.set_xlabel("mean regret f(x̂) − f(x*), log scale")
    tasks = "one decision task" if len(table.tasks) == 1 else f"{len(table.tasks)} decision tasks"
    axes.set_title(f"{tasks.capitalize()}, d = {table.dim}: smaller is better", loc="left", fontsize=10)
    open_frame(axes, "x")
    handles = [
        Line2D([], [], marker="o", ls="", color=LEARNED, ms=8, label="learned, mean of tasks"),
        Line2D([], [], marker="o", ls="", color=TRIVIAL, ms=8, label="trivial row"),
        Line2D([], [], marker="o", ls="", color=LEARNED, ms=4, alpha=0.35, label="one task"),
    ]
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="lower left")
    save_figure(figure, path)


def _draw(axes: Axes, row: int, line: Line, color: str) -> None:
    tasks = [regret.mean for regret in line.regrets if regret.mean is not None]
    axes.plot([max(value, 1e-9) for value in tasks], [row] * len(tasks), "o", ms=4, color=color, alpha=0.35)
    axes.plot([line.mean or 0.0], [row], "o", ms=8, color=color, zorder=3)


def factorial_figure(dim: int, ratios: Mapping[str, tuple[Ratio, Sequence[float]]], path: Path) -> None:
    """Draw every variant's regret as a multiple of SOC's: the mean over tasks with its interval, each task as a dot."""
    figure, axes = plt.subplots(figsize=(7.2, 0.28 * len(ratios) + 1.2), layout="constrained")
    for row, (name, (ratio, tasks)) in enumerate(ratios.items()):
        color = LEARNED if name.startswith("soc") else TRIVIAL
        axes.plot(tasks, [row] * len(tasks), "o", ms=4, color=color, alpha=0.35)
        if ratio.low is not None and ratio.high is not None:
            axes.plot([ratio.low, ratio.high], [row, row], "-", lw=1.6, color=color)
        axes.plot([ratio.mean], [row], "o", ms=7, color=color, zorder=3)
    axes.axvline(1.0, color=INK, lw=0.8)
    axes.set_xscale("log")
    axes.set_xlim(*_limits([value for ratio, tasks in ratios.values() for value in (ratio.mean, *tasks)]))
    axes.set_yticks(range(len(ratios)), list(ratios), fontsize=8)
    axes.set_ylim(len(ratios) - 0.5, -0.5)
    axes.set_xlabel("regret as a multiple of SOC's, log scale: right of the line is worse")
    axes.set_title(f"SOC with one factor changed, and its rivals, d = {dim}", loc="left", fontsize=10)
    open_frame(axes, "x")
    save_figure(figure, path)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return limits of a logarithmic axis around values and 1; an interval that is longer leaves the picture."""
    return 0.4 * min(1.0, *values), 2.5 * max(1.0, *values)


MARKS = {
    "soc": ("o", LEARNED),
    "quad": ("s", "#6baed6"),
    "norm": ("D", "#31a354"),
    "ickan": ("^", "#e6862d"),
    "relu": ("v", "#7b4fa3"),
    "softplus": ("P", "#c45a9a"),
    "quadratic": ("|", INK),
    "constant": ("x", TRIVIAL),
}
"""Marker and colour of each method in `error_figure`, hollow with a setting; others are grey dots."""
SMALLEST_ERROR = 1e-9


def error_figure(tables: Sequence[Table], path: Path) -> None:
    """Draw the relative error of every method on every target, one panel for each dimension."""
    names = list(dict.fromkeys(task for table in tables for task in table.tasks))
    size = (3.2 * len(tables) + 1.7, 0.34 * len(names) + 1.5)
    figure, grid = plt.subplots(1, len(tables), figsize=size, layout="constrained", sharex=True, squeeze=False)
    methods: dict[str, Line2D] = {}
    for table, axes in zip(tables, grid.flat, strict=True):
        for line in (*table.trivial, *table.learned):
            base, setting = split(line.method)
            marker, color = MARKS.get(base, (".", TRIVIAL))
            points = [
                (max(score.mean, SMALLEST_ERROR), names.index(task))
                for task, score in zip(table.tasks, line.regrets, strict=True)
                if score.mean is not None
            ]
            style = {"marker": marker, "color": color, "ls": "", "ms": 9 if marker == "|" else 6, "mew": 1.5}
            style["mfc"] = "none" if setting else color
            axes.plot([x for x, _ in points], [row for _, row in points], **style, alpha=0.85)
            methods[line.method] = Line2D([], [], label=line.method, **style)
        axes.set_xscale("log")
        axes.set_yticks(range(len(names)), names if axes is grid[0, 0] else [""] * len(names))
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_title(f"d = {table.dim}", loc="left", fontsize=10)
        open_frame(axes, "both")
    figure.supxlabel("relative l2 test error, log scale: smaller is better", fontsize=9)
    places = {name: place for place, name in enumerate(MARKS)}
    shown = [methods[name] for name in sorted(methods, key=lambda name: places.get(split(name)[0], len(places)))]
    columns = min(len(shown), max(5, 4 * len(tables)))  # as many as fit beside each other
    columns = math.ceil(len(shown) / math.ceil(len(shown) / columns))
    figure.legend(handles=shown, fontsize=8, frameon=False, loc="outside upper center", ncols=columns)
    save_figure(figure, path)


def timing_figure(rows: Sequence[Row], path: Path) -> None:
    """Draw the time for a decision by every method, its worst gap beside it.

    One panel for each model and dimension, over the set that most rows are of.
    """
    shown = [row for row in rows if row["gap_max"] is not None]
    if not shown:
        return
    most = Counter(row["task"] for row in shown).most_common(1)[0][0]
    shown = [row for row in shown if row["task"] == most]
    panels = {(row["config"]["model"], row["dim"]) for row in shown}
    models, dims = sorted({model for model, _ in panels}), sorted({dim for _, dim in panels})
    names = list(dict.fromkeys(_timed(row) for row in reversed(shown)))
    size = (3.1 * len(dims) + 1.6, (0.24 * len(names) + 0.5) * len(models) + 0.5)
    figure, grid = plt.subplots(len(models), len(dims), figsize=size, layout="constrained", sharex=True, squeeze=False)
    for (model, dim), axes in zip(itertools.product(models, dims), grid.flat, strict=True):
        if (model, dim) not in panels:
            axes.set_visible(False)
        for row in (each for each in shown if (each["config"]["model"], each["dim"]) == (model, dim)):
            place, color = names.index(_timed(row)), LEARNED if _timed(row).startswith("soctk") else TRIVIAL
            axes.plot([row["decide_ms"]], [place], "o", ms=6, color=color)
            gap = f"gap {row['gap_max']:.0e}"
            style = {"textcoords": "offset points", "fontsize": 6.5, "color": INK}
            axes.annotate(gap, (row["decide_ms"], place), (7, -2.5), **style)
        axes.set_xscale("log")
        axes.margins(x=0.3)
        axes.set_yticks(range(len(names)), names if dim == dims[0] else [""] * len(names), fontsize=8)
        axes.set_title(f"{model} model, d = {dim}", loc="left", fontsize=9)
        open_frame(axes, "x")
    figure.supxlabel("milliseconds for a decision, one thread, log scale", fontsize=9)
    save_figure(figure, path)


def _timed(row: Row) -> str:
    batch, method = row["config"]["batch"], str(row["method"]).replace("_", " ")
    if method == "moreau":
        return "moreau" if batch == 1 else "moreau, best batch"
    names = {"newton": f"soctk, batch {batch}", "newton warm": f"soctk, batch {batch}, warm"}
    return {**names, "prepared": "soctk, prepared", "prepared warm": "soctk, prepared, warm"}.get(method, method)


def polyhedra_figure(races: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw milliseconds for a decision, by race and then by who decides; ours are called soctk."""
    if not any(races.values()):
        return
    figure, axes = plt.subplots(figsize=(7.2, 0.3 * len(races) + 1.3), layout="constrained")
    names = list(dict.fromkeys(name for race in races.values() for name in race))
    for marker, name in zip("o^sD", names, strict=False):
        points = [(race[name], place) for place, race in enumerate(reversed(races.values())) if name in race]
        color = LEARNED if name.startswith("soctk") else TRIVIAL
        axes.plot(
            *zip(*points, strict=True), marker, ms=6, color=color, mfc=color if marker in "o^" else "none", label=name
        )
    axes.set_xscale("log")
    axes.set_yticks(range(len(races)), list(races)[::-1])
    axes.set_xlabel("milliseconds for a decision, one thread, log scale")
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=len(names))
    open_frame(axes, "x")
    save_figure(figure, path)


def devices_figure(races: Mapping[str, Mapping[str, Mapping[int, float]]], path: Path) -> None:
    """Draw microseconds for a decision by batch size: a panel for each race, by title, a line for each label."""
    if not races:
        return
    columns = min(len(races), 2)
    rows, names = math.ceil(len(races) / columns), list(dict.fromkeys(name for race in races.values() for name in race))
    size = (3.8 * columns, 2.6 * rows + 0.2 * len(names))
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", sharex=True, squeeze=False)
    lines = {}
    for (title, race), axes in zip(races.items(), grid.flat, strict=False):
        for name, times in race.items():
            color, marker = CONTRAST if name.startswith("Moreau") else LEARNED, "^" if "GPU" in name else "o"
            dashes = "--" if "Layer" in name else ":" if "core" in name or "float32" in name else "-"
            style = {"color": color, "marker": marker, "linestyle": dashes, "ms": 4, "lw": 1}
            (lines[name],) = axes.plot(list(times), list(times.values()), label=name.replace("`", ""), **style)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(title, loc="left", fontsize=9)
        open_frame(axes, "y")
    for axes in grid.flat[len(races) :]:
        axes.set_visible(False)
    figure.supxlabel("batch size", fontsize=9)
    figure.supylabel("microseconds for a decision, log scale", fontsize=9)
    figure.legend(handles=list(lines.values()), fontsize=7, frameon=False, loc="outside upper center", ncols=columns)
    save_figure(figure, path)


SOURCES = {"closed form": LEARNED, "Clarabel": CONTRAST, "SCS": "#8a6d1f"}
"""The colour of each source of a diagnostic."""
SMALLEST = 1e-18


def equivalence_figure(
    largest: Mapping[str, Mapping[str, float]], diagnostics: Mapping[str, tuple[str, str]], path: Path
) -> None:
    """Draw the largest value of every diagnostic, given with its source and label, one mark for each kind of model."""
    names = list(diagnostics)[::-1]
    drawn, axes = plt.subplots(figsize=(7.6, 0.26 * len(names) + 1.2), layout="constrained")
    for marker, (kind, values) in zip("osD^", largest.items(), strict=False):
        for place, name in enumerate(names):
            color, value = SOURCES[diagnostics[name][0]], max(values[name], SMALLEST)
            axes.plot([value], [place], marker, ms=5, color=color, alpha=0.75)
        axes.plot([], [], marker, color=TRIVIAL, label=kind)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), [": ".join(diagnostics[name]) for name in names], fontsize=8)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_color(SOURCES[diagnostics[name][0]])
    axes.set_xlabel(f"largest over all trials, log scale; exact zeros at {SMALLEST:.0e}")
    axes.legend(fontsize=7.5, frameon=False, loc="upper right", title="weights, passthrough", title_fontsize=7.5)
    open_frame(axes, "both")
    save_figure(drawn, path)


def samples_figure(panels: Mapping[str, Mapping[str, Mapping[str, Mapping[int, float]]]], path: Path) -> None:
    """Draw regrets of every method by how much data there is: a line of panels by heading, a column by task."""
    columns = len(next(iter(panels.values())))
    size = (max(4.2, 2.2 * columns + 1.2), 3.0 * len(panels))
    drawn, grid = plt.subplots(len(panels), columns, figsize=size, layout="constrained", sharey="col", squeeze=False)
    for (heading, tasks), line in zip(panels.items(), grid, strict=True):
        for (task, curves), axes in zip(tasks.items(), line, strict=True):
            sizes = sorted({size for curve in curves.values() for size in curve})
            for (method, curve), style in zip(curves.items(), itertools.cycle(METHOD_STYLES), strict=False):
                if curve:
                    plain = {"marker": "o", "ls": ":", "color": TRIVIAL} if method in TRIVIAL_METHODS else style
                    axes.plot(*zip(*curve.items(), strict=True), ms=4, lw=1.2, label=method, **plain)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(sizes, list(map(str, sizes)), fontsize=7)
            axes.minorticks_off()
            axes.set_xlabel(heading, fontsize=8)
            axes.set_title(task, loc="left", fontsize=8.5)
            open_frame(axes, "both")
    for line in grid:
        line[0].set_ylabel("mean regret", fontsize=8)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    drawn.legend(handles, labels, fontsize=8, frameon=False, loc="outside upper right", ncols=len(labels))
    save_figure(drawn, path)


def scaling_figure(rows: Mapping[str, Sequence[Row]], ways: Mapping[str, str], path: Path) -> None:
    """Draw times by a model's sizes: one panel for each of `rows`, small sizes first, one line for each of `ways`.

    Both are given by heading or field and its name.
    """
    columns = 4
    lines = -(-len(rows) // columns)
    drawn, grid = plt.subplots(
        lines, columns, figsize=(11.2, 2.9 * lines + 0.4), layout="constrained", sharey=True, squeeze=False
    )
    for axes, (heading, own) in zip(grid.flat, rows.items(), strict=False):
        for (name, label), style, color in zip(ways.items(), STYLES, STYLE_COLORS, strict=True):
            points = [(row["config"]["size"], row[name]) for row in own if row[name] is not None]
            axes.plot(*zip(*points, strict=True), style, ms=4, lw=1.2, color=color, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes := [row["config"]["size"] for row in own], list(map(str, sizes)), fontsize=8)
        axes.minorticks_off()
        axes.set_title(heading, loc="left", fontsize=9)
        open_frame(axes, "both")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    for axes in list(grid.flat)[len(rows) :]:
        axes.set_axis_off()
    last = list(grid.flat)[-1]
    place = {"loc": "center"} if len(rows) < grid.size else {"loc": "best"}
    last.legend(handles, labels, fontsize=8.5, frameon=False, **place)
    drawn.supylabel("milliseconds for a value, log scale", fontsize=9)
    save_figure(drawn, path)


def rates_figure(
    absorption: Mapping[int, Sequence[Row]],
    trained: Mapping[int, Sequence[Row]],
    bound: Callable[..., float],
    path: Path,
) -> None:
    """Draw errors against pieces by dimension, of tangent planes and of trained networks, and their bounds as lines."""
    drawn, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained")
    for axes, groups in ((left, absorption), (right, trained)):
        for color, (dim, rows) in zip(SOURCES.values(), groups.items(), strict=False):
            counts, errors = np.array([(row["pieces"], row["sup_error"]) for row in rows]).T
            axes.plot(counts, errors, "o", ms=5, color=color, label=f"d = {dim}")
            span = np.geomspace(counts.min(), counts.max(), 50)
            upper = rows[-1]["bound"] * (span / counts[-1]) ** (-2 / dim)
            axes.plot(span, upper if axes is left else [bound(dim, n) for n in span], "-", lw=1, color=color, alpha=0.7)
        if groups:  # an empty panel has no logarithmic scale
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.legend(fontsize=7.5, frameon=False, loc="lower left")
        axes.set_xlabel("affine pieces N")
        axes.set_ylabel("largest error")
        open_frame(axes, "both")
    left.set_title("Tangent planes on a net; line: upper bound", loc="left", fontsize=10)
    right.set_title("ReLU-ICNNs on ||x||²/2; line: lower bound", loc="left", fontsize=10)
    save_figure(drawn, path)
