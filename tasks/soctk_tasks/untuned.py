"""Three tasks that were written down before any model was tried on them: no recipe was chosen by what it does there
(later changes were measured there too).

They differ from the paper's six in what those have in common: diagonal quadratics, isotropic maps, standard normal
contexts that enter affinely, and one set for all contexts.

    box_dense            1/2 (x - m)'Q (x - m) + c'x + logsumexp over the box [-1, 1]^n, Q = R diag(1 .. 1e-3) R' with
                         a random rotation R; six contexts with Student's t of three degrees of freedom, which enter
                         through tanh, sin and softplus.
    budget_categorical   three cones lambda_j ||A_j D x - d_j||, D diagonal between .2 and 5, a separable quadratic and
                         a Huber term over {0 <= x <= 1, sum x = .4 n}; one of four categories, the rarest in 5 of
                         100, has coefficients of its own, beside an exponential, a uniform and a log-normal number.
    moving_dispatch      generators share today's demand within today's limits of lines (a polyhedron with right-hand
                         sides of its own for each context): dense losses, fuel, wear, and the distance from yesterday's
                         schedule; the hour enters through sines, wind and price are heavy-tailed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from soctk import Box, Budget, ConicForm, FeasibleSet, Polyhedron
from soctk.checks import ArrayLike, as_tensor, check_count, check_last_dim
from soctk.maps.linear import DenseMap
from soctk.sets import SetAt
from soctk.terms import Huber, Logistic, LogSumExp, Norms, Quadratic, Term
from soctk_tasks.task import Task

CATEGORIES = (0.5, 0.3, 0.15, 0.05)
"""How often each occurs."""
DEMAND = (0.22, 0.75)
"""The least and the largest demand, as a share of what all generators can deliver."""


@dataclass(frozen=True, eq=False)
class Untuned(Task):
    """A task with a law of contexts of its own.

    Attributes:
        law: (random numbers, count) -> contexts (count, p).
        moved: contexts (N, p) -> the sets that decisions live in, within `feasible_set`; None where they do not move.
    """

    law: Callable[[np.random.Generator, int], np.ndarray]
    moved: Callable[[Tensor], SetAt] | None = None

    def contexts(self, instances: int, seed: int) -> Tensor:
        """Return contexts (instances, p), reproducible from the seed."""
        check_count(instances, "instances")
        return torch.from_numpy(self.law(np.random.default_rng([zlib.crc32(self.name.encode()), seed]), instances))

    def sets(self, context: ArrayLike) -> FeasibleSet | SetAt:
        """Return where the decisions of contexts (*batch, p) live."""
        if self.moved is None:
            return self.feasible_set
        contexts = as_tensor(context, "context").double()
        check_last_dim(contexts, self.context_dim, "context")
        return self.moved(contexts)


class Constants:
    """Draws a task's constants as float64 tensors."""

    def __init__(self, name: str, dim: int, seed: int) -> None:
        self.rng = np.random.default_rng([zlib.crc32(name.encode()), dim, seed])

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return scale / sqrt(last dimension) times standard normals: rows of length about `scale`."""
        return torch.from_numpy(self.rng.standard_normal(shape)) * (scale / shape[-1] ** 0.5)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return uniform numbers."""
        return torch.from_numpy(self.rng.uniform(low, high, shape))


def dense(matrix: Tensor) -> DenseMap:
    """Return a matrix (rows, n) as the map of a term."""
    return DenseMap(matrix.unsqueeze(0))


def form_of(linear: Tensor, *terms: Term) -> ConicForm:
    """Return the objective with slopes (N, n)."""
    count = linear.shape[0]
    return ConicForm(torch.zeros(count, 1, dtype=torch.float64), linear.unsqueeze(1), terms, (count,))


