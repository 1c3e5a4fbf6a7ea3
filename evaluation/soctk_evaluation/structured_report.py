"""Tables and pictures of the structured experiments: faces restored, trajectories smoothed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from soctk_evaluation.figures import save_figure
from soctk_evaluation.store import Row
from soctk_evaluation.structured import LEARNED, TRIVIAL, decision_folder

PAPER = {
    "smoothing": {
        "relu": (0.1920, 0.4515, 0.5458),
        "softplus": (0.2359, 0.4150, 0.5528),
        "quad": (0.0914, 0.0697, 0.3094),
        "norm": (0.1154, 0.0903, 0.3708),
        "soc": (0.0671, 0.0524, 0.2810),
    },
    "restoration": {
        "relu": (0.0492, 0.0254, 0.2497),
        "softplus": (0.4434, 0.0821, 0.4736),
        "quad": (0.0474, 0.0111, 0.1633),
        "norm": (0.0473, 0.0074, 0.1377),
        "soc": (0.0461, 0.0041, 0.1303),
    },
}
"""The paper's relative error, regret and decision error."""
TITLES = {
    "structured": "The recipe as it comes (structured start where there are branches)",
    "plain": "One plain recipe for all five models (AdamW, then L-BFGS, from random weights)",
}
INTRODUCTION = {
    "smoothing": "Reference trajectories of 40 steps in four dimensions are smoothed over [-1, 1]^160; the context is "
    "the reference, the models are recurrent (`soctk.RecurrentSOCICNN`).",
    "restoration": "Photographs of faces, blurred, noisy and with holes, are restored over [0, 1]^n; the context is "
    "the observation and its mask, the models are convolutional (`soctk.ConvSOCICNN`).",
}
PAGE = """# {title}

Measured by `soctk {experiment}` on {machine}; the rows are in
[`evaluation/results/{experiment}.jsonl`](../evaluation/results/{experiment}.jsonl), and
`soctk report evaluation/results/{experiment}.jsonl --markdown docs/{experiment}.md --figure
docs/images/{experiment}.{kind}` writes this page.

{introduction} Here: {data}.
Regret is the true energy's, against optima certified to a gap of {reference:.0e} of the energy's spread ({spread:.3g});
decision error is the root mean square of x̂ − x*. Trivial decisions are in italics: a model that loses to one learned
nothing worth deciding with. Every model is minimised to a certified gap (the largest is in the table), not for some
steps from the data as in the paper: where a learned minimum is wrong it shows, and a smaller relative error can go with
a larger regret than the paper's.

![Decisions](images/{experiment}.{kind})

"""
SIGNAL, TRUTH, OWN = "#8a8a8a", "#333333", "#1f6fb4"


def write_structured(
    rows: Sequence[Row],
    expected: int = 0,
    *,
    markdown: Path | None,
    figure: Path | None,
    folder: Path,
) -> str:
    """Write the page and the picture asked for; return the tables in Markdown.

    Args:
        rows: of one experiment. The problem that most models have rows of comes first, then the larger one.
        expected: seeds there should be; as many as there are of any method by default.
        markdown: where to write the page.
        figure: where to draw the decisions.
        folder: where the kept decisions are.
    """
    done = [row for row in rows if row["regret_mean"] is not None]
    if not done:
        return "no results yet"
    experiment = done[0]["experiment"]
    done, *others = _problems(done)
    tables = _tables(experiment, done, expected)
    for rest in others:
        tables += f"\n\nThe same with {_data(_example(rest))}:\n\n{_tables(experiment, rest, expected)}"
    if markdown is not None:
        head = PAGE.format(
            title={"smoothing": "Trajectories smoothed", "restoration": "Faces restored"}[experiment],
            experiment=experiment,
            kind="svg" if figure is None else figure.suffix.removeprefix("."),
            machine=rows[-1]["machine"],
            introduction=INTRODUCTION[experiment],
            data=_data(_example(done)),
            reference=max(row["reference_gap"] for row in done),
            spread=done[0]["spread"],
        )
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(head + tables, encoding="utf-8")
    if figure is not None:
        draw = trajectory_figure if experiment == "smoothing" else face_figure
        draw(folder / decision_folder(done[0]["config"]), figure)
    return tables


