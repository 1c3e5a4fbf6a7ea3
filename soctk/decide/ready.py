"""Dense models made ready to decide: everything that does not depend on the context computed and packed once.

What does depend on it is affine in the standardised context theta, but for the non-negative weights and the nonlinear
responses of b0 and v, whose arguments are. So all coefficients of a form take one product of a matrix with theta,

    b0, v, d of all terms, arguments of softplus, of the ridges and of the tanh units = S theta + s,

in the user's units, and in the order in which the compiled method wants them. For a single decision that is a tenth of
the work of making a `ConicForm` and of packing it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from soctk.checks import to_numpy
from soctk.conditioning import AffinePart, NonNegative, Offset, Perceptron, Ridges
from soctk.decide.certified import NEWTON_DIM, finish
from soctk.decide.compiled.form import Packed, pack
from soctk.decide.newton import DEFAULT_ITERATIONS
from soctk.decide.reduction import Reduction
from soctk.decide.result import Result
from soctk.memo import Memo
from soctk.models.dense import SOCICNN, NormICNN, Part, QuadICNN, ReLUICNN, SoftplusICNN
from soctk.sets import FeasibleSet
from soctk.surrogate import ConvexSurrogate
from soctk.terms import Norms

MODELS = (SOCICNN, ReLUICNN, SoftplusICNN, QuadICNN, NormICNN)
INNER = frozenset({AffinePart, Offset, NonNegative, Perceptron, Ridges, nn.ModuleList, nn.ParameterList})
AT_A_TIME = 64
"""Contexts whose intermediate numbers stay in a second-level cache."""
SWITCHES = ("_off", "dim", "context_dim", "hidden", "quadratics", "norms", "hyperbolics", "activation")


def solve_ready(
    model: ConvexSurrogate,
    feasible_set: FeasibleSet,
    contexts: Tensor,
    *,
    tol: float,
    max_iter: int | None,
    deadline: float,
) -> Result | None:
    """Decide by the compiled Newton method; None where the model, the set or the contexts are none for this way."""
    if contexts.dtype != torch.float64 or model.dim > NEWTON_DIM:
        return None
    ready = _ready(model)
    if ready is None or not Reduction.of(feasible_set, torch.float64, contexts.device).trivial:
        return None
    rows = model.context_rows(contexts.detach()).numpy()
    packed = ready.at(rows)
    if not np.isfinite(packed.data).all():
        return None  # the form names what is not finite
    from soctk.decide.compiled.solve import solve_packed  # Numba is loaded when there is something to solve

    steps = DEFAULT_ITERATIONS if max_iter is None else max_iter
    result = solve_packed(packed, feasible_set, tol=tol, max_iter=steps, deadline=deadline)
    if max_iter is None:
        finish(result, lambda: model.form_at(contexts).detach(), feasible_set, "newton", tol, deadline)
    return result


def _ready(model: ConvexSurrogate) -> _Ready | None:
    """Return the model made ready, kept for as long as nothing that it is made of changes."""
    if type(model) not in MODELS or model.dtype != torch.float64 or model.device.type != "cpu":
        return None
    weights, buffers, kinds = _contents(model)
    if not INNER.issuperset(kinds):
        return None
    known = {id(buffer): buffer.detach().clone() for buffer in buffers}
    switches = [getattr(model, name) for name in SWITCHES]
    key = *switches, *kinds, *(buffer.numpy().tobytes() for buffer in known.values())

    def make(copies: Sequence[Tensor]) -> _Ready:
        return _Ready.of(_twin(model, known | {id(w): c for w, c in zip(weights, copies, strict=True)}))

    return _READY.of(model, weights, make, key)


def _contents(model: nn.Module) -> tuple[list[Tensor], list[Tensor], list[type]]:
    """Return the parameters, the buffers and the classes of all modules inside; `nn.Module`'s own walks take longer."""
    weights: list[Tensor] = []
    buffers: list[Tensor] = []
    kinds: list[type] = []
    stack: list[nn.Module] = [model]
    while stack:
        inside = stack.pop().__dict__
        weights += [tensor for tensor in inside["_parameters"].values() if tensor is not None]
        buffers += [tensor for tensor in inside["_buffers"].values() if tensor is not None]
        if inside["_forward_pre_hooks"] or inside["_forward_hooks"]:
            kinds.append(object)  # none of those known
        for child in inside["_modules"].values():
            if child is not None:
                stack.append(child)
                kinds.append(type(child))
    return weights, buffers, kinds


def _twin(module: Any, tensors: dict[int, Tensor]) -> Any:
    """Return a module of other tensors, found by the identity of its own; what else it has is shared."""
    twin = copy.copy(module)
    for name in ("_parameters", "_buffers"):
        own = module.__dict__[name].items()
        twin.__dict__[name] = {key: None if tensor is None else tensors[id(tensor)] for key, tensor in own}
    children = module.__dict__["_modules"].items()
    twin.__dict__["_modules"] = {key: None if child is None else _twin(child, tensors) for key, child in children}
    return twin


