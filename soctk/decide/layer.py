"""A decision as a differentiable layer: x_hat(context, weights) = argmin of f over the set.

Its derivatives are those of the equations that hold at a solution (soctk.decide.implicit). The optimal value needs no
such thing: by the envelope theorem its gradient is that of f at the fixed x_hat.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from soctk.checks import ArrayLike, check_count, check_flag, check_positive, check_processor
from soctk.decide.batched import Bounds
from soctk.decide.decision import relative_gap
from soctk.decide.ends import Ends
from soctk.decide.envelope import EARLIER, PROVED, Once, best_final, gap_held, lagrangian
from soctk.decide.implicit import differentiable, named, part_of, settle
from soctk.decide.moving_sides import FreeCoordinates, minimise_in_free_coordinates
from soctk.decide.nearby import improve_bounds
from soctk.decide.newton import DEFAULT_ITERATIONS, SmoothingNewton, quicker_compiled, solve_newton
from soctk.decide.problem import Problem
from soctk.decide.ranges import in_units, units_of_range
from soctk.decide.reduction import newton_refuses, reduced
from soctk.decide.result import Final, Result, picker
from soctk.forms.conic_form import ConicForm
from soctk.function import ConvexFunction, check_function
from soctk.sets import FeasibleSet, Polyhedron, SetAt


class UncertifiedWarning(UserWarning):
    """A `DecisionLayer` has returned decisions whose certified gap exceeds its `max_gap`."""


class DecisionLayer(nn.Module):
    """context -> argmin over the set of f(., context), differentiable in the context and in the model's weights.

    Solved in float64 whatever the model's dtype. Decisions whose certified gap exceeds `max_gap` are returned with an
    `UncertifiedWarning`, and not differentiated; nor are those that jump or turn with the smallest change of what
    they depend on (of a ReLU model one in three, of a model with curvature hardly any). Second derivatives
    (create_graph=True) are refused, and transforms of `torch.func` do not see into it:
    `torch.autograd.functional.jacobian` takes Jacobians.

    Args:
        model: a surrogate with a conic form.
        feasible_set: a set of the model's dimension.
        tol: relative gap to solve to, 1e-12 to 1e-8. Derivatives at kinks need more than decisions do; below, digits
            cancel.
        max_gap: the largest relative gap at which a derivative is still given.
        max_iter: Newton steps.
        skip_undefined: give decisions without a derivative none (zero), instead of warning and of raising in the
            backward pass. For descent on the mean of a loss, which then goes by the others; no derivative of that mean.

    Raises:
        TypeError: no surrogate, or no set for all contexts.
        ValueError: dimensions that differ, a non-positive tolerance.
        NotImplementedError: a model without a conic form, or a set without rows.
        RuntimeError: another default device of PyTorch's than the processor.
    """

    def __init__(
        self,
        model: ConvexFunction,
        feasible_set: FeasibleSet,
        *,
        tol: float = 1e-9,
        max_gap: float = 1e-6,
        max_iter: int = DEFAULT_ITERATIONS,
        skip_undefined: bool = False,
    ) -> None:
        super().__init__()
        check_processor()
        check_function(model)
        if not isinstance(feasible_set, FeasibleSet):
            raise TypeError(
                f"feasible_set: expected a FeasibleSet, got {type(feasible_set).__name__}; right-hand sides of each "
                "context go to the call, layer(context, h=...)"
            )
        if feasible_set.dim != model.dim:
            raise ValueError(f"feasible_set: expected dimension {model.dim} as the model's, got {feasible_set.dim}")
        if not model.has_conic_form:
            raise NotImplementedError(model.without_form())
        refused = newton_refuses(feasible_set)
        if refused is not None:
            raise NotImplementedError(f"feasible_set: {refused}; decisions over it have no derivatives yet")
        check_positive(tol, "tol")
        check_positive(max_gap, "max_gap")
        check_count(max_iter, "max_iter")
        check_flag(skip_undefined, "skip_undefined")
        self.skip_undefined = skip_undefined
        self.model, self.feasible_set = model, feasible_set
        self.tol, self.max_gap, self.max_iter = tol, max_gap, max_iter

    def of(self, model: ConvexFunction) -> DecisionLayer:
        """Return the layer of another function over the same set, with the same options."""
        options = {name: getattr(self, name) for name in ("tol", "max_gap", "max_iter", "skip_undefined")}
        return DecisionLayer(model, self.feasible_set, **options)

    def forward(
        self,
        context: ArrayLike | None = None,
        *,
        total: ArrayLike | None = None,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        f: ArrayLike | None = None,
        h: ArrayLike | None = None,
    ) -> Tensor:
        """Return the decisions: (*batch, p) -> (*batch, n), in the higher of the context's and the weights' dtype.

        Args:
            context: (*batch, p), or None where p = 0.
            total, lower, upper, f, h: right-hand sides of their own for each context (`Polyhedron.at`), in which
                decisions are differentiable too.

        Raises:
            ValueError: a bad context, right-hand sides that fit neither the set nor the contexts, or weights that make
                f non-convex.
            RuntimeError: a set without a point, or without room for this tol; and in the backward pass, where a
                decision with a non-zero incoming gradient has too large a gap or no derivative. It names the instances.
        """
        form, batch, sets = self._problem(context, {"total": total, "lower": lower, "upper": upper, "f": f, "h": h})
        x, _ = self._over_set(form) if sets is None else self._over_rows(form, sets, of="x")
        return self._returned(x.reshape(*batch, self.model.dim), context)

    def optimal_value(
        self,
        context: ArrayLike | None = None,
        *,
        total: ArrayLike | None = None,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        f: ArrayLike | None = None,
        h: ArrayLike | None = None,
    ) -> Tensor:
        """Return min f(., context) over the set, (*batch), differentiable once by the envelope theorem.

        Arguments and errors are those of `forward`; too large a gap may be that of the multipliers that the derivative
        is taken at.
        """
        return self.proved_value(context, total=total, lower=lower, upper=upper, f=f, h=h)[0]

    def proved_value(self, context: ArrayLike | None = None, **sides: ArrayLike | None) -> tuple[Tensor, Tensor]:
        """Return `optimal_value`, and whether each value's derivative is proved, (*batch) and bool."""
        form, batch, sets = self._problem(context, sides)
        value, given = self._value_over_set(form) if sets is None else self._over_rows(form, sets, of="value")
        return self._returned(value.reshape(batch), context), given.reshape(batch).to(self.model.device)

    def _problem(
        self, context: ArrayLike | None, sides: dict[str, ArrayLike | None]
    ) -> tuple[ConicForm, tuple[int, ...], SetAt | None]:
        """Return the form, the batch shape, and the sets where they are decided over by their rows.

        They are in the processor's memory where decisions over rows are asked for, or come sooner there.
        """
        contexts = self.model.check_context(context)
        form = self.model.form_at(contexts)
        if form.batch_shape != contexts.shape[:-1]:  # contexts of no numbers
            form = dataclasses.replace(form, batch_shape=tuple(contexts.shape[:-1]))
        form.detach().check()
        given = {name: side for name, side in sides.items() if side is not None}
        if given and not isinstance(self.feasible_set, Polyhedron):
            raise ValueError(f"{next(iter(given))}: {type(self.feasible_set).__name__} has no right-hand sides")
        if not given and type(self.feasible_set) is not Polyhedron:
            if form.linear.device.type != "cpu" and quicker_compiled(form, self.feasible_set):
                form = form.apply(Tensor.cpu)
            return form, form.batch_shape, None
        sets, form = self.feasible_set.at(**given).cpu(), form.apply(Tensor.cpu)
        batch = sets.batch_shape if form.batch_shape == () else form.batch_shape
        if form.size != math.prod(batch):
            form = dataclasses.replace(form, batch_shape=(math.prod(batch),))
        return form, batch, sets.flat(batch)

    def _over_set(self, form: ConicForm) -> tuple[Tensor, Tensor]:
        presolved = self.feasible_set.presolve()
        if presolved.single_point:
            # Part of the graph, with derivatives that are zero.
            return presolved.point.to(form.linear).expand(form.size, -1) + 0.0 * form.constant, _all(form)
        feasible_set = presolved.reduced
        inner, result, units = self._solve(reduced(form, presolved), feasible_set)
        self._gap(result, *units)
        x, given = result.x, _all(form)
        if result.final is not None:
            x, given = self._differentiable(inner, Ends.of(Bounds.of(feasible_set, x)), result)
        return presolved.expand(x), given

    def _value_over_set(self, form: ConicForm) -> tuple[Tensor, Tensor]:
        presolved = self.feasible_set.presolve()
        if presolved.single_point:
            return form.evaluate(presolved.point.to(form.linear).expand(form.size, 1, -1)).squeeze(-1), _all(form)
        feasible_set = presolved.reduced
        inner, result, units = self._solve(reduced(form, presolved), feasible_set)
        plain = inner.detach()

        def gap_of(rows: Tensor, final: Final) -> Tensor:
            ends = Ends.of(Bounds.of(feasible_set, result.x))
            return gap_held(part_of(plain, rows), ends, final, result.value[rows], feasible_set)

        def solve(rows: Tensor, tol: float) -> Final | None:
            return solve_newton(plain.select(rows), feasible_set, **self._options(tol)).final

        return self._held(result, units, lambda final: lagrangian(inner, final), gap_of, solve)

    def _over_rows(self, form: ConicForm, sets: SetAt, *, of: Literal["x", "value"]) -> tuple[Tensor, Tensor]:
        """Return decisions (N, n) or values (N,) over sets, flat, as a function of what form and sets depend on.

        And which have a derivative, (N,).
        """
        keep = torch.is_grad_enabled() and (form.requires_grad or any(side.requires_grad for side in sets.sides))
        free, plain_sets = FreeCoordinates.of(sets), sets.detach()

        def find(form: ConicForm, rows: Tensor | None, tol: float) -> Result:
            some = plain_sets if rows is None else plain_sets.select(rows)
            return minimise_in_free_coordinates(form, some, free.reduction.fixed, **self._options(tol, keep))

        form, result, units = _in_range(form, plain_sets, lambda form: self._found(form, find))
        if free.dim == 0 or form.size == 0:  # nothing to choose: the equalities give x
            x = free.expand(result.x) + 0.0 * form.constant  # part of the graph
            scale, level = units
            found = x if of == "x" else scale * form.evaluate(x.unsqueeze(1)).squeeze(-1) + level
            return found, _all(form)
        inner, ends = free.form(form), free.ends()
        self._improve_bounds(form, plain_sets, result, free.expand(result.x))
        result, plain, held = settle(inner, result), form.detach(), ends.detach()
        if of == "x":
            self._gap(result, *units)
            if result.final is None:
                return free.expand(result.x), _all(form)
            w, given = self._differentiable(inner, ends, result)
            x = free.expand(w)
            # What right-hand sides move of x beside w is a part of a derivative, which one without has none of.
            return torch.where(given.unsqueeze(1), x, x.detach()) if self.skip_undefined else x, given

        def gap_of(rows: Tensor, final: Final) -> Tensor:
            some = part_of(inner.detach(), rows), held.select(rows, form.size)
            return gap_held(*some, final, result.value[rows])

        def solve(rows: Tensor, tol: float) -> Final | None:
            return find(plain.select(rows), rows, tol).final

        return self._held(result, units, lambda final: lagrangian(inner, final, ends), gap_of, solve)

    def _found(self, form: ConicForm, find: Callable[[ConicForm, Tensor | None, float], Result]) -> Result:
        """Return what is found of a detached form to `tol`, or to larger ones where that ends above `max_gap`.

        Without curvature the last steps to a small tolerance can leave the path before a certificate is tried.

        Args:
            form: detached.
            find: a form, which of the instances it has, None for all, and a tolerance -> what iterations find.
        """
        result = find(form, None, self.tol)
        for larger in (tol for tol in EARLIER if tol > self.tol):
            gap = relative_gap(result.value, result.lower_bound)
            rows = torch.nonzero(~(gap <= self.max_gap)).squeeze(1)
            if rows.numel() == 0:
                break
            again = find(form.select(rows), rows, larger)
            better = relative_gap(again.value, again.lower_bound) < gap[rows]
            if again.final is not None:
                better &= again.final.ended
            places = torch.nonzero(better).squeeze(1)
            _put(result, rows[places], again, places)
        return result

    def _improve_bounds(self, form: ConicForm, sets: FeasibleSet | SetAt, result: Result, x: Tensor) -> None:
        improve_bounds(SmoothingNewton(), Problem(form.detach(), sets), result, x.detach(), self.max_gap)

    def _differentiable(self, form: ConicForm, ends: Ends, result: Result) -> tuple[Tensor, Tensor]:
        return differentiable(form, ends, result, self.max_gap, skip=self.skip_undefined)

    def _held(
        self,
        result: Result,
        units: tuple[Tensor, Tensor],
        value_at: Callable[[Final], Tensor],
        gap_of: Callable[[Tensor, Final], Tensor],
        solve: Callable[[Tensor, float], Final | None],
    ) -> tuple[Tensor, Tensor]:
        """Return the values of a result in the user's units, differentiable where multipliers prove them, and where.

        Args:
            result: in units of its own.
            units: those, s and a.
            value_at: the Lagrangian with the multipliers where iterations ended.
            gap_of: instances and where iterations on them ended -> the gaps of these multipliers.
            solve: instances and a tolerance -> where iterations on them end.
        """
        scale, level = units
        value, gap = scale * result.value + level, self._gap(result, scale, level)
        if result.final is None:
            return value, torch.ones_like(value, dtype=torch.bool)

        def relative(rows: Tensor, final: Final) -> Tensor:
            found, of = picker(value.numel(), rows)(scale) * gap_of(rows, final), value[rows]
            return relative_gap(of, of - found)

        final, held = best_final(result.final, self.tol, relative, solve, self.max_gap)
        gap = torch.where(held <= max(self.max_gap, PROVED), gap, held)
        value = Once.apply(scale * value_at(final), value, gap, self.max_gap, self.skip_undefined)
        return value, gap <= self.max_gap

    def _options(self, tol: float, keep: bool = True) -> dict[str, Any]:
        return {"tol": tol, "max_iter": self.max_iter, "keep_final": keep}

    def _gap(self, result: Result, scale: Tensor, level: Tensor) -> Tensor:
        """Return the relative gaps of a result in the user's units, (N,); warn where one is too large."""
        gap = relative_gap(scale * result.value + level, scale * result.lower_bound + level)
        if not self.skip_undefined and not bool((gap <= self.max_gap).all()):
            warnings.warn(  # of one text, so that Python shows it once a place, not in every step of a training
                f"not all decisions are certified to max_gap = {self.max_gap:g}: they may be far from optimal. Raise "
                "max_iter, or look at the status and gap that soctk.minimize gives each of them",
                UncertifiedWarning,
                stacklevel=6,  # what calls the layer, its `optimal_value`, or a loss of it
            )
        return gap

    def _returned(self, found: Tensor, context: ArrayLike | None) -> Tensor:
        """Return what was found in the dtype of contexts and weights, on the model's device."""
        dtype = torch.promote_types(self.model.check_context(context).dtype, self.model.dtype)
        return found.to(self.model.device, dtype)

    def _solve(self, form: ConicForm, feasible_set: FeasibleSet) -> tuple[ConicForm, Result, tuple[Tensor, Tensor]]:
        keep = torch.is_grad_enabled() and form.requires_grad

        def find(form: ConicForm, _: Tensor | None, tol: float) -> Result:
            return solve_newton(form, feasible_set, **self._options(tol, keep))

        form, result, units = _in_range(form, feasible_set, lambda form: self._found(form, find))
        self._improve_bounds(form, feasible_set, result, result.x)
        return form, settle(form, result), units


