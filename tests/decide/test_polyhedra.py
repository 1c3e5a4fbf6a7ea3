"""Decisions over polyhedra with right-hand sides of their own: certified, feasible, priced, differentiable, refuted."""

from __future__ import annotations

import dataclasses
import time
import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import CERTIFIED, DOUBLE, VALUE
from zoo import MODELS, SETS, shaken

import soctk
from soctk import Box, Budget, ConvexSurrogate, Polyhedron, Simplex, Status
from soctk.decide.compiled.form import pack
from soctk.decide.compiled.original_rows import violations
from soctk.decide.polyhedral import value_of
from soctk.sets import SetAt
from soctk.sets.elastic import nearest
from soctk.sets.elimination import Elimination
from soctk.sets.linear_programs import System
from soctk_baselines import PCF
from soctk_tasks.polyhedra import POLYHEDRA, dispatch

FROM_CONTEXT = {
    "pcf": lambda n: PCF(n, 3, affine=True, seed=11),
    "pcf_logistic": lambda n: PCF(n, 3, activation="logistic", quadratic=True, seed=12),
}
"""Models whose matrices, too, are made from the context: every instance has its own."""
EVERY = MODELS | FROM_CONTEXT
KINDS = ("soc", "relu", "softplus", "hyperbolic", *FROM_CONTEXT)


