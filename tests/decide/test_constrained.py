"""Decisions under learned constraints: feasible, certified by a Lagrangian bound, or proved infeasible."""

from __future__ import annotations

import time
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from tolerances import CERTIFIED, DOUBLE, VALUE
from zoo import MODELS, SETS, shaken

import soctk
from soctk import Box, Polyhedron, Status
from soctk.decide.constrained import _Lifted

CONTEXT = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)


def shifted(model: soctk.ConvexSurrogate, feasible_set: soctk.FeasibleSet, share: float) -> soctk.ConvexSurrogate:
    """Return the surrogate of -x less a level between its least and its largest value over the set.

    All of the zoo rise in the same directions: with -x a limit is in the way of the others' minima.
    """
    with torch.no_grad():
        model.x_scale.neg_()
    values = model(feasible_set.sample((200,), torch.Generator().manual_seed(1)), CONTEXT[:1].expand(200, -1)).detach()
    level = float(values.min() + share * (values.max() - values.min()))
    with torch.no_grad():
        model.value_mean.sub_(level)
    return model


@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize(
    ("kind", "others"),
    [("soc", ["relu"]), ("relu", ["soc"]), ("softplus", ["hyperbolic"]), ("relu", ["relu"]), ("soc", ["relu", "soc"])],
)
def test_decisions_are_feasible_certified_and_right(kind: str, others: list[str], set_name: str) -> None:
    """One limit by a search for its multiplier, several by an outside solver."""
    feasible_set, model = SETS[set_name](4), shaken(MODELS[kind](4))
    limits = [shifted(shaken(MODELS[other](4)), feasible_set, 0.3) for other in others]
    decision = soctk.minimize(model, feasible_set, CONTEXT[:1], subject_to=limits)
    assert (decision.status == Status.OPTIMAL).all()
    assert list(decision.solver) == ["newton" if len(limits) == 1 else "cvxpy"]
    assert max(float(limit(decision.x, CONTEXT[:1]).detach().max()) for limit in limits) <= 1e-7
    assert float(decision.relative_gap.max()) <= CERTIFIED
    x = cp.Variable(4)
    bounds = [*feasible_set.constraints(x), *(limit.to_cvxpy(x, CONTEXT[0]) <= 0 for limit in limits)]
    optimum = cp.Problem(cp.Minimize(model.to_cvxpy(x, CONTEXT[0])), bounds).solve(solver="CLARABEL")
    size = max(1.0, abs(optimum))
    assert float(decision.lower_bound[0]) <= optimum + 1e-7 * size
    assert float(decision.value[0]) == pytest.approx(optimum, abs=3e-6 * size)
    free = soctk.minimize(model, feasible_set, CONTEXT[:1])
    assert float(decision.value[0]) >= float(free.lower_bound[0])


def test_the_closest_point_of_a_ball() -> None:
    """min |x - c|^2 subject to |x|^2 <= 1: c / |c|."""
    center = torch.tensor([3.0, 4.0], dtype=DOUBLE)
    f = soctk.from_quadratic(2 * np.eye(2), (-2 * center).numpy(), float(center @ center))
    ball = soctk.from_quadratic(2 * np.eye(2), np.zeros(2), -1.0)
    decision = soctk.minimize(f, Box(2, -5.0, 5.0), subject_to=[ball])
    torch.testing.assert_close(decision.x, center / 5, rtol=0, atol=1e-4)
    assert float(decision.value) == pytest.approx(16.0, abs=1e-5)
    slack = soctk.minimize(f, Box(2, -5.0, 5.0), subject_to=[soctk.from_quadratic(2 * np.eye(2), np.zeros(2), -100.0)])
    torch.testing.assert_close(slack.x, center, rtol=0, atol=1e-4)


