"""Learning the curved part and the affine part apart (variable projection, Golub and Pereyra 1973).

A surrogate is f = b0(theta) + v(theta)'x + h(x; theta). With several candidates for every context, the best
affine function of each instance can be projected out of the residual: with X_i = [1, x_i] = Q_i R_i,

    min over (b0, v) of ||y_i - h_i - X_i (b0, v)||^2  =  ||(I - Q_i Q_i') (y_i - h_i)||^2.

1. h is learned on the right-hand side, undisturbed by how well b0 and v follow the context;
2. then v is a plain regression on the context, with targets R_i^-1 Q_i'(y_i - h_i);
3. and all weights are polished together.

The level b0 never moves a decision: it is projected out of every phase (the column 1) and fitted last.

Where values have weights (`Standardized.focused`), all of this is in residuals and columns times the weights' roots:
r_j -> w_j^(1/2) r_j, X_i -> diag(w_i)^(1/2) X_i, with weights of mean one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from soctk.conditioning import AffinePart
from soctk.learn.data import ValueData, typical
from soctk.learn.products import derivatives
from soctk.learn.units import Standardized
from soctk.surrogate import ConvexSurrogate

SPARE_CANDIDATES = 1.2
"""Candidates for each affine coefficient that an instance must have, so that projecting leaves information."""

CANDIDATES_FOR_ONE = 2
"""Candidates for each coefficient of an instance's affine function; many contexts tell more than many candidates."""

RANK_TOLERANCE = 1e-8
MOST_ROWS = 4
"""Candidates for each column that is projected out up to which a basis of the rest is worth having."""
LARGEST_PIECE = 2**23
"""Numbers of features and derivatives worked on at a time: 64 MB in float64."""
LARGE, ROWS_AT_A_TIME = 2**20, 12_288
"""Data of more numbers in x are worked on so many observed values at a time on a processor: what autograd keeps of
these stays in its caches. With the 64,000 values of 50 variables at once a step takes up to twice as long; fits in 10
variables take as long either way."""


def can_project(model: ConvexSurrogate, candidates: float) -> bool:
    """Return whether the model keeps its affine part apart and the data can spare what projecting takes.

    Args:
        model: the surrogate.
        candidates: of an instance, as many of equal weight as tell as much (`Standardized.effective`).
    """
    part = model.traits.affine
    return part is not None and part.conditioned and candidates >= SPARE_CANDIDATES * (model.dim + 1)


def needed_candidates(model: ConvexSurrogate, parts: Sequence[ValueData]) -> int:
    """Return how many observed candidates an instance needs to tell more than its level.

    As many as projecting takes where so many are typical of training and validation data, else two where these are;
    else one: levels are not told apart.
    """
    counts = min(typical(part.observed) for part in parts)
    projecting = math.ceil(SPARE_CANDIDATES * (model.dim + 1))
    return projecting if can_project(model, counts) else min(counts, 2)


def projected_share(candidates: int, dim: int) -> int:
    """Return how many candidates of an instance to project: as many as leave half of their information, if it has."""
    return min(candidates, CANDIDATES_FOR_ONE * (dim + 1))


