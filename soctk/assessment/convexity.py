"""Whether the log contradicts convexity, and how curved it is: quadratics that need not be convex.

Beside a quadratic in the context, values are regressed on d'Qd and on d'(q + C z), d the offset of the decision from
the policy of the log (`Axes`): a policy that follows the context through a nonlinear slope would look like curvature in
x itself. Of rows whose offsets are symmetric, Q is half the mean curvature of the cost, which is not negative in any
direction where the cost is convex. The direction of least curvature is found on one half of the contexts and its
curvature measured on the other, and the reverse, so that its choice does not bias the test; where halves have too few
rows, all rows do both, and the test allows for any choice. Errors are those of the
sandwich formula, which noise of unequal size does not harm, with the residuals that a fit without the decision's own
measurements would leave (HC3, MacKinnon and White 1985). Residuals of one decision, and those of one context, have in
common what the quadratic misses there: errors are those by clusters, of decisions or of contexts, the larger of the two
(Cameron and Miller 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from soctk.assessment.quadratic import predicted
from soctk.assessment.rows import Axes, Rows
from soctk.function import ConvexFunction

CORE = 0.5
"""The share of rows nearest to the policy that is looked at apart: a cost may be curved the wrong way there alone."""
ROUNDING = 1e-9
"""Residuals below this share of what the values vary by, or a few roundings of them, are not noise but rounding."""
SPARE = 0.1
"""One less the leverage of a decision's measurements counts as at least this."""
ROWS_PER_WEIGHT = 3
"""Rows of a half for each coefficient, below which nothing is tested."""


@dataclass(frozen=True, eq=False)
class Curvature:
    """Second derivatives along directions, in units of a standard deviation of the logged decisions.

    Attributes:
        directions: (b, n), in the decision's units: one standard deviation each, from the most curved to the least.
        observed: (b,), the log's; empty where it has too few rows.
        error: (b,), standard errors of these.
        modelled: (b,), the model's mean second difference over the rows.
        least: in the direction of least curvature.
        p_value: the probability of one so low where the cost is convex, or a bound of it; 1 where too few rows tell.
        apart: whether `least` is measured on rows that did not choose its direction.
    """

    directions: np.ndarray
    observed: np.ndarray
    error: np.ndarray
    modelled: np.ndarray
    least: float
    p_value: float
    apart: bool

    @property
    def pairs(self) -> list[tuple[float, float, float]]:
        """What was observed along each direction, its standard error, and the model's."""
        return list(zip(self.observed.tolist(), self.error.tolist(), self.modelled.tolist(), strict=False))


def curvature(model: ConvexFunction, rows: Rows, axes: Axes) -> Curvature:
    """Return how curved log and model are."""
    z, d = axes.z(rows.context), axes.d(rows.context, rows.x)
    fit = _regress(z, d, rows)
    vectors = np.eye(d.shape[1])
    observed = error = np.zeros(0)
    if fit is not None:
        vectors = np.linalg.eigh(fit.Q)[1][:, ::-1].T
        observed, error = map(np.array, zip(*(fit.along(u) for u in vectors), strict=True))
    inverse = np.linalg.pinv(axes.B)
    directions = vectors @ inverse
    modelled = np.array([_second_difference(model, rows, step) for step in directions])
    least = _least(z, d, rows) or _chosen_by_its_rows(fit)
    return Curvature(directions, observed, error, modelled, *least)


@dataclass(frozen=True, eq=False)
class _Fit:
    """A regression: Q (b, b), and covariances of its coefficients with i <= j, of which the largest variance counts."""

    Q: np.ndarray
    covariances: tuple[np.ndarray, ...]

    def along(self, u: np.ndarray) -> tuple[float, float]:
        """Return the second derivative 2 u'Qu and its standard error."""
        weights = _products(u[None])[0]
        variance = max(float(weights @ covariance @ weights) for covariance in self.covariances)
        return 2 * float(u @ self.Q @ u), 2 * math.sqrt(max(variance, 0.0))


def _products(d: np.ndarray) -> np.ndarray:
    """Return d_i d_j, i <= j, those with i < j twice, so that the coefficients are the entries of Q."""
    i, j = np.triu_indices(d.shape[1])
    return d[:, i] * d[:, j] * np.where(i == j, 1.0, 2.0)


