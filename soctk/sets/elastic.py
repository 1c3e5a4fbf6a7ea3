"""The nearest polyhedron that is not empty: rows moved as little as need be, in the sum of the moves.

    min 1'(p + q + r)   over   E x + p - q = f,   G x - r <= h,   lo <= x <= hi,   p, q, r >= 0.

Where the minimum is positive, its multipliers nu, z prove that the set is empty: they are those of the rows, at most 1
in size, and -nu'f - z'h + min over the bounds of (E'nu + G'z)'x is the minimum. Upper bounds below lower ones are
raised to them first.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from soctk.sets.at import SetAt
from soctk.sets.linear_programs import linear_program

ROUNDED_UP = 1e-9
"""What is added to every move of h, as a share of what a row adds: the linear programme's tolerance."""


def nearest(sets: SetAt, deadline: float = float("inf")) -> tuple[SetAt, Tensor, Tensor, Tensor]:
    """Return sets that are not empty, the sums of the moves (N,), and multipliers nu (N, k) and z (N, m) of the rows.

    Args:
        sets: flat and detached, N of them; one linear programme each.
        deadline: `time.perf_counter()` value to stop at; sets that are not reached stay as they are, their moves NaN.
    """
    count = max(len(torch.atleast_2d(side)) for side in sets.sides)
    lower, upper, f, h = (torch.atleast_2d(side).expand(count, -1).clone() for side in sets.sides)
    raised = (lower - upper).clamp(min=0).sum(dim=1)
    upper = torch.maximum(lower, upper)
    E, G = sets.rows.E.numpy(), sets.rows.G.numpy()
    (k, n), m = E.shape, len(G)
    equal = np.hstack([E, np.eye(k), -np.eye(k), np.zeros((k, m))])
    below = np.hstack([G, np.zeros((m, 2 * k)), -np.eye(m)])
    cost = np.concatenate([np.zeros(n), np.ones(2 * k + m)])
    more = np.stack([np.zeros(2 * k + m), np.full(2 * k + m, np.inf)], axis=1)
    nu, z, moved = torch.zeros_like(f), torch.zeros_like(h), raised.clone()
    for i in range(count):
        if time.perf_counter() > deadline:
            moved[i:] = torch.nan
            break
        bounds = np.concatenate([np.stack([lower[i].numpy(), upper[i].numpy()], axis=1), more])
        answer = linear_program(cost, below, h[i].numpy(), equal, f[i].numpy(), bounds)
        if answer.status != 0:
            raise RuntimeError(f"a linear programme over the set was not solved ({answer.message})")
        x = np.clip(answer.x[:n], lower[i].numpy(), upper[i].numpy())
        r = answer.x[n + 2 * k :]
        # What the programme's tolerance leaves open is moved as well, so that x is a point of the set.
        room = ROUNDED_UP * (np.abs(G) @ np.maximum(np.abs(x), 1.0) + np.abs(h[i].numpy())) * (r > 0)
        past = torch.from_numpy(G @ x - h[i].numpy()).clamp(min=0)
        moved[i] += float((torch.from_numpy(E @ x) - f[i]).abs().sum() + past.sum())
        nu[i] = torch.from_numpy(-answer.eqlin.marginals) if k else nu[i]
        z[i] = torch.from_numpy(np.maximum(-answer.ineqlin.marginals, 0.0)) if m else z[i]
        f[i] = torch.from_numpy(E @ x)
        h[i] += past + torch.from_numpy(room)
    sides = [side[0] if sets.batch_shape == () else side for side in (lower, upper, f, h)]
    return SetAt(sets.base, *sides), moved, nu, z
