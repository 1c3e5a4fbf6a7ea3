"""On a GPU everything is as on the processor: values, decisions and certificates, derivatives, fits, files.

Skipped where there is none. SOCTK_TEST_DEVICE names another device of PyTorch.
"""

from __future__ import annotations

import copy
import os

import cvxpy as cp
import polyhedra
import pytest
import torch
from tolerances import CERTIFIED, DOUBLE, GRADIENT, SINGLE, VALUE
from zoo import MODELS, SETS, shaken

import soctk
from soctk.losses import relative_error
from soctk_tasks import make_task

DEVICE = os.environ.get("SOCTK_TEST_DEVICE", "cuda")
pytestmark = pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="there is no GPU")

DIM = 5
QUICK = soctk.FitConfig(starts=1, epochs=2, newton_iterations=6, lbfgs_iterations=40, level_iterations=10)


def pair(name: str, dim: int = DIM, dtype: torch.dtype = DOUBLE) -> tuple[soctk.ConvexSurrogate, soctk.ConvexSurrogate]:
    """Return a model on the processor and its copy on the GPU."""
    here = shaken(MODELS[name](dim)).to(dtype)
    return here, copy.deepcopy(here).to(DEVICE)


def contexts(count: int, dtype: torch.dtype = DOUBLE) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(5), dtype=DOUBLE).to(dtype)


def there(tensor: torch.Tensor) -> bool:
    return tensor.device.type == torch.device(DEVICE).type


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_values_and_derivatives(name: str, dtype: torch.dtype) -> None:
    here, gpu = pair(name, dtype=dtype)
    x = torch.randn(40, DIM, generator=torch.Generator().manual_seed(6), dtype=DOUBLE).to(dtype)
    answers = []
    for model, device in ((here, "cpu"), (gpu, DEVICE)):
        point, context = (t.to(device).requires_grad_() for t in (x.detach(), contexts(40, dtype)))
        value = model(point, context)
        leaves = [point, context, *(w for w in model.parameters() if w.requires_grad)]
        slopes = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        answers.append([value.detach(), *(s for s in slopes if s is not None)])
        assert value.device.type == torch.device(device).type
    for tol, a, b in zip([VALUE, *[GRADIENT] * len(answers[0])], *answers, strict=False):
        torch.testing.assert_close(b.cpu(), a, rtol=tol[dtype], atol=tol[dtype] * float(a.abs().max().clamp(min=1)))


