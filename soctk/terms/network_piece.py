"""The pieces of a ReLU network: every unit is on, off or at its kink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from soctk.terms.base import Smoothed, safe_divisor
from soctk.terms.mixing import adjoint, dense, forward
from soctk.terms.piece import AT_KINK, Piece


@dataclass(frozen=True, eq=False)
class NetworkPiece(Piece):
    """The network where its units are as they are: affine in x.

    Attributes:
        slopes: p_l of every unit, constants in [0, 1], (N, 1, h_l): 1, 0, or the multiplier's share of its range.
    """

    slopes: tuple[Tensor, ...]

    @classmethod
    def of(cls, smoothed: Smoothed, lag: tuple[Tensor, ...]) -> NetworkPiece:
        """Return the piece that the smoothed slopes and the dual iterates show."""
        slopes = [0.5 * (1 + t) for t in lag]
        inside = [torch.maximum(_from_ends(p), _from_ends(q)) for p, q in zip(slopes, smoothed.cache[1], strict=True)]
        held = tuple(torch.where(part > AT_KINK, p, p.round()) for part, p in zip(inside, slopes, strict=True))
        return cls(torch.cat(inside, dim=-1) > AT_KINK, held)

    def _on(self, term: Any) -> list[Tensor]:
        """Return 1 for units that are on, 0 for others: at a kink z = 0 on both sides."""
        kinks = self.kinks.split(term.widths, dim=-1)
        return [torch.where(kink, 0.0, p) for kink, p in zip(kinks, self.slopes, strict=True)]

    def dual(self, term: Any, u: Tensor) -> Tensor:
        """Return the chain of the slopes."""
        return torch.cat(term.chain(self.slopes)[0], dim=-1)

    def add_hessian(self, term: Any, total: Tensor, u: Tensor) -> None:
        """Add nothing."""

    def equations(self, term: Any, u: Tensor) -> Tensor:
        """Return the preactivations a_l = u_l + U_l on_{l-1} a_{l-1}."""
        first, *rest = u.split(term.widths, dim=-1)
        activations = [first]
        for part, matrix, on in zip(rest, term.mixing, self._on(term), strict=False):
            activations.append(part + forward(matrix, on * activations[-1]))
        return torch.cat(activations, dim=-1)

    def matrix(self, term: Any) -> Tensor:
        """Return J_1 = W_1, J_l = W_l + U_l diag(on_{l-1}) J_{l-1}, one below the other."""
        first, *rest = term.layer_maps()
        rows = [first.matrix]
        for layer, mixing, on in zip(rest, term.mixing, self._on(term), strict=False):
            rows.append(layer.matrix + (dense(mixing) * on) @ rows[-1])
        return torch.cat([part.expand(self.kinks.shape[0], -1, -1) for part in rows], dim=1)

    def margins(self, term: Any, u: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return the preactivations in the direction of each unit's state, and min(p, 1 - p) of the changed chain."""
        inside = torch.where(self.kinks, _from_ends(self._shares(term, u, change)), torch.inf)
        return torch.where(self.kinks, torch.inf, self._away(term, u)), inside

    def adjusted(self, term: Any, u: Tensor, change: Tensor, among: Tensor) -> Piece:
        """Return the piece where units with p outside of [0, 1] leave their kinks, and those that passed rest there."""
        p, among = self._shares(term, u, change), among.reshape(-1, 1, 1)
        left = among & self.kinks & (_from_ends(p) < 0)
        met = among & ~self.kinks & (self._away(term, u) < 0)
        if not bool((left | met).any()):
            return self
        slopes = torch.where(left, p.clamp(0, 1).round(), torch.cat(self.slopes, dim=-1))
        return NetworkPiece(self.kinks & ~left | met, slopes.split(term.widths, dim=-1))

    def _shares(self, term: Any, u: Tensor, change: Tensor) -> Tensor:
        """Return p of every unit, (N, 1, K): those at kinks from their changed multipliers, down the chain."""
        on, kinks = self._on(term), self.kinks.split(term.widths, dim=-1)
        moved = (self.dual(term, u) + change).split(term.widths, dim=-1)
        nubar, shares = term.weights, []
        for level in range(len(on) - 1, -1, -1):
            shares.append(torch.where(kinks[level], moved[level] / safe_divisor(nubar), on[level]))
            if level > 0:
                nubar = adjoint(term.mixing[level - 1], nubar * shares[-1])
        return torch.cat(shares[::-1], dim=-1)

    def _away(self, term: Any, u: Tensor) -> Tensor:
        """Return the preactivations in the direction of each unit's state, (N, 1, K)."""
        return (2 * torch.cat(self._on(term), dim=-1) - 1) * torch.cat(term.preactivations(u), dim=-1)


def _from_ends(p: Tensor) -> Tensor:
    """Return how far p is inside of [0, 1]."""
    return torch.minimum(p, 1 - p)
