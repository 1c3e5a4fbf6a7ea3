"""The derivatives of a fit: by the model's parts as value by value, whatever the model is made of."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tolerances import DOUBLE, VALUE

import soctk
from soctk.learn.residuals import Residuals
from soctk.learn.units import Standardized
from soctk.traits import TrainingTraits

DIM, P = 4, 3
MODELS = {
    "soc": lambda: soctk.make_surrogate("soc", DIM, P),
    "relu": lambda: soctk.make_surrogate("relu", DIM, P),
    "softplus, deep": lambda: soctk.SoftplusICNN(DIM, P, hidden=(3, 4, 2)),
    "norm": lambda: soctk.make_surrogate("norm", DIM, P),
    "quad, no passthrough": lambda: soctk.QuadICNN(DIM, P, hidden=(3, 4), passthrough=False),
    "additive": lambda: soctk.SOCICNN(DIM, P, diagonal=True, norms=(2,), conditioning="additive"),
    "no context": lambda: soctk.SOCICNN(DIM, 0, diagonal=True, quadratics=(2,), norms=(2, 3), hyperbolics=2),
    "norms of two sizes": lambda: soctk.SOCICNN(DIM, P, hidden=(), norms=(2, 3, 2), level_squares=True),
    "shared slope": lambda: soctk.SOCICNN(DIM, P, diagonal=True, diagonal_weights=True, slope_hidden=3),
    "context units": lambda: soctk.SOCICNN(
        DIM, P, hidden=(3, 2), diagonal=True, quadratics=(2,), norms=(2, 3, 2), hyperbolics=2, context_units=3
    ),
    "units of constant weights": lambda: soctk.SOCICNN(DIM, P, norms=(2,), conditioning="affine", context_units=2),
    "no slope": lambda: soctk.SOCICNN(DIM, P, quadratics=(DIM,), linear=False),
}


class ByValue(soctk.SOCICNN):
    """The same function, differentiated value by value."""

    @property
    def traits(self) -> TrainingTraits:
        return dataclasses.replace(super().traits, parts=None)


def moved(name: str) -> soctk.SOCICNN:
    """Return a model with no weight at a special place."""
    model = MODELS[name]()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return model


def data(context_dim: int) -> Standardized:
    generator = torch.Generator().manual_seed(2)
    shapes = (7, context_dim), (7, 11, DIM), (7, 11)
    return Standardized(*(torch.randn(shape, generator=generator, dtype=DOUBLE) for shape in shapes))


RESIDUALS = {
    "projected": Residuals.projected,
    "weighted": lambda part: Residuals.weighted(part, 0.1),
    "projected, focused": lambda part: Residuals.projected(part.focused(2.0)),
    "weighted, focused": lambda part: Residuals.weighted(part.focused(2.0), 0.1),
}


@pytest.mark.parametrize("residuals", RESIDUALS.values(), ids=RESIDUALS)
@pytest.mark.parametrize("name", MODELS)
def test_products_are_the_gradients_of_single_values(name: str, residuals) -> None:
    model = moved(name)
    assert model.traits.parts is not None
    of = residuals(data(model.context_dim))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    found = of.jacobian(model, weights)
    model.__class__ = type("ByValue", (ByValue, type(model)), {})
    expected = of.jacobian(model, weights)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=VALUE[DOUBLE] * float(expected.abs().max()))
    assert float(expected.abs().max()) > 0


def test_some_weights_in_another_order() -> None:
    model = moved("soc")
    of = Residuals.projected(data(P))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    whole = of.jacobian(model, weights).split([weight.numel() for weight in weights], dim=-1)
    for chosen in ([3, 1], [len(weights) - 1]):
        part = of.jacobian(model, [weights[k] for k in chosen])
        torch.testing.assert_close(part, torch.cat([whole[k] for k in chosen], dim=-1))


def test_a_model_that_computes_something_else_is_differentiated_value_by_value() -> None:
    class Doubled(soctk.SOCICNN):
        def _value(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
            return 2 * super()._value(x, context)

    assert Doubled(DIM, P).traits.parts is None


@pytest.mark.parametrize("name", ["soc", "additive", "no context", "shared slope", "no slope"])
def test_the_slopes_jacobian_is_that_of_each_coordinate_in_its_own_weights(name: str) -> None:
    model = moved(name)
    context, part = data(model.context_dim).context, model.traits.affine
    assert part is not None
    weights, found = part.own_slope_parameters(), part.v_jacobian(context)
    v = part.v(context).expand(len(context), 1, DIM)[:, 0]
    for row, i in ((0, 0), (3, DIM - 1), (6, 1)):
        gradients = torch.autograd.grad(v[row, i], weights, retain_graph=True) if weights else ()
        own = [gradient.reshape(DIM, -1)[i] for gradient in gradients]
        expected = torch.cat(own) if own else torch.empty(0, dtype=DOUBLE)
        torch.testing.assert_close(found[i, row], expected, rtol=0.0, atol=VALUE[DOUBLE])
