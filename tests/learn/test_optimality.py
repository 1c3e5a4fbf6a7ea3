"""Learning from known optima: their conditions hold exactly at optima, and what is learned from them decides better."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import DOUBLE

import soctk
from soctk.learn.optimality import Optima, OptimalityResiduals, spanned_set
from soctk_baselines import QuadraticRegression
from soctk_tasks import make_smoothing

QUICK = soctk.FitConfig(starts=1, epochs=2, newton_iterations=6, lbfgs_iterations=40, level_iterations=20)
SETS = {
    "simplex": soctk.Simplex(4),
    "box": soctk.Box(4, -0.4, 0.7),
    "budget": soctk.Budget(4, 2.0),
    "vertex": soctk.Budget(4, 2.0, 0.0, 1.0),
}
# A decision with a certified relative gap of 1e-12 lies within 1e-6 of the optimum where the curvature is one.
AT_OPTIMUM = 1e-5


def bowl(kind: str) -> soctk.ConvexSurrogate:
    """Return a strongly convex quadratic with optima at bounds; "vertex": so steep that all of them are."""
    tilt = torch.tensor([3.0, -2.0, 0.5, -0.1], dtype=DOUBLE)
    return soctk.from_quadratic(torch.eye(4, dtype=DOUBLE), (9.0 if kind == "vertex" else 1.0) * tilt, 0.0)


def in_units_apart(Q: torch.Tensor, q: torch.Tensor) -> soctk.ConvexSurrogate:
    """Return 1/2 x'Qx + q'x, up to a constant, as a model whose coordinates have units far apart."""
    mean = torch.linspace(-3, 3, len(q), dtype=DOUBLE)
    scale = torch.logspace(-1, 0, len(q), dtype=DOUBLE)
    model = soctk.from_quadratic(scale * Q * scale[:, None], scale * (q + Q @ mean), 0.0)
    model.set_standardization(x=(mean, scale))
    return model


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("kind", SETS)
def test_the_residuals_vanish_at_optima_and_nowhere_else(kind, apart):
    model, feasible_set = bowl(kind), SETS[kind]
    if apart:
        form = model.conic_form()
        model = in_units_apart(torch.eye(4, dtype=DOUBLE), form.linear[0, 0])
    best = soctk.minimize(model, feasible_set, tol=1e-12).x.reshape(1, 4)
    other = feasible_set.center().reshape(1, 4)
    data = soctk.ValueData(torch.zeros(1, 0), best.unsqueeze(1), torch.zeros(1, 1))
    at_best, elsewhere = (
        OptimalityResiduals(model, Optima.of(data, x, feasible_set)).residual(model).detach().abs().max()
        for x in (best, other)
    )
    assert float(at_best) < AT_OPTIMUM
    assert float(elsewhere) > 0.05


def moving_optima(kind: str, count: int) -> tuple[soctk.FeasibleSet, soctk.ValueData, torch.Tensor]:
    """Return values of a function, not quadratic, whose optimum moves with the context, and those optima."""
    generator = torch.Generator().manual_seed(3)
    feasible_set = SETS[kind]
    mixing = torch.randn(2, 4, generator=generator, dtype=DOUBLE)
    context = torch.randn(count, 2, generator=generator, dtype=DOUBLE)
    target = 0.3 * torch.tanh(context @ mixing)
    x = feasible_set.sample((count, 6), generator)

    def value(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.cosh(3 * (x - target))).sum(dim=-1)

    # log cosh is even and convex: its minimum over these sets is the projection where that is coordinatewise.
    best = feasible_set.project(target)
    return feasible_set, soctk.ValueData(context, x, value(x, target.unsqueeze(1))), best


def test_optima_make_decisions_better_and_leave_data_alone():
    feasible_set, data, best = moving_optima("box", 150)
    kept = [tensor.clone() for tensor in (data.context, data.x, data.value, best)]
    for given_set in (feasible_set, None):
        model = soctk.SOCICNN(4, 2, hidden=(), diagonal=True)
        report = soctk.fit(model, data, QUICK, optima=best, feasible_set=given_set)
        before, after = report.decision_errors
        assert after < 0.8 * before
        fresh = moving_optima("box", 400)
        contexts, optima = fresh[1].context[200:], fresh[2][200:]
        error = (soctk.minimize(model, feasible_set, contexts).x - optima).norm(dim=-1).mean()
        assert float(error) < before
    for tensor, copy in zip((data.context, data.x, data.value, best), kept, strict=True):
        assert torch.equal(tensor, copy)


def test_levels_follow_what_optima_have_moved():
    """The values' level moves no decision, but is part of what a surrogate predicts."""
    feasible_set, data, best = moving_optima("box", 40)
    errors = []
    for known in ({}, {"optima": best, "feasible_set": feasible_set}):
        model = soctk.SOCICNN(4, 2, hidden=(), diagonal=True)
        recipe = dataclasses.replace(QUICK, level_iterations=300, optima_weights=(100.0,))
        soctk.fit(model, data, recipe, **known)
        level = (model.evaluate(data.x, data.context) - data.value).mean(dim=1)
        errors.append(float(level.detach().square().mean().sqrt()))
    assert errors[1] < 2 * errors[0]