def case(name: str, kind: str, count: int) -> tuple[SetAt, ConvexSurrogate, torch.Tensor]:
    """Return sets, a model and contexts for it."""
    sets = POLYHEDRA[name](count)[0]
    context = torch.randn(count, 3, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    return sets, shaken(EVERY[kind](sets.dim)), context


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", POLYHEDRA)
def test_decisions_are_certified_and_bounds_are_below_tight_optima(name: str, kind: str) -> None:
    sets, model, context = case(name, kind, 40)
    decision = soctk.minimize(model, sets, context)
    assert (decision.status == Status.OPTIMAL).all()
    assert set(decision.solver) == {"newton"}
    assert float(decision.violation.max()) <= 1e-12
    assert float(sets.violation(decision.x).max()) <= 1e-12
    assert float(decision.relative_gap.max()) <= CERTIFIED
    torch.testing.assert_close(decision.value, model(decision.x, context).detach(), rtol=1e-12, atol=1e-12)
    tight = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    few = SetAt(sets.base, *(side if side.ndim == 1 else side[:2] for side in sets.sides))
    other = soctk.minimize(model, few, context[:2], method="cvxpy", solver_options=tight)
    size = other.value.abs().clamp(min=1.0)
    assert bool((decision.lower_bound[:2] <= other.value + 1e-8 * size).all())
    assert bool((other.lower_bound <= decision.value[:2] + 1e-8 * size).all())
    assert bool((other.relative_gap <= 10 * CERTIFIED).all())


@pytest.mark.parametrize("name", POLYHEDRA)
def test_what_is_infeasible_is_proved_and_its_neighbours_are_untouched(name: str) -> None:
    sets, model, context = case(name, "soc", 12)
    expected = soctk.minimize(model, sets, context)
    f, h = sets.f.clone().expand(12, -1).clone(), sets.h.clone().expand(12, -1).clone()
    f[3], h[3], h[7] = 4 * f[3] + 3, h[3] - 4, h[7] - 50
    rows = {"f": f} if sets.f.numel() else {}
    rows |= {"h": h} if sets.h.numel() else {}
    wrong = sets.base.at(**rows)
    decision = soctk.minimize(model, wrong, context)
    empty = torch.tensor([3] + ([7] if sets.h.numel() else []))
    others = torch.tensor([k for k in range(12) if k not in empty.tolist()])
    assert (decision.status[empty.numpy()] == Status.INFEASIBLE).all()
    assert bool((wrong.refutes(*decision.ray)[empty] > 0).all())
    assert bool((decision.ray.z >= 0).all())
    assert bool(torch.isnan(decision.x[empty]).all())
    assert not bool(torch.cat(decision.ray, dim=1)[others].any())
    torch.testing.assert_close(decision.x[others], expected.x[others], rtol=0, atol=1e-7)
    nearest = soctk.minimize(model, wrong, context, infeasible="nearest")
    assert (nearest.status == Status.OPTIMAL).all()
    assert bool((nearest.relaxation[empty] > 1e-3).all())
    assert bool((nearest.relaxation[others] == 0).all())
    assert bool((nearest.violation <= nearest.relaxation + 1e-7).all())


@pytest.mark.parametrize("kind", ["soc", "softplus"])
@pytest.mark.parametrize("name", POLYHEDRA)
def test_prices_are_the_derivatives_of_the_optimal_value(name: str, kind: str) -> None:
    sets, model, context = case(name, kind, 6)
    sides = {
        name: side.expand(6, -1).clone() for name, side in zip(("lower", "upper", "f", "h"), sets.sides, strict=True)
    }
    sides = {name: side for name, side in sides.items() if side.numel() and bool(torch.isfinite(side).all())}
    prices = soctk.minimize(model, sets.base.at(**sides), context, tol=1e-10).prices
    generator = torch.Generator().manual_seed(0)
    for name, side in sides.items():
        direction, step = torch.randn(side.shape, generator=generator, dtype=DOUBLE), 1e-5
        ends = [
            soctk.minimize(model, sets.base.at(**{**sides, name: side + sign * step * direction}), context, tol=1e-10)
            for sign in (1, -1)
        ]
        slope = (ends[0].value - ends[1].value) / (2 * step)
        found = (getattr(prices, name) * direction).sum(dim=-1)
        torch.testing.assert_close(found, slope, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", POLYHEDRA)
def test_derivatives_of_decisions_and_values(name: str) -> None:
    sets, model, context = case(name, "soc", 4)
    sides = {name: side.expand(4, -1).clone() for name, side in zip(("f", "h"), (sets.f, sets.h), strict=True)}
    sides = {name: side.requires_grad_() for name, side in sides.items() if side.numel()}
    layer, generator = soctk.DecisionLayer(model, sets.base, tol=1e-12), torch.Generator().manual_seed(0)
    weights = torch.randn(4, sets.dim, generator=generator, dtype=DOUBLE)
    inputs = {"context": context.clone().requires_grad_(), **sides}

    def both(given: dict[str, torch.Tensor]) -> torch.Tensor:
        """One number for decisions and one for values."""
        return torch.stack([(layer(**given) * weights).sum(), layer.optimal_value(**given).sum()])

    out = both(inputs)
    for name, tensor in inputs.items():
        direction, step = torch.randn(tensor.shape, generator=generator, dtype=DOUBLE), 1e-6
        slopes = [float((torch.autograd.grad(part, tensor, retain_graph=True)[0] * direction).sum()) for part in out]
        ends = [
            both({**inputs, name: (tensor + sign * step * direction).detach().requires_grad_()}) for sign in (1, -1)
        ]
        for slope, difference in zip(slopes, ((ends[0] - ends[1]) / (2 * step)).tolist(), strict=True):
            assert slope == pytest.approx(difference, rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("kind", ["soc", "relu"])
def test_sets_as_they_are_and_by_their_rows_have_the_same_decisions(kind: str, set_name: str) -> None:
    model, feasible_set = shaken(MODELS[kind](5)), SETS[set_name](5)
    context = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    expected = soctk.minimize(model, feasible_set, context, tol=1e-8)
    decision = soctk.minimize(model, feasible_set.at(), context, tol=1e-8)
    assert (decision.status == Status.OPTIMAL).all()
    torch.testing.assert_close(decision.value, expected.value, rtol=2e-8, atol=2e-8)
    assert decision.prices is not None


@pytest.mark.parametrize("name", POLYHEDRA)
def test_prepared_models_take_right_hand_sides(name: str) -> None:
    sets, model, context = case(name, "soc", 3)
    sides = {side: part for side, part in (("f", sets.f), ("h", sets.h)) if part.ndim > 1}
    expected = soctk.minimize(model, sets, context)
    decision = soctk.prepare(model, sets.base).minimize(context, **sides)
    assert torch.equal(decision.x, expected.x)
    assert torch.equal(decision.prices.h, expected.prices.h)
    prepared = soctk.prepare(shaken(MODELS["soc"](3)), soctk.ConicSet(Box(3), [(np.eye(3), 0.0, 0.0, 1.0)]))
    with pytest.raises(TypeError, match="total: ConicSet has no right-hand sides"):
        prepared.minimize(context[0], total=1.0)


def test_points_from_anywhere_are_certified() -> None:
    sets, model, context = case("transport", "soc", 6)
    decision = soctk.minimize(model, sets, context)
    certificate = soctk.certify(model, sets, decision.x, context)
    assert float(certificate.relative_gap.max()) <= CERTIFIED
    worse = sets.base.at(f=sets.f[0]).sample()
    worse = soctk.certify(model, sets.base.at(f=sets.f[0]), worse, context[0])
    assert float(worse.gap) >= float(worse.value - decision.value[0]) - 1e-6
    assert float(worse.violation) <= 1e-9
    shaped = soctk.sets.SetAt(sets.base, sets.lower, sets.upper, sets.f.reshape(2, 3, -1), sets.h)
    other = soctk.certify(model, shaped, decision.x.reshape(2, 3, -1), context.reshape(2, 3, -1))
    torch.testing.assert_close(other.value, certificate.value.reshape(2, 3))
    with pytest.raises(TypeError, match="surrogate"):
        soctk.certify(torch.nn.Linear(2, 1), shaped, decision.x)


def test_totals_of_their_own_are_those_of_sets_one_at_a_time() -> None:
    model = shaken(MODELS["soc"](5))
    context = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    totals = torch.linspace(0.5, 4.5, 6, dtype=DOUBLE)
    decision = soctk.minimize(model, Budget(5, 2.0).at(total=totals), context, tol=1e-8)
    assert (decision.status == Status.OPTIMAL).all()
    for k, total in enumerate(totals.tolist()):
        one = soctk.minimize(model, Budget(5, total), context[k], tol=1e-8)
        torch.testing.assert_close(decision.value[k], one.value, rtol=2e-8, atol=2e-8)
    same = soctk.minimize(model, Simplex(5).at(total=totals.reshape(2, 3)), context[0], tol=1e-8)
    assert same.x.shape == (2, 3, 5)
    torch.testing.assert_close(same.x.sum(dim=-1), totals.reshape(2, 3))


def test_ends_of_the_range_of_totals_are_single_points() -> None:
    model = shaken(MODELS["soc"](4))
    context = torch.zeros(3, 3, dtype=DOUBLE)
    decision = soctk.minimize(model, Budget(4, 2.0).at(total=[0.0, 4.0, 4.5]), context)
    assert decision.status.tolist() == [Status.OPTIMAL, Status.OPTIMAL, Status.INFEASIBLE]
    torch.testing.assert_close(decision.x[:2], torch.tensor([[0.0] * 4, [1.0] * 4], dtype=DOUBLE), rtol=0, atol=1e-9)


def test_dependent_equalities_and_rows_without_entries() -> None:
    E, f = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]], [1.0, 2.0, 0.0]
    base = Polyhedron(3, 0.0, 1.0, E, f)
    model = shaken(MODELS["soc"](3))
    sides = torch.tensor([f, [1.5, 3.0, 0.0], [1.0, 2.1, 0.0], [1.0, 2.0, 0.5]], dtype=DOUBLE)
    sets, context = base.at(f=sides), torch.zeros(4, 3, dtype=DOUBLE)
    decision = soctk.minimize(model, sets, context)
    assert decision.status.tolist() == [Status.OPTIMAL] * 2 + [Status.INFEASIBLE] * 2
    assert bool((sets.refutes(*decision.ray)[2:] > 0).all())


def test_no_interior_and_fixed_coordinates() -> None:
    rows = {"G": [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, -1.0, -1.0]], "h": [0.0, 1.0, -1.0]}
    base = Polyhedron(4, 0.0, 2.0, **rows)
    model = shaken(MODELS["soc"](4))
    upper = torch.tensor([[2.0, 2.0, 2.0, 2.0], [2.0, 2.0, 0.25, 2.0]], dtype=DOUBLE)
    lower = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.25, 0.0]], dtype=DOUBLE)
    sets = base.at(lower=lower, upper=upper)
    decision = soctk.minimize(model, sets, torch.zeros(2, 3, dtype=DOUBLE))
    assert (decision.status == Status.OPTIMAL).all()
    assert float(decision.violation.max()) <= 1e-9
    assert float(decision.x[1, 2]) == pytest.approx(0.25, abs=1e-9)


