"""Input checks at the library's boundary: what was expected, what came, what to do."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

ArrayLike = Any
"""Anything `as_tensor` takes: a torch tensor, a NumPy array, a number or nested lists of numbers."""


def as_tensor(value: ArrayLike, name: str, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return `value` as a finite floating-point tensor; the input is never changed.

    float32 and float64 are kept. Integers and booleans become `dtype`; half precision is raised to float32.

    Args:
        value: tensor, array, number or nested lists.
        name: the argument's name, for the message.
        dtype: the dtype that integers are given.

    Raises:
        TypeError: `value` is not numeric, or not a plain array of numbers: sparse, quantized, with masked entries.
        ValueError: `value` holds a NaN or an infinity; the message names the first row that does.
    """
    tensor = _to_tensor(value, name)
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "a quantized tensor" if tensor.is_quantized else f"one of layout {tensor.layout}"
        raise TypeError(f"{name}: expected a dense tensor, got {kind}; give its to_dense() or dequantize()")
    if tensor.is_meta:
        raise ValueError(f"{name}: expected numbers, got a tensor on the meta device, which holds none")
    if tensor.is_complex():
        raise TypeError(f"{name}: expected real numbers, got {tensor.dtype}")
    if not tensor.is_floating_point():
        tensor = tensor.to(dtype)
    elif tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.to(torch.float32)
    check_finite(tensor, name)
    return tensor


