"""The six parametric decision tasks of the paper (Experiment 3).

    f_theta(x) = a/2 sum_i w_i (x_i - m_i(theta))^2 + c(theta)'x + f_struct(x; theta),  theta in R^8

"randn(r, c, s)" of the paper's generator is s / sqrt(c) times standard normals. Every family draws its
constants from one stream seeded by (name, dim, seed); its parts are functions theta -> terms.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from soctk import Box, Budget, ConicForm, FeasibleSet, Simplex
from soctk.maps.linear import DenseMap
from soctk.terms import Huber, Logistic, LogSumExp, Norms, Quadratic, Term
from soctk_tasks.task import Task

CONTEXT_DIM = 8
HUBER_DELTA = 0.35
BUDGET_SHARE = 0.3

Terms = Callable[[Tensor], list[Term]]


@dataclass(frozen=True)
class Geometry:
    """What the set decides: the ranges of m0, M and C, and of the SOCP families' lambda."""

    make_set: Callable[[int], FeasibleSet]
    center_range: tuple[float, float]
    center_slope: float
    cost_slope: float
    cone_slope: float
    cone_range: tuple[float, float]


GEOMETRIES = {
    "simplex": Geometry(Simplex, (0.0, 1.0), 0.08, 0.20, 0.20, (0.20, 0.60)),
    "box": Geometry(Box, (0.20, 0.80), 0.25, 0.25, 0.25, (0.25, 0.80)),
    "budget": Geometry(lambda d: Budget(d, total=BUDGET_SHARE * d), (0.10, 0.55), 0.20, 0.20, 0.20, (0.20, 0.70)),
}


