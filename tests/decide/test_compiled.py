"""The compiled Newton method beside the batched one, one instance at a time and several in SIMD lanes."""

from __future__ import annotations

import copy
import dataclasses
import time

import numpy as np
import pytest
import torch
from reference import clarabel_optimum
from tolerances import CERTIFIED, DOUBLE, SINGLE, TIGHT_CLARABEL, VALUE
from zoo import MODELS, SETS, shaken

from soctk import Box, Budget, ConicForm, FeasibleSet, QuadICNN, ReLUICNN, Simplex, minimize
from soctk.decide.batched import Bounds, solve_batched
from soctk.decide.compiled import solve
from soctk.decide.compiled.form import pack, supported
from soctk.decide.compiled.solve import Region, solve_compiled, solve_packed
from soctk.decide.newton import DEFAULT_ITERATIONS, SmoothingNewton, solve_newton
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result
from soctk.maps.linear import DenseMap
from soctk.simd.lanes import WIDTH
from soctk.terms import Huber, Logistic, LogSumExp, Network, Norms, Quadratic

LIMITS = {"tol": 1e-8, "max_iter": DEFAULT_ITERATIONS}


@pytest.fixture(params=["one", "lanes"], autouse=True)
def treatment(request, monkeypatch) -> str:
    """Every test is run with one instance at a time and with several in SIMD lanes, however few there are."""
    monkeypatch.setattr(solve, "FEWEST_IN_LANES", 1 if request.param == "lanes" else 10**9)
    return request.param


