"""Decisions in free coordinates as functions of right-hand sides, for their derivatives.

x_p and the ends of all directions (`soctk.decide.free_coordinates`) are affine in the right-hand sides for as long as
the same constraints give the ends. The transposed map, which derivatives go back by, is the way that multipliers take
from directions to the rows as given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.decide.compiled.form import kinds_of, supported
from soctk.decide.ends import Ends
from soctk.decide.free_coordinates import Reduction
from soctk.decide.ready import is_ready
from soctk.decide.result import Result, repeated
from soctk.forms.conic_form import ConicForm
from soctk.sets import SetAt
from soctk.status import Status


@dataclass(frozen=True, eq=False)
class FreeCoordinates:
    """x = x_p + Z w for sets whose right-hand sides may be part of an autograd graph.

    Attributes:
        sets: flat.
        reduction: of the sets as they are.
        origin: x_p, (1 or N, n).
        low, high: the ends of all directions, (1 or N, d + m).
    """

    sets: SetAt
    reduction: Reduction
    origin: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, sets: SetAt, fixed: np.ndarray | None = None) -> FreeCoordinates:
        """Return the free coordinates of flat sets in the processor's memory; `fixed` as in `Reduction.of`."""
        reduction = Reduction.of(sets.arrays, fixed)
        return cls(sets, reduction, *_Affine.apply(*sets.sides, reduction))

    @property
    def dim(self) -> int:
        """The number of free coordinates."""
        return self.reduction.elimination.dim

    def form(self, form: ConicForm) -> ConicForm:
        """Return the functions of w: f(x_p + Z w)."""
        e = self.reduction.elimination
        return form if e.basic.size == 0 else form.composed(torch.from_numpy(e.basis), self.origin)

    def expand(self, w: Tensor) -> Tensor:
        """Return x, (N, n), within its bounds."""
        x = self.origin + w @ torch.from_numpy(self.reduction.elimination.basis).T
        with torch.no_grad():  # what rounding adds has no derivative
            excess = x - torch.maximum(torch.minimum(x, self.sets.upper), self.sets.lower)
        return x - excess

    def ends(self) -> Ends:
        """Return the ends of all directions."""
        e, n = self.reduction.elimination, self.sets.dim
        lower, upper, f, h = (side.requires_grad for side in self.sets.sides)
        moving = np.array([upper or f] * n + [lower or f] * n + [h or f] * self.sets.h.shape[-1])
        several = e.met_by_several(self.reduction.sides, moving)
        R = torch.from_numpy(e.R)
        return Ends(self.low, self.high, R, several=(torch.from_numpy(several[0]), torch.from_numpy(several[1])))


class _Affine(torch.autograd.Function):
    """The right-hand sides -> x_p and the ends of all directions."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        *sides, reduction = arguments
        ctx.reduction, ctx.shapes = reduction, [side.shape for side in sides]
        return tuple(torch.from_numpy(part.copy()) for part in (reduction.origin, reduction.low, reduction.high))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        reduction: Reduction = ctx.reduction
        origin, low, high = (part.numpy() for part in outer)
        given = reduction.elimination.ends(reduction.sides)
        low, high = (np.where(np.isinf(end), 0.0, part) for end, part in zip(given, (low, high), strict=True))
        constraints = reduction.elimination.attribute(-low, high, reduction.sides)
        n, k = origin.shape[1], reduction.sets.f.shape[1]
        own = reduction.originals(-origin, np.zeros((len(origin), constraints.shape[1])))[0]
        nu, z = reduction.originals(np.zeros((len(constraints), n)), constraints)
        if ctx.needs_input_grad[0] != ctx.needs_input_grad[1] and bool((own[:, k:] + nu[:, k:]).any()):
            raise RuntimeError(
                f"lower, upper: coordinates {reduction.fixed.tolist()} are fixed by lower = upper, and decisions "
                "depend on where; they have a derivative if both ends move together: give both, from the same tensor"
            )
        held, lower = np.zeros((len(own), n)), -constraints[:, n : 2 * n]
        held[:, reduction.fixed] = own[:, k:]
        lower[:, reduction.fixed] += nu[:, k:]
        lowers = (lower, held) if reduction.fixed.size > 0 else (lower,)
        parts = [lowers, (constraints[:, :n],), (nu[:, :k], own[:, :k]), (z,)]
        found = [sum(_summed(part, shape) for part in each) for each, shape in zip(parts, ctx.shapes, strict=True)]
        return *found, None


def _summed(part: np.ndarray, shape: torch.Size) -> Tensor:
    """Return numbers (1 or N, any) summed over the instances that share a right-hand side."""
    return torch.from_numpy(np.ascontiguousarray(part)).sum_to_size(shape)


def minimise_in_free_coordinates(
    form: ConicForm, sets: SetAt, fixed: np.ndarray | None, *, tol: float, max_iter: int, keep_final: bool
) -> Result:
    """Return the answers w to detached forms over detached sets, with `Final` where that is asked for.

    `fixed` as in `Reduction.of`.

    Raises:
        RuntimeError: a set is empty, or no Newton steps can be taken.
    """
    free = FreeCoordinates.of(sets, fixed)
    known = free.reduction.contradictions(form.size)
    if known is not None:
        _refuse_empty(known[0], form.size)
    if form.size == 0 or free.dim == 0:
        w = form.linear.new_zeros(form.size, free.dim)
        value = form.evaluate(free.expand(w).unsqueeze(1)).squeeze(-1)
        return Result(w, value, value, torch.zeros_like(value), repeated(Status.OPTIMAL, form.size))
    inner = free.form(form)
    if not (supported(inner) and is_ready(kinds_of(inner.terms), 1, most=0)):
        raise RuntimeError("decisions over this set have no derivatives: a term of the model has no compiled kernel")
    from soctk.decide.compiled.solve import solve_compiled  # Numba is loaded when it is needed

    region = free.reduction.region(None, 0.0)
    result = solve_compiled(inner, region, tol=tol, max_iter=max_iter, keep_final=keep_final)
    _refuse_empty(np.flatnonzero(result.status == Status.INFEASIBLE), form.size)
    return result


def _refuse_empty(empty: np.ndarray, size: int) -> None:
    if empty.size > 0:
        named = ", ".join(str(row) for row in empty[:5].tolist())
        raise RuntimeError(
            f"{empty.size} of {size} sets are empty (instances {named}): there is no decision to "
            "differentiate; soctk.minimize says why, and what the nearest sets are"
        )
