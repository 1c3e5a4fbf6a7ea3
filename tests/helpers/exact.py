"""Functions and bounds in fifty digits: what rounding in float64 and float32 is measured with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import mpmath as mp
import torch
from torch import Tensor

from soctk import ConicForm, FeasibleSet
from soctk.terms import Huber, Logistic, LogSumExp, Network, Norms, Quadratic, Term
from soctk.terms.base import Dual

mp.mp.dps = 50
Number = mp.mpf
Vector = list[Number]
Matrix = list[Vector]


def exact(tensor: Tensor) -> list:
    """Return the numbers of a float tensor as they are, nested lists."""
    if tensor.ndim == 0:
        return mp.mpf(tensor.item())
    return [exact(part) for part in tensor]


def dot(left: Sequence[Number], right: Sequence[Number]) -> Number:
    return mp.fsum(a * b for a, b in zip(left, right, strict=True))


def times(matrix: Matrix, vector: Sequence[Number]) -> Vector:
    return [dot(row, vector) for row in matrix]


class ExactForm:
    """value_scale * f((x - x_mean) / x_scale) + value_mean, f a form of one function: coefficients folded exactly."""

    def __init__(
        self,
        form: ConicForm,
        x: tuple[float | Tensor, float | Tensor] = (0.0, 1.0),
        value: tuple[float, float] = (0.0, 1.0),
    ):
        mean, scale = (exact(torch.as_tensor(unit, dtype=torch.float64).expand(form.dim)) for unit in x)
        level, unit = map(mp.mpf, value)
        shift, v = [-a / b for a, b in zip(mean, scale, strict=True)], exact(form.linear[0, 0])
        self.constant = unit * (exact(form.constant[0, 0]) + dot(shift, v)) + level
        self.linear = [unit * number / b for number, b in zip(v, scale, strict=True)]
        self.terms, self.matrices, self.offsets, self.weights = form.terms, [], [], []
        for term in form.terms:
            A = exact(term.map.to_dense().matrix[0])
            self.matrices.append([[number / b for number, b in zip(row, scale, strict=True)] for row in A])
            d = exact(term.offset[0, 0])
            self.offsets.append([a + dot(shift, row) for a, row in zip(d, A, strict=True)])
            self.weights.append([unit * number for number in exact(term.weights[0, 0])])

    def value(self, x: Vector) -> Number:
        total = self.constant + dot(self.linear, x)
        for term, A, d, weights in zip(self.terms, self.matrices, self.offsets, self.weights, strict=True):
            total += VALUES[type(term)](term, [a + b for a, b in zip(times(A, x), d, strict=True)], weights)
        return total

    def bound(self, dual: Dual, feasible_set: FeasibleSet) -> Number:
        """Return the bound of a dual point (one point), moved into the domain of the conjugates exactly."""
        total, g = self.constant, list(self.linear)
        parts = zip(self.terms, self.matrices, self.offsets, self.weights, dual.parts, strict=True)
        for term, A, d, weights, given in parts:
            y, conjugate = CONJUGATES[type(term)](term, exact(given[0, 0]), weights)
            total += dot(y, d) - conjugate
            g = [a + dot(column, y) for a, column in zip(g, zip(*A, strict=True), strict=True)]
        return total + linear_minimum(g, feasible_set)


def linear_minimum(g: Vector, feasible_set: FeasibleSet) -> Number:
    """Return min g'x between bounds, with a sum or without."""
    rows = feasible_set.rows()
    lo, hi = exact(rows.lower), exact(rows.upper)
    if rows.total is None:
        return mp.fsum(min(a * low, a * high) for a, low, high in zip(g, lo, hi, strict=True))
    spare, total = mp.mpf(rows.total) - mp.fsum(lo), dot(g, lo)
    for price, low, high in sorted(zip(g, lo, hi, strict=True)):
        amount = min(high - low, spare)
        total, spare = total + price * amount, spare - amount
    return total


def groups(numbers: Sequence[Number], size: int) -> list[Sequence[Number]]:
    return [numbers[k : k + size] for k in range(0, len(numbers), size)]


def length(numbers: Sequence[Number]) -> Number:
    return mp.sqrt(mp.fsum(a * a for a in numbers))


def entropy(p: Number) -> Number:
    return mp.fsum(-q * mp.log(q) for q in (p, 1 - p) if q > 0)


def _layers(term: Network, numbers: Sequence[Number]) -> list[Vector]:
    ends = [sum(term.widths[:k]) for k in range(len(term.widths) + 1)]
    return [list(numbers[a:b]) for a, b in itertools.pairwise(ends)]


def _network(term: Network, u: Vector, weights: Vector) -> Number:
    act: Callable = (lambda a: max(a, 0)) if term.activation == "relu" else (lambda a: mp.log1p(mp.exp(a)))
    z: Vector = []
    for level, part in enumerate(_layers(term, u)):
        moved = times(exact(term.mixing[level - 1][0]), z) if level else [mp.mpf(0)] * len(part)
        z = [act(a + b) for a, b in zip(part, moved, strict=True)]
    return dot(weights, z)


