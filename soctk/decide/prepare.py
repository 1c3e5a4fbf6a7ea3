"""`soctk.prepare`: a model and a set for many decisions one at a time, each with the least delay."""

from __future__ import annotations

import copy
import math
import time

import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike
from soctk.decide.answer import answer, chosen_solver
from soctk.decide.arguments import check_arguments, check_limits, check_start
from soctk.decide.choice import default_solver
from soctk.decide.decision import Decision
from soctk.decide.minimize import spread
from soctk.decide.modes import without_derivatives
from soctk.decide.newton import SmoothingNewton
from soctk.decide.packed_model import PackedForm, PackedModel
from soctk.decide.problem import Limits, Problem
from soctk.function import ConvexFunction
from soctk.sets import FeasibleSet, Polyhedron, SetAt
from soctk.sets.at import NAMES
from soctk.sets.given import ENDLESS

RIGHT_HAND_SIDES = ("total", *NAMES)
"""What `Polyhedron.at` takes."""


def prepare(model: ConvexFunction, feasible_set: FeasibleSet) -> Prepared:
    """Return a model and a set made ready for decisions: what no context changes is computed once, now.

    Whatever becomes of the model afterwards changes nothing in the decisions: they are those of its weights as they
    are now. Every surrogate can be prepared; those with a context map (the dense models) or without a context gain by
    it, up to 500 variables.

    Args:
        model: the surrogate.
        feasible_set: a set of its dimension.

    Raises:
        ValueError: the set has another dimension, or a weight is not finite or makes the function non-convex.
        NotImplementedError: what would decide by default cannot; the message says what can.
    """
    return Prepared(model, feasible_set)


class Prepared:
    """What `prepare` returns.

    Attributes:
        model: a copy of the model; not to be changed.
        feasible_set: the set.
        solver: what decides.
        packed: the model as the compiled method takes it; None where that does not decide.
    """

    def __init__(self, model: ConvexFunction, feasible_set: FeasibleSet) -> None:
        check_arguments(model, feasible_set)
        self.feasible_set = feasible_set
        self.packed: PackedModel | PackedForm | None = None
        with torch.inference_mode(False), torch.no_grad():  # it may outlive an inference mode
            self.model = copy.deepcopy(model).requires_grad_(False)
            usual = self._problem(self.model.context_mean, feasible_set)
            self.solver = chosen_solver(usual, default_solver)
            if isinstance(self.solver, SmoothingNewton):
                self.packed = PackedModel.of(self.model) or PackedForm.of(self.model)
            if self.packed is not None:
                usual.form.check()  # whatever is wrong with the weights is found now

    def _problem(self, contexts: Tensor, feasible_set: FeasibleSet | SetAt) -> Problem:
        problem = Problem.at(self.model, self.model.context_rows(contexts), feasible_set)
        problem.packed = self.packed
        return problem

    @without_derivatives
    def minimize(
        self,
        context: ArrayLike | None = None,
        *,
        tol: float = 1e-6,
        max_iter: int | None = None,
        time_limit: float | None = None,
        x0: ArrayLike | Decision | None = None,
        **sides: ArrayLike,
    ) -> Decision:
        """Return what `soctk.minimize(model, feasible_set, context, ...)` returns, to the last bit.

        Args:
            context: (*batch, p), or None where p = 0.
            tol, max_iter, time_limit, x0: as `soctk.minimize`'s.
            sides: right-hand sides of their own for each context, as `Polyhedron.at` takes them: `total=demand`. The
                decision is then that over `feasible_set.at(...)`.

        Raises:
            TypeError: right-hand sides that a set does not have.
            ValueError: as `soctk.minimize`, and as `Polyhedron.at`.
        """
        started = time.perf_counter()
        check_limits(tol, max_iter, time_limit)
        plain = self.packed is not None and is_plain(context, self.model.context_dim)
        contexts: Tensor = context if plain else self.model.check_context(context)
        batch = tuple(contexts.shape[:-1])
        sets: FeasibleSet | SetAt = self.feasible_set
        if sides:
            other = [name for name in sides if name not in RIGHT_HAND_SIDES]
            if other:
                names = ", ".join(RIGHT_HAND_SIDES)
                raise TypeError(f"{other[0]}: expected right-hand sides ({names}); soctk.minimize has more options")
            if not isinstance(sets, Polyhedron):
                raise TypeError(f"{next(iter(sides))}: {type(sets).__name__} has no right-hand sides")
            contexts, batch, sets = spread(self.model, contexts, batch, _at(sets, sides))
        problem, solver = self._problem(contexts, sets), self.solver
        problem.size = math.prod(batch)
        if self.model.context_dim == 0 and not sides and batch != ():
            problem.packed = None  # it is of one function
        if isinstance(sets, SetAt) and solver is not None and not solver.takes_sets_at:
            solver = chosen_solver(problem, default_solver)
        limits = Limits.of(started, tol, max_iter, time_limit)
        return answer(problem, solver, limits, check_start(x0, problem, batch), batch, started)


def is_plain(value: ArrayLike, count: int, below: float = math.inf) -> bool:
    """Whether it is what the checks of contexts and right-hand sides let pass as it is: nearly always.

    Numbers are below `below` in size.
    """
    if type(value) is not Tensor or value.dtype != torch.float64 or value.ndim != 2 or value.requires_grad:
        return False
    if value.shape[1] != count or count == 0 or not value.is_cpu or value.layout != torch.strided:
        return False
    return bool((np.abs(value.numpy()) < below).all())


def _at(sets: Polyhedron, sides: dict[str, ArrayLike]) -> SetAt:
    """Return `sets.at(**sides)`, sooner where f and h are plain."""
    rows = sets.rows()
    f, h = sides.get("f", rows.f), sides.get("h", rows.h)
    counts = {"f": rows.f.shape[0], "h": rows.h.shape[0]}
    plain = all(name in counts and is_plain(side, counts[name], ENDLESS) for name, side in sides.items())
    if not plain or len({len(side) for side in sides.values()}) > 1:
        return sets.at(**sides)
    return SetAt(sets, rows.lower, rows.upper, f, h)
