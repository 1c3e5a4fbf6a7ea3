"""Smoothing Newton with dual iterates: thousands of decisions at once, each with a certified gap.

For every instance of a batch

    min f(x) = b0 + v'x + sum_j phi_j(A_j x + d_j)    over lo <= x <= hi, sum(x) = total,

kinks are smoothed by O(mu), bounds become a log barrier of weight mu, and mu goes to zero. Each iteration
is one Newton step on the smoothed problem whose Hessian uses *dual iterates* (Chan, Golub and Mulet 1999,
for total variation; here for ReLUs and norms alike): the curvature of a kink is taken at a dual variable that
is itself updated by the linearised optimality condition, which keeps the step good while mu is still small
against the distance to the kink. Bounds are primal-dual. Two dual points of each iteration, the smoothed slopes and
the dual iterates, give rigorous lower bounds (`ConicForm.bound`), and an instance is finished when its best
value and best bound meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from soctk.decide.batched import solve_batched
from soctk.decide.compiled.form import Packed, compilable, kinds_of, pack, supported
from soctk.decide.external import External
from soctk.decide.nearby import search_nearby
from soctk.decide.packed_model import PackedModel
from soctk.decide.pieces import piece
from soctk.decide.polyhedral import solve_polyhedral
from soctk.decide.problem import Limits, Problem
from soctk.decide.ready import MOST_BY_A_SOLVER, MOST_BY_PYTORCH, is_ready, kernels_of_others
from soctk.decide.reduction import newton_refuses
from soctk.decide.result import Result
from soctk.decide.rules import share_of_centre
from soctk.decide.solver import FormSolver, Solver
from soctk.forms.conic_form import ConicForm
from soctk.sets import FeasibleSet, SetAt
from soctk.terms.registry import BUILT_IN

DEFAULT_ITERATIONS = 60
SMALLEST_TOLERANCE = 1e-14
USUAL_ITERATIONS = 8
KERNELS_AGREE = 1e-6
"""What values of a kernel and of its term may differ by, in units of the value: rounding is far below."""
MOST_OPERATIONS = 2e9
"""Of Newton steps, for `quicker_compiled`: about half a second of one core, from where on an H100 is quicker."""


@dataclass(frozen=True)
class SmoothingNewton(FormSolver):
    """Smoothing Newton steps over simplices, boxes, budgets and polyhedra: certified, the quickest up to 500 variables.

    Compiled for a processor where the terms have kernels. Elsewhere PyTorch takes the same steps where there are bounds
    and at most a sum; over other polyhedra such terms are left to `second`.

    Attributes:
        max_iter: the most Newton steps for each instance, where the limits say nothing.
        second: solves again what this one left short of the tolerance (some pure ReLU models, which are linear
            programs), unless an instance ran into a limit below `max_iter`; None for no other.
        project: whether points that are outside of a polyhedron by more than rounding are projected, which takes a
            program for each; False where bounds are all that is wanted.
    """

    name: ClassVar[str] = "newton"
    takes_sets_at: ClassVar[bool] = True
    max_iter: int = DEFAULT_ITERATIONS
    second: Solver | None = field(default_factory=External)
    project: bool = True

    def refuses(self, problem: Problem) -> str | None:
        """Return why it cannot solve the problem, None where it can."""
        refused = newton_refuses(problem.feasible_set)
        if refused is not None:
            return f'method "newton": {refused}; use "cvxpy" or "first_order"'
        return super().refuses(problem)

    def at_once(self, problem: Problem) -> int:
        """Return how many instances are best solved in one call: on a processor a piece (`soctk.decide.pieces`)."""
        return piece(problem.dim) if problem.device.type == "cpu" else problem.size

    def solve(self, problem: Problem, limits: Limits, start: Tensor | None = None) -> Result:
        """Minimise every function of the problem: see `Solver.solve`.

        Raises:
            RuntimeError: the kernel of a term from outside of this library is another function than the term.
        """
        result = super().solve(problem.by_rows(), limits, start)
        if kernels_of_others():
            _check_kernels(problem, result, limits.tol)
        return result

    def _before_second(self, problem: Problem, limits: Limits, result: Result, rows: np.ndarray) -> None:
        search_nearby(self, problem, limits, result, rows)

    def _solve(self, problem: Problem, limits: Limits, max_iter: int, start: Tensor | None) -> Result:
        if problem.device.type != "cpu" and (
            isinstance(problem.feasible_set, SetAt) or quicker_compiled(problem.form, problem.feasible_set)
        ):
            start = None if start is None else start.cpu()
            return self._solve(problem.on_processor(), limits, max_iter, start).to(problem.device)
        if isinstance(problem.feasible_set, SetAt):
            tol = limits.tol if problem.unit is None else _relative_tolerance(problem, limits.tol, start)
            options: dict[str, Any] = {"tol": tol, "max_iter": max_iter, "deadline": limits.deadline}
            options["size"] = problem.size
            options["again"] = limits.max_iter is None or limits.max_iter >= self.max_iter
            options["project"] = self.project
            return solve_polyhedral(_packed(problem), problem.feasible_set, start=start, **options)
        rows = problem.feasible_set.rows()
        assert rows is not None
        options = {"tol": limits.tol, "max_iter": max_iter, "deadline": limits.deadline}
        if problem.unit is not None:
            options["tol"] = _relative_tolerance(problem, limits.tol, start)
        elif problem.model is not None and rows.at_most_a_sum:
            result = _solve_packed(problem, start, options)
            if result is not None:
                return result
        return solve_newton(problem.form, problem.feasible_set, start=start, **options)


def _check_kernels(problem: Problem, result: Result, tol: float) -> None:
    """Raise RuntimeError where compiled code has valued a point otherwise than the terms do.

    Value and bound of compiled code come from the kernels alone, and meet for whatever function these are. Those of
    this library are tested; others may be wrong, or have been compiled before what they refer to was changed.
    """
    others = {type(term).__name__ for term in problem.form.terms if type(term) not in BUILT_IN}
    if not others:
        return
    answered = torch.isfinite(result.x).all(dim=-1) & torch.isfinite(result.value)
    points = torch.where(answered.unsqueeze(-1), result.x, problem.center)
    value = problem.evaluate(points.unsqueeze(1)).squeeze(-1)
    unit = value.abs().clamp(min=1.0) if problem.unit is None else problem.unit
    off = torch.where(answered, (value - result.value).abs() / unit, 0.0)
    worst = int(off.argmax())
    if off[worst] > max(tol, KERNELS_AGREE):
        raise RuntimeError(
            f"the compiled kernel and `value` are different functions ({', '.join(sorted(others))}): one decision has "
            f"the value {float(result.value[worst]):.6g} by the kernels and {float(value[worst]):.6g} by the terms; "
            "correct the kernel, start Python again if anything that it refers to was changed, or set kernel = None "
            "for PyTorch to decide"
        )


def _solve_packed(problem: Problem, start: Tensor | None, options: dict[str, Any]) -> Result | None:
    """Decide with coefficients straight from the model's context map; None where that cannot be."""
    assert problem.model is not None
    prepared = PackedModel.now(problem.model) if problem.packed is None else problem.packed
    if prepared is None:
        return None
    from soctk.decide.compiled.solve import Region, solve_packed  # Numba is loaded when it is needed

    if not is_ready(prepared.kinds, problem.size, MOST_BY_PYTORCH):
        return None
    # where a coefficient is not finite, the form says which
    packed = prepared.at(problem.contexts)
    first = None if start is None else start.double().numpy()
    if packed is None:
        return None
    return solve_packed(_repeated(packed, problem), Region.of(problem.feasible_set), start=first, **options)


