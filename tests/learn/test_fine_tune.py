"""Learning from decisions: the losses' gradients are right, SPO+ bounds the regret, and nothing judged gets worse."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from tolerances import DOUBLE
from zoo import MODELS, shaken

import soctk
from soctk import losses
from soctk.learn import decision_losses
from soctk.tilted import Tilted
from soctk_baselines import DCP, CvxpyLayerDecider, QuadraticRegression
from soctk_tasks import make_task

STEP = 1e-6
QUICK = soctk.FitConfig(starts=1, epochs=2, newton_iterations=4, lbfgs_iterations=20, level_iterations=10)
TUNE = soctk.FitConfig(optima_iterations=15, optima_weights=(1.0, 10.0))
SET = soctk.Budget(5, 1.5)


def rows_of(count: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def linear_problem(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return contexts, costs c of objectives c'x that follow from them, and the vertices that minimise these."""
    context = rows_of(count, 3)
    costs = context @ rows_of(3, 5, seed=1) + 0.3 * context.square() @ rows_of(3, 5, seed=2)
    form = soctk.ConicForm(torch.zeros(count, 1, dtype=DOUBLE), costs.unsqueeze(1), (), (count,))
    best = SET.linear_minimizer(costs) if hasattr(SET, "linear_minimizer") else None
    if best is None:
        order = costs.argsort(dim=-1)
        best = torch.zeros_like(costs).scatter(1, order[:, :1], 1.0).scatter(1, order[:, 1:2], 0.5)
    assert form.size == count
    return context, costs, best


def every_loss(model: soctk.ConvexSurrogate) -> dict[str, object]:
    """Return each loss on a few instances whose best decisions are another model's."""
    truth, context = MODELS["soc"](5), rows_of(12, 3)
    best = soctk.minimize(truth, SET, context, tol=1e-10)
    linear, costs, vertices = linear_problem(12)
    return {
        "suboptimality": soctk.Suboptimality(context, SET, best.x),
        "optimality": soctk.Optimality(context, SET, best.x),
        "regret": soctk.Regret(context, SET, lambda x, c: truth(x, c), best.value),
        "spo_plus": soctk.SPOPlus(linear, SET, costs, vertices),
    }


@pytest.mark.parametrize("name", ["suboptimality", "optimality", "regret", "spo_plus"])
def test_gradients_are_those_of_finite_differences(name):
    model = shaken(MODELS["soc"](5))
    loss = every_loss(model)[name].on(model)
    weights = list(model.parameters())
    direction = [torch.randn(w.shape, generator=torch.Generator().manual_seed(4), dtype=DOUBLE) for w in weights]
    slopes = torch.autograd.grad(loss(), weights, allow_unused=True, materialize_grads=True)
    actual = sum(float((slope * step).sum()) for slope, step in zip(slopes, direction, strict=True))

    def moved(sign: float) -> float:
        with torch.no_grad():
            for weight, step in zip(weights, direction, strict=True):
                weight.add_(sign * STEP * step)
        value = float(loss().detach())
        with torch.no_grad():
            for weight, step in zip(weights, direction, strict=True):
                weight.sub_(sign * STEP * step)
        return value

    assert actual == pytest.approx((moved(1.0) - moved(-1.0)) / (2 * STEP), rel=1e-3, abs=1e-5)


def test_spo_plus_is_theirs_for_a_linear_model_and_bounds_the_regret():
    """Elmachtoub and Grigas: max over S of (c - 2 c_hat)'x + 2 c_hat'x* - c'x*, by enumeration of the vertices."""
    context, costs, optima = linear_problem(20)
    c_hat = costs + rows_of(20, 5, seed=5)

    class Linear(soctk.ConvexSurrogate):
        def _conic_form(self, context: torch.Tensor) -> soctk.ConicForm:
            return soctk.ConicForm(torch.zeros(20, 1, dtype=DOUBLE), c_hat.unsqueeze(1), (), (20,))

    vertices = torch.stack(
        [1.0 * torch.eye(5)[i] + 0.5 * torch.eye(5)[j] for i in range(5) for j in range(5) if i != j]
    )
    vertices = vertices.to(DOUBLE)
    theirs = ((costs - 2 * c_hat) @ vertices.mT).amax(dim=1) + ((2 * c_hat - costs) * optima).sum(dim=1)
    layer = soctk.DecisionLayer(Linear(5, 3), SET)
    ours = losses.spo_plus_loss(layer, costs, optima, context)
    assert float(ours) == pytest.approx(float(theirs.mean()), rel=1e-6)


