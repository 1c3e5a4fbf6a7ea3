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


def warn_in_training(model: nn.Module, argument: str = "model", stacklevel: int = 5) -> None:
    """Warn where layers make a model in training another function in each call; `stacklevel` is the user's call.

    Not for `DecisionLayer`, through which a model in training learns.
    """
    if not model.training:
        return
    for name, module in model.named_modules():
        if module.training and _is_another_in_training(module):
            warnings.warn(
                f"{argument}: {name} ({type(module).__name__}) is in training mode, where the function is random or "
                "depends on the batch, and bounds are of what it was in one call; call "
                f"{argument}.eval() before decisions",
                stacklevel=stacklevel,
            )
            return


def _is_another_in_training(module: nn.Module) -> bool:
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1  # it is between layers
    if isinstance(module, nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, ONLY_IN_TRAINING) and getattr(module, "p", 1.0) > 0
