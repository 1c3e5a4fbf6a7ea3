"""A model as it is now, for values and decisions one at a time: what depends on the weights alone is computed once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from soctk.forms.context_map import ContextMap
from soctk.function import EXPRESSION, FORM, VALUE, ConvexFunction, check_function
from soctk.surrogate import ConvexSurrogate

Made = TypeVar("Made")
DERIVED = (*VALUE, *(name for name in FORM if name != "_context_map"), "conic_form", *EXPRESSION)
"""What must follow from the context map alone, for the context map to be the function."""


def freeze(model: ConvexSurrogate) -> FrozenSurrogate:
    """Return the function that a dense model is now, on its device and in its precision, for many calls of few rows.

    It has no weights: whatever becomes of the model changes nothing in it, and it cannot be trained or saved. It is
    evaluated, decided with, embedded and differentiated in x and in the context as the model.

    Raises:
        TypeError: a surrogate without a context map, or of a class that computes its values in a way of its own.
    """
    return FrozenSurrogate(model)


class FrozenSurrogate(ConvexSurrogate):
    """What `freeze` returns."""

    def __init__(self, model: ConvexSurrogate) -> None:
        check_function(model)
        own = [name for name in DERIVED if getattr(type(model), name) is not getattr(ConvexFunction, name)]
        if own or type(model)._context_map is ConvexFunction._context_map:
            why = f"which has its own {own[0]}" if own else "whose coefficients have no context map"
            raise TypeError(
                f"model: expected a dense model such as SOCICNN, got {type(model).__name__}, {why}; use it as it is"
            )
        super().__init__(model.dim, model.context_dim, dtype=model.dtype)
        self._count, self.support = model.parameter_count, model.support
        with torch.inference_mode(False), torch.no_grad():  # it may outlive an inference mode
            copied = copy.deepcopy(model).requires_grad_(False)  # a context map shares memory with the weights
            self._coefficients = copied._context_map()
            exact = model.dtype == torch.float64
            self._exact = self._coefficients if exact else copy.deepcopy(copied).double()._context_map()
        self._buffers.update(copied._buffers)
        self._made: dict[Callable[..., Any], Any] = {}

    def _context_map(self) -> ContextMap | None:
        return self._exact if self.dtype == torch.float64 else self._coefficients

    def once(self, make: Callable[[FrozenSurrogate], Made]) -> Made:
        """Return make(self), made at the first call only: what it is made of does not change."""
        if make not in self._made:
            with torch.inference_mode(False), torch.no_grad():
                self._made[make] = make(self)
        return self._made[make]

    @property
    def parameter_count(self) -> int:
        """The number of trainable weights of the model that it was."""
        return self._count

    # -- nothing changes it ----------------------------------------------------------------------------

    def set_standardization(self, **units: Any) -> NoReturn:
        """Refuse."""
        self._refuse("trained or given other units")

    def load_state_dict(self, state_dict: Mapping[str, Any], *options: Any, **more: Any) -> NoReturn:
        """Refuse."""
        self._refuse("given weights")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NoReturn:
        self._refuse("moved or converted")

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"a frozen model cannot be {what}: do that to the model that it was made of, and freeze it again"
        )
