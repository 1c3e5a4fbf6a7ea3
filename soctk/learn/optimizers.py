"""The second-order methods with their options, as phases use them: to fit residuals in some of a model's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from soctk.learn.lbfgs import lbfgs
from soctk.learn.levenberg import levenberg_marquardt
from soctk.learn.residuals import Residuals
from soctk.learn.search import Run
from soctk.learn.trainer import Trainer

NEWTON_PATIENCE = 5
"""Levenberg-Marquardt steps without a better validation loss before it stops."""


class Optimizer(Protocol):
    """A method of at most `iterations` iterations."""

    def steps(self, trainer: Trainer) -> int:
        """Return how many iterations there are at most."""
        ...

    def run(self, trainer: Trainer, weights: list[nn.Parameter], train: Residuals, held_out: Residuals) -> None:
        """Leave `weights` where `held_out` is least on the way to the least mean square of `train`."""
        ...


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS.

    Attributes:
        iterations: at most.
        history: correction pairs.
        validate_every: iterations between validations.
        patience: validations without improvement before it stops.
    """

    iterations: int
    history: int
    validate_every: int
    patience: int

    def steps(self, trainer: Trainer) -> int:
        """Return how many iterations there are at most."""
        return self.iterations

    def run(self, trainer: Trainer, weights: list[nn.Parameter], train: Residuals, held_out: Residuals) -> None:
        """Fit the residuals."""
        model = trainer.model
        trainer.record(self.minimize(trainer, weights, train.losses(model), lambda: held_out.total(model)))

    def minimize(
        self,
        trainer: Trainer,
        weights: list[nn.Parameter],
        losses: Sequence[Callable[[], Tensor]],
        validate: Callable[[], Tensor],
        *,
        shown: bool = True,
    ) -> Run:
        """Minimise a sum of losses."""
        every = self.validate_every
        search = trainer.search(weights, validate, self.iterations, self.patience, shown=shown, validate_every=every)
        return lbfgs(search, losses, history=self.history)


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Levenberg-Marquardt.

    Attributes:
        iterations: steps, at most.
        penalty: of the squared weights.
    """

    iterations: int
    penalty: float

    def steps(self, trainer: Trainer) -> int:
        """Return how many iterations there are at most."""
        return self.iterations

    def run(self, trainer: Trainer, weights: list[nn.Parameter], train: Residuals, held_out: Residuals) -> None:
        """Fit the residuals."""
        model, part = trainer.model, trainer.model.traits.affine
        if train.keep == 0.0 and part is not None and part.level_network is not None:
            # Levels are projected out: the penalty alone would move b0's network, to zero, where it stays.
            rest = {id(weight) for weight in part.level_network.parameters()}
            weights = [weight for weight in weights if id(weight) not in rest]
        search = trainer.search(weights, lambda: held_out.total(model), self.iterations, NEWTON_PATIENCE)
        run = levenberg_marquardt(
            search,
            lambda: train.residual(model).reshape(1, -1),
            lambda: train.jacobian(model, weights).flatten(end_dim=1).unsqueeze(0),
            self.penalty,
        )
        trainer.record(run)


@dataclass(frozen=True)
class Suited:
    """Levenberg-Marquardt where it suits the model and there are few weights, another method or none elsewhere.

    Attributes:
        newton: Levenberg-Marquardt.
        most: weights that it is used for.
        other: the other method.
    """

    newton: LevenbergMarquardt
    most: int
    other: LBFGS | None = None

    def steps(self, trainer: Trainer) -> int:
        """Return the iterations, at most, of the one that suits all weights."""
        method = self._suited(trainer, trainer.weights())
        return 0 if method is None else method.steps(trainer)

    def run(self, trainer: Trainer, weights: list[nn.Parameter], train: Residuals, held_out: Residuals) -> None:
        """Fit the residuals by the one that suits."""
        method = self._suited(trainer, weights)
        if method is not None:
            method.run(trainer, weights, train, held_out)

    def _suited(self, trainer: Trainer, weights: list[nn.Parameter]) -> LevenbergMarquardt | LBFGS | None:
        few = sum(weight.numel() for weight in weights) <= self.most
        return self.newton if few and trainer.model.traits.gauss_newton else self.other