def test_what_cannot_be_met_is_proved() -> None:
    f = soctk.from_quadratic(np.eye(2), np.zeros(2), 0.0)
    never, half = (soctk.from_quadratic(np.eye(2), np.array([a, 0.0]), b) for a, b in ((0.0, 1.0), (1.0, 0.0)))
    assert soctk.minimize(f, Box(2), subject_to=[never]).status == Status.INFEASIBLE
    other = soctk.from_quadratic(np.eye(2), np.array([-1.0, 0.0]), 0.0)
    both = soctk.minimize(f, Polyhedron(2, -1.0, 1.0, G=[[0.0, -1.0]], h=[-0.5]), subject_to=[half, other])
    assert both.status == Status.INFEASIBLE
    assert bool(both.x.isnan().all())


def test_what_does_not_go_together_is_refused() -> None:
    model, feasible_set = MODELS["soc"](3), Box(3)
    with pytest.raises(ValueError, match=r"subject_to\[0\]: expected a surrogate of 3 variables"):
        soctk.minimize(model, feasible_set, CONTEXT, subject_to=[MODELS["soc"](2)])
    days = soctk.Simplex(3).at(total=np.array([1.0, 1.1, 1.2, 0.9]))
    with pytest.raises(NotImplementedError, match="several constraints are decided over one set"):
        soctk.minimize(model, days, CONTEXT, subject_to=[MODELS["soc"](3), MODELS["relu"](3)])
    with pytest.raises(ValueError, match="neither method"):
        soctk.minimize(model, feasible_set, CONTEXT, subject_to=[MODELS["soc"](3)], method="newton")
    with pytest.raises(ValueError, match="nor infeasible"):
        soctk.minimize(model, feasible_set, CONTEXT, subject_to=[MODELS["soc"](3)], infeasible="nearest")
    for one in (MODELS["soc"](3), (MODELS["soc"](3), 1.0)):
        with pytest.raises(TypeError, match="put it into brackets"):
            soctk.minimize(model, feasible_set, CONTEXT, subject_to=one)
    with pytest.raises(ValueError, match=r"subject_to\[0\]: level: expected a number or batch shape \(4,\).*repeat it"):
        soctk.minimize(model, feasible_set, CONTEXT, subject_to=[(MODELS["soc"](3), [1.0, 2.0])])
    with pytest.raises(ValueError, match=r"subject_to\[0\]: expected a surrogate or \(surrogate, level\)"):
        soctk.minimize(model, feasible_set, CONTEXT, subject_to=[(MODELS["soc"](3), 1.0, 2.0)])
    with pytest.raises(ValueError, match=r"subject_to\[0\]: level: expected finite"):
        soctk.minimize(model, feasible_set, CONTEXT, subject_to=[(MODELS["soc"](3), float("nan"))])
    with pytest.raises(TypeError, match=r"subject_to\[0\]: expected a soctk surrogate"):
        soctk.minimize(model, feasible_set, CONTEXT, subject_to=[torch.nn.Linear(3, 1)])


@pytest.mark.parametrize("unit", [1e-12, 2e-10, 1e-4, 1e4, 1e9])
def test_a_constraint_says_the_same_in_any_unit(unit: float) -> None:
    """min |x|^2 / 2 - x_1 - x_2 subject to |x|^2 <= 1/2: (1/2, 1/2); and subject to |x|^2 <= -1/2: nothing."""
    f = soctk.from_quadratic(np.eye(2), np.array([-1.0, -1.0]))
    ball, never = (soctk.from_quadratic(unit * np.eye(2), np.zeros(2), level * unit) for level in (-0.25, 0.25))
    decision = soctk.minimize(f, Box(2, -1.0, 1.0), subject_to=[ball])
    assert decision.status == Status.OPTIMAL
    torch.testing.assert_close(decision.x, torch.full((2,), 0.5, dtype=DOUBLE), rtol=0, atol=1e-4)
    assert float(decision.violation) <= 1e-7 * unit
    assert soctk.minimize(f, Box(2, -1.0, 1.0), subject_to=[never]).status == Status.INFEASIBLE


