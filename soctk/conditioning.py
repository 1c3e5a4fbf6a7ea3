"""How a context enters a coefficient of the conic form.

Any coefficient may depend on the context as long as the function stays convex in x: offsets and the affine
part freely, the non-negative weights through a non-negative map. For a fixed context the model is exactly
the paper's SOC-ICNN (eq. unified_soc_icnn).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

Conditioning = Literal["full", "affine", "additive"]
"""What the context moves: every coefficient; b0, v and the offsets; b0 and the offsets."""


class Derivative(NamedTuple):
    """The derivatives of values in one weight's k q numbers: products of factors (N, M, k) and features (N, q) or 1.

    A module below that is given the values' derivatives in its outputs, (N, M, size), returns those in its weights.
    """

    weight: nn.Parameter
    factor: Tensor
    features: Tensor | None = None


class AffineInContext(nn.Module):
    """A coefficient with a `slope` (size, p) in the context, or None, that `soctk.context_units` can widen."""

    slope: nn.Parameter | None

    @torch.no_grad()
    def widen(self, context_dim: int, count: int) -> None:
        """Keep the slopes in the context; those in `count` units are 0."""
        if self.slope is not None:
            widened = torch.nn.functional.pad(self.slope[:, :context_dim], (0, count))
            self.slope = nn.Parameter(widened, requires_grad=self.slope.requires_grad)


class Offset(AffineInContext):
    """context -> E context + e, unconstrained; (N, p) -> (N, 1, size). Without a context: e."""

    def __init__(
        self,
        context_dim: int,
        size: int,
        *,
        scale: float = 0.0,
        generator: torch.Generator,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.constant = nn.Parameter(scale * torch.randn(size, generator=generator, dtype=dtype))
        slope = torch.randn(size, context_dim, generator=generator, dtype=dtype)
        self.slope = nn.Parameter(scale / math.sqrt(context_dim) * slope) if context_dim > 0 else None

    def forward(self, context: Tensor) -> Tensor:
        """Return the offset at each context."""
        if self.slope is None:
            return self.constant.expand(1, 1, -1)
        return linear(context, self.slope, self.constant).unsqueeze(1)

    @property
    def size(self) -> int:
        """The number of outputs."""
        return len(self.constant)

    def derivatives(self, context: Tensor, slopes: Tensor) -> Iterator[Derivative]:
        """Yield the derivatives in the weights."""
        yield Derivative(self.constant, slopes)
        if self.slope is not None:
            yield Derivative(self.slope, slopes, context)

    def in_context(self, context: Tensor, slopes: Tensor) -> Tensor:
        """Return the derivatives in the context, (N, M, p), given those in the outputs."""
        return slopes.new_zeros(*slopes.shape[:2], context.shape[1]) if self.slope is None else slopes @ self.slope


class NonNegative(AffineInContext):
    """context -> softplus(floor) + softplus(E context + e) >= 0; (N, p) -> (N, 1, size).

    The learnable floor keeps the coefficient's constant part apart from what the context adds. Without a
    context: softplus(floor).
    """

    def __init__(self, context_dim: int, size: int, *, value: float, dtype: torch.dtype) -> None:
        super().__init__()
        share = value if context_dim == 0 else 0.5 * value
        start = torch.full((size,), inverse_softplus(share), dtype=dtype)
        self.floor = nn.Parameter(start.clone())
        self.constant = nn.Parameter(start.clone()) if context_dim > 0 else None
        self.slope = nn.Parameter(torch.zeros(size, context_dim, dtype=dtype)) if context_dim > 0 else None

    def forward(self, context: Tensor) -> Tensor:
        """Return the weight at each context."""
        weight = softplus(self.floor).expand(1, 1, -1)
        if self.slope is None or self.constant is None:
            return weight
        return weight + softplus(linear(context, self.slope, self.constant)).unsqueeze(1)

    @property
    def size(self) -> int:
        """The number of weights."""
        return len(self.floor)

    def derivatives(self, context: Tensor, slopes: Tensor) -> Iterator[Derivative]:
        """Yield the derivatives in the weights."""
        yield Derivative(self.floor, slopes * torch.sigmoid(self.floor))
        if self.slope is not None and self.constant is not None:
            slopes = self._in_argument(context, slopes)
            yield Derivative(self.constant, slopes)
            yield Derivative(self.slope, slopes, context)

    def in_context(self, context: Tensor, slopes: Tensor) -> Tensor:
        """Return the derivatives in the context, (N, M, p), given those in the outputs."""
        if self.slope is None:
            return slopes.new_zeros(*slopes.shape[:2], context.shape[1])
        return self._in_argument(context, slopes) @ self.slope

    def _in_argument(self, context: Tensor, slopes: Tensor) -> Tensor:
        """Return the derivatives in what the softplus of the context's part is of."""
        return slopes * torch.sigmoid(linear(context, self.slope, self.constant)).unsqueeze(1)  # type: ignore[arg-type]


