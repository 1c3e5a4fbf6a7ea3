"""Networks of plain torch modules as surrogates: the same values, decided with certificates, and nothing else taken."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from surrogate_contract import SurrogateContract
from tolerances import CERTIFIED, DOUBLE, VALUE, close
from torch import Tensor, nn
from torch.nn.functional import softplus
from unchecked import write_unchecked

import soctk
from soctk import Box, ConvexSurrogate, from_layers

n, p, WIDTHS = 4, 3, (6, 5, 4)


class Network(nn.Module):
    """An input-convex network as people write them: U >= 0 by softplus, x into every layer, a context beside it."""

    def __init__(self, activation: str = "relu", passthrough: bool = True) -> None:
        super().__init__()
        sizes = [*WIDTHS, 1]
        self.activation = {"relu": torch.relu, "softplus": lambda a: a.clamp(min=0) + torch.log1p((-a.abs()).exp())}[
            activation
        ]
        first, rest = nn.Linear(n, sizes[0]), [nn.Linear(n, size, bias=True) for size in sizes[1:]]
        if not passthrough:
            for layer in rest[:-1]:
                nn.init.zeros_(layer.weight)
        self.x = nn.ModuleList([first, *rest])
        self.context = nn.ModuleList(nn.Linear(p, size, bias=False) for size in sizes)
        self.tilt = nn.Linear(p, n, bias=False)
        self.raw = nn.ParameterList(torch.randn(out, into) for into, out in pairwise(sizes))
        self.double()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        z = self.activation(self.x[0](x) + self.context[0](context))
        for k, raw in enumerate(self.raw, start=1):
            z = self.x[k](x) + self.context[k](context) + z @ softplus(raw).mT
            z = z if k == len(self.raw) else self.activation(z)
        return z.squeeze(-1) + (self.tilt(context) * x).sum(dim=-1)


def arguments(network: Network) -> dict[str, Any]:
    return {
        "input_weights": [layer.weight for layer in network.x[:-1]],
        "biases": [layer.bias for layer in network.x[:-1]],
        "hidden_weights": [softplus(raw) for raw in network.raw[:-1]],
        "output_weights": softplus(network.raw[-1]),
        "output_bias": network.x[-1].bias,
        "linear": network.x[-1].weight,
        "context_weights": [layer.weight for layer in network.context[:-1]],
        "linear_context_weights": network.tilt.weight,
        "output_context_weights": network.context[-1].weight,
    }


def made(activation: str = "relu", passthrough: bool = True) -> tuple[Network, ConvexSurrogate]:
    torch.manual_seed(2)
    network = Network(activation, passthrough)
    given = arguments(network)
    if not passthrough:
        given["input_weights"] = [given["input_weights"][0], None, None]
    return network, from_layers(**given, activation=activation)


def small(**more: Any) -> dict[str, Any]:
    """Return the arguments of a network of two layers of 2 units in 3 variables."""
    ones = np.ones((2, 2))
    return {
        "input_weights": [np.eye(2, 3), np.eye(2, 3)],
        "biases": [np.ones(2), None],
        "hidden_weights": [ones],
        "output_weights": ones[0],
        **more,
    }


class TestLayers(SurrogateContract):
    CASES: ClassVar = {
        "relu": lambda: made()[1],
        "softplus": lambda: made("softplus")[1],
        "no_passthrough": lambda: made(passthrough=False)[1],
        "no_context": lambda: from_layers(**small()),
        "one_layer": lambda: from_layers(input_weights=[torch.ones(2, 3)], output_weights=[1.0, 0.0]),
    }

    def test_units_are_the_users(self, case) -> None:
        super().test_units_are_the_users(case)
        assert case().parameter_count == 0


@pytest.mark.parametrize("activation", ["relu", "softplus"])
@pytest.mark.parametrize("passthrough", [True, False])
def test_values_are_those_of_the_module(activation: str, passthrough: bool, tmp_path) -> None:
    network, model = made(activation, passthrough)
    x, context = 3 * torch.randn(50, n, dtype=DOUBLE), torch.randn(50, p, dtype=DOUBLE)
    expected = network(x, context).detach()
    frozen = soctk.freeze(model)
    soctk.save(model, tmp_path / "model")
    for function in (model, frozen, soctk.load(tmp_path / "model"), soctk.average([model, model])):
        close(function(x, context), expected, VALUE)
    close(model.conic_form(context).value(x), expected, VALUE)


def test_layers_without_passthrough_are_not_multiplied_with() -> None:
    (term,) = made(passthrough=False)[1].conic_form(torch.zeros(p, dtype=DOUBLE)).terms
    assert term.map.used == WIDTHS[0]


@pytest.mark.parametrize("activation", ["relu", "softplus"])
def test_decisions_with_it_are_certified_and_differentiable(activation: str) -> None:
    network, model = made(activation)
    box, context = Box(n, -1.0, 1.0), torch.randn(8, p, dtype=DOUBLE)
    decision = soctk.minimize(model, box, context)
    assert (soctk.certify(model, box, decision.x, context).relative_gap <= CERTIFIED).all()
    points = 2 * torch.rand(500, 8, n, dtype=DOUBLE) - 1
    assert (network(points, context.expand(500, -1, -1)) >= decision.lower_bound).all()
    layer = soctk.DecisionLayer(model, box)
    step, along = 1e-5, torch.randn(8, p, dtype=DOUBLE)
    with torch.no_grad():
        up, down = (network(layer(moved), moved) for moved in (context + step * along, context - step * along))
    (slope,) = torch.autograd.grad(layer.optimal_value(context.requires_grad_()).sum(), context)
    torch.testing.assert_close((slope * along).sum(dim=-1), (up - down) / (2 * step), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_weights": [[[1, 0], [0.5, -0.3]]]}, r"^hidden_weights\[0\]: .*got -0.3 at \(1, 1\); .*softplus"),
        (
            {"hidden_weights": [[[1, 0], [0.5, -1e-9]]]},
            r"^hidden_weights\[0\]: .*got -1e-09 at .*clamp it yourself",
        ),
        ({"output_weights": [1, -2]}, r"^output_weights: expected non-negative .*got -2 at \(1,\)"),
        ({"output_weights": None}, r"^output_weights: expected numbers \(h_L,\), got None"),
        ({"hidden_weights": [np.ones((2, 3))]}, r"^hidden_weights\[0\]: expected shape \(2, 2\), got \(2, 3\)"),
        ({"hidden_weights": []}, r"^hidden_weights: expected 1, one for every layer but the first, got 0"),
        ({"hidden_weights": [None]}, r"^hidden_weights\[0\]: expected a matrix \(h_2, h_1\)"),
        ({"input_weights": [None, np.eye(2, 3)]}, r"^input_weights: .*first layer at index 0"),
        ({"input_weights": []}, r"^input_weights: .*first layer at index 0"),
        ({"input_weights": [np.eye(2, 3), np.eye(2)]}, r"^input_weights\[1\]: expected shape \(2, 3\), got \(2, 2\)"),
        ({"input_weights": [np.ones(3), None]}, r"^input_weights\[0\]: expected a matrix"),
        ({"biases": [np.ones(2)]}, r"^biases: expected 2, one for every layer, got 1"),
        ({"biases": [np.ones(2), [np.nan, 0]]}, r"^biases\[1\]: expected finite numbers, got nan at coordinate 0"),
        ({"output_weights": np.ones(3)}, r"^output_weights: expected shape \(2,\), got \(3,\)"),
        ({"linear": np.ones(2)}, r"^linear: expected shape \(3,\), got \(2,\)"),
        ({"context_weights": [np.ones((2, 4)), np.ones((2, 3))]}, r"^context_weights\[1\]: expected shape \(2, 4\)"),
        ({"linear_context_weights": np.ones((4, 1))}, r"^linear_context_weights: expected shape \(3, 1\)"),
        ({"output_bias": [1, 2]}, r"^output_bias: expected shape \(1,\), got \(2,\)"),
        ({"activation": "tanh"}, "^activation: expected one of relu, softplus"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_layers(**small(**change))


def test_a_file_with_a_negative_mixing_weight_is_refused(tmp_path) -> None:
    model = from_layers(**small())
    model.U2[0, 0] = -1.0
    with pytest.raises(ValueError, match=r"network\.U2: expected non-negative"):
        soctk.save(model, tmp_path / "model")
    write_unchecked(model, tmp_path / "model")
    with pytest.raises(soctk.CheckpointError, match=r"network\.U2: expected non-negative"):
        soctk.load(tmp_path / "model")


@pytest.mark.parametrize(
    "use",
    [
        lambda network: soctk.fit(network, soctk.ValueData.__new__(soctk.ValueData)),
        soctk.freeze,
        lambda network: soctk.average([network]),
        lambda network: soctk.save(network, "nowhere"),
        lambda network: soctk.to_onnx(network, "nowhere"),
        lambda network: soctk.Embedding(network, None),
        lambda network: soctk.minimize(network, soctk.Box(2)),
        lambda network: soctk.prepare(network, soctk.Box(2)),
        lambda network: soctk.certify(network, soctk.Box(2), [0.0, 0.0]),
        lambda network: soctk.DecisionLayer(network, soctk.Box(2)),
    ],
)
def test_a_module_that_is_no_surrogate_is_sent_here(use: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a soctk surrogate, got Network; soctk\.from_layers"):
        use(Network())
