"""The sum of functions with context maps, again with a context map: one product with the context for all of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from soctk.forms.context_map import ContextMap, Shell
from soctk.forms.joining import joined, triangular
from soctk.maps.linear import DenseMap
from soctk.terms import Quadratic, Term

NUMBERS = ("map", "offset", "weights")


class Rows(NamedTuple):
    """The rows of a context map by what they are, each [E, e] of E theta + e: (any, p + 1)."""

    level: Tensor
    slope: Tensor
    offsets: Tensor
    weights: Tensor
    ridges: Tensor
    units: Tensor
    squares: Tensor

    @classmethod
    def of(cls, source: ContextMap) -> Rows:
        """Return the rows of a map."""
        both, n = torch.cat([source.slope, source.constant.unsqueeze(-1)], dim=-1), source.dim
        free, *rest = both.split(source.sizes)
        return cls(free[:1], free[1 : 1 + n], free[1 + n :], *rest)


def in_units(
    source: ContextMap,
    *,
    scale: Tensor,
    shift: Tensor,
    x_scale: Tensor,
    x_mean: Tensor,
    context_mean: Tensor,
    context_scale: Tensor,
) -> ContextMap:
    """Return the map of scale * g((x - x_mean) / x_scale, (context - context_mean) / context_scale) + shift.

    `scale` and `shift` are numbers, the others one for each coordinate.
    """
    factor, moved = (1 / x_scale).unsqueeze(-1), -x_mean / x_scale
    slope = source.slope / context_scale
    rows = Rows.of(dataclasses.replace(source, slope=slope, constant=source.constant - slope @ context_mean))
    level = scale * (rows.level + moved @ rows.slope)
    rows = rows._replace(
        level=level + _in_last(shift.reshape(1), level),
        slope=scale * factor * rows.slope,
        offsets=rows.offsets + _in_last(source.matrix @ moved, rows.offsets),
    )
    tilt = scale * (moved.unsqueeze(-1) * source.ridges).flatten()
    mixing = source.mixing
    if len(mixing) > 1:  # v has a part in it
        level, slope, rest = mixing.tensor_split([1, 1 + source.dim])
        mixing = torch.cat([scale * (level + moved @ slope), scale * (factor * slope), rest])
    else:
        mixing = scale * mixing
    return _with_rows(
        dataclasses.replace(
            source,
            ridges=scale * factor * source.ridges,
            mixing=mixing,
            matrix=source.matrix / x_scale,
            gains=scale * (torch.ones_like(source.floors) if source.gains is None else source.gains),
            tilt=tilt if source.tilt is None else tilt + scale * source.tilt,
        ),
        rows,
    )


def _in_last(column: Tensor, like: Tensor) -> Tensor:
    """Return a matrix with a column (K,) at its end and zeros elsewhere."""
    return torch.nn.functional.pad(column.unsqueeze(-1), (like.shape[-1] - 1, 0))


def total(maps: Sequence[ContextMap]) -> ContextMap:
    """Return the sum of functions, terms of a kind joined (`soctk.forms.joining`)."""
    first, rows = maps[0], [Rows.of(each) for each in maps]
    gains = [torch.ones_like(each.floors) if each.gains is None else each.gains for each in maps]
    tilts = [0 * m.ridges if m.tilt is None else m.tilt.reshape(m.ridges.shape) for m in maps]
    arguments = [each.ridges.unflatten(0, m.ridges.shape) for each, m in zip(rows, maps, strict=True)]
    terms = joined(_numbered(maps))
    order, index = (_joint(first.index, [getattr(term, name) for term in terms]) for name in ("offset", "weights"))
    return _with_rows(
        dataclasses.replace(
            first,
            floors=torch.cat([each.floors for each in maps]),
            index=index,
            ridges=torch.cat([each.ridges for each in maps], dim=1),
            mixing=_joint_mixing(maps, order),
            matrix=torch.cat([each.matrix for each in maps])[order],
            shells=[_shell(term) for term in terms],
            moves=(any(each.moves[0] for each in maps), any(each.moves[1] for each in maps)),
            gains=torch.cat(gains),
            tilt=torch.cat(tilts, dim=1).flatten(),
        ),
        Rows(
            torch.stack([each.level for each in rows]).sum(dim=0),
            torch.stack([each.slope for each in rows]).sum(dim=0),
            torch.cat([each.offsets for each in rows])[order],
            torch.cat([each.weights for each in rows]),
            torch.cat(arguments, dim=1).flatten(end_dim=1),
            torch.cat([each.units for each in rows]),
            torch.cat([each.squares for each in rows]),
        ),
    )


def _joint_mixing(maps: Sequence[ContextMap], order: Tensor) -> Tensor:
    """Return M of all units and then of all squares, the rows of offsets in an order of their own.

    All maps add to b0 and v, each to its own offsets and weights.
    """
    height = max(len(each.mixing) for each in maps)
    if height <= 1 + maps[0].dim:
        padded = [torch.nn.functional.pad(m.mixing, (0, 0, 0, height - len(m.mixing))) for m in maps]
        return _units_first(padded, maps)
    full = [torch.nn.functional.pad(m.mixing, (0, 0, 0, sum(m.sizes[:2]) - len(m.mixing))) for m in maps]
    shared, *own = zip(
        *(mixing.tensor_split([1 + m.dim, m.sizes[0]]) for mixing, m in zip(full, maps, strict=True)), strict=True
    )
    columns = [each.mixing.shape[1] for each in maps]
    offsets, weights = (_units_first(torch.block_diag(*parts).split(columns, dim=1), maps) for parts in own)
    return torch.cat([_units_first(shared, maps), offsets[order], weights])


def _units_first(mixings: Sequence[Tensor], maps: Sequence[ContextMap]) -> Tensor:
    """Return several side by side, the columns of all units before those of all squares."""
    outer = [mixing.split(each.sizes[3:], dim=1) for mixing, each in zip(mixings, maps, strict=True)]
    return torch.cat([part for parts in zip(*outer, strict=True) for part in parts], dim=1)


def _with_rows(target: ContextMap, rows: Rows) -> ContextMap:
    """Return a map with other rows of the context's product."""
    level, slope, offsets, *rest = rows
    sizes = [len(level) + len(slope) + len(offsets), *map(len, rest)]
    both = torch.cat(rows)
    return dataclasses.replace(target, slope=both[:, :-1], constant=both[:, -1], sizes=sizes)