def test_spo_plus_bounds_the_regret_of_curved_models_and_vanishes_at_the_truth():
    context, costs, optima = linear_problem(30)
    for name in ("soc", "relu", "quad"):
        model = shaken(MODELS[name](5))
        bound = losses.spo_plus_loss(soctk.DecisionLayer(model, SET), costs, optima, context)
        regret = soctk.SPOPlus(context, SET, costs, optima).judge(model)
        assert 0 < regret <= float(bound.detach())

    class Truth(soctk.ConvexSurrogate):
        def _conic_form(self, context: torch.Tensor) -> soctk.ConicForm:
            return soctk.ConicForm(torch.zeros(30, 1, dtype=DOUBLE), costs.unsqueeze(1), (), (30,))

    truth = losses.spo_plus_loss(soctk.DecisionLayer(Truth(5, 3), SET), costs, optima, context)
    assert float(truth) == pytest.approx(0.0, abs=1e-7)


def test_a_tilted_function_is_the_function_and_the_tilt():
    model, context, g = shaken(MODELS["soc"](5)), rows_of(7, 3), rows_of(7, 5, seed=1)
    x = rows_of(7, 5, seed=2)
    tilted = Tilted(model)(x, torch.cat([context, g], dim=-1))
    torch.testing.assert_close(tilted, model(x, context) + (g * x).sum(dim=-1))


def test_spo_plus_leaves_out_what_the_layer_leaves_out():
    """The layer of g was made without its `skip_undefined`, and raised."""
    options = {"max_iter": 1, "skip_undefined": True}
    layer = soctk.DecisionLayer(soctk.SOCICNN(2, context_dim=1, hidden=(4,)), soctk.Polyhedron(2, -1.0, 1.0), **options)
    loss = soctk.losses.spo_plus_loss(layer, rows_of(3, 2), torch.zeros(3, 2).double(), rows_of(3, 1))
    loss.backward()


@pytest.mark.parametrize("name", ["relu", "soc"])
def test_suboptimality_leaves_out_both_terms_of_what_the_layer_leaves_out(name):
    """f(x*) was left in where min f has no derivative: the mean fell along it by f alone, wherever that led."""
    model, context = shaken(MODELS[name](5)), rows_of(60, 3)
    optima = soctk.minimize(MODELS["soc"](5), SET, context).x
    skipping = soctk.DecisionLayer(model, SET, max_iter=10, skip_undefined=True)
    _, proved = skipping.proved_value(context)
    assert 10 < int(proved.sum()) < 50
    weights = list(model.parameters())
    options = {"allow_unused": True, "materialize_grads": True}
    slopes = torch.autograd.grad(losses.suboptimality_loss(skipping, optima, context), weights, **options)
    strict = soctk.DecisionLayer(model, SET, max_iter=10)
    alone = losses.suboptimality_loss(strict, optima[proved], context[proved])
    expected = torch.autograd.grad(alone * (int(proved.sum()) / 60), weights, **options)
    torch.testing.assert_close(slopes, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["suboptimality", "spo_plus"])
def test_an_instance_without_a_proved_derivative_does_not_end_the_training(name, monkeypatch):
    """One of 800 contexts of a ReLU model ended `fine_tune` in an error."""
    model = shaken(MODELS["relu"](5))
    loss, data = every_loss(model)[name], make_task("budget_huber", dim=5).sample(12, 8, seed=1)
    data = soctk.ValueData(rows_of(12, 3), data.x, data.value)
    soctk.fit(model, data, QUICK)
    monkeypatch.setattr(decision_losses, "DecisionLayer", functools.partial(soctk.DecisionLayer, max_iter=9))
    report = soctk.fine_tune(model, data, loss, TUNE)
    assert report.steps > 0
    assert report.after <= report.before


@pytest.fixture(scope="module")
def fitted() -> tuple[soctk.ConvexSurrogate, object, soctk.ValueData, soctk.Decision]:
    """A model of too few terms for its task, learned from values, the task, its data and their optima."""
    task = make_task("box_socp", dim=5)
    data = task.sample(120, 16, seed=1)
    model = DCP(5, task.context_dim, logistics=2, norms=(), seed=0)
    soctk.fit(model, data, QUICK)
    return model, task, data, task.solve(data.context)