@dataclass(frozen=True, eq=False)
class _Ready:
    """A model at any context, packed.

    Attributes:
        template: the packed form at one context.
        mean: of the context, (p,).
        scale: of the context, (p,).
        slope: S transposed, (p, D + ridges and tanh units); the first D columns are those of `Packed.data`.
        constant: s.
        floor: the part of the weights that no context moves, in the last columns of D.
        unit: of the values, 0 for a norm's kappa among the weights.
        ridges: (n, count), the ridges' outer weights.
        units: (hidden,), the tanh units' outer weights.
        x_mean: of the decision.
    """

    template: Packed
    mean: np.ndarray
    scale: np.ndarray
    slope: np.ndarray
    constant: np.ndarray
    floor: np.ndarray
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
        x_mean, unit = float(model.x_mean), float(model.value_scale)
        factor, n, p = 1 / float(model.x_scale), model.dim, model.context_dim
        affine, none = model.affine, np.zeros((0, p + 1))
        parts = model.parts(model._backbone(model._backbone_weights()))
        level, v = _affine(affine.level, p) * unit, np.zeros((n, p + 1))
        if affine.slope is not None:
            v = unit * factor * _affine(affine.slope, p)
        level[0] -= x_mean * v.sum(axis=0)
        level[0, -1] += float(model.value_mean)
        offsets = [none]
        for part in parts:
            matrix = np.concatenate([to_numpy(block) for block in part.matrices])
            offset = np.concatenate([_affine(module, p) for module in part.offsets])
            offset[:, -1] -= x_mean * factor * matrix.sum(axis=1)
            offsets.append(offset)
        none_at_all = none, np.zeros(0), np.zeros(0)
        weights, floors, units = zip(none_at_all, *(_weights(part, p, unit) for part in parts), strict=True)
        ridges, tanh = affine.slope_ridges, affine.level_network
        arguments = [to_numpy(module.inner) for module in (ridges, tanh) if module is not None]
        rows = np.concatenate([level, v, *offsets, *weights, *arguments])
        return cls(
            template,
            to_numpy(model.context_mean),
            to_numpy(model.context_scale),
            np.ascontiguousarray(rows[:, :-1].T),
            rows[:, -1].copy(),
            np.concatenate(floors),
            np.concatenate(units),
            np.zeros((n, 0)) if ridges is None else unit * factor * to_numpy(ridges.outer),
            np.zeros(0) if tanh is None else unit * to_numpy(tanh.outer[0]),
            x_mean,
        )

    def at(self, contexts: np.ndarray) -> Packed:
        """Return the packed forms at contexts (N, p)."""
        standard = (contexts - self.mean) / self.scale
        count = self.slope.shape[1] - self.units.size - self.ridges.size
        data = np.empty((len(contexts), count))
        for first in range(0, len(contexts), AT_A_TIME):
            self._fill(data[first : first + AT_A_TIME], standard[first : first + AT_A_TIME])
        return dataclasses.replace(self.template, data=data)

    def _fill(self, data: np.ndarray, standard: np.ndarray) -> None:
        stacked = standard @ self.slope + self.constant
        count, n = data.shape[1], self.ridges.shape[0]
        first, end = count - self.floor.size, count + self.ridges.size
        data[:, :first] = stacked[:, :first]
        data[:, first:] = self.floor + self.unit * _softplus(stacked[:, first:count])
        if self.ridges.size:
            bent = np.maximum(stacked[:, count:end], 0.0).reshape(-1, *self.ridges.shape)
            bent = np.einsum("nik,ik->ni", bent, self.ridges)
            data[:, 1 : n + 1] += bent
            data[:, 0] -= self.x_mean * bent.sum(axis=1)
        if self.units.size:
            data[:, 0] += np.tanh(stacked[:, end:]) @ self.units


def _softplus(a: np.ndarray) -> np.ndarray:
    return np.maximum(a, 0.0) + np.log1p(np.exp(-np.abs(a)))


def _affine(module: nn.Module, p: int) -> np.ndarray:
    """Return [E e] of an offset E theta + e, (size, p + 1)."""
    assert isinstance(module, Offset)
    slope = np.zeros((module.constant.numel(), p)) if module.slope is None else to_numpy(module.slope)
    return np.column_stack([slope, to_numpy(module.constant)])


def _weights(part: Part, p: int, unit: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of a term's weights, and of kappa behind a norm's: softplus's argument, what is added, and the unit."""
    module, index = part.weights, list(part.index)
    floor = unit * to_numpy(nn.functional.softplus(module.floor))[index]
    # Where no context moves a weight the argument is -inf, whose softplus is 0.
    argument = np.column_stack([np.zeros((len(index), p)), np.full(len(index), -np.inf)])
    if module.slope is not None and module.constant is not None:
        argument = np.column_stack([to_numpy(module.slope), to_numpy(module.constant)])[index]
    units = np.full(len(index), unit)
    if part.kind is Norms:
        kappa = to_numpy(part.more["kappa"]).reshape(-1)
        still = np.column_stack([np.zeros((kappa.size, p)), np.full(kappa.size, -np.inf)])
        argument, floor = np.concatenate([argument, still]), np.concatenate([floor, kappa])
        units = np.concatenate([units, np.zeros(kappa.size)])
    return argument, floor, units


_READY: Memo[_Ready | None] = Memo()
