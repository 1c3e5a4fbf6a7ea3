"""What the convolutional and the recurrent SOC-ICNN share: windowed branches, an affine part and a backbone.

    f(x; theta) = b0(theta) + v(theta)'x + backbone(x; theta) + quadratic branch + conic branch

For a fixed context every part is a term of the conic form, over sparse maps (`soctk.maps.windows`): the paper's
"equivalence after vectorisation". Values are computed by torch's convolutions, which is faster; both are equal.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from soctk.checks import as_index, check_choice, check_count
from soctk.forms.conic_form import ConicForm
from soctk.maps.windows import Windows
from soctk.models.branches import ContextAffine, Kinds, NormWindows, QuadraticWindows
from soctk.surrogate import ConvexSurrogate
from soctk.terms import Term
from soctk.terms.network import Activation
from soctk.traits import TrainingTraits

Variant = Literal["relu", "softplus", "quad", "norm", "soc"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
Kind = TypeVar("Kind", bound="StructuredICNN")


class StructuredICNN(ConvexSurrogate):
    """A SOC-ICNN of windowed branches; `ConvSOCICNN` and `RecurrentSOCICNN` lay out the windows.

    Two structures for `fit` to choose from where there are branches and a backbone: the branches alone, and all.

    Attributes:
        branches: the quadratic and conic branches by name.
        backbone: the network, or None.
        context_affine: b0 and v.
    """

    convex_by_construction = True

    def __init__(self, dim: int, context_dim: int, variant: str, dtype: torch.dtype) -> None:
        super().__init__(dim, context_dim, dtype=dtype)
        check_choice(variant, "variant", VARIANTS)
        self.variant = variant
        self.activation: Activation = "softplus" if variant == "softplus" else "relu"
        self.branches = nn.ModuleDict()
        self.backbone: nn.Module | None = None
        self.context_affine: ContextAffine

    @property
    def has_quadratic(self) -> bool:
        """Whether the variant has the quadratic branch."""
        return self.variant in ("quad", "soc")

    @property
    def has_norms(self) -> bool:
        """Whether the variant has the conic branch."""
        return self.variant in ("norm", "soc")

    def _add_branches(
        self,
        quadratic: tuple[int, Windows, Windows | None, Kinds, Tensor | None],
        norms: tuple[int, int, int, Windows, Windows | None, Kinds],
        generator: torch.Generator,
    ) -> None:
        """Make the branches that the variant has.

        Args:
            quadratic: channels, the two kinds of windows, the kinds of places and the masks.
            norms: local groups, whole-map groups, kernels in each, the two kinds of windows and the kinds of places.
            generator: of random numbers.
        """
        options: dict[str, Any] = {"scale": 1.0, "generator": generator, "dtype": self.dtype}
        channels, windows, context, kinds, masks = quadratic
        if self.has_quadratic and channels:
            self.branches["quadratic"] = QuadraticWindows(
                windows, context, channels, kinds=kinds, masks=masks, **options
            )
        local, whole, size, windows, context, kinds = norms
        for name, groups in (("norms", local), ("whole", whole)):
            if self.has_norms and groups:
                more = {"size": size, "kinds": kinds, "whole": name == "whole", "weight": 0.3}
                self.branches[name] = NormWindows(windows, context, groups * size, **more, **options)

    # -- structures ------------------------------------------------------------------------------------

    @property
    def structure_count(self) -> int:
        """2 with branches and a backbone, 1 otherwise."""
        return 2 if self.branches and self.backbone is not None else 1

    def set_structure(self, index: int) -> None:
        """Take on the branches alone (0) or all (the last).

        Raises:
            ValueError: an index outside 0, ..., `structure_count` - 1.
        """
        if not 0 <= index < self.structure_count:
            raise ValueError(f"index: expected 0 to {self.structure_count - 1}, got {index}")
        self.structure = index
        for weight in [] if self.backbone is None else self.backbone.parameters():
            weight.requires_grad_(self.has_backbone)

    @property
    def has_backbone(self) -> bool:
        """Whether the structure taken has the backbone."""
        return self.backbone is not None and self.structure == self.structure_count - 1

    # -- training --------------------------------------------------------------------------------------

    @property
    def traits(self) -> TrainingTraits:
        """Windowed, and better by Levenberg-Marquardt without a backbone."""
        units = self.backbone.units if self.has_backbone else 0  # type: ignore[union-attr]
        return TrainingTraits(
            gauss_newton=not self.has_backbone,
            breadth=1 + units // self.dim,  # type: ignore[operator]
            shifts_inputs=False,
            structures=self.structure_count,
            structure=self.structure,
            set_structure=self.set_structure,
            blocks=(*self.branches, *(("backbone",) if self.has_backbone else ())),
            windowed=self,
        )

    def grown(self, smaller: dict[str, Tensor], fresh: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of the branches alone with a fresh backbone's."""
        return smaller | {name: tensor for name, tensor in fresh.items() if name.startswith("backbone.")}

    @contextmanager
    def coarse(self) -> Iterator[None]:
        """Compute the backbone's convolutions in float32 inside, where it has any; branches stay exact."""
        convolutional = hasattr(self.backbone, "working")
        if convolutional:
            self.backbone.working = torch.float32  # type: ignore[union-attr,assignment]
        try:
            yield
        finally:
            if convolutional:
                self.backbone.working = None  # type: ignore[union-attr,assignment]

    def features(self, x: Tensor, context: Tensor) -> dict[str, Tensor]:
        """Return what the branches need of standardised data, each (N, M, ...)."""
        return {name: branch.features(x, context) for name, branch in self.branches.items()}  # type: ignore[operator]

    def value_of(self, x: Tensor, context: Tensor, features: dict[str, Tensor]) -> Tensor:
        """Return g from data and their `features`, (N, M)."""
        total = self._rest(x, context)
        for name, branch in self.branches.items():
            total = total + branch.value_of(features[name])  # type: ignore[operator]
        return total

    @torch.no_grad()
    def set_level(self, level: float) -> None:
        """Set the constant part of b0."""
        self.context_affine.level.fill_(level)

    # -- the function ----------------------------------------------------------------------------------

    def _conic_form(self, context: Tensor) -> ConicForm:
        b0, v = self.context_affine(context)
        terms: list[Term] = [self.backbone.term(context)] if self.has_backbone else []  # type: ignore[union-attr,operator]
        terms += [branch.term(context) for branch in self.branches.values()]  # type: ignore[operator]
        return ConicForm(b0, v, tuple(terms), (context.shape[0],))

    def _value(self, x: Tensor, context: Tensor) -> Tensor:
        if not x.dtype == context.dtype == self.dtype:
            return super()._value(x, context)
        total = self._rest(x, context)
        for branch in self.branches.values():
            total = total + branch.value(x, context)  # type: ignore[operator]
        return total

    def _rest(self, x: Tensor, context: Tensor) -> Tensor:
        """Return the affine part and the backbone, (N, M)."""
        b0, v = self.context_affine(context)
        total = b0 + (x * v).sum(dim=-1)
        return total + self.backbone.value(x, context) if self.has_backbone else total  # type: ignore[union-attr,operator]

    # -- sizes -----------------------------------------------------------------------------------------

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""

    def _resized(self: Kind, **sizes: Any) -> Kind:
        """Return the model with the same weights for signals of other sizes."""
        if self.context_range is not None:
            raise ValueError("context_range: expected none for a model of another size; give that one its own")
        other = type(self)(**{**self.config(), **sizes}, dtype=self.dtype)
        state = self.state_dict()
        for name in ("x_mean", "x_scale", "context_mean", "context_scale"):
            values = state.pop(name)
            if values.numel() and bool((values != values[0]).any()):
                raise ValueError(f"{name}: expected the same units everywhere for another size, got several")
            if values.numel():
                getattr(other, name).fill_(values[0])
        for name, tensor in other.state_dict().items():
            if name in state and state[name].shape != tensor.shape:
                shapes = f"{tuple(state[name].shape)} here and {tuple(tensor.shape)} there"
                raise ValueError(f"sizes: expected weights of the same shapes for both, {name} has {shapes}")
        other.load_state_dict(state, strict=False)
        return other

    def _choose_structure(self, structure: int) -> None:
        self.set_structure(as_index(structure, "structure", self.structure_count))


def check_counts(model: nn.Module, names: tuple[str, ...], minimum: int) -> None:
    """Raise ValueError naming the attribute that is not a whole number of at least `minimum`."""
    for name in names:
        check_count(getattr(model, name), name, minimum=minimum)
