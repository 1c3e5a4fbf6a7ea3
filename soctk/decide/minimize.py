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

from soctk.checks import ArrayLike, as_array, as_tensor, check_count, check_last_dim, check_positive
from soctk.decide.choice import FIRST_ORDER, NEWTON, NEWTON_CG, default_solver
from soctk.decide.constrained import check_constraints, decide_under
from soctk.decide.decision import Decision, Prices, Ray
from soctk.decide.external import External
from soctk.decide.fallback import put_points
from soctk.decide.newton import SmoothingNewton
from soctk.decide.pieces import PIECE, side_by_side
from soctk.decide.problem import Limits, Problem
from soctk.decide.protocol import PaperProtocol
from soctk.decide.ranges import solve_in_range
from soctk.decide.result import Result
from soctk.decide.solver import Solver
from soctk.forms.rounding import directed
from soctk.function import ConvexFunction, check_function
from soctk.sets import FeasibleSet, Polyhedron, SetAt
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
FEASIBLE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""What rounding may put a point outside of a set by, in units of its numbers: sums of 1,000 of them."""

AS_PROJECTED = {torch.float64: 1e-12, torch.float32: 1e-6}
"""What a projection may leave a point outside of a set by, in the same units."""


@torch.no_grad()
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
    subject_to: Sequence[ConvexFunction] = (),
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
        time_limit: seconds for the whole call; the best feasible points and honest gaps are returned.
        method: a solver object, or the name of one with its usual options: "newton" (`SmoothingNewton`, certified);
            "newton_cg" (`NewtonCG`, the same by conjugate gradients, for thousands of variables between bounds);
            "first_order" (`FirstOrder`: accelerated gradients, certified, for thousands of variables on any set);
            "cvxpy" (`External`: an outside solver on the lift, verified); "projected_gradient" and "projected_adam"
            (`PaperProtocol`: 5 restarts of 200 steps). By default "newton"; beyond 500 variables "newton_cg" between
            bounds and without a network, "first_order" elsewhere; "cvxpy" for a model that brings its own CVXPY
            expression, and up to 500 variables for a set without rows.
        x0: (*batch, n) points to start from, or the `Decision` of similar contexts; the set's centre by default.
        solver: of "cvxpy" alone: the name of any installed solver, "CLARABEL" by default.
        solver_options: of "cvxpy" alone: keywords for `cp.Problem.solve`.
        seed: of the paper's protocol alone: of its random restarts, 0 by default.
        scale: the unit that gaps are measured in, positive, a number or (*batch): where values differ by much less than
            1, their standard deviation over the decisions in question. By default as said at `tol`.
        infeasible: what to do where right-hand sides leave no point: "status" says so, with a proof in `Decision.ray`;
            "nearest" moves rows as little as need be, in the sum of the moves, and says by how much. What a time limit
            leaves no time for stays "infeasible".
        subject_to: learned constraints, surrogates g of the same decision and context with g(x, context) <= 0; decided
            by Clarabel and certified by us (`soctk.decide.constrained`), over one set for all contexts, without `x0`,
            `method`, `max_iter`, `infeasible` and prices, in float64. Met to 1e-7 of the numbers that g(x) is a sum of.

    What "newton" leaves short of `tol` is solved once more by Clarabel, what "newton_cg" leaves by "first_order"; but
    not an instance that ran into a `max_iter` below the default. `Decision.solver` says whose answer each one has.
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
    make = _solver(method, {"solver": solver, "solver_options": solver_options, "seed": seed})
    if infeasible not in ("status", "nearest"):
        raise ValueError(f'infeasible: expected "status" or "nearest", got {infeasible!r}')
    contexts = model.check_context(context)
    batch = tuple(contexts.shape[:-1]) if model.context_dim > 0 else ()
    if isinstance(feasible_set, SetAt):
        contexts, batch, feasible_set = spread(model, contexts, batch, feasible_set)
    problem = Problem.at(model, model.context_rows(contexts), feasible_set, _check_scale(scale, batch, model))
    problem.size = math.prod(batch)
    if subject_to:
        alone = method is x0 is max_iter is None and infeasible == "status"
        if isinstance(feasible_set, SetAt) or not alone:
            refused = "neither method, x0, max_iter nor infeasible beside it"
            raise ValueError(f"subject_to: expected one feasible set, and {refused}")
        check_constraints(subject_to, model)
    limits = Limits(tol, max_iter, float("inf") if time_limit is None else started + time_limit)
    if subject_to and problem.size > 0:
        return decide_under(problem, subject_to, limits, batch, started)
    start = check_start(x0, problem, batch)
    solver = chosen_solver(problem, make)
    decision = answer(problem, solver, limits, start, batch, started)
    if infeasible == "nearest" and isinstance(feasible_set, SetAt):
        return _nearest(decision, problem, solver, limits, batch, started)
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
        contexts = problem.contexts[empty] if problem.model.context_dim > 0 else problem.contexts
        part = Problem.at(problem.model, contexts, sets, None if problem.unit is None else problem.unit[empty])
        part.size = empty.numel()
        decision = decision.replaced(empty, answer(part, solver, limits, None, (empty.numel(),), started))
    seconds = time.perf_counter() - started
    return dataclasses.replace(decision, relaxation=moved.to(decision.value), seconds=seconds)


def chosen_solver(problem: Problem, make: Callable[[Problem], Solver]) -> Solver | None:
    """Return the solver that `make` gives a problem; None for one without instances.

    Raises:
        NotImplementedError: it refuses the problem; the message says why.
    """
    if problem.size == 0:
        return None
    solver = make(problem)
    if isinstance(problem.feasible_set, SetAt) and not solver.takes_sets_at:
        refused = f'method "{solver.name}" decides over one set for all contexts; use "newton" or "cvxpy"'
    else:
        refused = solver.refuses(problem)
    if refused is not None:
        raise NotImplementedError(refused)
    return solver


def answer(
    problem: Problem,
    solver: Solver | None,
    limits: Limits,
    start: Tensor | None,
    batch: tuple[int, ...],
    started: float,
) -> Decision:
    """Return the verified answer of a problem's solver in the contexts' batch shape.

    Args:
        problem: the functions and the set.
        solver: one that does not refuse it; None where there are no instances.
        limits: how far that may go.
        start: (N, n), or None.
        batch: the contexts' batch shape.
        started: the `time.perf_counter()` value at the user's call.
    """
    assert problem.model is not None
    if isinstance(solver, SmoothingNewton) and problem.size > PIECE and problem.device.type == "cpu":

        def one(part: slice) -> Decision:
            begin = None if start is None else start[part]
            return answer(problem.piece(part), solver, limits, begin, (part.stop - part.start,), started)

        return Decision.joined(list(side_by_side(one, problem.size)), batch, time.perf_counter() - started)
    dtype = torch.promote_types(problem.contexts.dtype, problem.model.dtype)
    if solver is None or problem.size == 0:
        result = Result.unanswered(torch.zeros(0, problem.dim, dtype=problem.dtype, device=problem.device))
    else:
        # Rounding the answer costs a little of the gap, for which half of the tolerance is left.
        tol = limits.tol if dtype == problem.dtype else 0.5 * limits.tol
        inner = limits if tol == limits.tol else dataclasses.replace(limits, tol=tol)
        result = solver.solve(problem, inner, start)
        put_points(result, problem, start)
        solve_in_range(solver, problem, inner, start, result)
    if dtype != problem.dtype:
        _round(result, problem, dtype)
    violation, flat = _verify(result, problem.feasible_set, limits.tol), batch == result.status.shape
    solver_names = np.empty(result.status.shape, dtype=object)
    solver_names[:] = result.solver

    def shaped(part: Any) -> Any:
        return part if flat else part.reshape(batch + part.shape[1:])

    return Decision(
        x=shaped(result.x),
        value=shaped(result.value),
        lower_bound=shaped(result.lower_bound),
        status=shaped(result.status),
        iterations=shaped(result.iterations),
        seconds=time.perf_counter() - started,
        scale=None if result.unit is None else shaped(result.unit),
        solver=shaped(solver_names),
        violation=shaped(violation),
        context=problem.given,
        support=problem.model.support,
        **_of_rows(result, problem, batch, dtype),
    )


def _of_rows(result: Result, problem: Problem, batch: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Return what `Decision` says of a polyhedron's rows, nothing where they are not known."""
    if result.rows is None:
        return {}
    sets = problem.by_rows().feasible_set
    assert isinstance(sets, SetAt)
    rows, none = result.rows, None if result.all_optimal else result.status == Status.INFEASIBLE
    prices = np.maximum(rows.w, 0.0), np.minimum(rows.w, 0.0), -rows.nu, -rows.z
    for part, side in zip(prices[:2], sets.arrays.sides, strict=False):
        endless = np.isinf(side)
        if endless.any():
            part[np.broadcast_to(endless, part.shape)] = 0.0
    ray = np.zeros(rows.nu.shape), np.zeros(rows.z.shape)
    if none is not None:
        for part in prices:
            part[none | np.isinf(as_array(result.lower_bound))] = np.nan
        ray[0][none], ray[1][none] = rows.nu[none], rows.z[none]
    shaped = [torch.from_numpy(part.reshape(batch + part.shape[1:])) for part in (*prices, *ray)]
    if dtype != shaped[0].dtype:
        shaped[:4] = [part.to(dtype) for part in shaped[:4]]
    return {"prices": Prices(*shaped[:4]), "ray": Ray(*shaped[4:])}


