"""The second-order methods with their options, as phases use them: to fit residuals in some of a model's weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from soctk.learn.lbfgs import lbfgs
from soctk.learn.levenberg import levenberg_marquardt
from soctk.learn.residuals import Residuals
from soctk.learn.trainer import Trainer

NEWTON_PATIENCE = 5
"""Levenberg-Marquardt steps without a better validation loss before it stops."""


class Optimizer(Protocol):
    """A method with its options."""

    @property
    def iterations(self) -> int:
        """At most this many."""
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

    def run(self, trainer: Trainer, weights: list[nn.Parameter], train: Residuals, held_out: Residuals) -> None:
        """Run it."""
        search = trainer.search(
            weights,
            lambda: held_out.total(trainer.model),
            self.iterations,
            validate_every=self.validate_every,
            patience=self.patience,
        )
        trainer.record(lbfgs(search, losses(trainer, train), history=self.history))


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Levenberg-Marquardt.

    Attributes:
        iterations: steps, at most.
        penalty: of the squared weights.
    """

    iterations: int
    penalty: float

    def run(self, trainer: Trainer, weights: list[nn.Parameter], train: Residuals, held_out: Residuals) -> None:
        """Run it."""
        model = trainer.model
        search = trainer.search(weights, lambda: held_out.total(model), self.iterations, patience=NEWTON_PATIENCE)
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

    @property
    def iterations(self) -> int:
        """Levenberg-Marquardt's."""
        return self.newton.iterations

    def run(self, trainer: Trainer, weights: list[nn.Parameter], train: Residuals, held_out: Residuals) -> None:
        """Run the one that suits."""
        few = sum(weight.numel() for weight in weights) <= self.most
        method = self.newton if few and trainer.model.traits.gauss_newton else self.other
        if method is not None:
            method.run(trainer, weights, train, held_out)


def losses(trainer: Trainer, train: Residuals) -> list[Callable[[], Tensor]]:
    """Return the parts of the mean squared residual, each of a few instances."""
    parts = [(part, part.instances / train.instances) for part in train.pieces(trainer.model)]
    return [lambda part=part, share=share: share * part.loss(trainer.model) for part, share in parts]