def test_without_optima_nothing_changes():
    _, data, _ = moving_optima("box", 60)
    model = soctk.SOCICNN(4, 2, hidden=(), diagonal=True)
    assert soctk.fit(model, data, QUICK).decision_errors is None


def test_what_does_not_help_is_not_kept():
    """Optima of another function: held-out decisions are never made worse by them."""
    feasible_set, data, best = moving_optima("box", 60)
    shuffled = best[torch.randperm(60, generator=torch.Generator().manual_seed(0))]
    model = soctk.SOCICNN(4, 2, hidden=(), diagonal=True)
    before, after = soctk.fit(model, data, QUICK, optima=shuffled, feasible_set=feasible_set).decision_errors
    assert after <= before


@given(st.integers(0, 10_000), st.booleans())
def test_the_spanned_set_holds_the_optima(seed, with_sum):
    generator = torch.Generator().manual_seed(seed)
    x = soctk.Simplex(5, 3.0).sample(7, generator) if with_sum else torch.randn(7, 5, generator=generator, dtype=DOUBLE)
    spanned = spanned_set(x)
    assert (spanned.rows().total is not None) == with_sum
    assert spanned.contains(x, atol=1e-9).all()
    assert torch.equal(spanned.rows().lower, x.amin(dim=0))
    assert torch.equal(spanned.rows().upper, x.amax(dim=0))


def test_wrong_optima_are_refused():
    feasible_set, data, best = moving_optima("box", 20)
    model = soctk.SOCICNN(4, 2)
    with pytest.raises(ValueError, match=r"optima: expected shape \(20, 4\)"):
        soctk.fit(model, data, optima=best[:5], feasible_set=feasible_set)
    with pytest.raises(ValueError, match=r"expected points of Box.*instance 3"):
        soctk.fit(model, data, optima=best.index_fill(0, torch.tensor(3), 5.0), feasible_set=feasible_set)
    with pytest.raises(ValueError, match="row"):
        soctk.fit(model, data, optima=best.index_fill(0, torch.tensor(3), torch.nan), feasible_set=feasible_set)
    with pytest.raises(ValueError, match="expected dimension 4"):
        soctk.fit(model, data, optima=best, feasible_set=soctk.Box(3))
    with pytest.raises(ValueError, match="expected optima="):
        soctk.fit(model, data, feasible_set=feasible_set)
    with pytest.raises(ValueError, match="training of its own"):
        soctk.fit(QuadraticRegression(4, 2), data, optima=best, feasible_set=feasible_set)


@pytest.mark.parametrize("name", ["relu", "softplus", "norm", "dcp", "pcf", "ickan"])
def test_every_surrogate_that_takes_the_recipe_learns_from_optima(name):
    feasible_set, data, best = moving_optima("box", 25)
    model = soctk.make_surrogate(name, 4, 2)
    brief = dataclasses.replace(QUICK, epochs=1, newton_iterations=2, lbfgs_iterations=4, optima_iterations=4)
    before, after = soctk.fit(model, data, brief, optima=best, feasible_set=feasible_set).decision_errors
    assert 0 < after <= before


def test_models_of_sequences_learn_from_optima():
    task = make_smoothing(6, 2)
    parts = task.splits(0, (30, 8, 8), 8)
    best = task.solve(parts.train.data.context, tol=1e-6).x
    model = soctk.RecurrentSOCICNN(6, 2)
    brief = dataclasses.replace(QUICK, newton_iterations=2, lbfgs_iterations=8, optima_iterations=10)
    report = soctk.fit(
        model, parts.train.data, brief, parts.validation.data, optima=best, feasible_set=task.feasible_set
    )
    before, after = report.decision_errors
    assert after < before