def _round(result: Result, problem: Problem, dtype: torch.dtype) -> None:
    """Bring the points to a lower precision and value them there; round values up and bounds down."""
    answered = torch.isfinite(result.x).all(dim=-1)
    points = torch.where(answered.unsqueeze(-1), result.x, problem.center).to(dtype)
    if not isinstance(problem.feasible_set, SetAt):  # that would be a projection for each, and moves by rounding alone
        points = problem.feasible_set._project(points)
    value = problem.evaluate(points.to(problem.dtype).unsqueeze(1)).squeeze(-1)
    result.x = torch.where(answered.unsqueeze(-1), points, torch.nan)
    result.value = directed(torch.where(answered, value, result.value), dtype, torch.inf)
    result.lower_bound = directed(result.lower_bound, dtype, -torch.inf)
    result.unit = None if result.unit is None else result.unit.to(dtype)


def _verify(result: Result, feasible_set: FeasibleSet | SetAt, tol: float) -> Tensor:
    """Return how far points are outside of the set as the user gave it; settle the statuses by that and the gaps."""
    result.judge(tol)
    worst, share = (_excess_of_rows if _by_compiled_rows(result) else _excess)(feasible_set, result.x)
    outside = share > FEASIBLE[result.x.dtype]
    if outside.any():
        result.status[outside] = Status.INACCURATE
    return torch.from_numpy(worst).to(result.x)


