"""Smaller structures: a conic branch without one direction of its rows.

||A x + d(theta)||, d(theta) = D theta + e, is the same function for Q A, Q D, Q e with any orthogonal Q. With the left
singular vectors of [A D e] its rows are orthogonal and in the order of their length: the last is the one whose absence
changes the function least. Left out, it is zero in all three: its derivatives vanish there (those of ||w|| in w_k are
w_k / ||w||), so a search leaves it at zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from soctk.conditioning import Offset
from soctk.traits import Reduction

ZERO = 1e-9
"""Singular values below this share of the largest count as none."""


@torch.no_grad()
def least_direction(matrix: Tensor, offset: Offset) -> tuple[int, float]:
    """Return how many directions the rows of a norm have, and the length of the least as a share of the largest."""
    lengths = torch.linalg.svdvals(_rows(matrix, offset))
    rank = int((lengths > ZERO * lengths[0]).sum())
    return rank, float(lengths[rank - 1] / lengths[0]) if rank > 0 else 0.0


def smaller_than(
    blocks: Sequence[str], norms: Mapping[str, tuple[Tensor, Offset]], remove: Callable[[str], None]
) -> list[Reduction]:
    """Return the next smaller structures: without hyperbolic blocks, or without the least direction of a norm.

    Args:
        blocks: those that are on.
        norms: matrix and offset of every norm by its block.
        remove: leaves a block out.
    """
    least = {block: least_direction(*norms[block]) for block in blocks if block in norms}
    smaller = [Reduction("hyperbolics", partial(remove, "hyperbolics"))] if "hyperbolics" in blocks else []
    for block, (rank, _) in sorted(least.items(), key=lambda one: one[1][1]):
        apply = partial(drop_direction, *norms[block]) if rank > 1 else partial(remove, block)
        smaller.append(Reduction(block, apply))
    return smaller


@torch.no_grad()
def drop_direction(matrix: Tensor, offset: Offset) -> None:
    """Leave a norm without its least direction; its rows become orthogonal, the longest first."""
    left, lengths, _ = torch.linalg.svd(_rows(matrix, offset), full_matrices=False)
    kept = int((lengths > ZERO * lengths[0]).sum()) - 1
    turn = left.new_zeros(len(matrix), len(matrix))
    turn[:kept] = left.mT[:kept]
    parts = (matrix, offset.constant, *([] if offset.slope is None else [offset.slope]))
    for part in parts:
        part.copy_(turn @ part)


def _rows(matrix: Tensor, offset: Offset) -> Tensor:
    """Return [A D e], (rows, n + p + 1)."""
    slope = [] if offset.slope is None else [offset.slope]
    return torch.cat([matrix, *slope, offset.constant.unsqueeze(-1)], dim=-1)
