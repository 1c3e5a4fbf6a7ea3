"""Draw the pictures of docs/concepts.md, from functions and decisions of the library: python docs/images/concepts.py"""

from __future__ import annotations

import itertools
from pathlib import Path

import cvxpy as cp
import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

import soctk

BLUE, RED, GREEN, GREY = "#1f5fa8", "#c0392b", "#2e7d32", "#8a8a8a"
SIDE = soctk.Box(1, -1.0, 1.0)
GRID = np.linspace(-1, 1, 401)


def canvas(width: float = 6.4) -> tuple[Figure, mpl.axes.Axes]:
    """Return a figure and its axes, without the upper and the right edge."""
    figure = Figure(figsize=(width, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def example() -> soctk.ExactSurrogate:
    """Return f(x) = relu part + quadratic + norm in one variable."""
    x = cp.Variable(1)
    return soctk.from_cvxpy(0.8 * cp.pos(x[0] - 0.3) + 0.6 * cp.sum_squares(x + 0.4) + 0.5 * cp.norm2(x + 0.1), x)


def surrogate() -> Figure:
    """The terms and their sum."""
    figure, axes = canvas()
    terms = {
        "ReLU network: affine pieces": 0.8 * (GRID - 0.3).clip(0),
        "quadratic branch": 0.6 * (GRID + 0.4) ** 2,
        "conic branch: a norm, with its kink": 0.5 * np.abs(GRID + 0.1),
    }
    for (name, values), style in zip(terms.items(), ("-.", "--", ":"), strict=True):
        axes.plot(GRID, values, style, color=GREY, label=name)
    axes.plot(GRID, example()(GRID[:, None]).numpy(), color=BLUE, linewidth=2, label="their sum f")
    axes.set(xlabel="decision x", ylabel="value")
    axes.legend(frameon=False)
    return figure


def architecture() -> Figure:
    """What is computed from x, what the context moves, and what the lift makes of it."""
    figure = Figure(figsize=(7.6, 3.9), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 10), ylim=(0, 5.1))
    axes.set_axis_off()
    rows = {
        4.4: (GREY, ["b₀ + v'x"], "affine part", ""),
        3.2: (
            BLUE,
            ["z₁ = relu(W₁x + b₁)", "z₂ = relu(W₂x + U₂z₁ + b₂)", "c'z₂"],
            "backbone, U and c ≥ 0",
            "z ≥ its argument, z ≥ 0",
        ),
        2.0: (GREEN, ["q = Bx + e", "α/2 ‖q‖²"], "quadratic branch, α ≥ 0", "s ≥ ‖q‖²/2"),
        0.8: (RED, ["u = Ax + d", "λ ‖u‖"], "conic branch, λ ≥ 0", "t ≥ ‖u‖"),
    }
    arrow = {"arrowstyle": "->", "color": "#555555", "shrinkA": 0, "shrinkB": 0}

    def box(left: float, y: float, width: float, text: str, color: str) -> None:
        patch = mpl.patches.FancyBboxPatch(
            (left, y - 0.26), width, 0.52, boxstyle="round,pad=0.02", fc="white", ec=color, lw=1.3
        )
        axes.add_patch(patch)
        axes.text(left + width / 2, y, text, ha="center", va="center", fontsize=8.5)

    box(0.05, 2.6, 0.5, "x", "#333333")
    box(9.2, 2.6, 0.75, "f(x; θ)", "#333333")
    ends = {1: [(5.9, 1.1)], 2: [(1.2, 1.4), (5.9, 1.1)], 3: [(1.2, 1.75), (3.3, 2.3), (5.9, 1.1)]}
    for y, (color, texts, name, cone) in rows.items():
        places = ends[len(texts)]
        start = (0.6, 2.6) if cone else (0.3, y)  # to the affine part around the backbone
        axes.annotate("", (places[0][0], y), start, arrowprops=arrow)
        for text, (left, width) in zip(texts, places, strict=True):
            box(left, y, width, text, color)
        for (left, width), (after, _) in itertools.pairwise(places):
            axes.annotate("", (after - 0.04, y), (left + width + 0.04, y), arrowprops=arrow)
        left, width = places[-1]
        axes.annotate("", (9.15, 2.6), (left + width + 0.04, y), arrowprops=arrow)
        axes.text(places[0][0], y + 0.36, name, fontsize=8, color=color)
        axes.text(5.9, y - 0.55, f"lift: {cone}" if cone else "", fontsize=7.5, color=color)
    axes.plot([0.3, 0.3], [2.9, 4.4], color=arrow["color"], lw=1)
    axes.annotate("", (4.4, 2.92), (0.6, 2.6), arrowprops=arrow)
    axes.text(1.2, 0.02, "θ moves the coefficients, through links that keep c, α and λ non-negative", fontsize=8)
    return figure


def certificate() -> Figure:
    """Affine minorants by two dual points, and the gap of a decision."""
    figure, axes = canvas()
    model, grid = example(), torch.from_numpy(GRID[:, None])
    form = model.conic_form()
    axes.plot(GRID, form.value(grid).numpy(), color=BLUE, linewidth=2, label="f")
    for where, color in ((-0.5, GREY), (-0.15, GREEN)):
        dual = form.dual(torch.tensor([where], dtype=torch.float64))
        line = form.dual_value(dual, grid).numpy()
        axes.plot(GRID, line, "--", color=color, label=f"minorant by the dual point of x = {where}")
        axes.plot(GRID[line.argmin()], line.min(), "v", color=color)
    bound = line.min()
    decided = float(form.value(torch.tensor([0.1], dtype=torch.float64)))
    axes.plot(0.1, decided, "o", color=RED, label="a decision")
    axes.annotate("", (0.1, bound), (0.1, decided), arrowprops={"arrowstyle": "<->", "color": RED})
    axes.text(0.13, (bound + decided) / 2, "gap", color=RED, va="center")
    axes.axhline(bound, color=GREEN, linewidth=0.7)
    axes.text(-0.98, bound - 0.03, "lower bound", color=GREEN, va="top")
    axes.set(xlabel="decision x", ylabel="value", ylim=(-0.5, 1.8))
    axes.legend(frameon=False, loc="upper center")
    return figure


def regret() -> Figure:
    """A true cost, a learned one, and what the learned one's decision costs too much."""
    figure, axes = canvas()
    truth, points = example(), torch.linspace(-1, 1, 12, dtype=torch.float64)[None, :, None]
    data = soctk.ValueData(torch.zeros(1, 0, dtype=torch.float64), points, truth(points))
    learned = soctk.make_surrogate("quadratic", dim=1)
    soctk.fit(learned, data)
    best, decision = soctk.minimize(truth, SIDE), soctk.minimize(learned, SIDE)
    axes.plot(GRID, truth(GRID[:, None]).numpy(), color=BLUE, linewidth=2, label="true cost")
    axes.plot(GRID, learned(torch.from_numpy(GRID[:, None])).detach().numpy(), "--", color=GREY, label="learned cost")
    axes.plot(points.flatten(), truth(points).flatten(), "x", color=GREY, label="data")
    x_best, x_hat = float(best.x), float(decision.x)
    paid = float(truth(decision.x))
    axes.plot(x_best, float(best.value), "o", color=BLUE)
    axes.plot(x_hat, paid, "o", color=RED)
    axes.hlines([float(best.value), paid], -0.9, x_hat, color=[BLUE, RED], linewidth=0.7)
    axes.annotate("", (-0.8, float(best.value)), (-0.8, paid), arrowprops={"arrowstyle": "<->", "color": RED})
    axes.text(-0.77, (float(best.value) + paid) / 2, "regret", color=RED, va="center")
    axes.text(x_best, float(best.value) - 0.015, "x*", color=BLUE, ha="center", va="top")
    axes.text(x_hat, paid - 0.015, "x̂", color=RED, ha="center", va="top")
    axes.set(xlabel="decision x", ylabel="value", xlim=(-0.9, 0.5), ylim=(0, 0.5))
    axes.legend(frameon=False, loc="upper center")
    return figure


def prices() -> Figure:
    """The optimal value as a function of a right-hand side, and its slope today."""
    figure, axes = canvas()
    x = cp.Variable(2)
    cost = 0.5 * x[0] + cp.square(x[0]) + 1.6 * x[1] + 0.2 * cp.square(x[1]) + 2 * cp.pos(x[1] - 0.5)
    model, plants = soctk.from_cvxpy(cost, x), soctk.Polyhedron(2, 0.0, 1.0, E=[[1.0, 1.0]], f=[1.0])
    demand = np.linspace(0.05, 1.9, 75)
    values = soctk.minimize(model, plants.at(f=demand)).value.numpy()
    axes.plot(demand, values, color=BLUE, linewidth=2, label="optimal value")
    today = soctk.minimize(model, plants.at(f=[0.8]))
    price, value = float(today.prices.f), float(today.value)
    near = np.array([0.35, 1.35])
    axes.plot(near, value + price * (near - 0.8), "--", color=RED, label=f"slope today, the price: {price:.2f}")
    axes.plot(0.8, value, "o", color=RED)
    axes.set(xlabel="demand, a right-hand side", ylabel="least cost")
    axes.legend(frameon=False)
    return figure


PICTURES = {
    "surrogate": surrogate,
    "architecture": architecture,
    "certificate": certificate,
    "regret": regret,
    "prices": prices,
}


def draw(folder: Path) -> list[Path]:
    """Write every picture into a folder; the same functions give the same files."""
    written = []
    with mpl.rc_context({"svg.hashsalt": "soctk", "font.size": 9}):
        for name, picture in PICTURES.items():
            written.append(folder / f"concepts-{name}.svg")
            picture().savefig(written[-1], metadata={"Date": None})
    return written


if __name__ == "__main__":
    draw(Path(__file__).parent)