class Ridges(nn.Module):
    """context -> for each of `size` numbers its own sum_j w_j relu(G_j'context + g_j): (N, p) -> (N, size).

    Every number has its own few ridge functions rather than a share of common ones: a response to the context
    that saturates or switches, coordinate by coordinate, is then found from few contexts.
    """

    def __init__(
        self, context_dim: int, size: int, count: int, *, generator: torch.Generator, dtype: torch.dtype
    ) -> None:
        super().__init__()
        inner = torch.randn(size * count, context_dim + 1, generator=generator, dtype=dtype)
        self.inner = nn.Parameter(inner / math.sqrt(context_dim))
        self.outer = nn.Parameter(torch.zeros(size, count, dtype=dtype))

    def forward(self, context: Tensor) -> Tensor:
        """Return the sums at each context."""
        return (torch.relu(self._arguments(context)) * self.outer).sum(dim=-1)

    def derivatives(self, context: Tensor, slopes: Tensor) -> Iterator[Derivative]:
        """Yield the derivatives in the weights."""
        arguments = self._arguments(context).unsqueeze(1)
        slopes = slopes.unsqueeze(-1)
        yield Derivative(self.inner, (slopes * ((arguments > 0) * self.outer)).flatten(start_dim=2), with_one(context))
        yield Derivative(self.outer, (slopes * torch.relu(arguments)).flatten(start_dim=2))

    def _arguments(self, context: Tensor) -> Tensor:
        """Return G_j'context + g_j, (N, size, count)."""
        return linear(context, self.inner[:, :-1], self.inner[:, -1]).unflatten(-1, self.outer.shape)


class Perceptron(nn.Module):
    """context -> W tanh(F context + f), one hidden layer shared by all `size` outputs: (N, p) -> (N, size)."""

    def __init__(
        self, context_dim: int, size: int, hidden: int, *, generator: torch.Generator, dtype: torch.dtype
    ) -> None:
        super().__init__()
        inner = torch.randn(hidden, context_dim + 1, generator=generator, dtype=dtype)
        self.inner = nn.Parameter(inner / math.sqrt(context_dim))
        self.outer = nn.Parameter(torch.zeros(size, hidden, dtype=dtype))

    def forward(self, context: Tensor) -> Tensor:
        """Return the outputs at each context."""
        return linear(self.hidden(context), self.outer)

    def derivatives(self, context: Tensor, slopes: Tensor) -> Iterator[Derivative]:
        """Yield the derivatives in the weights."""
        units = self.hidden(context)
        yield Derivative(self.inner, slopes @ self.outer * (1 - units.square()).unsqueeze(1), with_one(context))
        yield Derivative(self.outer, slopes, units)

    def hidden(self, context: Tensor) -> Tensor:
        """Return the hidden units at each context, (N, hidden)."""
        return torch.tanh(linear(context, self.inner[:, :-1], self.inner[:, -1]))


