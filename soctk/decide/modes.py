"""PyTorch's modes that decisions are made in."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import nn

ONLY_IN_TRAINING = nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.RReLU
"""Layers that draw numbers, or depend on the batch and remember it, in training."""

P = ParamSpec("P")
R = TypeVar("R")


def without_derivatives(function: Callable[P, R]) -> Callable[P, R]:
    """Record no derivatives while a function runs, and leave inference mode, in which solvers could take none."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return run


def warn_in_training(model: nn.Module, stacklevel: int = 5) -> None:
    """Warn where layers make a model in training another function in each call; `stacklevel` is the user's call."""
    if not model.training:
        return
    for name, module in model.named_modules():
        if module.training and isinstance(module, ONLY_IN_TRAINING) and getattr(module, "p", 1.0) > 0:
            warnings.warn(
                f"model: {name} ({type(module).__name__}) is in training mode, where the function is random or depends "
                "on the batch, and bounds are of what it was in one call; call model.eval() before decisions",
                stacklevel=stacklevel,
            )
            return
