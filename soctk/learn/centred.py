"""Convex functions whose branches all share one centre: what few or noisy values can tell of a convex function.

    f(x; theta) = b0(theta) + v(theta)'x + alpha(theta) / 2 ||B e||^2 + sum_k lambda_k sqrt(||A_k e||^2 + kappa_k^2),
    e = x - m(theta)

with v and m affine in the context, b0 quadratic and alpha = softplus(floor) + softplus(affine). The least-squares
quadratic is the case alpha = 1, lambda = 0, v = 0 where its matrix has an inverse; so a fit begins there, and every
branch that is added begins where the quadratic has its minimum. Branches with offsets of their own would be pulled
apart by the noise: then a kink that is a little misplaced attracts the decision.

Learned by Levenberg-Marquardt with a prior: a normal distribution around the start for the weights that the quadratic
does not have, which weighs as much as the noise (maximum a posteriori). The Jacobian is written out: with w_k = A_k e,
r_k = sqrt(||w_k||^2 + kappa_k^2),

    df/dB = alpha (B e) e',   df/dA_k = lambda_k w_k e' / r_k,
    df/dm = -(alpha B'B e + sum_k lambda_k A_k'w_k / r_k) (theta, 1)'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import expit

from soctk.conditioning import inverse_softplus
from soctk.learn.least_squares import LeastSquaresQuadratic, level_features
from soctk.learn.units import Standardized
from soctk.models.centred import CentredWeights

Array = NDArray[np.float64]

LAMBDA = 0.1
"""The weight of a branch at its start."""
KAPPA = 0.5
"""The constant of a branch, in units of x: to tell a kink from so narrow a bend takes values much closer together."""
FREEDOM = {"slope": 0.01, "alpha": 1.0, "matrices": 1.0}
"""Standard deviations of the prior around the start. v hardly moves where there are branches: beside a kink the data
say little of it, and it draws the minimum away from the centre."""
WIDE = 3.0
"""That of all others, and of v without branches."""
FLAT = 3e-2
"""Curvatures of the quadratic below this share of its largest have no minimum to speak of."""
STEPS = 30
REJECTIONS = 8
FIRST_DAMPING, SMALLEST_DAMPING = 1e-2, 1e-12
LARGEST_FALL = 0.2
SMALLEST_CURVATURE = 1e-4
"""A weight's curvature counts as at least this share of the largest: steps along those of next to none go astray."""
CONVERGED = 1e-4
"""A step predicted to lower the objective by less than this share of it ends a fit."""


@dataclass(frozen=True, eq=False)
class Values:
    """Observed values in a model's units, R of them: x (R, n), values (R,), the contexts' affine features (theta, 1),
    (R, p + 1), and those of b0, (R, L).

    Attributes:
        candidates: M, of every instance; R = N M.
        keep: what is left of an instance's mean residual (`soctk.learn.residuals`).
        root: square roots of the values' weights, alike within an instance, (R,); None where all are 1.
    """

    x: Array
    context: Array
    level: Array
    value: Array
    candidates: int
    keep: float
    root: Array | None = None

    @classmethod
    def of(cls, data: Standardized, level_weight: float) -> Values:
        """Return observed values flat."""
        instances, candidates, n = data.x.shape
        level = level_features(data.context).numpy()
        context = np.concatenate([data.context.numpy(), np.ones((instances, 1))], axis=1)
        keep = math.sqrt(level_weight) if candidates > 1 else 1.0
        spread = (np.repeat(each, candidates, axis=0) for each in (context, level))
        root = None if data.root is None else data.root.reshape(-1).numpy()
        return cls(data.x.reshape(-1, n).numpy(), *spread, data.value.reshape(-1).numpy(), candidates, keep, root)

    @property
    def count(self) -> float:
        """How many values there are, by their weights."""
        return len(self.value) if self.root is None else float(np.square(self.root).sum())

    def instances(self, chosen: NDArray[np.bool_]) -> Values:
        """Keep some instances, `chosen` (N,)."""
        rows = np.repeat(chosen, self.candidates)
        names = ("x", "context", "level", "value", *(() if self.root is None else ("root",)))
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def shrink(self, columns: Array) -> Array:
        """Scale the mean of every instance by `keep`, and all by the weights' roots; in place."""
        if self.keep < 1.0:
            blocks = columns.reshape(-1, self.candidates, *columns.shape[1:])
            blocks -= (1 - self.keep) * blocks.mean(axis=1, keepdims=True)
        if self.root is not None:
            columns *= self.root.reshape(-1, *(1 for _ in columns.shape[1:]))
        return columns


