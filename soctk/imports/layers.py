"""Networks that were trained elsewhere: the weights of an input-convex network as a surrogate.

    z_1 = act(W_1 x + E_1 theta + b_1),    z_l = act(W_l x + U_l z_{l-1} + E_l theta + b_l),
    f(x; theta) = c'z_L + (v + V theta)'x + e_0'theta + b_0,    U_2, ..., U_L, c >= 0,

convex in x since the activation is convex and does not decrease (Amos, Xu and Kolter 2017). The context theta is an
input of its own, in which f need not be convex.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, get_args

import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_counts, as_tensor, check_choice, check_flag, check_sequence
from soctk.forms.context_map import ContextMap, Shell
from soctk.surrogate import ConvexSurrogate
from soctk.terms import Network
from soctk.terms.network import Activation

ROUNDING = 1e-6
"""Below zero by less than this share of the largest number, a weight is taken to be meant as zero."""
Layers = Sequence[ArrayLike | None]


class ImportedICNN(ConvexSurrogate):
    """What `from_layers` returns: the function above, its numbers buffers; nothing is trained.

    Args:
        dim: the decision dimension n.
        context_dim: the context dimension p; 0 for none.
        widths: h_1, ..., h_L.
        activation: "relu" or "softplus".
        passthrough: whether any layer but the first sees x.
        dtype: of the numbers.
    """

    def __init__(
        self,
        dim: int,
        context_dim: int = 0,
        *,
        widths: Sequence[int],
        activation: Activation = "relu",
        passthrough: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(dim, context_dim, dtype=dtype)
        self.widths = as_counts(widths, "widths")
        if not self.widths:
            raise ValueError("widths: expected at least one layer, got none")
        check_choice(activation, "activation", get_args(Activation))
        check_flag(passthrough, "passthrough")
        self.activation: Activation = activation
        self.passthrough = passthrough
        for name, shape in self._shapes().items():
            self.register_buffer(name, torch.zeros(shape, dtype=dtype))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        n, p, rows = self.dim, self.context_dim, sum(self.widths)
        shapes: dict[str, tuple[int, ...]] = {"W": (rows, n), "E": (rows, p), "b": (rows,), "c": (self.widths[-1],)}
        mixing = {f"U{level}": (outer, inner) for level, (inner, outer) in enumerate(pairwise(self.widths), start=2)}
        return shapes | mixing | {"v": (n,), "V": (n, p), "e0": (p,), "b0": (1,)}

    def _context_map(self) -> ContextMap:
        W, E, b, c, *mixing, v, V, e0, b0 = (getattr(self, name) for name in self._shapes())
        more = {
            "mixing": tuple(matrix.unsqueeze(0) for matrix in mixing),
            "widths": self.widths,
            "activation": self.activation,
        }
        used = None if self.passthrough else self.widths[0]
        return ContextMap(
            dim=self.dim,
            slope=torch.cat([e0.unsqueeze(0), V, E, c.new_zeros(len(c), self.context_dim)]),
            constant=torch.cat([b0, v, b, torch.full_like(c, -torch.inf)]),
            sizes=[1 + self.dim + len(b), len(c), 0, 0, 0],
            floors=c,
            index=torch.arange(len(c), device=c.device),
            ridges=c.new_zeros(self.dim, 0),
            mixing=c.new_zeros(1, 0),
            matrix=W,
            shells=[Shell(Network, more, len(b), used, len(c))],
            moves=(self.context_dim > 0, False),
        )

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in ("dim", "context_dim", "widths", "activation", "passthrough")}


def from_layers(
    *,
    input_weights: Layers,
    biases: Layers | None = None,
    hidden_weights: Sequence[ArrayLike] = (),
    output_weights: ArrayLike,
    output_bias: ArrayLike = 0.0,
    linear: ArrayLike | None = None,
    context_weights: Layers | None = None,
    linear_context_weights: ArrayLike | None = None,
    output_context_weights: ArrayLike | None = None,
    activation: Activation = "relu",
) -> ImportedICNN:
    """Return an input-convex network that was trained elsewhere as a surrogate, exactly.

    Every number is one that the network multiplies with or adds, on any device, as an array or a tensor: of a network
    that trains the logarithm of U or its softplus' argument, exp or softplus of that. They become float64. An input
    that the network scales first is given as it is, with the scale divided into the input weights and its shift in the
    biases; a context that passes through layers of its own is what comes out of them.

    Args:
        input_weights: W_1, ..., W_L, each (h_l, n); None for a layer but the first that does not see x.
        biases: b_1, ..., b_L, each (h_l,), None for 0.
        hidden_weights: U_2, ..., U_L, each (h_l, h_{l-1}), non-negative.
        output_weights: c, (h_L,) or (1, h_L), non-negative.
        output_bias: b_0, a number.
        linear: v, (n,) or (1, n): the output layer's own weights of x; None for 0.
        context_weights: E_1, ..., E_L, each (h_l, p), None for 0.
        linear_context_weights: V, (n, p).
        output_context_weights: e_0, (p,) or (1, p).
        activation: "relu" or "softplus". (PyTorch's softplus is its argument beyond 20, which is off by up to 2e-9.)

    Raises:
        ValueError: weights that must not be negative and are, shapes that do not fit, numbers that are not finite, an
            unknown activation.
    """
    W = _layers(input_weights, "input_weights")
    if not W or W[0] is None:
        raise ValueError("input_weights: expected the weights (h_1, n) of the first layer at index 0, got none")
    if W[0].ndim != 2:
        raise ValueError(f"input_weights[0]: expected a matrix (h_1, n), got shape {tuple(W[0].shape)}")
    U = _layers(hidden_weights, "hidden_weights", len(W) - 1, "one for every layer but the first")
    for index, matrix in enumerate(U):
        if matrix is None or matrix.ndim != 2:
            raise ValueError(f"hidden_weights[{index}]: expected a matrix (h_{index + 2}, h_{index + 1})")
    widths = [len(W[0]), *(len(matrix) for matrix in U if matrix is not None)]
    E = _layers(context_weights, "context_weights", len(W))
    V = _optional(linear_context_weights, "linear_context_weights")
    e0 = _optional(output_context_weights, "output_context_weights")
    p = next((each.shape[-1] for each in (*E, V, e0) if each is not None and each.ndim > 0), 0)
    model = ImportedICNN(
        W[0].shape[1],
        p,
        widths=widths,
        activation=activation,
        passthrough=any(matrix is not None for matrix in W[1:]),
    )
    b = _layers(biases, "biases", len(W))
    rows = list(pairwise(accumulate(widths, initial=0)))
    for field, name, given in (("W", "input_weights", W), ("E", "context_weights", E), ("b", "biases", b)):
        for index, ((first, last), numbers) in enumerate(zip(rows, given, strict=True)):
            _fill(getattr(model, field)[first:last], numbers, f"{name}[{index}]")
    for index, matrix in enumerate(U):
        _fill(getattr(model, f"U{index + 2}"), matrix, f"hidden_weights[{index}]", signed=False)
    c = _optional(output_weights, "output_weights")
    if c is None:
        raise ValueError("output_weights: expected numbers (h_L,), got None, which would leave nothing of the layers")
    _fill(model.c, c, "output_weights", signed=False)
    _fill(model.v, _optional(linear, "linear"), "linear")
    _fill(model.V, V, "linear_context_weights")
    _fill(model.e0, e0, "output_context_weights")
    _fill(model.b0, _optional(output_bias, "output_bias"), "output_bias")
    return model


def _layers(given: Layers | None, name: str, count: int | None = None, what: str = "one for every layer") -> list:
    """Return the numbers of each layer as float64 tensors, None where there are none."""
    if given is None:
        return [None] * (count or 0)
    given = list(given.unbind()) if isinstance(given, Tensor) else given
    check_sequence(given, name)
    if count is not None and len(given) != count:
        raise ValueError(f"{name}: expected {count}, {what}, got {len(given)}")
    return [_optional(numbers, f"{name}[{index}]") for index, numbers in enumerate(given)]


def _optional(given: ArrayLike | None, name: str) -> Tensor | None:
    return None if given is None else as_tensor(given, name).detach().cpu().double()


def _fill(target: Any, numbers: Tensor | None, name: str, *, signed: bool = True) -> None:
    """Copy numbers into a buffer, once they have its shape, up to a leading 1, and its sign."""
    if numbers is None:
        return
    shape = tuple(target.shape)
    if tuple(numbers.shape) not in (shape, (1, *shape), shape[1:] if shape == (1,) else shape):
        raise ValueError(f"{name}: expected shape {shape}, got {tuple(numbers.shape)}")
    if not signed:
        _check_signs(numbers, name)
    target.copy_(numbers.reshape(shape))


def _check_signs(numbers: Tensor, name: str) -> None:
    """Raise ValueError naming the most negative entry."""
    if not bool((numbers < 0).any()):
        return
    least = float(numbers.min())
    place = tuple(torch.nonzero(numbers == least)[0].tolist())
    remedy = "give the weights that the network multiplies with, such as softplus of what is trained"
    if least >= -ROUNDING * float(numbers.abs().max()):
        remedy = "it is so small that it may be meant as 0: clamp it yourself, which changes the function a little"
    raise ValueError(
        f"{name}: expected non-negative entries (the function is convex in x only then), got {least:g} at {place}; "
        f"{remedy}"
    )
