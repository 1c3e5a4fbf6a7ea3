"""The structured start: where to begin with branches over windows (`soctk.models.branches`).

With the window Gram matrices S_i,k of value i (one for the ordinary gates together, one for each mask) a quadratic
branch is sum_k <Q_k, S_i,k> / 2, linear in positive semidefinite Q_k; a conic branch with *given* kernels is linear in
its non-negative weights. So

    minimise over Q_k >= 0, weights >= 0 and a level   mean of the squared residuals

is convex, and small once its normal matrix is formed: accelerated projected gradients (Beck and Teboulle 2009) take
about a second. Windows are whitened first, so that kernels of every frequency count alike. The kernels of many random
norm groups are tried; the best become the branch's. The Q_k are factored into channels. The other weights stay as they
were; second-order iterations on everything follow, in whitened coordinates too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.checks import seeded
from soctk.learn.phases.phase import Phase
from soctk.learn.residuals import Residuals
from soctk.learn.trainer import Trainer
from soctk.learn.whitening import whitening
from soctk.models.branches import FAINT, LARGEST_PIECE, NormWindows, QuadraticWindows
from soctk.surrogate import ConvexSurrogate
from soctk.traits import Windowed

TRIAL_GROUPS = 128
"""Random norm groups that are tried."""
ITERATIONS = 1500
MOST_COLUMNS = 4000
"""Numbers of Q_k beyond which the places near borders share theirs with the others."""
CHOICES = 4
"""Sets of trial groups, those of largest weight shifted by one, that are fitted alone."""
CONSTANT = 0.1
"""The constant kappa of a norm group at the start, in units of its kernels' outputs."""
LEFT_OVER = 1e-2
"""The size of channels for which the quadratic start has no use, in whitened units."""
SEEDS = 1000
"""Between the seeds of neighbouring fits: each start has its own."""


@dataclass(frozen=True)
class StructuredStart(Phase):
    """Put branches where the convex problem has them; AdamW's first steps would undo it.

    Attributes:
        rows: observed values, about.
        level_weight: of the squared mean residual of an instance.
        seed: of the trial groups, together with the start's number.
    """

    rows: int
    level_weight: float
    seed: int

    def run(self, trainer: Trainer) -> None:
        generator = seeded(self.seed * SEEDS + trainer.start)
        train, held_out = trainer.weighted(self.rows, self.level_weight)
        structured_start(trainer.model, train, generator)
        trainer.keep()
        trainer.report.best_validation = float(held_out.loss(trainer.model).detach())


def can_place(windowed: Windowed) -> bool:
    """Return whether the model has branches that the convex problem places."""
    return _placeable(windowed) != (None, None)


def _placeable(windowed: Windowed) -> tuple[QuadraticWindows | None, NormWindows | None]:
    branches = dict(windowed.branches.items())
    quadratic, norms = branches.get("quadratic"), branches.get("norms")
    return (
        quadratic if isinstance(quadratic, QuadraticWindows) else None,
        norms if isinstance(norms, NormWindows) else None,
    )