@dataclass(frozen=True, eq=False)
class Centred:
    """A function with one centre; p context variables, n of x, K branches with R rows.

    Attributes:
        level: of b0 (`level_features`).
        slope: v, (n, p + 1).
        center: m, (n, p + 1).
        factor: B, (n, n).
        diagonal: whether B is.
        floor: the argument of alpha's floor.
        alpha: the argument of alpha's other softplus, affine in the context, (p + 1,).
        sizes: rows of every A_k.
        matrices: A, (R, n).
        weights: softplus of these are the lambda_k, (K,).
        kappa: (K,), given.
        free: names of what is learned.
    """

    level: Array
    slope: Array
    center: Array
    factor: Array
    diagonal: bool
    floor: Array
    alpha: Array
    sizes: tuple[int, ...] = ()
    matrices: Array = field(default_factory=lambda: np.zeros((0, 1)))
    weights: Array = field(default_factory=lambda: np.zeros(0))
    kappa: Array = field(default_factory=lambda: np.zeros(0))
    free: tuple[str, ...] = ("level", "slope", "center", "factor")

    @classmethod
    def quadratic(cls, found: LeastSquaresQuadratic, *, diagonal: bool) -> Centred:
        """Return the least-squares quadratic with its centre; v is what its flat directions leave."""
        Q, slope, level = (each.numpy() for each in (found.Q, found.slope, found.level.clone()))
        p = slope.shape[1] - 1
        center = -_inverse(Q, diagonal=diagonal) @ slope
        # 1/2 m'Qm is taken from b0, as the square contains it.
        square = center.T @ Q @ center
        rows, columns = np.triu_indices(p)
        level[0] -= 0.5 * square[p, p]
        level[1 : 1 + p] -= square[:p, p]
        level[1 + p :] -= np.where(rows == columns, 0.5, 1.0) * square[rows, columns]
        alpha = np.zeros(p + 1)
        alpha[-1] = floor = inverse_softplus(0.5)
        factor = np.diag(np.sqrt(np.diag(Q))) if diagonal else found.factor.numpy()
        return cls(level, slope + Q @ center, center, factor, diagonal, np.array([floor]), alpha)

    def with_alpha(self) -> Centred:
        """Let the context move alpha."""
        return replace(self, free=(*self.free, "floor", "alpha"))

    def with_branches(self, sizes: Sequence[int], seed: int) -> Centred:
        """Add faint branches of random orthonormal rows."""
        n, generator = self.center.shape[0], np.random.default_rng(seed)
        drawn = [np.linalg.qr(generator.normal(size=(n, n)))[0] for _ in range(math.ceil(sum(sizes) / n))]
        return replace(
            self,
            sizes=tuple(sizes),
            matrices=np.concatenate(drawn)[: sum(sizes)],
            weights=np.full(len(sizes), inverse_softplus(LAMBDA)),
            kappa=np.full(len(sizes), KAPPA),
            free=(*self.free, "matrices", "weights"),
        )

    def for_model(self) -> CentredWeights:
        """Return the numbers as a model takes them."""
        n, p = self.slope.shape[0], self.slope.shape[1] - 1
        squares, (rows, columns) = np.zeros((p, p)), np.triu_indices(p)
        squares[rows, columns] = self.level[1 + p :]
        tensors = {
            "level": np.append(self.level[1 : 1 + p], self.level[0])[None],
            "squares": 0.5 * (squares + squares.T),
            **{name: getattr(self, name) for name in ("slope", "center", "factor", "kappa")},
            "weights": np.logaddexp(0, self.weights),
        }
        matrices = np.split(self.matrices.reshape(-1, n), np.cumsum(self.sizes)[:-1]) if self.sizes else []
        return CentredWeights(
            **{name: torch.from_numpy(np.ascontiguousarray(numbers)) for name, numbers in tensors.items()},
            alpha=(torch.tensor(self.floor[0]), torch.from_numpy(self.alpha)),
            matrices=tuple(torch.from_numpy(each) for each in matrices),
        )

    # -- weights as one vector -----------------------------------------------------------------------------

    def vector(self) -> Array:
        """Return what is learned, (P,)."""
        return np.concatenate([self._free_part(name, getattr(self, name)) for name in self.free])

    def at(self, vector: Array) -> Centred:
        """Return the function with other weights."""
        ends = np.cumsum([self._free_part(name, getattr(self, name)).size for name in self.free])
        changes: dict[str, Any] = {}
        for name, part in zip(self.free, np.split(vector, ends[:-1]), strict=True):
            shape = getattr(self, name).shape
            changes[name] = np.diag(part) if name == "factor" and self.diagonal else part.reshape(shape)
        return replace(self, **changes)

    def prior(self) -> tuple[Array, Array]:
        """Return mean and precision of every weight's prior; 0 where it has none."""
        means, precisions = [], []
        for name in self.free:
            part = self._free_part(name, getattr(self, name))
            means.append(part)
            freedom = WIDE if name == "slope" and not self.sizes else FREEDOM.get(name, WIDE)
            precisions.append(np.full(part.size, freedom**-2.0))
        return np.concatenate(means), np.concatenate(precisions)

    def _free_part(self, name: str, numbers: Array) -> Array:
        return np.diagonal(numbers) if name == "factor" and self.diagonal else numbers.reshape(-1)

    # -- values and derivatives ----------------------------------------------------------------------------

    def values(self, data: Values) -> Array:
        """Return f, (R,)."""
        return self._evaluate(data, derivatives=False)[0]

    def residual(self, data: Values) -> Array:
        """Return the residuals, (R,)."""
        return data.shrink(self.values(data) - data.value)

    def jacobian(self, data: Values) -> Array:
        """Return the residuals' derivatives, (R, P)."""
        columns = self._evaluate(data, derivatives=True)[1]
        return data.shrink(np.concatenate([columns[name] for name in self.free], axis=1))

    def _evaluate(self, data: Values, *, derivatives: bool) -> tuple[Array, dict[str, Array]]:
        x, context = data.x, data.context
        e = x - context @ self.center.T
        Be, argument = e @ self.factor.T, context @ self.alpha
        alpha = np.logaddexp(0, self.floor) + np.logaddexp(0, argument)
        half = 0.5 * np.square(Be).sum(axis=1)
        value = data.level @ self.level + (x * (context @ self.slope.T)).sum(axis=1) + alpha * half
        starts = np.cumsum((0, *self.sizes[:-1]))
        w = e @ self.matrices.T if self.sizes else e[:, :0]
        squares = np.add.reduceat(np.square(w), starts, axis=1) if self.sizes else w
        r, lam = np.sqrt(squares + np.square(self.kappa)), np.logaddexp(0, self.weights)
        value += r @ lam
        if not derivatives:
            return value, {}
        pull = (np.repeat(lam / r, self.sizes, axis=1) if self.sizes else w) * w  # lambda_k w_k / r_k
        bend = alpha[:, None] * Be
        slope = bend @ self.factor + (pull @ self.matrices if self.sizes else 0.0)
        return value, {
            "level": data.level,
            "slope": _outer(x, context),
            "center": -_outer(slope, context),
            "factor": bend * e if self.diagonal else _outer(bend, e),
            "floor": (half * expit(self.floor))[:, None],
            "alpha": (half * expit(argument))[:, None] * context,
            "matrices": _outer(pull, e),
            "weights": r * expit(self.weights),
        }


