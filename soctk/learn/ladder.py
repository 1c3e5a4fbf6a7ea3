"""From the least-squares quadratic upwards: how much structure the data ask for, told by cross-validation.

The functions are those with one centre (`soctk.learn.centred`):

    1. the least-squares quadratic,
    2. with a curvature that the context moves,
    3. with a norm of n rows beside the quadratic,
    4. with hyperbolic branches instead.

A step is taken where the squared errors of rows that were left out fall by more than `REQUIRED_ERRORS` standard errors
of their paired differences: a margin that is wide where the values are noisy and vanishes where they are not. Where
step 2 was taken, steps 3 and 4 begin from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from soctk.learn.centred import Array, Centred, Values, learn
from soctk.learn.isotropic import MOST_VALUES, isotropic_quadratic
from soctk.learn.least_squares import LeastSquaresQuadratic
from soctk.learn.paired import clearly_better
from soctk.learn.units import Standardized
from soctk.models.centred import CentredShape

FOLDS = 5
FEWEST_INSTANCES = 4 * FOLDS
"""With fewer instances their candidates are left out one by one."""
REQUIRED_ERRORS = 3.0
MOST_COEFFICIENTS = 3000
"""Coefficients of a least-squares quadratic beyond which it is not tried: its equations take seconds."""


@dataclass(frozen=True)
class Step:
    """What a function gets beyond the quadratic.

    Attributes:
        index: of the model's structure.
        sizes: rows of the branches.
        alpha: whether the context moves the curvature.
    """

    index: int
    sizes: tuple[int, ...] = ()
    alpha: bool = False

    def start(self, quadratic: Centred, seed: int) -> Centred:
        """Return where to begin."""
        start = quadratic.with_alpha() if self.alpha else quadratic
        return start.with_branches(self.sizes, seed) if self.sizes else start


class Ladder:
    """Chooses among functions with one centre.

    Args:
        shapes: branches of the model's structures, the first a quadratic alone.
        level_weight: of the squared mean residual of an instance.
        seed: of the folds and the branches' rows.
        passed: whether time is up.
    """

    def __init__(
        self, shapes: Sequence[CentredShape], level_weight: float, seed: int, passed: Callable[[], bool]
    ) -> None:
        self.shapes, self.level_weight, self.seed, self.passed = shapes, level_weight, seed, passed
        self.diagonal = shapes[0].diagonal

    def can_climb(self, data: Standardized) -> bool:
        """Return whether there is a quadratic that does not take long."""
        return self._coefficients(data) <= MOST_COEFFICIENTS or self._too_few(data)

    def _coefficients(self, data: Standardized) -> int:
        n, p = data.x.shape[-1], data.context.shape[-1]
        pairs = n if self.diagonal else n * (n + 1) // 2
        return pairs + n * (p + 1) + (p + 1) * (p + 2) // 2

    def _too_few(self, data: Standardized) -> bool:
        """Return whether there are fewer values than a quadratic has coefficients."""
        return data.observed < self._coefficients(data) and data.value.numel() <= MOST_VALUES

    def choose(self, data: Standardized) -> Step:
        """Return the structure that the data ask for; the first where they are too few to ask."""
        if self._too_few(data):
            return Step(0)
        if data.x.shape[0] < FEWEST_INSTANCES:
            data = one_by_one(data)
        values = Values.of(data, self.level_weight)
        fold = np.random.default_rng(self.seed).permutation(data.x.shape[0]) % FOLDS
        parts = []
        # Where instances have several candidates, values are plenty: a fifth that is left out once tells enough.
        for k in range(FOLDS if data.x.shape[1] == 1 else 1):
            rows = torch.from_numpy(np.nonzero(fold != k)[0])
            parts.append((self.quadratic(data.rows(rows)), values.instances(fold != k), fold == k))
        chosen = Step(0)
        errors = self._errors(chosen, parts, values)
        moved = Step(0, alpha=True)
        steps = [moved] if values.context.shape[1] > 1 else []
        steps += [Step(index, shape.sizes) for index, shape in enumerate(self.shapes) if shape.sizes]
        for step in steps:
            if self.passed():
                break
            step = Step(step.index, step.sizes, alpha=chosen.alpha or step.alpha)
            reached = self._errors(step, parts, values)
            if clearly_better(reached, errors, REQUIRED_ERRORS):
                chosen, errors = step, reached
        return chosen

    def fit(self, step: Step, data: Standardized) -> Centred:
        """Return the function of a structure learned from all data."""
        values = Values.of(data, self.level_weight)
        quadratic = self.quadratic(data)
        return self._learn(step, quadratic, values)

    def quadratic(self, data: Standardized) -> Centred:
        """Return the least-squares quadratic, of one curvature where values are too few for more."""
        if self._too_few(data):
            return Centred.quadratic(isotropic_quadratic(data), diagonal=self.diagonal)
        return Centred.quadratic(LeastSquaresQuadratic.of(data, diagonal=self.diagonal), diagonal=self.diagonal)

    def _learn(self, step: Step, quadratic: Centred, values: Values) -> Centred:
        if step == Step(0):
            return quadratic
        noise = float(np.square(quadratic.residual(values)).sum()) / values.count
        return learn(step.start(quadratic, self.seed), values, noise)

    def _errors(self, step: Step, parts: Sequence[tuple[Centred, Values, NDArray[np.bool_]]], values: Values) -> Array:
        """Return the mean squared residual of instances, learned without them."""
        errors = []
        for quadratic, train, left_out in parts:
            residual = self._learn(step, quadratic, train).residual(values.instances(left_out))
            errors.append(np.square(residual).reshape(-1, values.candidates).mean(axis=1))
        return np.concatenate(errors)


def one_by_one(data: Standardized) -> Standardized:
    """Return every candidate as an instance of its own, and what repeats another not at all.

    A value that is learned from and its copy that is left out would tell nothing of what was not seen.
    """
    kept = torch.ones_like(data.value, dtype=torch.bool) if data.repeats is None else ~data.repeats
    root = data.root if data.repeats is None else None  # which is there for the repeats
    which = kept.nonzero()[:, 0]
    single = (data.x[kept].unsqueeze(1), data.value[kept].unsqueeze(1))
    return Standardized(data.context[which], *single, None if root is None else root[kept].unsqueeze(1))
