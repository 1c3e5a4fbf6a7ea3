"""Functions with one centre, their least-squares start, and the choice among them by cross-validation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import soctk
from soctk.learn.centred import Centred, Values, learn
from soctk.learn.data import HELD_OUT, split_indices
from soctk.learn.ladder import Ladder, Step
from soctk.learn.least_squares import LeastSquaresQuadratic, level_features
from soctk.learn.report import FitStatus
from soctk.learn.units import Standardized
from soctk.models.centred import CentredShape
from tests.helpers import tolerances as tol

N_X, P = 3, 2
SHAPES = (CentredShape(False, ()), CentredShape(False, (N_X,)), CentredShape(False, (1,) * 8))


def bowl(x: torch.Tensor, context: torch.Tensor, *, kink: float = 0.0, gain: bool = False) -> torch.Tensor:
    """Return a bowl around a centre affine in the context, maybe with a norm, maybe steeper in some contexts."""
    center = context @ torch.tensor([[0.3, -0.2, 0.1], [0.1, 0.4, -0.3]], dtype=torch.float64) + 0.2
    e = x - center.unsqueeze(-2)
    factor = torch.exp(torch.tanh(context[..., :1])) if gain else torch.ones_like(context[..., :1])
    curved = factor * (e.square() * torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)).sum(dim=-1)
    return curved + kink * e.norm(dim=-1) + 0.5 * context.square().sum(dim=-1, keepdim=True)


def observed(
    instances: int = 400, candidates: int = 1, noise: float = 0.0, seed: int = 0, **more: float
) -> soctk.ValueData:
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(instances, P, generator=generator, dtype=torch.float64)
    x = torch.randn(instances, candidates, N_X, generator=generator, dtype=torch.float64)
    value = bowl(x, context, **more)  # type: ignore[arg-type]
    return soctk.ValueData(context, x, value + noise * torch.randn(value.shape, generator=generator, dtype=value.dtype))


def standard(data: soctk.ValueData) -> Standardized:
    return Standardized(data.context, data.x, data.value)


def soc(**more: object) -> soctk.SOCICNN:
    return soctk.make_surrogate("soc", N_X, P)  # type: ignore[return-value]


@pytest.mark.parametrize("diagonal", [False, True])
def test_the_least_squares_quadratic_satisfies_the_normal_equations(diagonal: bool) -> None:
    """Where its matrix has an inverse no constraint holds, so the residual is orthogonal to every feature."""
    data = standard(observed(noise=0.3))
    found = LeastSquaresQuadratic.of(data, diagonal=diagonal)
    x, context = data.x[:, 0], data.context
    ones = torch.cat([context, torch.ones_like(context[:, :1])], dim=-1)
    value = (
        0.5 * (x @ found.Q * x).sum(-1) + (x * (ones @ found.slope.mT)).sum(-1) + level_features(context) @ found.level
    )
    residual = value - data.value[:, 0]
    rows, columns = torch.arange(N_X).expand(2, N_X) if diagonal else torch.triu_indices(N_X, N_X)
    features = torch.cat(
        [x[:, rows] * x[:, columns], (x[:, :, None] * ones[:, None]).flatten(1), level_features(context)], 1
    )
    assert float((features.mT @ residual).abs().max()) / len(x) < tol.NORMAL_EQUATIONS


def test_the_quadratic_with_its_centre_is_the_quadratic() -> None:
    data = standard(observed(noise=0.3))
    found = LeastSquaresQuadratic.of(data)
    centred = Centred.quadratic(found, diagonal=False)
    x, ones = data.x[:, 0], torch.cat([data.context, torch.ones(len(data.x), 1, dtype=torch.float64)], dim=-1)
    level = level_features(data.context) @ found.level
    value = 0.5 * (x @ found.Q * x).sum(-1) + (x * (ones @ found.slope.mT)).sum(-1) + level
    values = centred.values(Values.of(data, 1.0))
    np.testing.assert_allclose(values, value.numpy(), atol=tol.LEARNED_VALUE)


def start(sizes: tuple[int, ...], *, alpha: bool, diagonal: bool, data: Standardized) -> Centred:
    quadratic = Centred.quadratic(LeastSquaresQuadratic.of(data, diagonal=diagonal), diagonal=diagonal)
    return Step(0, sizes, alpha).start(quadratic, seed=1)


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.sampled_from([(), (2,), (1, 1, 1), (3,), (2, 1)]),
    alpha=st.booleans(),
    diagonal=st.booleans(),
    candidates=st.sampled_from([1, 3]),
)
def test_the_jacobian_is_the_derivative(sizes: tuple[int, ...], alpha: bool, diagonal: bool, candidates: int) -> None:
    data = standard(observed(30, candidates, noise=0.1))
    at, values = start(sizes, alpha=alpha, diagonal=diagonal, data=data), Values.of(data, 0.1)
    vector, jacobian = at.vector(), at.jacobian(values)
    direction = np.random.default_rng(0).normal(size=vector.size)
    step = 1e-6
    ahead, behind = (at.at(vector + sign * step * direction).residual(values) for sign in (1, -1))
    np.testing.assert_allclose(jacobian @ direction, (ahead - behind) / (2 * step), atol=tol.DIFFERENCES)


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("alpha", [False, True])
def test_a_model_takes_the_function_exactly(index: int, alpha: bool) -> None:
    model = soc()
    data = standard(observed(60, noise=0.1))
    step = Step(index, model.traits.centred[index].sizes, alpha)
    ladder = Ladder(model.traits.centred, 0.1, 0, lambda: False)
    function = ladder.fit(step, data)
    model.place_centred(index, function.for_model())
    assert model.structure == index
    values = model._value(data.x, data.context)[:, 0].detach().numpy()
    np.testing.assert_allclose(values, function.values(Values.of(data, 1.0)), atol=tol.LEARNED_VALUE)


def test_learning_lowers_the_error_and_finds_a_function_of_the_kind() -> None:
    data = standard(observed(1500, kink=1.0, noise=0.01))
    values = Values.of(data, 1.0)
    quadratic = start((), alpha=False, diagonal=False, data=data)
    found = learn(quadratic.with_branches((N_X,), 0), values, noise=1e-4)
    before, after = (float(np.square(each.residual(values)).mean()) for each in (quadratic, found))
    assert after < 0.1 * before


def test_the_choice_asks_for_evidence() -> None:
    """An exact quadratic stays one; curvature and a kink that the data show are taken; in noise the quadratic stays."""
    ladder = Ladder(SHAPES, 0.1, 0, lambda: False)
    assert ladder.choose(standard(observed(400, noise=0.5))) == Step(0)
    assert ladder.choose(standard(observed(1000, noise=0.05, gain=True))).alpha
    assert ladder.choose(standard(observed(1500, noise=0.05, kink=2.0))).sizes != ()
    assert ladder.choose(standard(observed(100, noise=20.0, kink=0.3))) == Step(0)


def test_in_noise_fit_keeps_the_least_squares_quadratic() -> None:
    data = observed(300, noise=1.0)
    model, config = soc(), soctk.FitConfig(starts=1, epochs=1, newton_iterations=3, lbfgs_iterations=20)
    soctk.fit(model, data, config)
    assert model.structure == 0
    found = LeastSquaresQuadratic.of(Standardized.of(model, data, torch.float64))
    plain = Centred.quadratic(found, diagonal=False)
    values = plain.values(Values.of(Standardized.of(model, data, torch.float64), 1.0))
    predicted = (model.evaluate(data.x, data.context)[:, 0].detach().numpy() - float(model.value_mean)) / float(
        model.value_scale
    )
    np.testing.assert_allclose(predicted, values, atol=tol.LEARNED_VALUE)


def test_large_dimensions_have_a_diagonal_quadratic() -> None:
    model = soctk.make_surrogate("soc", 40, 2)
    assert model.traits.centred[0] == CentredShape(True, ())


@pytest.mark.parametrize(
    "wrong",
    [
        {"structures": [("quadratic0", "backbone")]},
        {"structures": [()]},
        {"structures": [("quadratic0", "norm0")], "norms": (1,)},
        {"structures": [("quadratic0",)], "quadratics": (2,)},
        {"structures": [("quadratic0",)], "level_squares": False},
        {"structures": [("quadratic0",)], "conditioning": "additive"},
    ],
)
def test_structures_that_cannot_have_one_centre_are_refused(wrong: dict[str, object]) -> None:
    options = {"quadratics": (3,), "norms": (4,), "hidden": (2,), "level_squares": True, "centred": 1}
    everything = ["quadratic0", "norm0", "backbone"]
    options |= wrong | {"structures": [*wrong["structures"], everything]}  # type: ignore[misc]
    with pytest.raises(ValueError, match="centred"):
        soctk.SOCICNN(3, 2, **options)  # type: ignore[arg-type]


def test_b0_is_quadratic_in_the_context_in_every_view() -> None:
    model = soctk.SOCICNN(3, 2, quadratics=(3,), level_squares=True)
    generator = torch.Generator().manual_seed(0)
    squares = model.affine.level_squares
    assert squares is not None
    with torch.no_grad():
        for weight in (squares.inner, squares.outer):
            weight.copy_(torch.randn(weight.shape, generator=generator))
    context, x = (torch.randn(5, size, generator=generator, dtype=torch.float64) for size in (2, 3))
    decision = soctk.minimize(model, soctk.Box(3), context)
    torch.testing.assert_close(decision.value, model(decision.x, context))
    other = soctk.SOCICNN(3, 2, seed=5)
    torch.testing.assert_close(soctk.average([model, other])(x, context), 0.5 * (model(x, context) + other(x, context)))
    torch.testing.assert_close(soctk.freeze(model)(x, context), model(x, context))


def test_members_learn_from_samples_and_their_mean_is_the_model() -> None:
    data, model = observed(300, noise=0.5), soc()
    brief = soctk.FitConfig(members=3, starts=1, epochs=1, newton_iterations=2, lbfgs_iterations=20)
    report = soctk.fit(model, data, brief)
    members = report.model.models  # type: ignore[union-attr]
    assert len(members) == 3
    assert members[0] is model
    x, context = data.x[:, 0], data.context
    values = torch.stack([member(x, context) for member in members])
    assert bool((values.std(dim=0) > 0).all())  # each has samples of its own
    torch.testing.assert_close(report.model(x, context), values.mean(dim=0))  # type: ignore[misc]
    alone = soc()
    assert soctk.fit(alone, data, soctk.FitConfig(starts=1, epochs=0, newton_iterations=1)).model is alone


def test_members_learned_side_by_side_are_those_learned_in_turn() -> None:
    data = observed(60, 4)
    brief = soctk.FitConfig(members=3, starts=1, epochs=1, newton_iterations=2, lbfgs_iterations=10)
    found = [soctk.fit(soc(), data, dataclasses.replace(brief, jobs=jobs)).model for jobs in (1, 2)]
    point, context = data.x[:5, 0], data.context[:5]
    torch.testing.assert_close(found[0](point, context), found[1](point, context), rtol=1e-10, atol=1e-10)
    assert torch.get_num_threads() == 1


def test_stopping_ends_members_in_other_processes_too() -> None:
    asked = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 3

    config = soctk.FitConfig(members=2, jobs=2, epochs=10_000, starts=1)
    report = soctk.fit(soctk.make_surrogate("relu", N_X, P), observed(200, 4), config, stop=stop)
    assert report.status == FitStatus.STOPPED
    assert 1 <= len(report.model.models) <= 2  # type: ignore[union-attr]  # one that had not begun is left out


def test_twice_the_spread_of_members_is_a_standard_error() -> None:
    """Of least-squares quadratics, whose error at a point is known from many logs."""
    ladder, point = Ladder(SHAPES, 0.1, 0, lambda: False), standard(observed(1, seed=99))
    means, spreads = [], []
    for seed in range(40):
        data = standard(observed(200, noise=1.0, seed=seed))
        parts = (split_indices(200, HELD_OUT, 100 * seed + number)[0] for number in range(8))
        members = [float(ladder.fit(Step(0), data.rows(part)).values(Values.of(point, 1.0))[0]) for part in parts]
        means.append(np.mean(members))
        spreads.append(np.std(members))
    assert 0.7 < 2 * np.mean(spreads) / np.std(means) < 1.4


def test_members_are_refused_where_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="members: expected at least"):
        soctk.fit(soc(), observed(3), soctk.FitConfig(members=2))
    with pytest.raises(ValueError, match="members"):
        soctk.FitConfig(members=0)


def test_a_single_instance_is_learned_from_all_of_its_values() -> None:
    """A convex quadratic of 21 coefficients by 40 values of it: exact."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    x = torch.rand(1, 40, 5, generator=generator, dtype=torch.float64)
    value = 0.5 * (x @ root.mT).square().sum(dim=-1) + 0.5 * x.square().sum(dim=-1) - x.sum(dim=-1)
    model = soctk.make_surrogate("soc", 5)
    soctk.fit(model, soctk.ValueData(torch.zeros(1, 0), x, value))
    assert float((model(x[0]) - value[0]).detach().abs().max()) <= 1e-5 * float(value.std())


def test_the_quadratic_is_learned_from_every_value() -> None:
    """With noise, candidates beyond the first thirty of 400 instances (12,000 values) still count."""
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(400, 2, generator=generator, dtype=torch.float64)
    x = torch.rand(400, 60, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(400, 60, generator=generator, dtype=torch.float64)
    value = (x - 0.5 * context[:, None, :1]).square().sum(dim=-1) + noise
    models = [soctk.make_surrogate("soc", 3, 2) for _ in range(2)]
    for model, later in zip(models, (noise[:, 40:], -noise[:, 40:]), strict=True):
        changed = torch.cat([value[:, :40], value[:, 40:] - noise[:, 40:] + later], dim=1)
        soctk.fit(model, soctk.ValueData(context, x, changed), soctk.FitConfig(starts=1))
        assert model.traits.structure == 0
    one, two = (model.conic_form(context[0]).hessian(x[0, :1]).detach() for model in models)
    assert float((one - two).abs().max()) > 1e-4
