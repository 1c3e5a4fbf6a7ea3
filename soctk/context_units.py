"""Hidden units of the context that coefficients are affine in beside the context itself.

An offset E theta + e is affine in theta, a weight softplus of what is (`soctk.conditioning`). With units both are
affine in (theta, tanh(F theta + f)): E has columns for the units too. For a fixed context the model is what it was,
convex in x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from soctk.checks import check_count, seeded
from soctk.conditioning import AffineInContext, AffinePart, Derivative, with_one


class ContextUnits(nn.Module):
    """context -> (theta, tanh(F theta + f)), what a curved part's offsets and weights are affine in: (N, p + count).

    Without units, which is how it begins, that is theta itself. All offsets and weights share them: a response that
    bends, as that of a centre to the hour, is learned from every branch that has a part in it.
    """

    def __init__(self, context_dim: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.context_dim, self._dtype = context_dim, dtype
        self.inner: nn.Parameter | None = None  # no weight in a state without units

    def forward(self, context: Tensor) -> Tensor:
        """Return what offsets and weights are affine in at each context."""
        return context if self.inner is None else torch.cat([context, self.hidden(context)], dim=-1)

    @property
    def count(self) -> int:
        """The number of units."""
        return 0 if self.inner is None else len(self.inner)

    def resize(self, count: int, model: nn.Module, seed: int = 0) -> None:
        """Begin anew with so many units, in which what is affine in them is 0.

        Args:
            count: of the units.
            model: whose `AffineInContext` follow the units, but for those of its `AffinePart`.
            seed: of the units' weights.

        Raises:
            ValueError: a negative number, or units of no context.
        """
        check_count(count, "context_units", minimum=0)
        if count > 0 and self.context_dim == 0:
            raise ValueError(f"context_units: expected 0 without a context, got {count}")
        like = next(model.parameters())
        apart = {id(part) for each in model.modules() if isinstance(each, AffinePart) for part in each.modules()}
        for module in model.modules():
            if isinstance(module, AffineInContext) and id(module) not in apart:
                module.widen(self.context_dim, count)
        self.inner = None
        if count > 0:
            inner = torch.randn(count, self.context_dim + 1, generator=seeded(seed), dtype=self._dtype)
            self.inner = nn.Parameter((inner / math.sqrt(self.context_dim)).to(like))

    def hidden(self, context: Tensor) -> Tensor:
        """Return the units at each context, (N, count)."""
        assert self.inner is not None
        return torch.tanh(linear(context, self.inner[:, :-1], self.inner[:, -1]))

    def derivatives(self, context: Tensor, slopes: Tensor) -> Iterator[Derivative]:
        """Yield the derivatives in the weights, given those in the outputs, (N, M, p + count)."""
        if self.inner is not None:
            slopes = slopes[..., self.context_dim :] * (1 - self.hidden(context).square()).unsqueeze(1)
            yield Derivative(self.inner, slopes, with_one(context))
