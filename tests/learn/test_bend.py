"""Offsets and weights that bend with the context: found where values ask for it, and left out elsewhere."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch
from tolerances import DOUBLE

import soctk
from soctk.learn.optimizers import LBFGS, LevenbergMarquardt, Suited
from soctk.learn.phases.bend import Bend
from soctk.learn.phases.curved import Curved
from soctk.learn.phases.slope import Slope
from soctk.learn.recipe import recipe_for
from soctk.learn.trainer import Trainer
from soctk_baselines import DCP, ICKAN

DIM, P = 3, 2
RECIPE = soctk.FitConfig(starts=1, epochs=2, rows=2400, lbfgs_iterations=100)
BENDING = dataclasses.replace(RECIPE, context_units=6)
LONGER = Curved(LBFGS(100, 20, 20, 3), 2400)
DRAW = Curved(Suited(LevenbergMarquardt(30, 1e-7), 3000, LONGER.optimizer), 2400)
PHASE = Bend(6, 1, DRAW, (LONGER,), (Slope(),), 2400, 0.0)
GAIN = 0.1
"""What is left of the squared error at most where true centres bend."""


def data(
    bend: float = 1.5, noise: float = 0.0, seed: int = 0, instances: int = 150, candidates: int = 16
) -> soctk.ValueData:
    """Return a norm and a quadratic about centres that swing with the context, or follow it, with `bend` 0."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (instances, P), (instances, candidates, DIM), (instances, candidates)
    theta, x, error = (torch.randn(shape, generator=generator, dtype=DOUBLE) for shape in shapes)
    moved = torch.sin(bend * theta) if bend > 0 else 0.5 * theta
    one, other = (x - (moved @ torch.full((P, DIM), each, dtype=DOUBLE)).unsqueeze(1) for each in (0.5, -0.4))
    value = one.norm(dim=-1) + other.square().sum(dim=-1) / 2
    return soctk.ValueData(theta, x, value + noise * error)


def soc(**more: Any) -> soctk.SOCICNN:
    return soctk.SOCICNN(DIM, P, **{"hidden": (), "diagonal": True, "norms": (DIM,), "ridges": 4, **more})


MODELS = {
    "soc": soc,
    "softplus": lambda: soctk.SoftplusICNN(DIM, P, hidden=(6,)),
    "dcp": lambda: DCP(DIM, P, logistics=2),
    "ickan": lambda: ICKAN(DIM, P, hidden=(4,), segments=4),
}


def shape_error(model: soctk.ConvexSurrogate, of: soctk.ValueData) -> float:
    """Return the mean square of what the values miss, levels aside."""
    with torch.no_grad():
        left = model(of.x, of.context) - of.value
    return float((left - left.mean(dim=1, keepdim=True)).square().mean())


def state_of(model: soctk.ConvexSurrogate) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(("instances", "candidates"), [(150, 16), (1500, 1)])
def test_a_response_that_bends_is_found(instances: int, candidates: int) -> None:
    """With the affine function of every instance projected out, and from single values, where it is not."""
    models, held_out = {}, data(seed=2)
    train, validation = (data(seed=seed, instances=instances, candidates=candidates) for seed in (0, 1))
    for name, recipe in (("affine", RECIPE), ("bending", BENDING)):
        models[name] = soc()
        soctk.fit(models[name], train, recipe, validation=validation)
    assert (models["affine"].context_units, models["bending"].context_units) == (0, 6)
    assert shape_error(models["bending"], held_out) < GAIN * shape_error(models["affine"], held_out)


