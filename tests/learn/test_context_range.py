"""Contexts beyond a range: the same function at its ends on every path, and a range only where held-out contexts ask.

Heavy tails: what was learned says nothing of contexts far beyond those that were learned from.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import CLARABEL, DOUBLE, FIRST_ORDER, LEARNED_VALUE
from tolerances import VALUE as VALUES
from zoo import MODELS, SETS, shaken

import soctk
from soctk.learn.context_range import BETTER, limit_context
from soctk.learn.trainer import Trainer

VALUE = VALUES[DOUBLE]
n, p = 4, 3
ENDS = torch.tensor([[-1.0, -0.5, 0.0], [0.5, 2.0, 0.0]], dtype=DOUBLE)
BEYOND = torch.tensor([[3.0, 1.0, 0.0], [-40.0, -2.0, 5.0], [0.2, 0.3, -1e3], [0.1, 0.2, 0.0]], dtype=DOUBLE)
QUICK = soctk.FitConfig(starts=1, epochs=1, newton_iterations=5, lbfgs_iterations=40, level_iterations=20)
SIZES = {"hidden": (), "diagonal": True, "norms": (2, 2)}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> soctk.ConvexSurrogate:
    """Return a model with units of its own and a range."""
    made = shaken(MODELS[request.param](n), 0.1)
    made.set_standardization(x=(0.2, 1.5), value=(1.0, 2.0), context=([0.1, -0.2, 0.3], [1.0, 2.0, 0.5]))
    made.context_range = ENDS.clone()
    return made


def without(model: soctk.ConvexSurrogate) -> soctk.ConvexSurrogate:
    free = copy.deepcopy(model)
    free.context_range = None
    return free


# -- one function on every path ----------------------------------------------------------------------------


def test_values_and_forms_are_those_at_the_ends(model: soctk.ConvexSurrogate) -> None:
    x, free = torch.linspace(-1, 1, 4 * n, dtype=DOUBLE).reshape(4, n), without(model)
    inside = BEYOND.clamp(*ENDS)
    assert torch.equal(model(x, BEYOND), free(x, inside))
    assert not torch.allclose(free(x, BEYOND), free(x, inside))
    assert torch.equal(model.conic_form(BEYOND).value(x), free.conic_form(inside).value(x))
    single = copy.deepcopy(model).float()
    assert torch.equal(single(x.float(), BEYOND.float()), without(single)(x.float(), inside.float()))
    assert torch.equal(single.conic_form(BEYOND.float()).value(x), without(single).conic_form(inside.float()).value(x))


@pytest.mark.parametrize("kind", SETS)
def test_decisions_are_those_at_the_ends(model: soctk.ConvexSurrogate, kind: str, tmp_path: Path) -> None:
    where, free, inside = SETS[kind](n), without(model), BEYOND.clamp(*ENDS)
    wanted = soctk.minimize(free, where, inside)
    assert torch.equal(soctk.minimize(model, where, BEYOND).x, wanted.x)
    assert torch.equal(soctk.prepare(model, where).minimize(BEYOND).x, wanted.x)
    soctk.save(model, tmp_path / "model.safetensors")
    assert torch.equal(soctk.minimize(soctk.load(tmp_path / "model.safetensors"), where, BEYOND).x, wanted.x)


def test_derivatives_in_a_number_beyond_the_range_are_zero(model: soctk.ConvexSurrogate) -> None:
    context = BEYOND[:1].clone().requires_grad_()
    model(torch.zeros(1, n, dtype=DOUBLE), context).sum().backward()
    assert context.grad is not None
    assert float(context.grad[0, 0]) == 0.0
    assert float(context.grad[0, 1]) != 0.0


def test_expressions_and_embeddings_are_those_at_the_ends(model: soctk.ConvexSurrogate) -> None:
    x, point = cp.Variable(n), np.linspace(-0.5, 0.5, n)
    wanted = float(without(model)(point, BEYOND[1].clamp(*ENDS)).detach())
    expression = model.to_cvxpy(x, BEYOND[1])
    x.value = point
    assert expression.value == pytest.approx(wanted, abs=VALUE, rel=VALUE)
    embedded = soctk.Embedding(model, x)
    embedded.set_context(BEYOND[1])
    problem = cp.Problem(cp.Minimize(embedded.value), [*embedded.constraints, x == point])
    problem.solve(solver=cp.CLARABEL)
    assert problem.value == pytest.approx(wanted, abs=CLARABEL, rel=CLARABEL)
    with pytest.raises(ValueError, match="context_range"):
        model.to_cvxpy(x, cp.Parameter(p))


@pytest.mark.parametrize("rows", [0, 1])
def test_files_without_pytorch_and_frozen_models_have_the_range(rows: int, tmp_path: Path) -> None:
    model = shaken(MODELS["soc"](n), 0.1)
    model.context_range = ENDS.clone()
    row = {"E": [[1.0] * n], "f": [0.5], "G": [[1.0, -1.0, 0.5, 0.0]], "h": [0.3]}
    where = soctk.Polyhedron(n, -1.0, 1.5, **row) if rows else soctk.Box(n)
    free, inside = without(model), BEYOND.clamp(*ENDS)
    soctk.to_runtime(model, where, tmp_path / "a.soctk")
    decider, wanted = soctk.runtime.load(tmp_path / "a.soctk"), soctk.minimize(free, where, inside).x
    for context, x in zip(BEYOND.numpy(), wanted, strict=True):
        assert decider(context).x == pytest.approx(x.numpy(), abs=FIRST_ORDER)
    x = torch.zeros(len(BEYOND), n, dtype=DOUBLE)
    frozen = soctk.freeze(model)
    assert torch.equal(frozen(x, BEYOND), free(x, inside))
    assert torch.equal(soctk.minimize(frozen, where, BEYOND).x, wanted)


def test_graphs_have_the_range(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = shaken(MODELS["soc"](n), 0.1)
    model.context_range = ENDS.clone()
    soctk.to_onnx(model, tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"))
    x = torch.linspace(-1, 1, 4 * n, dtype=DOUBLE).reshape(4, n)
    (found,) = session.run(None, {"x": x.numpy(), "context": BEYOND.numpy()})
    assert found == pytest.approx(model(x, BEYOND).detach().numpy(), abs=VALUE, rel=VALUE)


@pytest.mark.parametrize("kind", ["soc", "ickan"])
def test_means_have_the_ranges_of_their_members(kind: str, tmp_path: Path) -> None:
    one, other = (shaken(MODELS[kind](n), scale) for scale in (0.1, 0.2))
    one.context_range = ENDS.clone()
    x = torch.linspace(-1, 1, 4 * n, dtype=DOUBLE).reshape(4, n)
    wanted = ((without(one)(x, BEYOND.clamp(*ENDS)) + other(x, BEYOND)) / 2).detach().numpy()
    mean = soctk.average([one, other])
    soctk.save(mean, tmp_path / "mean.safetensors")
    for each in (mean, copy.deepcopy(mean), soctk.load(tmp_path / "mean.safetensors")):
        assert each(x, BEYOND).detach().numpy() == pytest.approx(wanted, abs=VALUE, rel=VALUE)
        assert each.conic_form(BEYOND).value(x).detach().numpy() == pytest.approx(wanted, abs=VALUE, rel=VALUE)


def test_a_mean_whose_member_has_got_a_range_since_is_refused() -> None:
    members = [MODELS["soc"](n), MODELS["soc"](n)]
    mean = soctk.average(members)
    members[0].context_range = ENDS.clone()
    with pytest.raises(ValueError, match="context_range"):
        mean(torch.zeros(n), BEYOND[0])


def test_models_of_another_size_have_no_range_of_this_one() -> None:
    model = soctk.RecurrentSOCICNN(6, 1, 1)
    model.context_range = torch.stack([-torch.ones(model.context_dim), torch.ones(model.context_dim)]).double()
    with pytest.raises(ValueError, match="context_range"):
        model.resized(8)


def test_files_with_a_range_that_is_none_are_refused(tmp_path: Path) -> None:
    model = MODELS["soc"](n)
    model.context_range = ENDS.flip(0)
    with pytest.raises(TypeError, match="context_ranges"):
        soctk.save(model, tmp_path / "a.safetensors")


# -- when a fit has one --------------------------------------------------------------------------------------


def values(x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """Return a bowl whose centre and slope saturate: nothing goes on growing with the context."""
    center = 0.5 * torch.tanh(context).unsqueeze(1)
    return (x - center).square().sum(dim=-1) + (x * torch.tanh(context).unsqueeze(1)).sum(dim=-1)


def data(law: Callable[[np.random.Generator], np.ndarray], function: Callable, seed: int) -> soctk.ValueData:
    rng = np.random.default_rng(seed)
    context = torch.from_numpy(law(rng))
    x = torch.from_numpy(rng.uniform(-1, 1, (len(context), 12, 2)))
    return soctk.ValueData(context, x, function(x, context))


def heavy(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_t(1.5, (150, 2))


def many(rng: np.random.Generator) -> np.ndarray:
    """Return so many that some are beyond those that were learned from."""
    return rng.standard_t(1.5, (2000, 2))


def steady(x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """Return what a quadratic with an affine slope is exactly, wherever the context is."""
    return x.square().sum(dim=-1) + (x * context.unsqueeze(1)).sum(dim=-1)


def errors(model: soctk.ConvexSurrogate, of: soctk.ValueData) -> float:
    return float((model(of.x, of.context).detach() - of.value).square().mean())


def within(model: soctk.ConvexSurrogate, of: soctk.ValueData) -> float:
    """Return the mean squared error less that of every instance's mean: what decisions depend on."""
    residual = model(of.x, of.context).detach() - of.value
    return float((residual - residual.mean(dim=1, keepdim=True)).square().mean())


