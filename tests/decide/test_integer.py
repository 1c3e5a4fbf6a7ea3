"""Decisions in whole numbers: the best of all combinations, with a lower bound that holds for every one of them."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch
from ball import Ball
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import CERTIFIED, DOUBLE, VALUE
from zoo import MODELS, shaken

import soctk
from soctk import Box, Budget, Polyhedron, Simplex, Status
from soctk.decide import branch_and_bound
from soctk.decide.newton import SmoothingNewton
from soctk.decide.polyhedral import ROUNDING
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result
from soctk.sets.rounding import FEASIBLE

CONTEXT = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)


def combinations(low: np.ndarray, high: np.ndarray) -> torch.Tensor:
    """Return all whole points of a box, (M, n)."""
    axes = [np.arange(np.ceil(a), np.floor(b) + 1) for a, b in zip(low, high, strict=True)]
    return torch.tensor(list(itertools.product(*axes)), dtype=DOUBLE).reshape(-1, len(low))


def check(decision: soctk.Decision, best: torch.Tensor, tol: float = CERTIFIED) -> None:
    """Assert that certified decisions have the least values, (N,): inf where there is none."""
    none = torch.isinf(best)
    assert (decision.status[none.numpy()] == Status.INFEASIBLE).all()
    assert (decision.status[~none.numpy()] == Status.OPTIMAL).all()
    assert bool(decision.x[none].isnan().all())
    value, bound, best = decision.value[~none], decision.lower_bound[~none], best[~none]
    size = best.abs().clamp(min=1.0)
    assert bool(((value - best).abs() <= 2 * tol * size).all())
    assert bool((bound <= best + VALUE[DOUBLE] * size).all())
    assert bool((value - bound <= tol * value.abs().clamp(min=1.0)).all())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "feasible_set",
    [
        Box(4, -1.3, 2.4),
        Simplex(4),
        Budget(4, 3, 0, 2),
        Polyhedron(4, -1, 2, G=[[1.0, 0.4, -0.7, 0.2], [0.3, 1.0, 1.0, 1.0]], h=[1.3, 2.0]),
    ],
    ids=["box", "simplex", "budget", "polyhedron"],
)
def test_the_best_of_all_combinations(kind: str, feasible_set: Polyhedron) -> None:
    model = shaken(MODELS[kind](4))
    points = combinations(*(np.broadcast_to(end.numpy(), 4) for end in feasible_set.hull()))
    points = points[feasible_set.contains(points)]
    values = model(points.expand(4, -1, -1), CONTEXT[:, None].expand(-1, len(points), -1)).detach()
    decision = soctk.minimize(model, feasible_set, CONTEXT, integer=True)
    check(decision, values.amin(dim=1))
    assert torch.equal(decision.x, decision.x.round())
    assert bool(feasible_set.contains(decision.x, FEASIBLE).all())
    assert set(decision.solver) == {"branch_and_bound"}


@given(seed=st.integers(0, 10_000))
@settings(max_examples=40)
def test_some_whole_and_others_not(seed: int) -> None:
    """The others decided for each combination: over random polyhedra of each context's own, some of them empty."""
    rng = np.random.default_rng(seed)
    n, model = 4, shaken(MODELS["soc"](4))
    integer = sorted(rng.choice(n, size=int(rng.integers(1, n)), replace=False).tolist())
    low, high = rng.integers(-2, 1, n) + 0.25, rng.integers(1, 3, n) + 0.5
    G, inside = rng.integers(-2, 3, (2, n)).astype(float), rng.uniform(low, high, (4, n))
    E = rng.integers(0, 3, (1, n)).astype(float)
    E[0, 0] = 1.0
    # The second context's inequalities leave no room.
    h = inside @ G.T + np.array([0.3, -9.0, 0.0, 1.0])[:, None]
    sets = Polyhedron(n, low, high, E=E, f=E @ inside[0], G=G, h=np.full(2, 99.0)).at(f=inside @ E.T, h=h)
    decision = soctk.minimize(model, sets, CONTEXT, integer=integer)
    points = combinations(low[integer], high[integer])
    best = []
    for row in range(4):
        lower, upper = (torch.from_numpy(end).expand(len(points), -1).clone() for end in (low, high))
        lower[:, integer] = upper[:, integer] = points
        every = sets.base.at(lower=lower, upper=upper, f=sets.f[row], h=sets.h[row])
        values = soctk.minimize(model, every, CONTEXT[row].expand(len(points), -1))
        best.append(values.value[torch.from_numpy(values.status == Status.OPTIMAL)].tolist() or [np.inf])
    check(decision, torch.tensor([min(values) for values in best], dtype=DOUBLE))
    answered = decision.x[:, integer][decision.optimal]
    assert torch.equal(answered, answered.round())
    assert float(decision.violation.nan_to_num(0.0).max()) <= FEASIBLE