def _packed(problem: Problem) -> Packed | None:
    """Return the functions of a problem in the processor's memory, packed; None where they cannot be, or not yet."""
    prepared = problem.packed
    if prepared is None and problem.model is not None and problem.unit is None:
        prepared = PackedModel.now(problem.model)
    if prepared is not None:
        if not is_ready(prepared.kinds, problem.size, MOST_BY_A_SOLVER):
            return None
        packed = prepared.at(problem.contexts)
        if packed is None:
            return pack(problem.form)
        return _repeated(packed, problem)
    form = problem.form
    return pack(form) if supported(form) and is_ready(kinds_of(form.terms), problem.size, MOST_BY_A_SOLVER) else None


def _repeated(packed: Packed, problem: Problem) -> Packed:
    """Return one function as many times as there are contexts without numbers, or sets."""
    return packed.select(np.zeros(problem.size, dtype=np.int64)) if packed.size < problem.size else packed


def _relative_tolerance(problem: Problem, tol: float, start: Tensor | None) -> float:
    """Return a tolerance relative to max(1, |value|) that is enough for `tol` units, where f(start) = 0.

    There -gap(start) <= min f <= 0, so that max(1, |value|) is at most max(1, gap(start)).
    """
    assert problem.unit is not None
    gap = problem.first_gap(problem.center if start is None else start)
    return max(tol * float((problem.unit / gap.clamp(min=1.0)).min()), SMALLEST_TOLERANCE)


