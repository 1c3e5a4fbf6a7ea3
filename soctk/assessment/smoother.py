"""What residuals say between the logged decisions: Gaussian-process regression, with an honest width.

The residuals r = y - f(x; theta) of rows that the model has not seen are taken for noise of variance s^2 and a random
function with the covariance

    k(w, v) = a + b w'v + c (w'v)^2 + q m(w, v),    w = (z, d) and v the coordinates of `Axes`:

an error of level, slope and curvature, which goes on outside of the log, and one that has no form. With the distance
t^2 = |z - z'|^2 / l_z^2 + |d - d'|^2 / l_d^2 that is as rough as kinks, m = exp(-t), or smooth, Matern 5/2:
m = (1 + u + u^2 / 3) exp(-u), u = sqrt(5) t. The numbers a, b, c, q, l_z, l_d and s are those of the largest posterior
density. Given the residuals, the function is Gaussian with mean k(., W) K^-1 r and covariance k - k(., W) K^-1 k(W, .),
K = k(W, W) + s^2 I: where there are no rows that is as before.
Source: Rasmussen and Williams 2006, Algorithm 2.1 and Sections 2.7 and 4.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

MOST_ROWS, LIKELIHOOD_ROWS = 2000, 400
"""Rows that the posterior is of, and those that its numbers are found with."""
STEPS = 40
SMALLEST = 1e-3
JITTER = 1e-8
LEVEL, SLOPE, CURVATURE, REST, Z_LENGTH, D_LENGTH, NOISE = range(7)
WIDTH = (0.7, 0.7, 0.7, 0.7, 0.3, 0.3, 3.0)
"""The prior's standard deviations of the seven logarithms."""


@dataclass(frozen=True)
class Prior:
    """What is thought of the function before: noisy rows say little of its size, and without a prior it is taken for
    next to nothing, and intervals for next to none.

    Attributes:
        sizes: sqrt(a), sqrt(b), sqrt(c) and sqrt(q), in units of what the modelled cost varies by.
        lengths: l_z and l_d, in units of the typical distances sqrt(a) and sqrt(b).
        rough: whether the last part is rough, as above, or smooth: Matern 5/2.
    """

    sizes: tuple[float, float, float, float]
    lengths: tuple[float, float]
    rough: bool


LEVELS = Prior((0.3, 0.1, 0.03, 0.5), (4.0, 0.7), rough=True)
"""For values: kinks of the cost that a smooth model rounds off move the level at its minimum."""
SLOPES = Prior((0.3, 0.1, 0.1, 0.2), (2.0, 1.0), rough=False)
"""For slopes, which rough functions do not have."""


