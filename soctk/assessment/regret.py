"""How much better decisions could be: the model tilted by what residuals say of its slope where it decides.

Near its decision x the truth is taken for f(x') + g'(x' - x), f the model and g the slope of the residual function
there (`Smoother`), and the regret for f(x) - min over the set of that: a convex problem of the same kind, decided with
a certificate. Functions are drawn from the process given the residuals, so that regrets are a sample, whose quantiles
are the interval. Slopes are central differences over a step as wide as the log, which kinks of the draws do not move.
The error of curvature is left aside.
"""

from __future__ import annotations

import numpy as np
import torch

from soctk.assessment.judged import Judged
from soctk.assessment.minimum import Interval
from soctk.assessment.rows import Rows
from soctk.assessment.smoother import Smoother
from soctk.decide.minimize import minimize
from soctk.function import ConvexFunction
from soctk.sets import FeasibleSet, SetAt
from soctk.tilted import Tilted

DRAWS, MOST_CONTEXTS, MOST_POINTS = 40, 40, 1000
WIDER = 3.0
"""What the ends of the interval of the draws are moved by, as a factor: the model's curvature is not known either."""
STEP = 1.0
"""Of the differences, in units of the log's standard deviation."""


def expected_regret(own: Judged, at: Rows, x: np.ndarray) -> Interval:
    """Return the mean regret of a model's decisions x (J, n) in contexts, those of `at`."""
    few = slice(max(1, min(MOST_CONTEXTS, MOST_POINTS // (2 * max(1, own.axes.B.shape[1])))))
    slopes = sampled_slopes(own.slopes, own.axes.z(at.context[few]), own.axes.B)
    sets = own.sets
    if isinstance(sets, SetAt) and sets.batch_shape:
        sets = sets.select(torch.from_numpy(np.tile(at.which[few], DRAWS)))
    low, middle, high = np.quantile(
        sampled_regrets(own.model, sets, at.context[few], x[few], slopes, own.scale), [0.05, 0.5, 0.95]
    )
    return Interval(float(middle), float(low / WIDER), float(high * WIDER))


def sampled_slopes(process: Smoother, z: np.ndarray, B: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return slopes in x of draws of the residual function at decisions of contexts z (J, a), (DRAWS, J, n)."""
    count, axes = len(z), B.shape[1]
    steps = np.concatenate([STEP * np.eye(axes), -STEP * np.eye(axes)])
    mean, covariance = process.at(np.repeat(z, 2 * axes, axis=0), np.tile(steps, (count, 1)))
    values, vectors = np.linalg.eigh(covariance)
    noise = np.random.default_rng(seed).normal(size=(DRAWS, len(values)))
    draws = mean + (noise * np.sqrt(values.clip(min=0.0))) @ vectors.T
    draws = draws.reshape(DRAWS, count, 2, axes)
    return (draws[:, :, 0] - draws[:, :, 1]) / (2 * STEP) @ B.T


@torch.no_grad()
def sampled_regrets(
    model: ConvexFunction,
    feasible_set: FeasibleSet | SetAt,
    context: np.ndarray,
    x: np.ndarray,
    slopes: np.ndarray,
    scale: float | None,
) -> np.ndarray:
    """Return the mean regret of decisions x (J, n) under each draw, (DRAWS,); gaps are judged by `scale`."""
    draws = len(slopes)
    theta = np.tile(context, (draws, 1))
    contexts = torch.from_numpy(np.concatenate([theta, slopes.reshape(-1, model.dim)], axis=1))
    tilted = Tilted(model)
    best = minimize(tilted, feasible_set, contexts, tol=1e-4, scale=scale)
    here = tilted(torch.from_numpy(np.tile(x, (draws, 1))), contexts)
    return (here - best.value).clamp(min=0.0).reshape(draws, -1).mean(dim=1).numpy()
