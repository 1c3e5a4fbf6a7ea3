"""The outcome that every solver returns, and where the Newton method's iterations ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.decide.decision import relative_gap
from soctk.sets.arrays import SetArrays
from soctk.sets.rounding import rounded_down
from soctk.status import Status


@dataclass
class Result:
    """What a solver found for N instances.

    Attributes:
        x: (N, n).
        value: f(x), (N,).
        lower_bound: (N,).
        iterations: (N,), int64.
        status: why the solver stopped with each, an object array of `Status` (N,); OPTIMAL where it reached `tol`.
        solver: the name of the method that found each x: one for all, or an object array (N,).
        unit: what gaps are measured in, (N,); max(1, |value|) where it is None.
        first_gap: `Problem.first_gap` of where the solver began, (N,), where it kept it.
        seen: over polyhedra how much f differs between x and a point inside the set, (N,); NaN where none is known.
        final: where the iterations ended, where that was asked for.
        rows: the multipliers of a polyhedron's rows, where they are known.
        multipliers: of the constraints of a region, (N, m), those of the bound or of the proof that it is empty.
        passes: beside them what the pass over the terms left that the bound was made from, (N, any).
    """

    x: Tensor
    value: Tensor
    lower_bound: Tensor
    iterations: Tensor
    status: np.ndarray
    solver: str | np.ndarray = ""
    unit: Tensor | None = None
    first_gap: Tensor | None = None
    seen: Tensor | None = None
    final: Final | None = None
    rows: RowMultipliers | None = None
    multipliers: np.ndarray | None = None
    passes: np.ndarray | None = None

    @classmethod
    def unanswered(cls, x: Tensor, unit: Tensor | None = None) -> Result:
        """Return points (N, n) of which nothing is known yet."""
        size = x.shape[0]
        return cls(
            x=x.clone(),
            value=x.new_full((size,), torch.inf),
            lower_bound=x.new_full((size,), -torch.inf),
            iterations=torch.zeros(size, dtype=torch.int64, device=x.device),
            status=repeated(Status.ITERATION_LIMIT, size),
            unit=unit,
        )

    def improve(self, rows: Tensor, x: Tensor, value: Tensor, lower_bound: Tensor) -> Tensor:
        """Keep, for the instances `rows`, whatever point and whatever bound are better; return where the point is."""
        better = value < self.value[rows]
        self.x[rows] = torch.where(better.unsqueeze(-1), x, self.x[rows])
        self.value[rows] = torch.where(better, value, self.value[rows])
        self.lower_bound[rows] = torch.maximum(self.lower_bound[rows], lower_bound)
        return better

    def to(self, device: torch.device) -> Result:
        """Return the result with its points, values and bounds on a device; what is said of rows stays where it is."""
        if self.x.device == device:
            return self
        names = ("x", "value", "lower_bound", "iterations", "unit", "first_gap", "seen", "final")
        return replace(self, **{name: map_tensors(lambda part: part.to(device), getattr(self, name)) for name in names})

    def refuse(self, rows: Tensor) -> None:
        """Say that the sets of the instances `rows` are empty."""
        self.x[rows], self.value[rows], self.lower_bound[rows] = torch.nan, torch.nan, -torch.inf
        self.status[rows.cpu().numpy()] = Status.INFEASIBLE

    def relative_gap(self, rows: Tensor) -> Tensor:
        """Return the gaps of the instances `rows` in their unit."""
        return relative_gap(self.value[rows], self.lower_bound[rows], None if self.unit is None else self.unit[rows])

    def judge(self, tol: float, unconfirmed: Status = Status.STALLED) -> None:
        """Let the statuses say what value and bound say: OPTIMAL where the gap is at most `tol`, and nowhere else.

        `unconfirmed` takes the place of an OPTIMAL that is not; INACCURATE that of anything where value and bound
        contradict each other.
        """
        if self._plainly_optimal(tol):
            return
        gap = relative_gap(self.value, self.lower_bound, self.unit)
        reached = (gap <= tol).cpu().numpy()
        contradicted = (torch.isinf(gap) & (self.value < self.lower_bound)).cpu().numpy()
        self.status[(self.status == Status.OPTIMAL) & ~reached] = unconfirmed
        self.status[reached] = Status.OPTIMAL
        self.status[contradicted] = Status.INACCURATE

    def _plainly_optimal(self, tol: float) -> bool:
        """Whether all are called optimal and are: nearly always, and found out in a fraction of the time."""
        if self.unit is not None or not self.value.is_cpu or not self.all_optimal:
            return False
        if self.status.size == 1:
            only, bound = self.value.item(), self.lower_bound.item()
            return 0 <= only - bound <= tol * max(abs(only), 1.0) < torch.inf
        value = self.value.numpy()
        gap, most = value - self.lower_bound.numpy(), tol * np.maximum(np.abs(value), 1.0)
        return bool((gap >= 0).all() and (gap <= most).all() and (most < np.inf).all())

    @property
    def all_optimal(self) -> bool:
        """Whether the solver calls all instances optimal."""
        return self.status.tolist().count(Status.OPTIMAL) == self.status.size


@dataclass(frozen=True, eq=False)
class RowMultipliers:
    """Multipliers of the rows of N polyhedra: those of a lower bound, or of a proof that the set is empty.

    Attributes:
        nu: of E x = f, (N, k).
        z: of G x <= h, (N, m), not negative.
        w: slope + E'nu + G'z, (N, n).
        beside: -nu'f - z'h, less what rounding may have added to it and to w, (N,).
    """

    nu: np.ndarray
    z: np.ndarray
    w: np.ndarray
    beside: np.ndarray

    @classmethod
    def zero(cls, sets: SetArrays, size: int) -> RowMultipliers:
        """Return those of N functions of which nothing is known yet."""
        n, k, m = (side.shape[1] for side in sets.sides[1:])
        return cls(np.zeros((size, k)), np.zeros((size, m)), np.zeros((size, n)), np.zeros(size))

    @classmethod
    def of(cls, sets: SetArrays, slope: np.ndarray, y: np.ndarray) -> RowMultipliers:
        """Return multipliers y = (nu, z), (N, k + m), and what follows from them.

        Args:
            sets: the polyhedra.
            slope: of a linear function, (N, n); 0 for a proof.
            y: see above.
        """
        k, (w, products) = sets.f.shape[1], sets.priced(slope, y)
        beside = -products.sum(axis=1) - sets.margin(products, y, slope)
        return cls(y[:, :k], y[:, k:], w, beside)

    def level(self, sets: SetArrays) -> np.ndarray:
        """Return -nu'f - z'h + sum_i min(w_i lo_i, w_i hi_i), less what rounding may have added, (N,)."""
        lo, hi = sets.box
        return rounded_down(np.minimum(self.w * lo, self.w * hi)) + self.beside

    def select(self, index: np.ndarray) -> RowMultipliers:
        """Return those of some instances."""
        return RowMultipliers(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def times(self, scale: np.ndarray) -> RowMultipliers:
        """Return those of functions that are so many times as large, (N,)."""
        parts = [getattr(self, name) for name in self.__dataclass_fields__]
        return RowMultipliers(*(part * (scale if part.ndim == 1 else scale[:, None]) for part in parts))

    def put(self, index: np.ndarray | slice, other: RowMultipliers) -> None:
        """Overwrite the instances `index`."""
        for name in self.__dataclass_fields__:
            getattr(self, name)[index] = getattr(other, name)


@dataclass
class Final:
    """Where the iterations ended, all a derivative needs: tensors with leading size N.

    Attributes:
        x: the last iterate, strictly inside the bounds.
        mu: the last barrier weight, (N, 1).
        s_lo: multipliers of the lower bounds.
        s_hi: multipliers of the upper bounds, where there are any.
        lags: the dual iterates of each term, balanced as those that the best bound came from.
        t: the slack variables of directions besides the axes, (N, m); None where there are none.
        z_lo, z_hi: beside them the multipliers of their ends.
    """

    x: Tensor
    mu: Tensor
    s_lo: Tensor
    s_hi: Tensor | None
    lags: list
    t: Tensor | None = None
    z_lo: Tensor | None = None
    z_hi: Tensor | None = None

    @property
    def values(self) -> Tensor:
        """x and t, (N, n + m): where the directions are."""
        return self.x if self.t is None else torch.cat([self.x, self.t], dim=1)

    @property
    def low(self) -> Tensor:
        """The multipliers of the lower ends of all directions, (N, n + m)."""
        return self.s_lo if self.z_lo is None else torch.cat([self.s_lo, self.z_lo], dim=1)

    @property
    def high(self) -> Tensor | None:
        """The multipliers of the upper ends."""
        if self.z_hi is None:
            return self.s_hi
        assert self.s_hi is not None
        return torch.cat([self.s_hi, self.z_hi], dim=1)

    @property
    def ended(self) -> Tensor:
        """Whether the iterations ended at numbers, bool (N,)."""
        found = torch.ones_like(self.mu[:, 0], dtype=torch.bool)
        map_tensors(lambda part: found.logical_and_(part.flatten(start_dim=1).isfinite().all(dim=1)), self)
        return found

    @classmethod
    def of(cls, state: Any) -> Final:
        """Copy what a state of the Newton method holds."""
        return map_tensors(torch.clone, cls(state.x, state.mu, state.s_lo, state.s_hi, state.balanced))

    def put(self, index: Tensor, other: Final) -> None:
        """Overwrite the instances `index`."""

        def write(mine: Any, theirs: Any) -> None:
            if isinstance(mine, Tensor):
                mine[index] = theirs
            elif isinstance(mine, list | tuple):
                for pair in zip(mine, theirs, strict=True):
                    write(*pair)

        for name in self.__dataclass_fields__:
            write(getattr(self, name), getattr(other, name))


def repeated(status: Status, size: int) -> np.ndarray:
    """Return an object array (size,) of one status; `np.full` would make a plain string of it."""
    array = np.empty(size, dtype=object)
    array.fill(status)
    return array


def map_tensors(fn: Callable[[Tensor], Tensor], item: Any) -> Any:
    """Apply `fn` to every tensor in tuples, lists and dataclasses."""
    if isinstance(item, Tensor):
        return fn(item)
    if isinstance(item, list | tuple):
        return type(item)(map_tensors(fn, part) for part in item)
    if item is None:
        return None
    if hasattr(item, "__dataclass_fields__"):
        return type(item)(*(map_tensors(fn, getattr(item, name)) for name in item.__dataclass_fields__))
    return item


def picker(size: int, index: Tensor) -> Callable[[Any], Any]:
    """Return a function that picks instances from tensors, and from tuples, lists and dataclasses of them."""

    def pick(tensor: Tensor) -> Tensor:
        return tensor if tensor.shape[0] != size or size == 1 else tensor[index]

    return lambda item: map_tensors(pick, item)
