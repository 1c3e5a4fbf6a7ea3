"""v alone: what the projected residuals leave open."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.checks import seeded
from soctk.conditioning import AffinePart
from soctk.learn.least_squares import ridge_regression
from soctk.learn.levenberg import levenberg_marquardt
from soctk.learn.optimizers import LBFGS
from soctk.learn.phases.phase import Phase
from soctk.learn.residuals import Residuals
from soctk.learn.search import Run
from soctk.learn.trainer import Trainer

SHARED_LAYER = LBFGS(iterations=300, history=40, validate_every=20, patience=3)


@dataclass(frozen=True)
class Slope(Phase):
    """A regression of every instance's best slope on the context, with what suits each coordinate of v.

    - The ridge functions that the model has, from where they are, by Levenberg-Marquardt, coordinate by coordinate.
    - Few of them, from several starts: a response that is affine, or saturates once, is found exactly by one or two and
      blurred by many.
    - A hidden layer that all coordinates share, from several starts: where they bend together, as those of a rotated
      quadratic whose centre moves, every unit is learned from all of them.

    Each coordinate keeps what is best on validation data, and all keep what they had if time runs out before.

    Attributes:
        affine: whether v stays affine in the context: where the slopes are of few values that count, those held out
            are no better, and cannot tell a nonlinear response from noise.
        iterations: Levenberg-Marquardt steps.
        patience: steps without a better validation loss before it stops.
        counts: how few.
        starts: of each of them.
        shared: how the shared layer is learned.
        shared_starts: of it.
        shared_instances: that it is learned from, at most.
        decay: penalty of its squared weights, those inside in units of the slopes' variance.
    """

    affine: bool = False
    iterations: int = 40
    patience: int = 5
    counts: tuple[int, ...] = (0, 1, 2, 4)
    starts: int = 8
    shared: LBFGS = SHARED_LAYER
    shared_starts: int = 4
    shared_instances: int = 4_000
    decay: float = 1e-6

    def run(self, trainer: Trainer) -> None:
        if self.affine:
            self.run_late(trainer)
            return
        part, regression = trainer.affine, Regression.of(trainer)
        before, error = copy.deepcopy(part.state_dict()), regression.errors(part).sum()
        if part.slope_network is not None:
            torch.nn.init.zeros_(part.slope_network.outer)
        trainer.record(self._learn(trainer, part, regression), whole=False)
        for count in (count for count in self.counts if count < part.ridges):
            for start in range(self.starts if count > 0 else 1):
                if not trainer.deadline.passed:
                    few = part.with_slope(seeded(start), ridges=count)
                    self._learn(trainer, few, regression)
                    part.take(few, regression.errors(few) < regression.errors(part))
        self._share(trainer, part, regression)
        if not regression.errors(part).sum() < error:
            part.load_state_dict(before)
        trainer.keep()

    def run_late(self, trainer: Trainer) -> None:
        """Give each coordinate of v the affine response of least squares, where that is better on validation data."""
        part, regression = trainer.affine, Regression.of(trainer)
        few = part.with_slope(seeded(0))
        assert few.slope is not None
        assert few.slope.slope is not None
        context = regression.context
        found = ridge_regression(torch.cat([torch.ones_like(context[:, :1]), context], 1), regression.slope, self.decay)
        with torch.no_grad():
            few.slope.constant.copy_(found[0])
            few.slope.slope.copy_(found[1:].mT)
        part.take(few, regression.errors(few) < regression.errors(part))
        trainer.keep()

    def _learn(self, trainer: Trainer, part: AffinePart, regression: Regression) -> Run:
        search = trainer.search(
            part.own_slope_parameters(),
            lambda: regression.errors(part).mean(),
            self.iterations,
            self.patience,
            shown=False,
            problems=part.dim,
        )
        context = regression.context
        return levenberg_marquardt(search, lambda: regression.residual(part), lambda: part.v_jacobian(context))

    def _share(self, trainer: Trainer, part: AffinePart, regression: Regression) -> None:
        """Learn the shared layer, and take it for the coordinates where it is better."""
        layers, few = [], regression.first(self.shared_instances)
        for start in range(self.shared_starts if part.slope_network is not None else 0):
            if not trainer.deadline.passed:
                other = part.with_slope(seeded(start), slope_hidden=part.slope_hidden)
                layer = SharedLayer(other, few, self.decay)
                self.shared.minimize(trainer, [layer.inner], [layer.loss], layer.validate, shown=False)
                layer.settle()
                layers.append(other)
        if layers:
            best = min(layers, key=lambda other: float(regression.errors(other).sum()))
            part.take(best, regression.errors(best) < regression.errors(part))


@dataclass(frozen=True, eq=False)
class Regression:
    """Contexts (N, p) and slopes (N, n), to learn from and to validate by."""

    context: Tensor
    held_out_context: Tensor
    slope: Tensor
    held_out_slope: Tensor

    @classmethod
    def of(cls, trainer: Trainer) -> Regression:
        """Return the slopes that the curved part leaves."""
        model, part, data = trainer.model, trainer.affine, trainer.focused()
        slopes = (Residuals.projected(each).slope_targets(model, part) for each in data)
        return cls(*(each.context for each in data), *slopes)

    def residual(self, part: AffinePart) -> Tensor:
        """Return what v leaves, (n, N)."""
        return (part.v(self.context)[:, 0] - self.slope).mT

    @torch.no_grad()
    def errors(self, part: AffinePart) -> Tensor:
        """Return the mean squares on validation data, (n,)."""
        return (part.v(self.held_out_context)[:, 0] - self.held_out_slope).square().mean(dim=0)

    def first(self, instances: int) -> Regression:
        """Return the part with so many instances at most, to learn from and to validate by."""
        parts = self.context, self.held_out_context, self.slope, self.held_out_slope
        return Regression(*(each[:instances] for each in parts))

    @property
    def variance(self) -> Tensor:
        """The mean variance of a slope."""
        return self.slope.var(dim=0, correction=0).mean()


class SharedLayer:
    """v = E theta + e + W tanh(F theta + f) with E, e, W always the best for F, f (variable projection).

    With the features (1, theta, tanh(F theta + f)) of N instances in the rows of Phi and the slopes in the rows of V,
    B = (e, E, W)' is the least-squares solution (Phi'Phi / N + decay I)^-1 Phi'V / N, and what is left to minimise is
    a function of F and f alone (Golub and Pereyra 1973). Its derivative in B is zero: it is differentiated at fixed B.

    Args:
        part: holds the weights.
        regression: the data.
        decay: penalty of the squared weights, of F and f in units of the slopes' variance.
    """

    def __init__(self, part: AffinePart, regression: Regression, decay: float) -> None:
        assert part.slope_network is not None
        self.part, self.network, self.regression, self.decay = part, part.slope_network, regression, decay
        self.inner = self.network.inner

    def loss(self) -> Tensor:
        """Return the penalised mean square that the best B leaves, differentiable in F and f."""
        features, slope = self._features(self.regression.context), self.regression.slope
        best = self._best(features.detach())
        penalty = best.square().sum() + self.regression.variance * self.inner.square().sum()
        return (features @ best - slope).square().mean() + self.decay * penalty / slope.shape[1]

    def validate(self) -> Tensor:
        """Return the mean square on validation data."""
        found = self._features(self.regression.held_out_context) @ self._best(self._features(self.regression.context))
        return (found - self.regression.held_out_slope).square().mean()

    @torch.no_grad()
    def settle(self) -> None:
        """Give the part the best B."""
        affine, context = self.part.slope, self.regression.context
        assert affine is not None
        assert affine.slope is not None
        sizes = [1, context.shape[1], self.network.outer.shape[1]]
        constant, slope, outer = self._best(self._features(context)).split(sizes)
        affine.constant.copy_(constant[0])
        affine.slope.copy_(slope.mT)
        self.network.outer.copy_(outer.mT)

    def _features(self, context: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(context[:, :1]), context, self.network.hidden(context)], dim=1)

    @torch.no_grad()
    def _best(self, features: Tensor) -> Tensor:
        return ridge_regression(features, self.regression.slope, self.decay)
