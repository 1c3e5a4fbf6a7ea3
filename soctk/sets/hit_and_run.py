"""Hit-and-run: points that are uniform in the limit, of any convex set (Smith 1984; Lovasz and Vempala 2006).

A chain at x draws a direction and moves to a uniform point of the chord through x along it. Points are written as
x = center + w F, where the rows of the frame F span the directions within the set, so that a chain never leaves the
affine hull; F stretches as the set does, which makes mixing independent of the set's scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

CHAINS = 512
FLAT = 1e-9
"""Directions in which a set is this much thinner than in its widest are none."""
BISECTIONS = 25
"""To 3e-8 of a chord."""


@dataclass(frozen=True, eq=False)
class Walk:
    """Where hit-and-run walks.

    Attributes:
        center: (n,), in the relative interior.
        frame: (d, n), independent directions within the set.
        chord: w (C, d), directions (C, d) -> the least and the largest step (C, 1) that stay inside.
    """

    center: Tensor
    frame: Tensor
    chord: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def hit_and_run(walk: Walk, count: int, generator: torch.Generator | None) -> Tensor:
    """Return `count` points, (count, n)."""
    size, d = min(count, CHAINS), walk.frame.shape[0]
    if count == 0 or d == 0:
        return walk.center.repeat(count, 1)
    w = torch.zeros(size, d, dtype=torch.float64)
    kept: list[Tensor] = []
    steps = 200 + 20 * d
    for _ in range(-(-count // size)):
        for _ in range(steps):
            direction = torch.randn(size, d, generator=generator, dtype=torch.float64)
            least, most = walk.chord(w, direction)
            share = torch.rand(size, 1, generator=generator, dtype=torch.float64)
            w = w + (least + share * (most - least)) * direction
        kept.append(w)
        steps = 10 + 2 * d
    return walk.center + torch.cat(kept)[:count] @ walk.frame


def walk_by_bisection(center: Tensor, frame: Tensor, violation: Callable[[Tensor], Tensor]) -> Walk:
    """Return the walk in a set of which it is only known how far a point is outside; every end found lies inside."""
    slack = 1e-12 * max(1.0, float(center.abs().max()))

    def chord(w: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        both, ways = torch.cat([w, w]), torch.cat([-direction, direction])

        def feasible(step: Tensor) -> Tensor:
            return violation(center + (both + step * ways) @ frame).unsqueeze(-1) <= slack

        inside, outside = torch.zeros(len(both), 1, dtype=w.dtype), torch.ones(len(both), 1, dtype=w.dtype)
        for _ in range(BISECTIONS):
            further = feasible(outside)
            if not bool(further.any()):
                break
            outside = torch.where(further, 2 * outside, outside)
        for _ in range(BISECTIONS):
            middle = 0.5 * (inside + outside)
            kept = feasible(middle)
            inside, outside = torch.where(kept, middle, inside), torch.where(kept, outside, middle)
        least, most = inside.chunk(2)
        return -least, most

    return Walk(center, frame, chord)


def frame_of(minimizer: Callable[[Tensor], Tensor], dim: int) -> tuple[Tensor, Tensor]:
    """Return a point (n,) in the relative interior and directions (d, n) that span the set, from linear minimisers.

    The extreme points along every axis may all lie in one face. Extreme points along directions across their affine
    hull are added until there is no other direction in the set; their mean then lies in its relative interior.
    """
    directions = torch.eye(dim, dtype=torch.float64)
    points = torch.zeros(0, dim, dtype=torch.float64)
    while True:
        points = torch.cat([points, minimizer(directions), minimizer(-directions)])
        center = points.mean(dim=0)
        _, lengths, axes = torch.linalg.svd(points - center, full_matrices=True)
        rank = int((lengths > FLAT * max(float(lengths[0]), 1e-3 * float(points.abs().max()))).sum())
        across = axes[rank:]
        if len(across) == 0:
            break
        ends = minimizer(across), minimizer(-across)
        width = ((ends[1] - ends[0]) * across).sum(dim=-1)
        directions = across[width > FLAT * float(points.abs().max())]
        if len(directions) == 0:
            break
    return center, axes[:rank] * (lengths[:rank] / len(points) ** 0.5).unsqueeze(-1)
