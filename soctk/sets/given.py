"""What is given for the numbers of a set: checked, and kept so that nobody changes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_dense
from soctk.sets.rows import Rows

Bound = float | Sequence[float] | np.ndarray | Tensor
"""What is given as a bound; a set keeps a number, or a tuple of one for each coordinate."""
ENDLESS = 1e20
"""Linear programmes take larger numbers for none."""


def freeze_bounds(target: Any, *, finite: bool) -> None:
    """Check the two bounds and store them as a float or a tuple of floats, so that the set stays hashable."""
    low, high = target.lower, target.upper
    if type(low) is type(high) is float and -np.inf < low <= high < np.inf:
        return  # nothing to find fault with, and sets may be made anew for every decision
    arrays = {}
    for name, end in (("lower", np.inf), ("upper", -np.inf)):
        given = getattr(target, name)
        array = as_dense(given, name)
        if array.shape not in ((), (target.dim,)):
            raise ValueError(f"{name}: expected a number or {target.dim} numbers, got shape {array.shape}")
        if finite and not np.isfinite(array).all():
            raise ValueError(f"{name}: expected finite bounds, got {getattr(target, name)!r}")
        if np.isnan(array).any() or (array == end).any():
            raise ValueError(f"{name}: expected finite bounds or {-end}, got {getattr(target, name)!r}")
        arrays[name] = array
        object.__setattr__(target, name, float(array) if array.ndim == 0 else tuple(array.tolist()))
    crossed = np.flatnonzero(np.broadcast_to(arrays["lower"] > arrays["upper"], (target.dim,)))
    if crossed.size:
        raise ValueError(f"lower: expected lower <= upper, got lower > upper at coordinate {crossed[0]}")


def check_total(total: float, name: str, least: float, most: float) -> None:
    """Raise ValueError where no point between the bounds has this sum."""
    slack = 1e-12 * max(1.0, abs(least), abs(most)) if np.isfinite(most) else 0.0
    if not (least - slack <= total <= most + slack):
        raise ValueError(
            f"{name}: expected a number between sum(lower) = {least:g} and sum(upper) = {most:g}, "
            f"got {total!r}; the budget cannot be met"
        )


def check_sizes(rows: Rows) -> None:
    """Raise ValueError where a bound is a number that linear programmes take for none."""
    for name, side in (("lower", rows.lower), ("upper", rows.upper)):
        check_below(side, name, torch.isfinite(side) & (side.abs() >= ENDLESS), ", or none (inf)")


def check_below(side: Tensor, name: str, beyond: Tensor, instead: str = "") -> None:
    """Raise ValueError where right-hand sides are `beyond` (bool, of their shape) what linear programmes can hold."""
    if bool(beyond.any()):
        found = float(side[beyond][0])
        raise ValueError(f"{name}: expected numbers below {ENDLESS:g} in size{instead}, got {found:g}")


def matrix_and_side(
    names: tuple[str, str], values: tuple[ArrayLike | None, ArrayLike | None], dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (k, n) and right-hand sides (k,), checked, copied and not to be changed."""
    if (values[0] is None) != (values[1] is None):
        given, missing = names if values[1] is None else names[::-1]
        raise ValueError(f"{missing}: expected it beside {given}, got none; a row needs a matrix and a right-hand side")
    matrix, side = (_array(value, name) for name, value in zip(names, values, strict=True))
    matrix = np.atleast_2d(matrix) if matrix.size else matrix.reshape(0, dim)
    side = np.atleast_1d(side) if len(matrix) else side.reshape(-1)
    if matrix.ndim != 2 or matrix.shape[1] != dim:
        raise ValueError(f"{names[0]}: expected shape (rows, {dim}), got {matrix.shape}")
    if side.shape != (len(matrix),):
        raise ValueError(
            f"{names[1]}: expected {len(matrix)} numbers, one for each row of {names[0]}, got shape {side.shape}"
        )
    matrix.setflags(write=False)
    side.setflags(write=False)
    return matrix, side


def _array(value: ArrayLike | None, name: str) -> np.ndarray:
    """Return a copy as float64, dense."""
    if value is None:
        return np.zeros(0)
    array = as_dense(value, name)
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite numbers, got {array[~np.isfinite(array)][0]}")
    return array