class Squares(nn.Module):
    """context -> sum_k w_k (F_k'context + f_k)^2, any quadratic function of the context: (N, p) -> (N, 1).

    It begins as 0, on the context's own axes.
    """

    def __init__(self, context_dim: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.eye(context_dim, context_dim + 1, dtype=dtype))
        self.outer = nn.Parameter(torch.zeros(1, context_dim, dtype=dtype))

    def forward(self, context: Tensor) -> Tensor:
        """Return the sum at each context."""
        return linear(self.hidden(context), self.outer)

    def derivatives(self, context: Tensor, slopes: Tensor) -> Iterator[Derivative]:
        """Yield the derivatives in the weights."""
        arguments = self._arguments(context)
        yield Derivative(self.inner, slopes @ self.outer * 2 * arguments.unsqueeze(1), with_one(context))
        yield Derivative(self.outer, slopes, arguments.square())

    def hidden(self, context: Tensor) -> Tensor:
        """Return the squares at each context, (N, p)."""
        return self._arguments(context).square()

    def _arguments(self, context: Tensor) -> Tensor:
        return linear(context, self.inner[:, :-1], self.inner[:, -1])


class AffinePart(nn.Module):
    """context -> (b0, v), the affine part b0 + v'x of a surrogate: its only coefficients free of any sign or shape.

    b0 = linear + `Squares` + `Perceptron`; v = linear + `Ridges` + `Perceptron`, or constant where the conditioning is
    additive. A slope that saturates or switches in one direction is found by ridges of its own; slopes that bend
    together, as those of a rotated quadratic whose centre moves, by a layer that they share.

    Attributes:
        conditioned: whether v depends on the context.
    """

    def __init__(
        self,
        dim: int,
        context_dim: int,
        *,
        linear: bool = True,
        conditioned: bool = True,
        ridges: int = 12,
        hidden: int = 64,
        squares: bool = False,
        slope_hidden: int = 0,
        generator: torch.Generator,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.conditioned = linear and conditioned and context_dim > 0
        options = {"generator": generator, "dtype": dtype}
        self.level = Offset(context_dim, 1, **options)
        self.level_network = Perceptron(context_dim, 1, hidden, **options) if context_dim > 0 and hidden > 0 else None
        self.level_squares = Squares(context_dim, dtype=dtype) if context_dim > 0 and squares else None
        self.slope = Offset(context_dim if self.conditioned else 0, dim, **options) if linear else None
        self.slope_ridges = Ridges(context_dim, dim, ridges, **options) if self.conditioned and ridges > 0 else None
        shared = self.conditioned and slope_hidden > 0
        self.slope_network = Perceptron(context_dim, dim, slope_hidden, **options) if shared else None

    def forward(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return b0 (N or 1, 1) and v (N or 1, 1, n)."""
        return self.b0(context), self.v(context)

    def b0(self, context: Tensor) -> Tensor:
        """Return b0, (N or 1, 1)."""
        level = self.level(context)[:, 0]
        if self.level_squares is not None:
            level = level + self.level_squares(context)
        return level if self.level_network is None else level + self.level_network(context)

    def v(self, context: Tensor) -> Tensor:
        """Return v, (N or 1, 1, n)."""
        if self.slope is None:
            return self.level.constant.new_zeros(1, 1, self.dim)
        slope = self.slope(context)
        for module in (self.slope_ridges, self.slope_network):
            if module is not None:
                slope = slope + module(context).unsqueeze(1)
        return slope

    def derivatives(self, context: Tensor, x: Tensor) -> Iterator[Derivative]:
        """Yield the derivatives of b0 + v'x at x (N, M, n) in the weights."""
        ones = torch.ones_like(x[..., :1])
        for module in (self.level, self.level_squares, self.level_network):
            if module is not None:
                yield from module.derivatives(context, ones)
        for module in (self.slope, self.slope_ridges, self.slope_network):
            if module is not None:
                yield from module.derivatives(context, x)

    def v_jacobian(self, context: Tensor) -> Tensor:
        """Return the derivatives of each v_i in its own weights, in the order of `own_slope_parameters`: (n, N, P)."""
        columns = [context.new_zeros(self.dim, context.shape[0], 0)]
        ones = context.new_ones(context.shape[0], 1, self.dim)
        for module in (self.slope, self.slope_ridges):
            for _, factor, features in () if module is None else module.derivatives(context, ones):
                own = factor[:, 0].unflatten(-1, (self.dim, -1)).transpose(0, 1)
                columns.append(own if features is None else (own.unsqueeze(-1) * features.unsqueeze(1)).flatten(2))
        return torch.cat(columns, dim=-1)

    @property
    def ridges(self) -> int:
        """The number of ridge functions in each entry of v."""
        return 0 if self.slope_ridges is None else self.slope_ridges.outer.shape[1]

    @property
    def slope_hidden(self) -> int:
        """The number of hidden units that all entries of v share."""
        return 0 if self.slope_network is None else self.slope_network.outer.shape[1]

    def with_slope(self, generator: torch.Generator, *, ridges: int = 0, slope_hidden: int = 0) -> AffinePart:
        """Return another one whose v is made of these, from fresh weights, and whose b0 is affine."""
        numbers = self.slope.constant if self.slope is not None else self.level.constant
        context_dim = 0 if self.slope is None or self.slope.slope is None else self.slope.slope.shape[1]
        sizes = {"ridges": ridges, "slope_hidden": slope_hidden, "hidden": 0}
        return AffinePart(self.dim, context_dim, **sizes, generator=generator, dtype=numbers.dtype).to(numbers.device)

    @torch.no_grad()
    def take(self, other: AffinePart, entries: Tensor) -> None:
        """Take some entries of v, (n,) of booleans, from one with at most as many ridge functions.

        If that has a layer that its entries share, it takes the place of this one's, whose entries have to be among
        those taken or without a part in it.
        """
        if self.slope is None or self.slope.slope is None or other.slope is None or other.slope.slope is None:
            raise ValueError("expected v that depends on the context")
        self.slope.constant[entries] = other.slope.constant[entries]
        self.slope.slope[entries] = other.slope.slope[entries]
        if self.slope_ridges is not None:
            self.slope_ridges.outer[entries] = 0.0
        if self.slope_network is not None:
            self.slope_network.outer[entries] = 0.0
        if self.slope_ridges is not None and other.slope_ridges is not None:
            count = other.ridges
            mine, theirs = (each.inner.unflatten(0, (self.dim, -1)) for each in (self.slope_ridges, other.slope_ridges))
            mine[entries, :count] = theirs[entries]
            self.slope_ridges.outer[entries, :count] = other.slope_ridges.outer[entries]
        if self.slope_network is not None and other.slope_network is not None:
            self.slope_network.inner.copy_(other.slope_network.inner)
            self.slope_network.outer[entries] = other.slope_network.outer[entries]

    def level_features(self, context: Tensor) -> Tensor:
        """Return what b0 is linear in, (N, 1 + p + count): 1, the context, squares, hidden units."""
        parts = [context.new_ones(len(context), 1), context]
        parts += [module.hidden(context) for module in (self.level_squares, self.level_network) if module is not None]
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def set_level(self, weights: Tensor) -> None:
        """Give b0 its weights of the first of `level_features`, (count,); those of the others are 0."""
        outer = [module.outer for module in (self.level_squares, self.level_network) if module is not None]
        affine = [self.level.constant] if self.level.slope is None else [self.level.constant, self.level.slope]
        numbers = [*affine, *outer]
        rest = weights.new_zeros(sum(number.numel() for number in numbers) - len(weights))
        sizes = [number.numel() for number in numbers]
        for number, part in zip(numbers, torch.cat([weights, rest]).split(sizes), strict=True):
            number.copy_(part.reshape(number.shape))

    def level_parameters(self) -> list[nn.Parameter]:
        """Return the weights of b0."""
        return weights_of(self.level, self.level_squares, self.level_network)

    def own_slope_parameters(self) -> list[nn.Parameter]:
        """Return the weights of v that belong to one entry each."""
        return weights_of(self.slope, self.slope_ridges)

    def network_parameters(self) -> list[nn.Parameter]:
        """Return the weights of the nonlinear responses to the context."""
        return weights_of(self.level_network, self.slope_ridges, self.slope_network)


def with_one(context: Tensor) -> Tensor:
    """Return (theta, 1), (N, p + 1)."""
    return torch.cat([context, torch.ones_like(context[:, :1])], dim=-1)


def weights_of(*modules: nn.Module | None) -> list[nn.Parameter]:
    """Return the weights of the modules that exist."""
    return [weight for module in modules if module is not None for weight in module.parameters()]


def inverse_softplus(value: float) -> float:
    """Return w with softplus(w) = value > 0."""
    return math.log(math.expm1(value))
