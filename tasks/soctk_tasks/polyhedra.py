"""Five polyhedra with right-hand sides of their own for each context, as real problems have them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from soctk import Polyhedron
from soctk.sets import SetAt


def dispatch(count: int, seed: int = 0) -> tuple[SetAt, torch.Tensor]:
    """Eight generators meet today's demand; six lines have limits today, in both directions."""
    r, n = np.random.default_rng(seed), 8
    context, cap = r.uniform(-1, 1, (count, 4)), r.uniform(0.6, 1.2, 8)
    demand = 0.55 * cap.sum() * (1 + 0.3 * context[:, 0])
    flows = r.uniform(-0.5, 0.5, (6, n))
    G = np.vstack([flows, -flows])
    h = G @ (0.5 * cap) + 0.35 * np.linalg.norm(G * cap, axis=1) * (1 + 0.3 * context[:, 1:2])
    return Polyhedron(n, 0.0, cap, np.ones(n), demand[0], G, h[0]).at(f=demand, h=h), torch.from_numpy(context)


def polytope(count: int, seed: int = 0) -> tuple[SetAt, torch.Tensor]:
    """Sixty random half-spaces in thirty variables, moved by the context."""
    r, n, m = np.random.default_rng(seed), 30, 60
    context, G = r.uniform(-1, 1, (count, 6)), r.normal(size=(m, n)) / np.sqrt(n)
    h = 0.4 + 0.5 * r.uniform(size=m) + 0.15 * context @ r.normal(size=(6, m))
    return Polyhedron(n, -1.0, 1.0, G=G, h=h[0]).at(h=h), torch.from_numpy(context)


def transport(count: int, seed: int = 0) -> tuple[SetAt, torch.Tensor]:
    """Five suppliers with capacities, six customers with today's demands, flows without upper bounds."""
    r, a, b = np.random.default_rng(seed), 5, 6
    context = r.uniform(-1, 1, (count, b))
    E, G = np.kron(np.ones((1, a)), np.eye(b)), np.kron(np.eye(a), np.ones((1, b)))
    demand, supply = 1 + 0.4 * context, np.full(a, 1.15 * 1.4 * b / a)
    return Polyhedron(a * b, 0.0, np.inf, E, demand[0], G, supply).at(f=demand), torch.from_numpy(context)


def control(count: int, seed: int = 0) -> tuple[SetAt, torch.Tensor]:
    """Six steps of a double integrator from today's state, inputs and states between bounds."""
    steps, nx = 6, 2
    A, B = np.array([[1, 0.3], [0, 1.0]]), np.array([[0.05], [0.3]])
    n = steps * (nx + 1)
    context = np.random.default_rng(seed).uniform(-1, 1, (count, nx))
    E, f = np.zeros((steps * nx, n)), np.zeros((count, steps * nx))
    for k in range(steps):
        rows, x = slice(k * nx, (k + 1) * nx), k * (nx + 1) + 1
        E[rows, x : x + nx], E[rows, x - 1 : x] = np.eye(nx), -B
        if k:
            E[rows, x - 3 : x - 1] = -A
        else:
            f[:, rows] = context @ A.T
    high = np.tile([1.0, 1.5, 1.5], steps)
    return Polyhedron(n, -high, high, E, 0 * f[0]).at(f=f), torch.from_numpy(context)


def portfolio(count: int, seed: int = 0) -> tuple[SetAt, torch.Tensor]:
    """Forty assets, all invested; sectors and today's exposures to factors are limited."""
    r, n = np.random.default_rng(seed), 40
    context = r.uniform(-1, 1, (count, 5))
    sectors, factors = (np.arange(n)[None] % 5 == np.arange(5)[:, None]).astype(float), 0.5 * r.normal(size=(5, n))
    G = np.vstack([sectors, factors, -factors])
    h = np.hstack([np.full((count, 5), 0.35), np.tile(0.25 + 0.15 * context, 2)])
    return Polyhedron(n, 0.0, 0.2, np.ones(n), 1.0, G, h[0]).at(h=h), torch.from_numpy(context)


POLYHEDRA: dict[str, Callable[..., tuple[SetAt, torch.Tensor]]] = {
    "dispatch": dispatch,
    "polytope": polytope,
    "transport": transport,
    "control": control,
    "portfolio": portfolio,
}
