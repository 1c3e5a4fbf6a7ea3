"""The interface every surrogate shares: a convex function that can be learned.

A new surrogate needs one method, `_conic_form(context)`, when it is a sum of the terms in `soctk.terms`: see
`soctk.function.ConvexFunction`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from soctk.conditioning import AffinePart
from soctk.function import ConvexFunction

if TYPE_CHECKING:  # names for annotations only: the library imports downwards
    from soctk.learn.data import ValueData
    from soctk.learn.report import FitConfig, FitReport

SEED_STEP = 1000
"""Between the seeds of a surrogate's own weights and of those it draws afresh: neighbouring seeds share none."""


class ConvexSurrogate(ConvexFunction):
    """A convex function with weights that `soctk.fit` learns, and that `soctk.save` writes."""

    shifts_inputs: ClassVar[bool] = True
    """Whether `fit` may shift x and the context and scale each column of the context; one scale for each otherwise.

    Not where weights are shared by places: zeros beyond a border, and masks, would lose their meaning.
    """

    def features(self, x: Tensor, context: Tensor) -> dict[str, Tensor]:
        """Return what of g at standardised data depends on no weight, each (N, M, ...), for `value_of`; none here.

        Where evaluating g again and again on the same data is much cheaper with it, as for branches over windows.
        """
        return {}

    def value_of(self, x: Tensor, context: Tensor, features: dict[str, Tensor]) -> Tensor:
        """Return g at standardised data with their `features`: (N, M)."""
        return self._value(x, context)

    @property
    def affine_part(self) -> AffinePart | None:
        """The module of b0 and v where the surrogate keeps them apart, so that `fit` can treat them apart."""
        return getattr(self, "affine", None)

    @property
    def gauss_newton(self) -> bool:
        """Whether `fit` should learn it by Levenberg-Marquardt rather than L-BFGS.

        Not a model that lives by ReLU units: its values are piecewise smooth in the weights, with a piece for every
        pattern of active units, and a Gauss-Newton step leaves its piece.
        """
        return True

    @property
    def breadth(self) -> int:
        """How many numbers evaluating g keeps for each number of x, so that training does not run out of memory.

        0 where that is of no concern.
        """
        return 0

    @property
    def structure_count(self) -> int:
        """How many structures, the smallest first, `fit` may choose from; 1 where there is nothing to choose."""
        return 1

    def set_structure(self, index: int) -> None:
        """Take on structure `index`; blocks that are not part of it leave the function and their weights rest."""
        if index != 0:
            raise ValueError(f"index: {type(self).__name__} has one structure, got {index}")

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON data, so that `soctk.save` can rebuild the model."""
        raise NotImplementedError(f"{type(self).__name__} cannot be saved: it has no config()")

    def redrawn(self, seed: int) -> ConvexSurrogate | None:
        """Return a new surrogate of the same sizes with other initial weights, or None where there are none to draw."""
        if type(self).config is ConvexSurrogate.config:
            return None
        config = self.config()
        return type(self)(**config | {"seed": config["seed"] + SEED_STEP * seed}) if "seed" in config else None

    def fit_own(self, data: ValueData, validation: ValueData, config: FitConfig) -> FitReport | None:
        """Train in a way of the surrogate's own (closed form, another package), or return None for the recipe."""
        return None

    def set_range(self, low: Tensor, high: Tensor) -> None:
        """Take note of the least and largest x of the training data, (n,) each in standardised units; not kept here.

        For a surrogate whose function is laid out over an interval.
        """

    @property
    def parameter_count(self) -> int:
        """The number of trainable weights; those of blocks that are switched off do not count."""
        return sum(weight.numel() for weight in self.parameters() if weight.requires_grad)
