"""A frozen model is the function that the model was, to the last bit, and nothing changes it."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from surrogate_contract import SurrogateContract
from tolerances import CERTIFIED, DOUBLE, VALUE
from torch import nn
from zoo import MODELS, SETS, shaken

from soctk import SOCICNN, ConvexSurrogate, DecisionLayer, ReLUICNN, ValueData, certify, fit, freeze, minimize, save

DENSE = [name for name in MODELS if isinstance(MODELS[name](4), SOCICNN)]
GENERATOR = torch.Generator().manual_seed(5)
POINTS = torch.rand(6, 4, generator=GENERATOR, dtype=DOUBLE)
CONTEXTS = torch.randn(6, 3, generator=GENERATOR, dtype=DOUBLE)


def make(name: str = "soc") -> SOCICNN:
    model = shaken(MODELS[name](4))
    assert isinstance(model, SOCICNN)
    model.set_standardization(
        x=(0.3, torch.linspace(1.0, 2.0, 4)), value=(2.0, 3.0), context=(CONTEXTS[0], CONTEXTS[1].abs())
    )
    return model


def others(model: SOCICNN) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3)
    model.set_standardization(x=(1.0, 2.0))


class TestFrozen(SurrogateContract):
    CASES: ClassVar = {
        "soc": lambda: freeze(make()),
        "softplus": lambda: freeze(make("softplus")),
        "hyperbolic": lambda: freeze(make("hyperbolic")),
        "no_context": lambda: freeze(SOCICNN(3, hidden=(5, 4), quadratics=(3,), norms=(2,), hyperbolics=1)),
    }

    def test_units_are_the_users(self, case) -> None:
        """They are those that the model had: `make` gives it some, and others are refused."""
        with pytest.raises(TypeError, match="frozen model cannot be trained or given other units"):
            case().set_standardization(x=(0.0, 2.0))


@pytest.mark.parametrize("name", DENSE)
def test_values_and_decisions_are_those_of_the_model_then(name: str) -> None:
    model = make(name)
    frozen = freeze(model)
    with torch.no_grad():
        value = model(POINTS, CONTEXTS)
    decision = minimize(model, SETS["budget"](4), CONTEXTS)
    others(model)
    for same in (frozen, copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        with torch.no_grad():
            assert torch.equal(same(POINTS, CONTEXTS), value)
        again = minimize(same, SETS["budget"](4), CONTEXTS)
        assert torch.equal(again.x, decision.x)
        assert torch.equal(again.lower_bound, decision.lower_bound)
        assert bool((certify(same, SETS["budget"](4), decision.x, CONTEXTS).relative_gap <= CERTIFIED).all())
    assert not torch.equal(model(POINTS, CONTEXTS), value)


@pytest.mark.parametrize("name", DENSE)
def test_it_has_the_model_s_derivatives_and_no_weights(name: str) -> None:
    model = make(name)
    with torch.inference_mode():
        frozen = freeze(model)
    slopes = []
    for function in (model, frozen):
        x, context = POINTS.clone().requires_grad_(), CONTEXTS.clone().requires_grad_()
        slopes.append(torch.autograd.grad(function(x, context).sum(), (x, context)))
    for expected, found in zip(*slopes, strict=True):
        torch.testing.assert_close(found, expected, rtol=VALUE[DOUBLE], atol=VALUE[DOUBLE])
    assert not list(frozen.parameters())
    assert frozen.parameter_count == model.parameter_count


def test_decisions_are_differentiable_in_the_context() -> None:
    model = make()
    slopes = []
    for function in (model, freeze(model)):
        context = CONTEXTS.clone().requires_grad_()
        DecisionLayer(function, SETS["budget"](4))(context).square().sum().backward()
        slopes.append(context.grad)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-6, atol=1e-8)


def test_single_precision() -> None:
    model = make().to(torch.float32)
    assert isinstance(model, SOCICNN)
    frozen = freeze(model)
    with torch.no_grad():
        assert torch.equal(frozen(POINTS.float(), CONTEXTS.float()), model(POINTS.float(), CONTEXTS.float()))
    assert frozen.dtype == torch.float32
    assert bool(minimize(frozen, SETS["box"](4), CONTEXTS.float(), tol=1e-4).optimal.all())


REFUSED: list[Callable[[ConvexSurrogate], object]] = [
    lambda frozen: fit(frozen, ValueData(CONTEXTS, POINTS.unsqueeze(1), POINTS.sum(dim=-1, keepdim=True))),
    lambda frozen: frozen.load_state_dict(make().state_dict()),
    lambda frozen: frozen.to(torch.float32),
    lambda frozen: frozen.float(),
]


@pytest.mark.parametrize("change", REFUSED)
def test_it_refuses_changes(change: Callable[[ConvexSurrogate], object]) -> None:
    with pytest.raises(TypeError, match="frozen model cannot be"):
        change(freeze(make()))


def test_it_is_not_saved(tmp_path) -> None:
    with pytest.raises(NotImplementedError, match="cannot be saved"):
        save(freeze(make()), tmp_path / "model")
    assert not list(tmp_path.iterdir())


class Mine(ReLUICNN):
    """Of one's own, with a function that the context map does not tell."""

    def _conic_form(self, context):
        form = super()._conic_form(context)
        return dataclasses.replace(form, constant=form.constant + 1.0)


class Renamed(ReLUICNN):
    """Of one's own, with nothing changed."""


def hooked() -> SOCICNN:
    model = make()
    model.affine.register_forward_hook(lambda module, arguments, answer: answer)
    return model


def with_another_module() -> SOCICNN:
    model = make()
    model.d[0] = nn.Linear(3, 2, dtype=DOUBLE)
    return model


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: MODELS["ickan"](4), "expected a dense model.*ICKAN"),
        (lambda: Mine(4, 3), "Mine, which has its own _conic_form"),
        (hooked, "AffinePart: expected no hooks"),
        (with_another_module, "Offset: expected one .*Linear"),
    ],
)
def test_what_cannot_be_frozen_is_told(other: Callable[[], SOCICNN], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        freeze(other())


def test_a_class_of_ones_own_with_the_same_function_is_frozen() -> None:
    model = Renamed(4, 3)
    with torch.no_grad():
        assert torch.equal(freeze(model)(POINTS, CONTEXTS), model(POINTS, CONTEXTS))
        assert torch.equal(freeze(freeze(model))(POINTS, CONTEXTS), model(POINTS, CONTEXTS))