def test_warm_starts_are_taken() -> None:
    sets, model, context = case("dispatch", "soc", 10)
    first = soctk.minimize(model, sets, context)
    again = soctk.minimize(model, sets, context, x0=first)
    assert (again.status == Status.OPTIMAL).all()
    torch.testing.assert_close(again.value, first.value, rtol=3e-6, atol=3e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_elimination_describes_the_same_set(seed: int) -> None:
    r = np.random.default_rng(seed)
    n, k, m = int(r.integers(2, 7)), int(r.integers(0, 3)), int(r.integers(0, 5))
    E, G = r.integers(-2, 3, (k, n)).astype(float), r.integers(-2, 3, (m, n)).astype(float)
    G[: m // 2] = -G[m - m // 2 :] if m > 1 else G[: m // 2]
    inside = r.uniform(-0.5, 0.5, n)
    base = Polyhedron(
        n, -1.0, 1.0, *((E, E @ inside) if k else (None, None)), *((G, G @ inside + 0.1) if m else (None, None))
    )
    rows, e = base.rows(), Elimination.of(base.rows())
    lower, upper, f, h = (side.numpy()[None] for side in (rows.lower, rows.upper, rows.f, rows.h))
    E, origin = rows.E.numpy(), e.origin(f)
    np.testing.assert_allclose(origin @ E.T, f, rtol=0, atol=1e-9)
    assert float(np.abs(E @ e.basis).max() if e.basis.size and k else 0.0) <= 1e-9
    low, high = e.ends(e.sides(lower, upper, h, origin))
    directions = np.concatenate([np.eye(e.dim), e.R])
    for _ in range(20):
        w = r.uniform(-2, 2, e.dim)
        x = torch.from_numpy(origin[0] + e.basis @ w)
        excess = float(np.maximum(low - directions @ w, directions @ w - high).max()) if len(directions) else -1.0
        if abs(excess) > 1e-9:
            assert (excess <= 0) == (float(base.violation(x)) <= 1e-9)


def test_a_set_keeps_the_last_patterns_of_fixed_coordinates_alone() -> None:
    """A service whose units come and go would fill the memory, one elimination a pattern."""
    base = Polyhedron(10, 0.0, 1.0, E=[np.ones(10)], f=[2.0])
    patterns = [tuple(np.flatnonzero([k >> j & 1 for j in range(8)]).tolist()) for k in range(200)]
    found = {pattern: base.elimination(pattern) for pattern in patterns}
    assert base.elimination(patterns[-1]) is found[patterns[-1]]
    again = base.elimination(patterns[3])
    assert again is not found[patterns[3]]
    np.testing.assert_array_equal(again.basis, found[patterns[3]].basis)


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ({"total": [1.0]}, "total: expected a set with a sum"),
        ({"h": [[1.0, 2.0]]}, r"h: expected last dimension 12, one number a row, got \(1, 2\)"),
        ({"f": [np.nan]}, "f: expected finite numbers"),
        ({"h": np.zeros((3, 12)), "f": np.zeros(2)}, "one batch shape"),
        ({"lower": np.zeros(5)}, "lower: expected last dimension 8"),
    ],
)
def test_right_hand_sides_that_do_not_fit_are_refused(sides, message: str) -> None:
    base = dispatch(2)[0].base
    with pytest.raises(ValueError, match=message):
        base.at(**sides)


