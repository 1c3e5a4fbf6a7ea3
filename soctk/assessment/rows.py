"""Observed values one by one, in coordinates where logged decisions are as wide as each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from soctk.learn.data import ValueData, groups_of

RANK = 1e-10
"""The share of the largest variance below which a direction counts as one that does not vary."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Observed values.

    Attributes:
        context: (R, p).
        x: (R, n).
        value: (R,).
        which: (R,), the instance of the data that each row is from.
    """

    context: np.ndarray
    x: np.ndarray
    value: np.ndarray
    which: np.ndarray

    @classmethod
    def of(cls, data: ValueData) -> Self:
        """Return the values in `data`; of those that are there only to fill a context up (`ValueData.counts`) none."""
        single = data.one_by_one()
        context, x, value = (part.double().numpy(force=True) for part in (single.context, single.x, single.value))
        which = np.repeat(np.arange(data.instances), data.observed.numpy(force=True))
        return cls(context, x[:, 0], value[:, 0], which)

    def __len__(self) -> int:
        return len(self.value)

    def select(self, index: np.ndarray) -> Self:
        """Return some of the rows."""
        return type(self)(self.context[index], self.x[index], self.value[index], self.which[index])

    def some(self, most: int, seed: int = 0) -> Self:
        """Return at most so many of the rows, at random."""
        if len(self) <= most:
            return self
        return self.select(np.sort(np.random.default_rng(seed).permutation(len(self))[:most]))

    @property
    def contexts(self) -> np.ndarray:
        """The context of each row by number, (R,)."""
        return groups_of(torch.from_numpy(self.context)).numpy()

    @property
    def points(self) -> np.ndarray:
        """Context and decision of each row by number, (R,): rows of a number are measurements of the same."""
        return groups_of(torch.from_numpy(np.concatenate([self.context, self.x], axis=1))).numpy()

    def within(self, numbers: np.ndarray) -> np.ndarray:
        """Return what numbers of rows (R,) differ by from their context's mean, of contexts with several rows."""
        ids = self.contexts
        counts = np.bincount(ids)
        means = np.bincount(ids, numbers) / counts
        return (numbers - means[ids])[counts[ids] > 1]

    def folds(self, count: int, seed: int = 0) -> np.ndarray:
        """Return a fold for each row, (R,): by contexts, none in two; where these are fewer, by decisions or rows."""
        choices = (self.contexts, self.points, np.arange(len(self)))
        groups = next((each for each in choices if each.max(initial=0) + 1 >= count), choices[-1])
        order = np.random.default_rng(seed).permutation(groups.max(initial=0) + 1)
        return order[groups] % count


@dataclass(frozen=True, eq=False)
class Axes:
    """White coordinates of contexts and of what decisions differ by from the policy that took them.

    The context's are z = (theta - mean) A. The policy is the affine function of the context nearest to the decisions;
    a decision's are d = (x - policy(theta)) B. Over the log both have the unit covariance, directions that do not vary
    left out.

    Attributes:
        mean: (p,).
        A: (p, a).
        policy: (1 + a, n).
        B: (n, b).
    """

    mean: np.ndarray
    A: np.ndarray
    policy: np.ndarray
    B: np.ndarray

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Return those of a log."""
        mean = rows.context.mean(axis=0)
        A = _whitening(rows.context - mean, np.square(rows.context).max(initial=0.0))
        basis = cls._with_one((rows.context - mean) @ A)
        policy = np.linalg.lstsq(basis, rows.x, rcond=None)[0]
        return cls(mean, A, policy, _whitening(rows.x - basis @ policy, np.square(rows.x).max()))

    def z(self, context: np.ndarray) -> np.ndarray:
        """Return the contexts' coordinates, (R, a)."""
        return (context - self.mean) @ self.A

    def d(self, context: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the decisions' coordinates, (R, b)."""
        return (x - self._with_one(self.z(context)) @ self.policy) @ self.B

    @staticmethod
    def _with_one(z: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ones((len(z), 1)), z], axis=1)


def _whitening(centred: np.ndarray, square: float) -> np.ndarray:
    """Return W so that (R, k) W has unit covariance, in the directions that vary by more than rounding."""
    values, vectors = np.linalg.eigh(centred.T @ centred / max(len(centred), 1))
    kept = values > max(RANK * values.max(initial=0.0), 1e-24 * square)
    return vectors[:, kept] / np.sqrt(values[kept])
