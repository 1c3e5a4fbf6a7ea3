"""The smooth piece of a term that a solution stays on when coefficients change a little.

At a kink phi(A x + d) has no derivative, but the kink itself moves smoothly: what is zero there (a unit's
preactivation, the argument of a norm) stays zero, and its multiplier stays inside its range. So near a solution a term
is a smooth function of x, with its multipliers at kinks held, and equations e(x) = 0 for the rows that rest at one.

A piece says which rows these are. Its methods are given the term anew, so that autograd sees the term's coefficients.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from soctk.terms.base import SMALLEST_WEIGHT, Smoothed, Term, group_norms
from soctk.terms.network import Network
from soctk.terms.norm import Norms
from soctk.terms.smooth import safe_divisor

AT_KINK = 1e-6
"""What rests at a kink has a slope or a multiplier that is so far from both ends of its range, relative to the range.

A slope smoothed by mu is about (mu / a)^2 away where what should be zero is a: at a mu of 1e-11 that is far less, but
for an a of 1e-8.
"""


@dataclass(frozen=True, eq=False)
class Piece:
    """A piece of a smooth term: the term itself.

    Attributes:
        kinks: which of the K rows of u = A x + d rest at a kink, bool (N, 1, K); (N, 1, 0) for a smooth term.
    """

    kinks: Tensor

    def dual(self, term: Any, u: Tensor) -> Tensor:
        """Return the gradient of phi in u on the piece, multipliers of kinks held."""
        return term.subgradient(u)

    def add_hessian(self, term: Any, total: Tensor, u: Tensor) -> None:
        """Add the Hessian of the piece in x to `total` (N, n, n)."""
        smoothed = term.smooth(u, u.new_zeros(u.shape[0], 1))
        term.add_hessian(total, smoothed, term.initial_lag(smoothed))

    def equations(self, term: Any, u: Tensor) -> Tensor:
        """Return e, whose rows are zero at kinks, as `kinks`."""
        return u[..., :0]

    def matrix(self, term: Any) -> Tensor:
        """Return the derivative of e in x, (N or 1, K, n)."""
        return term.offset.new_zeros(1, 0, term.map.dim)

    def margins(self, term: Any, u: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far u is from other pieces, and multipliers that have changed by `change`, (N, 1, K), are.

        Returns:
            |e| of each row, negative on the wrong side, infinite at kinks; and the distance of a kink's multiplier from
            the nearer end of its range in units of the range, negative outside, infinite elsewhere; as `kinks`.
        """
        return change, change