class Residuals:
    """Residuals of a model on data, their part in the span of some columns of every instance scaled down.

    With Q an orthonormal basis of the columns: r - (1 - keep) QQ'r. One column of ones treats levels apart from
    the variation within an instance (`losses.residual_loss`); the columns [1, x] and keep = 0 project out the best
    affine function of every instance. Then the residuals are given in a basis of what is left, M - K of them for each
    instance with the same mean square: half of the rows where half of the information is left.

    Args:
        data: standardised data, float64.
        columns: (N or 1, M, K), of full column rank for every instance.
        keep: what is left of the part in their span.
        features: of the data, for a model of windows (`soctk.traits.Windowed`).
    """

    def __init__(
        self, data: Standardized, columns: Tensor, keep: float = 0.0, features: dict[str, Tensor] | None = None
    ) -> None:
        self.data, self.keep, self.features = data, keep, features or {}
        self.root: Tensor | None = None
        if data.root is not None:
            self.root = (data.root / data.root.square().mean().sqrt()).unsqueeze(-1)
            columns = self.root * columns
        rows, count = columns.shape[1:]
        few = keep == 0.0 and count < rows <= MOST_ROWS * count
        whole, triangle = torch.linalg.qr(columns, mode="complete" if few else "reduced")
        self.basis, self.triangle = whole[..., :count], triangle[:, :count]
        self.rest: Tensor | None = None
        if whole.shape[-1] > count:
            self.rest = math.sqrt((rows - count) / rows) * whole[..., count:].mT.contiguous()

    @classmethod
    def weighted(cls, data: Standardized, level_weight: float, features: dict[str, Tensor] | None = None) -> Residuals:
        """Weigh the squared mean residual of an instance by `level_weight`; as it is for a single candidate."""
        keep = math.sqrt(level_weight) if data.x.shape[1] > 1 else 1.0
        return cls(data, torch.ones_like(data.x[:1, :, :1]), keep, features)

    @classmethod
    def projected(cls, data: Standardized) -> Residuals:
        """Project out the best affine function of every instance: zero gradient for the affine part."""
        return cls(data, torch.cat([torch.ones_like(data.x[..., :1]), data.x], dim=-1))

    def shrink(self, raw: Tensor) -> Tensor:
        """Return r - (1 - keep) QQ'r for columns r: (N, M, any) -> (N, M, any), or (N, M - K, any) where keep is 0.

        With r times the weights' roots first, where there are any.
        """
        raw = self._weighed(raw)
        if self.rest is not None:
            return self.rest @ raw
        return raw - (1 - self.keep) * (self.basis @ (self.basis.mT @ raw))

    def _weighed(self, raw: Tensor) -> Tensor:
        return raw if self.root is None else self.root * raw

    def residual(self, model: ConvexSurrogate) -> Tensor:
        """Return the residuals at the model's weights, (N, M), or (N, M - K) where keep is 0; differentiable."""
        raw = _values(model, self.data.x, self.data.context, self.features) - self.data.value
        return self.shrink(raw.unsqueeze(-1)).squeeze(-1)

    def loss(self, model: ConvexSurrogate) -> Tensor:
        """Return the mean square of the residuals."""
        return self.residual(model).square().mean()

    @property
    def instances(self) -> int:
        """The number of instances."""
        return self.data.x.shape[0]

    def pieces(self, model: ConvexSurrogate) -> list[Residuals]:
        """Return the residuals of a few instances at a time, where all take much memory or miss the caches."""
        breadth, most = model.traits.breadth, self.instances
        if breadth > 0:
            features = sum(tensor[0].numel() for tensor in self.features.values())
            most = LARGEST_PIECE // (self.data.x[0].numel() * breadth + features)
        elif self.data.x.device.type == "cpu" and self.data.x.numel() > LARGE:
            most = ROWS_AT_A_TIME // self.data.x.shape[1]
        if self.instances <= most:
            return [self]
        count = max(1, most)
        return [self._part(slice(start, start + count)) for start in range(0, self.instances, count)]

    def losses(self, model: ConvexSurrogate) -> list[Callable[[], Tensor]]:
        """Return the parts of `loss`, each of a few instances."""
        parts = [(part, part.instances / self.instances) for part in self.pieces(model)]
        return [lambda part=part, share=share: share * part.loss(model) for part, share in parts]

    def _part(self, rows: slice) -> Residuals:
        part = copy(self)
        part.data = self.data.rows(rows)
        for name in ("basis", "triangle", "rest", "root"):
            numbers = getattr(self, name)
            if numbers is not None and numbers.shape[0] == self.instances:
                setattr(part, name, numbers[rows])
        part.features = {name: tensor[rows] for name, tensor in self.features.items()}
        return part

    @torch.no_grad()
    def total(self, model: ConvexSurrogate) -> Tensor:
        """Return `loss`, evaluated a few instances at a time."""
        return sum(loss() for loss in self.losses(model))  # type: ignore[return-value]

    def jacobian(self, model: ConvexSurrogate, weights: list[nn.Parameter]) -> Tensor:
        """Return the derivatives of the residuals in `weights`, (N, M, number of weights).

        By the model's parts where it says them (`soctk.learn.products`), else the gradients of single values,
        vectorised over rows.
        """
        traits = model.traits
        if traits.parts is not None and traits.affine is not None:
            data = self.data
            return derivatives(traits.affine, traits.parts, weights, data.x, data.context, self.shrink, traits.units)
        wanted = {id(weight) for weight in weights}
        values = _Value(model)
        state = {name: weight.detach() for name, weight in values.named_parameters()}
        moved = {name: state[name] for name, weight in values.named_parameters() if id(weight) in wanted}

        def value(moved: dict[str, Tensor], x: Tensor, context: Tensor, *features: Tensor) -> Tensor:
            return functional_call(values, state | moved, (x, context, dict(zip(self.features, features, strict=True))))

        given = (self.data.x, self.data.context, *self.features.values())
        inner = vmap(grad(value), in_dims=(None, 0, None, *(0 for _ in self.features)))
        gradients = vmap(inner, in_dims=(None, *(0 for _ in given)), chunk_size=self._chunk(moved))
        slopes = gradients(moved, *given)
        columns = [slope.reshape(*slope.shape[:2], -1) for slope in (slopes[name] for name in moved)]
        return self.shrink(torch.cat(columns, dim=-1))

    def _chunk(self, weights: dict[str, Tensor]) -> int | None:
        """Return how many instances to differentiate at a time where features make that large; None for all."""
        if not self.features:
            return None
        numbers = sum(tensor[0].numel() for tensor in self.features.values())
        numbers += self.data.x.shape[1] * sum(weight.numel() for weight in weights.values())
        return max(1, LARGEST_PIECE // numbers)

    @torch.no_grad()
    def slope_targets(self, model: ConvexSurrogate, part: AffinePart) -> Tensor:
        """Return the v of the best affine function of every instance, with the model's current h: (N, n).

        The smallest such v where the candidates leave it open, as on a simplex along (1, ..., 1).
        """
        b0, v = part(self.data.context)
        curved = model._value(self.data.x, self.data.context) - b0 - (self.data.x * v).sum(dim=-1)
        projected = self.basis.mT @ self._weighed((self.data.value - curved).unsqueeze(-1))
        # R is upper triangular: its first row alone sees b0.
        inverse = torch.linalg.pinv(self.triangle[:, 1:, 1:], rtol=RANK_TOLERANCE)
        return (inverse @ projected[:, 1:]).squeeze(-1)


class _Value(nn.Module):
    """The model's value at one standardised point and context, as a module's forward pass."""

    def __init__(self, model: ConvexSurrogate) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, context: Tensor, features: dict[str, Tensor]) -> Tensor:
        single = {name: tensor[None, None] for name, tensor in features.items()}
        return _values(self.model, x.reshape(1, 1, -1), context.reshape(1, -1), single).reshape(())


def _values(model: ConvexSurrogate, x: Tensor, context: Tensor, features: dict[str, Tensor]) -> Tensor:
    """Return the model's values at standardised data, by their features where there are any."""
    windowed = model.traits.windowed
    if windowed is None or not features:
        return model._value(x, context)
    return windowed.value_of(x, context, features)
