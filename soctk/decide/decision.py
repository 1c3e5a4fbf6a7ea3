"""What a decision is: a feasible point, its value, a lower bound, and how the search ended."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from soctk.status import Status
from soctk.support import Support

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}
"""How far rounding may put a value below its own bound, in units of max(1, |value|): sums of a few hundred products
err by 1e-13 and 1e-5 of their size, and the size of float64 sums may be 10,000 times that of the value."""


@dataclass(frozen=True, eq=False)
class Prices:
    """Derivatives of the optimal value in the right-hand sides of {lower <= x <= upper, E x = f, G x <= h}.

    The multipliers of the lower bound, with the signs of derivatives: at the end of a range several are right, and
    these are among them. NaN where there is no bound.

    Attributes:
        lower: (*batch, n), not negative.
        upper: (*batch, n), not positive.
        f: (*batch, k).
        h: (*batch, m), not positive.
    """

    lower: Tensor
    upper: Tensor
    f: Tensor
    h: Tensor

    @property
    def total(self) -> Tensor:
        """The price of the sum of a set that has one, (*batch)."""
        if self.f.shape[-1] != 1:
            raise ValueError(f"total: expected a set with a sum, got one with {self.f.shape[-1]} equalities; see `f`")
        return self.f[..., 0]


class Ray(NamedTuple):
    """A proof that {lower <= x <= upper, E x = f, G x <= h} is empty: no x satisfies nu'E x = nu'f and z'G x <= z'h.

    -nu'f - z'h + min over lower <= x <= upper of (E'nu + G'z)'x is positive (Farkas): `SetAt.refutes` computes it.
    Where a lower bound lies above its upper one, that is proof enough, and both are zero.
    """

    nu: Tensor
    z: Tensor


@dataclass(frozen=True, eq=False)
class Decision:
    """A batch of decisions.

    Attributes:
        x: (*batch, n), feasible; NaN where `status` says there is none, and where a limit was reached over a set of the
            context's own (`feasible_set.at`), or of whole numbers, before any point of it was known.
        value: f(x), (*batch).
        lower_bound: a rigorous lower bound of the minimum, (*batch); -inf where there is none.
        status: `Status` of each decision, an object array (*batch); compare with `== "optimal"`.
        iterations: (*batch), int64; nodes of decisions in whole numbers.
        seconds: wall-clock time of the whole call.
        scale: the unit of `relative_gap`, (*batch): the one given, or where f hardly varies over the set that of
            `soctk.decide.ranges`; None where it is max(1, |value|) throughout.
        solver: the name of the method that found each x, an object array (*batch).
        violation: the largest violation of any constraint of the set by x, (*batch).
        prices: derivatives of the optimal value in the right-hand sides: of a `Polyhedron` and of what `at` returns
            (`feasible_set.at()` for other sets); None elsewhere, as of decisions in whole numbers.
        ray: beside them the proofs for the instances that are infeasible, nu (*batch, k) and z (*batch, m), zero
            elsewhere.
        context: the contexts as rows, (N, p); None where the model has none.
        support: where its data were; None where that is not known.
        relaxation: with infeasible="nearest" by how much rows were moved in all, (*batch), 0 where that was not needed,
            NaN where a time limit left no time for it.
        multipliers: with subject_to, u of each constraint, (*batch, K), not negative. For every r the optimal value
            subject to g <= r is at least lower_bound - u'r: what it falls by where constraints are relaxed. Where the
            constraints cannot be met, the weights of a proof: sum_k u_k g_k is positive all over the set. NaN where
            there is neither, and where the set is empty, which decisions without subject_to prove.
    """

    x: Tensor
    value: Tensor
    lower_bound: Tensor
    status: np.ndarray
    iterations: Tensor
    seconds: float
    scale: Tensor | None
    solver: np.ndarray
    violation: Tensor
    prices: Prices | None = None
    ray: Ray | None = None
    relaxation: Tensor | None = None
    multipliers: Tensor | None = None
    context: Tensor | None = field(default=None, repr=False)
    support: Support | None = field(default=None, repr=False)

    @classmethod
    def joined(cls, parts: list[Decision], batch: tuple[int, ...], seconds: float) -> Decision:
        """Return decisions for neighbouring instances, each of batch shape (N,), as one."""

        def join(found: list[Any]) -> Any:
            if isinstance(found[0], Tensor):
                return torch.cat(found).reshape(*batch, *found[0].shape[1:])
            if isinstance(found[0], np.ndarray):
                return np.concatenate(found).reshape(batch)
            if found[0] is None:
                return None
            names = found[0]._fields if isinstance(found[0], tuple) else [f.name for f in fields(found[0])]
            return type(found[0])(*(join([getattr(part, name) for part in found]) for name in names))

        scale = None if all(part.scale is None for part in parts) else join([part._unit for part in parts])
        alone = ("seconds", "scale", "context", "support")
        found = {f.name: join([getattr(p, f.name) for p in parts]) for f in fields(cls) if f.name not in alone}
        contexts = [part.context for part in parts if part.context is not None]
        context = torch.cat(contexts) if contexts else None  # (N, p), whatever the batch
        return cls(seconds=seconds, scale=scale, context=context, support=parts[0].support, **found)

    def replaced(self, index: Tensor, other: Decision) -> Decision:
        """Return the decision with the instances `index` of the flattened batch replaced by those of another."""

        def put(mine: Any, theirs: Any) -> Any:
            if isinstance(mine, Tensor):
                flat = mine.clone().reshape(self.value.numel(), *theirs.shape[1:])
                flat[index] = theirs
                return flat.reshape(mine.shape)
            if isinstance(mine, np.ndarray):
                array = mine.copy().reshape(-1)
                array[index.numpy()] = theirs
                return array.reshape(mine.shape)
            if isinstance(mine, Prices):
                return Prices(*(put(getattr(mine, f.name), getattr(theirs, f.name)) for f in fields(Prices)))
            return mine

        names = [f.name for f in fields(self) if f.name not in ("ray", "scale")]
        changed = {name: put(getattr(self, name), getattr(other, name)) for name in names}
        scale = None if self.scale is None and other.scale is None else put(self._unit, other._unit)
        return replace(self, scale=scale, **changed)

    @property
    def _unit(self) -> Tensor:
        """What gaps are measured in, (*batch)."""
        return self.value.abs().clamp(min=1.0) if self.scale is None else self.scale

    @property
    def gap(self) -> Tensor:
        """value - lower_bound, (*batch): the decision is at most this much worse than the best.

        inf where the value lies below the bound by more than rounding, so that one of the two is wrong.
        """
        return certified_gap(self.value, self.lower_bound)

    @property
    def relative_gap(self) -> Tensor:
        """gap / max(1, |value|), or gap / scale where there is one, (*batch): what `tol` is compared with."""
        return relative_gap(self.value, self.lower_bound, self.scale)

    @cached_property
    def outside(self) -> Tensor | None:
        """Whether a context or its decision is outside of what the model has learned from, bool (*batch).

        Beyond the range of one of its numbers, farther from the mean than any row, or farther from the usual decision
        at its context than any logged one, by a tenth (`soctk.support`); also where there is no decision. None where
        the model does not know its data.
        """
        if self.support is None:
            return None
        x = self.x.detach().double().cpu().numpy().reshape(-1, self.x.shape[-1])
        context = np.zeros((len(x), 0))
        if self.context is not None:
            context = self.context.detach().double().cpu().numpy().reshape(-1, self.context.shape[-1])
        found = self.support.outside(np.broadcast_to(context, (len(x), context.shape[1])), x)
        return torch.from_numpy(found | np.isnan(x).any(axis=1)).reshape(self.value.shape)

    @property
    def optimal(self) -> Tensor:
        """Whether each decision reached the tolerance, bool (*batch)."""
        return torch.as_tensor(self.status == Status.OPTIMAL, device=self.x.device)


def certified_gap(value: Tensor, lower_bound: Tensor) -> Tensor:
    """Return |value - lower_bound|; inf where the value lies below the bound by more than rounding."""
    gap = value - lower_bound
    contradicted = gap < -ROUNDING[value.dtype] * value.abs().clamp(min=1.0)
    return gap.abs().masked_fill(contradicted, torch.inf)


def relative_gap(value: Tensor, lower_bound: Tensor, scale: Tensor | None = None) -> Tensor:
    """Return `certified_gap` / scale, inf where that is; the scale is max(1, |value|) where none is given."""
    gap = certified_gap(value, lower_bound)
    return torch.where(torch.isinf(gap), gap, gap / (value.abs().clamp(min=1.0) if scale is None else scale))