def random_form(n: int, size: int, *, own: bool, seed: int = 0) -> ConicForm:
    """Return functions with every kind of term, with matrices that they share or each have their own."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    def affine(rows: int) -> tuple[DenseMap, torch.Tensor]:
        return DenseMap(normal(size if own else 1, rows, n) / n**0.5), normal(size, 1, rows)

    def positive(*shape: int) -> torch.Tensor:
        return 0.1 + normal(*shape).abs()

    leading = size if own else 1
    terms = (
        Quadratic(*affine(3), positive(1, 1, 3)),
        Norms(*affine(6), positive(size, 1, 2), torch.tensor([0.0, 0.3], dtype=DOUBLE).reshape(1, 1, 2), 3),
        Norms(*affine(2), positive(1, 1, 2), torch.tensor([0.0, -0.2], dtype=DOUBLE).reshape(1, 1, 2), 1),
        Network(*affine(12), positive(size, 1, 3), (positive(leading, 4, 5), positive(1, 3, 4)), (5, 4, 3)),
        Network(*affine(5), positive(size, 1, 2), (positive(leading, 2, 3),), (3, 2), "softplus"),
        Logistic(*affine(4), positive(size, 1, 4)),
        LogSumExp(*affine(6), positive(size, 1, 2), 3),
        Huber(*affine(3), positive(size, 1, 3), 0.35),
    )
    return ConicForm(normal(size, 1), normal(size, 1, n), terms, (size,))


def batched(form: ConicForm, feasible_set: FeasibleSet, **limits) -> Result:
    center = feasible_set.center(form.dtype)
    return solve_batched(form, feasible_set, start=center.expand(form.size, -1).clone(), **{**LIMITS, **limits})


def compiled(form: ConicForm, feasible_set: FeasibleSet, **limits) -> Result:
    return solve_compiled(form, Region.of(feasible_set), **{**LIMITS, **limits})


def check_agreement(
    form: ConicForm, feasible_set: FeasibleSet, *, same_steps: bool = True, tol: float = LIMITS["tol"]
) -> None:
    """Assert that both ways certify the same optimum, by values and bounds that are those of the form."""
    mine, other = compiled(form, feasible_set, tol=tol), batched(form, feasible_set, tol=tol)
    assert (mine.status == other.status).all()
    assert (mine.status == "optimal").all()
    assert float(feasible_set.violation(mine.x).max()) <= 1e-12 * max(1.0, float(mine.x.abs().max()))
    torch.testing.assert_close(
        mine.value, form.evaluate(mine.x.unsqueeze(1)).squeeze(-1), rtol=VALUE[DOUBLE], atol=VALUE[DOUBLE]
    )
    scale = mine.value.abs().clamp(min=1.0)
    for upper, lower in ((mine, mine), (mine, other), (other, mine)):
        # A bound of either is below the value of either, to rounding, and by no more than the tolerance.
        assert bool((lower.lower_bound <= upper.value + VALUE[DOUBLE] * scale).all())
        assert bool((upper.value - lower.lower_bound <= 2 * tol * scale).all())
    # Rounding decides at the kinks of a Huber term which piece a long iteration visits next, and in a linear program
    # how far the certificate gets.
    assert not same_steps or float((mine.iterations - other.iterations).abs().double().median()) <= 1


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 26])
@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("model_name", [name for name in MODELS if name not in ("relu", "ickan")])
def test_both_ways_agree(model_name: str, set_name: str, dim: int) -> None:
    model, feasible_set = shaken(MODELS[model_name](dim)), SETS[set_name](dim)
    context = torch.randn(6, 3, generator=torch.Generator().manual_seed(dim), dtype=DOUBLE)
    check_agreement(model.conic_form(context).detach(), feasible_set, same_steps=model_name != "affine")


@pytest.mark.parametrize("set_name", SETS)
def test_both_ways_agree_on_linear_programs(set_name: str) -> None:
    """To 1e-4, what Newton steps alone promise for ReLU models."""
    model, feasible_set = shaken(MODELS["relu"](10)), SETS[set_name](10)
    context = torch.randn(10, 3, generator=torch.Generator().manual_seed(4), dtype=DOUBLE)
    form = model.conic_form(context).detach()
    mine, other = (way(form, feasible_set, tol=1e-4) for way in (compiled, batched))
    assert (mine.status == "optimal").all()
    assert (other.status == "optimal").all()
    scale = mine.value.abs().clamp(min=1.0)
    assert bool(((mine.value - other.value).abs() <= 1e-4 * scale).all())
    assert bool((mine.lower_bound <= other.value + VALUE[DOUBLE] * scale).all())


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("dim", [2, 7, 30])
def test_both_ways_agree_on_every_kind_of_term(dim: int, set_name: str, own: bool) -> None:
    form = random_form(dim, 5, own=own)
    assert supported(form)
    # Huber terms are not smoothed: at 1e-8 one instance in sixty stalls, which one is a matter of rounding.
    check_agreement(form, SETS[set_name](dim), tol=1e-7)


@pytest.mark.parametrize("set_name", SETS)
def test_an_answer_does_not_depend_on_the_other_instances(set_name: str) -> None:
    """Bit for bit: neither on who they are, nor on how many, nor on an overflow among them."""
    feasible_set, packed = SETS[set_name](5), pack(random_form(5, 3 * WIDTH + 1, own=False))
    whole = solve_packed(packed, Region.of(feasible_set), **LIMITS)
    order = np.random.default_rng(3).permutation(packed.data.shape[0])[: 2 * WIDTH - 1]
    data = packed.data[order]
    data[4] *= 1e300
    some = solve_packed(dataclasses.replace(packed, data=data), Region.of(feasible_set), **LIMITS)
    kept = np.arange(order.size) != 4
    for name in ("x", "value", "lower_bound", "iterations"):
        assert torch.equal(getattr(some, name)[kept], getattr(whole, name)[order[kept]])
    assert (some.status[kept] == whole.status[order[kept]]).all()


@pytest.mark.parametrize("set_name", SETS)
def test_the_last_iterates_agree(set_name: str) -> None:
    """What a derivative is taken from: x, the weights of the barrier, the bounds' multipliers, the dual iterates."""
    form, feasible_set = random_form(4, 3, own=False), SETS[set_name](4)
    mine, other = (way(form, feasible_set, keep_final=True).final for way in (compiled, batched))
    assert mine is not None
    assert other is not None
    assert (mine.s_hi is None) == (other.s_hi is None) == (not Bounds.of(feasible_set, form.linear).has_hi)
    torch.testing.assert_close(mine.x, other.x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.s_lo, other.s_lo, rtol=1e-4, atol=1e-4)
    assert mine.mu.shape == other.mu.shape
    for own, theirs in zip(mine.lags, other.lags, strict=True):
        if isinstance(theirs, tuple):
            assert [part.shape for part in own] == [part.shape for part in theirs]
            torch.testing.assert_close(torch.cat(own, dim=-1), torch.cat(theirs, dim=-1), rtol=1e-3, atol=1e-3)
        elif theirs is None:
            assert own is None
        else:
            torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("set_name", SETS)
