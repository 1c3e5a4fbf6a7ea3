"""The pieces of sums of norms: every group is at its apex, u_g = 0 = kappa_g, or on one side of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from soctk.terms.base import SMALLEST_WEIGHT, Smoothed, group_norms
from soctk.terms.piece import AT_KINK, Piece


@dataclass(frozen=True, eq=False)
class NormsPiece(Piece):
    """Groups that are at their apex or not.

    Attributes:
        held: the dual iterates rho, (N, 1, K): groups at their apex keep them, others are on the side that they show.
    """

    held: Tensor

    @classmethod
    def of(cls, term: Any, smoothed: Smoothed, lag: Tensor) -> NormsPiece:
        """Return the piece that the smoothed term and its dual iterates show."""
        length = torch.minimum(group_norms(lag, term.size), group_norms(smoothed.dual, term.size))
        apex = (length < (1 - AT_KINK) * term.weights) & (term.kappa == 0)
        return cls(apex.repeat_interleave(term.size, dim=-1), lag)

    def dual(self, term: Any, u: Tensor) -> Tensor:
        """Return rho at an apex, lambda u / length elsewhere: of an absolute value lambda on the side of rho."""
        off = term.subgradient(u)
        if term.size == 1:
            off = torch.where(term.kappa == 0, term.weights * self.held.sign(), off)
        return torch.where(self.kinks, self.held, off)

    def add_hessian(self, term: Any, total: Tensor, u: Tensor) -> None:
        """Add the Hessian of the groups that are not at their apex."""
        curved = ~self.kinks[..., :: term.size] & ((term.kappa != 0) | (term.size > 1))
        super().add_hessian(dataclasses.replace(term, weights=term.weights * curved), total, u)

    def equations(self, term: Any, u: Tensor) -> Tensor:
        """Return u."""
        return u

    def matrix(self, term: Any) -> Tensor:
        """Return A."""
        return term.map.to_dense().matrix

    def margins(self, term: Any, u: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far u_g is from its apex along rho_g, and 1 - ||rho_g|| / lambda_g."""
        slack, away = self._slack(term, change), self._away(term, u)
        return torch.where(self.kinks, torch.inf, away), torch.where(self.kinks, slack, torch.inf)

    def adjusted(self, term: Any, u: Tensor, change: Tensor, among: Tensor) -> Piece:
        """Return the piece where groups with rho outside of its ball leave their apex, and those that passed it rest.

        They leave it to where rho points, which is beyond the apex for those that were on the other side.
        """
        among = among.reshape(-1, 1, 1)
        left = among & self.kinks & (self._slack(term, change) < 0)
        met = among & ~self.kinks & (self._away(term, u) < 0)
        if not bool((left | met).any()):
            return self
        return NormsPiece(self.kinks & ~left | met, torch.where(left, self.held + change, self.held))

    def _slack(self, term: Any, change: Tensor) -> Tensor:
        """Return 1 - ||rho_g|| / lambda_g of every row's group, (N, 1, K)."""
        weights = term.weights.clamp(min=SMALLEST_WEIGHT)
        return (1 - group_norms(self.held + change, term.size) / weights).repeat_interleave(term.size, dim=-1)

    def _away(self, term: Any, u: Tensor) -> Tensor:
        """Return ||u_g|| of every row's group, negative against rho; infinite where there is no apex, (N, 1, K)."""
        along = (self.held * u).unflatten(-1, (-1, term.size)).sum(dim=-1)
        away = torch.where(term.kappa == 0, torch.copysign(group_norms(u, term.size), along), torch.inf)
        return away.repeat_interleave(term.size, dim=-1)