def _regress(z: np.ndarray, d: np.ndarray, rows: Rows) -> _Fit | None:
    a, b = z.shape[1], d.shape[1]
    value, points, contexts = rows.value, rows.points, rows.contexts
    count, different = b * (b + 1) // 2 + b * (1 + a) + 1 + a + a * (a + 1) // 2, int(points.max(initial=-1)) + 1
    if b == 0 or different < ROWS_PER_WEIGHT * count:
        return None
    ones = np.ones((len(z), 1))
    basis = np.concatenate([ones, z], axis=1)
    cross = (d[:, :, None] * basis[:, None, :]).reshape(len(z), -1)
    curved = _products(d)
    features = np.concatenate([curved, cross, basis, _products(z)], axis=1)
    inverse = np.linalg.pinv(features.T @ features)
    varied = value - value.mean()
    weights = inverse @ (features.T @ varied)
    rounded = max(ROUNDING * float(varied.std()), 4 * np.finfo(float).eps * float(np.abs(value).max()))
    leverage = np.bincount(points, (features @ inverse * features).sum(axis=1))[points]
    residual = np.hypot(varied - features @ weights, rounded) / np.maximum(1 - leverage, SPARE)
    scores = (features * residual[:, None]) @ inverse[:, : curved.shape[1]]
    Q = np.zeros((d.shape[1],) * 2)
    Q[np.triu_indices(d.shape[1])] = weights[: curved.shape[1]]
    covariances = tuple(_of_sums(scores, groups) for groups in (points, contexts))
    return _Fit(np.triu(Q) + np.triu(Q, 1).T, covariances)


def _of_sums(scores: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the covariance of the sum of scores (R, k) where those of one group (R,) are correlated."""
    count = int(groups.max()) + 1
    sums = np.zeros((count, scores.shape[1]))
    np.add.at(sums, groups, scores)
    return sums.T @ sums * (count / max(count - 1, 1))


def _chosen_by_its_rows(fit: _Fit | None) -> tuple[float, float, bool]:
    """Return the least curvature by all rows, where halves have too few, and a bound of how probable one so low is.

    However its direction is chosen, the square of its score is at most that of the most significant combination of all
    entries of Q, which has their number as degrees of freedom (Scheffe 1953).
    """
    if fit is None:
        return 0.0, 1.0, False
    value, error = fit.along(_least_significant(fit))
    entries = len(fit.Q) * (len(fit.Q) + 1) / 2
    score = min(value, 0.0) / (error or 1e-300)
    half = torch.tensor([entries / 2, score * score / 2], dtype=torch.float64)
    return value, float(torch.special.gammaincc(half[0], half[1])), False


def _least(z: np.ndarray, d: np.ndarray, rows: Rows) -> tuple[float, float, bool] | None:
    """Return the least curvature, measured apart from its choice, and how probable one so low is; None if unknown."""
    folds, size = rows.folds(2), np.square(d).sum(axis=1)
    core = size <= np.quantile(size, CORE) if len(size) else size > 0
    found: list[tuple[float, float]] = []
    for chosen in (0, 1):
        parts = [(folds == chosen) & within for within in (np.ones(len(z), bool), core)]
        tests = [(folds != chosen) & within for within in (np.ones(len(z), bool), core)]
        best = None
        for part, test in zip(parts, tests, strict=True):
            here, there = (_regress(z[i], d[i], rows.select(i)) for i in (part, test))
            if here is None or there is None:
                continue
            u = _least_significant(here)
            score = here.along(u)[0] / (here.along(u)[1] or 1e-300)
            if best is None or score < best[0]:
                best = score, there.along(u)
        if best is not None:
            found.append(best[1])
    if not found:
        return None
    scores = [value / (error or 1e-300) for value, error in found]
    # Each half is a test of its own (Stouffer), but where each also chooses the direction of the other, their scores
    # go together: by .40 for two and for six variables, in simulated logs. A correlation of one half is assumed.
    together = 1.5 if len(scores) > 1 and d.shape[1] > 1 else 1.0
    combined = sum(scores) / math.sqrt(together * len(scores))
    return sum(value for value, _ in found) / len(found), 0.5 * math.erfc(-combined / math.sqrt(2.0)), True


def _least_significant(fit: _Fit) -> np.ndarray:
    """Return the eigenvector of Q whose curvature is lowest in standard errors."""
    vectors = np.linalg.eigh(fit.Q)[1].T
    return min(vectors, key=lambda u: fit.along(u)[0] / (fit.along(u)[1] or 1e-300))


def _second_difference(model: ConvexFunction, rows: Rows, step: np.ndarray) -> float:
    here, ahead, behind = (predicted(model, rows.context, rows.x + k * step) for k in (0, 1, -1))
    return float((ahead + behind - 2 * here).mean())
