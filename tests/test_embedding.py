"""Surrogates inside CVXPY problems of the user's own: extra constraints, f(x) <= level, parameters, layers."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from cvxpylayers.torch import CvxpyLayer
from tolerances import CLARABEL, DOUBLE, GRADIENT, size
from zoo import MODELS, shaken

from soctk import SOCICNN, Box, ConvexSurrogate, Embedding, average, load, make_surrogate, minimize, save
from soctk_baselines import DCP, PCF

n, p = 4, 3
CONTEXTS = torch.tensor([[0.4, -1.2, 0.3], [1.0, 0.2, -0.5], [-0.7, 0.9, 2.0]], dtype=DOUBLE)
SMALL = {"hidden": (3,), "quadratics": (2,), "norms": (2,)}
EVERY = MODELS | {"dcp": lambda n: DCP(n, 3, seed=1), "pcf": lambda n: PCF(n, 3, seed=2)}


@pytest.fixture(params=EVERY)
def model(request: pytest.FixtureRequest) -> ConvexSurrogate:
    return shaken(EVERY[request.param](n), 0.1)


def ramp(x: cp.Expression) -> list[cp.Constraint]:
    """Return constraints that no feasible set of ours has: limits on how much neighbours may differ."""
    return [cp.abs(cp.diff(x)) <= 0.1, x >= 0, x <= 1]


def test_one_problem_is_re_solved_for_every_context(model: ConvexSurrogate) -> None:
    x = cp.Variable(n)
    embedded = Embedding(model, x)
    problem = cp.Problem(cp.Minimize(embedded.value), embedded.constraints + ramp(x))
    assert problem.is_dpp()
    for context in CONTEXTS:
        embedded.set_context(context)
        problem.solve(solver=cp.CLARABEL)
        fresh = cp.Variable(n)
        reference = cp.Problem(cp.Minimize(model.to_cvxpy(fresh, context)), ramp(fresh))
        reference.solve(solver=cp.CLARABEL)
        assert problem.value == pytest.approx(reference.value, abs=CLARABEL, rel=CLARABEL)
        assert float(model(x.value, context).detach()) == pytest.approx(problem.value, abs=CLARABEL, rel=CLARABEL)


def test_a_learned_constraint_holds(model: ConvexSurrogate) -> None:
    """The cheapest point with f(x) <= level, level between the minimum and the value at the upper corner."""
    context = CONTEXTS[0]
    lowest = float(minimize(model, Box(n), context).value)
    level = lowest + 0.1 * max(1.0, abs(lowest))
    costs = np.array([1.0, -2.0, 0.5, -0.1])
    for embed in (True, False):
        x = cp.Variable(n)
        if embed:
            embedded = Embedding(model, x)
            embedded.set_context(context)
            limits = [embedded.value <= level, *embedded.constraints]
        else:
            limits = [model.to_cvxpy(x, context) <= level]
        problem = cp.Problem(cp.Minimize(costs @ x), [*limits, x >= 0, x <= 1])
        problem.solve(solver=cp.CLARABEL)
        assert problem.status == cp.OPTIMAL
        assert float(model(x.value, context)) <= level + 10 * CLARABEL * size(torch.tensor(level))


def test_impossible_problems_give_a_status_and_no_point(model: ConvexSurrogate) -> None:
    x = cp.Variable(n)
    empty = cp.Problem(cp.Minimize(model.to_cvxpy(x, CONTEXTS[0])), [x >= 1, cp.sum(x) <= 1])
    empty.solve(solver=cp.CLARABEL)
    assert empty.status in (cp.INFEASIBLE, cp.INFEASIBLE_INACCURATE)
    assert x.value is None


def test_an_unbounded_problem_gives_a_status_and_no_point() -> None:
    x = cp.Variable(n)
    problem = cp.Problem(cp.Minimize(MODELS["affine"](n).to_cvxpy(x + 1, CONTEXTS[0]) - cp.sum(x)))
    problem.solve(solver=cp.CLARABEL)
    assert problem.status in (cp.UNBOUNDED, cp.UNBOUNDED_INACCURATE)
    assert x.value is None


def test_it_makes_a_differentiable_layer() -> None:
    """Through cvxpylayers: gradients of the decision in the context against central differences."""
    model = SOCICNN(n, p, hidden=(3,), quadratics=(n,), norms=(2,), seed=3)
    x = cp.Variable(n)
    embedded = Embedding(model, x)
    layer = CvxpyLayer(
        cp.Problem(cp.Minimize(embedded.value), embedded.constraints + ramp(x)), embedded.parameters, [x]
    )
    context = CONTEXTS[:1].clone().requires_grad_()
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=DOUBLE)
    options = {"solve_method": "Clarabel", "tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}

    def outcome(at: torch.Tensor) -> torch.Tensor:
        values = [value[0] for value in embedded.coefficients(at)]
        return (layer(*values, solver_args=dict(options))[0] * weights).sum()

    (gradient,) = torch.autograd.grad(outcome(context), context)
    step = 1e-4
    for index, unit in enumerate(torch.eye(p, dtype=DOUBLE)):
        with torch.no_grad():
            central = (outcome(context + step * unit) - outcome(context - step * unit)) / (2 * step)
        # The solver's 1e-10 in value is 1e-5 in x where there is curvature of order one: / step.
        assert float(gradient[0, index]) == pytest.approx(float(central), abs=2e-2, rel=2e-2)


def additive() -> SOCICNN:
    blocks = {"hidden": (5, 4), "quadratics": (n,), "norms": (2, n), "hyperbolics": 3}
    model = shaken(SOCICNN(n, p, **blocks, conditioning="additive", affine_hidden=0, seed=4))
    model.set_standardization(x=(0.2, 0.5), value=(3.0, 2.0), context=(torch.ones(p), torch.tensor([0.5, 2.0, 3.0])))
    return model


def test_a_context_that_is_a_parameter_is_dpp_where_it_enters_affinely() -> None:
    model, x, theta = additive(), cp.Variable(n), cp.Parameter(p)
    problem = cp.Problem(cp.Minimize(model.to_cvxpy(x, theta)), ramp(x))
    assert problem.is_dpp()
    for context in CONTEXTS:
        theta.value = context.numpy()
        problem.solve(solver=cp.CLARABEL)
        assert float(model(x.value, context).detach()) == pytest.approx(problem.value, abs=CLARABEL, rel=CLARABEL)


@pytest.mark.parametrize("name", ["soc", "quad", "hyperbolic", "dcp", "pcf"])
def test_a_parameter_is_refused_where_it_enters_otherwise(name: str) -> None:
    with pytest.raises(ValueError, match=r"(?s)DPP.*Embedding"):
        shaken(EVERY[name](n), 0.1).to_cvxpy(cp.Variable(n), cp.Parameter(p))


def test_a_parameter_is_refused_where_the_context_bends_the_function_far_from_zero() -> None:
    """Contexts in large units, by which a unit looks affine between 0 and 1; of a mean, those of its members."""
    model = shaken(SOCICNN(n, p, **SMALL, conditioning="additive", affine_hidden=0, context_units=4, seed=4), 0.3)
    model.set_standardization(context=(torch.full((p,), 3e5), torch.full((p,), 1e5)))
    for refused in (model, average([model])):
        with pytest.raises(ValueError, match="DPP"):
            refused.to_cvxpy(cp.Variable(n), cp.Parameter(p))


def test_a_parameter_far_from_zero_keeps_its_digits() -> None:
    """Milliseconds since 1970, and data of some days."""
    model, x, theta = additive(), cp.Variable(n), cp.Parameter(p)
    model.set_standardization(context=(torch.full((p,), 1.7e12), torch.full((p,), 8.64e7)))
    for parametric in (model, average([model])):
        problem = cp.Problem(cp.Minimize(parametric.to_cvxpy(x, theta)), ramp(x))
        for context in 1.7e12 + 8.64e7 * CONTEXTS:
            theta.value = context.numpy()
            problem.solve(solver=cp.CLARABEL)
            assert float(model(x.value, context).detach()) == pytest.approx(problem.value, abs=CLARABEL, rel=CLARABEL)


def test_weights_that_are_constants_of_the_problem_may_not_change(model: ConvexSurrogate) -> None:
    """What would be solved then is neither the function before nor the one after. With `trained` all may."""
    x = cp.Variable(n)
    embedded, trained = Embedding(model, x), Embedding(model, x, trained=True)
    shaken(model, 0.2)
    form = model.form_at(CONTEXTS)
    assert trained.changed(form) is None
    for one in (embedded, trained):
        problem = cp.Problem(cp.Minimize(one.value), one.constraints + ramp(x))
        assert problem.is_dpp()
        if one.changed(form) is not None:
            with pytest.raises(RuntimeError, match="embed it again"):
                one.set_context(CONTEXTS[0])
            with pytest.raises(RuntimeError, match="embed it again"):
                one.coefficients(CONTEXTS)
            continue
        for context in CONTEXTS:
            one.set_context(context)
            problem.solve(solver=cp.CLARABEL)
            assert float(model(x.value, context).detach()) == pytest.approx(problem.value, abs=CLARABEL, rel=CLARABEL)


def test_a_layer_whose_weights_are_trained_is_differentiable_in_matrices() -> None:
    """Through cvxpylayers, against central differences along one direction of every weight."""
    model, x = shaken(SOCICNN(n, p, **SMALL, seed=3), 0.1), cp.Variable(n)
    embedded = Embedding(model, x, trained=True)
    problem = cp.Problem(cp.Minimize(embedded.value), embedded.constraints + ramp(x))
    layer = CvxpyLayer(problem, embedded.parameters, [x])
    options = {"solve_method": "Clarabel", "tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}

    def outcome() -> torch.Tensor:
        values = [value[0] for value in embedded.coefficients(CONTEXTS[:1])]
        return (layer(*values, solver_args=dict(options))[0] * torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=DOUBLE)).sum()

    weights = list(model.parameters())
    generator, step = torch.Generator().manual_seed(1), 1e-4
    along = [torch.randn(weight.shape, generator=generator, dtype=DOUBLE) for weight in weights]
    slopes = torch.autograd.grad(outcome(), weights, allow_unused=True)
    found = sum(float((slope * way).sum()) for slope, way in zip(slopes, along, strict=True) if slope is not None)
    ends = []
    with torch.no_grad():
        for sign in (1.0, -2.0):
            for weight, way in zip(weights, along, strict=True):
                weight.add_(sign * step * way)
            ends.append(float(outcome()))
    assert found == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=2e-2, rel=2e-2)


def test_trained_coefficients_are_differentiable_in_all_weights() -> None:
    model = shaken(SOCICNN(n, p, **SMALL, seed=3), 0.1)
    found = Embedding(model, cp.Variable(n), trained=True).coefficients(CONTEXTS)
    slopes = torch.autograd.grad(sum(part.square().sum() for part in found), list(model.parameters()))
    assert all(bool((slope != 0).any()) for slope in slopes)
    left = Embedding(model, cp.Variable(n)).coefficients(CONTEXTS)
    slopes = torch.autograd.grad(sum(part.sum() for part in left), list(model.parameters()), allow_unused=True)
    assert any(slope is None or not bool(slope.any()) for slope in slopes)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="x: expected"):
        Embedding(additive(), cp.Variable(n + 1))
    with pytest.raises(ValueError, match="context: expected a parameter"):
        additive().to_cvxpy(cp.Variable(n), cp.Parameter(p + 1))
    with pytest.raises(ValueError, match="context: expected one"):
        Embedding(additive(), cp.Variable(n)).set_context(CONTEXTS)


def test_saved_models_embed_alike(model: ConvexSurrogate, tmp_path) -> None:
    save(model, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    x = torch.rand(n, dtype=DOUBLE)
    variable = cp.Variable(n)
    problem = cp.Problem(cp.Minimize(again.to_cvxpy(variable, CONTEXTS[1])), [variable == x.numpy()])
    problem.solve(solver=cp.CLARABEL)
    value = float(model(x, CONTEXTS[1]))
    assert problem.value == pytest.approx(value, abs=CLARABEL, rel=CLARABEL)
    assert float(again(x, CONTEXTS[1])) == pytest.approx(value, rel=GRADIENT[DOUBLE])


def test_what_a_parameter_cannot_say_is_refused_in_any_unit() -> None:
    model = SOCICNN(2, 1, hidden=(3,), quadratics=(2,), ridges=0, affine_hidden=0, seed=0)
    model.alpha.slope.data.fill_(2.0)
    for unit in (1.0, 1e-10):
        model.set_standardization(value=(0.0, unit))
        with pytest.raises(ValueError, match="DPP"):
            model.to_cvxpy(cp.Variable(2), cp.Parameter(1))


def test_a_mean_whose_matrices_a_context_moves_takes_one_context() -> None:
    """At one context no matrix is seen to move: terms were joined that are apart in the expression."""
    members = [shaken(make_surrogate(name, 3, 2, seed=k)) for k, name in enumerate(("pcf", "soc"))]
    model, context, x = average(members), torch.tensor([0.3, -0.5], dtype=torch.float64), cp.Variable(3)
    embedded = Embedding(model, x)
    embedded.set_context(context)
    problem = cp.Problem(cp.Minimize(embedded.value), [*embedded.constraints, x >= 0, x <= 1])
    problem.solve(solver=cp.CLARABEL)
    assert problem.value == pytest.approx(float(minimize(model, Box(3), context).value), rel=CLARABEL, abs=CLARABEL)
    one, two = (embedded.coefficients(context.expand(count, 2)) for count in (1, 2))
    assert all(torch.equal(first, both[:1]) for first, both in zip(one, two, strict=True))
