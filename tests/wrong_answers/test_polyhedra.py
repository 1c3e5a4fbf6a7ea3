"""Decisions over polyhedra with right-hand sides of their own that went wrong."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from tolerances import DOUBLE
from zoo import MODELS, shaken

import soctk
from soctk import Box, Budget, Polyhedron, Simplex, Status
from soctk.decide.problem import Problem
from soctk.decide.result import Result
from soctk.decide.units import Rescaled


def context(count: int) -> torch.Tensor:
    """Contexts of the zoo's models."""
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)


@pytest.mark.parametrize(
    "sides", [{}, {"E": np.ones(4), "f": 1.5}, {"G": [[1.0, 1, 0, 0], [0, 1, 1, 0]], "h": [0.7, 1]}]
)
def test_affine_models_have_decisions(sides: dict) -> None:
    """They have no terms, and it was taken for granted that there are some."""
    model = shaken(MODELS["affine"](4))
    base = Polyhedron(4, 0.0, 1.0, **sides)
    decision = soctk.minimize(model, base.at(lower=torch.zeros(3, 4)), context(3))
    assert (decision.status == Status.OPTIMAL).all()
    x = decision.x.clone().requires_grad_()
    best = base.linear_minimizer(torch.autograd.grad(model(x, context(3)).sum(), x)[0])
    torch.testing.assert_close(decision.value, model(best, context(3)).detach(), rtol=1e-6, atol=1e-6)


def test_affine_functions_are_certified_over_sets_of_their_own() -> None:
    model, sets = soctk.from_quadratic(np.zeros((3, 3)), [1.0, -1.0, 0.5]), Budget(3, 1.0).at(total=[0.5, 1.0, 2.0])
    decision = soctk.minimize(model, sets)
    assert float(soctk.certify(model, sets, decision.x).relative_gap.max()) <= 1e-6


def test_bounds_that_cross_are_said_to_and_are_moved_apart() -> None:
    """No multipliers of rows prove it, and where there were no rows the search was said to have stopped."""
    lower, upper = torch.zeros(3, 4, dtype=DOUBLE), torch.ones(3, 4, dtype=DOUBLE)
    lower[1, 2], upper[1, 2] = 0.8, 0.3
    for base in (Box(4), Budget(4, 1.5), Polyhedron(4, 0.0, 1.0, G=np.ones(4), h=2.0)):
        model, sets = shaken(MODELS["soc"](4)), base.at(lower=lower, upper=upper)
        decision = soctk.minimize(model, sets, context(3))
        assert decision.status.tolist() == [Status.OPTIMAL, Status.INFEASIBLE, Status.OPTIMAL]
        assert float(sets.refutes(*decision.ray)[1]) > 0
        near = soctk.minimize(model, sets, context(3), infeasible="nearest")
        assert near.optimal.all()
        assert float(near.relaxation[1]) == pytest.approx(0.5, abs=1e-6)
        assert float(near.x[1, 2]) == pytest.approx(0.8, abs=1e-6)
        assert soctk.minimize(model, sets, context(3), method="cvxpy").status[1] == Status.INFEASIBLE
        with pytest.raises(RuntimeError, match=r"1 of 3 sets are empty \(instances 1\)"):
            soctk.DecisionLayer(model, base)(context(3), lower=lower, upper=upper)


