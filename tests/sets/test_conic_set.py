"""Polyhedra cut by second-order cones: oracles, decisions with a certificate, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import clarabel_optimum
from tolerances import CERTIFIED, DOUBLE, TIGHT_CLARABEL
from zoo import MODELS, shaken

import soctk
from soctk import Budget, ConicSet, Polyhedron, Status

R = np.random.default_rng(0)
ROOT = R.normal(size=(4, 4)) / 2


def portfolio() -> ConicSet:
    """Shares of a budget whose risk |L'x| is at most a part of its return, and limited."""
    return ConicSet(Budget(4, 1.0), [(ROOT, 0.0, [0.5, 0.8, 0.6, 0.7], 0.1), (ROOT, 0.0, 0.0, 0.9)])


def ball() -> ConicSet:
    """A ball around a point of a box, which it cuts."""
    return ConicSet(Polyhedron(3, -1.0, 1.0), [(np.eye(3), -0.5, 0.0, 0.8)])


@pytest.mark.parametrize("make", [portfolio, ball])
def test_oracles_are_feasible_and_optimal_to_the_solver_s_accuracy(make) -> None:
    feasible_set, generator = make(), torch.Generator().manual_seed(3)
    y = torch.randn(6, feasible_set.dim, generator=generator, dtype=DOUBLE)
    points, x, least = feasible_set.sample(50, generator), feasible_set.project(y), feasible_set.linear_minimum(y)
    vertex = feasible_set.linear_minimizer(y)
    for found in (points, x, vertex, feasible_set.center()):
        assert float(feasible_set.violation(found).max()) <= 1e-10
    # The projection's variational inequality, (p - x)'(x - y) >= 0 for all points p.
    assert float(((points - x.unsqueeze(1)) * (x - y).unsqueeze(1)).sum(dim=-1).min()) >= -1e-5
    torch.testing.assert_close(feasible_set.project(points), points, rtol=0, atol=1e-12)
    assert bool((least <= (vertex * y).sum(dim=-1)).all())
    assert bool((least >= (vertex * y).sum(dim=-1) - 1e-8).all())
    assert bool((least.unsqueeze(1) <= y @ points.T).all())
    lo, hi = feasible_set.hull()
    assert bool(((points >= lo) & (points <= hi)).all())


@pytest.mark.parametrize("base", [Budget(5, 1.0), soctk.Simplex(5)], ids=lambda base: type(base).__name__)
def test_equalities_hold_to_rounding_in_every_decision(base: soctk.FeasibleSet) -> None:
    feasible_set = ConicSet(base, [(np.eye(5), np.full(5, -0.2), 0.0, 0.3)])
    model = soctk.SOCICNN(5, 2, norms=(3,), quadratics=(3,), seed=4)
    context = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    decision = soctk.minimize(model, feasible_set, context)
    assert (decision.status == Status.OPTIMAL).all()
    assert float(feasible_set.violation(decision.x).max()) <= 1e-14


@pytest.mark.parametrize("kind", ["soc", "relu", "softplus"])
@pytest.mark.parametrize("make", [portfolio, ball])
def test_decisions_are_certified_and_right(kind: str, make) -> None:
    feasible_set = make()
    model = shaken(MODELS[kind](feasible_set.dim))
    context = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    decision = soctk.minimize(model, feasible_set, context)
    assert (decision.status == Status.OPTIMAL).all()
    assert float(feasible_set.violation(decision.x).max()) <= 1e-9
    assert float(decision.relative_gap.max()) <= CERTIFIED
    for row in range(3):
        optimum = clarabel_optimum(model, feasible_set, context[row])
        assert float(decision.lower_bound[row]) <= optimum + TIGHT_CLARABEL * max(1.0, abs(optimum))
    certificate = soctk.certify(model, feasible_set, decision.x, context)
    assert float(certificate.relative_gap.max()) <= CERTIFIED


