"""A model with a context map as flat arrays: what no context changes, and where the rest goes.

In the user's units every coefficient is gain * g's + bias, but that b0 moves with v too (`SumOfTerms.transformed`). The
columns of `Packed.data` are then filled straight from the responses to the context.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from soctk.checks import to_numpy
from soctk.decide.compiled.form import Packed, pack, supported
from soctk.forms.responses import Responses, responses
from soctk.function import ConvexFunction
from soctk.models.frozen import FrozenSurrogate
from soctk.terms import Term

AT_A_TIME = 2**16
"""Numbers that the responses to contexts made at a time have: half a megabyte, which stays in a second-level cache."""


@dataclass(frozen=True, eq=False)
class PackedModel:
    """A model at any context, packed.

    Attributes:
        numbers: what g's coefficients are made from (`soctk.forms.responses`), of standardised contexts.
        sizes: of `ContextMap`.
        template: the packed form of one function without what a context changes.
        mean: of the context, (p,).
        scale: of the context, (p,).
        context_range: of the model, (2, p) or None.
        outer: the map's ridges and index as arrays.
        columns: for each weight its column of `Packed.data`.
        gain: of each column.
        bias: of each column.
        shift: what b0 gains with each of v, -x_mean / x_scale.
    """

    numbers: Responses
    sizes: list[int]
    template: Packed
    mean: np.ndarray
    scale: np.ndarray
    context_range: np.ndarray | None
    outer: tuple[np.ndarray, ...]
    columns: np.ndarray
    gain: np.ndarray
    bias: np.ndarray
    shift: np.ndarray

    @classmethod
    def of(cls, model: ConvexFunction) -> PackedModel | None:
        """Return a model packed, or None for one without a context map that the compiled method knows.

        Raises:
            ValueError: a matrix that is not finite, or a mixing weight that is negative.
        """
        coefficients = model.context_map() if model.dtype == torch.float64 else None
        if coefficients is None:
            return None
        factor, scale = 1.0 / model.x_scale, float(model.value_scale)
        shift = -model.x_mean * factor
        form = coefficients.template(factor, shift, scale)
        if not supported(form):
            return None
        template = pack(form)
        columns = template.layout.weights
        if not (np.isfinite(template.shared).all() and form.convex):
            form.check()
        bias, gain = template.data[0].copy(), np.ones(template.data.shape[1])
        bias[0], bias[columns] = float(model.value_mean), 0.0
        gain[0], gain[1 : 1 + form.dim], gain[columns] = scale, scale * to_numpy(factor), scale
        outer = to_numpy(coefficients.ridges), coefficients.index.numpy().copy()
        mean, unit = to_numpy(model.context_mean), to_numpy(model.context_scale)
        limits = None if model.context_range is None else to_numpy(model.context_range)
        numbers, sizes = coefficients.as_arrays(), coefficients.sizes
        return cls(numbers, sizes, template, mean, unit, limits, outer, columns, gain, bias, to_numpy(shift))

    @property
    def kinds(self) -> tuple[type[Term], ...]:
        """The classes of terms that the compiled code has to know."""
        return self.template.kinds

    @classmethod
    def now(cls, model: ConvexFunction) -> PackedModel | None:
        """Return a model packed as it is now, as `of`; a frozen one, which does not change, only once."""
        return model.once(cls.of) if isinstance(model, FrozenSurrogate) else cls.of(model)

    def at(self, contexts: Tensor) -> Packed | None:
        """Return the packed functions at contexts (N, p); None where a coefficient is not finite."""
        from soctk.decide.compiled.coefficients import assemble  # Numba is loaded when there is something to solve

        rows, finite = to_numpy(contexts), True
        rows = rows if self.context_range is None else rows.clip(*self.context_range)
        data = np.empty((rows.shape[0], self.gain.size))
        count = max(1, AT_A_TIME // len(self.numbers.slope))
        for first in range(0, data.shape[0], count):
            here = slice(first, first + count)
            found = responses((rows[here] - self.mean) / self.scale, self.numbers, self.sizes)
            found = map(np.ascontiguousarray, found)  # so that the compiled code is there once
            finite &= assemble(*found, *self.outer, self.columns, self.gain, self.bias, self.shift, data[here])
        return self.template.given(data) if finite else None


@dataclass(frozen=True, eq=False)
class PackedForm:
    """A function without context, packed."""

    packed: Packed

    @classmethod
    def of(cls, model: ConvexFunction) -> PackedForm | None:
        """Return a function packed, or None for one with a context or that the compiled method does not know."""
        if model.context_dim > 0 or model.dtype != torch.float64 or not model.has_conic_form:
            return None
        form = model.conic_form().detach()
        return cls(pack(form)) if supported(form) else None

    @property
    def kinds(self) -> tuple[type[Term], ...]:
        """The classes of terms that the compiled code has to know."""
        return self.packed.kinds

    def at(self, contexts: Tensor) -> Packed:
        """Return the packed function."""
        return self.packed