POLYHEDRON = soctk.Polyhedron(
    4,
    -0.6,
    0.8,
    E=[[1.0, -1.0, 1.0, 0.0]],
    f=[0.1],
    G=[[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, -1.0]],
    h=[0.4, 0.3],
)


@pytest.mark.parametrize("apart", [False, True])
def test_the_residuals_of_a_polyhedron_vanish_at_optima_and_nowhere_else(apart):
    generator = torch.Generator().manual_seed(4)
    slopes = 2 * torch.randn(20, 4, generator=generator, dtype=DOUBLE)
    for slope in slopes:
        Q = torch.eye(4, dtype=DOUBLE)
        model = in_units_apart(Q, slope) if apart else soctk.from_quadratic(Q, slope, 0.0)
        best = POLYHEDRON.project(-slope).reshape(1, 4)
        data = soctk.ValueData(torch.zeros(1, 0), best.unsqueeze(1), torch.zeros(1, 1))
        for x, low, high in ((best, 0.0, AT_OPTIMUM), (POLYHEDRON.center().reshape(1, 4), 0.01, torch.inf)):
            residual = OptimalityResiduals(model, Optima.of(data, x, POLYHEDRON)).residual(model).detach()
            assert low <= float(residual.norm()) < high


def test_the_residuals_of_a_polyhedron_are_those_of_the_closed_form():
    """The same set with its bounds written as rows; and the derivative of the loss, against differences."""
    budget = SETS["budget"]
    rows = soctk.Polyhedron(4, G=torch.eye(4), h=torch.ones(4), E=2 * torch.ones(1, 4), f=[4.0])
    x = budget.linear_minimizer(torch.tensor([[1.0, -1.0, 0.3, 0.2]], dtype=DOUBLE))
    model = soctk.SOCICNN(4, 0, seed=3).double()
    data = soctk.ValueData(torch.zeros(1, 0), x.unsqueeze(1), torch.zeros(1, 1))
    losses = [OptimalityResiduals(model, Optima.of(data, x, given)) for given in (budget, rows)]
    # The closed form's multiplier is not the nearest one where no coordinate is free: an upper bound.
    assert losses[1].loss(model).item() <= losses[0].loss(model).item() + 1e-12
    weight = next(w for w in model.parameters() if w.requires_grad and w.numel() >= 4)
    (gradient,) = torch.autograd.grad(losses[1].loss(model), weight, allow_unused=True)
    assert gradient is not None
    step = 1e-6 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    values = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            weight.add_(sign * step)
        values.append(losses[1].loss(model).item())
        with torch.no_grad():
            weight.sub_(sign * step)
    assert (values[0] - values[1]) / 2 == pytest.approx(float((gradient * step).sum()), rel=1e-4, abs=1e-12)


def test_fit_learns_from_optima_in_a_polyhedron():
    generator = torch.Generator().manual_seed(5)
    context = torch.randn(40, 2, generator=generator, dtype=DOUBLE)
    target = torch.tanh(context @ torch.randn(2, 4, generator=generator, dtype=DOUBLE))
    best = POLYHEDRON.project(target)
    x = POLYHEDRON.sample((40, 6), generator)
    data = soctk.ValueData(context, x, (x - target.unsqueeze(1)).square().sum(dim=-1))
    brief = dataclasses.replace(QUICK, epochs=1, newton_iterations=2, lbfgs_iterations=4, optima_iterations=10)
    model = soctk.SOCICNN(4, 2, hidden=(), diagonal=True)
    before, after = soctk.fit(model, data, brief, optima=best, feasible_set=POLYHEDRON).decision_errors
    assert after <= before


LOWER = torch.tensor([[-0.4], [-0.1], [0.2]], dtype=DOUBLE).expand(3, 4)
AT = {
    "simplex": soctk.Simplex(4).at(total=[0.5, 1.0, 2.0]),
    "box": soctk.Box(4, -0.4, 0.7).at(
        lower=torch.tensor([[-0.4], [-0.1], [0.2]]).expand(3, 4), upper=0.7 * torch.ones(3, 4)
    ),
    "budget": soctk.Budget(4, 2.0).at(total=[0.5, 2.0, 3.5]),
    "polyhedron": POLYHEDRON.at(f=[0.1, 0.0, -0.3], h=[[0.4, 0.3], [0.1, 0.3], [0.4, -0.2]]),
}


