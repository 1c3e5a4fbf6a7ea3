"""The structured start: where to begin with branches over windows (`soctk.models.branches`).

With the window Gram matrices S_i,k of value i (one for the ordinary gates together, one for each mask) a quadratic
branch is sum_k <Q_k, S_i,k> / 2, linear in positive semidefinite Q_k; a conic branch with *given* kernels is linear in
its non-negative weights. So

    minimise over Q_k >= 0, weights >= 0 and a level   mean of the squared residuals

is convex, and small once its normal matrix is formed: accelerated projected gradients (Beck and Teboulle 2009) take
about a second. Windows are whitened first, so that kernels of every frequency count alike. The kernels of many random
norm groups are tried; the best become the branch's. The Q_k are factored into channels. The other weights stay as they
were; second-order iterations on everything follow (`soctk.learn.fit`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from soctk.learn.profiling import Residuals
from soctk.models.branches import FAINT, LARGEST_PIECE, NormWindows, QuadraticWindows
from soctk.models.structured import StructuredICNN

TRIAL_GROUPS = 128
"""Random norm groups that are tried."""
ITERATIONS = 1500
MOST_COLUMNS = 4000
"""Numbers of Q_k beyond which the places near borders share theirs with the others."""
SMALLEST_SHARE = 1e-8
"""Directions of windows with a smaller share of the largest variance are not blown up further by whitening."""
CONSTANT = 0.1
"""The constant kappa of a norm group at the start, in units of its kernels' outputs."""
LEFT_OVER = 1e-2
"""The size of channels for which the quadratic start has no use, in whitened units."""


@torch.no_grad()
def structured_start(model: StructuredICNN, residuals: Residuals, generator: torch.Generator) -> bool:
    """Put the weights of windowed branches where the convex problem has them; return whether there are any.

    Args:
        model: a surrogate of windowed branches.
        residuals: of the training data.
        generator: of the trial groups.
    """
    branches = dict(model.branches.items())
    quadratic, norms = branches.get("quadratic"), branches.get("norms")
    problem = _Problem(residuals)
    if isinstance(quadratic, QuadraticWindows):
        problem.add_quadratic(quadratic, residuals.features["quadratic"])
    if isinstance(norms, NormWindows):
        problem.add_norms(norms, residuals.features["norms"], generator)
    if not problem.columns:
        return False
    problem.solve()
    if isinstance(quadratic, QuadraticWindows):
        problem.place_quadratic(quadratic, generator)
    if isinstance(norms, NormWindows):
        problem.place_norms(norms)
    model.set_level(float(problem.solution[-1]))
    return True


