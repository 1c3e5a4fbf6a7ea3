"""What once was a wrong answer of `minimize`, each as the attack that found it."""

from __future__ import annotations

import itertools
import warnings

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import scipy.stats
import torch
from ball import Ball
from zoo import MODELS, shaken

import soctk
from soctk import ConicForm
from soctk.decide.first_order import FirstOrder
from soctk.decide.problem import Limits, Problem
from soctk.decide.ranges import unit_in_range
from soctk.maps.linear import DenseMap
from soctk.support import Support
from soctk.terms import Huber, Norms, Quadratic

DOUBLE = torch.float64


def decide_model(dim: int = 5, count: int = 4) -> tuple[soctk.ConvexSurrogate, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return shaken(MODELS["soc"](dim)), torch.randn(count, 3, generator=generator, dtype=DOUBLE)


# -- deciding: solvers, limits, statuses ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["soc", "relu", "hyperbolic"])
@pytest.mark.parametrize("value_scale", [1e-10, 1.0, 1e6])
def test_no_status_says_optimal_above_the_tolerance_in_units_of_the_scale(name: str, value_scale: float) -> None:
    model, feasible_set = shaken(MODELS[name](6)), soctk.Simplex(6)
    model.set_standardization(value=(0.0, value_scale))
    context = torch.randn(16, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    minimum = soctk.minimize(model, feasible_set, context, tol=1e-12, scale=value_scale).value
    for scale in (1e-10 * value_scale, 1e-3 * value_scale):
        decision = soctk.minimize(model, feasible_set, context, scale=scale)
        assert ((decision.relative_gap <= 1e-6).numpy() == (decision.status == "optimal")).all()
        assert bool((decision.lower_bound <= minimum).all())
    assert decision.optimal.all()  # at a thousandth of the values' own scale


@pytest.mark.parametrize("method", [None, "cvxpy", "first_order"])
@pytest.mark.parametrize("name", ["simplex", "box", "rows"])
def test_a_unit_far_above_the_values_is_no_hindrance(name: str, method: str | None) -> None:
    """An outside solver was given the function divided by the unit, which was nothing, and said "failed"."""
    model, context = decide_model()
    best = soctk.minimize(model, FLAT_OVER[name], context, tol=1e-9)
    for scale in (1e50, 1e200, 1.7e308):
        decision = soctk.minimize(model, FLAT_OVER[name], context, method=method, scale=scale)
        assert decision.optimal.all()
        assert bool((decision.lower_bound <= best.value).all() & (decision.value >= best.lower_bound).all())


def test_the_protocols_stop_at_the_time_limit() -> None:
    model, context = decide_model()
    for method in ("projected_gradient", "projected_adam"):
        decision = soctk.minimize(model, soctk.Box(5), context, method=method, time_limit=1e-9, max_iter=10**9)
        assert (decision.status == "time_limit").all()
        assert int(decision.iterations.max()) == 0


def test_an_outside_solver_has_one_time_limit_for_all_instances() -> None:
    model, context = decide_model(count=3)
    decision = soctk.minimize(model, soctk.Box(5), context, method="cvxpy", time_limit=1e-9)
    assert (decision.status == "time_limit").all()
    assert bool(decision.x.isfinite().all())  # the best point there is, with its honest gap
    assert bool((decision.gap > 0).all() & decision.gap.isfinite().all())


ROWS = soctk.Polyhedron(5, 0.0, 1.0, E=[np.ones(5)], f=[2.0], G=[[1.0, -1.0, 0.0, 0.0, 0.0]], h=[0.3])
FLAT_OVER = {"simplex": soctk.Simplex(5), "box": soctk.Box(5), "rows": ROWS, "at": ROWS.at(h=0.35)}
WHO = [(name, method) for name in FLAT_OVER for method in ("newton", "cvxpy", "first_order")]


@pytest.mark.parametrize(("name", "method"), [pair for pair in WHO if pair != ("at", "first_order")])
def test_where_f_hardly_varies_a_time_limit_is_called_one(name: str, method: str) -> None:
    """Over polyhedra the centre was "optimal", as its gap was small beside the value; over boxes it was "stalled"."""
    feasible_set = FLAT_OVER[name]
    model, context = decide_model()
    model.set_standardization(value=(100.0, 1e-6))
    minimum = soctk.minimize(model, feasible_set, context, tol=1e-8)
    assert minimum.optimal.all()
    late = soctk.minimize(model, feasible_set, context, method=method, time_limit=1e-9)
    assert (late.status == "time_limit").all()
    assert bool((late.relative_gap > 1e-6).all())
    assert bool((late.scale < 1.0).all())  # a gap of 1e-6 of 100 would be larger than all that f varies by
    assert bool((late.lower_bound <= minimum.value).all() & (late.value >= minimum.lower_bound).all())


def test_after_the_deadline_no_vertices_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two linear programmes for each context, whatever the limit: 3.7 s for 1000 contexts that were given 0.02."""
    model, context = decide_model()
    model.set_standardization(value=(100.0, 1e-6))
    problem = Problem.at(model, context, ROWS)
    decision = soctk.minimize(model, ROWS, context)
    asked: list[int] = []
    vertices = soctk.Polyhedron._linear_minimizer
    monkeypatch.setattr(soctk.Polyhedron, "_linear_minimizer", lambda *a: asked.append(1) or vertices(*a))
    units = [unit_in_range(problem, decision.x, decision.value, Limits(deadline=end)) for end in (0.0, np.inf)]
    assert asked == [1, 1]  # without a deadline
    assert bool((units[0] > 1e-3).all() & (units[1] >= units[0]).all() & (units[1] < 100.0).all())


def test_what_a_decision_keeps_is_not_the_callers() -> None:
    """A buffer of contexts that was filled anew changed `outside` of the decision before, and one of scales its gap."""
    model, _ = decide_model()
    model.support = Support.of((torch.rand(200, 3, dtype=DOUBLE), torch.rand(200, 5, 5, dtype=DOUBLE)))
    far, unit = torch.full((4, 3), 50.0, dtype=DOUBLE), torch.full((4,), 2.0, dtype=DOUBLE)
    limit = [(soctk.from_quadratic(np.eye(5), np.zeros(5)), 1.0)]
    for options in ({}, {"subject_to": limit}):
        for given in (far.clone(), far.numpy().copy(), far.clone().requires_grad_()):
            scale = unit.clone()
            decision = soctk.minimize(model, soctk.Box(5), given, scale=scale, **options)
            gap = decision.relative_gap.clone()
            if isinstance(given, np.ndarray):
                given[:] = 0.5
            else:
                given.data.fill_(0.5)
            scale.fill_(1e-9)
            assert bool(decision.outside.all())
            assert torch.equal(decision.relative_gap, gap)
            assert not decision.context.requires_grad


def test_an_outside_solver_obeys_max_iter_and_says_so() -> None:
    model, context = decide_model()
    for solver in ("CLARABEL", "SCS"):
        decision = soctk.minimize(model, soctk.Box(5), context, method="cvxpy", solver=solver, max_iter=2, tol=1e-9)
        assert np.isin(decision.status, ["iteration_limit", "inaccurate"]).all()
    decision = soctk.minimize(model, soctk.Box(5), context, method="cvxpy", solver_options={"max_iter": 2})
    assert (decision.status == "iteration_limit").all()


def test_max_iter_at_its_default_given_by_hand_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(4)
    slopes, levels = (torch.randn(*shape, generator=generator, dtype=DOUBLE) for shape in ((800, 80), (800,)))
    model = soctk.from_max_affine(slopes, levels)
    given, default = (soctk.minimize(model, soctk.Box(80), max_iter=m) for m in (60, None))
    assert torch.equal(given.x, default.x)
    assert given.status == default.status == "optimal"
    assert given.solver == default.solver == "cvxpy"  # after 60 Newton steps, or this would show nothing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "NONESUCH"}, 'solver: .*"cvxpy"'),
        ({"solver": "SCS", "method": "newton"}, 'solver: .*"cvxpy"'),
        ({"solver_options": {"eps": 1e-3}, "method": "first_order"}, 'solver_options: .*"cvxpy"'),
        ({"seed": 1, "method": "cvxpy"}, 'seed: .*"projected_gradient" and "projected_adam"'),
        ({"seed": 1, "method": FirstOrder()}, r"seed: .*FirstOrder\(\.\.\.\)"),
    ],
)
def test_an_option_that_a_method_does_not_have_is_refused(options: dict, message: str) -> None:
    model, context = decide_model()
    with pytest.raises(ValueError, match=message):
        soctk.minimize(model, soctk.Box(5), context, **options)


def test_first_order_steps_that_get_nowhere_end() -> None:
    """What took newton_cg 54 s on 15 variables was the second solver's 20,000 steps at the rounding of the gap."""
    model, context = decide_model()
    result = FirstOrder().solve(Problem(model.conic_form(context).detach(), soctk.Box(5)), Limits(1e-17))
    assert np.isin(result.status, ["stalled", "optimal"]).all()
    assert int(result.iterations.max()) < 10_000


def test_counts_from_numpy_are_counts_and_booleans_are_not() -> None:
    model, context = decide_model()
    limited = soctk.minimize(model, soctk.Box(np.int64(5)), context, max_iter=np.int64(5), time_limit=np.float32(60))
    assert int(limited.iterations.max()) <= 5
    for flag in (True, np.True_):
        with pytest.raises(ValueError, match="max_iter: expected an integer"):
            soctk.minimize(model, soctk.Box(5), context, max_iter=flag)


STRANGE = {
    "sparse": (lambda array: torch.from_numpy(array).to_sparse(), "expected a dense tensor, got one of layout"),
    "compressed": (lambda array: scipy.sparse.csr_array(array), "expected a numeric tensor or array, got csr_array"),
    "masked": (lambda array: np.ma.masked_less(array, 0.5), "expected an array without masked entries"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_arrays_of_which_a_part_is_not_there_are_refused(kind: str) -> None:
    make, message = STRANGE[kind]
    model, context = decide_model()
    with pytest.raises(TypeError, match=f"context: {message}"):
        soctk.minimize(model, soctk.Box(5), make(context.numpy()))
    with pytest.raises(TypeError, match=f"x: {message}"):
        model(make(np.zeros((4, 5))), context)


def test_masked_bounds_are_refused() -> None:
    masked = np.ma.masked_less(np.zeros(5), 0.5)
    for lower in (masked, [masked[0]] * 5):
        with pytest.raises(TypeError, match="lower: expected an array without masked entries"):
            soctk.Box(5, lower, 1.0)


def test_bounds_of_a_polyhedron_may_be_sparse() -> None:
    lower = torch.tensor([[0.0, 0.5, 0.0]])
    polyhedron = soctk.Polyhedron(3, lower=0, upper=1)
    sets = [polyhedron.at(lower=given) for given in (lower, lower.to_sparse())]
    assert torch.equal(sets[0].lower, sets[1].lower)


def test_a_matrix_of_a_set_may_be_sparse() -> None:
    G, h = np.eye(3)[:2], np.full(2, 0.5)
    sets = [
        soctk.Polyhedron(3, lower=0, upper=1, G=given, h=h)
        for given in (G, scipy.sparse.csr_array(G), torch.from_numpy(G).to_sparse())
    ]
    assert sets[0] == sets[1] == sets[2]


def test_tensors_without_numbers_are_refused_with_a_word() -> None:
    model, context = decide_model()
    with pytest.raises(ValueError, match=r"context: .*meta"):
        soctk.minimize(model, soctk.Box(5), context.to("meta"))
    with pytest.raises(ValueError, match=r"model: .*meta"):
        soctk.minimize(model.to("meta"), soctk.Box(5), context)


class Lying(soctk.FeasibleSet):
    """The box [0, 1]^n with one oracle that is wrong."""

    def __init__(self, dim: int, wrong: str) -> None:
        self.dim, self.wrong, self.box = dim, wrong, soctk.Box(dim)

    def _project(self, y: torch.Tensor) -> torch.Tensor:
        return self.box._project(y) + (0.01 if self.wrong == "projection" else 0.0)

    def _linear_minimizer(self, g: torch.Tensor) -> torch.Tensor:
        return self.box._linear_minimizer(-g if self.wrong == "minimizer" else g)

    def _violation(self, x: torch.Tensor) -> torch.Tensor:
        return self.box._violation(x)

    def constraints(self, x) -> list:
        return self.box.constraints(x)


@pytest.mark.parametrize("wrong", ["nothing", "projection", "minimizer"])
def test_what_contradicts_the_set_or_the_bound_is_not_called_optimal(wrong: str) -> None:
    """A point outside of the set; a value below its own lower bound. Where trying the answers out has not told."""
    model, context = decide_model()
    feasible_set = Lying(5, "nothing")
    feasible_set.check()
    feasible_set.wrong = wrong
    decision = soctk.minimize(model, feasible_set, context, max_iter=200, tol=1e-3)
    if wrong == "nothing":
        assert decision.optimal.all()
    if wrong == "projection":
        outside = (decision.violation > 1e-3).numpy()
        assert outside.any()
        assert (decision.status[outside] == "inaccurate").all()
    if wrong == "minimizer":
        assert (decision.status == "inaccurate").all()
        assert bool((decision.value < decision.lower_bound).all())
        assert bool(decision.gap.isinf().all())


SIGNS = torch.tensor([1.0, 1.0, -1.0], dtype=DOUBLE)
WRONG = {
    "minimizer": ("_linear_minimizer", lambda self, g: self.box._linear_minimizer(-g), ValueError),
    "one coordinate": ("_linear_minimizer", lambda self, g: self.box._linear_minimizer(SIGNS * g), ValueError),
    "of axes": (
        "_linear_minimizer",
        lambda self, g: self.box._linear_minimizer(g * g.all(-1, keepdim=True)),
        ValueError,
    ),
    "of nothing": (
        "_linear_minimizer",
        lambda self, g: self.box._linear_minimizer(g) + 0 * g / g.norm(dim=-1, keepdim=True),
        ValueError,
    ),
    "projection": ("_project", lambda self, y: self.box._project(y) + 0.01, ValueError),
    "not the nearest": ("_project", lambda self, y: self.box._project(y + y.flip(-1)), ValueError),
    "negative inside": ("_violation", lambda self, x: torch.maximum(x - 1, -x).amax(dim=-1), ValueError),
    "too small": ("_project", lambda self, y: y.clamp(0.1, 0.9), ValueError),
    "bound": ("linear_minimum", lambda self, g: (g * self.box._linear_minimizer(g)).sum(dim=-1) + 0.1, ValueError),
    "array": ("_project", lambda self, y: self.box._project(y).numpy(), TypeError),
    "float32": ("_linear_minimizer", lambda self, g: self.box._linear_minimizer(g).float(), TypeError),
    "shape": ("_violation", lambda self, x: self.box._violation(x).unsqueeze(-1), ValueError),
    "one for all": ("_violation", lambda self, x: self.box._violation(x).amax(), ValueError),
    "NaN": ("_project", lambda self, y: y * torch.nan, ValueError),
    "never satisfied": ("_violation", lambda self, x: self.box._violation(x) + 1.0, ValueError),
    "always satisfied": ("_violation", lambda self, x: torch.zeros_like(x[..., 0]), ValueError),
    "one end forgotten": ("_violation", lambda self, x: torch.relu(-x).amax(dim=-1), ValueError),
    "no constraints": ("constraints", lambda self, x: [], ValueError),
    "constraints too wide": ("constraints", lambda self, x: [x >= 0, x <= 1.1], ValueError),
    "constraints too narrow": ("constraints", lambda self, x: [x >= 0, x <= 0.9], ValueError),
    "no list": ("constraints", lambda self, x: None, TypeError),
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_a_set_whose_answers_contradict_each_other_is_refused(wrong: str) -> None:
    """The answer that is wrong, or that contradicts it, is named before anything is decided."""
    name, answer, error = WRONG[wrong]
    feasible_set = type("Wrong", (Lying,), {name: answer})(3, "nothing")
    model, answers = soctk.SOCICNN(3), "_linear_minimizer|_project|_violation|linear_minimum|constraints"
    for _ in range(2):
        with pytest.raises(error, match=rf"^Wrong\.({answers}): expected"):
            soctk.minimize(model, feasible_set)
    with pytest.raises(error, match=r"^Wrong\."):
        soctk.certify(model, feasible_set, torch.zeros(3))


def test_a_projection_onto_the_boundary_is_none_onto_the_set() -> None:
    """It is right outside, and all decisions inside were "inaccurate" without a word of why."""

    class Sphere(Ball):
        def _project(self, y: torch.Tensor) -> torch.Tensor:
            away = y - self.middle
            return self.middle + self.radius * away / away.norm(dim=-1, keepdim=True).clamp(min=1e-12)

    with pytest.raises(ValueError, match=r"^Sphere\._project: expected points of the set to stay where they are"):
        Sphere(3).check()


class Own(soctk.FeasibleSet):
    """The simplex as one writes it, a point, or a box projected onto by something that stops early."""

    def __init__(self, kind: str, dim: int) -> None:
        self.kind, self.dim = kind, dim
        self.point = torch.randn(dim, generator=torch.Generator().manual_seed(dim), dtype=DOUBLE)

    def _project(self, y: torch.Tensor) -> torch.Tensor:
        if self.kind == "point":
            return self.point.expand_as(y).clone()
        if self.kind == "box":
            return y.clamp(0.0, 1.0) + 1e-4
        falling = y.sort(dim=-1, descending=True).values
        shares = (falling.cumsum(dim=-1) - 1) / torch.arange(1, self.dim + 1)
        return (y - shares.gather(-1, (falling > shares).sum(dim=-1, keepdim=True) - 1)).clamp(min=0)

    def _linear_minimizer(self, g: torch.Tensor) -> torch.Tensor:
        if self.kind == "point":
            return self.point.expand_as(g).clone()
        return (g < 0).to(g) if self.kind == "box" else torch.eye(self.dim, dtype=g.dtype)[g.argmin(dim=-1)]

    def _violation(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "point":
            return (x - self.point).abs().amax(dim=-1)
        bounds = torch.relu(torch.maximum(-x, x - 1).amax(dim=-1))
        return bounds if self.kind == "box" else torch.maximum(bounds, (x.sum(dim=-1) - 1).abs())

    def constraints(self, x) -> list:
        if self.kind == "point":
            return [x == self.point.numpy()]
        return [x >= 0, x <= 1] if self.kind == "box" else [x >= 0, cp.sum(x) == 1]


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 11, 14, 20])
@pytest.mark.parametrize("kind", ["simplex", "point", "box"])
def test_a_set_that_is_right_but_for_rounding_or_what_iterations_leave_is_not_refused(kind: str, dim: int) -> None:
    Own(kind, dim).check()


@pytest.mark.parametrize(("middle", "radius"), [(0.0, 1.0), (1e6, 1.0), (-3.0, 1e-7), (0.0, 1e8), (2.0, 0.0)])
def test_a_set_whose_answers_agree_is_decided_over(middle: float, radius: float) -> None:
    Ball(3, radius, middle).check()


@pytest.mark.parametrize(("level", "value_scale"), [(0.0, 1e-8), (0.0, 1e-5), (1e4, 1e-3), (1.0, 1e-12)])
@pytest.mark.parametrize("method", [None, "newton_cg", "first_order"])
def test_optimal_means_something_where_values_hardly_differ(level: float, value_scale: float, method) -> None:
    """It was said of the centre, after no iterations: its gap was below 1e-6."""
    model, context = decide_model(6, 16)
    feasible_set = soctk.Box(6, -1.0, 1.5)
    points = feasible_set.sample((100, 16), torch.Generator().manual_seed(1))
    values = torch.stack([model(row, context) for row in points])
    best = soctk.minimize(model, feasible_set, context, tol=1e-9)
    model.set_standardization(value=(level, value_scale))
    decision = soctk.minimize(model, feasible_set, context, method=method)
    assert decision.optimal.all()
    torch.testing.assert_close(decision.relative_gap, decision.gap / decision.scale)
    if value_scale > 1e-9 * level:  # else all is rounding, and any point will do
        model.set_standardization()
        lost = model(decision.x, context) - best.value
        assert float(lost.detach().mean()) <= 0.01 * float((values.amax(dim=0) - values.amin(dim=0)).detach().mean())


TURN = scipy.stats.ortho_group.rvs(4, random_state=0)
"""Of a cube |TURN x| <= 1, of which bounds tell little."""
AIM = np.array([0.5, -0.3, 0.2, 0.4])
CORNERS = np.array(list(itertools.product([-1.0, 1.0], repeat=4))) @ TURN
RANGE = float(np.square(CORNERS - AIM).sum(axis=1).max())
"""Of |x - AIM|^2 over that cube, its least being 0."""
FLAT_OPTIONS = {
    "newton": {},
    "own": {"own": 0.9},
    "cvxpy": {"method": "cvxpy"},
    "cvxpy-own": {"own": 0.9, "method": "cvxpy"},
    "first_order": {"method": "first_order"},
    "subject_to": {"subject_to": [(soctk.from_quadratic(2 * np.eye(4), np.zeros(4)), 50.0)]},
}


ONLY_OVER = {"newton_cg": soctk.Box, "first_order": soctk.Simplex | soctk.Box}


def squares(level: float, aim: np.ndarray) -> ConicForm:
    """Return level + |x - aim|^2."""
    return soctk.from_quadratic(2 * np.eye(len(aim)), -2 * aim, b=float(level + aim @ aim))


def turned_cube(bound: float) -> soctk.Polyhedron:
    return soctk.Polyhedron(4, -bound, bound, G=np.vstack([TURN, -TURN]), h=np.ones(8))


@pytest.mark.parametrize("option", FLAT_OPTIONS)
@pytest.mark.parametrize("level", [1e5, 1e7, 1e10])
def test_bounds_that_no_point_reaches_do_not_hide_that_values_hardly_differ(level: float, option: str) -> None:
    """What f varies by was measured within the bounds: a point as bad as the set's middle was optimal."""
    options = dict(FLAT_OPTIONS[option])
    own = options.pop("own", None)
    for bound in (2.0, 100.0, 1e4, 1e6):
        cube = turned_cube(bound)
        decision = soctk.minimize(squares(level, AIM), cube if own is None else cube.at(h=own * np.ones(8)), **options)
        assert decision.status == "optimal"
        assert float(decision.gap) <= 1.1e-3 * RANGE
        assert np.square(decision.x.numpy() - AIM).sum() <= 1.1e-3 * RANGE


def test_a_unit_is_measured_only_where_values_hardly_differ() -> None:
    """A point inside that is as good as the decision, by chance, does not make the unit small."""
    cube = turned_cube(100.0)
    forms = [squares(3.0, aim) for aim in (AIM, np.zeros(4))]  # the second is least at the centre
    for form in forms:
        for feasible_set in (cube, cube.at()):
            decision = soctk.minimize(form, feasible_set)
            assert decision.optimal
            assert decision.scale is None


@pytest.mark.parametrize("level", [1e8, 1e9, 1e10, 1e12])
@pytest.mark.parametrize("method", [None, "cvxpy", "newton_cg", "first_order"])
def test_values_that_differ_by_little_more_than_rounding_are_told_apart(level: float, method: str | None) -> None:
    """Below 1e-9 of the value all points were optimal; sums of a few products are right to 1e-14."""
    aim, varied = np.array([0.1, 0.2, 0.7]), 1.0  # and more
    rows = soctk.Polyhedron(3, 0.0, 1.0, E=np.ones((1, 3)), f=[1.0], G=[[1.0, -1.0, 0.0]], h=[0.9])
    for feasible_set in (soctk.Simplex(3), soctk.Box(3), rows, rows.at(h=[0.8])):
        if method is not None and not isinstance(feasible_set, ONLY_OVER.get(method, object)):
            continue
        decision = soctk.minimize(squares(level, aim), feasible_set, method=method)
        rounded = 100 * level * np.finfo(float).eps
        assert np.square(decision.x.numpy() - aim).sum() <= 1.1e-3 * varied + rounded
        if method != "first_order":
            assert decision.status == "optimal"


@pytest.mark.parametrize("method", [None, "cvxpy", "first_order"])
def test_what_is_constant_over_a_set_is_optimal_everywhere(method: str | None) -> None:
    """A unit of nothing, or of what rounding leaves, would be none."""
    rows = soctk.Polyhedron(3, 0.0, 1.0, E=np.ones((1, 3)), f=[1.0], G=[[1.0, -1.0, 0.0]], h=[0.9])
    x = cp.Variable(3)
    for model in (
        soctk.make_surrogate("quadratic", dim=3),  # 0 before a fit
        soctk.from_quadratic(np.zeros((3, 3)), 1e6 * np.ones(3)),
        soctk.from_cvxpy(cp.norm1(x - 1), x),
    ):
        for feasible_set in (soctk.Simplex(3), rows):
            assert soctk.minimize(model, feasible_set, method=method).status == "optimal"


@pytest.mark.parametrize("method", ["newton", "cvxpy"])
@pytest.mark.parametrize("room", [0.0, 1e-12, 1e-9])
def test_rows_that_leave_a_point_have_it_as_their_optimum(room: float, method: str) -> None:
    """What values differ by there is what points are off by, and no unit."""
    matrix = np.random.default_rng(0).normal(size=(3, 3))
    side = matrix @ [0.2, 0.5, 0.7]
    point = soctk.Polyhedron(3, -3.0, 3.0, G=np.vstack([matrix, -matrix]), h=np.concatenate([side + room, -side]))
    for name in ("soc", "relu", "quad", "softplus"):
        decision = soctk.minimize(shaken(MODELS[name](3)), point, torch.zeros(3, dtype=DOUBLE), method=method)
        assert decision.status == "optimal"


@pytest.mark.parametrize("name", ["soc", "relu"])
def test_single_precision_is_judged_by_what_it_can_tell(name: str) -> None:
    model = shaken(MODELS[name](2)).float()
    model.set_standardization(value=(1e4, 1e-6))
    rows = soctk.Polyhedron(2, 0.0, 1.0, G=[[1.0, 1.0]], h=[1.5])
    for feasible_set in (soctk.Box(2), rows, rows.at(h=[1.4])):
        decision = soctk.minimize(model, feasible_set, torch.zeros(3))
        assert decision.x.dtype == torch.float32
        assert decision.status == "optimal"


def test_a_start_at_the_minimum_is_certified_whatever_the_limit() -> None:
    model, context = decide_model()
    best = soctk.minimize(model, ROWS, context, tol=1e-9)
    late = soctk.minimize(model, ROWS, context, method="cvxpy", time_limit=1e-9, x0=best.x)
    again = soctk.minimize(model, ROWS, context, method="cvxpy", max_iter=1)
    for decision in (late, again):
        assert bool((decision.gap.isfinite() & (decision.lower_bound <= best.value)).all())
    assert late.optimal.any()


def test_small_values_beside_a_level_are_decided_and_differentiated_as_large_ones() -> None:
    """With 1 + 1e-9 g for g the centre was returned, and a model with curvature "has no derivative"."""
    model, context = decide_model()
    context.requires_grad_()
    found = []
    for value in ((0.0, 1.0), (1.0, 1e-9)):
        model.set_standardization(value=value)
        context.grad = None
        x = soctk.DecisionLayer(model, soctk.Simplex(5))(context)
        x.square().sum().backward()
        found.append((x.detach(), context.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("own", [False, True])
def test_a_start_at_the_minimum_does_not_make_the_gaps_unit_small(own: bool) -> None:
    """Over sets of each context's own the unit was the gap at the start, and the best start of all "stalled"."""
    form = soctk.from_quadratic(1e-4 * torch.eye(4), -1e-5 * torch.tensor([1.0, 2.0, 3.0, -1.0]), 5.0)
    feasible_set = soctk.Budget(4, 1.0).at(total=torch.ones(3)) if own else soctk.Budget(4, 1.0)
    cold = soctk.minimize(form, feasible_set, tol=1e-9)
    warm = soctk.minimize(form, feasible_set, x0=cold.x)
    assert bool((warm.scale > 0.1 * cold.scale).all())
    assert bool((warm.scale < 1).all())  # f varies by 1e-4
    assert bool((np.asarray(warm.status) == "optimal").all())


def test_plain_mistakes_are_said_in_words() -> None:
    model = soctk.SOCICNN(2)
    with pytest.raises(ValueError, match=r"^value: expected a mean and a scale, got 1"):
        model.set_standardization(value=(1.0,))
    with pytest.raises(ValueError, match=r"^value: expected a positive scale, got 0"):
        model.set_standardization(value=(1.0, 0.0))
    with pytest.raises(TypeError, match=r"^model: expected weights in float32 or float64, got float16"):
        soctk.minimize(soctk.SOCICNN(2).half(), soctk.Box(2))
    with pytest.raises(TypeError, match=r"^x: expected a CVXPY expression of shape \(2,\), got str"):
        model.to_cvxpy("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^foo: Clarabel has no such setting"):
        model.conic_form().cone_program(torch.zeros(2)).solve("CLARABEL", foo=1)


def test_a_default_device_other_than_the_processor_is_refused_in_words() -> None:
    model, box = soctk.SOCICNN(2), soctk.Box(2)
    data = soctk.ValueData(torch.zeros(9, 0), torch.rand(9, 2, 2), torch.rand(9, 2))
    with torch.device("meta"):
        for call in (
            lambda: soctk.Polyhedron(2, 0.0, 1.0),
            lambda: soctk.minimize(model, box),
            lambda: soctk.DecisionLayer(model, box),
            lambda: soctk.fit(model, data),
            lambda: soctk.assess(model, data, box),
        ):
            with pytest.raises(RuntimeError, match=r'^expected the processor .* got meta.*`with torch.device\("cpu"\)'):
                call()
        with torch.device("cpu"):
            assert soctk.minimize(model, box).optimal


def test_statuses_under_learned_constraints_are_statuses() -> None:
    model, ball = soctk.SOCICNN(2, 1), soctk.from_quadratic(np.eye(2), np.zeros(2), -1.0)
    found = soctk.minimize(model, soctk.Box(2), torch.zeros(3, 1, dtype=torch.float64), subject_to=[ball]).status
    assert all(type(status) is soctk.Status for status in found)


@pytest.mark.parametrize("batch", [(), (0,), (3,), (2, 2)])
@pytest.mark.parametrize(
    "feasible_set",
    [
        soctk.Box(2),
        soctk.Box(2, (0.0, 1.0), (0.0, 1.0)),
        soctk.Polyhedron(2, 0.0, 1.0, np.ones(2), 1.0),
        soctk.Polyhedron(2, [0.0, 1.0], [0.0, 1.0]),
    ],
    ids=str,
)
def test_contexts_of_no_numbers_have_a_batch(feasible_set: soctk.FeasibleSet, batch: tuple[int, ...]) -> None:
    """One decision was given for all."""
    model, context = soctk.from_quadratic(np.eye(2), [1.0, -1.0]), torch.zeros(*batch, 0, dtype=torch.float64)
    decision, layer = soctk.minimize(model, feasible_set, context), soctk.DecisionLayer(model, feasible_set)
    prepared = soctk.prepare(model, feasible_set).minimize(context)
    assert decision.x.shape == prepared.x.shape == layer(context).shape == (*batch, 2)
    assert decision.status.shape == layer.optimal_value(context).shape == batch
    torch.testing.assert_close(decision.x, torch.tensor([0.0, 1.0]).double().expand(*batch, 2), rtol=0, atol=1e-3)


# -- subclasses that change the function in one place ---------------------------------------------------


def fourth(x: torch.Tensor) -> torch.Tensor:
    return (x - 1).pow(4).sum(dim=-1)


class OtherValues(soctk.SOCICNN):
    """Values of its own, and the conic form and expression of another function."""

    def _value(self, x, context):
        return super()._value(x, context) + fourth(x)


class OtherForward(soctk.SOCICNN):
    def forward(self, x, context=None):
        return super().forward(x, context) + fourth(torch.as_tensor(x))


class OtherExpression(OtherValues):
    """Values and expression of its own."""

    def _value(self, x, context):
        return super()._value(x, context)

    def _expression(self, x, context):
        return super()._expression(x, context) + cp.sum(cp.power(x - 1, 4))


class OtherForm(OtherValues):
    """A conic form of its own, and the values of its parent."""

    def _conic_form(self, context):
        return super()._conic_form(context)


class Same(OtherExpression):
    """One that adds nothing."""


SIZES = {"hidden": (), "quadratics": (3,), "norms": (2,), "seed": 0}


@pytest.mark.parametrize("kind", [OtherValues, OtherForward, OtherExpression, OtherForm, Same])
def test_a_conic_form_of_another_function_decides_nothing(kind: type[soctk.SOCICNN]) -> None:
    """It was minimised, certified and exported in place of the one whose values the model has."""
    model, where, context = kind(3, 2, **SIZES), soctk.Box(3, -1.0, 1.0), torch.tensor([0.2, -0.4], dtype=DOUBLE)
    assert not model.has_conic_form
    calls = [
        lambda: soctk.minimize(model, where, context),
        lambda: soctk.prepare(model, where),
        lambda: model.conic_form(context),
        lambda: soctk.DecisionLayer(model, where),
        lambda: soctk.average([model, model]),
    ]
    if kind not in (OtherExpression, Same):
        calls += [lambda: model.to_cvxpy(cp.Variable(3), context)]
    for call in calls:
        with pytest.raises(NotImplementedError, match=r"has no conic form of its own: .*SOCICNN|OtherForm"):
            call()


@pytest.mark.parametrize("kind", [OtherExpression, Same])
def test_a_subclass_with_values_and_expression_of_its_own_is_decided_by_these(kind: type[soctk.SOCICNN]) -> None:
    model, where, context = kind(3, 2, **SIZES), soctk.Box(3, -1.0, 1.0), torch.tensor([0.2, -0.4], dtype=DOUBLE)
    decision = soctk.minimize(model, where, context, method="cvxpy")
    model.requires_grad_(False)
    x = where.sample((2_000,), torch.Generator().manual_seed(0))
    assert float(model(x, context.expand(2_000, 2)).min()) >= float(decision.value) - 1e-6
    assert float(model(decision.x, context)) == pytest.approx(float(decision.value), abs=1e-9)
    assert decision.lower_bound <= decision.value


@pytest.mark.parametrize("kind", [soctk.SOCICNN, type("Plain", (soctk.SOCICNN,), {})])
def test_a_subclass_that_changes_nothing_keeps_its_conic_form(kind: type[soctk.SOCICNN]) -> None:
    assert kind(3, 2, **SIZES).has_conic_form
    assert kind(3, 2, **SIZES).context_map() is not None


@pytest.mark.parametrize("wrong", [(float("nan"), 1.0), (0.0, float("inf")), (0.0, 0.0)])
def test_units_are_stored_all_or_none(wrong: tuple[float, float]) -> None:
    model = MODELS["soc"](4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="value: "):
        model.set_standardization(x=(1.0, 2.0), value=wrong)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


EYE, ONE = DenseMap(torch.eye(3, dtype=DOUBLE)[None]), torch.ones(1, 1, 3, dtype=DOUBLE)
MISSHAPEN = {
    "constant": (
        lambda c: ConicForm(c.sum(dim=-1), ONE, (), (len(c),)),
        ValueError,
        r"constant: .*\[N or 1, 1\], got \[4\]",
    ),
    "linear": (
        lambda c: ConicForm(c[:, :1], c[:, :1] * ONE[0], (), (len(c),)),
        ValueError,
        r"linear: .*\[N or 1, 1, 3\]",
    ),
    "one weight for all": (
        lambda c: with_term(c, Huber(EYE, ONE, ONE[..., :1], 0.5)),
        ValueError,
        r"Huber\)\.weights: .*\[1, 3\]",
    ),
    "offset": (lambda c: with_term(c, Quadratic(EYE, ONE[0], ONE)), ValueError, r"Quadratic\)\.offset: "),
    "matrix": (lambda c: with_term(c, Quadratic(DenseMap(EYE.matrix[0]), ONE, ONE)), ValueError, r"\.A: "),
    "columns": (lambda c: with_term(c, Quadratic(DenseMap(EYE.matrix[..., :2]), ONE, ONE)), ValueError, r"\.A: "),
    "contexts": (lambda c: with_term(c, Quadratic(EYE, ONE.expand(3, 1, 3), ONE)), ValueError, r"offset: .* of 1 or 4"),
    "kappa": (
        lambda c: with_term(c, Norms(EYE, ONE, ONE, ONE.expand(3, 1, 3), 1)),
        ValueError,
        r"Norms\)\.kappa: .* of 1 or 4",
    ),
    "dtype": (lambda c: with_term(c, Quadratic(EYE, ONE.float(), ONE)), TypeError, r"offset: expected torch.float64"),
    "no term": (lambda c: with_term(c, EYE), TypeError, r"terms\[0\] \(DenseMap\): expected one that derives from"),
    "no tuple": (lambda c: ConicForm(c[:, :1], ONE, [], (len(c),)), TypeError, "terms: expected a tuple"),
    "nothing": (lambda c: None, TypeError, "expected a soctk.ConicForm, got NoneType"),
}


def with_term(context: torch.Tensor, term: object) -> ConicForm:
    return ConicForm(context[:, :1], ONE, (term,), (len(context),))


@pytest.mark.parametrize("wrong", list(MISSHAPEN))
def test_a_form_of_wrong_shapes_is_refused_by_name(wrong: str) -> None:
    """PyTorch stretched one weight over all rows, and compiled code read others: "optimal", of another function."""
    make, error, words = MISSHAPEN[wrong]

    class Own(soctk.ConvexSurrogate):
        def _conic_form(self, context: torch.Tensor) -> ConicForm:
            return make(context)

        def config(self) -> dict:
            return {}

    context, x = torch.zeros(4, 2, dtype=DOUBLE), torch.zeros(4, 4, 3, dtype=DOUBLE)
    with pytest.raises(error, match=rf"^Own\._conic_form: .*{words}"):
        soctk.minimize(Own(3, 2), soctk.Box(3), context)
    if wrong != "dtype":  # values are those of the higher precision
        with pytest.raises(error, match=rf"^Own\._conic_form: .*{words}"):
            Own(3, 2)(x, context)


def test_numbers_of_several_types_are_numbers() -> None:
    """Data frames with columns of several types, which NumPy makes objects of, were called ragged or non-numeric."""
    model = soctk.SOCICNN(3, 2)
    plain = soctk.minimize(model, soctk.Box(3), torch.tensor([[1.0, 1.0], [2.0, 0.0]], dtype=DOUBLE))
    frame = pd.DataFrame({"load": [1.0, 2.0], "weekend": [True, False]})
    for context in (frame, frame.convert_dtypes(), np.array([[1, True], [2.0, False]], dtype=object)):
        assert torch.equal(soctk.minimize(model, soctk.Box(3), context).x, plain.x)
    for wrong in ([["1", 2.0]], [[1.0, None]], [[1.0, pd.NA]]):
        with pytest.raises(TypeError, match=r"context: .*an entry is of type (str|NoneType|NAType)"):
            soctk.minimize(model, soctk.Box(3), np.array(wrong, dtype=object))


class Encoded(soctk.ConvexSurrogate):
    """|x - y|^2, y a network's value of the context, as PyTorch makes it: float32, and another in training."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__(3, 2)
        self.encoder = torch.nn.Sequential(torch.nn.Linear(2, 3), layer)

    def _value(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return (x - self.encoder(context).unsqueeze(1)).square().sum(dim=-1)


@pytest.mark.parametrize("layer", [torch.nn.BatchNorm1d(3), torch.nn.Dropout()], ids=lambda layer: type(layer).__name__)
def test_a_function_that_is_another_in_each_call_is_said_to_be(layer: torch.nn.Module) -> None:
    model, context, box = Encoded(layer).double(), torch.randn(4, 2, dtype=DOUBLE), soctk.Box(3, -1.0, 1.0)
    with pytest.warns(UserWarning, match=r"encoder\.1 .*training mode.*model\.eval\(\)") as warned:
        soctk.minimize(model, box, context, method="projected_gradient", max_iter=2)
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="training mode"):
        soctk.certify(model, box, torch.zeros(4, 3), context)
    model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        soctk.minimize(model, box, context, method="projected_gradient", max_iter=2)


@pytest.mark.parametrize(
    "layer", [torch.nn.GRU(2, 2, num_layers=2, dropout=0.1), torch.nn.MultiheadAttention(2, 1, dropout=0.1)], ids=str
)
def test_layers_with_dropout_inside_are_said_to_be_another_in_each_call_too(layer: torch.nn.Module) -> None:
    model, box = soctk.SOCICNN(3, 2), soctk.Box(3)
    model.encoder = layer
    with pytest.warns(UserWarning, match=r"^model: encoder .*training mode.*model\.eval\(\)") as warned:
        soctk.minimize(model, box, torch.zeros(2))
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match=r"^subject_to\[1\]: encoder .*subject_to\[1\]\.eval\(\)") as warned:
        soctk.minimize(soctk.SOCICNN(3, 2), box, torch.zeros(2), subject_to=[soctk.SOCICNN(3, 2), (model, 9.0)])
    assert warned[0].filename == __file__
    model.encoder = torch.nn.GRU(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        soctk.minimize(model, box, torch.zeros(2))


def test_layers_in_another_precision_than_their_function_are_named() -> None:
    model = Encoded(torch.nn.Identity())
    with pytest.raises(TypeError, match=r"encoder\.0\.weight: expected torch\.float64.*model\.to\(torch\.float64\)"):
        model(torch.zeros(3), torch.zeros(2))