def _inverse(Q: Array, *, diagonal: bool) -> Array:
    """Return the inverse of Q along its curved directions."""
    if not diagonal:
        return np.linalg.pinv(Q, rcond=FLAT, hermitian=True)
    curved = np.diag(Q) > FLAT * np.diag(Q).max()
    return np.diag(np.where(curved, 1 / np.where(curved, np.diag(Q), 1.0), 0.0))


def _outer(left: Array, right: Array) -> Array:
    """Return all products of a row, (R, K) and (R, L) -> (R, K L)."""
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)


def learn(start: Centred, data: Values, noise: float) -> Centred:
    """Return the function of largest posterior density near `start`.

    Args:
        start: where to begin; the mean of its weights' prior but v's, which is 0.
        data: observed values.
        noise: variance of the values around the function, which says how much the prior weighs.
    """
    count, at = data.count, start
    mean, precision = start.prior()
    precision = precision * noise / count

    def objective(residual: Array, vector: Array) -> float:
        return float(residual @ residual) / count + float(precision @ np.square(vector - mean))

    vector, residual = at.vector(), at.residual(data)
    loss, damping, rise, rejected = objective(residual, vector), FIRST_DAMPING, 2.0, 0
    hessian, gradient = _system(at, data, residual, precision, vector - mean)
    for _ in range(STEPS):
        scale = np.maximum(np.diag(hessian), SMALLEST_CURVATURE * np.diag(hessian).max())
        try:
            step = -cho_solve(cho_factor(hessian + np.diag(damping * scale), check_finite=False), gradient)
        except LinAlgError:
            damping, rise, rejected = damping * rise, 2 * rise, rejected + 1
            continue
        predicted = float(-(2 * gradient + hessian @ step) @ step)
        if predicted <= CONVERGED * loss / 10 or rejected > REJECTIONS:
            break
        trial = at.at(vector + step)
        moved = trial.residual(data)
        reached = objective(moved, vector + step)
        if not reached < loss:
            damping, rise, rejected = damping * rise, 2 * rise, rejected + 1
            continue
        ratio = min(1.0, (loss - reached) / max(predicted, 1e-300))
        damping = max(SMALLEST_DAMPING, damping * max(LARGEST_FALL, 1 - (2 * ratio - 1) ** 3))
        at, vector, residual, loss, rise, rejected = trial, vector + step, moved, reached, 2.0, 0
        if predicted <= CONVERGED * loss:
            break
        hessian, gradient = _system(at, data, residual, precision, vector - mean)
    return at


def _system(at: Centred, data: Values, residual: Array, precision: Array, off: Array) -> tuple[Array, Array]:
    """Return the Gauss-Newton matrix and gradient of half the objective."""
    jacobian, count = at.jacobian(data), data.count
    return jacobian.T @ jacobian / count + np.diag(precision), jacobian.T @ residual / count + precision * off
