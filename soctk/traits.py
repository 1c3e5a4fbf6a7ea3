"""What training may know of a surrogate beyond its values: one small object, whose defaults hold for any."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from soctk.conditioning import AffinePart
from soctk.context_units import ContextUnits
from soctk.forms.context_map import Part


class Windowed(Protocol):
    """A model of branches over windows: what of its values depends on the data alone is computed once."""

    @property
    def branches(self) -> nn.ModuleDict:
        """The branches by name (`soctk.models.branches`), maybe none."""
        ...

    def features(self, x: Tensor, context: Tensor) -> dict[str, Tensor]:
        """Return what no weight changes at standardised x (N, M, n) and contexts (N, p), each (N, M, ...)."""
        ...

    def value_of(self, x: Tensor, context: Tensor, features: dict[str, Tensor]) -> Tensor:
        """Return the values, (N, M), from data and their features."""
        ...

    def set_level(self, level: float) -> None:
        """Set the constant part of b0."""
        ...

    def grown(self, smaller: dict[str, Tensor], fresh: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the smaller structure's weights with fresh ones for what a larger structure adds."""
        ...

    def coarse(self) -> AbstractContextManager[None]:
        """Compute what training need not know exactly in float32 inside."""
        ...


def _only_one(index: int) -> None:
    if index != 0:
        raise ValueError(f"index: expected 0, there is one structure, got {index}")


@dataclass(frozen=True)
class Reduction:
    """A step to a smaller structure.

    Attributes:
        block: what becomes less.
        apply: makes the step, in the model's weights and in what is switched off.
    """

    block: str
    apply: Callable[[], None]


@dataclass(frozen=True, eq=False)
class TrainingTraits:
    """What `soctk.fit` asks of a surrogate (`ConvexSurrogate.traits`).

    Attributes:
        affine: the module of b0 and v where the surrogate keeps them apart, so that they can be learned apart.
        parts: returns what its terms are made of, where with the affine part that is all that it is made of.
        gauss_newton: whether Levenberg-Marquardt suits it better than L-BFGS. Not a model that lives by ReLU units:
            its values are piecewise smooth in the weights, with a piece for every pattern of active units, and a
            Gauss-Newton step leaves its piece.
        breadth: how many numbers evaluating it keeps for each number of x, so that training does not run out of
            memory; 0 where that is of no concern.
        shifts_inputs: whether training may shift x and the context and scale each column of the context; one scale
            for each otherwise. Not where weights are shared by places: zeros beyond a border would lose their meaning.
        structures: how many structures, the smallest first, validation data may choose from.
        structure: the index of the one taken now.
        without: its blocks that the model goes without all the same (`soctk.learn.phases.reduce`).
        set_structure: takes on the structure of an index, without the blocks named behind it.
        reductions: returns the next smaller structures, each less than the one taken now by as little as can be.
        blocks: names of what the structure taken now is made of beside the affine part, where the surrogate has names.
        centred: of the first structures, those that are learned with one centre for all branches
            (`soctk.learn.centred`), the branches.
        place_centred: takes on one of these by its index, with weights.
        units: the hidden units of the context that offsets and weights share (`soctk.context_units`).
        branches: how many branches of one row it has, of which there may be any number (`soctk.learn.phases.grow`); 0
            where it has none, or not in the structure taken now.
        set_branches: takes on so many, the first of those there are and others drawn by a seed; None where there can be
            no others.
        take_sizes: takes on the sizes of a state of the model's (`torch.nn.Module.state_dict`), where they can differ.
        set_range: told the least and largest x of the training data, (n,) each in standardised units.
        windowed: the model where it is one of branches over windows.
        own: a training of its own instead of the recipe, such as a closed form or another package's: given a
            `soctk.learn.trainer.Trainer`, leaves the model trained and ends with `trainer.judge`.
    """

    affine: AffinePart | None = None
    parts: Callable[[], list[Part]] | None = None
    gauss_newton: bool = True
    breadth: int = 0
    shifts_inputs: bool = True
    structures: int = 1
    structure: int = 0
    without: tuple[str, ...] = ()
    set_structure: Callable[..., None] = _only_one
    reductions: Callable[[], list[Reduction]] = list
    blocks: tuple[str, ...] = ()
    centred: tuple[Any, ...] = ()
    place_centred: Callable[[int, Any], None] | None = None
    units: ContextUnits | None = None
    branches: int = 0
    set_branches: Callable[[int, int], None] | None = None
    take_sizes: Callable[[dict[str, Tensor]], None] | None = None
    set_range: Callable[[Tensor, Tensor], None] | None = None
    windowed: Windowed | None = None
    own: Callable[[Any], None] | None = None

    def take_structure(self, index: int, without: tuple[str, ...]) -> None:
        """Take on the structure of an index, without the blocks named; models that name none take the index alone."""
        self.set_structure(index, *([without] if without else []))
