"""Finite boxes around polyhedra with right-hand sides of their own, some of whose bounds are infinite.

First what follows from single rows: a'x <= b leaves x_j <= (b - sum_{i != j} min a_i x_i) / a_j where a_j > 0, and
x_j >= the same where a_j < 0. Where that does not suffice, multipliers found once for the matrices bound x_j for every
right-hand side: with e_j + E'nu + G'z = w, z >= 0,

    x_j >= -nu'f - z'h + sum_i min(w_i lo_i, w_i hi_i),

w being zero, to rounding, where the bound that it needs is infinite.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from soctk.sets.rows import Rows

ROUNDS = 5
LARGE_ENOUGH = 1e-9
"""Entries below this share of a row's length bound nothing."""
ROUNDING = 1e-12
"""Ends are moved outwards by this share of what they add: rounding errs by less for rows of 1,000 entries."""


class Matrices(Protocol):
    """What is asked of a polyhedron besides its right-hand sides."""

    def rows(self) -> Rows:
        """Return the matrices, with right-hand sides of which none is used here."""
        ...

    def end_multipliers(self, j: int, sign: float) -> tuple[np.ndarray, np.ndarray]:
        """Return nu (k,), z >= 0 (m,) with sign e_j + E'nu + G'z zero where bounds are infinite."""
        ...


def implied_box(base: Matrices, lower: Tensor, upper: Tensor, f: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return lo and hi, (..., n), finite.

    Raises:
        ValueError: a coordinate has no end.
    """
    if bool(torch.isfinite(lower).all()) and bool(torch.isfinite(upper).all()):
        return lower, upper
    rows = base.rows()
    batch = np.broadcast_shapes(*(side.shape[:-1] for side in (lower, upper, f, h)))
    lo, hi, f, h = (side.expand(*batch, side.shape[-1]).clone() for side in (lower, upper, f, h))
    A = torch.cat([rows.E, -rows.E, rows.G])
    b = torch.cat([f, -f, h], dim=-1)
    for _ in range(ROUNDS):
        if bool(torch.isfinite(lo).all()) and bool(torch.isfinite(hi).all()):
            return lo, hi
        lo, hi = _once(A, b, lo, hi)
    return _by_multipliers(base, lo, hi, f, h)


def _once(A: Tensor, b: Tensor, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """Fill infinite ends by what single rows imply."""
    large = A.abs() > LARGE_ENOUGH * A.norm(dim=1, keepdim=True)
    for k in range(len(A)):  # one row at a time: (N, n) numbers
        a, used = A[k], A[k] != 0
        least = torch.where(used, torch.where(a > 0, a * lo, a * hi), 0.0)
        endless = torch.isinf(least)
        finite = torch.where(endless, 0.0, least)
        alone = endless.sum(dim=-1, keepdim=True) == endless.to(torch.int64)  # no other entry is endless
        margin = ROUNDING * (b[..., k : k + 1].abs() + finite.abs().sum(dim=-1, keepdim=True))
        rest = b[..., k : k + 1] + margin - (finite.sum(dim=-1, keepdim=True) - finite)
        end = rest / torch.where(large[k], a, 1.0)
        known = alone & large[k]
        hi = torch.where(known & (a > 0) & torch.isinf(hi), end, hi)
        lo = torch.where(known & (a < 0) & torch.isinf(lo), end, lo)
    return lo, hi


def _by_multipliers(base: Matrices, lo: Tensor, hi: Tensor, f: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Fill infinite ends by multipliers.

    If all constants and all finite ends are at most C, and what is left of w where it should be zero sums to at most
    R < 1, then no coordinate exceeds C / (1 - R).
    """
    rows, found = base.rows(), []
    missing = [torch.isinf(side).reshape(-1, side.shape[-1]).any(dim=0) for side in (lo, hi)]
    for sign, wanted in zip((1.0, -1.0), missing, strict=True):
        for j in torch.nonzero(wanted).flatten().tolist():
            nu, z = (torch.from_numpy(part) for part in base.end_multipliers(j, sign))
            w = nu @ rows.E + z @ rows.G
            w[j] += sign
            parts = torch.where(w > 0, w * lo, w * hi)
            finite = torch.isfinite(parts) & (w != 0)
            held = torch.where(finite, parts, 0.0)
            constant = -(f @ nu) - h @ z + held.sum(dim=-1)
            size = f.abs() @ nu.abs() + h.abs() @ z + held.abs().sum(dim=-1)
            found.append((j, sign, constant, size, torch.where(finite, 0.0, w.abs()).sum(dim=-1)))
    most = torch.stack([_largest_finite(lo), _largest_finite(hi), *(each[2].abs() for each in found)]).amax(dim=0)
    for j, sign, constant, size, left in found:
        if bool((left > 0.5).any()):
            raise RuntimeError("the set's ends were not found: give finite bounds, as large as need be")
        side = lo if sign > 0 else hi
        end = sign * (constant - ROUNDING * size - 2 * left * most)
        side[..., j] = torch.where(torch.isinf(side[..., j]), end, side[..., j])
    return lo, hi


def _largest_finite(side: Tensor) -> Tensor:
    return torch.where(torch.isfinite(side), side.abs(), 0.0).amax(dim=-1)