def test_bounds_are_below_tight_optima(set_name: str) -> None:
    model, feasible_set = shaken(MODELS["soc"](4)), SETS[set_name](4)
    context = torch.randn(4, 3, generator=torch.Generator().manual_seed(5), dtype=DOUBLE)
    for max_iter in (0, 3, DEFAULT_ITERATIONS):
        result = compiled(model.conic_form(context).detach(), feasible_set, max_iter=max_iter)
        for row in range(4):
            optimum = clarabel_optimum(model, feasible_set, context[row])
            slack = TIGHT_CLARABEL * max(1.0, abs(optimum))
            assert float(result.lower_bound[row]) <= optimum + slack
            assert float(result.value[row]) >= optimum - slack


def test_limits_and_starts() -> None:
    form, feasible_set = random_form(5, 8, own=False), Budget(5, 1.5)
    short = compiled(form, feasible_set, max_iter=2, tol=1e-12)
    assert (short.status == "iteration_limit").all()
    assert bool((short.iterations == 2).all())
    assert bool(torch.isfinite(short.value - short.lower_bound).all())
    late = compiled(form, feasible_set, deadline=time.perf_counter() - 1, tol=1e-12)
    assert (late.status == "time_limit").all()
    assert bool(torch.isfinite(late.value - late.lower_bound).all())
    cold = solve_newton(form, feasible_set, **LIMITS)
    patient = compiled(form, feasible_set, deadline=time.perf_counter() + 1e3)
    torch.testing.assert_close(
        patient.value, cold.value, rtol=0, atol=2 * LIMITS["tol"] * float(cold.value.abs().max())
    )
    warm = solve_newton(form, feasible_set, start=cold.x, **LIMITS)
    assert (warm.status == "optimal").all()
    assert float(warm.iterations.sum()) < float(cold.iterations.sum())


def test_an_interrupted_run_goes_on_where_it_was(monkeypatch) -> None:
    form, feasible_set = random_form(5, 4, own=False), Simplex(5)
    whole = compiled(form, feasible_set)
    monkeypatch.setattr("soctk.decide.compiled.solve.WORK_BETWEEN_CHECKS", 1.0)  # one instance, one step at a time
    pieces = compiled(form, feasible_set)
    assert (pieces.status == "optimal").all()
    torch.testing.assert_close(pieces.value, whole.value, rtol=2e-8, atol=2e-8)
    assert float((pieces.iterations - whole.iterations).abs().max()) <= 2


def test_linear_programs_that_stall_are_finished_by_the_lift() -> None:
    model = shaken(MODELS["relu"](20))
    context = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    result = SmoothingNewton().solve(Problem(model.conic_form(context).detach(), Box(20)), Limits(1e-6))
    assert (result.status == "optimal").all()
    assert bool((result.relative_gap(torch.arange(20)) <= 1e-6).all())


@pytest.mark.parametrize(
    "feasible_set", [Box(4, (0, 0, 1, 0), (1, 0, 1, 2)), Budget(4, 1.5, (0, 0, 1, 0), (1, 0, 1, 2))]
)
def test_fixed_coordinates(feasible_set: FeasibleSet) -> None:
    model = shaken(MODELS["soc"](4))
    context = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    decision = minimize(model, feasible_set, context)
    assert bool(decision.optimal.all())
    assert float(feasible_set.violation(decision.x).max()) <= 1e-12
    for row in range(3):
        assert float(decision.value[row]) == pytest.approx(
            clarabel_optimum(model, feasible_set, context[row]), rel=2 * CERTIFIED, abs=2 * CERTIFIED
        )


@pytest.mark.parametrize("set_name", SETS)
def test_a_log_sum_exp_of_one_number_is_affine(set_name: str) -> None:
    generator, size, n = torch.Generator().manual_seed(2), 10, 5

    def affine(rows: int) -> tuple[DenseMap, torch.Tensor]:
        matrix = torch.randn(1, rows, n, generator=generator, dtype=DOUBLE)
        return DenseMap(matrix), torch.randn(size, 1, rows, generator=generator, dtype=DOUBLE)

    ones = torch.ones(1, 1, 4, dtype=DOUBLE)
    terms = LogSumExp(*affine(4), ones, 1), Quadratic(*affine(4), ones)
    linear = torch.randn(size, 1, n, generator=generator, dtype=DOUBLE)
    check_agreement(ConicForm(torch.zeros(size, 1, dtype=DOUBLE), linear, terms, (size,)), SETS[set_name](n))


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("size", [0, 1])
def test_few_instances(size: int, own: bool) -> None:
    form = random_form(3, 2, own=own).select(torch.arange(size))
    result = compiled(form, Simplex(3), deadline=time.perf_counter() + 1e3)
    assert result.x.shape == (size, 3)
    assert result.status.shape == result.iterations.shape == (size,)
    assert (result.status == "optimal").all()


