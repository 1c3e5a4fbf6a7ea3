"""Where the data of a model were: what it says elsewhere rests on none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

MARGIN = 0.1
"""How far beyond what was seen counts as seen: a share of a range's width, and of the largest distance."""
ROUNDING = float(np.finfo(np.float32).eps)
"""Of numbers that were constant in the data: they may have been float32 on the way."""
MOST_NUMBERS = 64
"""Numbers of context and decision together up to which distances are kept: the matrix has their square."""
THIN = 1e-2
"""The least width of the data in any direction, in units of the coordinates' deviations, for distances."""


@dataclass(frozen=True, eq=False)
class Support:
    """Ranges of contexts and decisions, how far from their mean they were together, and decisions from the usual ones.

    The distance is Mahalanobis': of w = (context, x) less the mean, in coordinates W where the data have unit
    covariance. It finds decisions that are usual in other contexts. With P = W W' its square is that of the context
    alone and

        (x - u)' P_xx (x - u),    u = mean_x - P_xx^-1 P_xc (context - mean_c):

    how far x is from u, the least-squares prediction of decisions from contexts, in units of what decisions differed by
    from theirs. A policy that follows the context makes ranges wide; what it never did at a context is seen here.

    Attributes:
        context: (2, p), the smallest and the largest of each number.
        x: (2, n).
        mean: (p + n,), empty where distances are not kept.
        whitening: (p + n, p + n).
        farthest: the largest distance.
        farthest_given: the largest of a decision from the usual one at its context; infinite where it is not known.
        parts: of a mean those of its members' data; what is outside is outside of each.
    """

    context: np.ndarray
    x: np.ndarray
    mean: np.ndarray
    whitening: np.ndarray
    farthest: float
    farthest_given: float = math.inf
    parts: tuple[Support, ...] = ()

    @classmethod
    def of(cls, *parts: tuple[Tensor, Tensor]) -> Self:
        """Return that of contexts (N, p) and decisions (N, M, n), one or several of both."""
        known = [[each.double().numpy(force=True) for each in part] for part in parts]
        decisions = [x.reshape(x.shape[0] * x.shape[1], x.shape[2]) for _, x in known]
        ranges = [_ends([context for context, _ in known]), _ends(decisions)]
        if ranges[0].shape[1] + ranges[1].shape[1] > MOST_NUMBERS:
            return cls(*ranges, np.zeros(0), np.zeros((0, 0)), 0.0)
        w = np.concatenate([_together(*part) for part in known])
        with np.errstate(over="ignore"):  # of what is constant and huge: told by its range
            mean, scale, size = w.mean(axis=0), w.std(axis=0), np.abs(w).max(axis=0)
        # What is constant is told by its range; its deviations are of its own size here, as rounding would count.
        scale = np.where(scale > ROUNDING * size, scale, np.where(size > 0, size, 1.0))
        centred = (w - mean) / scale
        values, vectors = np.linalg.eigh(centred.T @ centred / len(w))
        whitening = vectors / np.sqrt(values.clip(min=THIN**2)) / scale[:, None]
        found = cls(*ranges, mean, whitening, float(np.linalg.norm((w - mean) @ whitening, axis=1).max()))
        p = found.context.shape[1]
        return replace(found, farthest_given=float(found.distance_given(w[:, :p], w[:, p:]).max()))

    @classmethod
    def joined(cls, parts: Sequence[Support | None]) -> Support | None:
        """Return that of several models' data, where one of them was; None where one is not known."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or not known:
            return None
        if all(part is known[0] for part in known):
            return known[0]
        sides = [np.stack([getattr(part, name) for part in known]) for name in ("context", "x")]
        ranges = [np.stack([side[:, 0].min(axis=0), side[:, 1].max(axis=0)]) for side in sides]
        return cls(
            *ranges,
            np.zeros(0),
            np.zeros((0, 0)),
            0.0,
            parts=tuple(each for part in known for each in part.parts or (part,)),
        )

    def outside(self, context: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return where contexts (R, p) or decisions (R, n) are beyond a range, or too far together, bool (R,)."""
        if self.parts:
            return np.all([part.outside(context, x) for part in self.parts], axis=0)
        far = _beyond(context, self.context) | _beyond(x, self.x)
        if self.mean.size:
            w = np.concatenate([context, x], axis=1) - self.mean
            far |= np.linalg.norm(w @ self.whitening, axis=1) > (1 + MARGIN) * self.farthest
            if self.farthest_given < math.inf:
                far |= self.distance_given(context, x) > (1 + MARGIN) * self.farthest_given
        return far

    def distance_given(self, context: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return how far decisions (R, n) are from the usual ones at their contexts (R, p), (R,), as above.

        Raises:
            ValueError: distances are not kept.
        """
        if not self.mean.size:
            raise ValueError(f"support: expected one of at most {MOST_NUMBERS} numbers, of one model's data")
        p = self.context.shape[1]
        # Over x, |W' (w - m)| is least at u: what x - u adds is the part of W' (w - m) in the range of W_x'.
        Q, _ = np.linalg.qr(self.whitening[p:].T)
        return np.linalg.norm((np.concatenate([context, x], axis=1) - self.mean) @ self.whitening @ Q, axis=1)

    def plain(self) -> dict[str, Any]:
        """Return what `from_plain` makes it from again, as JSON can hold it."""
        names = ("context", "x", "mean", "whitening")
        plain = {name: getattr(self, name).tolist() for name in names} | {"farthest": self.farthest}
        if self.parts:
            plain["parts"] = [part.plain() for part in self.parts]
        return plain if math.isinf(self.farthest_given) else plain | {"farthest_given": self.farthest_given}

    @classmethod
    def from_plain(cls, plain: Any, dim: int, context_dim: int) -> Self:
        """Return a support from what `plain` gave.

        Raises:
            ValueError: it is something else, or of other dimensions.
        """
        try:
            context, x, mean, whitening = (
                np.array(plain[name], float) for name in ("context", "x", "mean", "whitening")
            )
            farthest = float(plain["farthest"])
            farthest_given = float(plain.get("farthest_given", math.inf))  # of older versions' files
            inside = list(plain.get("parts", []))
            if any("parts" in each for each in inside):
                raise ValueError
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError("expected ranges of context and x, and distances") from None
        count = dim + context_dim if mean.size else 0
        wanted = ((2, context_dim), (2, dim), (count,), (count, count))
        parts = (context, x, mean, whitening if count else np.zeros((0, 0)))
        if tuple(part.shape for part in parts) != wanted or not all(np.isfinite(part).all() for part in parts):
            raise ValueError(f"expected finite numbers of shapes {wanted}, got {[part.shape for part in parts]}")
        if math.isnan(farthest_given):
            raise ValueError("expected a largest distance, got NaN")
        members = tuple(cls.from_plain(each, dim, context_dim) for each in inside)
        return cls(*parts, farthest, farthest_given, members)


def _ends(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the smallest and the largest of each column, (2, k)."""
    return np.stack([np.min([p.min(axis=0) for p in parts], axis=0), np.max([p.max(axis=0) for p in parts], axis=0)])


def _together(context: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return contexts (N, p) beside each of their decisions (N, M, n), (N M, p + n)."""
    return np.concatenate([np.repeat(context, x.shape[1], axis=0), x.reshape(x.shape[0] * x.shape[1], -1)], axis=1)


def _beyond(points: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return where points (R, k) leave their ranges (2, k) by more than the margin, bool (R,)."""
    room = MARGIN * (ends[1] - ends[0]) + ROUNDING * np.abs(ends).max(axis=0)
    return ((points < ends[0] - room) | (points > ends[1] + room)).any(axis=1)