@pytest.mark.parametrize("kind", AT)
def test_the_residuals_of_sets_of_their_own_are_those_of_one_set_at_a_time(kind):
    sets, model = AT[kind], bowl(kind)
    best = soctk.minimize(model, sets, tol=1e-12).x
    values = torch.zeros(3, 1)
    known = Optima.of(soctk.ValueData(torch.zeros(3, 0), best.unsqueeze(1), values), best, sets)
    residual = OptimalityResiduals(model, known).residual(model).detach()
    assert float(residual.abs().max()) < AT_OPTIMUM
    other = soctk.SOCICNN(4, 0, seed=3).double()
    together = OptimalityResiduals(other, known).residual(other).detach()
    for k in range(3):
        data = soctk.ValueData(torch.zeros(1, 0), best[k : k + 1].unsqueeze(1), values[:1])
        one = Optima.of(data, best[k : k + 1], sets.flat((3,)).one(k))
        alone = OptimalityResiduals(other, one).residual(other).detach()
        torch.testing.assert_close(together[k : k + 1], alone, rtol=1e-9, atol=1e-9)
    learned, judged = known.split(0)
    assert sorted(torch.cat([learned.x, judged.x])[:, 0].tolist()) == sorted(known.x[:, 0].tolist())
    assert bool(learned.feasible_set.contains(learned.x, atol=1e-6).all())


def test_fit_learns_from_optima_in_sets_of_their_own():
    generator = torch.Generator().manual_seed(6)
    context = torch.randn(60, 2, generator=generator, dtype=DOUBLE)
    target = 0.5 + 0.3 * torch.tanh(context @ torch.randn(2, 4, generator=generator, dtype=DOUBLE))
    sets = soctk.Budget(4, 2.0).at(total=2 + torch.tanh(context[:, 0]))
    best = sets.project(target)
    x = torch.rand(60, 6, 4, generator=generator, dtype=DOUBLE)
    data = soctk.ValueData(context, x, torch.log(torch.cosh(3 * (x - target.unsqueeze(1)))).sum(dim=-1))
    model = soctk.SOCICNN(4, 2, hidden=(), diagonal=True)
    before, after = soctk.fit(model, data, QUICK, optima=best, feasible_set=sets).decision_errors
    assert after < before


def test_optima_that_do_not_fit_sets_of_their_own_are_refused():
    data = soctk.ValueData(torch.zeros(3, 0), torch.full((3, 1, 4), 0.25), torch.zeros(3, 1))
    x, model = torch.full((3, 4), 0.25, dtype=DOUBLE), soctk.SOCICNN(4, 0)
    with pytest.raises(ValueError, match=r"batch shape \(3,\).*got \(2,\)"):
        soctk.fit(model, data, optima=x, feasible_set=soctk.Budget(4, 2.0).at(total=[1.0, 1.0]))
    with pytest.raises(ValueError, match=r"expected points of Budget.*instance 1"):
        soctk.fit(model, data, optima=x, feasible_set=soctk.Budget(4, 2.0).at(total=[1.0, 2.0, 1.0]))
    with pytest.raises(ValueError, match="instance 2 has no point"):
        soctk.fit(model, data, optima=x, feasible_set=soctk.Budget(4, 2.0).at(total=[1.0, 1.0, 5.0]))


def test_losses_of_decisions_take_right_hand_sides():
    """Both are zero where the model is the truth, and regret is not where right-hand sides are other ones."""
    sets, model = AT["polyhedron"], soctk.from_quadratic(torch.eye(4, dtype=DOUBLE), torch.ones(4, dtype=DOUBLE), 0.0)
    best, layer = soctk.minimize(model, sets, tol=1e-12), soctk.DecisionLayer(model, POLYHEDRON)
    sides = {"f": sets.f, "h": sets.h}

    def regret(**sides):
        return float(soctk.losses.regret_loss(layer, lambda x, context: model(x), None, best.value, **sides))

    assert float(soctk.losses.suboptimality_loss(layer, best.x, **sides)) == pytest.approx(0.0, abs=1e-8)
    assert regret(**sides) == pytest.approx(0.0, abs=1e-8)
    assert abs(regret(f=sets.f, h=sets.h + 1)) > 1e-3
