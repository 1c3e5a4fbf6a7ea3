"""An assessment as one HTML page with pictures that needs no other file, no network and no scripts."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soctk import Assessment, Verdict
from soctk_evaluation.tables.figures import open_frame
from soctk_evaluation.tables.html import page

OWN, DATA, BAND = "#1f6fb4", "#8a8a8a", "#333333"
BINS, POINTS = 12, 1500
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "soctk", "font.family": "sans-serif", "font.size": 9}


@dataclass(frozen=True)
class Picture:
    """A picture and what it shows."""

    title: str
    text: str
    svg: str


def to_html(found: Assessment, x_names: Sequence[str], value_name: str, model_name: str) -> str:
    """Return an assessment as a page.

    Args:
        found: the assessment.
        x_names: of the decision's coordinates.
        value_name: of the value.
        model_name: of the model.
    """
    pictures = [
        Picture("Calibration", CALIBRATION, _drawn(lambda: _calibration(found, value_name))),
        Picture("Slices", SLICES, _drawn(lambda: _slices(found, x_names, value_name))),
        Picture("Residuals", RESIDUALS, _drawn(lambda: _residuals(found, value_name))),
    ]
    if not found.withheld:
        pictures.insert(1, Picture("At the minimum", MINIMUM, _drawn(lambda: _minimum(found, value_name))))
    good = found.verdict == Verdict.GOOD
    shown = {"a": found, "good": good, "pictures": pictures, "model": model_name, "value": value_name}
    return page("tables/assets/assessment.html.jinja", **shown)


CALIBRATION = (
    "Values that were observed against those that the model predicts, row by row, and the means of equally many rows "
    "with two standard errors. On the line the model is right on average."
)
MINIMUM = (
    "What the model promises at its decision in a context, and what is expected there, with 90 %. Below the line the "
    "decision is expected to cost more than promised."
)
SLICES = (
    "The model's mean value along each coordinate from its decision (0), and there the means of the rows' residuals "
    "added to it, with two standard errors: where logged decisions tell how the value rises, and where there are none."
)
RESIDUALS = (
    "Observed less predicted against the distance of the logged decision from the model's, in standard deviations of "
    "the log. A mean off zero on the left is an error where the model decides."
)


def _drawn(draw: Callable[[], Figure]) -> str:
    """Return a picture as SVG that can stand in a page."""
    with plt.rc_context(STYLE):
        figure = draw()
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        plt.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _means(axes: Axes, x: np.ndarray, y: np.ndarray, at: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
    """Draw means of equally many points with two standard errors; `at` maps x and mean to a height."""
    for part in np.array_split(np.argsort(x, kind="stable"), min(BINS, max(1, len(x) // 8))):
        here, height = x[part].mean(), y[part].mean()
        error = 2 * y[part].std() / np.sqrt(len(part))
        base = 0.0 if at is None else float(at(here))
        axes.errorbar(here, base + height, error, fmt="o", ms=4, color=BAND, lw=1.2, capsize=2)


def _some(count: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(count)[:POINTS]


def _calibration(found: Assessment, value: str) -> Figure:
    shown, few = found.shown, _some(found.rows)
    figure, axes = plt.subplots(figsize=(5.2, 4.2), layout="constrained")
    axes.plot(shown.predicted[few], shown.value[few], ".", ms=3, color=DATA, alpha=0.4, mew=0)
    axes.axline((found.promised, found.promised), slope=1, color=OWN, lw=1)
    _means(axes, shown.predicted, shown.value)
    axes.set(xlabel=f"predicted {value}", ylabel=f"observed {value}")
    open_frame(axes, "both")
    return figure


def _minimum(found: Assessment, value: str) -> Figure:
    shown = found.shown
    figure, axes = plt.subplots(figsize=(5.2, 4.2), layout="constrained")
    axes.errorbar(
        shown.expected, shown.promised, xerr=1.645 * shown.error, fmt=".", ms=4, color=OWN, ecolor="#b9cfe4", lw=0.6
    )
    axes.axline((found.promised, found.promised), slope=1, color=BAND, lw=1)
    axes.set(xlabel=f"expected {value}", ylabel=f"promised {value}")
    open_frame(axes, "both")
    return figure


def _slices(found: Assessment, names: Sequence[str], value: str) -> Figure:
    shown = found.shown
    count = len(shown.steps)
    columns = min(count, 4)
    figure, grid = plt.subplots(
        -(-count // columns),
        columns,
        figsize=(2.6 * columns + 0.6, 2.4 * -(-count // columns) + 0.2),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    residual = shown.value - shown.predicted
    for k, axes in enumerate(grid.flat):
        if k >= count:
            axes.set_visible(False)
            continue
        steps, heights = shown.steps[k], shown.slices[k]
        offset = shown.x[:, k] - shown.decisions[:, k]
        within = np.abs(offset) <= steps[-1]
        axes.plot(steps, heights, color=OWN, lw=1.6)
        if within.any():
            _means(axes, offset[within], residual[within], lambda x, s=steps, h=heights: np.interp(x, s, h))
        axes.axvline(0.0, color=DATA, lw=0.7)
        axes.set_xlabel(f"{names[k]} − decision")
        open_frame(axes, "both")
    for axes in grid[:, 0]:
        axes.set_ylabel(value)
    return figure


def _residuals(found: Assessment, value: str) -> Figure:
    shown, few = found.shown, _some(found.rows)
    residual = shown.value - shown.predicted
    figure, axes = plt.subplots(figsize=(5.2, 4.2), layout="constrained")
    axes.plot(shown.distance[few], residual[few], ".", ms=3, color=DATA, alpha=0.4, mew=0)
    axes.axhspan(-found.noise.deviation, found.noise.deviation, color=OWN, alpha=0.12, lw=0, label="noise floor")
    axes.axhline(0.0, color=OWN, lw=1)
    _means(axes, shown.distance, residual)
    axes.set(xlabel="distance from the model's decision", ylabel=f"observed − predicted {value}")
    axes.set_xlim(left=0.0)
    axes.legend(frameon=False, fontsize=8)
    open_frame(axes, "both")
    return figure
