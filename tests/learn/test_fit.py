"""Learning: what is promised of data, units, states and quality."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import soctk
from soctk.learn.phases.adam import batches_per_epoch, mini_batches
from soctk.learn.residuals import Residuals
from soctk.learn.units import Standardized, standardize
from soctk.losses import relative_error, residual_loss, value_loss
from soctk.maps.linear import DenseMap
from soctk.terms import Logistic, Norms, Quadratic
from soctk_tasks import Task, make_task

QUICK = soctk.FitConfig(starts=1, epochs=2, newton_iterations=6, lbfgs_iterations=40, level_iterations=40)


def smooth_data(instances: int = 60, candidates: int = 16, dim: int = 3, context_dim: int = 2) -> soctk.ValueData:
    """Values of a shifted squared distance that moves with the context."""
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(instances, context_dim, generator=generator, dtype=torch.float64)
    x = torch.rand(instances, candidates, dim, generator=generator, dtype=torch.float64)
    mixing = torch.randn(context_dim, dim, generator=generator, dtype=torch.float64)
    return soctk.ValueData(context, x, 3.0 + 7.0 * (x - (context @ mixing).unsqueeze(1)).square().sum(dim=-1))


def test_fit_learns_and_leaves_the_data_alone():
    data = smooth_data()
    before = [tensor.clone() for tensor in (data.context, data.x, data.value)]
    model = soctk.SOCICNN(3, 2, diagonal=True)
    report = soctk.fit(model, data, soctk.FitConfig(epochs=10), validation=data)
    assert relative_error(model, data) < 1e-3
    assert report.seconds > 0
    assert report.train
    assert report.validation
    for tensor, kept in zip((data.context, data.x, data.value), before, strict=True):
        assert torch.equal(tensor, kept)


def test_the_same_seed_gives_bitwise_the_same_model():
    torch.set_num_threads(1)
    data = smooth_data()
    values = []
    for _ in range(2):
        model = soctk.SOCICNN(3, 2, diagonal=True, norms=(3,), structures=((), ("norm0",)), seed=5)
        soctk.fit(model, data, QUICK)
        values.append(model.evaluate(data.x, data.context))
    assert torch.equal(*values)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_scales_of_the_values_do_not_matter(scale):
    data = smooth_data()
    errors = []
    for factor in (1.0, scale):
        model = soctk.SOCICNN(3, 2, diagonal=True, seed=1)
        scaled = soctk.ValueData(data.context, data.x, factor * data.value)
        soctk.fit(model, scaled, QUICK, validation=scaled)
        errors.append(relative_error(model, scaled))
    assert errors[1] == pytest.approx(errors[0], rel=0.5)


@pytest.mark.filterwarnings("ignore:data:UserWarning")
def test_one_value_one_candidate_one_instance_and_constant_values_stay_finite():
    data = smooth_data()
    single = soctk.ValueData(data.context[:1], data.x[:1, :1], data.value[:1, :1])
    for part, validation in (
        (single, single),
        (soctk.ValueData(data.context, data.x[:, :1], data.value[:, :1]), None),
        (soctk.ValueData(data.context, data.x, torch.full_like(data.value, 2.0)), None),
    ):
        model = soctk.SOCICNN(3, 2)
        report = soctk.fit(model, part, QUICK, validation)
        assert math.isfinite(report.best_validation)
        assert torch.isfinite(model.evaluate(part.x, part.context)).all()


def test_values_that_are_all_the_same_are_said_to_tell_nothing():
    data = smooth_data()
    same = soctk.ValueData(data.context, data.x, torch.full_like(data.value, 2.5))
    with pytest.warns(UserWarning, match=r"all \d+ observed values are 2\.5; they do not say which decision is better"):
        soctk.fit(soctk.SOCICNN(3, 2), same, QUICK)
    of_contexts = soctk.ValueData(data.context, data.x, data.context[:, :1].expand_as(data.value))
    with pytest.warns(UserWarning, match="candidates of every instance have the same .* do not say which"):
        soctk.fit(soctk.SOCICNN(3, 2), of_contexts, QUICK)


@pytest.mark.parametrize("number", [0.1, 1e17, 1e300])
def test_a_column_that_never_varies_tells_a_model_nothing_whatever_its_size(number):
    """Its mean is it itself: rounded, the deviations of all would be a number as large as rounding."""
    data, errors = smooth_data(), []
    for column in (torch.zeros_like(data.context[:, :1]), torch.full_like(data.context[:, :1], number)):
        model = soctk.SOCICNN(3, 3, diagonal=True, seed=1)
        given = soctk.ValueData(torch.cat([data.context, column], dim=1), data.x, data.value)
        soctk.fit(model, given, QUICK, validation=given)
        errors.append(relative_error(model, given))
    assert errors[0] == errors[1]


def test_divergence_keeps_the_last_good_state():
    data = smooth_data()
    model = soctk.SOCICNN(3, 2)
    config = soctk.FitConfig(epochs=2, learning_rate=1e30, clip=1e30, lbfgs_iterations=0, newton_iterations=0)
    with pytest.warns(RuntimeWarning, match="as it was before"):
        report = soctk.fit(model, data, config)
    assert report.status == "diverged"
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values())


def test_time_limit_stops_with_a_usable_model():
    data = smooth_data()
    model = soctk.SOCICNN(3, 2)
    report = soctk.fit(model, data, soctk.FitConfig(time_limit=1e-3))
    assert report.status == "time_limit"
    assert torch.isfinite(model.evaluate(data.x, data.context)).all()


def test_wrong_dimensions_say_what_was_expected():
    with pytest.raises(ValueError, match=r"expected .*\(4, 2\).*got \(3, 2\)"):
        soctk.fit(soctk.SOCICNN(4, 2), smooth_data())
    with pytest.raises(ValueError, match="epochs"):
        soctk.FitConfig(epochs=-1)
    with pytest.raises(ValueError, match="value"):
        soctk.ValueData(torch.zeros(2, 1), torch.zeros(2, 3, 4), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="row"):
        soctk.ValueData(torch.zeros(2, 1), torch.full((2, 3, 4), torch.nan), torch.zeros(2, 3))


def test_projecting_out_the_affine_part_is_least_squares():
    """The projected residual has the norm of the best affine fit, and no gradient in the affine part."""
    data = smooth_data()
    model = soctk.SOCICNN(3, 2, diagonal=True)
    standardize(model, data)
    part = Standardized.of(model, data, torch.float64)
    residual = Residuals.projected(part).residual(model)
    raw = (model._value(part.x, part.context) - part.value).detach()
    columns = torch.cat([torch.ones_like(part.x[..., :1]), part.x], dim=-1)
    best = raw - (columns @ torch.linalg.lstsq(columns, raw.unsqueeze(-1)).solution).squeeze(-1)
    spread = torch.cat([residual, best], dim=1).square().split([residual.shape[1], best.shape[1]], dim=1)
    torch.testing.assert_close(spread[0].mean(dim=1), spread[1].mean(dim=1))
    residual.square().mean().backward()
    for weight in model.affine.parameters():
        assert weight.grad is None or float(weight.grad.abs().max()) < 1e-12


def test_structure_is_chosen_by_validation_smallest_first():
    data = smooth_data(instances=100)
    config = soctk.FitConfig(epochs=10, level_iterations=100)
    needless = soctk.SOCICNN(3, 2, hidden=(), diagonal=True, norms=(3,), structures=((), ("norm0",)))
    soctk.fit(needless, data, config)
    assert needless.structure == 0  # the data are exactly quadratic
    needed = soctk.SOCICNN(3, 2, hidden=(2,), quadratics=(3,), structures=((), ("quadratic0",)))
    soctk.fit(needed, data, config)
    assert needed.structure == 1


def test_losses():
    data = smooth_data()
    model = soctk.SOCICNN(3, 2)
    residual = model.evaluate(data.x, data.context) - data.value
    assert float(value_loss(model, data).detach()) == pytest.approx(float(residual.detach().square().mean()))
    level = residual.mean(dim=1).square().mean()
    expected = (residual - residual.mean(dim=1, keepdim=True)).square().mean() + 0.3 * level
    assert float(residual_loss(residual.detach(), 0.3)) == pytest.approx(float(expected.detach()))


def unseen_task(theta: torch.Tensor) -> soctk.ConicForm:
    """A dense quadratic, two norms and a logistic term in dimension 8, context dimension 5: none of the six."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    n, p = 8, 5
    root, center = normal(n, n) / n**0.5, 0.3 * normal(p, n) / p**0.5
    terms = [
        Quadratic(
            DenseMap(root[None]),
            -((0.5 + theta @ center) @ root.mT).unsqueeze(1),
            torch.ones(1, 1, n).double(),
        )
    ]
    apex = torch.zeros(1, 1, 1, dtype=torch.float64)
    for rows in (3, 2):
        offset = (0.3 * normal(rows) + theta @ normal(p, rows) * 0.2).unsqueeze(1)
        weight = (0.3 + torch.nn.functional.softplus(theta @ normal(p, 1) * 0.2)).unsqueeze(1)
        terms.append(Norms(DenseMap(normal(1, rows, n) / n**0.5), offset, weight, apex, rows))
    slope = (theta @ normal(p, 4) * 0.3).unsqueeze(1)
    terms.append(Logistic(DenseMap(normal(1, 4, n)), slope, torch.full((1, 1, 4), 0.4, dtype=torch.float64)))
    v = (0.3 * normal(n) + theta @ normal(p, n) * 0.2).unsqueeze(1)
    return soctk.ConicForm(torch.zeros(theta.shape[0], 1).double(), v, tuple(terms), (theta.shape[0],))


