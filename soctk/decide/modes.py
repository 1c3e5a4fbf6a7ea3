"""PyTorch's mode that decisions are made in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

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