class _Problem:
    """The convex problem: residuals linear in (Q_1, ..., Q_k, weights, level)."""

    def __init__(self, residuals: Residuals) -> None:
        self.residuals = residuals
        self.columns: list[Tensor] = []
        self.matrices = self.groups = self.length = 0
        self.solution = residuals.data.value.new_zeros(0)

    def add_quadratic(self, branch: QuadraticWindows, features: Tensor) -> None:
        """Add the columns of the Q_k, whitened: S -> R S R' with R (mean of S) R' = I."""
        self.together = features.shape[2] * features.shape[-1] ** 2 > MOST_COLUMNS
        ordinary = features[:, :, : branch.ordinary]
        if self.together:
            ordinary = ordinary.sum(dim=2, keepdim=True)
        grams = torch.cat([ordinary, features[:, :, branch.ordinary :]], dim=2)
        self.matrices, self.length = grams.shape[2], grams.shape[-1]
        self.whiten = torch.stack([whitening(gram) for gram in grams.mean(dim=(0, 1))])
        white = self.whiten @ grams @ self.whiten.mT
        self.columns.append(0.5 * white.flatten(start_dim=2))

    def add_norms(self, branch: NormWindows, features: Tensor, generator: torch.Generator) -> None:
        """Add the columns of random norm groups on the decision's windows, whitened, each of unit spread."""
        size, length = branch.size, branch.windows.length
        own = features[..., :length]
        gram = torch.einsum("nmpa,nmpb->ab", own, own) / own[..., 0].numel()
        self.groups = TRIAL_GROUPS
        noise = torch.randn(self.groups * size, length, generator=generator, dtype=own.dtype)
        self.trials = noise @ whitening(gram) / size**0.5
        rows = max(1, LARGEST_PIECE // (own.shape[1] * own.shape[2] * len(self.trials)))
        lengths = torch.cat([self._lengths(piece, size) for piece in own.split(rows)])
        self.spread, self.mean = lengths.std(dim=(0, 1)), lengths.mean(dim=(0, 1))
        self.columns.append(lengths / self.spread)

    def _lengths(self, windows: Tensor, size: int) -> Tensor:
        squares = (windows @ self.trials.mT).square().unflatten(-1, (-1, size)).sum(dim=-1)
        return (squares + CONSTANT**2).sqrt().mean(dim=-2)

    def solve(self) -> None:
        """Minimise by accelerated projected gradients with the step 1 / largest eigenvalue."""
        columns = torch.cat([*self.columns, torch.ones_like(self.columns[0][..., :1])], dim=-1)
        columns = self.residuals.shrink(columns).flatten(end_dim=1)
        target = self.residuals.shrink(self.residuals.data.value.unsqueeze(-1)).flatten()
        normal, right = columns.mT @ columns / len(target), columns.mT @ target / len(target)
        step = 1 / torch.linalg.eigvalsh(normal)[-1]
        at = previous = torch.zeros_like(right)
        ahead, momentum = at, 1.0
        for _ in range(ITERATIONS):
            at = self._project(ahead - step * (normal @ ahead - right))
            following = 0.5 * (1 + (1 + 4 * momentum**2) ** 0.5)
            if float((ahead - at) @ (at - previous)) > 0:  # uphill: drop the momentum (O'Donoghue and Candes 2015)
                following = 1.0
            ahead = at + (momentum - 1) / following * (at - previous) if following > 1 else at
            previous, momentum = at, following
        self.solution = at

    def _project(self, point: Tensor) -> Tensor:
        matrices, weights, level = point.split(self._sizes())
        if self.matrices:
            square = matrices.reshape(self.matrices, self.length, self.length)
            values, vectors = torch.linalg.eigh(0.5 * (square + square.mT))
            matrices = ((vectors * values.clamp(min=0).unsqueeze(-2)) @ vectors.mT).flatten()
        return torch.cat([matrices, weights.clamp(min=0), level])

    def _sizes(self) -> list[int]:
        return [self.matrices * self.length**2, self.groups, 1]

    def place_quadratic(self, branch: QuadraticWindows, generator: torch.Generator) -> None:
        """Factor the Q_k: the directions of largest eigenvalues, in whitened units, become channels."""
        square = self.solution.split(self._sizes())[0].reshape(self.matrices, self.length, self.length)
        values, vectors = torch.linalg.eigh(square)
        order = values.flatten().argsort(descending=True)[: branch.channels]
        kind, which = order // self.length, order % self.length
        roots = values[kind, which].clamp(min=0).sqrt()
        noise = LEFT_OVER * torch.randn(len(order), self.length, generator=generator, dtype=roots.dtype)
        directions = vectors.mT[kind, which] * roots.unsqueeze(-1)
        directions = torch.where((roots > LEFT_OVER).unsqueeze(-1), directions, noise / self.length**0.5)
        kernels = torch.einsum("ca,cab->cb", directions, self.whiten[kind])
        gate = torch.full_like(branch.gate, FAINT)
        for channel in range(len(order)):
            gate[channel, self._gates(int(kind[channel]), branch.ordinary)] = 1.0
        stacked = 0.1 * branch.stacked()
        stacked[: len(order)] = kernels
        branch.place(stacked)
        branch.gate.copy_(gate)

    def _gates(self, kind: int, ordinary: int) -> slice:
        """Return the gates that matrix `kind` belongs to."""
        if not self.together:
            return slice(kind, kind + 1)
        return slice(ordinary) if kind == 0 else slice(ordinary + kind - 1, ordinary + kind)

    def place_norms(self, branch: NormWindows) -> None:
        """Make the best trial groups the branch's; their weights carry the mean of all."""
        weights = self.solution.split(self._sizes())[1]
        order = weights.argsort(descending=True)[: branch.groups]
        share = weights / self.spread
        scale = (share * self.mean).sum() / (share * self.mean)[order].sum().clamp(min=1e-12)
        rows = (order.unsqueeze(-1) * branch.size + torch.arange(branch.size)).flatten()
        stacked = torch.zeros_like(branch.stacked())
        stacked[:, : branch.windows.length] = self.trials[rows]
        branch.place(stacked)
        branch.kappa.fill_(CONSTANT)
        branch.weight.copy_((scale * share[order]).clamp(min=FAINT**2).sqrt().unsqueeze(-1).expand_as(branch.weight))


def whitening(gram: Tensor) -> Tensor:
    """Return R with R gram R' = I, but for directions that hardly occur."""
    values, vectors = torch.linalg.eigh(gram)
    return (vectors / values.clamp(min=SMALLEST_SHARE * float(values[-1])).sqrt()).mT
