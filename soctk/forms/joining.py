"""Several terms of a kind as one, with the same value to rounding: sums of functions that cost little more than one.

Sums over rows or groups are stacked. Networks of one layer stand side by side; deeper ones would be given mixing
matrices that are mostly zeros, and stay by themselves.

A quadratic of more rows than coefficients, with weights that no context moves, is one of as few rows as these. With the
columns of Z those of B, of E and e, where offset = E theta + e, and Z = Q R with orthonormal columns of Q,

    1/2 ||B x + E theta + e||^2 = 1/2 ||Z (x, theta, 1)||^2 = 1/2 ||R (x, theta, 1)||^2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from soctk.forms.conic_form import ConicForm
from soctk.maps.linear import DenseMap
from soctk.terms import Huber, Logistic, LogSumExp, Network, Norms, Quadratic, Term

AGREE: dict[type[Term], tuple[str, ...]] = {
    Quadratic: (),
    Norms: ("size",),
    Huber: ("delta",),
    Logistic: (),
    LogSumExp: ("size",),
    Network: ("activation", "mixing"),
}
"""The kinds that are joined, and the fields that terms have in common for that."""


def mean(forms: Sequence[ConicForm]) -> ConicForm:
    """Return the mean of forms of the same dimension and batch shape as one form."""
    constant, linear = (
        torch.stack(torch.broadcast_tensors(*parts)).mean(dim=0)
        for parts in ([form.constant for form in forms], [form.linear for form in forms])
    )
    batch = max((form.batch_shape for form in forms), key=len)
    terms = joined([term.scaled(1 / len(forms)) for form in forms for term in form.terms])
    # of a single context nothing tells what contexts move, and its structure is to be that of any number of them
    terms = [reduced(term) for term in terms] if batch == () else terms
    return ConicForm(constant, linear, tuple(terms), batch)


def joined(terms: Sequence[Term]) -> list[Term]:
    """Return the terms with those of a kind as one, in the order of the first of each kind."""
    groups: dict[Any, list[Term]] = {}
    for index, term in enumerate(terms):
        groups.setdefault(_kin(term) or index, []).append(term)
    return [_joined(group) if len(group) > 1 else group[0] for group in groups.values()]


def _kin(term: Term) -> tuple[Any, ...] | None:
    """Return what terms that are joined have in common; None for one that is not joined with any."""
    names = AGREE.get(type(term))
    if names is None or not (isinstance(term.map, DenseMap) and term.map.shared) or getattr(term, "mixing", ()):
        return None
    return (type(term), *(getattr(term, name) for name in names))


def _joined(terms: Sequence[Term]) -> Term:
    first = terms[0]
    maps = [term.map for term in terms if isinstance(term.map, DenseMap)]
    changes: dict[str, Any] = {}
    if isinstance(first, Quadratic):
        blocks = [term.blocks for term in terms if isinstance(term, Quadratic)]
        changes["blocks"] = sum(blocks, ()) if all(blocks) else ()
    if isinstance(first, Norms):
        changes["kappa"] = side_by_side([term.kappa for term in terms if isinstance(term, Norms)])
    if isinstance(first, Network):
        changes["widths"] = (sum(each.rows for each in maps),)
    return dataclasses.replace(
        first,
        map=DenseMap(torch.cat([each.matrix for each in maps], dim=1)),
        offset=side_by_side([term.offset for term in terms]),
        weights=side_by_side([term.weights for term in terms]),
        **changes,
    )


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors (N or 1, ..., any) as one, joined in the last dimension."""
    size = max(part.shape[0] for part in parts)
    return torch.cat([part.expand(size, *part.shape[1:]) for part in parts], dim=-1)


# -- quadratics --------------------------------------------------------------------------------------------


def reduced(term: Term) -> Term:
    """Return the term; a quadratic of more rows than that takes, the same for all contexts, with fewer."""
    if not isinstance(term, Quadratic) or not isinstance(term.map, DenseMap) or torch.compiler.is_exporting():
        return term
    same = term.map.shared and term.offset.shape[0] == term.weights.shape[0] == 1
    if not same or term.map.rows <= term.map.dim + 1 or bool((term.weights < 0).any()):
        return term
    factor = triangular(torch.cat([term.map.matrix, term.offset.mT], dim=-1)[0], term.weights[0, 0])
    rows = len(factor)
    offset, one = factor[:, -1].reshape(1, 1, -1), factor.new_ones(1, 1, rows)
    return Quadratic(DenseMap(factor[:, :-1].unsqueeze(0)), offset, one, (rows,))


def triangular(matrix: Tensor, weights: Tensor) -> Tensor:
    """Return R (k, k) with R'R = Z' diag(weights) Z for Z (rows, k) of at least k rows.

    Its derivative is taken as Q'dZ, which is right for all functions of R'R: rotations of R do not show in them. That
    of the factorisation itself does not exist where the rank is lower. No graph is exported with it.
    """
    weighted = weights.sqrt().unsqueeze(-1) * matrix
    return torch.linalg.qr(weighted.detach()).Q.mT @ weighted