def _in_range(
    form: ConicForm, feasible_set: FeasibleSet | SetAt, solve: Callable[[ConicForm], Result]
) -> tuple[ConicForm, Result, tuple[Tensor, Tensor]]:
    """Return a form and what is found of it: (f - a) / s where f hardly varies; and s and a, (N,) each.

    Where a set is so narrow that the iterations do not end in that unit, f is left as it is.

    Raises:
        RuntimeError: points that are outside of their sets, which leave no room for the iterations.
    """
    with torch.no_grad():
        result = solve(form.detach())
        units = units_of_range(form.detach(), feasible_set, result) if form.size > 0 else None
    if units is None:
        scale, level = form.constant.new_ones(1), form.constant.new_zeros(1)
    else:
        scale, level = units
        with torch.no_grad():
            found = solve(in_units(form.detach(), scale, level))
        worse = ~(scale * (found.value - found.lower_bound) <= result.value - result.lower_bound)
        if found.final is not None:
            worse |= ~found.final.ended
        kept = torch.nonzero(worse).squeeze(1)
        _put(found, kept, result, kept)
        scale, level = scale.index_fill(0, kept, 1.0), level.index_fill(0, kept, 0.0)
        form, result = in_units(form, scale, level), found
    _refuse_outside(torch.nonzero(result.value == torch.inf).squeeze(1), form.size)
    return form, result, (scale, level)


def _all(form: ConicForm) -> Tensor:
    """Return that every instance has a derivative, (N,)."""
    return form.constant.new_ones(form.size, dtype=torch.bool)


def _put(found: Result, rows: Tensor, other: Result, places: Tensor) -> None:
    """Overwrite the instances `rows` by those of another result at `places`."""
    for name in ("x", "value", "lower_bound"):
        getattr(found, name)[rows] = getattr(other, name)[places]
    if found.final is not None and rows.numel() > 0:
        found.final.put(rows, picker(other.x.shape[0], places)(other.final))


def _refuse_outside(rows: Tensor, size: int) -> None:
    if rows.numel() > 0:
        raise RuntimeError(
            f"{rows.numel()} of {size} decisions were not found ({named(rows)}): the iterations ended outside of their "
            "sets, which leave too little room for this tol. A larger tol or max_iter, or soctk.minimize, may find them"
        )
