"""Draw the picture of docs/public-log.md from what the code on that page finds: python docs/images/public_log.py"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
BLUE, RED, GREEN, GREY = "#1f5fa8", "#c0392b", "#2e7d32", "#8a8a8a"
RANGE = (80.0, 125.0)
TENTHS = 10


def of_the_page() -> dict[str, Any]:
    """Run the page's code and return its variables."""
    found: dict[str, Any] = {}
    page = HERE.parent / "public-log.md"
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, page.name, "exec"), found)
    return found


def mean_cost(model: Any, context: torch.Tensor, x: np.ndarray) -> np.ndarray:
    """Return the model's cost of each decision, (K, n), on average over the contexts (N, p)."""
    points = torch.as_tensor(x).expand(len(context), *x.shape)
    with torch.no_grad():
        return model(points, context[:, None].expand(-1, len(x), -1)).mean(dim=0).numpy()


def route(axes: Axes, page: dict[str, Any], name: str) -> None:
    """Revenue of the logged decisions by tenths, the model's mean, and where log and plan decide."""
    model, found, plan = page["routes"][name]
    later = page["later"]
    context = torch.as_tensor(later[page["known"]].to_numpy(dtype=float, copy=True))
    tenth = pd.qcut(later[name], TENTHS, labels=False)
    mean, error = (-later["cost"]).groupby(tenth).mean(), later["cost"].groupby(tenth).sem()
    at = later[name].groupby(tenth).mean()
    axes.errorbar(at, mean, 2 * error, fmt="o", color=GREY, markersize=4, label="the log, by tenths")
    grid = np.linspace(*RANGE, 46)
    axes.plot(grid, -mean_cost(model, context, grid[:, None]), color=BLUE, label="the model's mean")
    axes.axhline(-found.promised, color=BLUE, linestyle=":", label="promised by its plan")
    shares = axes.twinx()
    bins = np.linspace(RANGE[0] - 7.5, RANGE[1] + 22.5, 16)  # each end of the box in the middle of one
    for values, color in ((later[name].to_numpy(), GREY), (plan.x.flatten().numpy(), BLUE)):
        shares.hist(values, bins, weights=np.full(len(values), 1 / len(values)), color=color, alpha=0.35)
    shares.set(ylim=(0, 4), yticks=[])
    shares.spines[:].set_visible(False)
    axes.set(xlabel=f"{name.removesuffix(' %')}, % of last year's", xlim=(bins[0], bins[-1]), ylim=(85, 135))
    axes.set_title(str(found.verdict).split(":")[0], fontsize=8, loc="left")


def families(axes: Axes, page: dict[str, Any]) -> None:
    """The other half's profit at each pair of prices, and the model's."""
    model, found, plan = page["families"]
    other = page["apple"][~page["half"]]
    context = torch.as_tensor(other[["hhsize"]].to_numpy(dtype=float, copy=True))
    for price, color in zip(sorted(other["regprc"].unique()), (GREY, GREEN, RED), strict=True):
        groups = other.loc[other["regprc"] == price].groupby("ecoprc")["cost"]
        where = groups.mean().index.to_numpy(dtype=float)
        axes.errorbar(where, -groups.mean(), 2 * groups.sem(), fmt="o", color=color, markersize=4)
        grid = np.linspace(where.min(), where.max(), 30)
        x = np.stack([grid, np.full_like(grid, price)], axis=1)
        axes.plot(grid, -mean_cost(model, context, x), color=color, label=f"${price:.2f} without a label")
    axes.plot(float(plan.x[:, 0].mean()), -found.promised, "*", color=BLUE, markersize=10, label="plan and promise")
    axes.set(xlabel="price with a label, $", ylabel="profit, $ a family", ylim=(0, 5))
    axes.set_title(str(found.verdict).split(":")[0], fontsize=8, loc="left")
    axes.legend(frameon=False, fontsize=7, loc="upper left")


def picture() -> Figure:
    """The three logs."""
    page = of_the_page()
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    fares, passengers, apples = figure.subplots(1, 3)
    route(fares, page, "fare %")
    route(passengers, page, "passengers %")
    families(apples, page)
    fares.set_ylabel("revenue, % of last year's")
    fares.legend(frameon=False, fontsize=7, loc="upper left")
    for axes in (fares, passengers, apples):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw(folder: Path) -> list[Path]:
    """Write the picture into a folder and return its path."""
    path = folder / "public-log.svg"
    with mpl.rc_context({"svg.hashsalt": "soctk", "font.size": 9}):
        picture().savefig(path, metadata={"Date": None})
    return [path]


if __name__ == "__main__":
    draw(HERE)
