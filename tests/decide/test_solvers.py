"""What every solver object keeps: a feasible point, a bound that is one, a status that says so, limits obeyed."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import torch
from ball import Ball
from reference import clarabel_optimum
from tolerances import CERTIFIED, DOUBLE, TIGHT_CLARABEL
from torch import Tensor
from zoo import MODELS, SETS, shaken

import soctk
from soctk import Box, Budget, FeasibleSet, Polyhedron, Simplex, Status, minimize
from soctk.decide.batched import Bounds, factor_hessian, solve_batched, solve_factored
from soctk.decide.choice import default_solver
from soctk.decide.external import ITERATION_OPTIONS, External
from soctk.decide.first_order import FirstOrder
from soctk.decide.minimize import METHODS
from soctk.decide.newton import SmoothingNewton, solve_newton
from soctk.decide.newton_cg import NewtonCG
from soctk.decide.problem import Limits, Problem
from soctk.decide.protocol import PaperProtocol
from soctk.decide.result import Result
from soctk.decide.solver import Solver

N = 5


EQUALITIES = np.array([[1.0, 2.0, 0.0, -1.0, 0.5], [0.0, 1.0, 1.0, 1.0, 1.0]])
PLACES: dict[str, FeasibleSet] = {
    **{name: make(N) for name, make in SETS.items()},
    "fixed": Box(N, (0.0, 0.5, -1.0, 0.0, 0.0), (1.0, 0.5, 1.0, 2.0, 1.0)),
    "point": Budget(N, 0.0),
    "equalities": Polyhedron(N, 0.0, 1.0, E=EQUALITIES, f=[0.6, 1.5]),
    "weighted": Polyhedron(N, 0.0, E=[1.0, 2.0, 3.0, 4.0, 5.0], f=3.0),
    "inequalities": Polyhedron(N, 0.0, 1.0, E=np.ones(N), f=2.0, G=[1.0, 1.0, 0.0, 0.0, 0.0], h=0.5),
    "ball": Ball(N, 1.0, 0.2),
}
SOLVERS: dict[str, Solver] = {
    "newton": SmoothingNewton(),
    "newton alone": SmoothingNewton(second=None),
    "newton_cg": NewtonCG(),
    "first_order": FirstOrder(max_iter=2000),
    "clarabel": External(),
    "scs": External("scs", {"eps": 1e-6}),
    "gradient": PaperProtocol(steps=30),
    "adam": PaperProtocol("projected_adam", restarts=2, steps=30, rate=1e-2, seed=3),
}
REFUSED = {
    "newton": {"ball"},
    "newton alone": {"ball"},
    "newton_cg": {"simplex", "budget", "point", "equalities", "weighted", "inequalities", "ball"},
}


def functions(name: str = "soc", count: int = 3) -> tuple:
    model = shaken(MODELS[name](N))
    return model, torch.randn(count, 3, generator=torch.Generator().manual_seed(4), dtype=DOUBLE)


def check_honest(result: Result, problem: Problem, optima: list[float]) -> None:
    """Assert that points are feasible, values theirs, bounds below the minimum, statuses what these say."""
    optimum = torch.tensor(optima, dtype=DOUBLE)
    slack = TIGHT_CLARABEL * optimum.abs().clamp(min=1.0)
    assert float(problem.feasible_set.violation(result.x).max()) <= 1e-9
    torch.testing.assert_close(result.value, problem.form.value(result.x), rtol=1e-12, atol=1e-12)
    assert bool((result.lower_bound <= optimum + slack).all())
    assert bool((result.value >= optimum - slack).all())
    reached = result.relative_gap(torch.arange(problem.size)) <= CERTIFIED
    assert (reached.numpy() == (result.status == "optimal")).all()
    assert all(isinstance(status, Status) for status in result.status)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("model_name", ["soc", "relu"])
def test_every_solver_is_honest_on_every_set_it_accepts(name: str, place: str, model_name: str) -> None:
    model, context = functions(model_name)
    solver, feasible_set = SOLVERS[name], PLACES[place]
    problem = Problem(model.conic_form(context).detach(), feasible_set)
    sentence = solver.refuses(problem)
    assert (sentence is not None) == (place in REFUSED.get(name, ()))
    if sentence is not None:
        assert 'use "' in sentence
        with pytest.raises(NotImplementedError, match=r'use "'):
            minimize(model, feasible_set, context, method=solver)
        return
    result = solver.solve(problem, Limits(CERTIFIED))
    check_honest(result, problem, [clarabel_optimum(model, feasible_set, row) for row in context])
    if name in ("newton", "clarabel"):
        assert (result.status == "optimal").all()


@pytest.mark.parametrize("name", sorted(SOLVERS.keys() - {"scs"}))  # after two iterations that may call a box unbounded
def test_every_solver_stops_at_its_limits_with_an_honest_answer(name: str) -> None:
    model, context = functions("relu")
    solver, feasible_set = SOLVERS[name], PLACES["box"]
    problem = Problem(model.conic_form(context).detach(), feasible_set)
    optima = [clarabel_optimum(model, feasible_set, row) for row in context]
    for limits, status in ((Limits(1e-12, 2), "iteration_limit"), (Limits(1e-12, None, 0.0), "time_limit")):
        result = solver.solve(problem, limits)
        assert (result.status == status).all()
        assert result.x.isfinite().all()
        assert bool((result.iterations <= 2).all())
        check_honest(dataclasses.replace(result, status=result.status.copy()), problem, optima)


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_takes_a_start_and_measures_gaps_in_the_unit(name: str) -> None:
    model, context = functions()
    unit = torch.tensor([1.0, 1e-3, 20.0], dtype=DOUBLE)
    problem = Problem(model.conic_form(context).detach(), PLACES["box"], unit)
    start = problem.feasible_set.sample(3, torch.Generator().manual_seed(0))
    result = SOLVERS[name].solve(problem, Limits(1e-4), start)
    torch.testing.assert_close(result.unit, unit)
    gap = result.value - result.lower_bound
    assert ((gap <= 1e-4 * unit).numpy() == (result.status == "optimal")).all()
    assert bool((result.lower_bound <= minimize(model, PLACES["box"], context, tol=1e-10).value).all())
    if name not in ("gradient", "adam", "scs"):
        assert (result.status == "optimal").all()


@pytest.mark.parametrize("name", METHODS)
def test_a_solver_object_is_what_its_name_stands_for(name: str) -> None:
    model, context = functions()
    objects = {"newton": SmoothingNewton(), "newton_cg": NewtonCG(), "first_order": FirstOrder(), "cvxpy": External()}
    solver = objects.get(name) or PaperProtocol(name)  # type: ignore[arg-type]
    assert solver.name == name
    by_name, by_object = (minimize(model, PLACES["box"], context, method=m) for m in (name, solver))  # type: ignore[arg-type]
    assert torch.equal(by_name.x, by_object.x)
    assert (by_name.solver == name).all()
    assert by_name.solver.shape == by_name.violation.shape == (3,)


@pytest.mark.parametrize(
    ("solver", "options"),
    [
        (PaperProtocol, {"name": "newton"}),
        (PaperProtocol, {"steps": 0}),
        (PaperProtocol, {"rate": -1.0}),
        (External, {"solver": "NONESUCH"}),
    ],
)
def test_options_that_a_solver_cannot_take_are_refused(solver, options: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
        solver(**options)


def test_the_default_is_chosen_by_set_and_size() -> None:
    model, context = functions()
    expected = {"ball": "cvxpy"}
    for place, feasible_set in PLACES.items():
        problem = Problem.at(model, context, feasible_set)
        solver = default_solver(problem)
        assert solver.name == expected.get(place, "newton")
        assert solver.refuses(problem) is None


# -- equalities in the PyTorch method ------------------------------------------------------------------


@pytest.mark.parametrize("place", ["equalities", "weighted"])
@pytest.mark.parametrize("name", MODELS)
def test_newton_steps_under_equalities_are_certified_without_a_second_solver(name: str, place: str) -> None:
    model, context = functions(name, 8)
    form = model.conic_form(context).detach()
    result = SmoothingNewton(second=None).solve(Problem(form, PLACES[place]), Limits(CERTIFIED))
    assert (result.status == "optimal").all()
    optimum = clarabel_optimum(model, PLACES[place], context[0])
    slack = TIGHT_CLARABEL * max(1.0, abs(optimum))
    assert float(result.lower_bound[0]) <= optimum + slack
    assert optimum - slack <= float(result.value[0]) <= optimum + CERTIFIED * max(1.0, abs(optimum)) + slack


def test_equalities_that_repeat_themselves_change_nothing() -> None:
    model, context = functions()
    form = model.conic_form(context).detach()
    E, f = np.vstack([EQUALITIES, EQUALITIES.sum(axis=0), 2 * EQUALITIES[0]]), [0.6, 1.5, 2.1, 1.2]
    alone, repeated = (
        SmoothingNewton(second=None).solve(Problem(form, feasible_set), Limits(1e-9))
        for feasible_set in (PLACES["equalities"], Polyhedron(N, 0.0, 1.0, E=E, f=f))
    )
    torch.testing.assert_close(repeated.value, alone.value, rtol=2e-9, atol=2e-9)


def test_a_sum_is_solved_alike_as_a_row_and_as_rows() -> None:
    """The Schur complement of several rows, with a row twice, against that of a sum, and against the dense system."""
    generator = torch.Generator().manual_seed(2)
    factor = torch.randn(4, N, N, generator=generator, dtype=DOUBLE)
    hessian, right = factor @ factor.mT, torch.randn(4, N, generator=generator, dtype=DOUBLE)
    for feasible_set in (Budget(N, 2.0), PLACES["equalities"]):
        bounds = Bounds.of(feasible_set, hessian)
        rows = bounds.rows
        assert rows is not None
        found = solve_factored(factor_hessian(hessian), right, bounds)
        assert float((found @ rows.mT).abs().max()) <= 1e-14
        k = len(rows)
        system = torch.cat(
            [torch.cat([hessian, rows.mT.expand(4, -1, -1)], -1), torch.zeros(4, k, N + k, dtype=DOUBLE)], dim=1
        )
        system[:, N:, :N] = rows
        exact = torch.linalg.solve(system, torch.cat([right, torch.zeros(4, k, dtype=DOUBLE)], dim=1))[:, :N]
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)
        if bounds.sums:
            general = solve_factored(factor_hessian(hessian), right, dataclasses.replace(bounds, sums=False))
            torch.testing.assert_close(general, found, rtol=1e-9, atol=1e-9)


def test_bounds_that_are_missing_have_no_barrier() -> None:
    """Simplex-like sets with some upper bounds: only PyTorch's method takes them."""
    model, context = functions()
    form = model.conic_form(context).detach()
    some = Polyhedron(N, 0.0, (0.3, np.inf, 0.4, np.inf, np.inf), E=np.ones(N), f=1.0)
    all_of_them = Budget(N, 1.0, 0.0, (0.3, 1.0, 0.4, 1.0, 1.0))
    mine, other = (SmoothingNewton(second=None).solve(Problem(form, s), Limits(1e-9)) for s in (some, all_of_them))
    assert (mine.status == "optimal").all()
    torch.testing.assert_close(mine.value, other.value, rtol=2e-9, atol=2e-9)


