"""The smooth piece of a term that a solution stays on when coefficients change a little.

At a kink phi(A x + d) has no derivative, but the kink itself moves smoothly: what is zero there (a unit's
preactivation, the argument of a norm) stays zero, and its multiplier stays inside its range. So near a solution a term
is a smooth function of x, with its multipliers at kinks held, and equations e(x) = 0 for the rows that rest at one.

A piece says which rows these are. Its methods are given the term anew, so that autograd sees the term's coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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

    def adjusted(self, term: Any, u: Tensor, change: Tensor, among: Tensor) -> Piece:
        """Return a piece nearer to a solution where u and multipliers are outside of this one; itself where it is none.

        Args:
            term, u, change: as for `margins`.
            among: the instances that are asked for, bool (N,).
        """
        return self


@dataclass(frozen=True, eq=False)
class UnknownPiece(Piece):
    """The piece of a term with kinks that does not say which: where one rests at any, its margins are never right.

    Attributes:
        kinks: none, (N, 1, 1).
        resting: whether a solution may rest at one, bool (N, 1, 1).
    """

    resting: Tensor

    def equations(self, term: Any, u: Tensor) -> Tensor:
        """Return one row of ones."""
        return torch.ones_like(u[..., :1])

    def matrix(self, term: Any) -> Tensor:
        """Return one row of zeros."""
        return term.offset.new_zeros(1, 1, term.map.dim)

    def margins(self, term: Any, u: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return what no derivative is given with at kinks, and what always is elsewhere."""
        away = torch.where(self.resting, -torch.inf, torch.inf).to(u.dtype)
        return away, torch.full_like(away, torch.inf)