def test_inputs_of_any_memory_order_are_left_as_they_were() -> None:
    form, feasible_set = random_form(5, 4, own=True), Budget(5, 1.5)
    scattered = form.apply(lambda t: t.expand(2, *t.shape).movedim(0, -1).contiguous().movedim(-1, 0)[0])
    assert not scattered.linear.is_contiguous()
    before = scattered.apply(torch.clone)
    mine, other = compiled(scattered, feasible_set), compiled(form, feasible_set)
    assert torch.equal(mine.x, other.x)
    for name in ("constant", "linear"):
        assert torch.equal(getattr(scattered, name), getattr(before, name))
    for after, term in zip(scattered.terms, before.terms, strict=True):
        for key, tensor in term.coefficients().items():
            assert torch.equal(after.coefficients()[key], tensor)


@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("model_name", MODELS)
def test_single_precision_is_solved_in_double_and_honest_in_single(model_name: str, set_name: str) -> None:
    """The function is that of the stored weights: the same weights in float64 are the exact reference."""
    model, feasible_set = shaken(MODELS[model_name](10)).float(), SETS[set_name](10)
    context = torch.randn(20, 3, generator=torch.Generator().manual_seed(3), dtype=SINGLE)
    decision, exact = minimize(model, feasible_set, context, tol=1e-4), copy.deepcopy(model).double()
    assert decision.x.dtype == decision.value.dtype == decision.lower_bound.dtype == SINGLE
    assert (decision.status == "optimal").all()
    with torch.no_grad():
        value = exact(decision.x.double(), context.double())
    assert bool((decision.value.double() >= value - VALUE[DOUBLE] * value.abs()).all())
    double = minimize(exact, feasible_set, context.double(), tol=1e-9)
    assert bool((decision.lower_bound.double() <= double.value + VALUE[DOUBLE] * double.value.abs()).all())


def test_numbers_that_overflow_do_no_harm() -> None:
    form = random_form(3, 2, own=False).transformed(
        scale=1e300, shift=0.0, x_scale=torch.ones((), dtype=DOUBLE), x_mean=torch.zeros((), dtype=DOUBLE)
    )
    result = compiled(form, Simplex(3))
    assert not np.isin(result.status, ["optimal"]).any() or bool(torch.isfinite(result.value).all())
    assert not bool(torch.isnan(result.x).any())


@pytest.mark.parametrize("hidden", [(8, 8, 8), (44, 44)])
@pytest.mark.parametrize("kind", SETS)
def test_polyhedral_functions_by_newton_steps_alone(kind: str, hidden: tuple[int, ...]) -> None:
    model, feasible_set = ReLUICNN(50, 8, hidden=hidden, seed=0), SETS[kind](50)
    contexts = torch.randn(40, 8, generator=torch.Generator().manual_seed(50), dtype=DOUBLE)
    result = solve_compiled(model.conic_form(contexts).detach(), Region.of(feasible_set), tol=1e-4, max_iter=60)
    assert bool((result.status == "optimal").all())


def test_vertices_of_a_simplex_to_1e_9() -> None:
    """Where one coordinate takes all, its curvature is all but zero: rounding there must not move the others."""
    model = shaken(ReLUICNN(25, 3))
    contexts = torch.randn(60, 3, generator=torch.Generator().manual_seed(8), dtype=DOUBLE)
    form = model.conic_form(contexts).detach()
    for solved in (compiled, batched):
        result = solved(form, Simplex(25), tol=1e-9)
        assert bool((result.status == "optimal").all())
        assert float((result.x.amax(dim=-1) > 0.999).double().mean()) > 0.5


@pytest.mark.parametrize("seed", [1, 4, 10])
def test_rounding_at_kinks_leaves_gaps_of_1e_8_in_reach(seed: int) -> None:
    """At a mu five times smaller it did not: one of these hundred contexts stalled at a gap of some 2e-8."""
    model = shaken(QuadICNN(50, 8, seed=seed))
    contexts = torch.randn(100, 8, generator=torch.Generator().manual_seed(50), dtype=DOUBLE)
    result = solve_compiled(model.conic_form(contexts).detach(), Region.of(Budget(50, 15.0)), tol=1e-8, max_iter=60)
    assert bool((result.status == "optimal").all())
