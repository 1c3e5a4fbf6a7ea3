"""The interface every surrogate shares: a convex function that can be learned.

A new surrogate needs one method, `_conic_form(context)`, when it is a sum of the terms in `soctk.terms`: see
`soctk.function.ConvexFunction`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from soctk.function import ConvexFunction
from soctk.traits import TrainingTraits


class ConvexSurrogate(ConvexFunction):
    """A convex function with weights, which `soctk.fit` learns and `soctk.save` writes."""

    convex_by_construction: ClassVar[bool] = False
    """Whether the function is convex for all finite weights; where it is not, `soctk.load` looks at the weights."""

    @property
    def traits(self) -> TrainingTraits:
        """What `soctk.fit` may know of the surrogate; overridden where there is more to say than the default.

        An attribute `affine` (`soctk.conditioning.AffinePart`) is taken as its b0 and v, and `units`
        (`soctk.context_units`) as the hidden units of the context that all else may follow.
        """
        return TrainingTraits(affine=getattr(self, "affine", None), units=getattr(self, "units", None))

    @property
    def context_units(self) -> int:
        """The number of hidden units of the context that coefficients follow (`soctk.context_units`)."""
        units = self.traits.units
        return 0 if units is None else units.count

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON data, so that `soctk.save` can rebuild the model."""
        raise NotImplementedError(f"{type(self).__name__} cannot be saved: it has no config()")

    # The structure that a fit has chosen is no tensor; without it the same weights are another function.

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):  # which PyTorch writes and reads with the state, for each module
            traits = self.traits
            destination._metadata[prefix[:-1]]["structure"] = (traits.structure, traits.without)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *others: Any) -> None:
        traits, chosen = self.traits, local_metadata.get("structure")
        if chosen is not None and chosen != (traits.structure, traits.without):
            try:
                traits.take_structure(*chosen)
            except ValueError as error:
                others[-1].append(f"{prefix}structure: {error}")  # `load_state_dict` raises
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)

    @property
    def parameter_count(self) -> int:
        """The number of trainable weights; those of blocks that are switched off do not count."""
        return sum(weight.numel() for weight in self.parameters() if weight.requires_grad)