def quicker_compiled(form: ConicForm, feasible_set: FeasibleSet) -> bool:
    """Whether compiled code decides functions on another device sooner than PyTorch there: few, or in few variables.

    PyTorch starts thousands of kernels on a GPU even for one function, 50 to 250 ms on an H100 for up to 1,024.
    A processor decides one function in 10 variables in 4 microseconds. Nothing waits until the code is compiled.
    """
    rows = feasible_set.rows()
    if rows is None or not rows.at_most_a_sum or not compilable(form):
        return False
    n, heights = form.dim, sum(term.map.rows for term in form.terms)
    if form.size * USUAL_ITERATIONS * (heights * n**2 + n**3 / 3) > MOST_OPERATIONS:
        return False
    return is_ready(kinds_of(form.terms), form.size, most=form.size)


def solve_newton(
    form: ConicForm,
    feasible_set: FeasibleSet,
    *,
    tol: float,
    max_iter: int,
    deadline: float = float("inf"),
    start: Tensor | None = None,
    keep_final: bool = False,
) -> Result:
    """Minimise every function of `form` over a set with a non-empty relative interior.

    Args:
        form: N functions, detached.
        feasible_set: all of its bounds satisfy lo < hi.
        tol: relative gap (value - lower bound) / max(1, |value|) to reach.
        max_iter: Newton steps for each instance.
        deadline: `time.perf_counter()` value to stop at.
        start: (N, n) feasible starting points; the centre by default.
        keep_final: whether to return where the iterations ended.
    """
    options: dict[str, Any] = {"tol": tol, "max_iter": max_iter, "deadline": deadline, "keep_final": keep_final}
    rows = feasible_set.rows()
    if supported(form) and rows is not None and rows.at_most_a_sum:
        from soctk.decide.compiled.solve import Region, solve_compiled  # Numba is loaded when it is needed

        if is_ready(kinds_of(form.terms), form.size, MOST_BY_PYTORCH):
            first = None if start is None else start.double().cpu().numpy()
            return solve_compiled(form, Region.of(feasible_set), start=first, **options)
    center = feasible_set.center(form.dtype, form.linear.device)
    x = center.expand(form.size, form.dim).clone() if start is None else _warm(form, feasible_set, start)
    return solve_batched(form, feasible_set, start=x, **options)


def _warm(form: ConicForm, feasible_set: FeasibleSet, start: Tensor) -> Tensor:
    """Move given points into the interior (`rules.share_of_centre`)."""
    center = feasible_set.center(start.dtype, start.device)
    points, middle = start.unsqueeze(1), center.reshape(1, 1, -1)
    bound = torch.maximum(
        form.bound(form.subgradients(points), feasible_set), form.bound(form.subgradients(middle), feasible_set)
    )
    share = torch.from_numpy(share_of_centre(*((form.evaluate(x) - bound).cpu().numpy() for x in (points, middle))))
    share = share.to(start)
    return (1 - share) * start + share * center