def test_the_compiled_method_is_given_what_it_knows_alone(monkeypatch) -> None:
    model, context = functions()
    form, calls = model.conic_form(context).detach(), []
    monkeypatch.setattr(
        "soctk.decide.newton.solve_batched", lambda *args, **more: calls.append(1) or solve_batched(*args, **more)
    )
    for place in ("simplex", "box", "budget"):
        solve_newton(form, PLACES[place], tol=1e-6, max_iter=5)
    assert not calls
    solve_newton(form, PLACES["equalities"], tol=1e-6, max_iter=5)
    assert calls


# -- the second solver ---------------------------------------------------------------------------------


class Lazy(Solver):
    """A solver that says optimal of the centre, or nothing."""

    name = "lazy"

    def __init__(self, status: Status = Status.OPTIMAL) -> None:
        self.status = status

    def refuses(self, problem: Problem) -> str | None:
        return None

    def solve(self, problem: Problem, limits: Limits, start: Tensor | None = None) -> Result:
        result = Result.unanswered(problem.center)
        result.value = problem.evaluate(problem.center.unsqueeze(1)).squeeze(-1)
        result.status[:] = self.status
        result.solver = self.name
        return result


@pytest.mark.parametrize("reason", [Status.OPTIMAL, Status.STALLED, Status.TIME_LIMIT])
def test_statuses_follow_from_the_numbers_and_not_from_what_a_solver_says(reason: Status) -> None:
    model, context = functions()
    decision = minimize(model, PLACES["box"], context, method=Lazy(reason))
    assert (decision.solver == "lazy").all()
    assert (decision.status == (Status.STALLED if reason == Status.OPTIMAL else reason)).all()


