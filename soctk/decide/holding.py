"""Whether ends and kinks hold a decision, as far as the smoothed barrier problem tells (soctk.decide.implicit).

There each has a stiffness k along a direction a: the barrier's s / room of an end, the smoothed curvature of a kink.
What holds is infinitely stiff in truth, what does not is not there. With K the inverse of the system, which is what a
decision gives way by, and h = a'K a, the inverse would be

    K + k / (1 - k h) K a a'K   without it,        K - 1 / h K a a'K   if it held for good.

So derivatives are wrong by the smaller of the two differences at most, if it is one or the other, which is not known.
Where that is small beside what coordinates give way by, it does not matter which; elsewhere the direction is in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.decide.batched import solve_columns
from soctk.decide.ends import Ends
from soctk.decide.result import picker
from soctk.forms.conic_form import ConicForm
from soctk.terms.base import Smoothed

STIFF = 1e3
"""A difference is small that is this many times less than what coordinates give way by."""
ALIGNED = 1e2
"""The squared length of a direction over what is left of it across those that hold as well: what is stiffer by more is
not looked at."""
LARGEST_SPREAD = 1e6
"""Of f's curvature between directions; beyond, it is taken to be so."""
TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Holding:
    """The ends and kinks of N problems, as many for each.

    Attributes:
        stiffness: k, (N, M).
        normals: a, M in all, of the ends and of each term with kinks: (1 or N, rows, n).
    """

    stiffness: Tensor
    normals: tuple[Tensor, ...]

    @classmethod
    def of(cls, form: ConicForm, smoothed: list[Smoothed], lags: list, weights: Tensor, bounds: Ends) -> Holding:
        """Return the ends, of `weights` s / room (N, n + m), and the kinks of a detached form's terms."""
        terms = (term.kinks(*of_term) for term, *of_term in zip(form.terms, smoothed, lags, strict=True))
        every = [(weights, bounds.normals.unsqueeze(0)), *(kinks for kinks in terms if kinks is not None)]
        stiffness, normals = zip(*every, strict=True)
        return cls(torch.cat(stiffness, dim=1), normals)

    def comparable(self, curvature: Tensor) -> Tensor:
        """Return which directions are as stiff as f is curved, to some orders of magnitude, bool (N, M).

        Args:
            curvature: of f but for kinks, (N, n, n).
        """
        parts = self.stiffness.split([part.shape[1] for part in self.normals], dim=1)
        lengths = (torch.linalg.vector_norm(part, dim=2) for part in self.normals)
        stiffness = torch.cat([part * length.square() for part, length in zip(parts, lengths, strict=True)], dim=1)
        pivots = torch.linalg.cholesky_ex(curvature)[0].diagonal(dim1=1, dim2=2).square()
        most = curvature.diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True)
        least = torch.nan_to_num(pivots.amin(dim=1, keepdim=True)).maximum(most / LARGEST_SPREAD)
        held = stiffness >= ALIGNED * STIFF * most * (most / least)
        return (stiffness * STIFF > least) & ~held

    def in_doubt(self, which: Tensor, rows: Tensor, factor: Tensor, curvature: Tensor, bounds: Ends) -> Tensor:
        """Return which of the instances `rows` have a direction in doubt, bool (R,).

        Args:
            which: directions that may be, bool (N, M).
            rows: (R,).
            factor, bounds: as `Barrier` has them, of all instances.
            curvature: as above.
        """
        size, which = len(which), which[rows]
        index = which.to(torch.uint8).argsort(dim=1, descending=True)[:, : int(which.sum(dim=1).max())]
        stiffness = torch.where(which, self.stiffness[rows], 0.0).gather(1, index)
        normals = torch.cat([part.expand(len(rows), -1, -1) for part in picker(size, rows)(self.normals)], dim=1)
        normals = normals.gather(1, index.unsqueeze(2).expand(-1, -1, normals.shape[2])).mT
        moved = solve_columns(factor[rows], normals, bounds.select(rows, size))
        across = (moved * normals).sum(dim=1)
        share = stiffness * across
        difference = torch.where(share < 0.5, share / (1 - share), 1.0) / across.clamp(min=TINY)
        difference = STIFF * (difference.unsqueeze(1) * moved.square()).amax(dim=2)
        most = curvature[rows].diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True)
        least = torch.where(most > 0, 1 / most, 0.0)  # what f leaves of a move where it is most curved
        doubt = (difference > least).any(dim=1)
        some = torch.nonzero(doubt).squeeze(1)
        if some.numel() > 0:
            here = rows[some]
            every = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device).expand(len(some), -1, -1)
            moves = solve_columns(factor[here], every, bounds.select(here, size)).diagonal(dim1=1, dim2=2)
            doubt[some] = (difference[some] > moves.maximum(least[some])).any(dim=1)
        return doubt