@dataclass(frozen=True, eq=False)
class Smoother:
    """A Gaussian process given residuals.

    Attributes:
        z, d: the coordinates of the rows, (R, a) and (R, b).
        prior: what was thought before.
        usual: the means of the seven logarithms before.
        log: the seven logarithms, of residuals in units of `unit`.
        unit: the residuals' root mean square; 0 where all are 0, and with it all that is said of them.
        chol: of K, (R, R).
        alpha: K^-1 r, (R,).
    """

    z: Tensor
    d: Tensor
    prior: Prior
    usual: Tensor
    log: Tensor
    unit: float
    chol: Tensor
    alpha: Tensor

    @classmethod
    def of(cls, z: np.ndarray, d: np.ndarray, residual: np.ndarray, size: float, prior: Prior, seed: int = 0) -> Self:
        """Return the process given residuals (R,) at coordinates z (R, a) and d (R, b).

        Args:
            z: see above.
            d: see above.
            residual: see above.
            size: what the modelled cost varies by, in the residuals' units.
            prior: what is thought before.
            seed: of the rows that are taken where there are many.
        """
        order = np.random.default_rng(seed).permutation(len(residual))[:MOST_ROWS]
        points, r = tuple(torch.from_numpy(part[order]) for part in (z, d)), torch.from_numpy(residual[order])
        unit = float(r.square().mean().sqrt())
        if unit > 0:
            r = r / unit
        few = slice(LIKELIHOOD_ROWS)
        usual = _usual(*points, size / (unit or 1.0), prior)
        log = _likeliest(points[0][few], points[1][few], r[few], usual, prior)
        K = _covariance(points, points, log, prior.rough)
        K.diagonal().add_(log[NOISE].exp() + JITTER)
        chol = torch.linalg.cholesky(K)
        alpha = torch.cholesky_solve(r[:, None], chol)[:, 0]
        return cls(*points, prior, usual, log, unit, chol, alpha)

    @property
    def noise(self) -> float:
        """The standard deviation of the noise."""
        return self.unit * math.exp(0.5 * float(self.log[NOISE]))

    def noise_error(self) -> float:
        """Return the standard error of `noise`.

        That of the Laplace approximation of the seven logarithms, which supposes normal noise: the logarithm of the
        noise's variance has then the variance v, 2 / R for R rows where the function is known. Noise of kurtosis k has
        (k - 1) / R there, so that v is multiplied by (k - 1) / 2 where the tails are heavier than normal ones.
        """
        few = slice(LIKELIHOOD_ROWS)
        r = (self.chol @ (self.chol.mT @ self.alpha))[few]
        points = self.z[few], self.d[few]
        hessian = torch.autograd.functional.hessian(
            lambda log: _surprise(log, *points, r, self.usual, self.prior), self.log
        )
        values, axes = torch.linalg.eigh(hessian)
        flattest = min(width**-2 for width in WIDTH)  # no direction is known less than the prior knows it
        variance = float((axes[NOISE].square() / values.clamp(min=flattest)).sum())
        left = self.alpha[few].square()  # the noise is thought to be s^2 alpha
        kurtosis = float(left.square().mean() / left.mean().square().clamp(min=1e-300))
        return 0.5 * self.noise * math.sqrt(variance * max(1.0, (kurtosis - 1) / 2))

    def at(self, z: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (M,) and covariance (M, M) of the function at points."""
        points = torch.from_numpy(z), torch.from_numpy(d)
        across = _covariance((self.z, self.d), points, self.log, self.prior.rough)
        half = torch.linalg.solve_triangular(self.chol, across, upper=False)
        covariance = _covariance(points, points, self.log, self.prior.rough) - half.mT @ half
        return self.unit * (across.mT @ self.alpha).numpy(), self.unit**2 * covariance.numpy()


def _covariance(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], log: Tensor, rough: bool) -> Tensor:
    """Return k, (R, M)."""
    level, slope, curvature, rest, z_length, d_length, _ = log.exp()
    product = sum(a @ b.mT for a, b in zip(left, right, strict=True))
    square = _squares(left[0], right[0]) / z_length**2 + _squares(left[1], right[1]) / d_length**2
    distance = ((1.0 if rough else 5.0) * square + 1e-12).sqrt()
    form = (1.0 if rough else 1.0 + distance + distance.square() / 3.0) * (-distance).exp()
    return level + slope * product + curvature * product**2 + rest * form


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Return squared distances, (R, M)."""
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2.0 * a @ b.mT).clamp(min=0.0)


def _usual(z: Tensor, d: Tensor, size: float, prior: Prior) -> Tensor:
    """Return the prior's means of the seven logarithms."""
    lengths = [length * math.sqrt(max(1, part.shape[1])) for length, part in zip(prior.lengths, (z, d), strict=True)]
    usual = [(share * max(size, SMALLEST)) ** 2 for share in prior.sizes]
    return torch.tensor([*usual, *lengths, 1.0], dtype=torch.float64).log()


def _surprise(log: Tensor, z: Tensor, d: Tensor, r: Tensor, usual: Tensor, prior: Prior) -> Tensor:
    """Return the negative logarithm of the posterior density of the seven logarithms, but for a constant."""
    K = _covariance((z, d), (z, d), log, prior.rough)
    K = K + torch.diag_embed((log[NOISE].exp() + JITTER).expand(len(r)))
    chol, broken = torch.linalg.cholesky_ex(K)
    if broken:
        return log.sum() * 0 + torch.inf
    alpha = torch.cholesky_solve(r[:, None], chol)[:, 0]
    away = (log - usual) / torch.tensor(WIDTH, dtype=torch.float64)
    return 0.5 * (r @ alpha) + chol.diagonal().log().sum() + 0.5 * away.square().sum()


def _likeliest(z: Tensor, d: Tensor, r: Tensor, usual: Tensor, prior: Prior) -> Tensor:
    """Return the seven logarithms of the largest posterior density."""
    log = usual.clone().requires_grad_()
    search = torch.optim.LBFGS([log], max_iter=STEPS, line_search_fn="strong_wolfe", tolerance_change=1e-6)

    def loss() -> Tensor:
        search.zero_grad()
        value = _surprise(log, z, d, r, usual, prior)
        if bool(torch.isfinite(value)):
            value.backward()
        return value

    search.step(loss)
    found = log.detach()
    return found if bool(torch.isfinite(found).all()) else usual