def losses_of(task, data, best) -> dict[str, object]:
    return {
        "suboptimality": soctk.Suboptimality(data.context, task.feasible_set, best.x),
        "optimality": soctk.Optimality(data.context, task.feasible_set, best.x),
        "regret": soctk.Regret(data.context, task.feasible_set, task.objective, best.value),
    }


@pytest.mark.parametrize("name", ["suboptimality", "optimality", "regret"])
def test_decisions_get_better_on_what_was_held_out_and_on_new_contexts(name, fitted):
    model, task, data, best = fitted
    model, loss = copy.deepcopy(model), losses_of(task, data, best)[name]
    fresh = task.contexts(200, seed=9)
    optimum = task.solve(fresh)

    def regret() -> float:
        x = soctk.minimize(model, task.feasible_set, fresh).x
        return float((task.objective(x, fresh) - optimum.value).mean())

    before, held_out = regret(), loss.split(TUNE.seed)[1]
    report = soctk.fine_tune(model, data, loss, TUNE)
    assert report.after < report.before
    assert report.weight in TUNE.optima_weights
    assert held_out.judge(model) == pytest.approx(report.after, rel=1e-6)
    assert regret() < before
    assert not model.training


def test_what_cannot_be_improved_stays_as_it_is(fitted):
    """The optima of the model itself: its own decisions are best, so any step away is worse."""
    model, task, data, _ = fitted
    model = copy.deepcopy(model)
    before = copy.deepcopy(model.state_dict())
    own = soctk.minimize(model, task.feasible_set, data.context, tol=1e-10)
    report = soctk.fine_tune(model, data, soctk.Suboptimality(data.context, task.feasible_set, own.x), TUNE)
    assert report.after <= report.before
    if report.weight == 0.0:
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_models_of_float32_and_of_trainings_of_their_own_can_go_on():
    task = make_task("budget_huber", dim=4)
    data = task.sample(60, 12, seed=1)
    best = task.solve(data.context)
    loss = soctk.Suboptimality(data.context, task.feasible_set, best.x)
    for model in (DCP(4, task.context_dim, dtype=torch.float32), QuadraticRegression(4, task.context_dim)):
        dtype = model.dtype
        soctk.fit(model, data, QUICK)
        report = soctk.fine_tune(model, data, loss, TUNE)
        assert report.after <= report.before
        assert model.dtype == dtype


def test_gradients_through_cvxpylayers_are_those_of_our_layer():
    model, task = DCP(4, 8, seed=2), make_task("box_socp", dim=4)
    context = task.contexts(4, seed=1)
    ours = soctk.Regret(context, task.feasible_set, task.objective)
    theirs = soctk.Regret(
        context, task.feasible_set, task.objective, decider=lambda m, s: CvxpyLayerDecider(m, s).layer
    )
    weights = list(model.parameters())
    slopes = [
        torch.cat(
            [
                s.flatten()
                for s in torch.autograd.grad(loss.on(model)(), weights, materialize_grads=True, allow_unused=True)
            ]
        )
        for loss in (ours, theirs)
    ]
    assert float((slopes[0] - slopes[1]).norm()) <= 1e-3 * float(slopes[0].norm())


def test_gradients_are_enabled_for_it_and_inference_mode_is_refused(fitted):
    model, task, data, best = fitted
    model, loss = copy.deepcopy(model), soctk.Suboptimality(data.context, task.feasible_set, best.x)
    with torch.no_grad():
        report = soctk.fine_tune(model, data, loss, soctk.FitConfig(optima_iterations=2))
    assert report.steps > 0
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"^fine_tune: .*inference_mode"):
        soctk.fine_tune(model, data, loss)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"^assess: .*inference_mode"):
        soctk.assess(model, data)


