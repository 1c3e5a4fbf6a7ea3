"""The mean of surrogates is their mean: as a value, a form, a decision and a file; and has fewer terms than they."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import cvxpy as cp
import numpy as np
import pytest
import torch
from surrogate_contract import SurrogateContract, inputs
from tolerances import CERTIFIED, CLARABEL, DOUBLE, GRADIENT, VALUE, close
from zoo import shaken

import soctk
from soctk import (
    SOCICNN,
    Box,
    ConvexSurrogate,
    NormICNN,
    QuadICNN,
    ReLUICNN,
    SoftplusICNN,
    average,
    certify,
    freeze,
    minimize,
    prepare,
)
from soctk.forms.joining import joined, reduced
from soctk.maps.linear import DenseMap
from soctk.terms import Network, Norms, Quadratic
from soctk_baselines import DCP

SMALL = {"ridges": 2, "affine_hidden": 3}


def apart(*models: ConvexSurrogate) -> list[ConvexSurrogate]:
    """Return the models with weights and units of their own."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=DOUBLE)

    for index, model in enumerate(models):
        shaken(model, 0.2 + 0.1 * index)
        model.set_standardization(
            x=(draw(model.dim) - 0.5, 0.7 + draw(model.dim)),
            value=(10 * float(draw(1)), 0.5 + 2 * float(draw(1))),
            context=(draw(model.context_dim) - 0.5, 0.6 + draw(model.context_dim)),
        )
    return list(models)


def soc(seed: int = 0, **options) -> SOCICNN:
    return SOCICNN(3, 2, **{"hidden": (4,), "quadratics": (3,), "norms": (2, 3), **SMALL, "seed": seed, **options})


def exact(seed: int = 0) -> ConvexSurrogate:
    draw = torch.Generator().manual_seed(seed)
    B, A, a, d = (torch.randn(*shape, generator=draw, dtype=DOUBLE) for shape in ((2, 3), (2, 3), (3,), (2,)))
    return soctk.from_quadratic(B.mT @ B, a, 0.5, norms=[(0.7, A, d)])


def several(make: Callable[..., ConvexSurrogate] = soc, count: int = 3, **options) -> ConvexSurrogate:
    return average(apart(*(make(seed, **options) for seed in range(count))))


def unlike() -> ConvexSurrogate:
    return average(
        apart(
            ReLUICNN(3, 2, hidden=(5, 4), **SMALL),
            SoftplusICNN(3, 2, hidden=(4,), slope_hidden=5, **SMALL),
            QuadICNN(3, 2, hidden=(3,), linear=False, **SMALL),
            NormICNN(3, 2, hidden=(), diagonal=True, diagonal_weights=True, hyperbolics=2, **SMALL),
            soc(hidden=(3, 2), passthrough=False, norms=(1, 2)),
        )
    )


def structured() -> ConvexSurrogate:
    first = soctk.RecurrentSOCICNN(3, 1, 2, hidden=2, quadratics=2, affine_hidden=2)
    return average(apart(first, SOCICNN(3, first.context_dim, quadratics=(3,), **SMALL)))


class TestDense(SurrogateContract):
    CASES: ClassVar = {
        "alike": several,
        "additive": lambda: several(conditioning="additive", quadratics=(3, 3)),
        "no_context": lambda: several(lambda seed: SOCICNN(3, quadratics=(3,), norms=(3,), seed=seed)),
        "unlike": unlike,
        "units": lambda: several(context_units=3, affine_hidden=0),
        "units_beside_others": lambda: average(apart(*unlike().members, soc(context_units=4, slope_hidden=2))),
    }


class TestMixed(SurrogateContract):
    CASES: ClassVar = {"exact": lambda: several(exact), "structured": structured}


MORE = {
    "one": lambda: several(count=1),
    "of_averages": lambda: average(apart(several(count=2), soc(3))),
    "frozen": lambda: average([freeze(model) for model in apart(soc(1), soc(2))]),
    "single": lambda: average([model.float() for model in apart(soc(1), soc(2))]),
    "twice": lambda: average([*apart(soc(1)), *apart(soc(1))]),
}
CASES = TestDense.CASES | TestMixed.CASES | MORE


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_mean_of_its_models(name: str) -> None:
    model = CASES[name]()
    x, context = inputs(model, 6)
    values = torch.stack([member(x, context) for member in model.members])
    tolerance = {DOUBLE: VALUE[model.dtype]}
    close(model(x, context), values.mean(dim=0), tolerance)
    close(model.conic_form(context).value(x), values.mean(dim=0), tolerance)
    close(model.spread(x, context), values.std(dim=0, correction=0), tolerance)