def _excess(feasible_set: FeasibleSet | SetAt, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much points (N, n) violate the set, and that in units of its numbers, (N,) each."""
    if not isinstance(feasible_set, (SetAt, Polyhedron)):
        worst = as_array(feasible_set._violation(x))
        return worst, worst / max(1.0, feasible_set.magnitude)
    worst, share = feasible_set.arrays.excess(as_array(x))
    by_rows = isinstance(feasible_set, SetAt) or type(feasible_set) is Polyhedron
    return worst, share if by_rows else worst / max(1.0, feasible_set.magnitude)


def _by_compiled_rows(result: Result) -> bool:
    """Whether all points are float64 and come from compiled code that decided by rows."""
    newton = isinstance(result.solver, str) and result.solver == NEWTON.name
    return newton and result.rows is not None and result.x.dtype == torch.float64


def _excess_of_rows(sets: FeasibleSet | SetAt, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the same over what `Problem.by_rows` is, in compiled code, which is loaded already."""
    from soctk.decide.compiled.original_rows import violations

    assert isinstance(sets, (SetAt, Polyhedron))
    return violations(sets.arrays, as_array(x))


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


def check_start(x0: ArrayLike | Decision | None, problem: Problem, batch: tuple[int, ...]) -> Tensor | None:
    """Return points to start from as the solvers take them, (N, n) in the set."""
    if x0 is None:
        return None
    if isinstance(x0, Decision):  # an infeasible one has no point
        x0 = torch.where(torch.isfinite(x0.x), x0.x, 0.0)
    start = as_tensor(x0, "x0").to(device=problem.device, dtype=problem.dtype)
    check_last_dim(start, problem.dim, "x0")
    if tuple(start.shape[:-1]) != batch:
        raise ValueError(f"x0: expected batch shape {batch} as the contexts', got {tuple(start.shape[:-1])}")
    start, feasible_set = start.reshape(-1, problem.dim), problem.feasible_set
    if isinstance(feasible_set, SetAt):
        return start
    inside = _excess(feasible_set, start)[1] <= AS_PROJECTED[start.dtype]  # as earlier decisions are
    return start if inside.all() else feasible_set._project(start)


def _check_scale(scale: ArrayLike | None, batch: tuple[int, ...], model: ConvexFunction) -> Tensor | None:
    if scale is None:
        return None
    unit = as_tensor(scale, "scale").to(device=model.device, dtype=torch.float64)
    if tuple(unit.shape) not in ((), batch):
        raise ValueError(f"scale: expected a number or batch shape {batch} as the contexts', got {tuple(unit.shape)}")
    if bool((unit <= 0).any()):
        raise ValueError(f"scale: expected positive numbers, got {float(unit.min()):g}")
    return unit.expand(batch).reshape(-1)


def check_arguments(model: ConvexFunction, feasible_set: FeasibleSet | SetAt) -> None:
    """Raise ValueError unless model and set go together, TypeError where one is not what its place asks for."""
    check_function(model)
    if not isinstance(getattr(feasible_set, "dim", None), int):
        raise TypeError(
            f"feasible_set: expected a set, such as soctk.Simplex({model.dim}), got {type(feasible_set).__name__}; "
            "the order is minimize(model, feasible_set, context)"
        )
    if feasible_set.dim != model.dim:
        raise ValueError(f"feasible_set: expected dimension {model.dim} as the model's, got {feasible_set.dim}")
    if model.device.type == "meta":
        raise ValueError("model: its weights are on the meta device, which holds no numbers; load or draw them first")


def check_limits(tol: float, max_iter: int | None, time_limit: float | None) -> None:
    """Raise ValueError unless the limits are limits."""
    check_positive(tol, "tol")
    if max_iter is not None:
        check_count(max_iter, "max_iter")
    if time_limit is not None:
        check_positive(time_limit, "time_limit")
