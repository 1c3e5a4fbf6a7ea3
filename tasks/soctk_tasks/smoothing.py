"""Trajectory smoothing, the paper's recurrent test: a reference r in, a smoother trajectory u in [-1, 1]^p out.

    E(u; r) = rho/(2T) sum_t ||u_t - r_t||^2 + beta/(2(T-2)) sum_t ||u_{t+1} - 2 u_t + u_{t-1}||^2
            + lambda/(T-1) sum_t sqrt(||u_t - u_{t-1}||^2 + eps) + gamma/(2T) sum_t ||u_t||^2

Each sum is divided by its number of time steps, as the paper writes it; the published code also averages the quadratics
over the p channels, which quarters them. The paper leaves references and candidates open: both are drawn as its
published code draws them (two sinusoids, a few jumps and a first-order autoregressive noise in each channel).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from soctk import Box, ConicForm
from soctk.checks import check_count
from soctk.maps.linear import SparseMap
from soctk.terms import Norms, Quadratic
from soctk_tasks.stencils import differences, second_differences, window_sums
from soctk_tasks.structured import StructuredTask

RHO, BETA, LAMBDA, GAMMA, EPSILON = 1.0, 0.20, 0.18, 0.02, 1e-5
SIZES = (1200, 200, 200)
CANDIDATES = 14
CANDIDATE_WIDTH = 5
"""Width of the moving average that candidates are made with."""


@dataclass(frozen=True, eq=False)
class Smoothing(StructuredTask):
    """The trajectory smoothing task; decisions and contexts are trajectories flattened step by step.

    Attributes:
        steps: T.
        channels: numbers at each step.
    """

    steps: int
    channels: int

    def draw(self, instances: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return reference trajectories (N, n) twice: the context is the clean signal."""
        check_count(instances, "instances")
        rng = np.random.default_rng([seed, self.steps, self.channels])
        reference = references(rng, instances, self.steps, self.channels)
        return reference, reference

    def draw_parts(self, sizes: tuple[int, int, int], seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return three independent draws."""
        whole = self.draw(sum(sizes), seed)[0]
        return [(part, part) for part in whole.split(sizes)]

    def candidates(self, context: Tensor, clean: Tensor, count: int, seed: int) -> Tensor:
        """Return the published code's kinds of candidates in its order, for any count, (N, count, n)."""
        generator = torch.Generator().manual_seed(seed)
        mean = self._folded(clean, CANDIDATE_WIDTH)
        kinds = [self._candidate(kind, clean, mean, generator) for kind in range(count)]
        return torch.stack(kinds, dim=1).clamp(-1.0, 1.0)

    def _candidate(self, kind: int, reference: Tensor, mean: Tensor, generator: torch.Generator) -> Tensor:
        def normal(scale: float) -> Tensor:
            return scale * torch.randn(reference.shape, generator=generator, dtype=reference.dtype)

        def uniform() -> Tensor:
            return 2 * torch.rand(reference.shape, generator=generator, dtype=reference.dtype) - 1

        simple = (
            lambda: reference,
            lambda: mean,
            lambda: torch.zeros_like(reference),
            uniform,
            lambda: reference + normal(0.25),
            lambda: mean + normal(0.20),
        )
        if kind < len(simple):
            return simple[kind]()
        share = torch.rand(reference.shape[0], 1, generator=generator, dtype=reference.dtype)
        mixed = (
            lambda: share * reference + (1 - share) * uniform(),
            lambda: share * reference + (1 - share) * mean,
            lambda: self._folded(uniform(), CANDIDATE_WIDTH),
            lambda: share * mean + (1 - share) * (reference + normal(0.30)),
        )
        return mixed[kind % 4]()

    def _folded(self, x: Tensor, width: int) -> Tensor:
        """Return the moving average over time with zeros before the first and after the last step."""
        return window_sums(x.unflatten(-1, (self.steps, self.channels)).mT, width, 1).mT.flatten(-2) / width

    def start(self, context: Tensor) -> Tensor:
        """Return the reference."""
        return context

    # -- trivial decisions -----------------------------------------------------------------------------

    def reference(self, context: Tensor) -> Tensor:
        """Return the reference itself, (*batch, n)."""
        return context

    def zero(self, context: Tensor) -> Tensor:
        """Return the trajectory that does not move, (*batch, n)."""
        return torch.zeros_like(context)

    def moving_average(self, context: Tensor, width: int) -> Tensor:
        """Return the mean of the reference over the steps of each window that exist, (*batch, n)."""
        count = self._folded(torch.ones_like(context), width)
        return self._folded(context, width) / count


def make_smoothing(steps: int = 40, channels: int = 4) -> Smoothing:
    """Return the trajectory smoothing task.

    Args:
        steps: T, at least 3.
        channels: numbers at each step.

    Raises:
        ValueError: fewer than 3 steps or no channel.
    """
    check_count(steps, "steps", minimum=3)
    check_count(channels, "channels")
    dim = steps * channels
    every = sp.eye_array(channels)
    stay = SparseMap.of(sp.eye_array(dim))
    bend = SparseMap.of(sp.kron(second_differences(steps), every))
    move = SparseMap.of(sp.kron(differences(steps), every))

    def row(value: float, size: int) -> Tensor:
        return torch.full((1, 1, size), value, dtype=torch.float64)

    def form(context: Tensor) -> ConicForm:
        reference = context.to(torch.float64).unsqueeze(1)
        terms = (
            Quadratic(stay, -reference, row(RHO / steps, dim)),
            Quadratic(bend, row(0.0, bend.rows), row(BETA / (steps - 2), bend.rows)),
            Quadratic(stay, row(0.0, dim), row(GAMMA / steps, dim)),
            Norms(
                move, row(0.0, move.rows), row(LAMBDA / (steps - 1), steps - 1), row(EPSILON**0.5, steps - 1), channels
            ),
        )
        return ConicForm(row(0.0, 1)[0], row(0.0, dim), terms, (context.shape[0],))

    return Smoothing("smoothing", dim, 0, Box(dim, -1.0, 1.0), dim, form, SIZES, CANDIDATES, steps, channels)


def references(rng: np.random.Generator, count: int, steps: int, channels: int) -> Tensor:
    """Return reference trajectories (count, steps * channels) in [-1, 1].

    In every channel: a sine of amplitude U[.25, .70] and 1 to 3 periods, a cosine of amplitude U[.10, .35] and 2 to 5
    periods, random phases, 1 to 3 jumps of standard deviation .15, and an autoregressive noise (.85, innovations .04).
    """
    shape = (count, 1, channels)
    time = np.linspace(0.0, 1.0, steps).reshape(1, -1, 1)
    slow, fast = rng.integers(1, 4, shape), rng.integers(2, 6, shape)
    phases = 2 * np.pi * rng.random((2, *shape))
    signal = rng.uniform(0.25, 0.70, shape) * np.sin(2 * np.pi * slow * time + phases[0])
    signal += rng.uniform(0.10, 0.35, shape) * np.cos(2 * np.pi * fast * time + phases[1])
    margin, jumps = steps // 8, rng.integers(1, 4, shape)
    for k in range(3):
        begin = rng.integers(margin, steps - margin, shape)
        size = 0.15 * rng.standard_normal(shape)
        signal += np.where((k < jumps) & (np.arange(steps).reshape(1, -1, 1) >= begin), size, 0.0)
    noise = 0.04 * rng.standard_normal((count, steps, channels))
    for step in range(1, steps):
        noise[:, step] += 0.85 * noise[:, step - 1]
    return torch.from_numpy(np.clip(signal + noise, -1.0, 1.0).reshape(count, -1))