def test_heavy_tails_are_cut_and_errors_are_smaller_with_the_range() -> None:
    train, validation, test = (data(law, values, seed) for seed, law in enumerate((heavy, heavy, many)))
    model = soctk.SOCICNN(2, 2, **SIZES)
    soctk.fit(model, train, QUICK, validation)
    assert model.context_range is not None
    assert torch.equal(model.context_range, torch.stack(train.context.aminmax(dim=0)))
    assert errors(model, test) < errors(without(model), test)
    assert within(model, test) < within(without(model), test)
    assert errors(model, train) == errors(without(model), train)  # nothing that was learned from is beyond it


def test_what_is_right_everywhere_goes_on_being_right() -> None:
    train, validation, test = (data(heavy, steady, seed) for seed in range(3))
    model = soctk.make_surrogate("soc", 2, 2)
    soctk.fit(model, train, QUICK, validation)
    assert model.context_range is None
    assert errors(model, test) < LEARNED_VALUE * float(test.value.var())


def test_it_can_be_switched_off_and_another_fit_begins_without() -> None:
    train, validation = (data(heavy, values, seed) for seed in range(2))
    model = soctk.SOCICNN(2, 2, **SIZES)
    soctk.fit(model, train, QUICK, validation)
    assert model.context_range is not None
    soctk.fit(model, train, soctk.FitConfig(starts=1, epochs=1, lbfgs_iterations=5, limit_context=False), validation)
    assert model.context_range is None