@pytest.mark.parametrize("offset", [0.0, 20.0, 1e3])
@pytest.mark.parametrize("unit", [1e-9, 1e-4, 1.0, 1e6, 1e9])
def test_a_decision_is_the_same_in_any_unit_of_x(unit: float, offset: float) -> None:
    """min |z - c|^2 subject to |z|^2 <= 1, z = x / unit - offset: c / |c|, in coordinates of units far apart."""
    units = torch.tensor([1.0, 1e-3, 1e2], dtype=DOUBLE) * unit
    center = torch.tensor([2.0, -1.0, 2.0], dtype=DOUBLE)

    def distance(point: torch.Tensor, level: float) -> soctk.ConvexSurrogate:
        """Return |z - point|^2 - level as a function of x."""
        moved = point + offset
        return soctk.from_quadratic(torch.diag(2 / units**2), -2 * moved / units, float(moved @ moved) - level)

    middle = offset * units
    feasible_set = Box(3, middle - 3 * units, middle + 3 * units)
    decision = soctk.minimize(distance(center, 0.0), feasible_set, subject_to=[distance(0 * center, 1.0)])
    assert decision.status == Status.OPTIMAL
    torch.testing.assert_close(decision.x / units - offset, center / 3, rtol=0, atol=1e-3)
    assert float(decision.value) == pytest.approx(4.0, abs=1e-5)
    assert float(decision.multipliers) == pytest.approx(2.0, abs=5e-3)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1e5, 1e12])
def test_a_decision_is_the_same_in_any_unit_of_the_cost(unit: float, count: int) -> None:
    """A cost that hardly varies has a gap of its own; a large one is divided by what it varies by."""
    feasible_set, model = Box(4), shaken(MODELS["softplus"](4))
    limits = [shifted(shaken(MODELS["hyperbolic"](4)), feasible_set, 0.2)] * count
    expected = soctk.minimize(model, feasible_set, CONTEXT, subject_to=limits, tol=1e-8)
    with torch.no_grad():
        model.value_scale.mul_(unit)
        model.value_mean.mul_(unit)
    decision = soctk.minimize(model, feasible_set, CONTEXT, subject_to=limits)
    assert list(decision.status) == list(expected.status)
    met = torch.from_numpy(decision.status == Status.OPTIMAL)
    assert bool(met.any())
    torch.testing.assert_close(decision.value[met] / unit, expected.value[met], rtol=1e-5, atol=5e-3)
    assert bool((decision.lower_bound / unit <= expected.value + 1e-7 * expected.value.abs())[met].all())


def test_a_large_batch_of_one_limit_is_right_everywhere() -> None:
    """Limits that cost nothing, something, or cannot be met, side by side: x is the projection of c onto a ball."""
    generator = torch.Generator().manual_seed(0)
    contexts = 3 * torch.randn(300, 3, generator=generator, dtype=DOUBLE)
    cost = soctk.SOCICNN(3, 3, quadratics=(3,), conditioning="additive", seed=0)
    limit = soctk.SOCICNN(3, 3, norms=(3,), conditioning="additive", seed=1)
    box = Box(3, -1.0, 1.0)
    with torch.no_grad():
        level = limit(box.sample((300,), generator), contexts).median()
        limit.value_mean.sub_(level)
    decision = soctk.minimize(cost, box, contexts, subject_to=[limit])
    met, least = decision.status == Status.OPTIMAL, soctk.minimize(limit, box, contexts)
    assert set(decision.status.tolist()) == {Status.OPTIMAL, Status.INFEASIBLE}
    assert bool((least.lower_bound[~torch.from_numpy(met)] > 0).all())
    assert bool((least.value[torch.from_numpy(met)] <= 0).all())
    for row in np.flatnonzero(met)[:40]:
        x = cp.Variable(3)
        bounds = [*box.constraints(x), limit.to_cvxpy(x, contexts[row]) <= 0]
        optimum = cp.Problem(cp.Minimize(cost.to_cvxpy(x, contexts[row])), bounds).solve(solver="CLARABEL")
        size = max(1.0, abs(optimum))
        assert float(decision.lower_bound[row]) <= optimum + 1e-7 * size
        assert float(decision.value[row]) <= optimum + 3e-6 * size