def test_wrong_arguments_say_so(fitted):
    model, task, data, best = fitted
    where = task.feasible_set
    with pytest.raises(ValueError, match="outside"):
        soctk.Suboptimality(data.context, where, best.x + 2.0)
    with pytest.raises(ValueError, match="optima: expected shape"):
        soctk.Suboptimality(data.context, where, best.x[:5])
    with pytest.raises(ValueError, match="costs: expected shape"):
        soctk.SPOPlus(data.context, where, best.x[:, :2], best.x)
    with pytest.raises(ValueError, match="loss: expected decision and context dimensions"):
        soctk.fine_tune(model, data, soctk.Suboptimality(data.context[:, :3], where, best.x))
    with pytest.raises(TypeError, match="surrogate"):
        soctk.fine_tune(torch.nn.Linear(2, 2), data, soctk.Suboptimality(data.context, where, best.x))
    loss = soctk.Suboptimality(data.context, where, best.x)
    with pytest.raises(TypeError, match=r"data: expected a soctk.ValueData, got tuple"):
        soctk.fine_tune(model, (data.context, data.x, data.value), loss)
    with pytest.raises(TypeError, match=r"loss: expected a soctk.DecisionLoss, got NoneType"):
        soctk.fine_tune(model, data, None)
    with pytest.raises(TypeError, match=r"config: expected a soctk.FitConfig, got dict"):
        soctk.fine_tune(model, data, loss, {"seed": 1})
    with pytest.raises(TypeError, match="stop: expected a function"):
        soctk.fine_tune(model, data, loss, stop=3)
    with pytest.raises(TypeError, match=r"feasible_set: expected a soctk.FeasibleSet or soctk.SetAt, got NoneType"):
        soctk.Suboptimality(data.context, None, best.x)
    with pytest.raises(TypeError, match=r"feasible_set: expected a soctk.FeasibleSet or soctk.SetAt, got str"):
        soctk.fit(model, data, optima=best.x, feasible_set="box")
    with pytest.raises(TypeError, match="objective: expected a function of x and context, got 3"):
        soctk.Regret(data.context, where, 3)


def test_optima_that_are_none_and_objectives_of_other_shapes_are_refused():
    """The worst vertices in place of the best had a negative regret; a sum over all instances counted for each."""
    context, costs, _ = linear_problem(20)
    model = MODELS["soc"](5)
    with pytest.raises(ValueError, match="at which the costs c'x are least, got one that a decision of the model"):
        soctk.SPOPlus(context, SET, costs, SET.linear_minimizer(-costs)).judge(model)
    zeros = torch.zeros(20, dtype=DOUBLE)
    for objective in (lambda x, c: x.square().sum(), lambda x, c: x, lambda x, c: x[:, :1]):
        with pytest.raises(ValueError, match=r"objective: expected shape \(20,\), a number for each decision"):
            soctk.Regret(context, SET, objective, zeros).judge(model)
    with pytest.raises(ValueError, match="objective: expected finite values"):
        soctk.Regret(context, SET, lambda x, c: torch.log(x.sum(dim=-1) - 9.0), zeros).judge(model)
    with pytest.raises(TypeError, match=r"objective: expected a tensor \(20,\), made of x by PyTorch, got ndarray"):
        soctk.Regret(context, SET, lambda x, c: x.numpy().sum(axis=1), zeros).judge(model)
    with pytest.raises(ValueError, match=r"optimum: expected the smallest values .* of the model is 9.* below"):
        soctk.Regret(context, SET, lambda x, c: x.square().sum(dim=1), 100 + zeros).judge(model)


def test_decisions_over_a_set_of_large_numbers_are_optima_there() -> None:
    """Rounding leaves them outside by a share of its numbers."""
    where = soctk.Budget(3, 1e10, 0.0, 6e9)
    model, context = soctk.SOCICNN(3, 2, hidden=(), quadratics=(3,), seed=1), rows_of(10, 2, seed=1)
    x = soctk.minimize(model, where, context).x
    assert torch.equal(soctk.Suboptimality(context, where, x).optima, x.double())


def test_optima_may_rest_at_a_bound_by_a_solvers_accuracy():
    """A coordinate at its bound in all of them spreads by rounding alone, which says nothing of what is close to it."""
    model, feasible_set = shaken(MODELS["soc"](5)), soctk.Box(5, 0.0, 1.0)
    context, noise = rows_of(12, 3), 1e-11 * rows_of(12, 1, seed=5)
    exact = 0.2 + 0.6 * torch.rand(12, 5, generator=torch.Generator().manual_seed(6), dtype=DOUBLE)
    exact[:, :1] = 0.0
    found = torch.cat([noise, exact[:, 1:]], dim=1)
    given, expected = (soctk.Optimality(context, feasible_set, x).on(model)().item() for x in (found, exact))
    assert given == pytest.approx(expected, rel=1e-8)
    with pytest.raises(ValueError, match="outside"):
        soctk.Optimality(context, feasible_set, found - 0.1).on(model)


def test_an_objective_without_derivatives_is_refused_by_name():
    model, context = MODELS["soc"](5), rows_of(4, 3)
    loss = soctk.Regret(context, SET, lambda x, c: x.detach().sum(dim=-1)).on(model)
    with pytest.raises(ValueError, match="objective: expected values with derivatives in x"):
        loss()