def box_dense(dim: int, seed: int) -> Untuned:
    """Return the task with dense curvature and heavy-tailed contexts."""
    p, draw = 6, Constants("box_dense", dim, seed)
    rotation = torch.linalg.qr(draw.normal(dim, dim)).Q
    curvature = torch.logspace(0, -3, dim, dtype=torch.float64).reshape(1, 1, -1)
    to_center, center = draw.normal(dim, p, scale=1.0), draw.uniform(-0.5, 0.5, dim)
    to_cost, to_level = draw.normal(dim, p, scale=0.2), draw.normal(2, p, scale=0.5)
    size = max(4, dim // 2)
    rows, to_offset = draw.normal(2 * size, dim, scale=2.0), draw.normal(2 * size, p, scale=1.0)

    def form(theta: Tensor) -> ConicForm:
        m = 0.8 * torch.tanh(theta @ to_center.mT + center)
        spring = Quadratic(dense(rotation.mT), -(m @ rotation).unsqueeze(1), curvature)
        level = 0.1 + 0.4 * softplus(theta @ to_level.mT)
        offset = 0.5 * torch.sin(theta @ to_offset.mT)
        soft = LogSumExp(dense(rows), offset.unsqueeze(1), level.unsqueeze(1), size)
        return form_of(theta @ to_cost.mT / (1 + theta.norm(dim=1, keepdim=True)), spring, soft)

    def law(rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.standard_t(3, (count, p))

    return Untuned("box_dense", dim, seed, Box(dim, -1.0, 1.0), p, form, law)


def budget_categorical(dim: int, seed: int) -> Untuned:
    """Return the task whose coefficients a category chooses."""
    kinds, p, draw = len(CATEGORIES), len(CATEGORIES) + 3, Constants("budget_categorical", dim, seed)
    size, cones = max(3, dim // 3), 3
    scales = 5 ** draw.uniform(-1, 1, dim)
    maps = [dense(draw.normal(size, dim) * scales) for _ in range(cones)]
    offsets, shifts = draw.uniform(-1, 1, cones, kinds, size), draw.normal(cones, size, 3, scale=0.5)
    levels = draw.uniform(0.2, 1.0, kinds, cones)
    centers, to_center, weights = draw.normal(kinds, dim), draw.normal(dim, 3), draw.uniform(0.1, 1.0, kinds, dim)
    tilt = draw.normal(max(4, dim // 2), dim)
    bend, height = draw.uniform(-0.3, 0.3, kinds, len(tilt)), draw.uniform(0.2, 0.8, kinds, len(tilt))
    kappa, identity = torch.zeros(1, 1, 1, dtype=torch.float64), dense(torch.eye(dim, dtype=torch.float64))

    def form(theta: Tensor) -> ConicForm:
        kind, z = theta[:, :kinds], theta[:, kinds:]
        level = (kind @ levels) * (0.5 + z[:, :1])
        hard = [
            Norms(maps[j], -(kind @ offsets[j] + z @ shifts[j].mT).unsqueeze(1), level[:, None, j : j + 1], kappa, size)
            for j in range(cones)
        ]
        m = torch.sigmoid(kind @ (dim**0.5 * centers) + z @ to_center.mT)
        spring = Quadratic(identity, -m.unsqueeze(1), (kind @ weights).unsqueeze(1))
        robust = Huber(dense(tilt), (kind @ bend).unsqueeze(1), (kind @ height * z[:, 2:]).unsqueeze(1), 0.2)
        return form_of(torch.zeros(len(theta), dim, dtype=torch.float64), *hard, spring, robust)

    def law(rng: np.random.Generator, count: int) -> np.ndarray:
        kind = np.eye(kinds)[rng.choice(kinds, count, p=CATEGORIES)]
        numbers = rng.exponential(1.0, count), rng.uniform(-1, 1, count), rng.lognormal(0, 0.5, count)
        return np.column_stack([kind, *numbers])

    return Untuned("budget_categorical", dim, seed, Budget(dim, total=0.4 * dim), p, form, law)


def moving_dispatch(dim: int, seed: int) -> Untuned:
    """Return the task over polyhedra that move: contexts are the hour, temperature, wind and price."""
    p, draw = 4, Constants("moving_dispatch", dim, seed)
    cap = draw.uniform(0.5, 1.5, dim)
    lines = draw.normal(max(2, dim // 2), dim, scale=1.0)
    least_room, room = 0.35 * (lines @ cap).abs(), 0.3 * (lines * cap).norm(dim=1)
    losses, fuel = draw.normal(dim, dim, scale=0.5), draw.uniform(0.2, 1.0, dim)
    wear, start = 8 * draw.normal(dim, dim), draw.uniform(-2, 2, dim)
    yesterday, wearing = draw.uniform(0.2, 0.8, dim), draw.uniform(0.05, 0.2, dim)
    kappa, none = torch.zeros(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dim, dtype=torch.float64)
    one, identity = torch.ones(1, 1, dim, dtype=torch.float64), dense(torch.eye(dim, dtype=torch.float64))

    def form(theta: Tensor) -> ConicForm:
        hour, wind, price = (theta[:, k, None] for k in (0, 2, 3))
        day = torch.cos((hour - 18) * (torch.pi / 12))
        dear = price * fuel * (1 + 0.2 * torch.sin((hour - 6) * (torch.pi / 12)))
        worn = Logistic(dense(wear), start.expand(len(theta), 1, -1), (wearing * (1 + wind)).unsqueeze(1))
        before = cap * (yesterday + 0.15 * day)
        away = Norms(identity, -before.unsqueeze(1), 0.3 * (1 + day.abs()).unsqueeze(1), kappa, dim)
        return form_of(dear, Quadratic(dense(losses), none, one), worn, away)

    total, upper, G = float(cap.sum()), cap.tolist(), torch.cat([lines, -lines])
    wide = Polyhedron(dim, 0.0, upper, G=[[1.0] * dim, [-1.0] * dim], h=[DEMAND[1] * total, -DEMAND[0] * total])
    middle = G @ (0.5 * cap)
    tight = Polyhedron(dim, 0.0, upper, torch.ones(dim), 0.5 * total, G, middle + torch.cat([least_room + room] * 2))

    def moved(theta: Tensor) -> SetAt:
        hour, temperature, wind = theta[..., 0], theta[..., 1], theta[..., 2]
        share = 0.5 + 0.15 * torch.cos((hour - 18) * (torch.pi / 12)) + 0.1 * torch.tanh(temperature) - 0.05 * wind
        limits = least_room + room * (0.3 + 0.7 * torch.sigmoid(-temperature))[..., None]
        h = middle + torch.cat([limits, limits], dim=-1)
        return tight.at(f=(share.clamp(*DEMAND) * cap.sum())[..., None], h=h)

    def law(rng: np.random.Generator, count: int) -> np.ndarray:
        columns = rng.uniform(0, 24, count), rng.standard_normal(count), rng.gamma(2.0, 0.5, count)
        return np.column_stack([*columns, rng.lognormal(0.0, 0.6, count)])

    return Untuned("moving_dispatch", dim, seed, wide, p, form, law, moved)
