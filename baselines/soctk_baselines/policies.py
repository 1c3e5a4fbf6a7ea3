"""Decisions without a model of the objective: what a learned surrogate must beat."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from soctk import FeasibleSet
from soctk.checks import ArrayLike, as_tensor, check_last_dim


class Policy(ABC):
    """context -> decision, learned from the optima of training instances.

    Args:
        feasible_set: where decisions live.
    """

    def __init__(self, feasible_set: FeasibleSet) -> None:
        self.feasible_set = feasible_set
        self._weights: Tensor | None = None

    def fit(self, context: ArrayLike, x_star: ArrayLike) -> Policy:
        """Learn from contexts (N, p) and their optimal decisions (N, n); return the policy itself."""
        contexts, optima = as_tensor(context, "context"), as_tensor(x_star, "x_star")
        check_last_dim(optima, self.feasible_set.dim, "x_star")
        if contexts.ndim != 2 or optima.ndim != 2 or contexts.shape[0] != optima.shape[0]:
            raise ValueError(
                f"context: expected (N, p) and x_star (N, n), got {tuple(contexts.shape)} and {tuple(optima.shape)}"
            )
        features = self._features(contexts)
        self._weights = torch.linalg.lstsq(features, optima.to(features.dtype)).solution
        return self

    def decide(self, context: ArrayLike) -> Tensor:
        """Return feasible decisions, (*batch, p) -> (*batch, n).

        Raises:
            RuntimeError: the policy has not been fitted.
        """
        if self._weights is None:
            raise RuntimeError(f"{type(self).__name__} has not been fitted: call fit(context, x_star) first")
        contexts = as_tensor(context, "context")
        return self.feasible_set.project(self._features(contexts) @ self._weights.to(contexts.dtype))

    @property
    def parameter_count(self) -> int:
        """The number of fitted numbers."""
        return 0 if self._weights is None else self._weights.numel()

    @abstractmethod
    def _features(self, context: Tensor) -> Tensor:
        """Return what the decision is linear in, (*batch, features)."""


class ConstantDecision(Policy):
    """The mean of the training optima, whatever the context."""

    def _features(self, context: Tensor) -> Tensor:
        return torch.ones_like(context[..., :1]) if context.shape[-1] else context.new_ones(*context.shape[:-1], 1)


class AffinePolicy(Policy):
    """The least-squares affine map from context to optimal decision, projected onto the set."""

    def _features(self, context: Tensor) -> Tensor:
        return torch.cat([context, context.new_ones(*context.shape[:-1], 1)], dim=-1)