def test_batches_that_differ_are_refused() -> None:
    sets, model, context = case("dispatch", "soc", 3)
    with pytest.raises(ValueError, match=r"right-hand sides of batch shape \(2,\) as the contexts', got \(3,\)"):
        soctk.minimize(model, sets, context[:2])
    with pytest.raises(NotImplementedError, match="one set for all contexts"):
        soctk.minimize(model, sets, context, method="first_order")


@pytest.mark.parametrize("method", ["newton", "cvxpy"])
@pytest.mark.parametrize("side", ["lower", "upper"])
def test_bounds_of_one_side_alone(side: str, method: str) -> None:
    model, ends = shaken(MODELS["soc"](4)), torch.tensor([[0.0], [0.5], [1.0]], dtype=DOUBLE).expand(3, 4)
    context = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    decision = soctk.minimize(model, soctk.Box(4).at(**{side: ends}), context, method=method)
    for k in range(3):
        lower, upper = (float(ends[k, 0]), 1.0) if side == "lower" else (0.0, float(ends[k, 0]))
        one = soctk.minimize(model, soctk.Box(4, lower, upper), context[k])
        assert float(decision.value[k]) == pytest.approx(float(one.value), rel=3e-6, abs=3e-6)


def test_an_outside_solver_bounds_by_the_rows_multipliers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds took a dozen linear programmes a context, before the first was solved and after the deadline too."""
    model = shaken(MODELS["soc"](4))
    context = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    rows = Polyhedron(4, 0.0, 1.0, E=np.ones((1, 4)), f=[2.0], G=[[1.0, -1.0, 0.0, 0.0]], h=[0.3])
    assert rows.reach[1] > 0  # for which each end is asked for once
    asked: list[int] = []
    minimum = System.minimum
    monkeypatch.setattr(System, "minimum", lambda *given: asked.append(1) or minimum(*given))
    found = soctk.minimize(model, rows, context, method="cvxpy")
    best = soctk.minimize(model, rows, context, tol=1e-9)
    assert not asked
    late = soctk.minimize(model, rows, context, method="cvxpy", time_limit=1e-9)
    assert len(asked) <= len(context)
    assert (late.status == "time_limit").all()
    assert bool((late.violation < 1e-9).all() & (late.gap >= late.value - best.value - 1e-9).all())
    assert found.optimal.all()
    torch.testing.assert_close(found.value, best.value, rtol=2e-6, atol=2e-6)
    assert found.prices is not None
    assert best.prices is not None
    for one, other in ((found.prices.f, best.prices.f), (found.prices.h, best.prices.h)):
        torch.testing.assert_close(one, other, rtol=0.01, atol=0.01)  # off by about the root of the gap


def test_one_empty_set_for_all_contexts_has_a_nearest_one() -> None:
    model, base = shaken(MODELS["soc"](3)), Polyhedron(3, 0.0, 1.0, np.ones(3), 1.0)
    decision = soctk.minimize(model, base.at(f=4.0), torch.zeros(5, 3, dtype=DOUBLE), infeasible="nearest")
    torch.testing.assert_close(decision.relaxation, torch.ones(5, dtype=DOUBLE), rtol=0, atol=1e-6)
    torch.testing.assert_close(decision.x, torch.ones(5, 3, dtype=DOUBLE), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_what_a_time_limit_leaves_no_time_for_stays_infeasible(monkeypatch, shared: bool) -> None:
    model, base = shaken(MODELS["soc"](3)), Polyhedron(3, 0.0, 1.0, np.ones(3), 1.0)
    monkeypatch.setattr("soctk.decide.minimize.nearest", lambda sets, _deadline: nearest(sets, deadline=0.0))
    sets = base.at(f=4.0 if shared else [[4.0], [1.0], [5.0]])
    decision = soctk.minimize(model, sets, torch.zeros(3, 3, dtype=DOUBLE), infeasible="nearest", time_limit=100.0)
    empty = torch.tensor([True, shared, True])
    assert (decision.status[empty.numpy()] == Status.INFEASIBLE).all()
    assert torch.equal(decision.relaxation.isnan(), empty)
    assert torch.equal(decision.x.isnan().all(dim=1), empty)
    assert bool((decision.status[~empty.numpy()] == Status.OPTIMAL).all())


def test_seconds_count_what_the_nearest_sets_took(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(sets: SetAt, deadline: float) -> tuple:
        time.sleep(0.2)
        return nearest(sets, deadline)

    monkeypatch.setattr("soctk.decide.minimize.nearest", slow)
    model, sets = shaken(MODELS["soc"](3)), Polyhedron(3, 0.0, 1.0, np.ones(3), 1.0).at(f=4.0)
    assert soctk.minimize(model, sets, torch.zeros(3, dtype=DOUBLE), infeasible="nearest").seconds >= 0.2


def test_units_of_nearest_decisions_are_kept() -> None:
    """Where one of the two has units of its own and the other has not."""
    model, context = shaken(MODELS["soc"](3)), torch.zeros(3, 3, dtype=DOUBLE)
    many = soctk.minimize(model, Budget(3, 1.0).at(total=[1.0, 2.0, 1.0]), context, scale=[0.5, 2.0, 1.0])
    one = soctk.minimize(model, Budget(3, 1.0).at(total=[1.5]), context[:1], scale=4.0)
    plain, place = dataclasses.replace(many, scale=None), torch.tensor([1])
    usual = many.value.abs().clamp(min=1.0)
    assert many.replaced(place, one).scale.tolist() == [0.5, 4.0, 1.0]
    assert plain.replaced(place, one).scale.tolist() == [usual[0], 4.0, usual[2]]
    kept = many.replaced(place, dataclasses.replace(one, scale=None)).scale.tolist()
    assert kept == [0.5, max(1.0, abs(float(one.value))), 1.0]


def test_arrays_that_may_not_be_written_are_taken() -> None:
    totals = np.array([1.0, 2.0])
    totals.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Budget(3, 1.0).at(total=totals).f.tolist() == [[1.0], [2.0]]


# -- what is computed once more in compiled code ---------------------------------------------------------


@pytest.mark.parametrize("name", POLYHEDRA)
def test_compiled_violations_are_those_of_the_sets(name: str) -> None:
    sets = POLYHEDRA[name](12)[0].flat((12,)).arrays
    x = np.random.default_rng(1).normal(size=(12, sets.lower.shape[1]))
    x[3, 1] = np.nan
    for found, expected in zip(violations(sets, x), sets.excess(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", POLYHEDRA)
@pytest.mark.parametrize("kind", ["soc", "relu"])
def test_compiled_values_are_those_of_the_form(kind: str, name: str) -> None:
    _, model, context = case(name, kind, 6)
    form = model.conic_form(context).detach()
    x = torch.randn(6, model.dim, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    found = torch.from_numpy(value_of(pack(form), x.numpy()))
    torch.testing.assert_close(found, form.value(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ({"f": torch.full((4, 1), torch.nan, dtype=DOUBLE)}, "finite"),
        ({"f": torch.tensor([[torch.inf], [-torch.inf], [0.0], [1.0]], dtype=DOUBLE)}, "finite"),
        ({"f": torch.ones(4, 2, dtype=DOUBLE)}, "batch shape"),
        ({"h": torch.ones(3, 12, dtype=DOUBLE), "f": torch.ones(4, 1, dtype=DOUBLE)}, "batch shape"),
        ({"g": torch.ones(4, 1, dtype=DOUBLE)}, "g"),
    ],
)
def test_prepared_models_refuse_what_models_refuse(sides, message: str) -> None:
    sets, model, context = case("dispatch", "soc", 4)
    ready = soctk.prepare(model, sets.base)
    with pytest.raises((TypeError, ValueError), match=message):
        ready.minimize(context, **sides)
    context = context.clone()
    context[2, 0] = torch.inf
    with pytest.raises(ValueError, match="context: expected finite"):
        ready.minimize(context, f=torch.ones(4, 1, dtype=DOUBLE))


class Cubes(ConvexSurrogate):
    """sum_i |x_i - theta|^3, known to CVXPY alone."""

    decision_method = "cvxpy"

    def _value(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return (x - context.unsqueeze(1)).abs().pow(3).sum(dim=-1)

    def _expression(self, x: cp.Expression, context: torch.Tensor) -> cp.Expression:
        return cp.sum(cp.power(cp.abs(x - float(context[0, 0])), 3))


def test_expressions_are_decided_over_sets_that_move() -> None:
    """By symmetry x_i = total / 3; where no x has such a sum, the status says so."""
    totals = torch.tensor([[0.6], [1.5], [9.0]], dtype=torch.float64)
    sets = soctk.Polyhedron(3, 0.0, 1.0, E=np.ones(3), f=1.0).at(f=totals)
    context = torch.tensor([[2.0], [-1.0], [0.0]], dtype=torch.float64)
    decision = soctk.minimize(Cubes(3, 1), sets, context, method="cvxpy", tol=1e-4)
    assert list(decision.status) == [soctk.Status.OPTIMAL, soctk.Status.OPTIMAL, soctk.Status.INFEASIBLE]
    expected = totals[:2].expand(-1, 3) / 3
    assert torch.allclose(decision.x[:2], expected, atol=1e-3)
    best = 3 * (totals[:2, 0] / 3 - context[:2, 0]).abs() ** 3
    assert (decision.lower_bound[:2] <= best + VALUE[DOUBLE]).all()
    assert (decision.value[:2] >= best - VALUE[DOUBLE]).all()


def test_what_is_not_proved_empty_is_not_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = soctk.Polyhedron(3, 0.0, 1.0, E=np.ones(3), f=1.0).at(f=[[9.0]])
    no_proof = torch.ones(1), torch.zeros(1, 1, dtype=DOUBLE), torch.zeros(1, 0, dtype=DOUBLE)
    monkeypatch.setattr("soctk.decide.external.nearest", lambda one: (one, *no_proof))
    decision = soctk.minimize(Cubes(3, 1), sets, torch.zeros(1, 1, dtype=DOUBLE), method="cvxpy")
    assert list(decision.status) == [Status.INACCURATE]
    assert bool(decision.x.isnan().all())


@pytest.mark.parametrize("expression", [False, True])
def test_proofs_that_sets_are_empty_keep_the_time_limit(expression: bool) -> None:
    sets = Polyhedron(3, 0.0, 1.0, E=[[1.0] * 3], f=[1.0]).at(f=np.full((3000, 1), 9.0))
    model = Cubes(3, 1) if expression else soctk.SOCICNN(3, 1, quadratics=(3,), seed=0)
    for seconds in (0.1, 0.103, 0.136, 0.2):
        decision = soctk.minimize(model, sets, torch.zeros(3000, 1, dtype=DOUBLE), method="cvxpy", time_limit=seconds)
        assert set(decision.status.tolist()) <= {Status.INFEASIBLE, Status.TIME_LIMIT}
        assert bool(decision.x.isnan().all())
        late = decision.status == Status.TIME_LIMIT
        assert late[-1]
        proved = torch.from_numpy(np.flatnonzero(~late))
        assert decision.ray is None or bool((sets.refutes(*decision.ray)[proved] > 0).all())


def test_certificates_of_no_points_and_of_too_many_right_hand_sides() -> None:
    model = soctk.SOCICNN(3, 2, quadratics=(3,), seed=0)
    base = Polyhedron(3, 0.0, 1.0, E=[[1.0, 1.0, 1.0]], f=[1.0], G=[[1.0, -1.0, 0.0]], h=[0.3])
    none = soctk.certify(model, base, torch.zeros(0, 3), torch.zeros(0, 2))
    assert tuple(none.gap.shape) == tuple(none.violation.shape) == (0,)
    with pytest.raises(ValueError, match=r"batch shape \(4,\)"):
        soctk.certify(model, base.at(f=[1.0, 1.1, 0.9, 1.2]), torch.zeros(2, 3), torch.zeros(2, 2))


def test_empty_sets_are_not_projected_onto(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be a set of its own to build: 40 times the seconds of the sets with points."""
    projected = []
    monkeypatch.setattr(
        "soctk.decide.polyhedral.project_points", lambda value, sets, result, rows: projected.extend(rows)
    )
    model, base = soctk.SOCICNN(3, 2, quadratics=(3,), seed=0), Polyhedron(3, 0.0, 1.0, E=[[1.0] * 3], f=[1.0])
    decision = soctk.minimize(model, base.at(f=np.full(6, 4.0)), torch.zeros(6, 2))
    assert (decision.status == "infeasible").all()
    assert projected == []