@pytest.mark.parametrize(
    ("candidates", "bend", "noise"),
    [(16, 0.0, 0.0), *((candidates, *law) for law in ((0.0, 0.1), (1.5, 3.0)) for candidates in (16, 3, 1))],
)
def test_where_nothing_bends_or_noise_hides_it_the_fit_is_the_one_without(
    candidates: int, bend: float, noise: float
) -> None:
    fits = [soc(), soc()]
    train, validation = (data(bend, noise, seed, candidates=candidates) for seed in (0, 1))
    for model, recipe in zip(fits, (RECIPE, BENDING), strict=True):
        soctk.fit(model, train, recipe, validation=validation)
    assert fits[1].context_units == 0
    torch.testing.assert_close(fits[1].state_dict(), fits[0].state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_with_units_can_take_them(name: str) -> None:
    """The held-out loss never rises by it: what is kept is the better of two fits."""
    model = MODELS[name]()
    trainer = Trainer(model, data(), data(seed=1))
    reference = Trainer(MODELS[name](), data(), data(seed=1))
    losses = []
    for each, phase in ((reference, Slope()), (trainer, PHASE)):
        phase.run(each)
        losses.append(float(each.weighted(2400, 0.0)[1].total(each.model).detach()))
    assert losses[1] <= losses[0]
    assert model.config()["context_units"] == model.traits.units.count == 6
    again = type(model)(**model.config())
    again.load_state_dict(model.state_dict())
    x, context = data().x, data().context
    assert torch.equal(again(x, context), model(x, context))


def test_what_begins_with_units_is_learned_with_them_from_the_start() -> None:
    model = soc(context_units=5)
    before = state_of(model)
    assert "Bend(" not in repr(recipe_for(model, BENDING, 16))
    soctk.fit(model, data(), BENDING)
    assert model.context_units == 5
    assert not torch.equal(model.units.inner, before["units.inner"])


@pytest.mark.parametrize(
    "make",
    [lambda: soctk.SOCICNN(DIM, 0), lambda: soctk.make_surrogate("pcf", DIM, P)],
)
def test_there_is_no_such_phase_where_nothing_could_bend(make: Any) -> None:
    for candidates in (16, 3, 1):
        assert "Bend(" not in repr(recipe_for(make(), BENDING, candidates))
        assert "Bend(" in repr(recipe_for(soc(), BENDING, candidates))
        assert "Bend(" not in repr(recipe_for(soc(), RECIPE, candidates))


def test_units_begin_as_nothing_and_leave_nothing() -> None:
    model, of = soc(), data()
    expected, before = model(of.x, of.context), state_of(model)
    model.units.resize(4, model, seed=1)
    assert torch.equal(model(of.x, of.context), expected)
    with torch.no_grad():
        model.d[0].slope += 0.1
    assert not torch.equal(model(of.x, of.context), expected)
    model.units.resize(0, model)
    model.load_state_dict(before)
    assert torch.equal(model(of.x, of.context), expected)
    with pytest.raises(ValueError, match="context_units: expected 0 without a context, got 3"):
        soctk.SOCICNN(DIM, 0, context_units=3)


def test_an_interruption_leaves_units_and_weights_that_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = soc()
    trainer = Trainer(model, data(), data(seed=1))
    resize = type(model.units).resize

    def interrupted(units: Any, count: int, *more: Any) -> None:
        resize(units, count, *more)
        if count > 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(type(model.units), "resize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PHASE.run(trainer)
    found = trainer.finish()
    assert model.context_units == 0
    torch.testing.assert_close(model.state_dict(), dict(trainer.best), rtol=0, atol=0)
    assert found.status is not None


def test_out_of_time_the_fit_without_units_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is up while the first draw is learned."""
    model = soc()
    trainer = Trainer(model, data(), data(seed=1), soctk.learn.deadline.Deadline(60.0, None))
    resize = type(model.units).resize

    def late(units: Any, count: int, *more: Any) -> None:
        resize(units, count, *more)
        monkeypatch.setattr(time, "perf_counter", lambda: float("inf"))

    monkeypatch.setattr(type(model.units), "resize", late)
    PHASE.run(trainer)
    assert model.context_units == 0
    assert trainer.finish().status == "time_limit"
