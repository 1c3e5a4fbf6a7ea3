"""The dense SOC-ICNN family against the contract, the paper's sizes, and what its weights must satisfy."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
import torch
from surrogate_contract import SurrogateContract, inputs
from tolerances import DOUBLE, GRADIENT, SINGLE, VALUE, close
from torch import nn
from zoo import shaken

from soctk import SOCICNN, ConicForm, NormICNN, QuadICNN, ReLUICNN, Simplex, SoftplusICNN, minimize, prepare


class TestBranches(SurrogateContract):
    CASES: ClassVar = {
        "relu": lambda: ReLUICNN(4, 2, hidden=(6, 5)),
        "softplus": lambda: SoftplusICNN(4, 2, hidden=(6, 5)),
        "quad": lambda: QuadICNN(4, 2),
        "norm": lambda: NormICNN(4, 2),
        "soc": lambda: SOCICNN(4, 2, hidden=(6, 5), quadratics=(4, 2), norms=(3, 2, 3)),
    }


class TestOptions(SurrogateContract):
    CASES: ClassVar = {
        "no_context": lambda: SOCICNN(3, hidden=(5, 4), quadratics=(3,), norms=(2,)),
        "additive": lambda: SOCICNN(3, 2, quadratics=(3,), norms=(3,), conditioning="additive"),
        "constant_weights": lambda: SOCICNN(3, 2, quadratics=(3,), norms=(3,), conditioning="affine"),
        "no_passthrough": lambda: SOCICNN(3, 2, hidden=(5, 4, 3), passthrough=False),
        "hyperbolic": lambda: SOCICNN(3, 2, hidden=(), diagonal=True, hyperbolics=4),
        "no_backbone": lambda: SOCICNN(3, 2, hidden=(), quadratics=(2,), norms=(1, 2)),
        "no_affine_part": lambda: SOCICNN(3, 2, hidden=(4,), linear=False),
        "shared_slope": lambda: SOCICNN(3, 2, hidden=(4,), slope_hidden=5, level_squares=True),
        "context_units": lambda: SOCICNN(
            3, 2, hidden=(4,), quadratics=(2,), norms=(2, 3), slope_hidden=5, level_squares=True, context_units=6
        ),
        "units_of_constant_weights": lambda: SOCICNN(3, 2, norms=(2,), conditioning="affine", context_units=2),
        "diagonal_weights": lambda: SOCICNN(3, 2, hidden=(), quadratics=(2,), diagonal=True, diagonal_weights=True),
        "width_one": lambda: SOCICNN(3, 1, hidden=(1,), quadratics=(1,), norms=(1,), hyperbolics=1),
        "one_dimension": lambda: SOCICNN(1, 1, hidden=(3,), quadratics=(1,), norms=(1,), hyperbolics=2, diagonal=True),
    }


def by_modules(model: SOCICNN, context: torch.Tensor) -> ConicForm:
    """Return the form at contexts (N, p), every coefficient from its own module."""
    b0, v = model.affine(context)
    form, terms = model._conic_form(context), []
    for part, term in zip(model.parts(), form.terms, strict=True):
        offset = torch.cat([module(model.units(context)) for module in part.offsets], dim=-1)
        weights = part.weights(model.units(context))[..., list(part.index)]
        terms.append(dataclasses.replace(term, offset=offset, weights=weights))
    return ConicForm(b0, v, tuple(terms), form.batch_shape)


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
@pytest.mark.parametrize("name", [*TestBranches.CASES, *TestOptions.CASES])
def test_the_context_map_is_that_of_the_modules(name: str, dtype: torch.dtype) -> None:
    model = shaken((TestBranches.CASES | TestOptions.CASES)[name]()).to(dtype)
    x, context = inputs(model, 7)
    context = torch.zeros(1, 0, dtype=dtype) if context is None else context.to(dtype)
    points = x.to(dtype).unsqueeze(1)
    mapped, expected = model._conic_form(context), by_modules(model, context)
    for found, wanted in zip(mapped._tensors(), expected._tensors(), strict=True):
        assert found.shape == wanted.shape  # what no context moves is there once
        close(found, wanted, VALUE)
    weights = list(model.parameters())
    slopes = [torch.autograd.grad(f.evaluate(points).sum(), weights, allow_unused=True) for f in (mapped, expected)]
    for weight, found, wanted in zip(weights, *slopes, strict=True):
        zero = torch.zeros_like(weight)
        close(zero if found is None else found, zero if wanted is None else wanted, GRADIENT)


def test_a_subclass_is_asked_for_its_own_form_and_parts() -> None:
    class Raised(SOCICNN):
        share = 1.0

        def _conic_form(self, context):
            form = super()._conic_form(context)
            return dataclasses.replace(form, constant=form.constant + 1.0)

        def parts(self):
            return [
                dataclasses.replace(part, matrices=[self.share * m for m in part.matrices]) for part in super().parts()
            ]

    x, context = inputs(model := Raised(4, 2, seed=1), 5)
    with torch.no_grad():
        close(model(x, context), SOCICNN(4, 2, seed=1)(x, context) + 1.0, VALUE)
        model.share = 0.5
        close(model(x, context), model.conic_form(context).value(x), VALUE)
    for decision in (minimize(model, Simplex(4), context), prepare(model, Simplex(4)).minimize(context)):
        close(decision.value, model(decision.x, context).detach(), VALUE)


def test_modules_inside_have_no_hooks_and_are_no_others() -> None:
    """Coefficients are read from the weights together: whatever else a module inside would do is not passed over."""
    x, context = inputs(SOCICNN(4, 2), 3)

    def hooked(model: SOCICNN) -> None:
        model.b[0].register_forward_hook(lambda module, arguments, answer: answer + 1.0)

    def hooked_before(model: SOCICNN) -> None:
        model.c.register_forward_pre_hook(lambda module, arguments: None)

    def another(model: SOCICNN) -> None:
        model.b[0] = nn.Linear(2, 8, dtype=DOUBLE)

    def patched(model: SOCICNN) -> None:
        model.b[0].forward = lambda context: torch.zeros(1, 1, 8, dtype=DOUBLE)

    for change, message in (
        (hooked, "no hooks"),
        (hooked_before, "no hooks"),
        (another, "Linear"),
        (patched, "Offset"),
    ):
        model = SOCICNN(4, 2)
        change(model)
        for call in (lambda: model(x, context), lambda: minimize(model, Simplex(4), context)):  # noqa: B023
            with pytest.raises(TypeError, match=message):
                call()


def test_parametrised_weights_are_those_that_count() -> None:
    class Doubled(nn.Module):
        def forward(self, weight):
            return 2.0 * weight

    model, (x, context) = SOCICNN(4, 2, norms=(2,), seed=1), inputs(SOCICNN(4, 2), 3)
    twice = SOCICNN(4, 2, norms=(2,), seed=1)
    nn.utils.parametrize.register_parametrization(model.d[0], "slope", Doubled())
    with torch.no_grad():
        twice.d[0].slope.mul_(2.0)
    close(model(x, context), twice(x, context), VALUE)
    close(minimize(model, Simplex(4), context).value, minimize(twice, Simplex(4), context).value, VALUE)


# -- under PyTorch's transformations ---------------------------------------------------------------------

CONTEXT = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
POINTS = torch.rand(3, 4, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)


def several() -> SOCICNN:
    model = SOCICNN(4, 3, hidden=(5, 4), quadratics=(3,), norms=(2, 3, 2), hyperbolics=2, diagonal=True, seed=3)
    return shaken(model)  # type: ignore[return-value]


def test_values_stay_differentiable_after_an_inference_mode() -> None:
    model = several()
    with torch.inference_mode():
        model(POINTS, CONTEXT)
    points = POINTS.clone().requires_grad_()
    model(points, CONTEXT).sum().backward()
    assert all(tensor.grad is not None for tensor in (points, *model.U_raw, *model.W))


def test_values_under_transformations_of_the_weights() -> None:
    model = several()
    weights = {name: weight.detach() + 0.1 for name, weight in model.named_parameters()}
    pairs = {name: torch.stack([weight, weight + 0.1]) for name, weight in weights.items()}

    def value(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, given, (POINTS[0], CONTEXT[0]))

    both = torch.func.vmap(value)(pairs)
    for k in range(2):
        close(both[k], value({name: weight[k] for name, weight in pairs.items()}), VALUE)


def test_values_inside_transformations_of_the_inputs() -> None:
    x, context, model = POINTS[0], CONTEXT[0], several()
    exact = torch.autograd.functional.jacobian(lambda point: model(point, context), x)

    def penalty(point: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = model(point, context)
        return (model(point, context) - target + 1.0).square()

    close(torch.func.grad(penalty)(x), 2 * exact, VALUE)
    with torch.no_grad():
        _, moved = torch.func.jvp(lambda point: model(point, context), (x,), (torch.ones_like(x),))
    close(moved, exact.sum(), VALUE)


def test_values_with_stand_ins_for_weights() -> None:
    model = several()
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def value(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, given, (POINTS, CONTEXT))

    with torch.no_grad():
        close(torch.func.functionalize(value)(weights), model(POINTS, CONTEXT), VALUE)
        with torch.autograd.forward_ad.dual_level():
            pairs = {k: torch.autograd.forward_ad.make_dual(w, torch.ones_like(w)) for k, w in weights.items()}
            assert torch.autograd.forward_ad.unpack_dual(value(pairs)).tangent is not None
        close(value(weights), model(POINTS, CONTEXT), VALUE)


def test_a_precision_unknown_to_numpy() -> None:
    model = several()
    with torch.no_grad():
        exact = model(POINTS, CONTEXT)
        rounded = model.to(torch.bfloat16)(POINTS.float(), CONTEXT.float())
    torch.testing.assert_close(rounded.double(), exact, rtol=0.1, atol=0.1)


# -- sizes and weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "width", "count"), [(5, 16, 527), (10, 20, 1083), (20, 24, 2451), (50, 32, 9423)])
def test_the_papers_parameter_counts(dim: int, width: int, count: int) -> None:
    model = SOCICNN(dim, hidden=(width, width), quadratics=(dim,), norms=(dim,), linear=False)
    assert model.parameter_count == count


def switch_off(model: SOCICNN) -> None:
    """Set alpha and lambda to exactly zero: softplus underflows."""
    with torch.no_grad():
        for branch in (model.alpha, model.lam):
            for weight in branch.parameters():
                weight.fill_(-1e4)
            if branch.slope is not None:
                branch.slope.zero_()


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_zero_branches_equal_the_plain_relu_model(dtype: torch.dtype) -> None:
    model = SOCICNN(4, 2, hidden=(6, 5), quadratics=(4,), norms=(3,), dtype=dtype)
    plain = ReLUICNN(4, 2, hidden=(6, 5), dtype=dtype)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k in plain.state_dict()})
    switch_off(model)
    x, context = inputs(model, 7)
    x, context = x.to(dtype), context.to(dtype)
    x.requires_grad_()
    close(model(x, context).detach(), plain(x, context).detach(), VALUE)
    (gradient,) = torch.autograd.grad(model(x, context).sum(), x)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_the_gradient_is_finite_at_a_norms_apex(dtype: torch.dtype) -> None:
    model = SOCICNN(3, hidden=(), norms=(3, 1), hyperbolics=1, dtype=dtype)
    with torch.no_grad():
        for offset in [*model.d, model.d_hyperbolic]:
            offset.constant.zero_()
        model.kappa.zero_()
    x = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    model(x).sum().backward()
    assert torch.equal(x.grad, model.affine(torch.zeros(1, 0))[1].detach()[0].expand(2, 3))
    assert all(bool(torch.isfinite(w.grad).all()) for w in model.parameters() if w.grad is not None)
    torch.testing.assert_close(model.conic_form().gradient(x.detach()).to(dtype), x.grad)


def test_single_precision_weights_take_double_precision_inputs() -> None:
    """Computed in the higher of the two precisions: the weights are rounded, the arithmetic is not."""
    model = SOCICNN(3, 2, hidden=(4,), quadratics=(3,), norms=(2,), seed=1, dtype=SINGLE)
    double = SOCICNN(3, 2, hidden=(4,), quadratics=(3,), norms=(2,), seed=2)
    double.load_state_dict(model.state_dict())
    x, context = inputs(model, 5)
    for given in ((x, context), (x.float(), context), (x, context.float())):
        assert model(*given).dtype == given[0].dtype
        # The weights that depend on the context are computed in float32.
        torch.testing.assert_close(model(*given).double(), double(x, context), rtol=1e-5, atol=1e-5)
    assert model.conic_form(context).dtype == DOUBLE
    decision = minimize(model, Simplex(3), context)
    assert decision.x.dtype == DOUBLE
    assert (decision.status == "optimal").all()


def test_additive_conditioning_moves_offsets_only() -> None:
    model = SOCICNN(3, 2, hidden=(4,), quadratics=(3,), norms=(3,), conditioning="additive")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1)
    form = model.conic_form(torch.randn(5, 2, dtype=DOUBLE))
    assert form.linear.shape[0] == 1 or bool((form.linear == form.linear[:1]).all())
    for term in form.terms:
        assert term.weights.shape[0] == 1 or bool((term.weights == term.weights[:1]).all())
        assert bool((term.offset != term.offset[:1])[1:].any())


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second, other = (SOCICNN(4, 2, quadratics=(2,), norms=(2,), seed=s) for s in (3, 3, 4))
    x, context = inputs(first, 5)
    assert torch.equal(first(x, context), second(x, context))
    assert not torch.equal(first(x, context), other(x, context))
    assert SOCICNN(**first.config())(x, context).equal(first(x, context))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim"),
        ({"context_dim": -1}, "context_dim"),
        ({"hidden": (4, 0)}, "hidden"),
        ({"quadratics": (0,)}, "quadratics"),
        ({"norms": (-1,)}, "norms"),
        ({"hyperbolics": -1}, "hyperbolics"),
        ({"hyperbolics": 1.5}, "hyperbolics"),
        ({"activation": "tanh"}, "activation.*relu"),
        ({"conditioning": "half"}, "conditioning.*full"),
    ],
)
def test_bad_sizes_and_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SOCICNN(**{"dim": 3, **options})


def test_weights_that_are_not_finite_are_refused_by_name() -> None:
    model = SOCICNN(3, hidden=(4, 4), quadratics=(2,), norms=(2,))
    for weight, name in (
        (model.U_raw[0], "network.U2"),
        (model.W[0], "network.A"),
        (model.B[0], "quadratic.A"),
        (model.lam.floor, "norms.lambda"),
        (model.affine.slope.constant, "v"),
    ):
        before = weight.detach().clone()
        with torch.no_grad():
            weight.view(-1)[0] = torch.nan
        with pytest.raises(ValueError, match=f"^{name}: "):
            model.conic_form()
        with torch.no_grad():
            weight.copy_(before)
    model.conic_form()


@pytest.mark.parametrize("conditioning", ["full", "affine", "additive"])
def test_conditioning_says_what_the_context_moves(conditioning: str) -> None:
    model = shaken(SOCICNN(3, 2, hidden=(), quadratics=(2,), conditioning=conditioning))
    form = model._conic_form(torch.tensor([[0.0, 0.0], [1.0, -2.0]], dtype=DOUBLE))
    moved = {"linear": form.linear, "offset": form.terms[0].offset, "weights": form.terms[0].weights}
    expected = {"full": {"linear", "offset", "weights"}, "affine": {"linear", "offset"}, "additive": {"offset"}}
    found = {name for name, value in moved.items() if len(value) == 2 and not torch.equal(value[0], value[1])}
    assert found == expected[conditioning]