def _network_dual(term: Network, y: Vector, weights: Vector) -> tuple[Vector, Number]:
    nubar, chain, conjugate = list(weights), [], mp.mpf(0)
    for level, nu in reversed(list(enumerate(_layers(term, y)))):
        p = [min(max(a / b, 0), 1) if b > 0 else mp.mpf(0) for a, b in zip(nu, nubar, strict=True)]
        if term.activation == "softplus":
            conjugate -= mp.fsum(b * entropy(q) for b, q in zip(nubar, p, strict=True))
        chain.insert(0, [a * b for a, b in zip(nubar, p, strict=True)])
        if level:
            nubar = times(list(zip(*exact(term.mixing[level - 1][0]), strict=True)), chain[0])
    return [a for part in chain for a in part], conjugate


def _norms(term: Norms, u: Vector, weights: Vector) -> Number:
    kappa = exact(term.kappa[0, 0])
    parts = zip(weights, groups(u, term.size), kappa, strict=True)
    return mp.fsum(weight * length([*part, k]) for weight, part, k in parts)


def _norms_dual(term: Norms, y: Vector, weights: Vector) -> tuple[Vector, Number]:
    moved: Vector = []
    conjugate = mp.mpf(0)
    for weight, part, kappa in zip(weights, groups(y, term.size), exact(term.kappa[0, 0]), strict=True):
        norm = length(part)
        moved += [a * weight / norm for a in part] if norm > weight else part
        conjugate -= abs(kappa) * mp.sqrt(max(weight * weight - norm * norm, 0))
    return moved, conjugate


def _halves(y: Vector, weights: Vector) -> Number:
    return mp.fsum(a * a / (2 * b) for a, b in zip(y, weights, strict=True) if b > 0)


def _huber_dual(term: Huber, y: Vector, weights: Vector) -> tuple[Vector, Number]:
    ends = [weight * mp.mpf(term.delta) for weight in weights]
    moved = [max(min(a, b), -b) for a, b in zip(y, ends, strict=True)]
    return moved, _halves(moved, weights)


def _huber(term: Huber, u: Vector, weights: Vector) -> Number:
    clipped = [max(min(a, mp.mpf(term.delta)), -mp.mpf(term.delta)) for a in u]
    return mp.fsum(w * c * (a - c / 2) for w, c, a in zip(weights, clipped, u, strict=True))


def _logistic_dual(term: Logistic, y: Vector, weights: Vector) -> tuple[Vector, Number]:
    moved = [min(max(a, 0), b) for a, b in zip(y, weights, strict=True)]
    return moved, -mp.fsum(b * entropy(a / b) for a, b in zip(moved, weights, strict=True) if b > 0)


def _log_sum_exp_dual(term: LogSumExp, y: Vector, weights: Vector) -> tuple[Vector, Number]:
    moved: Vector = []
    conjugate = mp.mpf(0)
    for weight, part in zip(weights, groups(y, term.size), strict=True):
        p = [a / mp.fsum(part) for a in part]
        moved += [weight * q for q in p]
        conjugate += weight * mp.fsum(q * mp.log(q) for q in p if q > 0)
    return moved, conjugate


VALUES: dict[type[Term], Callable[..., Number]] = {
    Quadratic: lambda term, u, weights: mp.fsum(w * a * a / 2 for w, a in zip(weights, u, strict=True)),
    Norms: _norms,
    Network: _network,
    Huber: _huber,
    Logistic: lambda term, u, weights: mp.fsum(w * mp.log1p(mp.exp(a)) for w, a in zip(weights, u, strict=True)),
    LogSumExp: lambda term, u, weights: mp.fsum(
        w * mp.log(mp.fsum(mp.exp(a) for a in part)) for w, part in zip(weights, groups(u, term.size), strict=True)
    ),
}
"""phi(u) of a term with weights given."""

CONJUGATES: dict[type[Term], Callable[..., tuple[Vector, Number]]] = {
    Quadratic: lambda term, y, weights: (
        [a if b > 0 else mp.mpf(0) for a, b in zip(y, weights, strict=True)],
        _halves(y, weights),
    ),
    Norms: _norms_dual,
    Network: _network_dual,
    Huber: _huber_dual,
    Logistic: _logistic_dual,
    LogSumExp: _log_sum_exp_dual,
}
"""y moved into the domain of phi*, and phi* there."""


def softplus(tensor: Tensor) -> Tensor | list:
    """Return log(1 + exp) of numbers as they are."""
    if tensor.ndim == 0:
        return mp.log1p(mp.exp(mp.mpf(tensor.item())))
    return [softplus(part) for part in tensor]


def at(x: Tensor) -> Vector:
    return exact(x.to(torch.float64))
