"""The polyhedron, of which Simplex, Box and Budget are the cases with short names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike, check_count, check_processor, to_numpy
from soctk.lazy import cvxpy as cp
from soctk.sets.arrays import SetArrays
from soctk.sets.at import SetAt
from soctk.sets.base import Device, FeasibleSet, Presolved
from soctk.sets.coordinates import STILL, powers_of_two
from soctk.sets.elimination import Elimination, independent_columns
from soctk.sets.general import General
from soctk.sets.given import Bound, check_sizes, check_total, freeze_bounds, matrix_and_side
from soctk.sets.implied import SingleRows
from soctk.sets.linear_programs import System
from soctk.sets.oracles import Between, Capped, Oracles
from soctk.sets.rows import Rows, rows_of

USUAL = 3.0
"""Powers of ten that numbers may be from 1."""
PATTERNS = 64
"""Eliminations that a set keeps, one for each pattern of fixed coordinates."""


class Polyhedron(FeasibleSet):
    """The compact set {x : lower <= x <= upper, E x = f, G x <= h}. Immutable, hashable, compared by its numbers.

    Whatever is computed about a set once, linear programmes for the most part, is kept on the object.

    Args:
        dim: the decision dimension n.
        lower: a number or one for each coordinate; -inf where there is no bound.
        upper: the same; +inf where there is none.
        E: (k, n), or (n,) for one row; an array, nested lists, a tensor or a SciPy sparse matrix.
        f: (k,), or a number for one row.
        G: (m, n) or (n,), as E.
        h: (m,) or a number.

    Raises:
        TypeError: a matrix that is not numeric.
        ValueError: wrong shapes, NaN, lower > upper somewhere, E without f or G without h, an empty set, a set that is
            not bounded.
    """

    trusted = True

    def __init__(
        self,
        dim: int,
        lower: Bound = 0.0,
        upper: Bound = float("inf"),
        E: ArrayLike | None = None,
        f: ArrayLike | None = None,
        G: ArrayLike | None = None,
        h: ArrayLike | None = None,
    ) -> None:
        check_count(dim, "dim")
        check_processor()
        put = object.__setattr__
        put(self, "dim", dim)
        put(self, "lower", lower)
        put(self, "upper", upper)
        freeze_bounds(self, finite=False)
        for names, values in ((("E", "f"), (E, f)), (("G", "h"), (G, h))):
            for name, array in zip(names, matrix_and_side(names, values, dim), strict=True):
                put(self, name, array)
        rows = self._rows
        if rows.total is not None:
            check_total(rows.total, "f", float(rows.lower.sum()), float(rows.upper.sum()))
        elif not rows.at_most_a_sum:
            check_sizes(rows)
        _ = self._oracles  # finds out whether the set is empty, or not bounded

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__module__.startswith("soctk.sets."):
            raise TypeError(
                f"{cls.__name__}: the sets of soctk are final, as solvers rely on what they are; describe yours as a "
                "soctk.Polyhedron, or derive it from soctk.FeasibleSet with a projection of its own"
            )

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return self._numbers == other._numbers if type(other) is type(self) is Polyhedron else NotImplemented

    def __hash__(self) -> int:
        return hash(self._numbers)

    def __repr__(self) -> str:
        rows = self._rows
        return (
            f"Polyhedron({self.dim}, lower={self.lower}, upper={self.upper}, "
            f"{len(rows.E)} equalities, {len(rows.G)} inequalities)"
        )

    def __getstate__(self) -> dict[str, Any]:
        """What is kept is no part of a copy or of a file."""
        kind = type(self)
        now = dict(vars(self))  # another thread may keep something meanwhile
        return {k: v for k, v in now.items() if not isinstance(getattr(kind, k, None), cached_property)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    # -- right-hand sides of their own ---------------------------------------------------------------------

    def at(
        self,
        *,
        total: ArrayLike | None = None,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        f: ArrayLike | None = None,
        h: ArrayLike | None = None,
    ) -> SetAt:
        """Return the set with right-hand sides of its own for each context; what is not given is as it was.

        The matrices, and all that depends on them alone, are shared. A decision over an empty set says so.

        Args:
            total: (*batch,), of a set with a sum, such as a Budget.
            lower: (*batch, n), or a number for all; -inf where there is no bound.
            upper: the same; +inf where there is none.
            f: (*batch, k), or (*batch,) for one row of E.
            h: (*batch, m), or (*batch,) for one row of G.

        Raises:
            TypeError: something that is not numeric.
            ValueError: wrong shapes, a NaN, right-hand sides of rows that there are not.
        """
        return SetAt.of(self, total, lower, upper, f, h)

    def replaced(self, lower: Tensor, upper: Tensor, f: Tensor, h: Tensor) -> Polyhedron:
        """Return the set with other right-hand sides, each (rows,).

        Raises:
            ValueError: it is empty or not bounded.
        """
        rows = self._rows
        return Polyhedron(self.dim, lower.tolist(), upper.tolist(), *_pair(rows.E, f), *_pair(rows.G, h))

    def end_multipliers(self, j: int, sign: float) -> tuple[np.ndarray, np.ndarray]:
        """Return nu (k,), z >= 0 (m,) with sign e_j + E'nu + G'z zero where bounds are infinite; kept."""
        if (j, sign) not in self._ends:
            self._ends[j, sign] = self._system.end_multipliers(j, sign)
        return self._ends[j, sign]

    def single_rows(self) -> SingleRows:
        """Return [E; -E; G] row by row, as what ends follow from; kept."""
        return self._single_rows

    def elimination(self, fixed: tuple[int, ...] = ()) -> Elimination:
        """Return the set's elimination, with the coordinates `fixed` held by equalities after those of E.

        The last `PATTERNS` of them are kept.
        """
        return self._elimination(fixed)

    @cached_property
    def _single_rows(self) -> SingleRows:
        return SingleRows.of(np.concatenate([self._rows.E, -self._rows.E, self._rows.G]))

    @cached_property
    def _ends(self) -> dict[tuple[int, float], tuple[np.ndarray, np.ndarray]]:
        return {}

    @cached_property
    def _elimination(self) -> Callable[[tuple[int, ...]], Elimination]:
        rows = self._rows

        @lru_cache(maxsize=PATTERNS)
        def of(fixed: tuple[int, ...]) -> Elimination:
            held = torch.eye(len(rows.lower), dtype=torch.float64)[list(fixed)]
            return Elimination.of(dataclasses.replace(rows, E=torch.cat([rows.E, held])))

        return of

    @cached_property
    def _system(self) -> System:
        return System.of(self._rows)

    # -- what is kept --------------------------------------------------------------------------------------

    @cached_property
    def _rows(self) -> Rows:
        return rows_of(self.dim, self.lower, self.upper, self.E, self.f, self.G, self.h)

    @cached_property
    def _oracles(self) -> Oracles:
        rows = self._rows
        if not rows.at_most_a_sum:
            return General(rows)
        return Between(rows) if rows.total is None else Capped(rows)

    @cached_property
    @torch.inference_mode(False)  # kept for calls that are differentiated too
    def _center(self) -> Tensor:
        return self._oracles.center()

    @cached_property
    @torch.inference_mode(False)  # kept for calls that are differentiated too
    def _hull(self) -> tuple[Tensor, Tensor]:
        return self._oracles.hull()

    @cached_property
    @torch.inference_mode(False)  # kept for calls that are differentiated too
    def _presolved(self) -> Presolved[Polyhedron]:
        free = self._oracles.free()
        columns = torch.from_numpy(np.flatnonzero(free.numpy()))
        simple = len(columns) == 0 or (len(columns) == self.dim and self._rows.at_most_a_sum)
        return Presolved(self._center, columns, self if simple else self._without(~free))

    def _without(self, fixed: Tensor) -> Polyhedron:
        """Return the set of the other coordinates, in as few rows as are needed."""
        rows, free = self._rows, ~fixed
        held = torch.where(fixed, self._center, 0.0)
        lower, upper = rows.lower[free], rows.upper[free]
        E, f, G, h = rows.E[:, free], rows.f - rows.E @ held, rows.G[:, free], rows.h - rows.G @ held
        entries, some = (G != 0).sum(dim=1), (E != 0).any(dim=1)
        for row in torch.nonzero(entries == 1).flatten().tolist():  # a bound
            place = int(torch.nonzero(G[row]))
            side, tighter = (upper, torch.minimum) if float(G[row, place]) > 0 else (lower, torch.maximum)
            side[place] = tighter(side[place], h[row] / G[row, place])
        E, f, G, h = E[some], f[some], G[entries > 1], h[entries > 1]
        if len(E) == 1 and len(G) == 0 and bool((E[0, 0] == E).all()):
            lo, hi = (end[free] for end in self._around())
            E, f = torch.ones_like(E), (f / E[0, 0]).clamp(min=lo.sum(), max=hi.sum())
            lower, upper = torch.maximum(lower, lo), torch.minimum(upper, hi)
        elif len(E) == len(rows.E) and len(G) == len(rows.G) and not bool(fixed.any()):
            return self
        try:
            return Polyhedron(len(lower), lower.tolist(), upper.tolist(), E, f, G, h)
        except ValueError:  # rounding of what is subtracted may have made rows that depend on others contradict them
            kept = independent_columns((E / E.norm(dim=1, keepdim=True)).numpy().T)
            return Polyhedron(len(lower), lower.tolist(), upper.tolist(), E[kept], f[kept], G, h)

    # -- the oracles ---------------------------------------------------------------------------------------

    def _project(self, y: Tensor) -> Tensor:
        return self._oracles.project(y)

    def _linear_minimizer(self, g: Tensor) -> Tensor:
        return self._oracles.linear_minimizer(g)

    def linear_minimum(self, g: Tensor) -> Tensor:
        return self._oracles.linear_minimum(g)

    def _sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        return self._oracles.sample(count, generator)

    def _violation(self, x: Tensor) -> Tensor:
        rows = self._rows
        return rows.violation(x, *self._oracles.bounds_like(x), rows.f.to(x), rows.h.to(x))

    def center(self, dtype: torch.dtype = torch.float64, device: Device = "cpu") -> Tensor:
        return self._center.to(dtype=dtype, device=device, copy=True)

    def hull(self, dtype: torch.dtype = torch.float64, device: Device = "cpu") -> tuple[Tensor, Tensor]:
        lo, hi = (end.to(dtype=dtype, device=device, copy=True) for end in self._hull)
        return lo, hi

    def _around(self) -> tuple[Tensor, Tensor]:
        return self._oracles.around()

    def rows(self) -> Rows:
        return self._rows

    @property
    def arrays(self) -> SetArrays:
        """The set as arrays; kept."""
        return self._arrays

    @cached_property
    def _arrays(self) -> SetArrays:
        rows = self._rows
        return SetArrays(self, *(to_numpy(side)[None] for side in (rows.lower, rows.upper, rows.f, rows.h)))

    def presolve(self) -> Presolved[Polyhedron]:
        """Return the set without the coordinates that its bounds and rows leave no choice, the rest in few rows."""
        return self._presolved

    @cached_property
    def magnitude(self) -> float:
        """The largest number among bounds and right-hand sides, at least 1."""
        rows = self._rows
        numbers = torch.cat([rows.lower, rows.upper, rows.f, rows.h]).abs()
        return max(1.0, float(torch.where(numbers.isinf(), 0.0, numbers).max()))

    def constraints(self, x: cp.Expression) -> list[cp.Constraint]:
        """Return every finite bound and every row as CVXPY constraints on `x`, an expression of shape (n,).

        Where the numbers of a bound or row are not between 1e-3 and 1e3 over the set, both sides are divided by their
        size: solvers have tolerances of their own.

        Raises:
            ValueError: another shape.
        """
        if x.shape != (self.dim,):
            raise ValueError(f"x: expected a CVXPY expression of shape ({self.dim},), got {x.shape}")
        rows, largest = self._rows, self.reach[0].numpy()
        found: list[cp.Constraint] = []
        for side, sign in ((to_numpy(rows.lower), 1), (to_numpy(rows.upper), -1)):
            finite = np.flatnonzero(np.isfinite(side))
            part, ends = (x, side) if finite.size == self.dim else (x[finite], side[finite])
            if finite.size:
                part, ends = _divided(part, ends, largest[finite])
                found.append(part >= ends if sign > 0 else part <= ends)
        if rows.total is not None:
            total, side = _divided(cp.sum(x), np.asarray(rows.total), largest.sum(keepdims=True)[0])
            found.append(cp.Zero(total - side))
        elif len(rows.E):
            E, f = to_numpy(rows.E), to_numpy(rows.f)
            equal, side = _divided(E @ x, f, np.abs(E) @ largest)
            found.append(equal == side)
        if len(rows.G):
            G, h = to_numpy(rows.G), to_numpy(rows.h)
            below, side = _divided(G @ x, h, np.abs(G) @ largest)
            found.append(below <= side)
        return found

    @cached_property
    def _numbers(self) -> tuple[object, ...]:
        """What makes two polyhedra equal."""
        rows = self._rows
        parts = (rows.lower, rows.upper, rows.E, rows.f, rows.G, rows.h)
        return self.dim, *((part + 0.0).numpy().tobytes() for part in parts)  # + 0.0: there is one zero


def _pair(matrix: Tensor, side: Tensor) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return a matrix and its right-hand sides as the constructor takes them."""
    return (matrix.numpy(), side.numpy()) if len(matrix) else (None, None)


def _divided(part: cp.Expression, side: np.ndarray, size: np.ndarray) -> tuple[cp.Expression, np.ndarray]:
    """Return both sides of constraints divided by powers of two near their sizes, where these are far from 1."""
    unit = powers_of_two(np.where(size > STILL * size.max(), size, 0.0))  # less is the rounding of what cannot move
    factor = np.where(np.abs(np.log10(unit)) <= USUAL, 1.0, 1 / unit)
    if (factor == 1.0).all():
        return part, side
    return cp.multiply(factor, part), factor * side
