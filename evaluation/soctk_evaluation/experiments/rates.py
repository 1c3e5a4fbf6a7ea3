"""How many affine pieces curvature costs: two rates of the theory beside what is measured.

Absorption (paper, structural absorption theorem). f = g + h on [-1, 1]^d, g a quadratic plus a norm, h smooth and
convex. A SOC-ICNN holds g exactly and replaces h by the maximum of its tangent planes at the points of a net; with N
points the largest error is of order N^(-2/d). The constant: where the Hessian of h is at most M, a tangent plane is
within M r^2 / 2 of h at distance r of its point; on the centres of n^d = N equal cubes no point is further than
r = sqrt(d) / n, so that

    error <= M d / 2 N^(-2/d).

h is a log-sum-exp of a_i'x + b_i, whose Hessian along u is a variance of a_i'u, at most (range / 2)^2 (Popoviciu 1935):
M = max ||a_i - a_j||^2 / 4.

Pieces (paper, lower bound for piecewise affine functions). On a piece where an affine function is within eps of a
mu-strongly convex f, points x, y satisfy mu ||x - y||^2 / 8 <= 2 eps, so the piece's diameter is at most
4 sqrt(eps / mu), its volume at most omega_d 2^d (eps / mu)^(d/2), and N pieces that cover Omega have

    eps >= mu (vol(Omega) / (omega_d 2^d N))^(2/d).

Trained ReLU-ICNNs of growing width stand beside it, their pieces counted exactly (`soctk.affine_pieces`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import soctk
from soctk import Box, FitConfig, ReLUICNN, ValueData
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.tables.rates import write_rates

NETS = {1: (2, 4, 8, 16, 32, 64, 128), 2: (2, 3, 4, 6, 8, 12, 16), 3: (2, 3, 4, 5, 6, 8, 10, 12)}
"""Points of the net along each axis, by dimension."""
WIDTHS: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((2,), (4,), (8,), (16,), (4, 4)),
    2: ((2,), (4,), (8,), (16,), (32,), (4, 4), (8, 8)),
    3: ((2,), (4,), (8,), (16,), (4, 4), (8, 8)),
}
"""Hidden layers of the trained networks, by dimension."""
STRONG_CONVEXITY = 1.0
GRID = {1: 4001, 2: 301, 3: 61}
"""Points along each axis on which the largest error is looked for."""
MEASURED = ("pieces", "sup_error", "bound")
LIMIT = 20_000


def rate_cells(asked: Any = None, seed: int = 0) -> list[Cell]:
    """Return the cells of both experiments, whatever is asked for."""
    nets = [("absorption", dim, "soc", {"side": side}) for dim, sides in NETS.items() for side in sides]
    networks = [("pieces", dim, "relu", {"hidden": widths}) for dim, sizes in WIDTHS.items() for widths in sizes]
    return [
        Cell("rates", task, dim, method, seed, "values", make_config(config))
        for task, dim, method, config in (*reversed(networks), *nets)
    ]


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Return the number of affine pieces, the largest error on a fine grid, and its bound.

    That is the largest error that tangent planes can have, and the least that so many pieces can.
    """
    torch.set_num_threads(1)
    config = dict(cell.config)
    if cell.task == "absorption":
        return absorption(cell.dim, config["side"], cell.seed)
    return trained_pieces(cell.dim, config["hidden"], cell.seed)


def absorption(dim: int, side: int, seed: int) -> dict[str, Any]:
    """Replace the residual by its tangent planes at a net of side^dim points."""
    residual, exact = Residual(dim, seed), _structured_part(dim, seed)
    slopes, heights = soctk.tangent_planes(residual, _grid(dim, side, cells=True))
    absorbed = soctk.from_max_affine(slopes, heights)
    x = _grid(dim, GRID[dim])
    with torch.no_grad():
        model = exact(x) + torch.cat([absorbed(part) for part in x.split(4096)])
        error = float((exact(x) + residual(x) - model).abs().max())
    return {"pieces": side**dim, "sup_error": error, "bound": residual.curvature * dim / 2 * side**-2.0}


def trained_pieces(dim: int, hidden: Sequence[int], seed: int) -> dict[str, Any]:
    """Fit a ReLU-ICNN to mu/2 ||x||^2 and count its pieces."""
    box, generator = Box(dim, -1.0, 1.0), torch.Generator().manual_seed(seed)
    x = box.sample((1, 4096), generator)
    held_out = box.sample((1, 1024), generator)
    model = ReLUICNN(dim, hidden=tuple(hidden), seed=seed)
    empty = torch.zeros(1, 0, dtype=torch.float64)
    data, validation = (ValueData(empty, points, _bowl(points)) for points in (x, held_out))
    soctk.fit(model, data, FitConfig(starts=4, epochs=40, batch_rows=256, lbfgs_iterations=1000), validation=validation)
    pieces = soctk.affine_pieces(model.conic_form().detach(), box, limit=LIMIT)[1].numel()
    grid = _grid(dim, GRID[dim])
    with torch.no_grad():
        error = float((model(grid) - _bowl(grid)).abs().max())
    return {"pieces": pieces, "sup_error": error, "bound": least_error(dim, pieces)}


def least_error(dim: int, pieces: float, mu: float = STRONG_CONVEXITY) -> float:
    """Return the paper's lower bound of the largest error of `pieces` affine pieces on [-1, 1]^dim."""
    ball = math.pi ** (dim / 2) / math.gamma(dim / 2 + 1)
    return mu * (2.0**dim / (ball * 2.0**dim * pieces)) ** (2 / dim)


def _bowl(x: Tensor) -> Tensor:
    return 0.5 * STRONG_CONVEXITY * x.square().sum(dim=-1)


def _structured_part(dim: int, seed: int) -> soctk.ExactSurrogate:
    """Return a quadratic plus a norm whose apex lies inside the box."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    slope = torch.randn(dim, generator=generator, dtype=torch.float64)
    identity, shift = torch.eye(dim, dtype=torch.float64), torch.full((dim,), 0.3, dtype=torch.float64)
    return soctk.from_quadratic(root.mT @ root / dim, slope, 0.5, norms=[(1.0, identity, shift)])


class Residual:
    """log sum exp of 2 dim + 1 affine functions: smooth, convex, curved everywhere."""

    def __init__(self, dim: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed + 1)
        self.slopes = 2 * torch.randn(2 * dim + 1, dim, generator=generator, dtype=torch.float64)
        self.heights = torch.randn(2 * dim + 1, generator=generator, dtype=torch.float64)

    @property
    def curvature(self) -> float:
        """M, which no eigenvalue of the Hessian exceeds."""
        return float(torch.cdist(self.slopes, self.slopes).square().max()) / 4

    def __call__(self, x: Tensor) -> Tensor:
        return torch.logsumexp(x @ self.slopes.mT + self.heights, dim=-1)


def _grid(dim: int, side: int, *, cells: bool = False) -> Tensor:
    """Return the points of a regular grid on [-1, 1]^dim, (side^dim, dim): corners, or the centres of its cells."""
    axis = torch.linspace(-1, 1, side, dtype=torch.float64)
    if cells:
        axis = (2 * torch.arange(side, dtype=torch.float64) + 1) / side - 1
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)


NEEDED, WRITE = ("pieces", "sup_error", "bound"), partial(write_rates, bound=least_error)
EXPERIMENT = Experiment(
    "rates",
    rate_cells,
    run_cell,
    MEASURED,
    WRITE,
    needed=NEEDED,
    code=lambda cell: ("soctk.exports.pieces",),
    pages=pages("rates.md", "rates.svg"),
)
