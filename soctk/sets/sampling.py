"""Uniform sampling of {lo <= x <= hi, sum(x) = total}.

Without upper bounds in the way the set is a scaled simplex, where Dirichlet(1) is uniform; with them, a
Dirichlet draw is kept when it respects the bounds, which leaves it uniform on what remains. Near the upper
corner the mirrored set hi - x is the smaller simplex and accepts more, so the proposal is drawn there.
Where even that accepts too little, a hit-and-run chain along the directions e_i - e_j (whose uniform
conditional is an interval) is run from the centre; its limit is the uniform distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDS = 200
_SWEEPS = 100


def sample_capped_simplex(
    count: int, lo: Tensor, hi: Tensor, total: float, generator: torch.Generator | None = None
) -> Tensor:
    """Return `count` uniform points (count, n) of the capped simplex, float64."""
    low_room = total - float(lo.sum())
    high_room = float(hi.sum()) - total
    mirrored = high_room < low_room
    spare = high_room if mirrored else low_room
    caps = hi - lo
    if count == 0 or spare <= 0:
        return (hi if mirrored else lo).expand(count, -1).clone()
    offsets = _by_rejection(count, caps, spare, generator)
    return hi - offsets if mirrored else lo + offsets


def _by_rejection(count: int, caps: Tensor, spare: float, generator: torch.Generator | None) -> Tensor:
    kept: list[Tensor] = []
    missing = count
    for _ in range(_ROUNDS):
        size = max(256, 2 * missing)
        draws = torch.empty(size, caps.numel(), dtype=torch.float64).exponential_(generator=generator)
        draws = draws * (spare / draws.sum(dim=-1, keepdim=True))
        accepted = draws[(draws <= caps).all(dim=-1)][:missing]
        kept.append(accepted)
        missing -= accepted.shape[0]
        if missing == 0:
            return torch.cat(kept)
        if accepted.shape[0] < 1e-3 * size:
            break
    kept.append(_by_hit_and_run(missing, caps, spare, generator))
    return torch.cat(kept)


def _by_hit_and_run(count: int, caps: Tensor, spare: float, generator: torch.Generator | None) -> Tensor:
    x = (caps * (spare / caps.sum())).expand(count, -1).clone()
    pairs = caps.numel() // 2
    for _ in range(_SWEEPS):
        order = torch.randperm(caps.numel(), generator=generator)
        i, j = order[:pairs], order[pairs : 2 * pairs]
        both = x[:, i] + x[:, j]
        least = torch.maximum(both - caps[j], torch.zeros_like(both))
        most = torch.minimum(both, caps[i])
        share = torch.rand(both.shape, generator=generator, dtype=torch.float64)
        x[:, i] = least + share * (most - least)
        x[:, j] = both - x[:, i]
    return x