def test_what_has_no_whole_point_is_infeasible() -> None:
    model = shaken(MODELS["soc"](4))
    assert (soctk.minimize(model, Box(4, 0.2, 0.8), CONTEXT, integer=True).status == Status.INFEASIBLE).all()
    halves = Polyhedron(4, 0, 5, E=[2.0, 2.0, 2.0, 2.0], f=3.0)  # twice a whole number is never three
    decision = soctk.minimize(model, halves, CONTEXT[0], integer=True)
    assert decision.status == Status.INFEASIBLE
    assert bool(decision.x.isnan().all())


def test_rows_that_rounding_leaves_open_hold() -> None:
    """3 times 0.1 is not 0.3 in float64."""
    model = soctk.from_quadratic(np.eye(2), np.array([-3.0, 0.0]))
    decision = soctk.minimize(model, Polyhedron(2, 0, 5, E=[0.1, 0.1], f=0.3), integer=True)
    assert decision.x.tolist() == [3.0, 0.0]
    assert decision.status == Status.OPTIMAL


def test_points_that_rows_exclude_by_rounding_alone_are_whole_points() -> None:
    """Of a right-hand side that is off by 1e-10, whatever is minimised; one by multipliers without end otherwise."""
    off = Polyhedron(5, 0, 1, E=[[0.1, 0.2, 0.3, 0.4, 0.7], [1.0] * 5], f=[0.8 + 1e-10, 3.0])
    for slope in ([-3.0, 1, -2, -1, 3], [3.0, -1, 2, 1, -3]):
        decision = soctk.minimize(soctk.from_quadratic(np.eye(5), np.array(slope)), off, integer=True)
        assert decision.x.tolist() == [1.0, 0.0, 1.0, 1.0, 0.0]
        assert decision.status == Status.OPTIMAL
    steep = soctk.from_quadratic(np.diag([1.0, 2.0, 3.0]), np.array([2.0, -9.0, 0.0]))
    thin = Budget(3, 1 + 1e-11, [-2.75, 0.25, -2.75], [-0.75, 3.25, -0.75])
    assert soctk.minimize(steep, thin, integer=True).status == Status.OPTIMAL


def test_mixed_points_of_a_set_without_an_interior_are_in_it() -> None:
    rows = Polyhedron(4, -1.3, 2.4, G=[[1.0] * 4, [-1.0] * 4], h=[1.5, -1.5])
    decision = soctk.minimize(shaken(MODELS["soc"](4)), rows, CONTEXT, integer=[0, 1])
    assert (decision.status == Status.OPTIMAL).all()
    assert float(decision.violation.max()) <= ROUNDING * 10


def test_what_is_not_whole_is_as_infeasible_as_without_whole_numbers() -> None:
    """Two equalities of one meaning, the second off by more and more."""
    bowl = soctk.from_quadratic(np.eye(3), np.zeros(3))
    rows = Polyhedron(3, [1, 0, 0], 1, E=[[0.7, 1, 0.3], [1.4, 2, 0.6]], f=[1.7, 3.4])
    sets = rows.at(f=[[1.7, 3.4 + off] for off in np.geomspace(1e-9, 1e-7, 40)])
    plain, whole = soctk.minimize(bowl, sets), soctk.minimize(bowl, sets, integer=[0])
    assert set(plain.status) == {Status.OPTIMAL, Status.INFEASIBLE}
    assert (whole.status == plain.status).all()