def test_the_ball_has_its_closed_forms() -> None:
    inside = ConicSet(Polyhedron(3, -5.0, 5.0), [(np.eye(3), -0.5, 0.0, 0.8)])
    y = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE) * 3
    away = y - 0.5
    expected = 0.5 + away * (0.8 / away.norm(dim=1, keepdim=True)).clamp(max=1)
    torch.testing.assert_close(inside.project(y), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(inside.linear_minimum(y), 0.5 * y.sum(dim=1) - 0.8 * y.norm(dim=1), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("cones", "message"),
    [
        ([], "expected at least one"),
        ([(np.eye(2), 0.0, 0.0, 1.0)], r"cones\[0\].F: expected shape \(rows, 3\), got \(2, 2\)"),
        ([(np.eye(3), [1.0, 2.0], 0.0, 1.0)], r"cones\[0\].g: expected a number or 3 numbers"),
        ([(np.eye(3), 0.0, 0.0, -1.0)], "strictly inside"),
        ([(np.eye(3), 0.0, np.nan, 1.0)], r"cones\[0\].c: expected finite"),
        ([(np.eye(3), 0.0)], r"cones\[0\]: expected \(F, g, c, d\)"),
    ],
)
def test_cones_that_make_no_set_are_refused(cones, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConicSet(Polyhedron(3, -1.0, 1.0), cones)


@pytest.mark.parametrize("far", [1e4, 3e5, 1e6])
def test_a_set_far_from_0_is_decided_over_and_not_called_empty(far: float) -> None:
    """Clarabel says "infeasible" of some of them; the nearest point of a ball to 0 is known."""
    feasible_set = ConicSet(Polyhedron(2, far - 1000, far + 1000), [(np.eye(2), np.full(2, -far), 0.0, 800.0)])
    model = soctk.from_quadratic(np.eye(2), np.zeros(2))
    decision = soctk.minimize(model, feasible_set)
    assert decision.status == Status.OPTIMAL
    assert float(decision.value) == pytest.approx((far * 2**0.5 - 800) ** 2 / 2, rel=1e-5)
    assert soctk.minimize(model, feasible_set, method="cvxpy").status != Status.INFEASIBLE


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("unit", [1e-9, 1e-4, 1e4, 1e9])
def test_the_oracles_and_decisions_are_those_of_another_unit(unit: float, offset: float) -> None:
    """x = D (z + offset) with units D far apart: linear minima, projections where D is one number, and decisions."""
    units = unit * np.array([1.0, 1e-3, 1e2])
    root = np.diag([1.0, 0.5, 2.0])
    plain = ConicSet(Polyhedron(3, -1.0, 1.0, G=[[1.0, 1.0, 0.0]], h=[0.4]), [(root, 0.1, 0.2, 0.6)])
    moved = offset * units
    rows = np.array([[1.0, 1.0, 0.0]]) / units
    base = Polyhedron(3, moved - units, moved + units, G=rows, h=rows @ moved + 0.4)
    cone = (root / units, 0.1 - root @ np.full(3, offset), 0.2 / units, 0.6 - 0.2 * 3 * offset)
    feasible_set = ConicSet(base, [cone])
    slopes = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    least = feasible_set.linear_minimum(slopes / torch.from_numpy(units)) - offset * slopes.sum(dim=1)
    torch.testing.assert_close(least, plain.linear_minimum(slopes), rtol=0, atol=1e-6)
    q = np.array([-1.0, 0.5, 0.3])
    model = soctk.from_quadratic(np.diag(1 / units**2), q / units - moved / units**2)
    decision, expected = soctk.minimize(model, feasible_set), soctk.minimize(soctk.from_quadratic(np.eye(3), q), plain)
    assert decision.status == expected.status == Status.OPTIMAL
    scaled = decision.x / torch.from_numpy(units) - offset
    torch.testing.assert_close(scaled, expected.x, rtol=0, atol=1e-3)
    alike = ConicSet(
        Polyhedron(3, unit * (offset - 1), unit * (offset + 1)), [(np.eye(3) / unit, -0.5 - offset, 0.0, 0.8)]
    )
    inside = ConicSet(Polyhedron(3, -1.0, 1.0), [(np.eye(3), -0.5, 0.0, 0.8)])
    y = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    torch.testing.assert_close(alike.project(unit * (y + offset)) / unit - offset, inside.project(y), rtol=0, atol=1e-5)


@pytest.mark.parametrize("unit", [1e-12, 1e-8, 1e4, 1e9])
def test_a_cone_says_the_same_in_any_unit(unit: float) -> None:
    """s ||F x + g|| <= s (c'x + d), c = 0 and not, with x in units far apart: no point is lost, none is refused."""
    units = np.array([1.0, 1e-3, 10.0])
    for slope in (0.0, 0.2):
        feasible_set = ConicSet(
            Polyhedron(3, -units, units), [(unit * np.diag(1 / units), 0.1 * unit, unit * slope / units, 0.6 * unit)]
        )
        plain = ConicSet(Polyhedron(3, -1.0, 1.0), [(np.eye(3), 0.1, slope, 0.6)])
        for kind in ("relu", "soc"):
            model = shaken(MODELS[kind](3))
            context = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
            expected = soctk.minimize(model, plain, context)
            with torch.no_grad():
                model.x_mean.mul_(torch.from_numpy(units))
                model.x_scale.mul_(torch.from_numpy(units))
            decision = soctk.minimize(model, feasible_set, context)
            assert (decision.status == Status.OPTIMAL).all()
            torch.testing.assert_close(decision.value, expected.value, rtol=0, atol=3e-6)


def test_the_middle_of_a_set_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []
    solve = ConicSet._solve
    monkeypatch.setattr(ConicSet, "_solve", lambda self, q, **options: solved.append(1) or solve(self, q, **options))
    feasible_set, model = ball(), shaken(MODELS["soc"](3))
    for _ in range(2):
        solved.clear()
        soctk.minimize(model, feasible_set, torch.zeros(1, 3, dtype=DOUBLE))
    assert len(solved) <= 20


def test_a_cone_is_what_it_was_when_it_was_given() -> None:
    F, x = torch.eye(2, dtype=DOUBLE), torch.tensor([[0.9, 0.0]], dtype=DOUBLE)
    disc = ConicSet(Polyhedron(2, -1.0, 1.0), [(F, 0.0, 0.0, 1.0)])
    F.mul_(10)
    assert float(disc.violation(x)) == 0.0


@pytest.mark.parametrize("beyond", [1e-8, 1e-6, 1e-5, 1e-4, 1e-2])
@pytest.mark.parametrize("unit", [1.0, 1e4])
def test_points_hardly_outside_have_their_nearest_point(beyond: float, unit: float) -> None:
    """The square of a distance of 1e-6 is below a solver's tolerance: what it called nearest was twice as far."""
    eye, none = np.eye(4), np.zeros(4)
    ball = ConicSet(soctk.Box(4, -2 * unit, 2 * unit), [(eye, none, none, unit)])
    around = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    nearest = unit * around / around.norm(dim=1, keepdim=True)
    found = ball.project(nearest * (1 + beyond))
    assert float((found - nearest).norm(dim=1).max()) <= 1e-3 * beyond * unit
    half = ConicSet(Polyhedron(4, -unit, unit, E=[[1.0, 1.0, 0.0, 0.0]], f=0.2 * unit), [(eye, none, none, unit)])
    inside = half.project(nearest)  # on the boundary of ball and plane, about
    step = beyond * unit * torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=DOUBLE) / 2**0.5
    assert float((half.project(inside + step) - inside).norm(dim=1).max()) <= 1e-2 * beyond * unit