def test_a_fit_that_is_undone_leaves_the_range() -> None:
    train, validation = (data(heavy, values, seed) for seed in range(2))
    model = soctk.SOCICNN(2, 2, hidden=(), diagonal=True)
    model.context_range = torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=DOUBLE)
    trainer = Trainer(model, train, validation)
    assert model.context_range is None
    trainer.undo()
    assert torch.equal(model.context_range, torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=DOUBLE))


def test_a_mean_that_is_learned_anew_has_no_range_inside() -> None:
    """Its members see contexts in the units of the mean then, in which their ranges mean nothing."""
    train, validation = (data(heavy, values, seed) for seed in range(2))
    members = [soctk.SOCICNN(2, 2, **SIZES, seed=seed) for seed in range(2)]
    members[0].context_range = torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=DOUBLE)
    mean = soctk.average(members)
    Trainer(mean, train, validation).undo()
    assert members[0].context_range is not None
    soctk.fit(mean, train, soctk.FitConfig(starts=1, epochs=1, lbfgs_iterations=5), validation)
    assert members[0].context_range is None


def test_the_mean_of_a_fit_has_one_range_for_all_and_stays_dense() -> None:
    train, validation = (data(heavy, values, seed) for seed in range(2))
    model = soctk.SOCICNN(2, 2, **SIZES)
    recipe = soctk.FitConfig(starts=1, epochs=1, newton_iterations=5, lbfgs_iterations=40, members=3, jobs=1)
    mean = soctk.fit(model, train, recipe, validation).model
    assert isinstance(mean, soctk.AverageSurrogate)
    assert all(member.context_range is None for member in mean.members)
    assert mean.context_map() is not None
    low, high = train.context.aminmax(dim=0)
    assert mean.context_range is not None
    assert bool((low <= mean.context_range[0]).all() & (mean.context_range[1] <= high).all())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.5, 4.0))
def test_a_range_does_not_make_held_out_errors_much_larger(seed: int, freedom: float) -> None:
    rng = np.random.default_rng(seed)
    law = lambda rng: rng.standard_t(freedom, (20, p))  # noqa: E731
    train, validation = (
        soctk.ValueData(context, x, x.square().sum(dim=-1) + (x[..., 0] * context[:, :1]).tanh())
        for context, x in (
            (torch.from_numpy(law(rng)), torch.from_numpy(rng.uniform(-1, 1, (20, 6, n)))) for _ in range(2)
        )
    )
    model = shaken(MODELS["soc"](n), 0.1)
    limit_context(model, train, validation)
    free = without(model)
    assert errors(model, validation) <= errors(free, validation) * (1 / BETTER + VALUE)
    assert within(model, validation) <= within(free, validation) * (1 + VALUE)
