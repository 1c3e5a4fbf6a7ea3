"""Hit-and-run in a polyhedron {w : rates w <= room}: uniform in the limit, whatever directions are chosen.

A chain at w draws a direction and moves to a uniform point of the chord through w along it. Which direction is drawn
may depend on anything but w, so that all chains go along the same one: a step then costs m numbers for each chain, and
only rows that the direction meets. Four in five directions are such as edges of the polyhedron have: d - 1 rows drawn
by chance stay as they are. They meet few rows where the rows are sparse (two of a simplex, one pair of a box), so that
chords are long where random directions soon leave through some row; they do not depend on how the set is stretched.
Every fifth is random, stretched as the set is, which makes every point reachable (Smith 1984; Andersen and Diaconis
2007 for hit-and-run along chosen directions).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from soctk.lazy import linalg

CHAINS = 512
EDGES = 10
"""Directions of edges for each dimension."""
RANDOM_EVERY = 5
SPREAD = 1.0
"""Rows are drawn by their lengths, those close to the set are longer, times exp(SPREAD times a standard normal)."""
ROUNDING = 64 * float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False)
class Directions:
    """The directions of a walk, in coordinates in which the set is about as wide in all of them.

    Attributes:
        rates: (m, d), how fast each row's slack falls along each coordinate.
        edges: (k, d), directions along which d - 1 independent rows stay as they are.
        edge_rates: (k, m), how fast each row's slack falls along these, exactly 0 where it stays.
    """

    rates: np.ndarray
    edges: np.ndarray
    edge_rates: np.ndarray

    @classmethod
    def of(cls, rates: np.ndarray) -> Directions:
        """Draw the edges, the same for the same rates."""
        m, d = rates.shape
        weights = np.exp(SPREAD * np.random.default_rng(0).normal(size=(EDGES * d, m, 1)))
        edges = np.stack([_edge(rates * weight) for weight in weights]) if d else np.zeros((0, 0))
        return cls(rates, edges, _without_rounding(edges @ rates.T, rates))

    def draw(self, count: int, generator: torch.Generator | None) -> tuple[np.ndarray, np.ndarray]:
        """Return directions (count, d) and how fast slacks fall along them (count, m)."""
        chosen = torch.randint(len(self.edges), (count,), generator=generator).numpy()
        along, falls = self.edges[chosen], self.edge_rates[chosen]
        some = slice(0, None, RANDOM_EVERY)
        along[some] = torch.randn(along[some].shape, generator=generator, dtype=torch.float64).numpy()
        falls[some] = along[some] @ self.rates.T
        return along, falls


def _edge(rows: np.ndarray) -> np.ndarray:
    """Return the direction across the first d - 1 rows that a pivoted factorisation takes, the longest ones."""
    Q, _, _ = linalg.qr(rows.T, mode="economic", pivoting=True)
    return Q[:, -1]


def _without_rounding(falls: np.ndarray, rates: np.ndarray) -> np.ndarray:
    return np.where(np.abs(falls) > ROUNDING * np.linalg.norm(rates, axis=1), falls, 0.0)


def walk(directions: Directions, room: np.ndarray, generator: torch.Generator | None) -> Iterator[np.ndarray]:
    """Yield points (C, d) of C chains that begin at 0, without end: after 200 + 30 d steps, then after 20 + 3 d each.

    Args:
        directions: where to go.
        room: (m, C), the slacks of 0 in each chain's set, positive; a set may be each chain's own.
        generator: source of randomness.
    """
    d, chains = directions.rates.shape[1], room.shape[1]
    w, count = np.zeros((chains, d)), 200 + 30 * d
    while True:
        along, falls = directions.draw(count, generator)
        shares = torch.rand(count, chains, generator=generator, dtype=torch.float64).numpy()
        slack = np.maximum(room - directions.rates @ w.T, 0.0)
        for fall, share in zip(falls, shares, strict=True):
            share[:] = _step(slack, fall, share)
        w = w + shares.T @ along
        yield w
        count = 20 + 3 * d


def _step(slack: np.ndarray, fall: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return how far every chain goes (C,), and change the slacks (m, C) accordingly."""
    ahead, behind = np.flatnonzero(fall > 0), np.flatnonzero(fall < 0)
    front, back = slack[ahead], slack[behind]
    most = (front / fall[ahead, None]).min(axis=0)
    least = (back / fall[behind, None]).max(axis=0)
    step = least + share * (most - least)
    slack[ahead] = np.maximum(front - np.outer(fall[ahead], step), 0.0)
    slack[behind] = np.maximum(back - np.outer(fall[behind], step), 0.0)
    return step


def uniform_points(
    center: np.ndarray, frame: np.ndarray, directions: Directions, count: int, generator: torch.Generator | None
) -> Tensor:
    """Return `count` points center + w frame, (count, n), of 512 chains at most; row by row the chains take turns.

    Args:
        center: (n,), where the slack of every row is 1.
        frame: (d, n), the directions of the coordinates w.
        directions: where to go.
        count: how many.
        generator: source of randomness.
    """
    size = min(count, CHAINS)
    if size == 0 or len(frame) == 0:
        return torch.from_numpy(center).repeat(count, 1)
    points = walk(directions, np.ones((len(directions.rates), size)), generator)
    w = np.concatenate([next(points) for _ in range(-(-count // size))])[:count]
    return torch.from_numpy(center + w @ frame)