def test_levels_are_what_limits_are_relaxed_to() -> None:
    """One for each context, of any batch shape; the multiplier is the slope of the optimal value in it."""
    feasible_set, model = Box(4), shaken(MODELS["softplus"](4))
    limit = shifted(shaken(MODELS["hyperbolic"](4)), feasible_set, 0.4)
    contexts, levels = CONTEXT[:1].expand(2, 3, -1), torch.tensor([[-0.02, 0.0, 0.02], [0.1, -0.05, 9.0]], dtype=DOUBLE)
    decision = soctk.minimize(model, feasible_set, contexts, subject_to=[(limit, levels)], tol=1e-8)
    assert (decision.status == Status.OPTIMAL).all()
    assert decision.multipliers is not None
    assert decision.multipliers.shape == (2, 3, 1)
    assert bool((limit(decision.x, contexts) <= levels + 1e-7).all())
    assert bool((limit(decision.x, contexts) >= levels - 1e-5)[decision.multipliers[..., 0] > 1e-3].all())
    value, u = decision.value.reshape(-1), decision.multipliers.reshape(-1)
    gained = (value[2] - value[0]) / 0.04
    assert -float(u[0]) - 1e-5 <= float(gained) <= -float(u[2]) + 1e-5
    assert float(u[5]) == 0.0
    with torch.no_grad():
        limit.value_mean.sub_(0.1)
    alone = soctk.minimize(model, feasible_set, CONTEXT[:1], subject_to=[limit], tol=1e-8)
    assert float(alone.value) == pytest.approx(float(value[3]), abs=1e-7)
    for several in ([(limit, 0.0), limit], [[limit, 0.0]]):
        same = soctk.minimize(model, feasible_set, CONTEXT[:1], subject_to=several)
        assert float(same.value) == pytest.approx(float(value[3]), abs=1e-5)


