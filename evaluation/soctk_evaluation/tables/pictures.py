"""Pictures of decisions: trajectories and faces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from soctk_evaluation.harness.names import STRUCTURED
from soctk_evaluation.tables.figures import open_frame, save_figure

SIGNAL, TRUTH, OWN = "#8a8a8a", "#333333", "#1f6fb4"


def _kept(folder: Path) -> dict[str, np.lib.npyio.NpzFile]:
    """Return the kept decisions of the recipe as it comes, by method."""
    paths = {name: folder / f"{name}-structured-0.npz" for name in STRUCTURED}
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
            open_frame(axes)
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