@torch.no_grad()
def structured_start(model: ConvexSurrogate, residuals: Residuals, generator: torch.Generator) -> bool:
    """Put the weights of windowed branches where the convex problem has them; return whether there are any.

    Args:
        model: a surrogate.
        residuals: of the training data.
        generator: of the trial groups.
    """
    windowed = model.traits.windowed
    quadratic, norms = (None, None) if windowed is None else _placeable(windowed)
    if windowed is None or (quadratic is None and norms is None):
        return False
    trials = None if norms is None else _Trials(norms, residuals.features["norms"], generator)
    best, found = torch.inf, model.state_dict()
    for together in _divisions(quadratic):
        problem = _Problem(residuals, quadratic, trials, together)
        problem.solve()
        problem.place(generator)
        windowed.set_level(float(problem.solution[-1]))
        loss = float(residuals.total(model))
        if loss < best:
            best, found = loss, {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(found)
    return True


def _divisions(quadratic: QuadraticWindows | None) -> list[bool]:
    """Return whether places of all kinds share one Q: yes, and where there are few kinds no; better on the data wins.

    Kinds of their own are more exact and need more channels.
    """
    if quadratic is None or quadratic.ordinary == 1 or quadratic.gate.shape[1] * quadratic.length**2 > MOST_COLUMNS:
        return [True]
    return [True, False]


class _Trials:
    """Random norm groups on the decision's windows, whitened, and their values, each of unit spread."""

    def __init__(self, branch: NormWindows, features: Tensor, generator: torch.Generator) -> None:
        self.branch = branch
        size, length = branch.size, branch.windows.length
        own = features[..., :length]
        flat = own.flatten(end_dim=-2)
        noise = torch.randn(TRIAL_GROUPS * size, length, generator=generator, dtype=own.dtype).to(own.device)
        self.kernels = noise @ whitening(flat.mT @ flat / len(flat)) / size**0.5
        rows = max(1, LARGEST_PIECE // (own.shape[1] * own.shape[2] * len(self.kernels)))
        lengths = torch.cat([self._lengths(piece) for piece in own.split(rows)])
        self.spread = lengths.std(dim=(0, 1))
        self.columns = lengths / self.spread

    def _lengths(self, windows: Tensor) -> Tensor:
        squares = (windows @ self.kernels.mT).square().unflatten(-1, (-1, self.branch.size)).sum(dim=-1)
        return (squares + CONSTANT**2).sqrt().mean(dim=-2)

    def place(self, chosen: Tensor, weights: Tensor) -> None:
        """Make the chosen groups the branch's."""
        branch = self.branch
        rows = (chosen.unsqueeze(-1) * branch.size + torch.arange(branch.size, device=chosen.device)).flatten()
        stacked = torch.zeros_like(branch.stacked())
        stacked[:, : branch.windows.length] = self.kernels[rows]
        branch.place(stacked)
        branch.kappa.fill_(CONSTANT)
        share = (weights / self.spread)[chosen].clamp(min=FAINT**2)
        branch.weight.copy_(share.sqrt().unsqueeze(-1).expand_as(branch.weight))


class _Problem:
    """The convex problem: residuals linear in (Q_1, ..., Q_k, weights, level)."""

    def __init__(
        self, residuals: Residuals, quadratic: QuadraticWindows | None, trials: _Trials | None, together: bool
    ) -> None:
        self.residuals, self.quadratic, self.trials, self.together = residuals, quadratic, trials, together
        self.matrices = self.length = 0
        self.groups = 0 if trials is None else TRIAL_GROUPS
        columns = [] if trials is None else [trials.columns]
        if quadratic is not None:
            columns.insert(0, self._grams(quadratic, residuals.features["quadratic"]))
        columns.append(torch.ones_like(columns[0][..., :1]))
        flat = residuals.shrink(torch.cat(columns, dim=-1)).flatten(end_dim=1)
        target = residuals.shrink(residuals.data.value.unsqueeze(-1)).flatten()
        self.normal, self.right = flat.mT @ flat / len(target), flat.mT @ target / len(target)
        self.step = 1 / torch.linalg.eigvalsh(self.normal)[-1]
        self.allowed = target.new_ones(self.groups)
        self.chosen = torch.arange(self.groups, device=target.device)
        self.solution = torch.zeros_like(self.right)

    def _grams(self, branch: QuadraticWindows, features: Tensor) -> Tensor:
        """Return the columns of the Q_k, whitened: S -> R S R' with R (mean of S) R' = I."""
        ordinary = features[:, :, : branch.ordinary]
        if self.together:
            ordinary = ordinary.sum(dim=2, keepdim=True)
        grams = torch.cat([ordinary, features[:, :, branch.ordinary :]], dim=2)
        self.matrices, self.length = grams.shape[2], grams.shape[-1]
        self.whiten = torch.stack([whitening(gram) for gram in grams.mean(dim=(0, 1))])
        return 0.5 * (self.whiten @ grams @ self.whiten.mT).flatten(start_dim=2)

    def solve(self) -> None:
        """Minimise with all trial groups, then with a few choices of as many as the branch has."""
        everything = self.solution = self._descend(self.solution, ITERATIONS)
        if self.trials is None:
            return
        best, kept = torch.inf, self.trials.branch.groups
        order = everything.split(self._sizes())[1].argsort(descending=True)
        for first in range(CHOICES):
            chosen = order[first : first + kept]
            self.allowed = torch.zeros_like(self.allowed).index_fill(0, chosen, 1.0)
            found = self._descend(everything, ITERATIONS // CHOICES)
            loss = float(0.5 * found @ (self.normal @ found) - found @ self.right)
            if loss < best:
                self.solution, self.chosen, best = found, chosen, loss

    def _descend(self, start: Tensor, iterations: int) -> Tensor:
        """Return the point that accelerated projected gradients reach, with the step 1 / largest eigenvalue."""
        at = previous = ahead = self._project(start)
        momentum = 1.0
        for _ in range(iterations):
            at = self._project(ahead - self.step * (self.normal @ ahead - self.right))
            following = 0.5 * (1 + (1 + 4 * momentum**2) ** 0.5)
            uphill = float((ahead - at) @ (at - previous)) > 0  # drop the momentum (O'Donoghue and Candes 2015)
            ahead = at if uphill else at + (momentum - 1) / following * (at - previous)
            previous, momentum = at, 1.0 if uphill else following
        return at

    def _project(self, point: Tensor) -> Tensor:
        matrices, weights, level = point.split(self._sizes())
        if self.matrices:
            square = matrices.reshape(self.matrices, self.length, self.length)
            values, vectors = torch.linalg.eigh(0.5 * (square + square.mT))
            matrices = ((vectors * values.clamp(min=0).unsqueeze(-2)) @ vectors.mT).flatten()
        return torch.cat([matrices, self.allowed * weights.clamp(min=0), level])

    def _sizes(self) -> list[int]:
        return [self.matrices * self.length**2, self.groups, 1]

    def place(self, generator: torch.Generator) -> None:
        """Give the branches the solution's weights."""
        if self.trials is not None:
            self.trials.place(self.chosen, self.solution.split(self._sizes())[1])
        if self.quadratic is not None:
            self._place_quadratic(self.quadratic, generator)

    def _place_quadratic(self, branch: QuadraticWindows, generator: torch.Generator) -> None:
        """Factor the Q_k: the directions of largest eigenvalues, in whitened units, become channels."""
        square = self.solution.split(self._sizes())[0].reshape(self.matrices, self.length, self.length)
        values, vectors = torch.linalg.eigh(square)
        order = values.flatten().argsort(descending=True)[: branch.channels]
        kind, which = order // self.length, order % self.length
        roots = values[kind, which].clamp(min=0).sqrt()
        noise = LEFT_OVER * torch.randn(len(order), self.length, generator=generator, dtype=roots.dtype).to(
            roots.device
        )
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