def test_defaults_carry_over_to_a_task_nobody_tuned_them_to():
    """0.2 % of the objective's spread, which is of order one, and far below the least-squares quadratic's."""
    task = Task("unseen", 8, 0, soctk.Box(8), 5, unseen_task)
    train, validation = task.sample(300, 48, seed=1), task.sample(300, 48, seed=2)
    contexts = task.contexts(200, seed=3)
    assert 0.3 < float(train.value.std(dim=1).mean()) < 3.0
    optimum = task.solve(contexts).value
    regret = {}
    for name in ("soc", "quadratic"):
        model = soctk.make_surrogate(name, 8, 5)
        soctk.fit(model, train, validation=validation)
        decision = soctk.minimize(model, task.feasible_set, contexts)
        regret[name] = float((task.objective(decision.x, contexts) - optimum).mean())
    assert regret["soc"] < 2e-3
    assert regret["soc"] < 0.1 * regret["quadratic"]


class Bare(soctk.ConvexSurrogate):
    """The least a surrogate can be: a conic form, nothing else."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.center = torch.nn.Linear(2, 3, dtype=torch.float64)
        self.log_weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def _conic_form(self, context: torch.Tensor) -> soctk.ConicForm:
        identity = DenseMap(torch.eye(3, dtype=self.dtype)[None])
        term = Quadratic(identity, -self.center(context).unsqueeze(1), self.log_weight.exp().reshape(1, 1, -1))
        return soctk.ConicForm(self.dtype_zero(), self.dtype_zero().expand(1, 1, 3), (term,), (context.shape[0],))

    def dtype_zero(self) -> torch.Tensor:
        return torch.zeros(1, 1, dtype=self.dtype)


def test_a_surrogate_with_the_one_required_method_can_be_fitted():
    data = smooth_data()
    model = Bare()

    def variation_missed() -> float:
        residual = (model.evaluate(data.x, data.context) - data.value).detach()
        return float((residual - residual.mean(dim=1, keepdim=True)).square().mean())

    before = variation_missed()
    soctk.fit(model, data)
    assert variation_missed() < 0.1 * before


def test_a_time_limit_keeps_what_was_learned_before_it():
    data = smooth_data()
    for limit in (1e-9, 0.2):
        model = soctk.SOCICNN(3, 2, seed=3)
        before = relative_error(model, data)
        report = soctk.fit(model, data, soctk.FitConfig(time_limit=limit, epochs=3))
        assert report.status == "time_limit"
        assert relative_error(model, data) < before


def test_unusual_data_are_learned_all_the_same():
    data, config = smooth_data(), soctk.FitConfig(starts=1, epochs=4)
    single = soctk.ValueData(data.context, data.x[:, :1], data.value[:, :1])
    model = soctk.SOCICNN(3, 2, diagonal=True)
    soctk.fit(model, data, config, validation=single)  # too few candidates to project an affine function out
    assert relative_error(model, data) < 0.05
    affine = soctk.SOCICNN(3, 2, hidden=())
    soctk.fit(affine, data, config)
    assert relative_error(affine, data) < 0.5
    many = smooth_data(instances=200)
    model = soctk.SOCICNN(3, 2, diagonal=True)
    soctk.fit(model, many, soctk.FitConfig(starts=1, epochs=4, rows=150))  # more instances than rows
    assert relative_error(model, many) < 0.05


def single_instance(candidates: int = 900) -> soctk.ValueData:
    """Values of a norm without context: one instance of many candidates."""
    x = torch.rand(1, candidates, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return soctk.ValueData(torch.zeros(1, 0), x, 2.0 + (x - 0.4).norm(dim=-1))


@pytest.mark.parametrize(("instances", "candidates", "batch"), [(1, 900, 250), (3, 40, 30), (7, 10, 25), (2, 10, 10)])
def test_an_epoch_has_every_value_once_in_batches_that_are_not_too_large(instances, candidates, batch):
    values = torch.arange(float(instances * candidates)).reshape(instances, candidates)
    part = Standardized(torch.zeros(instances, 0), torch.zeros(instances, candidates, 1), values)
    pieces = list(mini_batches(part, batch, torch.Generator().manual_seed(0)))
    assert len(pieces) == batches_per_epoch(batch, instances, candidates)
    assert max(piece.value.numel() for piece in pieces) <= batch
    assert torch.equal(torch.cat([piece.value.flatten() for piece in pieces]).sort().values, values.flatten())
    assert all(piece.x.shape[:2] == piece.value.shape for piece in pieces)


def test_one_instance_is_split_by_candidates():
    data = single_instance(10)
    train, held_out = data.split(share=0.2)
    assert (train.candidates, held_out.candidates) == (8, 2)
    together = torch.cat([train.value, held_out.value], dim=1)
    assert torch.equal(together.sort().values, data.value.sort().values)


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_function_without_context_is_learned_from_one_instance():
    data = single_instance()
    model = soctk.NormICNN(3, hidden=(4,))
    soctk.fit(model, data, soctk.FitConfig(starts=2, epochs=20, batch_rows=100))
    assert relative_error(model, data) < 1e-3


@pytest.mark.parametrize("threads", [1, 3])
def test_a_fit_takes_the_cores_it_is_given_and_gives_them_back(threads: int):
    before, during = torch.get_num_threads(), set()
    torch.set_num_threads(2)

    def look() -> bool:
        during.add(torch.get_num_threads())
        return False

    try:
        soctk.fit(soctk.SOCICNN(3, 2), smooth_data(), replace(QUICK, threads=threads), stop=look)
        assert during == {threads}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["relu", "dcp"])
def test_validation_data_of_single_values_validate_what_moves_decisions(kind: str):
    """The level of an instance says nothing of it, and is learned last: it must not choose what is kept before."""
    data, model = smooth_data(), soctk.make_surrogate(kind, 3, 2)
    waves = 40 * torch.sin(3 * data.context[:, :1])
    whole = soctk.ValueData(data.context, data.x, data.value + waves)
    soctk.fit(model, whole, replace(QUICK, epochs=5), validation=whole.columns(torch.arange(1)))
    with torch.no_grad():
        error = model(data.x, data.context) - data.value
    within = error - error.mean(dim=1, keepdim=True)
    assert float(within.std()) <= 0.5 * float((data.value - data.value.mean(dim=1, keepdim=True)).std())


def test_data_may_carry_a_graph():
    data = smooth_data()
    factor = torch.ones((), dtype=torch.float64, requires_grad=True)
    carried = soctk.ValueData(data.context, data.x * factor, data.value * factor)
    soctk.fit(soctk.SOCICNN(3, 2, diagonal=True), carried, QUICK)
    assert factor.grad is None


def test_an_interrupted_fit_leaves_where_its_data_were_beside_its_weights():
    data, model = smooth_data(), soctk.SOCICNN(3, 2, diagonal=True)
    soctk.fit(model, data, QUICK)
    moved, calls = soctk.ValueData(data.context, 50 + data.x, data.value), []

    def stop() -> bool:
        calls.append(0)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        soctk.fit(model, moved, replace(QUICK, lbfgs_iterations=500), stop=stop)
    assert model.support is not None
    assert (model.support.x[0] <= model.x_mean.numpy()).all()
    assert (model.x_mean.numpy() <= model.support.x[1]).all()


@pytest.mark.parametrize(
    ("name", "wrong"), [("seed", -1), ("seed", 1.5), ("weight_decay", math.nan), ("weight_decay", -1)]
)
def test_bad_numbers_of_a_recipe_are_refused(name: str, wrong: float):
    with pytest.raises((TypeError, ValueError), match=name):
        soctk.FitConfig(**{name: wrong})


def test_no_iterations_leave_the_weights():
    data, model = smooth_data(), soctk.SOCICNN(3, 2, diagonal=True, seed=1)
    before = [weight.detach().clone() for weight in model.parameters()]
    none = dict.fromkeys(("epochs", "newton_iterations", "lbfgs_iterations", "level_iterations"), 0)
    soctk.fit(model, data, soctk.FitConfig(starts=1, optimizer="lbfgs", project_affine=False, **none))
    assert all(torch.equal(weight, old) for weight, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("name", ["quadratic", "quad", "relu"])
def test_what_only_one_of_few_contexts_has_is_learned(name: str) -> None:
    """Each of four categories has an optimum of its own, which only its values tell."""
    context, x = torch.eye(4), torch.linspace(-3, 7, 60).reshape(1, 60, 1).expand(4, 60, 1)
    data = soctk.ValueData(context, x, (x.squeeze(-1) - torch.tensor([[0.0], [3.0], [-2.0], [5.0]])).square())
    model = soctk.make_surrogate(name, 1, 4)
    soctk.fit(model, data, soctk.FitConfig(starts=1))
    assert relative_error(model, data) < 0.02
    for part in data.split():
        assert torch.equal(part.context, context)
    ones = soctk.ValueData(context.repeat(20, 1), x[0, :20, None].repeat(4, 1, 1), torch.zeros(80, 1))
    assert all(len(torch.unique(part.context, dim=0)) == 4 for part in ones.split())


def test_of_few_contexts_of_unequally_many_values_none_is_on_both_sides() -> None:
    counts = torch.tensor([5, 8, 20])
    place = torch.arange(20) % counts.unsqueeze(1)
    value = (100 * torch.arange(3).unsqueeze(1) + place).double()
    data = soctk.ValueData(torch.eye(3), value.unsqueeze(-1), value, counts)
    parts = [part.one_by_one() for part in data.split(seed=3)]
    assert torch.equal(torch.cat([part.value for part in parts]).sort(dim=0).values, data.one_by_one().value)
    assert all(torch.equal(part.x[..., 0], part.value) for part in parts)
    assert [len(torch.unique(part.context, dim=0)) for part in parts] == [3, 3]
    assert torch.equal(parts[1].context.sum(dim=0), torch.tensor([1.0, 2.0, 4.0]))


def test_a_fit_learns_where_gradients_are_off_and_says_where_it_cannot() -> None:
    data = single_instance(40)
    with torch.no_grad():
        model = soctk.NormICNN(3, hidden=(4,))
        soctk.fit(model, data, soctk.FitConfig(starts=1, epochs=2))
    assert all(weight.requires_grad for weight in model.parameters())
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        soctk.fit(soctk.NormICNN(3, hidden=(4,)), data)


def test_a_fit_learns_the_same_where_anomalies_are_looked_for() -> None:
    """PyTorch's debug mode looks for a NaN in each operation, which batched derivatives refuse."""
    data, found = make_task("simplex_socp", dim=4).sample(instances=40, candidates=16, seed=1), []
    brief = soctk.FitConfig(starts=1, choose_structure=False, epochs=1, newton_iterations=2, lbfgs_iterations=2)
    for mode in (False, True):
        model = soctk.make_surrogate("soc", 4, 8)
        with torch.autograd.set_detect_anomaly(mode):
            soctk.fit(model, data, brief)
            assert torch.is_anomaly_check_nan_enabled() or not mode
        found.append(model.state_dict())
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["relu", "dcp"])
def test_frozen_weights_stay_as_they_are(kind: str) -> None:
    data, models = smooth_data(), [soctk.make_surrogate(kind, 3, 2).double() for _ in range(2)]
    frozen = [name for name, _ in models[0].named_parameters() if not name.startswith("affine.")][::2]
    for name in frozen:
        models[0].get_parameter(name).requires_grad_(False)
    before = {name: weight.detach().clone() for name, weight in models[0].named_parameters()}
    for model in models:
        soctk.fit(model, data, replace(QUICK, starts=2))
    assert all(weight.requires_grad == (name not in frozen) for name, weight in models[0].named_parameters())
    assert all(torch.equal(models[0].get_parameter(name), before[name]) for name in frozen)
    assert not any(torch.equal(models[1].get_parameter(name), before[name]) for name in frozen)


