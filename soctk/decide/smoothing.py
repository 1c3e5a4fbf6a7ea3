"""A form smoothed by a width mu: what the methods for whole batches share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from soctk.forms.conic_form import ConicForm, Dual
from soctk.sets import FeasibleSet
from soctk.terms.base import Smoothed


def smooth(form: ConicForm, u: Sequence[Tensor], mu: Tensor) -> list[Smoothed]:
    """Return every term smoothed at its argument u, each (N, 1, K); mu (N, 1)."""
    return [term.smooth(inner, mu) for term, inner in zip(form.terms, u, strict=True)]


def smooth_at(form: ConicForm, x: Tensor, mu: Tensor) -> list[Smoothed]:
    """Return every term smoothed at x (N, n); mu (N, 1)."""
    return smooth(form, [term.inner(x.unsqueeze(1)) for term in form.terms], mu)


def smoothed_value(form: ConicForm, x: Tensor, parts: Sequence[Smoothed]) -> Tensor:
    """Return f_mu(x), (N, 1)."""
    value = form.constant + (x.unsqueeze(1) * form.linear).sum(dim=-1)
    for part in parts:
        value = value + part.value
    return value


def smoothed_dual(parts: Sequence[Smoothed]) -> Dual:
    """Return the dual point of the smoothed slopes."""
    return Dual(tuple(part.dual for part in parts))


def first_width(form: ConicForm, feasible_set: FeasibleSet, x: Tensor, share: float) -> Tensor:
    """Return the mu (N, 1) at which all kinks together cost a share of the gap of the linearisation at x (N, n)."""
    points = x.unsqueeze(1)
    gap = form.evaluate(points) - form.bound(form.subgradients(points), feasible_set)
    return (share * gap / max(1, sum(term.offset.shape[-1] for term in form.terms))).clamp(min=1e-12)
