"""Full-batch L-BFGS over a module's weights, with validation and early stopping (SciPy's L-BFGS-B, unbounded)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import minimize as scipy_minimize
from torch import Tensor, nn

from soctk.learn.report import FitStatus


@dataclass
class Run:
    """What happened: (iteration, loss) curves and how it ended; the weights are left at the best validation state."""

    status: FitStatus
    iterations: int = 0
    train: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    best: float = math.inf


def lbfgs(
    weights: list[nn.Parameter],
    loss: Callable[[], Tensor],
    validate: Callable[[], float],
    *,
    iterations: int,
    history: int,
    validate_every: int,
    patience: int,
    deadline: float = math.inf,
    on_step: Callable[[float], None] | None = None,
) -> Run:
    """Minimise `loss` over `weights` in place; stop when `validate` has not improved `patience` times.

    Args:
        weights: float64 parameters.
        loss: the training loss at the current weights, differentiable.
        validate: the validation loss at the current weights.
        iterations: at most this many.
        history: correction pairs.
        validate_every: iterations between validations.
        patience: validations without improvement before it stops.
        deadline: `time.perf_counter()` value to stop at.
        on_step: called with the loss after each iteration.
    """
    run = Run(FitStatus.CONVERGED)
    start = _flat(weights)
    best = start.copy()
    misses, current = 0, math.inf

    def check() -> None:
        nonlocal best, misses
        value = validate()
        run.validation.append((run.iterations, value))
        # An improvement too small to matter does not keep the search alive, but is kept.
        misses = 0 if value < run.best * (1 - 1e-3) else misses + 1
        if value < run.best:
            run.best, best = value, _flat(weights)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal current
        _load(weights, flat)
        for weight in weights:
            weight.grad = None
        value = loss()
        if not bool(torch.isfinite(value)):
            return math.inf, np.zeros_like(flat)  # the line search backs off
        value.backward()
        current = float(value.detach())
        return current, _flat([w if w.grad is None else w.grad for w in weights], [w.grad is None for w in weights])

    def after_iteration(flat: np.ndarray) -> None:
        run.iterations += 1
        if on_step is not None:
            on_step(current)
        if run.iterations % validate_every == 0:
            _load(weights, flat)
            run.train.append((run.iterations, current))
            check()
            if misses >= patience:
                raise StopIteration
        if time.perf_counter() > deadline:
            run.status = FitStatus.TIME_LIMIT
            raise StopIteration

    check()
    options = {"maxiter": iterations, "maxfun": 10**9, "maxcor": history, "ftol": 0.0, "gtol": 1e-10}
    result = scipy_minimize(objective, start, jac=True, method="L-BFGS-B", callback=after_iteration, options=options)
    _load(weights, result.x)
    check()
    _load(weights, best)
    if run.iterations >= iterations:
        run.status = FitStatus.ITERATION_LIMIT
    if not math.isfinite(run.best):
        run.status = FitStatus.DIVERGED
    return run


def _flat(tensors: list, absent: list[bool] | None = None) -> np.ndarray:
    """Return the tensors as one float64 vector, zeros for the absent ones."""
    absent = absent or [False] * len(tensors)
    parts = [torch.zeros_like(t) if gone else t for t, gone in zip(tensors, absent, strict=True)]
    return torch.cat([part.detach().reshape(-1) for part in parts]).double().cpu().numpy().copy()


@torch.no_grad()
def _load(weights: list[nn.Parameter], flat: np.ndarray) -> None:
    """Copy a flat vector into the weights."""
    vector, start = torch.from_numpy(np.array(flat)), 0
    for weight in weights:
        weight.copy_(vector[start : start + weight.numel()].reshape(weight.shape))
        start += weight.numel()
