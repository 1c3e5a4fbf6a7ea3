"""The ends between which decisions lie, and which of them a solution rests at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.decide.batched import Bounds
from soctk.decide.result import Final, picker

DEPENDENT = 1e-7
"""The part of a normal of length one that others do not give, below which it depends on them."""


@dataclass(frozen=True, eq=False)
class Ends:
    """Directions, the axes and the rows of R, with a lower and an upper end each; and equalities.

    Attributes:
        low, high: (1 or N, n + m), infinite where there is no end.
        R: (m, n), of length one; m may be 0.
        rows: (k, n), orthonormal rows of equalities; None where there are none.
        sums: whether the only one is on the sum of x.
        several: which lower and upper ends are those of several constraints that move, bool (1 or N, n + m) each: the
            decision turns where one of them moves alone. None for none.
    """

    low: Tensor
    high: Tensor
    R: Tensor
    rows: Tensor | None = None
    sums: bool = False
    several: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, bounds: Bounds) -> Ends:
        """Return those of a set of bounds and equalities."""
        return cls(
            bounds.lo.unsqueeze(0),
            bounds.hi.unsqueeze(0),
            bounds.lo.new_zeros(0, bounds.lo.numel()),
            bounds.rows,
            bounds.sums,
        )

    def _each(self, fn: Callable[[Tensor], Tensor]) -> Ends:
        return dataclasses.replace(self, low=fn(self.low), high=fn(self.high))

    def detach(self) -> Ends:
        """Return the ends cut from autograd."""
        return self._each(Tensor.detach)

    def select(self, index: Tensor, size: int) -> Ends:
        """Return those of the instances `index` of `size`."""
        return self._each(picker(size, index))

    def imbalance(self, slope: Tensor, final: Final) -> Tensor:
        """Return what the multipliers of ends and equalities leave of slopes of f, zero at a solution, (N, n)."""
        n = slope.shape[1]
        net = final.low if final.high is None else final.low - final.high
        left = slope - net[:, :n] - net[:, n:] @ self.R
        return left if self.rows is None else left - left @ self.rows.mT @ self.rows

    @property
    def normals(self) -> Tensor:
        """The directions, (n + m, n)."""
        return torch.cat([torch.eye(self.R.shape[1], dtype=self.R.dtype, device=self.R.device), self.R])

    @property
    def requires_grad(self) -> bool:
        """Whether an end is part of an autograd graph."""
        return self.low.requires_grad or self.high.requires_grad


def sides(ends: Ends, final: Final) -> Tensor:
    """Return 1 for directions that rest at their lower end, -1 at their upper one, 0 between, (N, n + m).

    On the path s (x - lo) = mu: of two numbers one is small, the multiplier or the distance.
    """
    low, high, at = ends.low, ends.high, final.values
    width, reach = high - low, final.x.abs().amax(dim=1, keepdim=True)
    # With a single end: how far x goes. At a vertex at 0 it may be nothing but rounding; other bounds may be far.
    widest = torch.where(torch.isinf(width), 0.0, width).amax(dim=1, keepdim=True)
    reach = torch.where(widest > 0, reach.clamp(min=1.0).minimum(widest), reach)
    width = torch.where(torch.isinf(width), reach, width)
    side = (final.low * width.square() > at - low).to(at.dtype)
    return side if final.high is None else side - (final.high * width.square() > high - at).to(at.dtype)


def turns(ends: Ends, final: Final) -> Tensor:
    """Return whether a direction rests at an end of several constraints, bool (N,)."""
    if ends.several is None or not ends.requires_grad:
        return torch.zeros(final.x.shape[0], dtype=torch.bool, device=final.x.device)
    side, (low, high) = sides(ends.detach(), final), ends.several
    return ((side > 0) & low | (side < 0) & high).any(dim=1)


def dependent(bounds: Ends, between: Tensor) -> Tensor:
    """Return whether the normals of what a point rests at depend on each other, bool (N,), (N, n + m) -> (N,).

    More than determine a decision then meet there, their multipliers are not unique, and the barrier has a middle of
    them: what it says of a derivative in an end is between those to the one side and to the other. Without rows that
    is so where all coordinates are at bounds, which imply a sum.
    """
    found, n = torch.zeros(between.shape[0], dtype=torch.bool, device=between.device), bounds.R.shape[1]
    some = torch.nonzero(~between[:, n:].all(dim=1)).squeeze(1)
    if some.numel() == 0:
        return found
    between, normals = between[some], bounds.normals
    if bounds.rows is not None:
        across = normals - normals @ bounds.rows.mT @ bounds.rows
        free = between[:, :n].any(dim=1)
        normals = torch.where(free[:, None, None], across, normals)
    else:
        normals = normals.expand(between.shape[0], -1, -1)
    lengths = normals.norm(dim=2, keepdim=True)
    none = between | (lengths.squeeze(2) < DEPENDENT)
    normals = torch.where(none.unsqueeze(2), 0.0, normals / lengths.clamp(min=DEPENDENT))
    gram = normals @ normals.mT + torch.diag_embed(none.to(normals.dtype))
    factor, failed = torch.linalg.cholesky_ex(gram)
    found[some] = (failed != 0) | (factor.diagonal(dim1=1, dim2=2).amin(dim=1) < DEPENDENT)
    return found


def redundant(bounds: Ends, side: Tensor) -> Tensor:
    """Return directions at ends whose normals follow from those before them and the equalities, bool (N, n + m)."""
    redundant = torch.zeros_like(side, dtype=torch.bool)
    some = torch.nonzero(dependent(bounds, side == 0)).squeeze(1)
    if some.numel() == 0:
        return redundant
    resting, normals = side[some] != 0, bounds.normals
    # Projects onto what is across all normals so far.
    left = normals[: normals.shape[1]].repeat(some.numel(), 1, 1)
    if bounds.rows is not None:
        left = left - bounds.rows.mT @ bounds.rows
    follows = torch.zeros_like(resting)
    for k, normal in enumerate(normals):
        part = left @ normal
        length = part.norm(dim=1)
        follows[:, k] = resting[:, k] & (length < DEPENDENT)
        unit = torch.where(resting[:, k] & ~follows[:, k], 1 / length.clamp(min=DEPENDENT), 0.0).unsqueeze(1) * part
        left = left - unit.unsqueeze(2) * unit.unsqueeze(1)
    redundant[some] = follows
    return redundant
