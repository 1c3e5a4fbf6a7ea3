"""The affine pieces of a ReLU surrogate: f(x) = max_k a_k'x + b_k (paper, Section 3.1).

Within a region where no unit switches f is affine with the slope of that pattern of active units, and as f is convex it
is the maximum of these affine functions. The regions are found unit by unit: a region is cut by a unit's zero set when
both sides have an interior, which a linear program tells; a point inside the region settles one side for free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from soctk.checks import check_count, to_numpy
from soctk.forms.conic_form import ConicForm
from soctk.lazy import optimize
from soctk.sets import FeasibleSet
from soctk.terms import Network

THINNEST = 1e-9
"""A side counts as a region when a ball of this radius fits, in units of constraints of length one."""


ROUNDING = 1e-14
"""Of a slope, relative to the slopes that it is a sum of."""


@dataclass
class _Region:
    """{x: normals x <= heights} with a point inside, and z and nothing else as affine functions of x there."""

    normals: np.ndarray
    heights: np.ndarray
    inside: np.ndarray


def affine_pieces(
    form: ConicForm, feasible_set: FeasibleSet | None = None, *, limit: int = 2000
) -> tuple[Tensor, Tensor]:
    """Return (A, b) with f(x) = max_k A_k'x + b_k, without duplicates.

    Args:
        form: one function whose terms are ReLU networks.
        feasible_set: pieces on this set alone, one without equalities; all of R^n by default.
        limit: give up beyond this many regions.

    Returns:
        A (M, n) and b (M,), float64.

    Raises:
        ValueError: several functions, a term that is not a ReLU network, a set with an equality, without rows or too
            small, more than `limit` regions.
    """
    check_count(limit, "limit")
    if form.size != 1:
        raise ValueError(f"form: expected one function, got batch shape {form.batch_shape}; select one first")
    other = [type(t).__name__ for t in form.terms if not isinstance(t, Network) or t.activation != "relu"]
    if other:
        raise ValueError(f"form: expected ReLU networks alone, got {', '.join(other)}: f is not piecewise affine")
    form = form.detach().apply(Tensor.cpu)
    slope, height = to_numpy(form.linear[0, 0]), float(form.constant)
    pieces = [(_everything(form.dim, feasible_set), slope, height)]
    for term in form.terms:
        pieces = [
            (region, slope + more_slope, height + more_height)
            for start, slope, height in pieces
            for region, more_slope, more_height in _split_by_network(term, start, limit)  # type: ignore[arg-type]
        ]
        if len(pieces) > limit:
            raise _too_many(limit)
    if not pieces:
        raise ValueError(
            f"feasible_set: expected one in which a ball of radius {THINNEST:g} fits; rescale its variables"
        )
    found = np.array([np.append(slope, height) for _, slope, height in pieces])
    sizes = np.abs(found).max(axis=0)  # each slope and the height has a unit of its own
    _, first = np.unique(np.round(found / np.where(sizes > 0, sizes, 1.0), 11), axis=0, return_index=True)
    kept = torch.from_numpy(found[np.sort(first)])
    return kept[:, :-1].contiguous(), kept[:, -1].contiguous()


def _everything(dim: int, feasible_set: FeasibleSet | None) -> _Region:
    if feasible_set is None:
        return _Region(np.zeros((0, dim)), np.zeros(0), np.zeros(dim))
    rows = feasible_set.rows()
    if rows is None or len(rows.E) > 0:
        raise ValueError("feasible_set: expected bounds and inequalities: with an equality its interior is empty")
    axes, lengths = torch.eye(dim, dtype=torch.float64), rows.G.norm(dim=1, keepdim=True)
    low, high, kept = rows.lower.isfinite(), rows.upper.isfinite(), lengths[:, 0] > 0
    normals = torch.cat([axes[high], -axes[low], (rows.G / lengths)[kept]])
    heights = torch.cat([rows.upper[high], -rows.lower[low], (rows.h / lengths[:, 0])[kept]])
    return _Region(normals.numpy(), heights.numpy(), feasible_set.center().numpy())


def _split_by_network(term: Network, start: _Region, limit: int) -> list[tuple[_Region, np.ndarray, float]]:
    """Return the regions of one network inside a region, with its slope and height on each."""
    dense = replace(term, map=term.map.to_dense())
    data = {name: to_numpy(t[0]) for name, t in dense.coefficients().items()}
    n = term.map.dim
    rows = np.split(np.column_stack([data["A"], data["offset"]]), np.cumsum(term.widths)[:-1])
    states = [(start, np.zeros((0, n + 1)))]  # a region and z of the layer below as rows (slope, height)
    for level, own in enumerate(rows, start=1):
        following = []
        for region, z in states:
            a, size = own, np.linalg.norm(own[:, :-1], axis=1)
            if level > 1:
                U = _mixing(term, level)
                a, size = own + U @ z, size + np.abs(U) @ np.linalg.norm(z[:, :-1], axis=1)
            following += _split_by_layer(region, a, ROUNDING * size)
            if len(following) > limit:
                raise _too_many(limit)
        states = following
    return [(region, data["weights"] @ z[:, :-1], float(data["weights"] @ z[:, -1])) for region, z in states]


def _mixing(term: Network, level: int) -> np.ndarray:
    """Return the matrix from the layer below to layer `level`, from 2 on, of the only function."""
    given = term.mixing[level - 2]
    matrix = given if isinstance(given, Tensor) else given.to_dense().matrix
    return to_numpy(matrix[0])


def _split_by_layer(region: _Region, a: np.ndarray, flat: np.ndarray) -> list[tuple[_Region, np.ndarray]]:
    """Return the regions in which no unit of a layer with preactivations a (h, n + 1) switches, and relu(a) there.

    Slopes up to `flat` (h,) are what rounding leaves of none.
    """
    states = [(region, np.zeros((0, a.shape[1])))]
    for row, none in zip(a, flat, strict=True):
        states = [
            (part, np.vstack([z, row if active else np.zeros_like(row)]))
            for here, z in states
            for part, active in _sides(here, row, none)
        ]
    return states


def _sides(region: _Region, row: np.ndarray, flat: float) -> list[tuple[_Region, bool]]:
    """Return the sides of slope'x + height = 0 that have an interior within the region, and whether x is above."""
    slope, height = row[:-1], row[-1]
    length = np.linalg.norm(slope)
    if length <= flat:
        return [(region, bool(height > 0))]
    normal, level = slope / length, -height / length
    sides = []
    for active, sign in ((True, -1.0), (False, 1.0)):
        normals = np.vstack([region.normals, sign * normal])
        heights = np.append(region.heights, sign * level)
        inside = region.inside
        if float((heights - normals @ inside).min()) <= THINNEST:
            found = _interior(normals, heights)
            if found is None:
                continue
            inside = found
        sides.append((_Region(normals, heights, inside), active))
    return sides


def _interior(normals: np.ndarray, heights: np.ndarray) -> np.ndarray | None:
    """Return the centre of a ball inside {normals x <= heights}, the largest up to radius 1; None where none fits."""
    dim = normals.shape[1]
    answer = optimize.linprog(
        np.append(np.zeros(dim), -1.0),
        A_ub=np.column_stack([normals, np.ones(len(normals))]),
        b_ub=heights,
        bounds=[(None, None)] * dim + [(None, 1.0)],
        method="highs",
    )
    return answer.x[:-1] if answer.status == 0 and answer.x[-1] > THINNEST else None


def _too_many(limit: int) -> ValueError:
    return ValueError(
        f"form: expected at most limit={limit} regions, found more; raise `limit` or take a smaller model"
    )
