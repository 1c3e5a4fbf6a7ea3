"""What every search over a module's weights shares: validation, patience, the deadline and the best state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from soctk.learn.deadline import Deadline
from soctk.learn.report import FitStatus


@dataclass
class Run:
    """What happened: (iteration, loss) curves and how it ended; the weights are left at the best validation state."""

    status: FitStatus
    iterations: int = 0
    train: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    best: float = math.inf


class Search:
    """Watches a search: it reads and writes the weights as one vector and keeps the best validation state.

    Args:
        weights: float64 parameters.
        validate: the validation loss at the current weights.
        iterations: at most this many.
        patience: validations without improvement before it stops.
        validate_every: iterations between validations.
        deadline: when to stop whatever is reached; never by default.
        on_step: called with the loss after each iteration.
        problems: independent problems that the weights, by their leading dimension, belong to.
    """

    def __init__(
        self,
        weights: list[nn.Parameter],
        validate: Callable[[], Tensor],
        iterations: int,
        patience: int,
        *,
        validate_every: int = 1,
        deadline: Deadline | None = None,
        on_step: Callable[[float], None] | None = None,
        problems: int = 1,
    ) -> None:
        self.weights, self.validate, self.iterations = weights, validate, iterations
        self.validate_every, self.patience, self.on_step = validate_every, patience, on_step
        self.problems, self.deadline = problems, deadline or Deadline()
        self.run = Run(FitStatus.CONVERGED)
        self.best, self.misses = self.position(), 0
        self._check()

    def __enter__(self) -> Search:
        """Begin: should an error or an interruption end the search, the weights are left at the best state."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.move_to(self.best)

    def position(self) -> Tensor:
        """Return the weights as one vector for each problem, (B, P)."""
        return torch.cat([weight.detach().reshape(self.problems, -1) for weight in self.weights], dim=-1)

    @torch.no_grad()
    def move_to(self, position: Tensor) -> None:
        """Copy vectors (B, P) into the weights."""
        parts = position.split([weight.numel() // self.problems for weight in self.weights], dim=-1)
        for weight, part in zip(self.weights, parts, strict=True):
            weight.copy_(part.reshape(weight.shape))

    def step(self, loss: float) -> bool:
        """Count one iteration that left the weights at `loss`; return whether the search has to stop."""
        run = self.run
        run.iterations += 1
        if self.on_step is not None:
            self.on_step(loss)
        if run.iterations % self.validate_every == 0:
            run.train.append((run.iterations, loss))
            self._check()
            if self.misses >= self.patience:
                return True
        if self.deadline.passed:
            run.status = self.deadline.status
            return True
        return run.iterations >= self.iterations

    def finish(self) -> Run:
        """Leave the weights at the best validation state and say how it went."""
        run = self.run
        if run.iterations % self.validate_every != 0:
            self._check()
        self.move_to(self.best)
        if run.iterations >= self.iterations:
            run.status = FitStatus.ITERATION_LIMIT
        if not math.isfinite(run.best):
            run.status = FitStatus.DIVERGED
        return run

    @torch.no_grad()
    def _check(self) -> None:
        value = float(self.validate())
        self.run.validation.append((self.run.iterations, value))
        # An improvement too small to matter does not keep the search alive, but is kept.
        self.misses = 0 if value < self.run.best * (1 - 1e-3) else self.misses + 1
        if value < self.run.best:
            self.run.best, self.best = value, self.position()
