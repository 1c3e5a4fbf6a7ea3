"""A model on rows: its values there, its decisions in their contexts, and what residuals add."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from soctk.assessment.quadratic import predicted
from soctk.assessment.rows import Axes, Rows
from soctk.assessment.smoother import LEVELS, SLOPES, Prior, Smoother
from soctk.decide.minimize import minimize
from soctk.function import ConvexFunction
from soctk.sets import FeasibleSet, SetAt

TOL = 1e-5


@dataclass(frozen=True, eq=False)
class Judged:
    """A model on rows.

    Attributes:
        model: the model.
        sets: where it decides; one set, or one for each instance of the data.
        rows: the rows.
        axes: their coordinates.
    """

    model: ConvexFunction
    sets: FeasibleSet | SetAt
    rows: Rows
    axes: Axes

    def decide(self, rows: Rows) -> np.ndarray:
        """Return its decisions in the contexts of rows, (R, n)."""
        sets = self.sets
        if isinstance(sets, SetAt) and sets.batch_shape:
            sets = sets.select(torch.from_numpy(rows.which))
        context = torch.from_numpy(rows.context) if self.model.context_dim else None
        x = minimize(self.model, sets, context, tol=TOL, scale=self.scale).x.double()
        if not bool(torch.isfinite(x).all()):
            raise ValueError("feasible_set: expected sets that are not empty, in which the model has a minimum")
        return np.broadcast_to(x.numpy(), rows.x.shape).copy()

    @property
    def scale(self) -> float | None:
        """What gaps are judged by: how far values are apart, in whatever unit; None where all are the same."""
        return float(self.rows.value.std()) or None

    @cached_property
    def values(self) -> np.ndarray:
        """Its values at the rows, (R,)."""
        return predicted(self.model, self.rows.context, self.rows.x)

    @cached_property
    def decisions(self) -> np.ndarray:
        """Its decisions in the contexts of the rows, (R, n)."""
        return self.decide(self.rows)

    @property
    def residuals(self) -> np.ndarray:
        """What was observed less what it says, (R,)."""
        return self.rows.value - self.values

    @cached_property
    def excess(self) -> np.ndarray:
        """What it says that the logged decisions cost more than its own, (R,)."""
        return self.values - predicted(self.model, self.rows.context, self.decisions)

    @cached_property
    def offsets(self) -> np.ndarray:
        """What logged decisions differ by from its own, in the coordinates of `Axes`, (R, b)."""
        return (self.rows.x - self.decisions) @ self.axes.B

    @cached_property
    def levels(self) -> Smoother:
        """The residual function, of contexts and offsets from its decisions, for its values."""
        return self._process(LEVELS)

    @cached_property
    def slopes(self) -> Smoother:
        """The same, for its slopes."""
        return self._process(SLOPES)

    def _process(self, prior: Prior) -> Smoother:
        """Return the residual function, of contexts and offsets from its decisions.

        Costs are built around their minimum: seen from there, contexts are alike, and what is observed near the
        decisions of one tells of those of another.
        """
        z, size = self.axes.z(self.rows.context), float(np.mean(self.excess))
        return Smoother.of(z, self.offsets, self.residuals, size, prior)