def _to_tensor(value: ArrayLike, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    check_unmasked(value, name)
    try:
        array = np.asarray(value)
        if array.dtype == object:
            array = _numbers_of(array)
        # torch cannot share read-only or negatively strided memory; a copy is always safe.
        return torch.from_numpy(np.array(array, copy=True))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected a numeric tensor or array, got {type(value).__name__} ({error})") from None


def _numbers_of(array: np.ndarray) -> np.ndarray:
    """Return objects as float64 if all are numbers, as of a data frame with columns of several types."""
    for entry in array.flat:
        if not isinstance(entry, Real | np.bool_):
            raise TypeError(f"ragged or non-numeric: an entry is of type {type(entry).__name__}")
    return array.astype(np.float64)


def as_dense(value: ArrayLike, name: str) -> np.ndarray:
    """Return `value`, which may be sparse, as a new float64 array that may hold infinities and NaN.

    Raises:
        TypeError: `value` is not numeric, or has masked entries.
    """
    check_unmasked(value, name)
    try:
        if isinstance(value, Tensor):
            value = to_numpy(value.to_dense() if value.layout != torch.strided else value)
        elif hasattr(value, "toarray"):  # SciPy's sparse matrices
            value = value.toarray()
        return np.array(value, dtype=float)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: expected numbers, got {type(value).__name__} ({error})") from None


def as_json(value: Any, name: str) -> str:
    """Return a value as JSON, NumPy's numbers as plain ones.

    Raises:
        TypeError: something in it that JSON cannot hold.
    """

    def plain(part: Any) -> Any:
        if isinstance(part, np.generic):
            return part.item()
        raise TypeError(f"{name}: expected what JSON can hold, got {type(part).__name__}")

    return json.dumps(value, default=plain)


def check_notes(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file is to remember beside a model as a dictionary; TypeError where it is none."""
    if not isinstance(notes, Mapping):
        raise TypeError(f"notes: expected a dictionary, got {type(notes).__name__}")
    return dict(notes)


def check_unmasked(value: ArrayLike, name: str) -> None:
    """Raise TypeError where entries of an array, or of one in a list, are masked: NumPy would take what is behind."""
    parts = value if isinstance(value, list | tuple) else (value,)
    kinds = set(map(type, parts))  # of numbers there is one: lists of them are read often
    if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds) and any(map(np.ma.is_masked, parts)):
        raise TypeError(
            f"{name}: expected an array without masked entries, whose numbers mean nothing; fill them first"
        )


def as_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor cut from autograd as an array of its own type, which shares its memory where it can.

    For the length of a call: what is kept is `to_numpy`'s.
    """
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return tensor.numpy() if tensor.is_cpu else tensor.cpu().numpy()


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a float64 array of its own memory, cut from autograd: what solvers and CVXPY take and keep.

    PyTorch moves a tensor to shared memory when it is sent to another process; an array that shares what it had then
    holds whatever comes there next.
    """
    return as_array(tensor if tensor.dtype == torch.float64 else tensor.double()).copy()


def check_finite(tensor: Tensor, name: str) -> None:
    """Raise ValueError naming the first row of `tensor` that holds a NaN or an infinity."""
    if math.isfinite((tensor.detach() if tensor.requires_grad else tensor).sum()):
        return  # no sum with a NaN or an infinity is finite
    finite = torch.isfinite(tensor)
    if bool(finite.all()):
        return
    index = tuple(torch.nonzero(~finite)[0].tolist())
    row = f"row {list(index[:-1])}, " if len(index) > 1 else ""
    place = f" at {row}coordinate {index[-1]}" if index else ""
    raise ValueError(f"{name}: expected finite numbers, got {tensor[index].item()}{place}")


def check_learns(name: str) -> None:
    """Raise RuntimeError if a function that learns is called within `torch.inference_mode()`, or off the processor."""
    check_processor()
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{name}: expected to be called outside of torch.inference_mode(), where nothing can be learned"
        )


def check_processor() -> None:
    """Raise RuntimeError where `torch.set_default_device` puts tensors elsewhere than in the processor's memory."""
    if not (made := torch.empty(0)).is_cpu:
        raise RuntimeError(
            f"expected the processor as PyTorch's default device, got {made.device.type}: sets are there, and much of "
            f'deciding; move models by model.to("{made.device.type}"), and call soctk `with torch.device("cpu"):`'
        )


def check_kind(value: Any, kind: type | tuple[type, ...], name: str) -> None:
    """Raise TypeError unless `value` is of one of soctk's classes."""
    if not isinstance(value, kind):
        kinds = " or ".join(f"soctk.{each.__name__}" for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise TypeError(f"{name}: expected a {kinds}, got {type(value).__name__}")


def check_last_dim(tensor: Tensor, size: int, name: str) -> None:
    """Raise ValueError unless the last dimension of `tensor` is `size`."""
    if tensor.ndim == 0 or tensor.shape[-1] != size:
        raise ValueError(f"{name}: expected last dimension {size}, got shape {tuple(tensor.shape)}")


def check_positive(value: float, name: str) -> None:
    """Raise ValueError unless `value` is a positive number, of Python or NumPy."""
    if type(value) is float and value > 0:
        return
    if not (isinstance(value, Real) and not isinstance(value, bool) and value > 0):
        raise ValueError(f"{name}: expected a positive number, got {value!r}")


def as_number(value: ArrayLike, name: str) -> float:
    """Return a number, also one in an array without dimensions; TypeError or ValueError for anything else."""
    if type(value) is float:
        return value
    if isinstance(value, str) or (array := as_dense(value, name)).ndim:
        raise ValueError(f"{name}: expected a number, got {value!r}")
    return float(array)


def check_count(value: int, name: str, minimum: int = 1) -> None:
    """Raise ValueError unless `value` is an integer of at least `minimum`, of Python or NumPy."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name}: expected an integer of at least {minimum}, got {value!r}")


def as_counts(values: Sequence[int], name: str, minimum: int = 1) -> tuple[int, ...]:
    """Return a sequence of integers of at least `minimum` as a tuple; raise ValueError for anything else."""
    check_sequence(values, name)
    for value in values:
        check_count(value, name, minimum)
    return tuple(int(value) for value in values)


def as_index(value: int, name: str, count: int) -> int:
    """Return the index in 0, ..., count - 1 that `value` means, negative ones counted from the end."""
    check_count(value, name, minimum=-count)
    if value >= count:
        raise ValueError(f"{name}: expected {-count} to {count - 1}, got {value}")
    return value % count


def check_sequence(values: Sequence[Any], name: str) -> None:
    """Raise ValueError unless `values` is a list, a tuple or another sequence, text aside."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        got = repr(values)
        got = type(values).__name__ if "\n" in got else got  # as a module's, of many lines
        raise ValueError(f"{name}: expected a sequence, got {got}")


def check_flag(value: bool, name: str) -> None:
    """Raise ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected True or False, got {value!r}")


def check_choice(value: str, name: str, allowed: Sequence[str]) -> None:
    """Raise ValueError unless `value` is one of the words `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")


def seeded(seed: int) -> torch.Generator:
    """Return a stream of random numbers; raise ValueError unless `seed` is an integer from 0 to 2^63 - 1."""
    check_count(seed, "seed", minimum=0)
    if seed >= 2**63:
        raise ValueError(f"seed: expected at most 2^63 - 1, got {seed!r}")
    return torch.Generator().manual_seed(int(seed))