def test_time_that_runs_out_amid_a_node_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that cannot be split, whose decision the deadline has cut off."""

    class TooLate(SmoothingNewton):
        def solve(self, problem: Problem, limits: Limits, start: torch.Tensor | None = None) -> Result:
            while not limits.late:
                time.sleep(0.001)
            return super().solve(problem, limits, start)

    monkeypatch.setattr(branch_and_bound, "RELAXED", TooLate(project=False))
    decision = soctk.minimize(shaken(MODELS["soc"](4)), Box(4, 0.5, 1.5), CONTEXT, integer=[0], time_limit=0.05)
    assert (decision.status == Status.TIME_LIMIT).all()


def test_infinite_bounds_are_those_that_rows_imply() -> None:
    """No sum of coordinates is both even and odd: told once all combinations between the implied ends are through."""
    parity = {"E": [[1.0, 1, 1, 0, 0], [1.0, -1, -1, 2, 2]], "f": [0.0, 1.0]}
    G = np.vstack([np.eye(5), -np.eye(5)])
    endless = Polyhedron(5, -np.inf, np.inf, G=G, h=np.full(10, 1.5), **parity)
    bowl = soctk.from_quadratic(np.eye(5), np.zeros(5))
    decisions = [soctk.minimize(bowl, s, integer=True) for s in (endless, Polyhedron(5, -1.5, 1.5, **parity))]
    assert [decision.status for decision in decisions] == [Status.INFEASIBLE] * 2
    assert decisions[0].iterations == decisions[1].iterations


def test_a_time_limit_is_kept_over_sets_without_an_interior() -> None:
    """Every tree gets its share, and what others leave; nothing is called stalled that ran out of time."""
    model, rows = shaken(MODELS["relu"](8)), Polyhedron(8, -2, 2, G=[[1.0] * 8, [-1.0] * 8], h=[3.0, -3.0])
    contexts = torch.randn(300, 3, generator=torch.Generator().manual_seed(1)).double()
    limited = soctk.minimize(model, rows, contexts, integer=[0, 1, 2], time_limit=1e-3)
    assert set(limited.status) <= {Status.OPTIMAL, Status.TIME_LIMIT}


@pytest.mark.parametrize("limit", [{"max_iter": 3}, {"time_limit": 1e-9}])
def test_a_limit_leaves_a_bound_that_holds_and_no_point_that_is_not_whole(limit: dict[str, float]) -> None:
    """150 contexts in two groups of trees."""
    model, contexts = shaken(MODELS["soc"](6)), torch.randn(150, 3, generator=torch.Generator().manual_seed(1))
    whole = soctk.minimize(model, Box(6, 0, 3), contexts.double(), integer=True)
    limited = soctk.minimize(model, Box(6, 0, 3), contexts.double(), integer=True, **limit)
    assert (whole.status == Status.OPTIMAL).all()
    assert bool((limited.lower_bound <= whole.value + CERTIFIED).all())
    assert set(limited.status) <= {Status.OPTIMAL, Status.ITERATION_LIMIT, Status.TIME_LIMIT}
    cut_off = limited.status != Status.OPTIMAL
    assert cut_off.any()
    known = ~limited.x.isnan().any(dim=1)
    assert torch.equal(limited.x[known], limited.x[known].round())
    assert bool((limited.value[known] >= whole.lower_bound[known]).all())
    assert bool(limited.iterations.max() <= limit.get("max_iter", 0))


def test_a_decision_does_not_depend_on_the_others_of_its_batch() -> None:
    """Where whole points are rare, so that trees are large."""
    model, contexts = shaken(MODELS["soc"](12)), torch.randn(40, 3, generator=torch.Generator().manual_seed(1)).double()
    rare = Polyhedron(12, 0, 1, E=[83.0, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139], f=541.0)
    together = soctk.minimize(model, rare, contexts, integer=True)
    rows = together.iterations.argsort(descending=True)[:3].tolist()
    assert int(together.iterations[rows].min()) > 2 * branch_and_bound.ROUND
    for row in rows:
        alone = soctk.minimize(model, rare, contexts[row], integer=True)
        assert torch.equal(together.x[row], alone.x)
        assert int(together.iterations[row]) == int(alone.iterations)


def test_a_tolerance_out_of_reach_is_not_said_to_be_reached() -> None:
    """The bounds of single points are off by rounding, and count."""
    decision = soctk.minimize(shaken(MODELS["soc"](4)), Box(4, -1.3, 2.4), CONTEXT, integer=True, tol=1e-18)
    assert (decision.status == Status.STALLED).all()
    assert bool((decision.lower_bound < decision.value).all())
    assert float(decision.relative_gap.max()) <= CERTIFIED


def test_an_earlier_decision_is_a_point_to_begin_with() -> None:
    """One node shows what the point is worth."""
    model, contexts = shaken(MODELS["soc"](6)), torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).double()
    first = soctk.minimize(model, Box(6, 0, 3), contexts, integer=True)
    again = soctk.minimize(model, Box(6, 0, 3), contexts, integer=True, x0=first, max_iter=1)
    torch.testing.assert_close(again.value, first.value, rtol=VALUE[DOUBLE], atol=VALUE[DOUBLE])


def test_gaps_are_in_the_unit_of_functions_that_hardly_vary() -> None:
    """A level of 1e4, and values that differ by 1e-2: relative to the level every point would do."""
    bowl = soctk.from_quadratic(1e-3 * np.eye(3), np.array([-1.4e-3, -2.6e-3, 0.0]), 1e4)
    decision = soctk.minimize(bowl, Box(3, -3, 3), integer=True)
    assert decision.x.tolist() == [1.0, 3.0, 0.0]
    scaled = soctk.minimize(bowl, Box(3, -3, 3), integer=True, scale=1e-2)
    assert torch.equal(scaled.x, decision.x)
    assert float(scaled.gap) <= CERTIFIED * 1e-2


def test_shapes_and_single_precision() -> None:
    model = shaken(MODELS["soc"](4)).float()
    decision = soctk.minimize(model, Budget(4, 3, 0, 2), CONTEXT[:2, None].float(), integer=[-1, 0], tol=1e-4)
    assert decision.x.shape == (2, 1, 4)
    assert decision.x.dtype == torch.float32
    assert torch.equal(decision.x[..., [0, 3]], decision.x[..., [0, 3]].round())
    assert bool(decision.optimal.all())
    assert decision.prices is None
    assert soctk.minimize(model, Budget(4, 3, 0, 2), CONTEXT[:0].float(), integer=True).x.shape == (0, 4)
    usual = soctk.minimize(model, Budget(4, 3, 0, 2), CONTEXT.float(), integer=[])
    assert (usual.solver == "newton").all()


def test_threads_decide_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of trees grow on threads of their own, and wait for each other after every round."""
    monkeypatch.setattr(branch_and_bound, "TREES", 5)
    monkeypatch.setattr(branch_and_bound, "PAUSE", 0.0)
    model, contexts = shaken(MODELS["soc"](5)), torch.randn(23, 3, generator=torch.Generator().manual_seed(1)).double()
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(soctk.minimize(model, Box(5, 0, 3), contexts, integer=True).x)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"integer": [0, 0]}, "each coordinate once"),
        ({"integer": [4]}, "expected -4 to 3, got 4"),
        ({"integer": [0.5]}, "expected an integer"),
        ({"integer": "0"}, "expected a sequence"),
        ({"integer": [True, False, True, True]}, "expected an integer"),
        ({"integer": True, "method": "newton"}, "neither method"),
        ({"integer": True, "infeasible": "nearest"}, "nor subject_to"),
        ({"integer": True, "solver": "CLARABEL"}, "an option of method"),
        ({"integer": True, "subject_to": [soctk.from_quadratic(np.eye(4), np.zeros(4))]}, "nor subject_to"),
    ],
)
def test_bad_input(arguments: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        soctk.minimize(shaken(MODELS["soc"](4)), Box(4), CONTEXT, **arguments)


def test_a_set_without_rows_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="Embedding"):
        soctk.minimize(shaken(MODELS["soc"](4)), Ball(4), CONTEXT, integer=True)
