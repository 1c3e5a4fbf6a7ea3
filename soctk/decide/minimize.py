"""`soctk.minimize`: one decision for each context, each with a certified gap."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from soctk.checks import ArrayLike
from soctk.decide.answer import answer, chosen_solver
from soctk.decide.arguments import (
    check_arguments,
    check_constraints,
    check_integer,
    check_limits,
    check_scale,
    check_start,
    sets_by_rows,
)
from soctk.decide.branch_and_bound import BranchAndBound
from soctk.decide.choice import FIRST_ORDER, NEWTON, NEWTON_CG, default_solver
from soctk.decide.constrained import Constraint, decide_under
from soctk.decide.decision import Decision
from soctk.decide.external import External
from soctk.decide.modes import warn_in_training, without_derivatives
from soctk.decide.problem import Limits, Problem
from soctk.decide.protocol import PaperProtocol
from soctk.decide.solver import Solver
from soctk.function import ConvexFunction
from soctk.sets import FeasibleSet, SetAt
from soctk.sets.elastic import nearest
from soctk.status import Status

Method = Literal["newton", "newton_cg", "first_order", "cvxpy", "projected_gradient", "projected_adam"]
METHODS: tuple[Method, ...] = get_args(Method)
OPTIONS: dict[str, dict[str, str]] = {
    "cvxpy": {"solver": "solver", "solver_options": "options"},
    "projected_gradient": {"seed": "seed"},
    "projected_adam": {"seed": "seed"},
}
"""For methods with options of their own what their solvers call the keywords of `minimize`."""


@without_derivatives
def minimize(
    model: ConvexFunction,
    feasible_set: FeasibleSet | SetAt,
    context: ArrayLike | None = None,
    *,
    tol: float = 1e-6,
    max_iter: int | None = None,
    time_limit: float | None = None,
    method: Method | Solver | None = None,
    x0: ArrayLike | Decision | None = None,
    solver: str | None = None,
    solver_options: dict[str, Any] | None = None,
    seed: int | None = None,
    scale: ArrayLike | None = None,
    infeasible: Literal["status", "nearest"] = "status",
    subject_to: Sequence[ConvexFunction | tuple[ConvexFunction, ArrayLike]] = (),
    integer: bool | Sequence[int] = False,
) -> Decision:
    """Minimise f(., context) over the set, for every context of the batch.

    Args:
        model: the surrogate; certified methods need one with a conic form.
        feasible_set: a set of the model's dimension; or `feasible_set.at(...)`, a set of its own for each context,
            whose batch shape is the contexts', or one of the two is ().
        context: (*batch, p), or None where p = 0.
        tol: relative gap to reach, (value - lower bound) / max(1, |value|), or in units of `scale`. Where f varies over
            the set by less than a thousandth of max(1, |value|), the unit is 1,000 times that range.
        max_iter: the most iterations of the method for each instance: Newton steps (60 by default; 200 by conjugate
            gradients), gradient steps (20,000), descent steps (200), or the outside solver's own.
        time_limit: seconds for the whole call, after which no iteration begins; the best feasible points and honest
            gaps are returned. What has begun ends, an iteration of the whole batch and the bounds: for thousands of
            contexts of hundreds of variables tenths of a second, seconds while PyTorch decides.
        method: a solver object, or the name of one with its usual options: "newton" (`SmoothingNewton`, certified);
            "newton_cg" (`NewtonCG`, the same by conjugate gradients, for thousands of variables between bounds);
            "first_order" (`FirstOrder`: accelerated gradients, certified, for thousands of variables on any set);
            "cvxpy" (`External`: an outside solver on the lift, verified); "projected_gradient" and "projected_adam"
            (`PaperProtocol`: 5 restarts of 200 steps). By default "newton", up to 500 variables and up to 2,000 over
            polyhedra with more rows than a sum; beyond "newton_cg" between bounds and without a network, "first_order"
            elsewhere; "cvxpy" for a model that brings its own CVXPY expression, and up to 500 variables for a set
            without rows.
        x0: (*batch, n) points to start from, or the `Decision` of similar contexts; the set's centre by default.
        solver: of "cvxpy" alone: the name of any installed solver; by default that of `External`.
        solver_options: of "cvxpy" alone: keywords for `cp.Problem.solve`.
        seed: of the paper's protocol alone: of its random restarts, 0 by default.
        scale: the unit that gaps are measured in, positive, a number or (*batch): where values differ by much less than
            1, their standard deviation over the decisions in question. By default as said at `tol`.
        infeasible: what to do where right-hand sides leave no point: "status" says so, with a proof in `Decision.ray`;
            "nearest" moves rows as little as need be, in the sum of the moves, and says by how much. What a time limit
            leaves no time for stays "infeasible".
        subject_to: learned constraints, surrogates g of the same decision and context with g(x, context) <= 0, or pairs
            (g, level), a number or one for each context (*batch), with g(x, context) <= level. One is decided by a
            search for its multiplier, for all contexts at once, several by Clarabel, certified by us
            (`soctk.decide.constrained`), over one set for all contexts. Without `x0`, `method`, `max_iter`,
            `infeasible` and prices, in float64. Met to 1e-7 of the numbers that g(x) is a sum of.
            `Decision.multipliers` say what it costs to tighten one.
        integer: the indices of coordinates that have to be whole numbers, or True for all. Decided by branch and bound
            (`soctk.decide.branch_and_bound`), with the gap and the bound of any decision, over sets with rows and
            without `method`, `infeasible`, `subject_to` and prices. `max_iter` and `Decision.iterations` count nodes
            then, 10,000 at most by default.

    What "newton" leaves short of `tol` is solved once more by "cvxpy", what "newton_cg" leaves by "first_order", and
    up to 2,000 variables what the default has left after 2,000 gradient steps by "newton"; but not an instance that ran
    into a `max_iter` below the default. `Decision.solver` says whose answer each one has.
    The Newton method is compiled when it is first needed, and once more for 32 contexts or more; the code is kept on
    disk (`soctk.decide.compiled.first_use`).

    Returns:
        `Decision`, in the higher of the context's and the weights' precision. Computed in float64 where there is a
        conic form; in float32 a point is then valued as it is returned, values are rounded up and bounds down. The
        statuses follow from what is returned: value, bound, violation, and why the solver stopped.

    Raises:
        ValueError: bad shapes, non-finite numbers, a non-positive limit or tolerance, an unknown method, an option that
            the method does not have.
        NotImplementedError: a method that cannot solve the problem; the message says which can.
    """
    started = time.perf_counter()
    check_arguments(model, feasible_set)
    check_limits(tol, max_iter, time_limit)
    if columns := check_integer(integer, model.dim):
        if method is not None or infeasible != "status" or subject_to:
            raise ValueError("integer: expected neither method, infeasible nor subject_to beside it")
        feasible_set = sets_by_rows(feasible_set)
    make = _solver(method, {"solver": solver, "solver_options": solver_options, "seed": seed})
    if columns:
        make = _solver(BranchAndBound(columns), {})
    if infeasible not in ("status", "nearest"):
        raise ValueError(f'infeasible: expected "status" or "nearest", got {infeasible!r}')
    contexts = model.check_context(context)
    batch = tuple(contexts.shape[:-1])
    if isinstance(feasible_set, SetAt):
        contexts, batch, feasible_set = spread(model, contexts, batch, feasible_set)
    problem = Problem.at(model, model.context_rows(contexts), feasible_set, check_scale(scale, batch, model))
    problem.size = math.prod(batch)
    constraints: list[Constraint] = []
    if subject_to:
        alone = method is x0 is max_iter is None and infeasible == "status"
        if not alone:
            raise ValueError("subject_to: expected neither method, x0, max_iter nor infeasible beside it")
        if isinstance(feasible_set, SetAt) and len(subject_to) > 1:
            raise NotImplementedError(
                "subject_to: several constraints are decided over one set for all contexts; over right-hand sides of "
                "each context one is"
            )
        constraints = check_constraints(subject_to, model, batch)
        for k, constraint in enumerate(constraints):
            warn_in_training(constraint.function, f"subject_to[{k}]", stacklevel=4)
    limits = Limits.of(started, tol, max_iter, time_limit)
    if constraints:
        return decide_under(problem, constraints, limits, batch, started)
    start = check_start(x0, problem, batch)
    chosen = chosen_solver(problem, make)
    decision = answer(problem, chosen, limits, start, batch, started)
    if infeasible == "nearest" and isinstance(feasible_set, SetAt):
        return _nearest(decision, problem, chosen, limits, batch, started)
    return decision


def spread(
    model: ConvexFunction, contexts: Tensor, batch: tuple[int, ...], sets: SetAt
) -> tuple[Tensor, tuple[int, ...], SetAt]:
    """Return contexts and sets, flat and detached, of the batch shape that they have together, and that."""
    if batch == () and sets.batch_shape != ():
        batch = sets.batch_shape
        contexts = contexts.expand(*batch, -1) if model.context_dim > 0 else contexts
    return contexts, batch, sets.flat(batch).detach()


def _nearest(
    decision: Decision,
    problem: Problem,
    solver: Solver | None,
    limits: Limits,
    batch: tuple[int, ...],
    started: float,
) -> Decision:
    """Return a decision with those that are infeasible made over the nearest sets that are not empty."""
    moved = torch.zeros(batch, dtype=torch.float64)
    empty = torch.from_numpy(np.flatnonzero(decision.status == Status.INFEASIBLE))
    if empty.numel() > 0:
        assert problem.model is not None
        assert isinstance(problem.feasible_set, SetAt)
        sets, moves, _, _ = nearest(problem.feasible_set.select(empty), limits.deadline)
        moved.reshape(-1)[empty] = moves
        reached = ~moved.reshape(-1)[empty].isnan()
        sets, empty = sets.select(reached.nonzero().flatten()), empty[reached]
    if empty.numel() > 0:
        assert problem.model is not None
        contexts = problem.contexts[empty] if problem.model.context_dim > 0 else problem.contexts
        part = Problem.at(problem.model, contexts, sets, None if problem.unit is None else problem.unit[empty])
        part.size = empty.numel()
        decision = decision.replaced(empty, answer(part, solver, limits, None, (empty.numel(),), started))
    seconds = time.perf_counter() - started
    return dataclasses.replace(decision, relaxation=moved.to(decision.value), seconds=seconds)


def _solver(method: Method | Solver | None, options: dict[str, Any]) -> Callable[[Problem], Solver]:
    """Return what gives a problem its solver, once it is known that the method has the options that are not None."""
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(method, Solver):
        if given:
            kind = type(method).__name__
            raise ValueError(f"{next(iter(given))}: a solver object has options of its own; give it to {kind}(...)")
        return lambda problem: method
    if method is not None and method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)} or a solver object, got {method!r}")
    own = OPTIONS.get(method or "", {})
    for name in given:
        if name not in own:
            takers = " and ".join(f'"{taker}"' for taker, names in OPTIONS.items() if name in names)
            raise ValueError(f"{name}: an option of method={takers}, got method={method!r}")
    if method is None:
        return default_solver
    keywords = {own[name]: value for name, value in given.items()}
    if method == "cvxpy":
        made: Solver = External(**keywords)
    elif method in ("projected_gradient", "projected_adam"):
        made = PaperProtocol(method, **keywords)
    else:
        made = {solver.name: solver for solver in (NEWTON, NEWTON_CG, FIRST_ORDER)}[method]
    return lambda problem: made
