"""The least-squares quadratic as a function to decide with, and cross-fitted predictions of simple regressions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from soctk.assessment.rows import Rows
from soctk.forms.conic_form import ConicForm
from soctk.function import ConvexFunction
from soctk.learn.data import ValueData
from soctk.learn.least_squares import LeastSquaresQuadratic, level_features
from soctk.learn.units import Standardized, standardize
from soctk.maps.linear import DenseMap
from soctk.surrogate import ConvexSurrogate
from soctk.terms import Quadratic

FOLDS = 5


class QuadraticRival(ConvexSurrogate):
    """The convex quadratic of least squared error on rows, to compare with.

    Args:
        rows: what it is fitted to.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.x.shape[1], rows.context.shape[1])
        data = ValueData(rows.context, rows.x[:, None], rows.value[:, None])
        standardize(self, data)
        with torch.no_grad():
            self.fitted = LeastSquaresQuadratic.of(Standardized.of(self, data, torch.float64))

    def _conic_form(self, context: Tensor) -> ConicForm:
        ones = torch.cat([context, context.new_ones(context.shape[0], 1)], dim=-1)
        none = torch.zeros(1, 1, self.dim, dtype=self.dtype)
        curved = Quadratic(DenseMap(self.fitted.factor.unsqueeze(0)), none, torch.ones_like(none))
        slope = (ones @ self.fitted.slope.mT).unsqueeze(1)
        level = level_features(context) @ self.fitted.level.unsqueeze(-1)
        return ConicForm(level, slope, (curved,), (context.shape[0],))


def quadratic_prediction(train: Rows, test: Rows) -> np.ndarray:
    """Return the values of the quadratic of some rows at others, (R,)."""
    return predicted(QuadraticRival(train), test.context, test.x)


def context_prediction(train: Rows, test: Rows) -> np.ndarray:
    """Return the values of the least-squares quadratic in the context alone, which no decision changes."""
    centre, scale = train.context.mean(axis=0), train.context.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    parts = [level_features(torch.from_numpy((rows.context - centre) / scale)).numpy() for rows in (train, test)]
    if parts[0].shape[1] > len(train) // 3:
        parts = [part[:, : 1 + train.context.shape[1]] for part in parts]
    return parts[1] @ np.linalg.lstsq(parts[0], train.value, rcond=1e-8)[0]


def constant_prediction(train: Rows, test: Rows) -> np.ndarray:
    """Return the mean value of some rows at others."""
    return np.full(len(test), train.value.mean())


def cross_fitted(predict: Callable[[Rows, Rows], np.ndarray], rows: Rows) -> np.ndarray:
    """Return predictions of every fold by what is fitted to the others, (R,)."""
    folds, found = rows.folds(FOLDS), np.zeros(len(rows))
    for fold in np.unique(folds):
        found[folds == fold] = predict(rows.select(folds != fold), rows.select(folds == fold))
    return found


def predicted(model: ConvexFunction, context: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return a model's values at rows, (R,)."""
    with torch.no_grad():
        theta = torch.from_numpy(context).to(model.dtype) if model.context_dim else None
        return model(torch.as_tensor(np.ascontiguousarray(x)).to(model.dtype), theta).double().numpy()
