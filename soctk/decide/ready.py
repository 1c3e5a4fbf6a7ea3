"""Dense models made ready to decide: everything that does not depend on the context computed and packed once.

What does depend on it is one product of a matrix with the standardised context and a few functions of numbers
(`soctk.models.stacked`), here in the user's units and in the order in which the compiled method wants them. For one
decision that is a tenth of the work of making a `ConicForm` and of packing it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from soctk.checks import to_numpy
from soctk.decide.compiled.form import Packed, pack
from soctk.decide.result import Result
from soctk.memo import Memo
from soctk.models.dense import SOCICNN
from soctk.models.frozen import FrozenSurrogate
from soctk.models.stacked import Stacked
from soctk.sets import FeasibleSet
from soctk.surrogate import ConvexSurrogate
from soctk.terms import Norms

AT_A_TIME = 256
"""Contexts whose intermediate numbers stay in a second-level cache."""


def solve_ready(
    model: ConvexSurrogate,
    feasible_set: FeasibleSet,
    contexts: Tensor,
    *,
    tol: float,
    max_iter: int,
    deadline: float,
) -> Result | None:
    """Decide by the compiled Newton method, over a set that it knows and that leaves every coordinate free.

    None where the model or the contexts (N, p) are none for this way.
    """
    if contexts.dtype != torch.float64:
        return None
    ready = _ready(model)
    packed = None if ready is None else ready.at(contexts.detach().numpy())
    if packed is None:
        return None  # the form names what is not finite
    from soctk.decide.compiled.solve import solve_packed  # Numba is loaded when there is something to solve

    return solve_packed(packed, feasible_set, tol=tol, max_iter=max_iter, deadline=deadline)


def _ready(model: ConvexSurrogate) -> _Ready | None:
    """Return the model made ready, kept for as long as nothing that it is made of changes."""
    if not isinstance(model, (SOCICNN, FrozenSurrogate)) or model.dtype != torch.float64:
        return None
    return model.kept(_READY, _Ready.of)


@dataclass(frozen=True, eq=False)
class _Ready:
    """A model at any context, packed.

    Attributes:
        template: the packed form at one context.
        mean: of the context, (p,).
        scale: of the context, (p,).
        rows: [S s] transposed, (p + 1, D), S and s with the rows of `Stacked`.
        sizes: of the first rows, which are the first columns of `Packed.data`; of the weights; ridges; tanh units.
        floor: the last columns of `Packed.data`, the weights and kappas, less what the context adds to weights.
        spread: for each of these the place of its weight, any for a kappa.
        unit: of the values, for each of these; 0 for a kappa.
        ridges: (n, count), the ridges' outer weights.
        units: (hidden,), the tanh units' outer weights.
        x_mean: of the decision.
    """

    template: Packed
    mean: np.ndarray
    scale: np.ndarray
    rows: Tensor
    sizes: list[int]
    floor: np.ndarray
    spread: np.ndarray
    unit: np.ndarray
    ridges: np.ndarray
    units: np.ndarray
    x_mean: float

    @classmethod
    def of(cls, model: SOCICNN) -> _Ready:
        """Make ready a model that nobody else will change."""
        # The form at one context gives what does not depend on it, and whatever is wrong with the weights is found.
        origin = torch.zeros(1, model.context_dim, dtype=torch.float64)
        template = pack(model.form_at(origin).check().detach())
        stacked = model.stacked()
        x_mean, unit, factor = float(model.x_mean), float(model.value_scale), 1 / float(model.x_scale)
        rows = np.column_stack([to_numpy(stacked.slope), to_numpy(stacked.constant)])
        level, v, *offsets = np.split(rows, np.cumsum(stacked.sizes[:-3]))[:-1]
        v *= unit * factor
        level *= unit
        level -= x_mean * v.sum(axis=0)
        level[0, -1] += float(model.value_mean)
        for offset, part in zip(offsets, stacked.parts, strict=True):
            offset[:, -1] -= x_mean * factor * to_numpy(part.map.matrix[0]).sum(axis=1)
        return cls(
            template,
            to_numpy(model.context_mean),
            to_numpy(model.context_scale),
            torch.from_numpy(np.ascontiguousarray(rows.T)),
            [sum(stacked.sizes[:-3]), *stacked.sizes[-3:]],
            *_weights(stacked, unit),
            unit * factor * to_numpy(stacked.ridges),
            unit * to_numpy(stacked.units),
            x_mean,
        )

    def at(self, contexts: np.ndarray) -> Packed | None:
        """Return the packed forms at contexts (N, p); None where a number is not finite."""
        from soctk.decide.compiled.coefficients import assemble  # Numba is loaded when there is something to solve

        standard = np.ones((len(contexts), self.mean.size + 1))
        standard[:, :-1] = (contexts - self.mean) / self.scale
        data, finite = np.empty((len(contexts), self.sizes[0] + self.floor.size)), True
        weights, units = slice(self.sizes[0], sum(self.sizes[:2])), slice(sum(self.sizes[:3]), None)
        fixed = self.floor, self.spread, self.unit, self.ridges, self.units, self.x_mean
        for first in range(0, len(contexts), AT_A_TIME):
            here = slice(first, first + AT_A_TIME)
            # with as many threads as PyTorch is allowed
            rows = torch.mm(torch.from_numpy(standard[here]), self.rows).numpy()
            rows[:, weights] = _softplus(rows[:, weights])
            np.tanh(rows[:, units], out=rows[:, units])
            finite &= assemble(rows, *fixed, data[here])
        return dataclasses.replace(self.template, data=data) if finite else None


def _softplus(a: np.ndarray) -> np.ndarray:
    return np.maximum(a, 0.0) + np.log1p(np.exp(-np.abs(a)))


def _weights(stacked: Stacked, unit: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `floor`, `spread` and `unit` of the weights of all terms, kappa behind a norm's."""
    floors, spreads, units, first = [np.zeros(0)], [np.zeros(0, dtype=int)], [np.zeros(0)], 0
    for part in stacked.parts:
        own = np.arange(part.count) if part.spread is None else part.spread.numpy()
        floors.append(unit * to_numpy(stacked.floors)[first + own])
        spreads.append(first + own)
        units.append(np.full(own.size, unit))
        first += part.count
        if part.kind is Norms:
            floors.append(to_numpy(part.more["kappa"]).reshape(-1))
            spreads.append(np.zeros(floors[-1].size, dtype=int))
            units.append(np.zeros(floors[-1].size))
    return np.concatenate(floors), np.concatenate(spreads), np.concatenate(units)


_READY: Memo[_Ready] = Memo()
