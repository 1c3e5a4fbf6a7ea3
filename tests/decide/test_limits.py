"""Limits, starts, methods that do not converge, certificates of arbitrary points, and bad arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from reference import clarabel_optimum
from tolerances import CERTIFIED, DOUBLE, SINGLE, TIGHT_CLARABEL

import soctk
from soctk import (
    SOCICNN,
    Box,
    Budget,
    ConvexSurrogate,
    Decision,
    Polyhedron,
    Simplex,
    SoftplusICNN,
    Status,
    certify,
    minimize,
)
from soctk.sets.linear_programs import System

SETS = [Simplex(5), Box(5, -1.0, 1.0), Budget(5, 1.5)]


@pytest.fixture
def model() -> SOCICNN:
    return SOCICNN(5, 2, hidden=(8, 6), quadratics=(5,), norms=(3, 2), seed=3)


@pytest.fixture
def context(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 2, generator=generator, dtype=DOUBLE)


def check_honest(decision: Decision, model, feasible_set, context) -> None:
    """Assert that points are feasible and bounds right, whatever the status says."""
    assert float(feasible_set.violation(decision.x).max()) <= 1e-9
    torch.testing.assert_close(decision.value, model(decision.x, context).detach())
    for row in range(len(context)):
        optimum = clarabel_optimum(model, feasible_set, context[row])
        slack = TIGHT_CLARABEL * max(1.0, abs(optimum))
        assert float(decision.lower_bound[row]) <= optimum + slack
        assert float(decision.value[row]) >= optimum - slack
        assert float(decision.gap[row]) >= float(decision.value[row]) - optimum - slack


@pytest.mark.parametrize("feasible_set", SETS, ids=lambda s: type(s).__name__)
def test_an_iteration_limit_gives_the_best_point_and_an_honest_gap(model, context, feasible_set) -> None:
    decision = minimize(model, feasible_set, context, max_iter=1, tol=1e-10)
    assert (decision.status == "iteration_limit").all()
    assert not bool(decision.optimal.any())
    assert bool((decision.iterations <= 1).all())
    assert bool((decision.relative_gap > 1e-10).all())
    check_honest(decision, model, feasible_set, context)


@pytest.mark.parametrize("feasible_set", SETS, ids=lambda s: type(s).__name__)
def test_a_time_limit_gives_the_best_point_and_an_honest_gap(model, context, feasible_set) -> None:
    decision = minimize(model, feasible_set, context, time_limit=1e-9, tol=1e-10)
    assert (decision.status == "time_limit").all()
    check_honest(decision, model, feasible_set, context)


def test_what_no_search_has_begun_on_gets_the_sets_centre(model) -> None:
    """Over one set there is a point; over sets of their own where the centre of the set without changes is in them."""
    feasible_set = Polyhedron(5, 0.0, 1.0, E=[[1.0] * 5], f=[2.0], G=[[1.0, -1.0, 0.0, 0.0, 0.0]], h=[0.2])
    contexts, totals = torch.zeros(20_000, 2, dtype=DOUBLE), torch.full((20_000, 1), 2.0, dtype=DOUBLE)
    totals[::2] += 0.1
    decision = minimize(model, feasible_set, contexts, time_limit=1e-9)
    assert (decision.status == "time_limit").all()
    assert float(decision.violation.max()) <= 1e-12
    assert bool(decision.value.isfinite().all())
    assert bool(decision.gap.isfinite().all())
    moved = minimize(model, feasible_set.at(f=totals), contexts, time_limit=1e-9)
    assert (moved.status == "time_limit").all()
    assert float(moved.violation[1::2].max()) <= 1e-12
    unknown = moved.x.isnan().any(dim=1)
    assert bool((moved.relative_gap[unknown] == torch.inf).all())
    assert float(moved.violation[~unknown].max()) <= 1e-12


def test_a_time_limit_of_an_outside_solver_is_never_called_optimal(model, context) -> None:
    decision = minimize(model, SETS[0], context, method="cvxpy", solver_options={"max_iter": 1})
    assert not (decision.status == "optimal").any()
    solved = torch.isfinite(decision.value)
    assert float(SETS[0].violation(decision.x[solved]).max() if bool(solved.any()) else 0.0) <= 1e-9
    assert bool((decision.lower_bound[~solved] == -torch.inf).all())


@pytest.mark.parametrize("method", ["projected_gradient", "projected_adam"])
@pytest.mark.parametrize("feasible_set", SETS, ids=lambda s: type(s).__name__)
def test_the_papers_protocol_is_feasible_with_an_honest_gap(model, context, feasible_set, method: str) -> None:
    decision = minimize(model, feasible_set, context, method=method, max_iter=20)
    check_honest(decision, model, feasible_set, context)
    again = minimize(model, feasible_set, context, method=method, max_iter=20)
    assert torch.equal(decision.x, again.x)
    longer = minimize(model, feasible_set, context, method=method, max_iter=60)
    assert bool((longer.value <= decision.value).all())
    assert np.isin(decision.status, ["optimal", "iteration_limit"]).all()
    assert ((decision.relative_gap <= 1e-6).numpy() == (decision.status == "optimal")).all()


@pytest.mark.parametrize("x0", ["optimum", "vertex", "outside", "list"])
def test_a_start_changes_the_way_and_not_the_answer(model, context, x0: str) -> None:
    for feasible_set in SETS:
        plain = minimize(model, feasible_set, context, tol=1e-8)
        starts = {
            "optimum": plain.x,
            "vertex": feasible_set.linear_minimizer(torch.ones(4, 5, dtype=DOUBLE)),
            "outside": torch.full((4, 5), 100.0, dtype=SINGLE),
            "list": [[0.2] * 5] * 4,
        }
        decision = minimize(model, feasible_set, context, tol=1e-8, x0=starts[x0])
        assert (decision.status == "optimal").all()
        torch.testing.assert_close(decision.value, plain.value, rtol=3e-8, atol=3e-8)


@pytest.mark.parametrize("method", ["newton", "cvxpy", "projected_gradient"])
@pytest.mark.parametrize("max_iter", [1, 200])
def test_statuses_are_members_of_status(model, context, method: str, max_iter: int) -> None:
    for given in (context, context[0], context[:0]):
        decision = minimize(model, SETS[1], given, method=method, max_iter=max_iter)
        assert decision.status.shape == given.shape[:-1]
        assert all(isinstance(status, Status) for status in decision.status.reshape(-1))


# -- certificates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("feasible_set", SETS, ids=lambda s: type(s).__name__)
def test_the_certificate_of_any_point_is_rigorous(model, context, feasible_set) -> None:
    for row in range(2):
        best = minimize(model, feasible_set, context[row], tol=1e-9).x
        share = torch.logspace(-8, 0, 19, dtype=DOUBLE).unsqueeze(-1)
        away = feasible_set.sample(19, torch.Generator().manual_seed(row))
        x = torch.cat([best.unsqueeze(0), (1 - share) * best + share * away])
        certificate = certify(model, feasible_set, x, context[row])
        optimum = clarabel_optimum(model, feasible_set, context[row])
        slack = TIGHT_CLARABEL * max(1.0, abs(optimum))
        assert certificate.value.shape == certificate.lower_bound.shape == certificate.violation.shape == (20,)
        torch.testing.assert_close(certificate.value, model(x, context[row]).detach())
        assert float(certificate.lower_bound.max()) <= optimum + slack
        assert bool((certificate.gap >= certificate.value - optimum - slack).all())


@pytest.mark.parametrize("feasible_set", SETS, ids=lambda s: type(s).__name__)
def test_the_certificate_of_a_smooth_functions_optimum_is_small(context, feasible_set) -> None:
    """Within 1e-10 of the minimum, x is within sqrt(2e-10 / strong convexity), the gap a slope times that."""
    model = SoftplusICNN(5, 2, hidden=(8, 6), quadratics=(5,), seed=3)
    decision = minimize(model, feasible_set, context, tol=1e-10)
    certificate = certify(model, feasible_set, decision.x, context)
    assert float(certificate.relative_gap.max()) <= 1e-4
    for row in range(2):
        optimum = clarabel_optimum(model, feasible_set, context[row])
        assert float(certificate.lower_bound[row]) <= optimum + TIGHT_CLARABEL * max(1.0, abs(optimum))
    assert float(certificate.violation.max()) <= 1e-9


def test_a_certificate_can_be_limited_in_time_and_is_found_in_pieces(model, context, monkeypatch) -> None:
    """A limit leaves bounds that are lower; pieces change nothing."""
    x = Simplex(5).sample(4, torch.Generator().manual_seed(0))
    whole, late = certify(model, Simplex(5), x, context), certify(model, Simplex(5), x, context, time_limit=1e-9)
    closed = certify(model, Simplex(5), x, context, tol=float("inf"))
    with pytest.raises(ValueError, match="tol: expected a positive number"):
        certify(model, Simplex(5), x, context, tol=float("nan"))
    assert bool((closed.lower_bound < whole.lower_bound).all())
    assert bool((closed.lower_bound <= late.lower_bound).all())
    assert bool((late.lower_bound <= whole.lower_bound).all())
    monkeypatch.setattr("soctk.decide.pieces.PIECE", 1)
    assert torch.equal(certify(model, Simplex(5), x, context).lower_bound, whole.lower_bound)
    with pytest.raises(ValueError, match="time_limit: expected a positive number, got 0"):
        certify(model, Simplex(5), x, context, time_limit=0)


def test_a_certificate_shows_the_violation_and_keeps_its_bound(model, context) -> None:
    x = torch.full((4, 5), 0.5, dtype=DOUBLE)
    certificate = certify(model, Simplex(5), x, context)
    torch.testing.assert_close(certificate.violation, torch.full((4,), 1.5, dtype=DOUBLE))
    for row in range(2):
        assert float(certificate.lower_bound[row]) <= clarabel_optimum(model, Simplex(5), context[row]) + 1e-8


def test_a_certificate_in_single_precision_stays_rigorous(model, context) -> None:
    """A float32 point is a point: its value is not rounded to float32 before the bound is subtracted."""
    x = Simplex(5).sample(4).float()
    certificate = certify(model, Simplex(5), x, context)
    torch.testing.assert_close(certificate.value, model(x.double(), context).detach(), rtol=1e-12, atol=1e-12)


def test_a_certificate_without_context_and_for_any_batch() -> None:
    model = SOCICNN(3, quadratics=(3,))
    for shape in ((), (2,), (2, 4)):
        certificate = certify(model, Simplex(3), Simplex(3).sample(shape))
        assert certificate.value.shape == certificate.lower_bound.shape == shape
    with pytest.raises(ValueError, match=r"row \[1\]"):
        certify(model, Simplex(3), [[1.0, 0.0, 0.0], [np.nan, 0.0, 0.0]])


class Parabola(ConvexSurrogate):
    """||x||^2 by `_value` alone: a surrogate without a conic form."""

    def _value(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return x.square().sum(dim=-1)


def test_a_surrogate_without_a_conic_form_is_certified_by_its_gradient() -> None:
    model = Parabola(4)
    certificate = certify(model, Simplex(4), torch.eye(4, dtype=DOUBLE))
    # Frank-Wolfe gap at a vertex: g'(x - y) = 2 (1 - 0).
    torch.testing.assert_close(certificate.gap, torch.full((4,), 2.0, dtype=DOUBLE))
    decision = minimize(model, Simplex(4), method="projected_gradient")
    assert float(decision.lower_bound) <= 0.25 <= float(decision.value) + 1e-12
    with pytest.raises(NotImplementedError, match="Parabola has no conic form"):
        minimize(model, Simplex(4), method="newton")


# -- arguments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0.0}, "tol: expected a positive"),
        ({"tol": -1e-6}, "tol: expected a positive"),
        ({"tol": float("nan")}, "tol: expected a positive"),
        ({"max_iter": 0}, "max_iter: expected an integer"),
        ({"max_iter": 2.5}, "max_iter: expected an integer"),
        ({"time_limit": 0.0}, "time_limit: expected a positive"),
        ({"time_limit": -1.0}, "time_limit: expected a positive"),
        ({"method": "simplex"}, "method: expected one of newton"),
        ({"method": "cvxpy", "solver": "NONESUCH"}, "solver: expected one of.*CLARABEL.*NONESUCH"),
        ({"x0": torch.zeros(4, 4)}, "x0: expected last dimension 5"),
        ({"x0": torch.zeros(3, 5)}, "x0: expected batch shape"),
        ({"x0": torch.full((4, 5), torch.nan)}, "x0: expected finite"),
        ({"context": None}, "context: expected 2 numbers"),
        ({"context": torch.zeros(4, 3)}, "context: expected last dimension 2"),
        ({"context": torch.tensor([[0.0, torch.inf]])}, "context: expected finite"),
        ({"feasible_set": Simplex(4)}, "feasible_set: expected dimension 5.*got 4"),
    ],
)
def test_bad_arguments_are_refused(model, context, options: dict, message: str) -> None:
    arguments = {"feasible_set": SETS[0], "context": context, **options}
    with pytest.raises(ValueError, match=message):
        minimize(model, **arguments)


@pytest.mark.parametrize("feasible_set", [torch.zeros(4, 2), None, "simplex"])
def test_what_is_no_set_is_refused_in_words(model, context, feasible_set) -> None:
    with pytest.raises(TypeError, match=r"feasible_set: expected a set.*minimize\(model, feasible_set, context\)"):
        minimize(model, feasible_set, context)
    with pytest.raises(TypeError, match="feasible_set: expected a set"):
        soctk.prepare(model, feasible_set)


def test_a_model_that_is_not_finite_is_refused(model, context) -> None:
    with torch.no_grad():
        model.c.floor[0] = torch.nan
    for method in ("newton", "cvxpy", "projected_gradient"):
        with pytest.raises(ValueError, match=r"network\.c"):
            minimize(model, SETS[0], context, method=method)


def test_the_decisions_of_similar_contexts_are_a_good_start_and_a_bad_start_costs_little():
    model, feasible_set = zoo.shaken(zoo.MODELS["soc"](10)), Budget(10, 3.0)
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(40, 3, generator=generator, dtype=DOUBLE)
    before = minimize(model, feasible_set, context)
    near = context + 0.02 * torch.randn(40, 3, generator=generator, dtype=DOUBLE)
    cold, warm = minimize(model, feasible_set, near), minimize(model, feasible_set, near, x0=before)
    vertices = feasible_set.linear_minimizer(torch.randn(40, 10, generator=generator, dtype=DOUBLE))
    misled = minimize(model, feasible_set, near, x0=vertices)
    for decision in (cold, warm, misled):
        assert bool(decision.optimal.all())
    mean = cold.iterations.double().mean()
    assert float(warm.iterations.double().mean()) <= 0.85 * float(mean)
    assert float(misled.iterations.double().mean()) <= 1.25 * float(mean)


@pytest.mark.parametrize("kind", zoo.SETS)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_a_decision_from_elsewhere_is_certified_tightly_at_kinks_too(name, kind):
    model, feasible_set = zoo.shaken(zoo.MODELS[name](6)), zoo.SETS[kind](6)
    context = torch.randn(10, 3, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    decision = minimize(model, feasible_set, context, tol=1e-8)
    certificate = certify(model, feasible_set, decision.x, context)
    assert float(certificate.relative_gap.max()) <= CERTIFIED
    assert bool((certificate.lower_bound <= decision.value + 1e-9).all())
    worse = certify(model, feasible_set, feasible_set.sample(10, torch.Generator().manual_seed(3)), context)
    assert bool((worse.value - worse.lower_bound >= worse.value - decision.value - 1e-9).all())


def test_a_start_and_a_certificate_in_another_precision_than_the_models(context) -> None:
    model = zoo.shaken(zoo.MODELS["soc"](5)).float()
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    decision = minimize(model, Simplex(5), rows, tol=1e-5)
    again = minimize(model, Simplex(5), rows, tol=1e-5, x0=decision)
    assert bool(again.optimal.all())
    certificate = certify(model, Simplex(5), again.x, rows.float())
    assert bool((certificate.lower_bound <= certificate.value + 1e-12).all())


@pytest.mark.parametrize("method", ["newton", "cvxpy"])
def test_a_time_limit_over_sets_of_their_own_gives_where_it_began_or_nothing(model, method) -> None:
    """The middle of the box is outside of {sum x = 1}, so that no point is known but the caller's."""
    feasible_set = Polyhedron(5, 0.0, 1.0, E=[[1.0] * 5], f=[2.0])
    sets, contexts = feasible_set.at(f=torch.ones(4, 1, dtype=DOUBLE)), torch.zeros(4, 2, dtype=DOUBLE)
    late = minimize(model, sets, contexts, method=method, time_limit=1e-9)
    assert (late.status == "time_limit").all()
    assert bool(late.x.isnan().all())
    begun = minimize(model, sets, contexts, method=method, time_limit=1e-9, x0=torch.full((4, 5), 0.2, dtype=DOUBLE))
    assert (begun.status == "time_limit").all()
    assert float(begun.violation.max()) <= 1e-12
    assert bool(begun.value.isfinite().all())
    assert bool(begun.gap.isfinite().all())
    exact = minimize(model, sets, contexts, method=method)
    assert bool((begun.lower_bound <= exact.value).all())
    assert bool((begun.value >= exact.lower_bound).all())


@pytest.mark.parametrize("method", ["projected_gradient", "projected_adam", "first_order"])
def test_after_the_deadline_programmes_are_solved_for_few_instances_only(model, method, monkeypatch) -> None:
    feasible_set = Polyhedron(5, 0.0, 1.0, E=[[1.0] * 5], f=[2.0], G=[[1.0, -1.0, 0.0, 0.0, 0.0]], h=[0.2])
    solved, minimum = [], System.minimum
    monkeypatch.setattr(System, "minimum", lambda *given: solved.append(1) or minimum(*given))
    contexts = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    decision = minimize(model, feasible_set, contexts, method=method, time_limit=1e-9)
    assert len(solved) < 200
    assert (decision.status == "time_limit").all()
    assert float(decision.violation.max()) <= 1e-9
    assert bool(decision.gap[0].isfinite())
    assert bool((decision.lower_bound <= minimize(model, feasible_set, contexts).value).all())


def test_a_method_that_takes_one_set_refuses_sets_that_move(model) -> None:
    with pytest.raises(NotImplementedError, match="one set for all contexts"):
        minimize(model, Box(5).at(), torch.zeros(3, 2, dtype=DOUBLE), method="newton_cg")