@pytest.mark.parametrize("name", CASES)
def test_decisions_are_certified_and_those_of_the_sum_in_cvxpy(name: str) -> None:
    model, box = CASES[name](), Box(3, -1.0, 1.5)
    model.set_standardization(x=(0.2, 1.5), value=(1.0, 3.0))
    _, context = inputs(model, 4)
    decision = minimize(model, box, context)
    assert (decision.gap <= CERTIFIED * decision.value.abs().clamp(min=1) * 1.01).all()
    close(prepare(model, box).minimize(context).x, decision.x, VALUE)
    assert (certify(model, box, decision.x, context).gap <= 2 * CERTIFIED * decision.value.abs().clamp(min=1)).all()
    x = cp.Variable(3)
    row = None if context is None else context[0]
    problem = cp.Problem(cp.Minimize(model.to_cvxpy(x, row)), box.constraints(x))
    problem.solve(solver="CLARABEL")
    value = decision.value if context is None else decision.value[0]
    assert problem.value == pytest.approx(float(value), rel=10 * CLARABEL, abs=10 * CLARABEL)


@pytest.mark.parametrize("name", [*TestDense.CASES, *TestMixed.CASES, "one", "of_averages", "single"])
def test_a_file_of_it_is_the_same_function(name: str, tmp_path) -> None:
    model = CASES[name]()
    x, context = inputs(model, 5)
    soctk.save(model, tmp_path / "model")
    loaded = soctk.load(tmp_path / "model")
    assert type(loaded) is type(model)
    assert torch.equal(loaded(x, context), model(x, context))
    assert loaded.config() == model.config()


def test_a_file_with_a_class_that_is_not_registered_is_refused(tmp_path) -> None:
    model = several()
    model.config = lambda: {"models": [{"class": "os:system", "config": {}}]}
    with pytest.raises(TypeError, match="registered surrogate"):
        soctk.save(model, tmp_path / "model")
    model.config = lambda: {"models": [{"class": "os:system"}]}
    with pytest.raises(TypeError, match='"class" and "config"'):
        soctk.save(model, tmp_path / "model")


@pytest.mark.parametrize("name", TestDense.CASES)
def test_a_frozen_average_is_the_average_then(name: str) -> None:
    model = CASES[name]()
    x, context = inputs(model, 5)
    frozen, values = freeze(model), model(x, context).detach()
    shaken(model)
    close(frozen(x, context), values, VALUE)