@pytest.mark.parametrize(
    ("kind", "name"), [("soc", "lam.constant"), ("soc", "affine.slope.slope"), ("quadratic", "level")]
)
def test_frozen_weights_are_refused_where_a_fit_sets_them_all_the_same(kind: str, name: str) -> None:
    data, model = smooth_data(), soctk.make_surrogate(kind, 3, 2)
    soctk.fit(model, data, QUICK)  # without some blocks, whose weights are no longer learned
    soctk.fit(model, data, QUICK)
    model.get_parameter(name).requires_grad_(False)
    flags = [weight.requires_grad for weight in model.parameters()]
    before = model.evaluate(data.x, data.context)
    with pytest.raises(ValueError, match=rf"got 1 without \({name}\)"):
        soctk.fit(model, data, QUICK)
    assert flags == [weight.requires_grad for weight in model.parameters()]
    assert torch.equal(model.evaluate(data.x, data.context), before)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([3, 0], "whole numbers from 1 to 4.*got 0"),
        ([2.5, 1], "got 2.5"),
        ([5, 1], "got 5"),
        ([1, 1, 1], r"shape \(3,\)"),
    ],
)
def test_counts_are_checked(counts: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        soctk.ValueData(torch.zeros(2, 1), torch.zeros(2, 4, 3), torch.zeros(2, 4), counts)  # type: ignore[arg-type]
    kept = soctk.ValueData(torch.zeros(2, 1), torch.zeros(2, 4, 3), torch.zeros(2, 4), [3, 4])  # type: ignore[arg-type]
    assert kept.counts is not None
    assert kept.counts.tolist() == [3, 4]


def test_options_of_another_kind_are_named() -> None:
    with pytest.raises(ValueError, match="optima_weights: expected a sequence"):
        soctk.FitConfig(optima_weights=1.0)  # type: ignore[arg-type]
    data = soctk.ValueData(torch.zeros(2, 1), torch.rand(2, 4, 3), torch.zeros(2, 4))
    with pytest.raises(TypeError, match="stop: expected a function"):
        soctk.fit(soctk.QuadICNN(3, 1), data, stop=True)  # type: ignore[arg-type]