def test_the_second_solver_takes_what_the_first_left_and_says_so() -> None:
    model, context = functions()
    problem = Problem(model.conic_form(context).detach(), PLACES["box"])
    never = SmoothingNewton(max_iter=1, second=None).solve(problem, Limits(1e-9))
    assert (never.status == "iteration_limit").all()
    helped = SmoothingNewton(max_iter=1).solve(problem, Limits(CERTIFIED))
    assert (helped.status == "optimal").all()
    assert (helped.solver == "cvxpy").all()
    # a limit of the caller's below the method's own is the end of it, and one at its own is none
    limited = SmoothingNewton(max_iter=2).solve(problem, Limits(1e-9, 1))
    assert (limited.status == "iteration_limit").all()
    at_the_default = SmoothingNewton(max_iter=1).solve(problem, Limits(CERTIFIED, 1))
    assert (at_the_default.status == "optimal").all()


def test_outside_solvers_are_given_the_limits_in_their_own_words(monkeypatch) -> None:
    model, context = functions()
    given: list[dict] = []
    monkeypatch.setattr(
        "soctk.decide.lifted.solve_program", lambda problem, solver, options: given.append(options) or Status.FAILED
    )
    started = time.perf_counter()
    decision = minimize(model, PLACES["box"], context, method="cvxpy", max_iter=7, time_limit=100.0)
    assert (decision.status == "failed").all()
    assert decision.x.isnan().all()
    assert [options["max_iter"] for options in given] == [7, 7, 7]
    left = [options["time_limit"] for options in given]
    assert 100.0 >= left[0] >= left[1] >= left[2] >= 100.0 - (time.perf_counter() - started)
    minimize(model, PLACES["box"], context, method="cvxpy", solver="SCS", max_iter=7, solver_options={"eps": 0.1})
    assert given[-1] == {"max_iters": 7, "eps": 0.1}
    assert "HIGHS" not in ITERATION_OPTIONS
    with pytest.raises(ValueError, match=r"max_iter: .*HIGHS.*solver_options"):
        minimize(model, PLACES["box"], context, method="cvxpy", solver="HIGHS", max_iter=7)
    assert minimize(model, Simplex(N), context, max_iter=np.int64(60)).optimal.all()


def test_a_solver_that_stops_by_its_own_clock_ran_out_of_time() -> None:
    """Clarabel's goes on from an earlier solve at times: it stopped before the deadline, by an "iteration limit"."""
    decision = minimize(soctk.SOCICNN(4), Box(4), method=External("CLARABEL", {"time_limit": 1e-9}))
    assert decision.status == Status.TIME_LIMIT