@pytest.mark.parametrize("name", ["alike", "additive", "unlike", "structured"])
def test_decisions_are_differentiable(name: str) -> None:
    """In the context: the optimal value against central differences."""
    model, box, step = CASES[name](), Box(3, -1.0, 1.5), 1e-5
    layer = soctk.DecisionLayer(model, box, tol=1e-11)
    _, context = inputs(model, 1)
    (gradient,) = torch.autograd.grad(layer.optimal_value(context.requires_grad_()).sum(), context)
    with torch.no_grad():
        moved = context + step * torch.cat([torch.eye(model.context_dim), -torch.eye(model.context_dim)])
        up, down = layer.optimal_value(moved).reshape(2, -1)
    torch.testing.assert_close((up - down) / (2 * step), gradient[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["alike", "additive"])
def test_it_goes_into_problems_of_the_users_own(name: str) -> None:
    model, x = CASES[name](), cp.Variable(3)
    points, context = inputs(model, 2)
    embedded = soctk.Embedding(model, x)
    problem = cp.Problem(cp.Minimize(embedded.value), [*embedded.constraints, x == points[1].numpy()])
    embedded.set_context(context[1])
    problem.solve(solver="CLARABEL")
    assert problem.value == pytest.approx(model(points, context)[1].item(), rel=CLARABEL, abs=CLARABEL)


def test_terms_of_a_kind_become_one() -> None:
    form = several(count=4).conic_form(torch.zeros(2, dtype=DOUBLE))
    assert [(type(term), term.map.rows) for term in form.terms] == [
        (Network, 16),
        (Quadratic, 12),
        (Norms, 8),
        (Norms, 12),
    ]


def test_quadratics_that_no_context_weighs_become_as_small_as_one() -> None:
    """n + p + 1 rows: those of x, of the context and of the constant."""
    form = several(count=5, conditioning="additive").conic_form(torch.zeros(2, dtype=DOUBLE))
    assert form.quadratics[0].map.rows == 3 + 2 + 1
    assert several(exact, 4).conic_form().quadratics[0].map.rows == 3 + 1


def test_networks_of_several_layers_stay_by_themselves() -> None:
    terms = several(count=2, hidden=(4, 3), quadratics=(), norms=()).conic_form(torch.zeros(2, dtype=DOUBLE)).terms
    assert [term.widths for term in terms] == [(4, 3), (4, 3)]


def random_quadratic(rows: int, contexts: int, generator: torch.Generator) -> Quadratic:
    A, d, w = (torch.randn(*s, generator=generator).double() for s in ((1, rows, 4), (contexts, 1, rows), (1, 1, rows)))
    return Quadratic(DenseMap(A), d, w.square())


@pytest.mark.parametrize("contexts", [1, 3])
def test_joined_and_reduced_terms_have_the_sum_as_value_and_gradient(contexts: int, generator) -> None:
    terms = [random_quadratic(rows, contexts, generator) for rows in (7, 2, 5)]
    x = torch.randn(contexts, 6, 4, generator=generator).double().requires_grad_()
    expected = sum(term.value(term.inner(x)) for term in terms)
    (term,) = map(reduced, joined(terms))
    assert term.map.rows == (14 if contexts == 3 else 5)
    actual = term.value(term.inner(x))
    close(actual, expected, VALUE)
    close(*(torch.autograd.grad(value.sum(), x)[0] for value in (actual, expected)), GRADIENT)


def test_a_quadratic_of_low_rank_is_reduced_with_its_derivatives() -> None:
    """In its own coefficients, where those of the factorisation do not exist."""
    A = torch.ones(1, 6, 4, dtype=DOUBLE).requires_grad_()
    d = torch.zeros(1, 1, 6, dtype=DOUBLE).requires_grad_()
    x = torch.linspace(-1, 2, 4, dtype=DOUBLE).reshape(1, 1, 4)
    whole = Quadratic(DenseMap(A), d, torch.full((1, 1, 6), 2.0, dtype=DOUBLE))
    small = reduced(whole)
    assert small.map.rows == 5
    found, wanted = (torch.autograd.grad(term.value(term.inner(x)).sum(), (A, d)) for term in (small, whole))
    for one, other in zip(found, wanted, strict=True):
        close(one, other, GRADIENT)


def test_terms_that_are_not_alike_are_not_joined() -> None:
    generator = torch.Generator().manual_seed(1)
    quadratic = random_quadratic(3, 1, generator)
    own = Quadratic(DenseMap(quadratic.map.matrix.expand(2, -1, -1)), quadratic.offset, quadratic.weights)
    pairs, triples = (Norms(quadratic.map, quadratic.offset, *2 * [torch.ones(1, 1, 3 // k)], k) for k in (1, 3))
    assert joined([own, own]) == [own, own]
    assert joined([pairs, triples]) == [pairs, triples]


def test_bad_models_are_refused_by_name() -> None:
    class Plain(ConvexSurrogate):
        pass

    for models, error, message in (
        ([], ValueError, "at least one"),
        (soc(), ValueError, "expected a sequence"),
        (
            [soc(), torch.nn.Linear(3, 1)],
            TypeError,
            r"models\[1\]: .*got Linear; soctk.from_layers",
        ),
        ([Plain(3, 2), soc()], NotImplementedError, r"models\[0\]: Plain has no conic form.*leave it out"),
        ([soc(), SOCICNN(4, 2)], ValueError, "one dim for all, got 3 at index 0 and 4 at 1"),
        ([soc(), SOCICNN(3, 1)], ValueError, "one context_dim for all"),
        ([soc(), soc().float()], ValueError, "one dtype for all"),
        ([soc(), soc().to("meta")], ValueError, "one device for all"),
    ):
        with pytest.raises(error, match=message):
            average(models)


def test_its_models_stay_the_users() -> None:
    models = apart(soc(1), soc(2))
    model = average(models)
    assert all(one is other for one, other in zip(model.members, models, strict=True))
    assert model.parameter_count == sum(each.parameter_count for each in models)


def test_spread_is_in_the_units_of_the_average() -> None:
    models = [soctk.SOCICNN(3, 2, norms=(2,), seed=seed) for seed in range(3)]
    whole = soctk.average(models)
    x, context = torch.rand(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    usual = whole.spread(x, context)
    whole.set_standardization(x=(1.0, 2.0), value=(3.0, 1000.0))
    torch.testing.assert_close(whole.spread(1.0 + 2.0 * x, context), 1000 * usual, rtol=1e-9, atol=0)
    for wrong in (x[:, :1], x[:, :2], 0.5):
        with pytest.raises(ValueError, match=r"^x: expected last dimension 3"):
            whole.spread(wrong, context)


def test_an_average_knows_where_the_data_of_its_models_were_whenever_they_were_learned() -> None:
    generator = torch.Generator().manual_seed(0)
    context, x = torch.rand(20, 2, generator=generator), torch.rand(20, 4, 3, generator=generator)
    models = [soctk.make_surrogate("quadratic", 3, 2) for _ in range(2)]
    whole = soctk.average(models)
    assert whole.support is None
    for model in models:
        soctk.fit(model, soctk.ValueData(context, x, x.square().sum(dim=-1)))
    assert whole.support is not None


def test_the_structure_of_a_mean_does_not_depend_on_how_many_contexts_there_are() -> None:
    members = [DCP(2, 1, logistics=2, norms=(2,), seed=seed) for seed in (0, 1)]
    mean = average(members)
    one, two = (mean.form_at(torch.zeros(count, 1)) for count in (1, 2))
    assert [(type(term), term.map.rows) for term in one.terms] == [(type(term), term.map.rows) for term in two.terms]
    x = cp.Variable(2)
    embedding = soctk.Embedding(mean, x)
    embedding.set_context([0.3])
    point = np.array([0.2, -0.4])
    found = cp.Problem(cp.Minimize(embedding.value), [*embedding.constraints, x == point]).solve(solver=cp.CLARABEL)
    assert found == pytest.approx(float(mean(point, [0.3]).detach()), abs=CLARABEL)