@pytest.fixture(params=["there", "by the processor"])
def decided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch decide there, and compiled code on the processor, which small batches are left to."""
    most = 0 if request.param == "there" else float("inf")
    monkeypatch.setattr("soctk.decide.newton.MOST_OPERATIONS", most)


@pytest.mark.usefixtures("decided")
@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("name", MODELS)
def test_decisions_are_certified_and_as_on_the_processor(name: str, set_name: str) -> None:
    here, gpu = pair(name)
    feasible_set, context = SETS[set_name](DIM), contexts(64)
    expected = soctk.minimize(here, feasible_set, context)
    decision = soctk.minimize(gpu, feasible_set, context.to(DEVICE))
    assert there(decision.x)
    assert there(decision.value)
    assert there(decision.lower_bound)
    assert (decision.status == "optimal").all()
    assert float(feasible_set.violation(decision.x).max()) <= 1e-9
    scale = expected.value.abs().clamp(min=1)
    assert bool(((decision.value.cpu() - expected.value).abs() <= 2 * CERTIFIED * scale).all())
    assert bool((decision.lower_bound.cpu() <= expected.value + 1e-12 * scale).all())
    again = soctk.certify(gpu, feasible_set, decision.x, context.to(DEVICE))
    assert there(again.lower_bound)
    assert bool((again.lower_bound.cpu() <= expected.value + 1e-12 * scale).all())


@pytest.mark.usefixtures("decided")
@pytest.mark.parametrize("set_name", SETS)
def test_a_warm_start_and_a_model_in_single_precision(set_name: str) -> None:
    feasible_set, context = SETS[set_name](DIM), contexts(32)
    _, gpu = pair("soc")
    cold = soctk.minimize(gpu, feasible_set, context.to(DEVICE))
    warm = soctk.minimize(gpu, feasible_set, context.to(DEVICE) + 0.01, x0=cold.x)
    assert (warm.status == "optimal").all()
    here, single = pair("soc", dtype=SINGLE)
    decision = soctk.minimize(single, feasible_set, context.float().to(DEVICE), tol=1e-3)
    expected = soctk.minimize(here.double(), feasible_set, context.float().double())
    assert decision.x.dtype == SINGLE
    assert (decision.status == "optimal").all()
    scale = expected.value.abs().clamp(min=1)
    assert bool((decision.value.cpu() <= expected.value + 2e-3 * scale).all())
    assert bool((decision.lower_bound.cpu() <= expected.value + CERTIFIED * scale).all())


@pytest.mark.parametrize("method", ["newton", "cvxpy", "first_order"])
def test_decisions_over_a_polyhedron(method: str) -> None:
    feasible_set, context = polyhedra.transport(), contexts(6)
    here, gpu = pair("soc", feasible_set.dim)
    expected = soctk.minimize(here, feasible_set, context)
    tol = CERTIFIED if method != "first_order" else 1e-2
    decision = soctk.minimize(gpu, feasible_set, context.to(DEVICE), method=method, tol=tol)
    assert there(decision.x)
    assert (decision.status == "optimal").all()
    scale = expected.value.abs().clamp(min=1)
    assert bool(((decision.value.cpu() - expected.value).abs() <= 2 * tol * scale).all())


@pytest.mark.usefixtures("decided")
@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("name", ["softplus", "soc", "hyperbolic"])
def test_decision_layers(name: str, set_name: str) -> None:
    here, gpu = pair(name)
    feasible_set, answers = SETS[set_name](DIM), []
    for model, device in ((here, "cpu"), (gpu, DEVICE)):
        context = contexts(16).to(device).requires_grad_()
        layer = soctk.DecisionLayer(model, feasible_set, tol=1e-9, skip_undefined=True)
        x = layer(context)
        weight = torch.linspace(-1, 1, x.numel(), dtype=DOUBLE, device=device).reshape(x.shape)
        (x * weight).sum().backward()
        assert x.device.type == context.grad.device.type == torch.device(device).type
        slopes = [w.grad.cpu() for w in model.parameters() if w.grad is not None]
        answers.append((x.detach().cpu(), context.grad.cpu(), slopes))
    (x, in_context, in_weights), (x_gpu, in_context_gpu, in_weights_gpu) = answers
    torch.testing.assert_close(x_gpu, x, rtol=0, atol=1e-4)
    close = ((in_context_gpu - in_context).norm(dim=-1) <= 1e-2 * in_context.norm(dim=-1).clamp(min=1e-3)).double()
    assert float(close.mean()) >= 0.8  # beside a kink, or a bound that hardly binds, both are right
    assert len(in_weights) == len(in_weights_gpu) > 0


@pytest.mark.usefixtures("decided")
def test_optimal_values_and_their_derivatives() -> None:
    answers = []
    for model, device in zip(pair("soc"), ("cpu", DEVICE), strict=True):
        context = contexts(16).to(device).requires_grad_()
        value = soctk.DecisionLayer(model, soctk.Simplex(DIM)).optimal_value(context)
        (slope,) = torch.autograd.grad(value.sum(), context)
        answers.append((value.detach().cpu(), slope.cpu()))
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-3, atol=1e-3)


def test_right_hand_sides_of_each_context() -> None:
    here, gpu = pair("soc")
    side, base = torch.linspace(0.2, 0.9, 8, dtype=DOUBLE), soctk.Budget(DIM, 0.5)
    expected = soctk.minimize(here, base.at(total=side), contexts(8))
    decision = soctk.minimize(gpu, base.at(total=side.to(DEVICE)), contexts(8).to(DEVICE))
    assert there(decision.x)
    torch.testing.assert_close(decision.value.cpu(), expected.value, rtol=2 * CERTIFIED, atol=2 * CERTIFIED)


def test_whole_numbers() -> None:
    here, gpu = pair("soc")
    expected = soctk.minimize(here, soctk.Box(DIM, 0, 3), contexts(8), integer=[0, 1])
    decision = soctk.minimize(gpu, soctk.Box(DIM, 0, 3), contexts(8).to(DEVICE), integer=[0, 1])
    assert there(decision.x)
    assert torch.equal(decision.x[:, :2].cpu(), decision.x[:, :2].cpu().round())
    torch.testing.assert_close(decision.value.cpu(), expected.value, rtol=2 * CERTIFIED, atol=2 * CERTIFIED)


def moving_distance(instances: int = 80, candidates: int = 16, dim: int = 3) -> soctk.ValueData:
    """Values of a squared distance from a point that moves with the context."""
    generator = torch.Generator().manual_seed(0)
    context, mixing = (torch.randn(n, 2, generator=generator, dtype=DOUBLE) for n in (instances, dim))
    x = torch.rand(instances, candidates, dim, generator=generator, dtype=DOUBLE)
    return soctk.ValueData(context, x, (x - (context @ mixing.mT).unsqueeze(1)).square().sum(dim=-1))


@pytest.mark.parametrize("name", ["relu", "softplus", "quad", "norm", "soc", "dcp", "pcf", "pcf_template", "ickan"])
def test_fits_learn_there_as_well(name: str) -> None:
    data, errors = moving_distance(), []
    for device in ("cpu", DEVICE):
        model = soctk.make_surrogate(name, 3, 2, seed=0).to(device)
        soctk.fit(model, data, soctk.FitConfig(starts=1, epochs=10, lbfgs_iterations=100, level_iterations=20))
        assert model.device.type == torch.device(device).type
        errors.append(relative_error(model.cpu(), data))
    assert errors[0] < 1
    assert errors[1] <= max(2 * errors[0], 1e-4)


def test_units_of_the_context_are_found_there(tmp_path) -> None:
    """A norm about a centre that swings with the context: decided, saved and loaded with the units found."""
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(200, 2, generator=generator, dtype=DOUBLE)
    x = torch.rand(200, 16, 3, generator=generator, dtype=DOUBLE)
    centre = torch.sin(1.5 * context) @ torch.full((2, 3), 0.5, dtype=DOUBLE)
    data = soctk.ValueData(context, x, (x - centre.unsqueeze(1)).norm(dim=-1))
    recipe = soctk.FitConfig(starts=1, epochs=2, lbfgs_iterations=100, context_units=6)
    model = soctk.SOCICNN(3, 2, hidden=(), diagonal=True, norms=(3,)).to(DEVICE)
    soctk.fit(model, data, recipe)
    assert model.context_units == 6
    assert all(there(weight) for weight in model.parameters())
    decision = soctk.minimize(model, soctk.Box(3), context.to(DEVICE))
    assert there(decision.x)
    soctk.save(model, tmp_path / "model.safetensors")
    expected = soctk.minimize(soctk.load(tmp_path / "model.safetensors"), soctk.Box(3), context)
    for each in (decision, expected):
        assert (each.status == "optimal").all()
    torch.testing.assert_close(decision.value.cpu(), expected.value, rtol=CERTIFIED, atol=CERTIFIED)


@pytest.mark.parametrize("loss", ["Regret", "Suboptimality", "Optimality", "SPOPlus"])
def test_learning_from_decisions_there(loss: str) -> None:
    task = make_task("box_socp", dim=4, seed=0)
    data = task.sample(40, 16, seed=1)
    known = task.solve(data.context)
    model = soctk.make_surrogate("soc", 4, task.context_dim, seed=0).to(DEVICE)
    soctk.fit(model, data, QUICK)
    if loss == "Regret":
        learned_from = soctk.Regret(data.context, task.feasible_set, task.objective, known.value)
    elif loss == "SPOPlus":
        costs = torch.randn(40, 4, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
        lo, hi = task.feasible_set.hull()
        learned_from = soctk.SPOPlus(data.context, task.feasible_set, costs, torch.where(costs > 0, lo, hi))
    else:
        learned_from = getattr(soctk, loss)(data.context, task.feasible_set, known.x)
    report = soctk.fine_tune(model, data, learned_from, soctk.FitConfig(optima_weights=(1.0,), optima_iterations=6))
    assert report.after <= report.before
    assert all(there(weight) for weight in model.parameters())
    assert (soctk.minimize(model, task.feasible_set, data.context.to(DEVICE)).status == "optimal").all()


def test_optima_in_a_fit_there() -> None:
    task = make_task("simplex_logistic", dim=4, seed=0)
    data = task.sample(40, 16, seed=1)
    optima = task.solve(data.context).x
    model = soctk.make_surrogate("soc", 4, task.context_dim, seed=0).to(DEVICE)
    report = soctk.fit(model, data, QUICK, optima=optima, feasible_set=task.feasible_set)
    assert report.best_validation < float("inf")
    assert all(there(weight) for weight in model.parameters())


def test_averages_frozen_models_and_files(tmp_path) -> None:
    here, gpu = pair("soc")
    context, x = contexts(8), torch.rand(8, DIM, dtype=DOUBLE)
    expected = here(x, context).detach()
    twice = soctk.average([gpu, copy.deepcopy(gpu)])
    torch.testing.assert_close(twice(x.to(DEVICE), context.to(DEVICE)).detach().cpu(), expected, rtol=1e-12, atol=1e-12)
    assert (soctk.minimize(twice, soctk.Box(DIM), context.to(DEVICE)).status == "optimal").all()
    soctk.save(gpu, tmp_path / "model.safetensors")
    back = soctk.load(tmp_path / "model.safetensors")
    torch.testing.assert_close(back(x, context).detach(), expected, rtol=1e-12, atol=1e-12)
    decided = soctk.prepare(gpu, soctk.Box(DIM)).minimize(context.to(DEVICE))
    assert there(decided.x)
    assert (decided.status == "optimal").all()


@pytest.mark.parametrize("count", [1, 2])
def test_learned_limits(count: int) -> None:
    (here, gpu), (limit, theirs) = pair("soc"), pair("hyperbolic")
    c = contexts(8)
    with torch.no_grad():
        for model in (limit, theirs):
            model.x_scale.neg_()
        level = float(limit(SETS["box"](DIM).sample((8,), torch.Generator().manual_seed(0)), c).mean())
        for model in (limit, theirs):
            model.value_mean.sub_(level)
    expected = soctk.minimize(here, SETS["box"](DIM), c, subject_to=[limit] * count)
    found = soctk.minimize(gpu, SETS["box"](DIM), c.to(DEVICE), subject_to=[theirs] * count)
    assert there(found.x)
    assert there(found.multipliers)
    assert list(found.status) == list(expected.status)
    torch.testing.assert_close(found.value.cpu(), expected.value, rtol=0, atol=3e-6, equal_nan=True)


def test_what_is_made_of_a_model_is_made_on_the_processor(tmp_path) -> None:
    here, gpu = pair("soc")
    context = contexts(40)
    x = torch.rand(40, 4, DIM, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    data = soctk.ValueData(context, x, here(x, context).detach() + 0.1 * x.sum(dim=-1))
    there_too = soctk.assess(gpu, data, soctk.Box(DIM))
    assert there_too.verdict == soctk.assess(here, data, soctk.Box(DIM)).verdict
    assert there(next(gpu.parameters()))
    hashes = [soctk.to_runtime(model, soctk.Box(DIM), tmp_path / "model.bin") for model in (here, gpu)]
    assert hashes[0] == hashes[1]
    variable = cp.Variable(DIM)
    problem = cp.Problem(cp.Minimize(gpu.to_cvxpy(variable, context[0].to(DEVICE))), [variable >= 0, variable <= 1])
    problem.solve(solver="CLARABEL")
    assert problem.value == pytest.approx(float(soctk.minimize(here, soctk.Box(DIM), context[0]).value), rel=1e-5)
    here, gpu = pair("relu", 2)
    slopes, heights = soctk.affine_pieces(gpu.conic_form(context[0].to(DEVICE)))
    value = here(x[0, 0, :2], context[0])
    assert float((slopes @ x[0, 0, :2] + heights).max()) == pytest.approx(float(value.detach()), rel=1e-9)


def test_many_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soctk.decide.newton.MOST_OPERATIONS", 0)
    here, gpu = pair("soc")
    context = contexts(20_000)
    decision = soctk.minimize(gpu, soctk.Simplex(DIM), context.to(DEVICE))
    assert (decision.status == "optimal").all()
    few = soctk.minimize(here, soctk.Simplex(DIM), context[-50:])
    torch.testing.assert_close(decision.value[-50:].cpu(), few.value, rtol=2 * CERTIFIED, atol=2 * CERTIFIED)


STRUCTURED = {
    "conv": lambda: soctk.ConvSOCICNN((4, 4), layers=(2, 2), quadratics=2, norms=2, whole_norms=1, affine_hidden=2),
    "recurrent": lambda: soctk.RecurrentSOCICNN(8, 2, 2, hidden=3, quadratics=2, norms=2, norm_size=2, affine_hidden=2),
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_models_of_images_and_sequences(name: str) -> None:
    here = shaken(STRUCTURED[name]())
    gpu = copy.deepcopy(here).to(DEVICE)
    x, context = (torch.rand(24, size, dtype=DOUBLE) for size in (here.dim, here.context_dim))
    torch.testing.assert_close(
        gpu(x.to(DEVICE), context.to(DEVICE)).detach().cpu(), here(x, context).detach(), rtol=1e-12, atol=1e-12
    )
    box = soctk.Box(here.dim)
    expected = soctk.minimize(here, box, context)
    decision = soctk.minimize(gpu, box, context.to(DEVICE))
    assert there(decision.x)
    assert (decision.status == "optimal").all()
    torch.testing.assert_close(decision.value.cpu(), expected.value, rtol=2 * CERTIFIED, atol=2 * CERTIFIED)
    data = soctk.ValueData(context, torch.rand(24, 6, here.dim, dtype=DOUBLE), torch.rand(24, 6, dtype=DOUBLE))
    soctk.fit(gpu, data, QUICK)
    assert all(there(weight) for weight in gpu.parameters())
