"""Derivatives that may be refused."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def slope_or_none(decide: Callable[[Tensor], Tensor], at: Tensor) -> Tensor | None:
    """Return the derivative of a number that one decision makes at a point, None where it is refused."""
    point = at.clone().requires_grad_()
    try:
        return torch.autograd.grad(decide(point), point)[0]
    except RuntimeError as error:
        if "1 of 1 decisions have no derivative (instance 0)" not in str(error):
            raise
        return None
