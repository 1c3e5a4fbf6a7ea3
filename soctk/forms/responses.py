"""Responses to the context: what the coefficients of a conic form are made from (`soctk.forms.context_map`).

Written once for PyTorch's tensors and NumPy's arrays. PyTorch is not loaded here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np


class Elementary(NamedTuple):
    """Functions of tensors or of arrays."""

    linear: Callable[[Any, Any, Any], Any]
    softplus: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    tanh: Callable[[Any], Any]
    split: Callable[[Any, list[int]], Any]
    join: Callable[[list[Any]], Any]


def _softplus(x: np.ndarray) -> np.ndarray:
    """Return log(1 + exp(x)), from 20 on x as PyTorch does."""
    value = np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))  # in half of logaddexp's time
    return np.where(x > 20, x, value) if x.max(initial=0.0) > 20 else value


ARRAYS = Elementary(
    lambda x, slope, constant: x @ slope.T + constant,
    _softplus,
    lambda x: np.maximum(x, 0.0),
    np.tanh,
    lambda x, sizes: [x[:, end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)],
    lambda parts: np.concatenate(parts, axis=-1),
)


class Responses(NamedTuple):
    """What responses are computed from, tensors or arrays: attributes of `ContextMap`."""

    slope: Any
    constant: Any
    floors: Any
    mixing: Any
    gains: Any
    tilt: Any


def responses(context: Any, numbers: Responses, sizes: list[int], functions: Elementary = ARRAYS) -> tuple[Any, ...]:
    """Return the rows of b0, v and d at contexts (N, p), but for the ridges of v, the weights and the ridges.

    Args:
        context: (N, p), an array, or a tensor.
        numbers: of a map, as the context.
        sizes: see `ContextMap`.
        functions: of arrays, or of tensors.
    """
    slope, constant, floors, mixing, gains, tilt = numbers
    rows, weights, ridges, units, squares = functions.split(functions.linear(context, slope, constant), sizes)
    ridges = functions.relu(ridges) if sizes[2] > 0 else ridges
    if sizes[3] + sizes[4] > 0:
        units = functions.tanh(units) if sizes[3] > 0 else units
        units = functions.join([units, squares * squares]) if sizes[4] > 0 else units
        more = units @ mixing.T
        if len(mixing) > sizes[0]:
            more, bent = functions.split(more, sizes[:2])
            weights = weights + bent
        rows = _plus(rows, more, functions)
    weights = floors + functions.softplus(weights)
    if gains is not None:
        weights = gains * weights
    if tilt is not None:  # a matrix of one column: a product with a vector is exported to ONNX as something else
        rows = _plus(rows, ridges @ tilt[:, None], functions)
    return rows, weights, ridges


def _plus(rows: Any, first: Any, functions: Elementary) -> Any:
    """Return rows (N, R) with (N, k) added to the first k of them."""
    k = first.shape[1]
    return functions.join([rows[:, :k] + first, rows[:, k:]])