class UnknownPiece(Piece):
    """The piece of a term that has kinks, nobody has said which: its margins are never right."""

    def equations(self, term: Any, u: Tensor) -> Tensor:
        """Return one row of ones."""
        return torch.ones_like(u[..., :1])

    def matrix(self, term: Any) -> Tensor:
        """Return one row of zeros."""
        return term.offset.new_zeros(1, 1, term.map.dim)

    def margins(self, term: Any, u: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return what no derivative is given with."""
        return torch.full_like(change, -torch.inf), change


@singledispatch
def piece_of(term: Term, smoothed: Smoothed, lag: Any) -> Piece:
    """Return the piece of a term that a solution rests on, known by the smoothed term and the lagged duals there.

    Where a term of one's own has kinks, decisions that depend on them are differentiated once its pieces are known:
    `piece_of.register(MyTerm)` a function of the same arguments.
    """
    rows = smoothed.dual[..., : 0 if lag is None else 1]
    return (Piece if lag is None else UnknownPiece)(torch.zeros_like(rows, dtype=torch.bool))


@dataclass(frozen=True, eq=False)
class NetworkPiece(Piece):
    """Units that are on, off or at their kink: affine in x.

    Attributes:
        slopes: p_l of every unit, constants in [0, 1], (N, 1, h_l): 1, 0, or the multiplier's share of its range.
    """

    slopes: tuple[Tensor, ...]

    def _on(self, term: Network) -> list[Tensor]:
        """Return 1 for units that are on, 0 for others: at a kink z = 0 on both sides."""
        kinks = self.kinks.split(term.widths, dim=-1)
        return [torch.where(kink, 0.0, p) for kink, p in zip(kinks, self.slopes, strict=True)]

    def dual(self, term: Network, u: Tensor) -> Tensor:
        """Return the chain of the slopes."""
        return torch.cat(term.chain(self.slopes)[0], dim=-1)

    def add_hessian(self, term: Network, total: Tensor, u: Tensor) -> None:
        """Add nothing."""

    def equations(self, term: Network, u: Tensor) -> Tensor:
        """Return the preactivations."""
        return torch.cat(term.preactivations(u, self._on(term)), dim=-1)

    def matrix(self, term: Network) -> Tensor:
        """Return J_1 = W_1, J_l = W_l + U_l diag(on_{l-1}) J_{l-1}, one below the other."""
        rows = [term.layer_maps()[0].matrix]
        for level, on in enumerate(self._on(term)[:-1], start=1):
            mixing = term.mixing[level - 1]
            mixing = mixing if isinstance(mixing, Tensor) else mixing.to_dense().matrix
            rows.append(term.layer_maps()[level].matrix + (mixing * on) @ rows[-1])
        return torch.cat([part.expand(self.kinks.shape[0], -1, -1) for part in rows], dim=1)

    def margins(self, term: Network, u: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return the preactivations in the direction of each unit's state, and min(p, 1 - p) of the moved chain."""
        on, kinks = self._on(term), self.kinks.split(term.widths, dim=-1)
        held, changes = self.dual(term, u).split(term.widths, dim=-1), change.split(term.widths, dim=-1)
        nubar, inside = term.weights, []
        for level in range(len(on) - 1, -1, -1):
            p = torch.where(kinks[level], (held[level] + changes[level]) / safe_divisor(nubar), on[level])
            inside.append(torch.where(kinks[level], torch.minimum(p, 1 - p), torch.inf))
            if level > 0:
                nubar = term.chained(level, nubar * p)
        a = (2 * torch.cat(on, dim=-1) - 1) * torch.cat(term.preactivations(u), dim=-1)
        return torch.where(self.kinks, torch.inf, a), torch.cat(inside[::-1], dim=-1)


@piece_of.register
def _(term: Network, smoothed: Smoothed, lag: Any) -> Piece:
    if lag is None:
        return Piece(torch.zeros_like(smoothed.dual[..., :0], dtype=torch.bool))
    slopes = [0.5 * (1 + t) for t in lag]
    kinks = [
        (torch.minimum(p, 1 - p) > AT_KINK) | (torch.minimum(q, 1 - q) > AT_KINK)
        for p, q in zip(slopes, smoothed.cache[1], strict=True)
    ]
    slopes = tuple(torch.where(kink, p, p.round()) for kink, p in zip(kinks, slopes, strict=True))
    return NetworkPiece(torch.cat(kinks, dim=-1), slopes)


@dataclass(frozen=True, eq=False)
class NormsPiece(Piece):
    """Groups that are at their apex or not.

    Attributes:
        held: the lagged duals rho, (N, 1, K), which groups at their apex keep.
    """

    held: Tensor

    def dual(self, term: Norms, u: Tensor) -> Tensor:
        """Return rho at an apex, lambda u / length elsewhere."""
        return torch.where(self.kinks, self.held, term.subgradient(u))

    def add_hessian(self, term: Norms, total: Tensor, u: Tensor) -> None:
        """Add the Hessian of the groups that are not at their apex."""
        curved = ~self.kinks[..., :: term.size] & ((term.kappa != 0) | (term.size > 1))
        super().add_hessian(dataclasses.replace(term, weights=term.weights * curved), total, u)

    def equations(self, term: Norms, u: Tensor) -> Tensor:
        """Return u."""
        return u

    def matrix(self, term: Norms) -> Tensor:
        """Return A."""
        return term.map.to_dense().matrix

    def margins(self, term: Norms, u: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lengths ||u_g||, and 1 - ||rho_g|| / lambda_g."""
        weights = term.weights.clamp(min=SMALLEST_WEIGHT)
        slack = 1 - group_norms(self.held + change, term.size) / weights
        length = torch.where(term.kappa == 0, group_norms(u, term.size), torch.inf)
        slack, length = (part.repeat_interleave(term.size, dim=-1) for part in (slack, length))
        return torch.where(self.kinks, torch.inf, length), torch.where(self.kinks, slack, torch.inf)


@piece_of.register
def _(term: Norms, smoothed: Smoothed, lag: Any) -> Piece:
    length = torch.minimum(group_norms(lag, term.size), group_norms(smoothed.dual, term.size))
    apex = (length < (1 - AT_KINK) * term.weights) & (term.kappa == 0)
    return NormsPiece(apex.repeat_interleave(term.size, dim=-1), lag)
