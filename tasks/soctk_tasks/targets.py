"""The ten approximation targets of the paper (Experiment 2): convex functions on [-3, 3]^d without a context.

Weights w run evenly from the first to the last number given, so `w = 1..10` is linspace(1, 10, d):

    QuadraticIso        1/2 ||x||^2
    QuadraticAniso      1/2 sum w_i x_i^2,                        w = 0.5..2.5
    NormEuclid          ||x||
    NormAniso           sqrt(sum w_i x_i^2),                      w = 1..10
    Mixed               1/4 sum w_i x_i^2 + 0.7 sqrt(sum w'_i x_i^2)
                          + max(a_1'x + 0.2, a_2'x - 0.1, a_3'x + 0.4),
                        w = 0.5..2, w' = 2..0.5, a_1 = -1..1, a_2 = cos(0..pi), a_3 = sign(a_1)
    SoftplusSum         sum log(1 + exp(x_i))
    LogSumExpQuad       log sum exp(x_i) + 0.1 ||x||^2
    Huber               sum huber(x_i), delta = 1: x^2 / 2 for |x| <= 1, else |x| - 1/2
    L1Norm              sum |x_i|
    ICKANPaperTarget    sum (|x_i| + |1 - x_i|) + 1/4 sum w_i x_i^2,  w = 0.5..2

The middle entry of a_3, zero for odd d, counts as +1. No constant is random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk import ConicForm, ValueData
from soctk.checks import ArrayLike, check_count
from soctk.lazy import cvxpy as cp
from soctk.maps.linear import DenseMap
from soctk.terms import Huber, Logistic, LogSumExp, Network, Norms, Quadratic, Term
from soctk_tasks.task import TrueObjective

LOW, HIGH = -3.0, 3.0
SIZES = {"train": 6000, "validation": 1000, "test": 2000}
"""Points of each data set (the paper's)."""

Parts = tuple[float, Tensor, list[Term]]
"""b0, v and the terms of a target."""


@dataclass(frozen=True, eq=False)
class Target:
    """A convex function to approximate from its values at points uniform on [-3, 3]^d.

    Attributes:
        name: one of `TARGETS`.
        dim: the dimension d.
        seed: of the data that `sample` draws; the function itself has no random constant.
        form: the function, exactly, as a `ConicForm`.
    """

    name: str
    dim: int
    seed: int
    form: ConicForm

    def surrogate(self) -> TrueObjective:
        """Return the target as a surrogate without weights."""
        return TrueObjective(self.dim, 0, lambda context: self.form)

    def objective(self, x: ArrayLike) -> Tensor:
        """Return f(x): (*batch, d) -> (*batch)."""
        return self.surrogate()(x)

    def __call__(self, x: ArrayLike) -> Tensor:
        """Return f(x): (*batch, d) -> (*batch)."""
        return self.objective(x)

    def to_cvxpy(self, x: cp.Expression) -> cp.Expression:
        """Return f(x) as a DCP-convex expression of x (d,)."""
        return self.surrogate().to_cvxpy(x)

    def sample(self, sizes: Mapping[str, int] | None = None, seed: int | None = None) -> dict[str, ValueData]:
        """Return independent data sets, one instance without context each, reproducible from the seed.

        Args:
            sizes: name -> number of points; `SIZES` by default.
            seed: the target's own by default.

        Returns:
            name -> `ValueData` with context (1, 0), x (1, points, d) and value (1, points).
        """
        generator = torch.Generator().manual_seed(self.seed if seed is None else seed)
        return {name: self._draw(count, name, generator) for name, count in (SIZES if sizes is None else sizes).items()}

    def _draw(self, count: int, name: str, generator: torch.Generator) -> ValueData:
        check_count(count, name)
        x = LOW + (HIGH - LOW) * torch.rand(1, count, self.dim, generator=generator, dtype=torch.float64)
        return ValueData(torch.zeros(1, 0, dtype=torch.float64), x, self.objective(x))


def make_target(name: str, dim: int, seed: int = 0) -> Target:
    """Return one of the paper's ten targets.

    Args:
        name: one of `TARGETS`.
        dim: the dimension d.
        seed: of its data.

    Raises:
        ValueError: an unknown name or dim < 1.
    """
    if name not in PARTS:
        raise ValueError(f"name: expected one of {', '.join(TARGETS)}, got {name!r}")
    check_count(dim, "dim")
    constant, linear, terms = PARTS[name](dim)
    b0 = torch.full((1, 1), constant, dtype=torch.float64)
    return Target(name, dim, seed, ConicForm(b0, linear.reshape(1, 1, dim), tuple(terms)))


# -- the pieces ------------------------------------------------------------------------------------------


def _weights(first: float, last: float, dim: int) -> Tensor:
    return torch.linspace(first, last, dim, dtype=torch.float64)


def _zeros(dim: int) -> Tensor:
    return torch.zeros(dim, dtype=torch.float64)


def _row(values: Tensor) -> Tensor:
    return values.reshape(1, 1, -1)


def _identity(dim: int) -> DenseMap:
    return DenseMap(torch.eye(dim, dtype=torch.float64).unsqueeze(0))


def _quadratic(weights: Tensor) -> Quadratic:
    """Return 1/2 sum w_i x_i^2."""
    return Quadratic(_identity(len(weights)), _row(_zeros(len(weights))), _row(weights))


def _norm(weights: Tensor, scale: float = 1.0) -> Norms:
    """Return scale * sqrt(sum w_i x_i^2)."""
    dim, one = len(weights), torch.ones(1, dtype=torch.float64)
    matrix = torch.diag(weights.sqrt()).unsqueeze(0)
    return Norms(DenseMap(matrix), _row(_zeros(dim)), _row(scale * one), _row(0.0 * one), dim)


def _largest(slopes: Tensor, levels: Tensor) -> Parts:
    """Return max_k (a_k'x + b_k): a chain of relu(a_k'x + b_k - the next piece + the maximum before), then the last."""
    rows, offsets = slopes[:-1] - slopes[1:], levels[:-1] - levels[1:]
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    mixing = (one,) * (len(rows) - 1)
    network = Network(DenseMap(rows.unsqueeze(0)), _row(offsets), one, mixing=mixing, widths=(1,) * len(rows))
    return float(levels[-1]), slopes[-1], [network]


def _absolute(offset: float, dim: int) -> Norms:
    """Return sum |x_i + offset|: norms of one row."""
    ones = torch.ones(dim, dtype=torch.float64)
    return Norms(_identity(dim), _row(offset * ones), _row(ones), _row(0.0 * ones), 1)


def _mixed(dim: int) -> Parts:
    a1 = _weights(-1.0, 1.0, dim)
    a2 = torch.cos(_weights(0.0, torch.pi, dim))
    a3 = torch.where(a1 >= 0, 1.0, -1.0).to(torch.float64)
    constant, linear, terms = _largest(torch.stack([a1, a2, a3]), torch.tensor([0.2, -0.1, 0.4], dtype=torch.float64))
    return constant, linear, [_quadratic(0.5 * _weights(0.5, 2.0, dim)), _norm(_weights(2.0, 0.5, dim), 0.7), *terms]


def _logsumexp_quad(dim: int) -> Parts:
    one = torch.ones(1, dtype=torch.float64)
    largest = LogSumExp(_identity(dim), _row(_zeros(dim)), _row(one), dim)
    return 0.0, _zeros(dim), [largest, _quadratic(torch.full((dim,), 0.2, dtype=torch.float64))]


def _each(kind: Callable[[DenseMap, Tensor, Tensor], Term]) -> Callable[[int], Parts]:
    """Return sum_i phi(x_i) for a term phi of one number."""
    return lambda dim: (0.0, _zeros(dim), [kind(_identity(dim), _row(_zeros(dim)), _row(_zeros(dim) + 1.0))])


PARTS: dict[str, Callable[[int], Parts]] = {
    "QuadraticIso": lambda d: (0.0, _zeros(d), [_quadratic(_weights(1.0, 1.0, d))]),
    "QuadraticAniso": lambda d: (0.0, _zeros(d), [_quadratic(_weights(0.5, 2.5, d))]),
    "NormEuclid": lambda d: (0.0, _zeros(d), [_norm(_weights(1.0, 1.0, d))]),
    "NormAniso": lambda d: (0.0, _zeros(d), [_norm(_weights(1.0, 10.0, d))]),
    "Mixed": _mixed,
    "SoftplusSum": _each(Logistic),
    "LogSumExpQuad": _logsumexp_quad,
    "Huber": _each(lambda matrix, offset, weights: Huber(matrix, offset, weights, 1.0)),
    "L1Norm": lambda d: (0.0, _zeros(d), [_absolute(0.0, d)]),
    "ICKANPaperTarget": lambda d: (
        0.0,
        _zeros(d),
        [_absolute(0.0, d), _absolute(-1.0, d), _quadratic(0.5 * _weights(0.5, 2.0, d))],
    ),
}

TARGETS = tuple(PARTS)
"""The paper's ten targets."""