def _numbered(maps: Sequence[ContextMap]) -> list[Term]:
    """Return all terms with the numbers of their offsets and weights, as of all maps, in place of these.

    Terms that are joined then say which rows and weights they have.
    """
    first, shells = maps[0], [shell for each in maps for shell in each.shells]
    heights, counts = [shell.rows for shell in shells], [shell.count for shell in shells]
    starts = accumulate((len(each.floors) for each in maps), initial=0)
    index = torch.cat([first.index[:0], *(start + each.index for start, each in zip(starts, maps, strict=False))])
    rows = torch.arange(sum(heights), device=index.device)
    matrices = torch.cat([each.matrix for each in maps]).unsqueeze(0).split(heights, dim=1)
    numbers = (each.reshape(1, 1, -1).split(sizes, dim=-1) for each, sizes in ((rows, heights), (index, counts)))
    return [
        shell.kind(DenseMap(matrix, shell.used), *places, **shell.more)
        for shell, matrix, *places in zip(shells, matrices, *numbers, strict=True)
    ]


def _joint(like: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Return numbers (1, 1, any) of terms as one vector."""
    return torch.cat([like[:0], *(part[0, 0] for part in parts)])


def _shell(term: Term) -> Shell:
    assert isinstance(term.map, DenseMap)
    names = (field.name for field in dataclasses.fields(term) if field.name not in NUMBERS)
    more = {name: getattr(term, name) for name in names}
    return Shell(type(term), more, term.map.rows, term.map.used, term.weights.shape[-1])


# -- quadratics --------------------------------------------------------------------------------------------


def with_fewer_rows(source: ContextMap) -> ContextMap:
    """Return the map; where no context moves weights, with quadratics of no more rows than they have coefficients.

    Not one whose offsets bend: they have coefficients of all its units as well.
    """
    fewest = source.dim + source.slope.shape[1] + 1
    wide = [s.kind is Quadratic and s.rows > fewest for s in source.shells]
    bends = len(source.mixing) > 1 + source.dim
    if source.moves[1] or bends or not any(wide) or torch.compiler.is_exporting():
        return source
    rows, gains = Rows.of(source), torch.ones_like(source.floors) if source.gains is None else source.gains
    weights, heights = gains * source.floors, [shell.rows for shell in source.shells]
    index = list(source.index.split([shell.count for shell in source.shells]))
    matrices, offsets, shells = list(source.matrix.split(heights)), list(rows.offsets.split(heights)), source.shells[:]
    for k in (k for k, reduce in enumerate(wide) if reduce):
        factor = triangular(torch.cat([matrices[k], offsets[k]], dim=-1), weights[index[k]])
        matrices[k], offsets[k] = factor.split([source.dim, fewest - source.dim], dim=-1)
        index[k] = source.index.new_full((fewest,), len(weights))
        shells[k] = Shell(Quadratic, {"blocks": (fewest,)}, fewest, None, fewest)
    one = weights.new_ones(1)
    constant = _in_last(torch.full_like(one, -math.inf), rows.weights)  # one more weight, which is always 1
    return _with_rows(
        dataclasses.replace(
            source,
            floors=torch.cat([source.floors, one]),
            gains=torch.cat([gains, one]),
            index=torch.cat(index),
            matrix=torch.cat(matrices),
            shells=shells,
        ),
        rows._replace(offsets=torch.cat(offsets), weights=torch.cat([rows.weights, constant])),
    )
