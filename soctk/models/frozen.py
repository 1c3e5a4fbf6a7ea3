"""A dense SOC-ICNN as it is now, for values and decisions one at a time.

What depends on the weights alone is taken once. A model that may still change compares its weights with those before
at every call, which takes longer than a small decision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from soctk.forms.conic_form import ConicForm
from soctk.memo import Answer, Memo, contents
from soctk.models.dense import INNER, MODELS, SOCICNN
from soctk.surrogate import ConvexSurrogate


def freeze(model: SOCICNN) -> FrozenSurrogate:
    """Return the function that a dense model is now, on its device and in its precision, for many calls of few rows.

    It has no weights: whatever becomes of the model changes nothing in it, and it cannot be trained or saved. It is
    evaluated, decided with, embedded and differentiated in x and in the context as the model.

    Raises:
        TypeError: a surrogate of another kind, of a class of one's own, or with hooks or others' modules inside.
    """
    return FrozenSurrogate(model)


class FrozenSurrogate(ConvexSurrogate):
    """What `freeze` returns."""

    def __init__(self, model: SOCICNN) -> None:
        if type(model) not in MODELS or not INNER.issuperset(contents(model)[2]):
            names = ", ".join(kind.__name__ for kind in MODELS)
            raise TypeError(
                f"model: expected one of {names}, without hooks and with its own modules inside, got "
                f"{type(model).__name__}; use it as it is"
            )
        super().__init__(model.dim, model.context_dim, dtype=model.dtype)
        self._count = model.parameter_count
        with torch.inference_mode(False), torch.no_grad():  # it may outlive an inference mode
            model = copy.deepcopy(model).requires_grad_(False)
            self._stacked = model.stacked()
            exact = model.dtype == torch.float64
            self._exact = self._stacked if exact else copy.deepcopy(model).double().stacked()
        self._buffers.update(model._buffers)
        self._source = (model,)  # no module inside: its weights are nobody's to change
        self._kept: dict[Memo[Any], Any] = {}

    def _conic_form(self, context: Tensor) -> ConicForm:
        stacked = self._stacked if context.dtype == self._stacked.slope.dtype else self._exact
        return stacked.form(context)

    def kept(self, memo: Memo[Answer], compute: Callable[[SOCICNN], Answer]) -> Answer:
        """Return what was computed of the model, as `SOCICNN.kept`."""
        if memo not in self._kept:
            with torch.inference_mode(False), torch.no_grad():
                self._kept[memo] = compute(self._source[0])
        return self._kept[memo]

    @property
    def parameter_count(self) -> int:
        """The number of trainable weights of the model that it was."""
        return self._count

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles hold: not what can be computed again."""
        return {**self.__dict__, "_kept": {}}

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
