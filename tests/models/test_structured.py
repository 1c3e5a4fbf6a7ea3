"""Convolutional and recurrent models: the contract, the lift and the dual of every variant, sizes and structures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import cvxpy as cp
import pytest
import torch
from surrogate_contract import SurrogateContract, inputs
from tolerances import CERTIFIED, CLARABEL, DOUBLE, IMPLICIT_P90, SINGLE, VALUE, close
from zoo import shaken

import soctk
from soctk.models.structured import VARIANTS, StructuredICNN

DUAL_GAP = 1e-10
MIXED = (
    3,
    {"channels": 2, "stride": 2},
    {"kind": "transposed", "channels": 2, "stride": 2, "kernel": 2},
    {"kind": "pool", "kernel": 2, "stride": 2},
    {"channels": 3, "kernel": 1},
    {"channels": 2, "dilation": 2},
)


def conv(variant: str = "soc", **options: Any) -> StructuredICNN:
    sizes = {"layers": (3, 2), "quadratics": 3, "quadratic_kernel": 3, "norms": 2, "whole_norms": 1, "affine_hidden": 2}
    return shaken(soctk.ConvSOCICNN((6, 6), variant=variant, **{**sizes, **options}))  # type: ignore[return-value,arg-type]


def recurrent(variant: str = "soc", **options: Any) -> StructuredICNN:
    sizes = {"hidden": 4, "quadratics": 3, "norms": 2, "norm_size": 2, "whole_norms": 1, "affine_hidden": 2}
    return shaken(soctk.RecurrentSOCICNN(6, 2, 3, variant=variant, **{**sizes, **options}))  # type: ignore[return-value,arg-type]


def with_branch(maker: Callable[..., StructuredICNN], **options: Any) -> Callable[[], StructuredICNN]:
    return lambda: maker(**options)


MODELS = {
    **{f"conv_{variant}": with_branch(conv, variant=variant) for variant in VARIANTS},
    **{f"recurrent_{variant}": with_branch(recurrent, variant=variant) for variant in VARIANTS},
    "conv_layers": with_branch(conv, layers=MIXED),
    "conv_softplus_layers": with_branch(conv, variant="softplus", layers=MIXED),
    "conv_no_context": with_branch(conv, context_channels=0),
    "conv_no_backbone": with_branch(conv, layers=()),
    "recurrent_varying": with_branch(recurrent, time_varying=True),
    "recurrent_no_backbone": with_branch(recurrent, hidden=0),
}


class TestSmall(SurrogateContract):
    CASES: ClassVar = {
        "conv": lambda: shaken(soctk.ConvSOCICNN((2, 2), layers=(2, 2), quadratics=2, whole_norms=1, affine_hidden=2)),
        "conv_softplus": lambda: shaken(soctk.ConvSOCICNN((2, 2), variant="softplus", layers=(2, 2), affine_hidden=2)),
        "recurrent": lambda: shaken(
            soctk.RecurrentSOCICNN(3, 1, 2, hidden=2, quadratics=2, whole_norms=1, affine_hidden=2)
        ),
        "recurrent_relu": lambda: shaken(soctk.RecurrentSOCICNN(3, 2, 0, variant="relu", hidden=3)),
    }


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def model(request) -> StructuredICNN:
    return request.param()


def test_the_value_is_that_of_the_lift_and_of_the_dual(model: StructuredICNN) -> None:
    x, context = inputs(model, 4)
    values = model(x, context).detach()
    form = model.conic_form(context).detach()
    close(form.value(x), values, VALUE)
    dual = form.dual(x)
    assert float((form.dual_value(dual, x) - values).abs().max()) <= DUAL_GAP
    assert float(form.dual_violation(dual).max()) <= DUAL_GAP
    single = model.conic_form(None if context is None else context[0])
    solution = single.cone_program(x[0]).solve()
    assert solution.value == pytest.approx(values[0].item(), abs=CLARABEL)
    problem = single.lift(x[0])
    problem.solve(solver="CLARABEL")
    assert problem.value == pytest.approx(values[0].item(), abs=CLARABEL)


def test_the_cvxpy_expression_has_the_value(model: StructuredICNN) -> None:
    x, context = inputs(model, 2)
    variable = cp.Variable(model.dim)
    expression = model.to_cvxpy(variable, None if context is None else context[1])
    assert expression.is_convex()
    variable.value = x[1].numpy()
    assert expression.value == pytest.approx(model(x, context)[1].item(), rel=1e-9, abs=1e-9)


def test_it_can_be_embedded_and_copied_at_a_context(model: StructuredICNN) -> None:
    x, context = inputs(model, 2)
    single = None if context is None else context[1]
    value = model(x[1], single).item()
    exact = soctk.ExactSurrogate.of(model.conic_form(single).detach())
    assert exact(x[1]).item() == pytest.approx(value, rel=1e-12, abs=1e-12)
    if context is not None:
        variable = cp.Variable(model.dim)
        embedded = soctk.Embedding(model, variable)
        embedded.set_context(context[1])
        problem = cp.Problem(cp.Minimize(embedded.value), [*embedded.constraints, variable == x[1].numpy()])
        problem.solve(solver="CLARABEL")
        assert problem.value == pytest.approx(value, rel=CLARABEL, abs=CLARABEL)


def test_decisions_are_certified(model: StructuredICNN) -> None:
    _, context = inputs(model, 3)
    box = soctk.Box(model.dim, -1.0, 1.0)
    decision = soctk.minimize(model, box, context, scale=0.5)
    assert set(map(str, decision.status.reshape(-1))) == {"optimal"}
    assert float(decision.gap.max()) <= 2 * CERTIFIED
    method = "first_order" if model.has_backbone else "newton_cg"
    other = soctk.minimize(model, box, context, tol=1e-4, method=method)
    assert float((other.value - decision.value).abs().max()) <= 3e-4


@pytest.mark.parametrize("maker", [conv, recurrent])
def test_decisions_are_differentiable_in_the_kernels(maker) -> None:
    """Through maps whose numbers are sums of weights: against central differences, a kernel's entry at a time."""
    model = maker("quad", **({"layers": ()} if maker is conv else {"hidden": 0}), quadratics=8)
    _, context = inputs(model, 2)
    layer = soctk.DecisionLayer(model, soctk.Box(model.dim, -9.0, 9.0))  # inside of which the optima lie
    kernel = model.branches["quadratic"].kernel
    direction = torch.randn(2, model.dim, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    (slopes,) = torch.autograd.grad((layer(context) * direction).sum(), kernel)
    step = 1e-4  # at 1e-5 what a tolerance of 1e-9 leaves of the decisions would show
    for place in ((0, 0), (1, 2)):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                kernel[place] += sign * step
                ends.append(float((layer(context) * direction).sum()))
                kernel[place] -= sign * step
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(
            float(slopes[place]), rel=IMPLICIT_P90, abs=IMPLICIT_P90
        )


def test_files_and_single_precision(model: StructuredICNN, tmp_path) -> None:
    model.set_standardization(x=(0.2, 1.5), value=(1.0, 3.0))
    x, context = inputs(model, 3)
    soctk.save(model, tmp_path / "model")
    assert torch.equal(soctk.load(tmp_path / "model")(x, context), model(x, context))
    expected = model(x, context).detach()
    half = model.to(SINGLE)
    close(half(x.float(), None if context is None else context.float()).detach(), expected.float(), VALUE)


def test_features_give_the_value(model: StructuredICNN) -> None:
    x = torch.randn(2, 3, model.dim, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    context = torch.randn(2, model.context_dim, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    close(model.value_of(x, context, model.features(x, context)), model._value(x, context), VALUE)


@pytest.mark.parametrize("maker", [conv, recurrent])
def test_hidden_weights_are_not_negative_whatever_is_learned(maker) -> None:
    model = maker("relu")
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(-3 * weight.abs() - 1)
    for matrix in model.conic_form(torch.zeros(model.context_dim)).detach().network.mixing:
        numbers = matrix if isinstance(matrix, torch.Tensor) else matrix.values
        assert float(numbers.min()) > 0


def test_a_mask_can_switch_a_residual_off() -> None:
    """The gate multiplies the square: M * (H X - Y) is representable, and M = 0 leaves nothing of it."""
    model = soctk.ConvSOCICNN((4, 4), variant="quad", layers=(), quadratics=1)
    with torch.no_grad():
        model.branches["quadratic"].gate.copy_(torch.tensor([[0.0, 1.0]]))
    x, context = inputs(model, 3)
    context[:, 16:] = (context[:, 16:] > 0).double()
    context[1, 16:] = 0.0
    context[2, 16:] = -1.0  # no mask: counts as 0
    values = model(x, context).detach()
    assert float(values[0]) > 0
    assert float(values[1:].abs().max()) == 0.0


def test_kernels_serve_images_and_sequences_of_any_size() -> None:
    small = conv(layers=(3,), whole_norms=0)
    large = small.resized((9, 12))
    assert large.parameter_count == small.parameter_count
    assert large.dim == 108
    # A constant image in constant surroundings: away from the border every place adds the same.
    inside = conv("norm", layers=(), whole_norms=0, affine_hidden=0)
    wide = inside.resized((8, 11))
    ones = [torch.full((part.dim,), 0.7, dtype=DOUBLE) for part in (inside, wide)]
    fields = [torch.full((part.context_dim,), 0.3, dtype=DOUBLE) for part in (inside, wide)]
    with torch.no_grad():
        for part in (inside, wide):
            part.context_affine.direct.zero_()
    close(wide(ones[1], fields[1]), inside(ones[0], fields[0]), VALUE)
    assert recurrent().resized(9).dim == 18
    assert recurrent().to(SINGLE).resized(9).dtype == SINGLE
    inside.context_mean[0] += 1.0
    with pytest.raises(ValueError, match="context_mean: expected the same units everywhere"):
        inside.resized((8, 11))
    with pytest.raises(ValueError, match="steps: weights that vary in time"):
        recurrent(time_varying=True).resized(9)


def test_the_same_seed_gives_the_same_weights() -> None:
    for maker in (conv, recurrent):
        first, second, other = (maker(seed=seed) for seed in (3, 3, 4))
        x, context = inputs(first, 3)
        assert torch.equal(first(x, context), second(x, context))
        assert not torch.equal(first(x, context), other(x, context))
        assert type(first)(**first.config()).config() == first.config()


def test_structures_switch_the_backbone() -> None:
    model = recurrent()
    assert model.structure_count == 2
    everything = model.parameter_count
    model.set_structure(0)
    assert model.conic_form(torch.zeros(model.context_dim)).network is None
    assert model.parameter_count == everything - sum(weight.numel() for weight in model.backbone.parameters())
    assert recurrent("relu").structure_count == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: soctk.ConvSOCICNN((4,)), "shape"),
        (lambda: soctk.ConvSOCICNN((4, 0)), "shape"),
        (lambda: soctk.ConvSOCICNN((4, 4), masks=(2,)), "masks"),
        (lambda: soctk.ConvSOCICNN((4, 4), variant="tanh"), "variant"),
        (lambda: soctk.ConvSOCICNN((4, 4), layers=({"kind": "max", "channels": 2},)), "layers.*kind"),
        (lambda: soctk.ConvSOCICNN((4, 4), layers=({"kind": "pool"},)), "layers.*first"),
        (lambda: soctk.ConvSOCICNN((4, 4), layers=({"width": 3},)), "layers.*keys"),
        (lambda: soctk.ConvSOCICNN((4, 4), layers=(0,)), "layers"),
        (lambda: soctk.RecurrentSOCICNN(0, 2), "steps"),
        (lambda: soctk.RecurrentSOCICNN(4, 2, norms=-1), "norms"),
        (lambda: soctk.RecurrentSOCICNN(4, 2, variant="lstm"), "variant"),
        (lambda: soctk.RecurrentSOCICNN(4, 2, structure=2), "structure"),
    ],
)
def test_bad_sizes_and_options_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
