"""Certificates: how far a decision can be from the best one, for a decision that came from anywhere.

Any dual point (a y for each term) gives a rigorous lower bound of the minimum over the set
(`ConicForm.bound`). At a given x the natural dual is the subgradient there, and the gap it gives is exactly
the Frank-Wolfe gap max over y in the set of g'(x - y). Where f has a kink at x, one subgradient can be a poor
dual, and so can the slopes of f smoothed by a few widths mu, which are tried next; an instance that they leave in
doubt is solved, for the bound of its solution.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor, check_last_dim, check_positive
from soctk.decide.arguments import check_arguments
from soctk.decide.bounds import best_bound, frank_wolfe_gap
from soctk.decide.choice import default_solver
from soctk.decide.decision import certified_gap, relative_gap
from soctk.decide.modes import without_derivatives
from soctk.decide.problem import Limits, Problem
from soctk.forms.conic_form import ConicForm
from soctk.function import ConvexFunction
from soctk.sets import FeasibleSet, SetAt
from soctk.sets.rounding import directed

BOUND_TOLERANCE = 1e-8


@dataclass(frozen=True, eq=False)
class Certificate:
    """value >= minimum >= lower_bound, each (*batch); `violation` is that of the point's constraints.

    What is given in float32 was computed in float64, values rounded up and bounds down. The bound is one of the
    function that the weights' numbers define (`soctk.forms.rounding`).
    """

    value: Tensor
    lower_bound: Tensor
    violation: Tensor

    @property
    def gap(self) -> Tensor:
        """value - lower_bound, (*batch); inf where the value lies below the bound, as outside of the set it may."""
        return certified_gap(self.value, self.lower_bound)

    @property
    def relative_gap(self) -> Tensor:
        """gap / max(1, |value|), (*batch)."""
        return relative_gap(self.value, self.lower_bound)


@without_derivatives
def certify(
    model: ConvexFunction,
    feasible_set: FeasibleSet | SetAt,
    x: ArrayLike,
    context: ArrayLike | None = None,
    *,
    tol: float = 1e-6,
    time_limit: float | None = None,
) -> Certificate:
    """Return the certificate of decisions x that came from anywhere.

    Args:
        model: the surrogate that is minimised.
        feasible_set: the set it is minimised over, or one for each point (`Polyhedron.at`).
        x: (*batch, n).
        context: (*batch, p), or None where p = 0.
        tol: relative gap below which closed-form bounds are good enough; above it the minimum itself is looked for.
            `inf` for closed-form bounds alone.
        time_limit: seconds after which no minimum is looked for any longer; bounds are as rigorous then, only lower.

    Returns:
        `Certificate` with tensors (*batch). The gap is rigorous for any x; it is an optimality gap of x only
        where `violation` is negligible.

    Raises:
        ValueError: a bad x, context, tolerance or time limit.
    """
    started = time.perf_counter()
    check_arguments(model, feasible_set)
    check_positive(tol, "tol")
    if time_limit is not None:
        check_positive(time_limit, "time_limit")
    limits = Limits.of(started, BOUND_TOLERANCE, time_limit=time_limit)
    points = as_tensor(x, "x")
    check_last_dim(points, feasible_set.dim, "x")
    points = points.to(torch.promote_types(points.dtype, model.dtype))
    if isinstance(feasible_set, SetAt):
        try:
            batch = tuple(torch.broadcast_shapes(points.shape[:-1], feasible_set.batch_shape))
        except RuntimeError:
            raise ValueError(
                f"x: expected points of batch shape {feasible_set.batch_shape} as the right-hand sides', "
                f"got {tuple(points.shape[:-1])}"
            ) from None
        points = points.expand(*batch, -1)
    violation = feasible_set.violation(points)
    if isinstance(feasible_set, SetAt):
        feasible_set = feasible_set.flat(tuple(points.shape[:-1])).detach()
    if not model.has_conic_form:
        if isinstance(feasible_set, SetAt):
            raise NotImplementedError(f"{model.without_form()}; certify over one set at a time")
        value = model(points, context)
        return Certificate(value, value - frank_wolfe_gap(model, feasible_set, points, context), violation)
    form = model.conic_form(context)
    if isinstance(feasible_set, SetAt) and form.batch_shape == ():
        form = dataclasses.replace(form, batch_shape=tuple(points.shape[:-1]))
    value = form.value(points)
    internal = points.to(form.dtype).reshape((-1, 1, model.dim) if form.batch_shape else (1, -1, model.dim))
    lower = best_bound(form, feasible_set, internal).expand(internal.shape[:2])  # an affine f has one for all
    lower = lower.reshape(value.shape)
    doubtful = relative_gap(value, lower) > tol
    if bool(doubtful.any()):
        lower = torch.where(doubtful, torch.maximum(lower, _solved_bound(form, feasible_set, doubtful, limits)), lower)
    return Certificate(directed(value, points.dtype, torch.inf), directed(lower, points.dtype, -torch.inf), violation)


def _solved_bound(form: ConicForm, feasible_set: FeasibleSet | SetAt, wanted: Tensor, limits: Limits) -> Tensor:
    """Return bounds from solving the wanted instances, -inf for the others; points of one function share its bound."""
    shared = form.batch_shape == ()
    index = torch.nonzero(wanted.reshape(-1)).squeeze(-1)
    sets = feasible_set.select(index) if isinstance(feasible_set, SetAt) else feasible_set
    problem = Problem(form if shared else form.select(index), sets)
    solver = default_solver(problem)
    parts = torch.arange(problem.size, device=wanted.device).split(solver.at_once(problem))
    bound = torch.full(wanted.shape, -torch.inf, dtype=form.dtype, device=wanted.device).reshape(-1)
    bound[index] = torch.cat([solver.solve(problem.select(part), limits).lower_bound for part in parts])
    return bound.reshape(wanted.shape)