@pytest.mark.parametrize("kind", ["soc", "relu"])
def test_a_limit_over_right_hand_sides_of_each_context(kind: str) -> None:
    """Each day is decided as over its own set alone; days without a point are infeasible."""
    base = Polyhedron(4, 0.0, 1.0, E=np.ones(4), f=2.0, G=[[1.0, -1.0, 0.0, 0.0]], h=[0.3])
    totals = np.array([[1.0], [1.5], [2.0], [2.5], [9.0], [1.8]])
    contexts = torch.randn(6, 3, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    model, limit = shaken(MODELS[kind](4)), shifted(shaken(MODELS["hyperbolic"](4)), Box(4), 0.6)
    levels = limit(base.project(torch.zeros(6, 4, dtype=DOUBLE)), contexts).detach() - 0.05
    decision = soctk.minimize(model, base.at(f=totals), contexts, subject_to=[(limit, levels)])
    assert decision.status[4] == Status.INFEASIBLE
    assert (decision.status == Status.OPTIMAL).sum() >= 3
    assert decision.multipliers is not None
    assert bool(decision.multipliers[4].isnan())
    assert bool((decision.multipliers[torch.from_numpy(decision.status == Status.OPTIMAL)] > 1e-3).any())
    for row in (0, 1, 2, 3, 5):
        alone = Polyhedron(4, 0.0, 1.0, E=np.ones(4), f=totals[row], G=[[1.0, -1.0, 0.0, 0.0]], h=[0.3])
        one = soctk.minimize(model, alone, contexts[row : row + 1], subject_to=[(limit, levels[row : row + 1])])
        assert list(one.status) == [decision.status[row]]
        assert float(decision.violation[row].nan_to_num()) <= 1e-9
        if one.status[0] == Status.OPTIMAL:
            assert float(one.value) == pytest.approx(float(decision.value[row]), abs=3e-6)


def test_a_cost_that_asks_for_an_outside_solver_is_decided_under_a_limit_over_right_hand_sides() -> None:
    """A model's `decision_method` is of decisions without limits: the Lagrangian is no longer that model."""

    class Asks(soctk.SOCICNN):
        decision_method = "cvxpy"

    days, limit = soctk.Simplex(4).at(total=np.array([1.0, 2.0])), shifted(shaken(MODELS["hyperbolic"](4)), Box(4), 0.6)
    asks, plain = (
        soctk.minimize(kind(4, 3, quadratics=(4,), seed=0), days, CONTEXT[:2], subject_to=[limit])
        for kind in (Asks, soctk.SOCICNN)
    )
    assert list(asks.status) == list(plain.status)
    assert asks.status[0] == Status.OPTIMAL
    assert float(asks.value[0]) == pytest.approx(float(plain.value[0]), abs=2e-6)


def test_multipliers_bound_what_other_limits_cost() -> None:
    """The optimal value under g <= r is at least lower_bound - u'r for every r, and about that where r is small."""
    feasible_set, model = Box(4), shaken(MODELS["soc"](4))
    limits = [
        shifted(shaken(MODELS["relu"](4)), feasible_set, 0.4),
        shifted(shaken(MODELS["hyperbolic"](4)), feasible_set, 0.3),
    ]
    decision = soctk.minimize(model, feasible_set, CONTEXT[:1], subject_to=limits)
    assert decision.multipliers is not None
    assert decision.multipliers.shape == (1, 2)
    u = decision.multipliers[0]
    assert bool((u >= 0).all())
    assert bool((u > 1e-3).any())
    for r in ([0.01, 0.0], [0.0, 0.02], [-0.01, -0.01], [0.3, 0.2], [5.0, 5.0]):
        for limit, by in zip(limits, r, strict=True):
            with torch.no_grad():
                limit.value_mean.sub_(by)
        other = soctk.minimize(model, feasible_set, CONTEXT[:1], subject_to=limits)
        for limit, by in zip(limits, r, strict=True):
            with torch.no_grad():
                limit.value_mean.add_(by)
        if other.status != Status.INFEASIBLE:
            assert float(other.value) >= float(decision.lower_bound) - float(u @ torch.tensor(r, dtype=DOUBLE)) - 1e-6


def test_multipliers_of_what_cannot_be_met_prove_it() -> None:
    f = soctk.from_quadratic(np.eye(2), np.zeros(2), 0.0)
    left, right = (soctk.from_quadratic(np.eye(2), np.array([a, 0.0]), 0.3) for a in (-1.0, 1.0))
    decision = soctk.minimize(f, Box(2, -2.0, 2.0), subject_to=[left, right])
    assert decision.status == Status.INFEASIBLE
    assert decision.multipliers is not None
    assert float(decision.multipliers.sum()) == pytest.approx(1.0)
    assert bool((decision.multipliers >= 0).all())
    points = Box(2, -2.0, 2.0).sample((500,), torch.Generator().manual_seed(0))
    values = torch.stack([left(points), right(points)], dim=-1).detach()
    assert bool((values @ decision.multipliers > 0).all())
    assert bool((values.amin(dim=-1) <= 0).any()), "each constraint alone can be met"


@pytest.mark.parametrize("unit", [1.0, 1e6])
def test_several_limits_that_are_only_just_not_met_are_proved(unit: float) -> None:
    """By 1e-4 of their numbers, where outside solvers fail to say so; the weights of the limits prove it."""
    random, box = np.random.default_rng(1), Box(3, -1.0, 1.0)
    points = box.sample((500,), torch.Generator().manual_seed(0))
    for _ in range(20):
        x, A, b = cp.Variable(3), random.normal(size=(3, 3)), random.normal(size=3)
        C, c, slope = random.normal(size=(6, 3)), random.normal(size=6), random.normal(size=3)
        limited = [cp.sum_squares(A @ x - b - 2), cp.sum(cp.pos(C @ x + c))]
        least = cp.Problem(cp.Minimize(cp.maximum(*limited)), box.constraints(x)).solve(cp.CLARABEL)
        level = unit * (1 - 1e-4) * float(least)
        limits = [(soctk.from_cvxpy(unit * each, x), level) for each in limited]
        decision = soctk.minimize(soctk.from_quadratic(np.zeros((3, 3)), slope), box, subject_to=limits)
        assert decision.status == "infeasible"
        over = torch.stack([each(points) - level for each, _ in limits], dim=-1) @ decision.multipliers
        assert bool((over > 0).all())


def test_multipliers_are_those_of_the_bound_where_a_solver_gives_none() -> None:
    """The limits leave the best decision alone, where outside solvers fail at times."""
    random, box, unit, a = np.random.default_rng(0), Box(2, -1.0, 1.0), 1e6, np.array([0.717, 0.5505])
    for _ in range(60):
        best = np.array([-0.0758, 0.1585]) + 1e-3 * random.normal(size=2)
        cost = soctk.from_quadratic(np.eye(2), -best)
        ball = soctk.from_quadratic(unit * np.eye(2), -unit * best)
        half = soctk.from_quadratic(np.zeros((2, 2)), a)
        limits = [(ball, -unit * float(best @ best) / 2), (half, float(a @ best))]
        decision = soctk.minimize(cost, box, subject_to=limits)
        assert decision.status == "optimal"
        assert bool((decision.multipliers >= 0).all())


@pytest.mark.parametrize("count", [1, 2])
def test_a_time_limit_calls_nothing_inaccurate(count: int) -> None:
    model, limits = shaken(MODELS["soc"](4)), [shifted(shaken(MODELS["relu"](4)), Box(4), 0.4)] * count
    contexts = CONTEXT[:1].expand(2000, -1)
    for seconds in (1e-6, 0.03, 0.3):
        decision = soctk.minimize(model, Box(4), contexts, subject_to=limits, time_limit=seconds)
        assert set(map(type, decision.status)) == {Status}
        assert set(decision.status.tolist()) <= {Status.OPTIMAL, Status.TIME_LIMIT}
        known = decision.x.isfinite().all(dim=1)
        assert bool((limits[0](decision.x[known], contexts[known]) <= 1e-6).all())
        assert bool((decision.value[known] >= decision.lower_bound[known] - VALUE[DOUBLE]).all())
        if seconds < 1e-5 or count == 2:  # what is solved one by one is not reached
            assert bool(decision.x.isnan().any(dim=1)[-1])


def test_what_is_solved_in_time_is_proved_in_time(monkeypatch) -> None:
    """A solve takes a second of this clock: of ten some eight solve, and bounds are found before the end."""
    clock, solve = [0.0], _Lifted.solve

    def slow(*given: Any) -> Status:
        clock[0] += 1.0
        return solve(*given)

    model, limits = shaken(MODELS["soc"](4)), [shifted(shaken(MODELS["relu"](4)), Box(4), 0.4)] * 2
    between = Polyhedron(4, 0.0, 1.0, G=[[1.0, 1.0, 0.0, 0.0]], h=[1.5])
    monkeypatch.setattr(_Lifted, "solve", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    decision = soctk.minimize(model, between, CONTEXT[:1].expand(20, -1), subject_to=limits, time_limit=10.5)
    assert int(decision.optimal.sum()) >= 8
    assert clock[0] <= 12.0


def test_time_that_runs_out_in_a_later_attempt_is_said(monkeypatch) -> None:
    """To a tolerance that rounding forbids nothing is proved: the first attempt ends in time, the second does not."""
    clock, solve = [0.0], _Lifted.solve

    def slow(*given: Any) -> Status:
        clock[0] += 1.0
        return solve(*given)

    model, limits = shaken(MODELS["soc"](4)), [shifted(shaken(MODELS["relu"](4)), Box(4), 0.4)] * 2
    options = {"subject_to": limits, "tol": 1e-14}
    assert set(soctk.minimize(model, Box(4), CONTEXT[:3], **options).status.tolist()) == {Status.INACCURATE}
    monkeypatch.setattr(_Lifted, "solve", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    late = soctk.minimize(model, Box(4), CONTEXT[:3], **options, time_limit=4.5)
    assert clock[0] > 4.5
    assert set(late.status.tolist()) == {Status.TIME_LIMIT}


def test_no_context_has_no_decision() -> None:
    model = shaken(MODELS["soc"](4))
    none = soctk.minimize(model, Box(4), CONTEXT[:0], subject_to=[shaken(MODELS["relu"](4))])
    assert none.x.shape == (0, 4)
    assert none.multipliers is not None
    assert none.multipliers.shape == (0, 1)


@pytest.mark.parametrize("days", [False, True])
@pytest.mark.parametrize(("past", "tol"), [(0.0, 1e-6), (1e-5, 1e-3), (-1e-5, 1e-3)])
def test_a_limit_that_is_only_just_met(past: float, tol: float, days: bool) -> None:
    """At its least value, and beside it by less than the tolerance of decisions, of pieces that are affine."""
    generator = np.random.default_rng(1)
    planes = [(generator.normal(size=(20, 3)), generator.normal(size=20)) for _ in range(2)]
    cost, limit = (soctk.from_max_affine(*part) for part in planes)
    base = soctk.Budget(3, 1.2)
    level = float(soctk.minimize(limit, base, tol=1e-9).lower_bound) + past
    decision = soctk.minimize(cost, base.at() if days else base, subject_to=[(limit, level)], tol=tol)
    if past < 0:
        assert decision.status == Status.INFEASIBLE
        return
    assert decision.status == Status.OPTIMAL
    assert float(limit(decision.x)) <= level + 1e-7
    x = cp.Variable(3)
    met = [planes[1][0] @ x + planes[1][1] <= level + 1e-9]
    problem = cp.Problem(cp.Minimize(cp.max(planes[0][0] @ x + planes[0][1])), [*base.constraints(x), *met])
    assert float(decision.lower_bound) <= problem.solve(solver="CLARABEL") + 1e-6


def test_a_limit_that_costs_nothing_changes_nothing() -> None:
    """What Newton steps leave of the cost alone is solved by another method under a limit too."""
    generator = np.random.default_rng(2)
    cost = soctk.from_max_affine(
        generator.integers(-2, 3, (100, 60)).astype(float), generator.integers(-2, 3, 100).astype(float)
    )
    total, base = soctk.from_quadratic(np.zeros((60, 60)), np.ones(60)), Polyhedron(60, -1.0, 1.0)
    for feasible_set in (base, base.at()):
        decision = soctk.minimize(cost, feasible_set, subject_to=[(total, 1000.0)])
        assert decision.status == Status.OPTIMAL
        assert float(decision.value) == pytest.approx(float(soctk.minimize(cost, base).value), abs=2e-6)


def test_networks_with_many_kinks() -> None:
    """Near kinks Newton steps are short: the search begins each of its steps at the centre."""
    for seed in (0, 16, 23):
        cost, limit = (soctk.ReLUICNN(60, 0, seed=2 * seed + k) for k in (0, 1))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weights in (*cost.parameters(), *limit.parameters()):
                weights.add_(0.3 * torch.randn(weights.shape, generator=generator, dtype=weights.dtype))
            sets = soctk.Budget(60, 18.0).at()
            least, most = soctk.minimize(limit, sets).value, limit(soctk.minimize(cost, sets).x)
        decision = soctk.minimize(cost, sets, subject_to=[(limit, (least + most) / 2)])
        assert decision.status == Status.OPTIMAL
        assert decision.multipliers is not None
        assert float(decision.multipliers) > 0


def test_limits_near_the_least_value_of_what_is_limited_are_met() -> None:
    """There its numbers are a hundredth of those at the centre, and no solver meets it to 1e-7 of them."""
    f, g, other = (soctk.SOCICNN(5, 2, hidden=(6,), quadratics=(3,), norms=(2,), seed=seed) for seed in (1, 101, 201))
    rng, box = np.random.default_rng(3), Box(5, -1, 1)
    for _ in range(3):
        context = rng.normal(size=(5, 2))
        least = soctk.minimize(g, box, context).value
        decision = soctk.minimize(f, box, context, subject_to=[(g, least + 1e-3), (other, 5.0)])
        assert decision.optimal.all()
        assert bool((g(decision.x, context) <= least + 1e-3 + 1e-7).all())
