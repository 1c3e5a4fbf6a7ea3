"""What every surrogate promises. A surrogate's test class supplies CASES only: name -> maker of a model."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import cvxpy as cp
import pytest
import torch
from tolerances import CLARABEL, DOUBLE, INEQUALITY, SINGLE, VALUE, close, size
from torch import Tensor

from soctk import ConvexSurrogate


def inputs(model: ConvexSurrogate, *batch: int, scale: float = 1.0) -> tuple[Tensor, Tensor | None]:
    """Return random points (*batch, n) and contexts (*batch, p), None for p = 0."""
    generator = torch.Generator().manual_seed(7)
    x = scale * torch.randn(*batch, model.dim, generator=generator, dtype=DOUBLE)
    context = torch.randn(*batch, model.context_dim, generator=generator, dtype=DOUBLE)
    return x, context if model.context_dim else None


def pick(context: Tensor | None, index) -> Tensor | None:
    return None if context is None else context[index]


class SurrogateContract:
    @torch.no_grad()
    def test_convex_along_random_segments(self, case) -> None:
        model = case()
        x, context = inputs(model, 200, scale=3.0)
        y = x.flip(0)
        share = torch.rand(200, 1, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
        mixed = model(share * x + (1 - share) * y, context)
        chord = share[:, 0] * model(x, context) + (1 - share[:, 0]) * model(y, context)
        assert float((chord - mixed).min()) >= -INEQUALITY[DOUBLE] * size(chord)
        assert float((chord - mixed).max()) > 1e-3  # and it is not merely affine

    def test_its_gradient_is_a_subgradient(self, case) -> None:
        model = case()
        x, context = inputs(model, 50)
        point = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(point, context).sum(), point)
        gradients = [gradient]
        if model.has_conic_form:
            gradients.append(model.conic_form(context).gradient(x).detach())
        for slope in gradients:
            for other in (x.flip(0), x + 1e-3, 10 * x):
                value = model(other, context).detach()
                slack = value - model(x, context).detach() - (slope * (other - x)).sum(dim=-1)
                assert float(slack.min()) >= -INEQUALITY[DOUBLE] * size(value) * 10

    def test_its_cvxpy_expression_has_its_value(self, case) -> None:
        model = case()
        x, context = inputs(model, 3)
        values = model(x, context)
        for row in range(3):
            variable = cp.Variable(model.dim)
            expression = model.to_cvxpy(variable, pick(context, row))
            assert expression.is_convex()
            problem = cp.Problem(cp.Minimize(expression), [variable == x[row].numpy()])
            problem.solve(solver="CLARABEL")
            assert problem.value == pytest.approx(values[row].item(), rel=CLARABEL, abs=CLARABEL)

    def test_batch_shapes(self, case) -> None:
        model = case()
        x, context = inputs(model, 2, 3)
        values = model(x, context)
        assert values.shape == (2, 3)
        close(
            model(x.reshape(6, -1), None if context is None else context.reshape(6, -1)),
            values.reshape(6),
            VALUE,
        )
        single = model(x[1, 2], pick(context, (1, 2)))
        assert single.shape == ()
        close(single, values[1, 2], VALUE)
        close(model(x[1:2, 2:3], pick(context, (slice(1, 2), slice(2, 3)))), values[1:2, 2:3], VALUE)
        if context is not None:  # one context for all points
            close(model(x, context[0, 0])[0, 0], values[0, 0], VALUE)
            assert model(x, context[0, 0]).shape == (2, 3)
            shared = context[:, :1].expand(-1, 3, -1)  # one for the points of each row
            close(model(x, context[:, 0]), model(x, shared), VALUE)

    def test_rows_do_not_touch_each_other(self, case) -> None:
        model = case()
        x, context = inputs(model, 6)
        values = model(x, context)
        order = torch.tensor([3, 0, 5, 1, 4, 2])
        close(model(x[order], pick(context, order)), values[order], VALUE)
        repeated = model(x[:1].repeat(4, 1), None if context is None else context[:1].repeat(4, 1))
        close(repeated, repeated[:1].expand(4), VALUE)  # a vectorised sum's tail rounds otherwise: one ulp
        expanded = model(x[:1].expand(4, -1), None if context is None else context[:1].expand(4, -1))
        close(expanded, repeated, VALUE)

    @pytest.mark.parametrize("batch", [(0,), (0, 3), (2, 0)])
    def test_an_empty_batch_is_an_empty_result(self, case, batch: tuple[int, ...]) -> None:
        model = case()
        x, context = inputs(model, *batch)
        values = model(x, context)
        assert values.shape == batch
        assert values.dtype == DOUBLE

    def test_dtypes(self, case) -> None:
        """float32 and float64 are kept, half precision becomes float32, integers the model's dtype."""
        model = case()
        x, context = inputs(model, 4)
        x, context = x.round(), None if context is None else context.round()
        values = model(x, context)
        assert values.dtype == DOUBLE

        def cast(dtype: torch.dtype) -> Tensor:
            return model(x.to(dtype), None if context is None else context.to(dtype))

        assert cast(SINGLE).dtype == SINGLE
        close(cast(SINGLE), values.float(), VALUE)
        for half in (torch.float16, torch.bfloat16):
            assert cast(half).dtype == SINGLE
            close(cast(half), values.float(), VALUE)
        assert cast(torch.int64).dtype == DOUBLE
        close(cast(torch.int64), values, VALUE)
        close(model(x.numpy(), None if context is None else context.numpy()), values, VALUE)

    def test_inputs_of_any_layout_are_left_alone(self, case) -> None:
        model = case()
        x, context = inputs(model, 5)
        expected = model(x, context)
        before = x.clone()
        strided = torch.stack([x, -x], dim=-1)[..., 0]
        close(model(strided, context), expected, VALUE)
        array = x.numpy().copy()
        array.setflags(write=False)
        close(model(array, context), expected, VALUE)
        assert torch.equal(x, before)

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
    def test_numbers_that_are_not_finite_are_refused_by_name_and_row(self, case, bad: float) -> None:
        model = case()
        x, context = inputs(model, 3)
        broken = x.clone()
        broken[2, 0] = bad
        with pytest.raises(ValueError, match=r"^x: .*row \[2\], coordinate 0"):
            model(broken, context)
        if context is not None:
            context[1, -1] = bad
            for call in (lambda: model(x, context), lambda: model.conic_form(context)):
                with pytest.raises(ValueError, match=r"^context: .*row \[1\]"):
                    call()

    def test_wrong_shapes_are_refused_with_both_sizes(self, case) -> None:
        model = case()
        n, p = model.dim, model.context_dim
        x, context = inputs(model, 3)
        with pytest.raises(ValueError, match=rf"^x: expected last dimension {n}, got shape \(3, {n + 1}\)"):
            model(torch.zeros(3, n + 1), context)
        with pytest.raises(ValueError, match=rf"^context: expected last dimension {p}"):
            model(x, torch.zeros(3, p + 1))
        with pytest.raises(ValueError, match=r"^x: expected a CVXPY expression"):
            model.to_cvxpy(cp.Variable(n + 1), pick(context, 0))
        if context is not None:
            with pytest.raises(ValueError, match=r"^context: expected batch shape \(3,\).*\(2,\)"):
                model(x, context[:2])
            with pytest.raises(ValueError, match=r"^context: .*got \(1,\)"):
                model(x, context[:1])  # no silent broadcast
            with pytest.raises(ValueError, match=r"^context: .*got \(2,\)"):
                model(torch.zeros(3, 2, n), context[:2])
            with pytest.raises(ValueError, match=r"^context: .*None"):
                model(x)
            with pytest.raises(ValueError, match=r"^context: expected one context"):
                model.to_cvxpy(cp.Variable(n), context)
        with pytest.raises(TypeError, match=r"^x: "):
            model("three", context)

    def test_derivatives_in_x_context_and_weights(self, case) -> None:
        model = case()
        x, context = inputs(model, 2)
        leaves = [x, *([] if context is None else [context]), *model.parameters()]
        wanted = [leaf.detach().clone().requires_grad_() for leaf in leaves]
        names = [name for name, _ in model.named_parameters()]

        def function(*values: Tensor) -> Tensor:
            start = 1 if context is None else 2
            weights = dict(zip(names, values[start:], strict=True))
            return torch.func.functional_call(model, weights, (values[0], None if context is None else values[1]))

        assert torch.autograd.gradcheck(function, wanted, eps=1e-7, atol=1e-5, rtol=1e-5, fast_mode=True)

    def test_copies_are_equal_and_independent(self, case) -> None:
        model = case()
        x, context = inputs(model, 4)
        values = model(x, context)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(x, context), values)
            with torch.no_grad():
                for weight in twin.parameters():
                    weight.add_(0.1)
            assert torch.equal(model(x, context), values)

    def test_inference_changes_nothing_and_threads_agree(self, case) -> None:
        model = case()
        x, context = inputs(model, 20)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        values = model(x, context)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: model(x, context), range(8)))
        assert all(torch.equal(answer, values) for answer in answers)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())

    def test_units_are_the_users(self, case) -> None:
        """f(x, t) = s g((x - m) / q, (t - mt) / qt) + r, each coordinate's own, in values and in CVXPY alike."""
        model = case()
        x, context = inputs(model, 4)
        raw = copy.deepcopy(model)
        p = model.context_dim
        mean, scale = torch.linspace(-1, 1, p, dtype=DOUBLE), torch.linspace(0.5, 2, p, dtype=DOUBLE)
        centre, unit = torch.linspace(0.3, 0.6, model.dim, dtype=DOUBLE), torch.linspace(2, 1, model.dim, dtype=DOUBLE)
        model.set_standardization(x=(centre, unit), value=(-5.0, 10.0), context=(mean, scale))
        expected = 10 * raw((x - centre) / unit, None if context is None else (context - mean) / scale) - 5
        close(model(x, context), expected, VALUE)
        variable = cp.Variable(model.dim)
        variable.value = x[0].numpy()
        assert model.to_cvxpy(variable, pick(context, 0)).value == pytest.approx(expected[0].item(), rel=1e-10)
        if model.has_conic_form:
            close(model.conic_form(context).value(x), expected, VALUE)