def _problems(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each size of the data."""
    found: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["dim"], row["config"]["train"]), []).append(row)

    def rank(size: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        return len({row["method"] for row in found[size] if row["method"] in LEARNED}), size

    return [found[size] for size in sorted(found, key=rank, reverse=True)]


def _tables(experiment: str, rows: Sequence[Row], expected: int) -> str:
    """Return a table for each recipe."""
    expected = expected or len({row["seed"] for row in rows})
    return "\n\n".join(
        f"## {TITLES[protocol]}\n\n{structured_table(experiment, rows, protocol, expected)}"
        for protocol in TITLES
        if any(row["protocol"] == protocol for row in rows)
    )


def _example(rows: Sequence[Row]) -> Row:
    """Return a row of a learned model, where there is one."""
    return next((row for row in rows if row["method"] in LEARNED), rows[0])


def _data(row: Row) -> str:
    """Return what the rows were learned from, in words."""
    config = row["config"]
    parts = f"{config['train']} training, {config['validation']} validation and {config['test']} test instances"
    images = f", {config['size']} × {config['size']} pixels ({config['images']})" if "images" in config else ""
    starts = f", {config['fit.starts']} start(s) of each fit" if "fit.starts" in config else ""
    return f"{parts} with {config['candidates']} candidates each{images}{starts}"


def structured_table(experiment: str, rows: Sequence[Row], protocol: str, expected: int) -> str:
    """Return one recipe's table, the trivial rows below the learned ones, the best learned regret in bold."""
    lines = [
        "| method | relative error | regret | decision error | gap max | params | fit s | decide ms "
        "| paper: rel. error / regret / error |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    groups = {name: [r for r in rows if r["method"] == name and r["protocol"] == protocol] for name in LEARNED}
    learned = {name: group for name, group in groups.items() if group}
    best = min(learned, key=lambda name: mean(row["regret_mean"] for row in learned[name]), default=None)
    for name, group in learned.items():
        lines.append(_line(name, group, expected, PAPER[experiment].get(name), bold=name == best))
    for name in TRIVIAL[experiment]:
        group = [row for row in rows if row["method"] == name]
        if group:
            lines.append(_line(f"*{name.replace('_', ' ')}*", group, expected, None, bold=False))
    return "\n".join(lines) + "\n"


def _line(name: str, group: Sequence[Row], expected: int, paper: tuple[float, ...] | None, *, bold: bool) -> str:
    def average(field: str, form: str) -> str:
        values = [row[field] for row in group if row[field] is not None]
        return format(mean(values), form) if values else "–"

    spread = mean(row["regret_stderr"] for row in group) / len(group) ** 0.5
    regret = f"{mean(row['regret_mean'] for row in group):.2e} ± {spread:.0e}"
    seeds = "" if len(group) >= expected else f" ({len(group)} of {expected} seeds)"
    gaps = [row["gap_max"] for row in group if row["gap_max"] is not None]
    counts = [row["params"] for row in group if row["params"] is not None]
    cells = [
        name + seeds,
        average("relative_error", ".2e"),
        f"**{regret}**" if bold else regret,
        average("decision_error", ".2e"),
        f"{max(gaps):.0e}" if gaps else "–",
        f"{median(counts):.0f}" if counts else "–",
        average("fit_seconds", ".0f"),
        average("decide_ms", ".3g"),
        " / ".join(f"{value:g}" for value in paper) if paper else "",
    ]
    return f"| {' | '.join(cells)} |"


def _kept(folder: Path) -> dict[str, np.lib.npyio.NpzFile]:
    """Return the kept decisions of the recipe as it comes, by method."""
    paths = {name: folder / f"{name}-structured-0.npz" for name in LEARNED}
    return {name: np.load(path) for name, path in paths.items() if path.is_file()}


def trajectory_figure(folder: Path, path: Path) -> None:
    """Draw one channel of a test trajectory: the reference, the optimum, every model's decision and its error."""
    kept = _kept(folder)
    if not kept:
        return
    drawn, grid = plt.subplots(
        2, len(kept), figsize=(2.5 * len(kept), 4.0), sharex=True, sharey="row", layout="constrained", squeeze=False
    )
    for column, (name, data) in enumerate(kept.items()):
        steps = 40 if data["x"].shape[1] % 40 == 0 else data["x"].shape[1]
        channels = [data[key][0].reshape(steps, -1)[:, 0] for key in ("context", "best", "x")]
        above, below = grid[:, column]
        above.plot(channels[0], color=SIGNAL, lw=0.9, label="reference")
        above.plot(channels[1], color=TRUTH, lw=2.2, alpha=0.5, label="optimum")
        above.plot(channels[2], color=OWN, lw=1.0, label="decision")
        below.axhline(0.0, color=TRUTH, lw=0.6)
        below.plot(channels[2] - channels[1], color=OWN, lw=1.0)
        above.set_title(f"RNN-{_title(name)}", loc="left", fontsize=10)
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
        below.set_xlabel("step", fontsize=9)
    grid[0, 0].legend(fontsize=7, frameon=False, loc="best")
    grid[0, 0].set_ylabel("first channel", fontsize=9)
    grid[1, 0].set_ylabel("decision − optimum", fontsize=9)
    save_figure(drawn, path, dpi=130)


def face_figure(folder: Path, path: Path) -> None:
    """Draw test faces: clean, observed, the optimum, every model's decision and how it differs from the optimum."""
    kept = _kept(folder)
    if not kept:
        return
    first = next(iter(kept.values()))
    count, pixels = first["x"].shape
    size = round(pixels**0.5)
    columns = 3 + len(kept)
    drawn, grid = plt.subplots(
        2 * count, columns, figsize=(1.15 * columns, 2.3 * count + 0.4), layout="constrained", squeeze=False
    )
    for row in range(count):
        above, below = grid[2 * row], grid[2 * row + 1]
        observed, mask = first["context"][row][:pixels], first["context"][row][pixels:]
        seen = np.where(mask > 0, observed, np.nan)
        shown = {"clean": first["clean"][row], "observed": seen, "optimum": first["best"][row]}
        for axes, (title, image) in zip(above, shown.items(), strict=False):
            _image(axes, image, size, title if row == 0 else "")
        for axes, under, (name, data) in zip(above[3:], below[3:], kept.items(), strict=True):
            _image(axes, data["x"][row], size, f"Conv-{_title(name)}" if row == 0 else "")
            difference = (data["x"][row] - first["best"][row]).reshape(size, size)
            under.imshow(difference, cmap="RdBu_r", vmin=-0.25, vmax=0.25)
            under.set_axis_off()
        for axes in below[:3]:
            axes.set_axis_off()
        label: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 7, "transform": below[2].transAxes}
        below[2].text(0.98, 0.5, "decision\n− optimum\n(±0.25)", **label)
    save_figure(drawn, path, dpi=130)


def _title(name: str) -> str:
    return {"relu": "ReLU", "softplus": "Softplus", "quad": "Quad", "norm": "Norm", "soc": "SOC"}[name]


def _image(axes: Axes, image: np.ndarray, size: int, title: str) -> None:
    axes.set_facecolor("#c0392b")
    axes.imshow(image.reshape(size, size), cmap="gray", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=8)