class Stream:
    """Draws constants as float64 tensors, in a fixed order."""

    def __init__(self, name: str, dim: int, seed: int) -> None:
        self._rng = np.random.default_rng([zlib.crc32(name.encode()), dim, seed])

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return uniform numbers on [low, high]."""
        return torch.from_numpy(self._rng.uniform(low, high, size=shape))

    def randn(self, rows: int, columns: int, scale: float) -> Tensor:
        """Return scale / sqrt(columns) times standard normals."""
        return torch.from_numpy(self._rng.standard_normal((rows, columns))) * (scale / columns**0.5)

    def affine(self, rows: int, slope: float, low: float, high: float) -> Callable[[Tensor], Tensor]:
        """Return theta -> U[low, high] + randn(rows, 8, slope) theta, (N, 8) -> (N, 1, rows)."""
        constant = self.uniform(low, high, rows)
        matrix = self.randn(rows, CONTEXT_DIM, slope)
        return lambda theta: (theta @ matrix.mT + constant).unsqueeze(1)


def base(stream: Stream, dim: int, kind: str, strength: float) -> Callable[[Tensor], tuple[Tensor, list[Term]]]:
    """Return theta -> (c(theta), [the separable quadratic])."""
    geometry = GEOMETRIES[kind]
    weights = strength * stream.uniform(0.8, 1.6, dim)
    center = stream.uniform(*geometry.center_range, dim)
    if kind == "simplex":
        center = center / center.sum()
    center_slope = stream.randn(dim, CONTEXT_DIM, geometry.center_slope)
    cost = stream.affine(dim, geometry.cost_slope, -0.3, 0.3)
    identity = DenseMap(torch.eye(dim, dtype=torch.float64).unsqueeze(0))

    def at(theta: Tensor) -> tuple[Tensor, list[Term]]:
        m = theta @ center_slope.mT + center
        if kind == "simplex":
            m = softplus(m)
            m = m / m.sum(dim=-1, keepdim=True)
        else:
            m = m.clamp(0.0, 1.0)
        return cost(theta).clamp(-2.0, 2.0), [Quadratic(identity, -m.unsqueeze(1), weights.reshape(1, 1, -1))]

    return at


def cones(stream: Stream, dim: int, kind: str, sizes: tuple[int, ...]) -> Terms:
    """Return lambda_j ||A_j x + d_j(theta)|| for each cone."""
    geometry = GEOMETRIES[kind]
    level = stream.affine(len(sizes), geometry.cone_slope, *geometry.cone_range)
    maps = [DenseMap(stream.randn(size, dim, 1.0).unsqueeze(0)) for size in sizes]
    offsets = [stream.affine(size, 0.25, -0.3, 0.3) for size in sizes]
    kappa = torch.zeros(1, 1, 1, dtype=torch.float64)

    def at(theta: Tensor) -> list[Term]:
        weights = 0.10 + softplus(level(theta))
        return [Norms(maps[j], offsets[j](theta), weights[..., j : j + 1], kappa, size) for j, size in enumerate(sizes)]

    return at


def logistic(stream: Stream, dim: int) -> Terms:
    """Return sum_k beta_k(theta) log(1 + exp(a_k'x + b_k(theta)))."""
    count = max(6, dim // 3)
    level = stream.affine(count, 0.15, 0.2, 0.7)
    matrix = DenseMap(stream.randn(count, dim, 1.0).unsqueeze(0))
    offset = stream.affine(count, 0.25, -0.4, 0.4)
    return lambda theta: [Logistic(matrix, offset(theta), 0.05 + softplus(level(theta)))]


def logsumexp(stream: Stream, dim: int) -> Terms:
    """Return sum over 2 blocks of beta_j(theta) log sum_k exp(a_jk'x + b_jk(theta))."""
    blocks, size = 2, max(4, dim // 5)
    level = stream.affine(blocks, 0.15, 0.2, 0.6)
    matrix = DenseMap(torch.cat([stream.randn(size, dim, 1.0) for _ in range(blocks)]).unsqueeze(0))
    offset = stream.affine(blocks * size, 0.22, -0.35, 0.35)
    return lambda theta: [LogSumExp(matrix, offset(theta), 0.05 + softplus(level(theta)), size)]


def huber(stream: Stream, dim: int) -> Terms:
    """Return sum_k beta_k(theta) huber(a_k'x + b_k(theta)), delta = 0.35."""
    count = max(8, dim // 2)
    level = stream.affine(count, 0.10, 0.10, 0.45)
    matrix = DenseMap(stream.randn(count, dim, 1.0).unsqueeze(0))
    offset = stream.affine(count, 0.18, -0.3, 0.3)
    return lambda theta: [Huber(matrix, offset(theta), 0.05 + softplus(level(theta)), HUBER_DELTA)]


@dataclass(frozen=True)
class Family:
    """What makes the tasks of one name: the set, the strength a of the quadratic, and the structured part."""

    name: str
    kind: str
    strength: float
    structure: Callable[[Stream, int], Terms]

    def __call__(self, dim: int, seed: int) -> Task:
        """Return the task with the constants of (name, dim, seed)."""
        stream = Stream(self.name, dim, seed)
        common = base(stream, dim, self.kind, self.strength)
        structure = self.structure(stream, dim)

        def form(context: Tensor) -> ConicForm:
            cost, terms = common(context)
            constant = torch.zeros(context.shape[0], 1, dtype=torch.float64)
            return ConicForm(constant, cost, (*terms, *structure(context)), (context.shape[0],))

        return Task(self.name, dim, seed, GEOMETRIES[self.kind].make_set(dim), CONTEXT_DIM, form)


FAMILIES = (
    Family("simplex_socp", "simplex", 1.0, lambda s, d: cones(s, d, "simplex", (max(4, d // 3),))),
    Family("box_socp", "box", 1.0, lambda s, d: cones(s, d, "box", (max(4, d // 3),))),
    Family("budget_twocone_socp", "budget", 1.0, lambda s, d: cones(s, d, "budget", (max(4, d // 4), max(3, d // 5)))),
    Family("simplex_logistic", "simplex", 0.35, logistic),
    Family("box_logsumexp", "box", 0.35, logsumexp),
    Family("budget_huber", "budget", 1.0, huber),
)