def test_prices_are_in_the_units_of_the_value() -> None:
    """Those of a problem that is solved in units of its own were in these."""
    model, sets = shaken(MODELS["soc"](4)), Polyhedron(4, 0.0, 1.0, np.ones(4), 1.5, np.eye(4)[:2], [0.4, 0.4]).at()
    expected = soctk.minimize(model, sets, context(3), tol=1e-9).prices
    prices = soctk.minimize(model, sets, context(3), tol=1e-9, scale=[0.01, 100.0, 1.0]).prices
    for name in ("lower", "upper", "f", "h"):
        torch.testing.assert_close(getattr(prices, name), getattr(expected, name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [{"lower": [np.inf, 0, 0]}, {"upper": [-np.inf, 1, 1]}])
def test_infinite_bounds_on_the_wrong_side_are_refused(side: dict) -> None:
    with pytest.raises(ValueError, match="expected finite numbers"):
        Box(3).at(**side)


def test_right_hand_sides_of_two_batch_shapes_are_refused() -> None:
    """They were broadcast against each other."""
    base = Polyhedron(3, 0.0, 1.0, np.ones(3), 1.0, np.eye(3)[:2], [1.0, 1.0])
    with pytest.raises(ValueError, match="one batch shape"):
        base.at(f=np.ones((3, 1, 1)), h=np.ones((1, 4, 2)))
    with pytest.raises(ValueError, match="one batch shape"):
        base.at(f=np.ones((2, 3, 1)), h=np.ones((3, 2)))


def test_layers_take_no_contexts_with_right_hand_sides() -> None:
    totals = torch.zeros(0, dtype=DOUBLE, requires_grad=True)
    layer = soctk.DecisionLayer(shaken(MODELS["soc"](3)), Budget(3, 1.0))
    assert layer(context(3)[:0], total=totals).shape == (0, 3)
    layer.optimal_value(context(3)[:0], total=totals).sum().backward()


def test_optimal_values_of_single_points_have_derivatives() -> None:
    """They were constants."""
    model = shaken(MODELS["soc"](2))
    f = torch.tensor([[0.3, 0.2], [0.1, 0.4]], dtype=DOUBLE, requires_grad=True)
    given = context(2).requires_grad_()
    layer = soctk.DecisionLayer(model, Polyhedron(2, -5.0, 5.0, np.eye(2), [0.3, 0.2]))
    found = torch.autograd.grad(layer.optimal_value(given, f=f).sum(), (f, given))
    expected = torch.autograd.grad(model(f, given).sum(), (f, given))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_what_is_infeasible_depends_neither_on_units_of_rows_nor_on_the_batch() -> None:
    """A large number in one row, or in another set of the batch, let violations of other rows pass."""
    model = shaken(MODELS["soc"](3))
    base = Polyhedron(3, -1.0, 1.0, np.eye(3), np.zeros(3), [[1e6, 0, 0], [0, 1.0, 0]], [1e6, 1.0])
    f = torch.tensor([[0.0, 0.5, 0.0], [0.0, 0.5 + 1e-5, 0.0], [0.0, 0.5, 0.0]], dtype=DOUBLE)
    h = torch.tensor([[1e6, 0.5], [1e6, 0.5], [1e9, 0.5]], dtype=DOUBLE)
    decision = soctk.minimize(model, base.at(f=f, h=h), context(3))
    assert decision.status.tolist() == [Status.OPTIMAL, Status.INFEASIBLE, Status.OPTIMAL]


def test_single_points_among_other_sets_are_optimal() -> None:
    """A gap of 1e-14 was measured in units of the range over the set, which is zero but for rounding."""
    model, lower = shaken(MODELS["softplus"](1)), torch.linspace(-1.0, 1.0, 30, dtype=DOUBLE).unsqueeze(1)
    upper = lower.clone()
    upper[0] = 2.0
    assert soctk.minimize(model, Box(1).at(lower=lower, upper=upper), context(30)).optimal.all()


def test_decisions_that_turn_where_constraints_meet_have_no_derivative() -> None:
    """Two rows gave one end; each had half of a derivative that is there to one side alone."""
    model, given = shaken(MODELS["soc"](3)), context(1)
    layer = soctk.DecisionLayer(model, Polyhedron(3, 0.0, 1.0, G=[[1, 1, 1], [2, 2, 2.0]], h=[1.0, 2.0]))
    h = torch.tensor([[0.3, 0.6]], dtype=DOUBLE, requires_grad=True)
    with pytest.raises(RuntimeError, match="no derivative"):
        layer(given, h=h)[0, 1].backward()
    slack = torch.tensor([[0.3, 0.7]], dtype=DOUBLE, requires_grad=True)
    layer(given, h=slack)[0].sum().backward()
    torch.testing.assert_close(slack.grad, torch.tensor([[1.0, 0.0]], dtype=DOUBLE), rtol=1e-6, atol=1e-6)
    moved = given.clone().requires_grad_()
    layer(moved, h=h.detach())[0, 1].backward()
    assert moved.grad is not None


def test_nearest_sets_have_points_whatever_the_units_of_rows() -> None:
    """A linear programme is solved to 1e-10, which for a row divided by a million is much."""
    generator, units = torch.Generator().manual_seed(0), torch.tensor([[1e2], [1e-5], [1e3]], dtype=DOUBLE)
    base = Polyhedron(4, -1.0, 1.0, units * torch.randn(3, 4, generator=generator, dtype=DOUBLE), np.zeros(3))
    f = 500 * torch.randn(20, 3, generator=generator, dtype=DOUBLE)
    decision = soctk.minimize(shaken(MODELS["soc"](4)), base.at(f=f), context(20), infeasible="nearest")
    assert (decision.status != Status.INFEASIBLE).all()
    assert bool((decision.violation <= decision.relaxation * (1 + 1e-6)).all())


DIAMOND = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
EMPTY_AND_ENDLESS = {
    "a simplex of nothing": (Simplex(4), {"total": -1.0}, 1.0),
    "a simplex of less than its least": (Simplex(4), {"lower": [0.7, 0.7, 0.0, 0.0]}, 0.4),
    "a row of both signs of bounds": (Polyhedron(3, 0.0, np.inf, [[1.0, 2, 1]], 1.0), {"f": -1.0}, 1.0),
    "below their upper ends": (Polyhedron(4, -np.inf, 0.0, np.ones(4), -1.0), {"f": 1.0}, 1.0),
    "an inequality": (Polyhedron(4, 0.0, np.inf, G=np.ones(4), h=1.0), {"h": -1.0}, 1.0),
    "rows alone": (
        Polyhedron(2, -np.inf, np.inf, G=[[1.0, 0], [-1, 0], [0, 1], [0, -1]], h=np.ones(4)),
        {"h": -1.0},
        4.0,
    ),
    "rows together": (Polyhedron(2, -np.inf, np.inf, G=DIAMOND, h=np.ones(4)), {"h": -1.0}, 4.0),
}


@pytest.mark.parametrize("name", EMPTY_AND_ENDLESS)
def test_empty_sets_without_upper_ends_are_proved_empty(name: str) -> None:
    """The row that contradicts the bounds was taken to imply an upper end below the lower one: over a box turned inside
    out no multipliers proved anything, and the answer was a point outside, "inaccurate"."""
    base, sides, away = EMPTY_AND_ENDLESS[name]
    model, sets = shaken(MODELS["soc"](base.dim)), base.at(**sides)
    for method in ("newton", "cvxpy"):
        decision = soctk.minimize(model, sets, context(2), method=method)
        assert (decision.status == Status.INFEASIBLE).all()
        assert bool(decision.x.isnan().all())
    assert bool((sets.refutes(*soctk.minimize(model, sets, context(2)).ray) > 0).all())
    near = soctk.minimize(model, sets, context(2), infeasible="nearest")
    assert near.optimal.all()
    torch.testing.assert_close(near.relaxation, torch.full((2,), away, dtype=DOUBLE), rtol=1e-6, atol=1e-6)
    assert bool((near.violation <= away * (1 + 1e-6)).all())


@pytest.mark.parametrize(("away", "tol"), [(1e7, 1e-6), (1e5, 1e-8)])
@pytest.mark.parametrize("seed", range(3))
def test_a_point_of_a_set_far_from_zero_is_not_given_up_for_one_outside(seed: int, away: float, tol: float) -> None:
    """The set with its ends moved out, so far from zero by more than .1 % of its width, has lower values."""
    random, n = np.random.default_rng(seed), 6
    model = shaken(soctk.SOCICNN(n, 3, hidden=(16,), quadratics=(n,), norms=(10,), seed=seed))
    model.set_standardization(x=(torch.full((n,), away), torch.ones(n)))
    inside = random.uniform(0.2, 0.8, n) + away
    E, G = random.normal(size=(1, n)), random.normal(size=(3, n))
    sets = Polyhedron(n, away, away + 1.0, E=E, f=E @ inside, G=G, h=G @ inside + 0.05)
    decision = soctk.minimize(model, sets, context(4), tol=tol)
    assert float(decision.violation.max()) <= 1e-13 * away
    assert bool((decision.relative_gap < 100 * tol).all())


def test_nothing_is_optimal_without_a_point() -> None:
    """Infinity is at most infinity: nothing that comes after a search without an answer was tried."""
    for size in (1, 3):
        result = Result.unanswered(torch.zeros(size, 2, dtype=DOUBLE))
        result.lower_bound[:], result.status[:] = 1.0, Status.OPTIMAL
        result.judge(1e-6)
        assert set(result.status) == {Status.STALLED}


def test_an_unknown_point_is_no_obstacle_in_units_of_its_own() -> None:
    """Its value was NaN, which no other value is below."""
    model, box = shaken(MODELS["soc"](4)), Box(4)
    problem = Problem(model.conic_form(context(2)), box, torch.full((2,), 0.1, dtype=DOUBLE))
    rescaled = Rescaled.of(problem, None)
    nothing = Result.unanswered(torch.full((2, 4), torch.nan, dtype=DOUBLE))
    found = rescaled.back(nothing)
    point = problem.center
    better = found.improve(torch.arange(2), point, model(point, context(2)).detach(), found.lower_bound)
    assert bool(better.all())


@pytest.mark.parametrize("count", [2, 40])
def test_contexts_without_numbers_have_a_decision_each(count: int) -> None:
    """One function was decided once, and the answer had no place for the others."""
    model, none = soctk.SOCICNN(4, 0, hidden=(3,), quadratics=(2,), norms=(2,), seed=0), np.zeros((count, 0))
    for feasible_set in (Box(4), Simplex(4), Budget(4, 1.0), Polyhedron(4, 0.0, 1.0, G=np.ones(4), h=2.0)):
        one = soctk.minimize(model, feasible_set)
        for found in (
            soctk.minimize(model, feasible_set, none),
            soctk.prepare(model, feasible_set).minimize(none),
        ):
            assert found.x.shape == (count, 4)
            torch.testing.assert_close(found.x, one.x.expand(count, 4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("upper", [1e7, 1e8, 1e9])
def test_a_bound_that_is_far_away_is_as_good_as_none(upper: float) -> None:
    """As sets must have ends. The rounding of a slope weighed as much as it is away, and nothing was proved."""
    model, sides = shaken(MODELS["soc"](5)), {"E": np.ones(5), "f": 2.0, "G": [1.0, -1.0, 0.5, 0.0, 0.2], "h": 5.0}
    none = soctk.minimize(model, Polyhedron(5, 0.0, np.inf, **sides), context(4))
    far = soctk.minimize(model, Polyhedron(5, 0.0, upper, **sides), context(4))
    assert (far.status == Status.OPTIMAL).all()
    torch.testing.assert_close(far.value, none.value, rtol=2e-6, atol=2e-6)
    lo, hi = Polyhedron(5, 0.0, upper, **sides).at(f=[[1.0], [2.0]]).box
    assert bool((hi <= 2.0 + 1e-9).all())
    assert bool((lo == 0.0).all())


@pytest.mark.parametrize("name", ["soc", "quad", "norm", "relu", "softplus"])
@pytest.mark.parametrize("far", [1e8, 1e10, 1e15])
@pytest.mark.parametrize("kind", ["box", "budget", "polyhedron"])
def test_bounds_that_nobody_meant_leave_decisions_as_they_are(kind: str, far: float, name: str) -> None:
    """Their width times the slope's rounding was the gap, and of a polyhedron points outside were taken instead."""
    G, h = np.array([[1.0, -1.0, 0.5, 0.0, 0.2], [0.3, 0.2, -1.0, 1.0, 0.0]]), [-1.0, -0.5]
    make = {
        "box": lambda width: Box(5, -width, width),
        "budget": lambda width: Budget(5, 1.0, -width, width),
        "polyhedron": lambda width: Polyhedron(5, -width, width, G=G, h=h),
    }[kind]
    model = shaken(MODELS[name](5))
    near, decision = (soctk.minimize(model, make(width), context(4)) for width in (3e3, far))
    assert bool((decision.violation <= 1e-9 * (1 + decision.x.abs().amax(dim=-1))).all())
    assert bool((decision.lower_bound <= near.value).all())
    if bool((near.x.abs() < 2.9e3).all()):
        assert (decision.status == Status.OPTIMAL).all()
        torch.testing.assert_close(decision.value, near.value, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["soc", "quad"])
@pytest.mark.parametrize("far", [1e8, 1e10])
@pytest.mark.parametrize("kind", ["box", "polyhedron"])
def test_bounds_that_nobody_meant_leave_derivatives_as_they_are(kind: str, far: float, name: str) -> None:
    """Gaps of their width were above `max_gap`, and derivatives refused."""
    make = {
        "box": lambda width: Box(5, -width, width),
        "polyhedron": lambda width: Polyhedron(5, -width, width, G=[[1.0, -1.0, 0.5, 0.0, 0.2]], h=1.0),
    }[kind]
    model, found = shaken(MODELS[name](5)), []
    for width in (3e3, far):
        layer, given = soctk.DecisionLayer(model, make(width)), context(4).requires_grad_()
        for answer in (layer(given).square().sum(), layer.optimal_value(given).sum()):
            found += torch.autograd.grad(answer, given)
    for near, wide in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(wide, near, rtol=5e-3, atol=1e-4 * float(near.abs().max()))


@pytest.mark.parametrize("far", [1e9, 1e14])
def test_a_function_that_falls_towards_a_far_bound_is_decided_there(far: float) -> None:
    """|x_1| + a slope of 1e-9 down in x_2: between near bounds the minimum is another one by 1e-9 times the width."""
    x = cp.Variable(2)
    model = soctk.from_cvxpy(cp.abs(x[0]) - 1e-9 * x[1], x)
    for which in (Box(2, [-far, -1.0], far), Polyhedron(2, [-far, -1.0], far, G=[[1.0, -1.0]], h=5.0)):
        decision = soctk.minimize(model, which)
        assert float(decision.lower_bound) <= -1e-9 * far * (1 - 1e-12)
        if decision.status == Status.OPTIMAL:
            torch.testing.assert_close(decision.x[1], torch.tensor(far, dtype=torch.float64), rtol=1e-3, atol=0)


@pytest.mark.parametrize("far", [1e20, 1e30, 1e100])
def test_bounds_may_be_any_number(far: float) -> None:
    model = shaken(MODELS["soc"](5))
    for near, wide in ((Box(5, -3e3, 3e3), Box(5, -far, far)), (Budget(5, 1, -3e3, 3e3), Budget(5, 1, -far, far))):
        decision = soctk.minimize(model, wide, context(4))
        assert (decision.status == Status.OPTIMAL).all()
        torch.testing.assert_close(decision.value, soctk.minimize(model, near, context(4)).value, rtol=2e-6, atol=2e-6)


def test_numbers_that_linear_programmes_take_for_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"f: expected numbers below 1e\+20 in size, got 2e\+20"):
        Polyhedron(3, 0.0, 1.0, E=np.ones(3), f=1.0).at(f=[2e20, 1.0])
    with pytest.raises(ValueError, match=r"upper: expected numbers below 1e\+20 in size, or none \(inf\), got 1e\+30"):
        Polyhedron(3, 0.0, 1e30, G=np.ones(3), h=1.0)


@pytest.mark.parametrize(("small", "f"), [(1e-9, [1.5, 0.5]), (1e-12, [1.5, 0.5])])
def test_equalities_that_hardly_differ_are_not_said_to_contradict_each_other(small: float, f: list[float]) -> None:
    """x = (.5, .5, .5 / small) is a point of the set; the constructor claimed that there is none."""
    rows = [[1, 1, small], [1, 1, -small]]
    with pytest.raises(ValueError, match="contradict one another, or hardly differ"):
        soctk.Polyhedron(3, 0, [1, 1, 1 / small], E=rows, f=f)
    with pytest.raises(ValueError, match=r"one another$"):
        soctk.Polyhedron(3, 0, 1, E=[[1, 1, 1], [2, 2, 2]], f=[1, 1])


@pytest.mark.parametrize("variant", ["soc", "quad"])
def test_models_of_sparse_maps_are_decided_where_rows_leave_work_to_a_second_solver(variant: str) -> None:
    """The products of a sparse map with no points failed, and a second solver had none left."""
    sets = soctk.Polyhedron(4, 0.0, 1.0, E=np.ones(4), f=2.0, G=np.arange(4.0), h=2.0)
    model = soctk.RecurrentSOCICNN(4, 1, 2, variant=variant, hidden=2, seed=0)
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    assert soctk.minimize(model, sets, rows).optimal.all()
    none = rows[:0]
    assert soctk.minimize(model, sets.at(f=torch.zeros(0, 1)), none).x.shape == (0, 4)
    assert soctk.DecisionLayer(model, sets)(none).shape == (0, 4)
    assert model.conic_form(none).value(torch.zeros(0, 4, dtype=DOUBLE)).shape == (0,)


def test_samples_of_a_long_thin_set_are_in_it() -> None:
    """An axis of 1e5 left the affine hull by its rounding: 2 points of 1,000 were in the set."""
    rows = {"E": [1.0, 1e-5, -1e-2, 1e-3], "f": 0.7, "G": [1.0, -1e-5, 0.0, 0.0], "h": 0.5}
    sets = soctk.Polyhedron(4, 0.0, [1.0, 1e5, 1e2, 1e3], **rows)
    points = sets.sample(1000, torch.Generator().manual_seed(0))
    assert sets.contains(points).all()
    assert points.std(dim=0).div(sets.hull()[1]).min() > 0.01  # they are not all one


def test_gaps_over_single_points_are_no_range() -> None:
    """Their first gap is rounding; a thousand times that was the unit, in which the point itself was "stalled"."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        units, E, B = 10.0 ** rng.uniform(-3, 3, size=3), rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
        f = E @ rng.uniform(0.2, 0.8, 3)
        sets = soctk.Polyhedron(3, 0.0, units.tolist(), E=E / units, f=f)
        norms = [(1.0, B / units, rng.normal(size=3))]
        form = soctk.from_quadratic(B.T @ B / units / units[:, None], rng.normal(size=3) / units, 100.0, norms=norms)
        for each in (sets, sets.at(f=f)):
            decision = soctk.minimize(form, each, tol=1e-9)
            assert decision.status == "optimal"
            assert decision.scale is None or float(decision.scale) > 90


def test_batches_without_contexts_have_prices_too() -> None:
    model, none = soctk.SOCICNN(3, 2), torch.zeros(0, 2, dtype=DOUBLE)
    plant = soctk.Polyhedron(3, 0.0, 1.0, E=[[1.0, 1.0, 1.0]], f=[1.0])
    for sets in (plant, plant.at(f=torch.zeros(0, 1)), soctk.Budget(3, 1.0).at(total=torch.zeros(0))):
        decision = soctk.minimize(model, sets, none)
        assert decision.prices.f.shape == (0, 1)
        assert decision.prices.lower.shape == (0, 3)
        assert decision.ray.nu.shape == (0, 1)


def test_no_set_is_called_empty_without_a_proof() -> None:
    """Rows whose entries are 1 and 1e-10 were said to contradict each other; (.5, .5e10) meets both."""
    G, h = np.array([[0.3, 0.8e-10], [0.3, -1.3e-10]]), np.array([0.65, -0.4])
    assert (G @ np.array([0.5, 0.5e10]) <= h).all()
    with pytest.raises(ValueError, match=r"^no point of the set was found: .* entries of a row are of one size"):
        soctk.Polyhedron(2, 0.0, [1.0, 1e10], G=G, h=h)
    with pytest.raises(ValueError, match=r"got an empty one: row 0 of G, row 1 of G cannot all hold"):
        soctk.Polyhedron(2, 0.0, np.inf, G=[[1.0, 1.0], [-1.0, -1.0]], h=[1.0, -2.0])
