"""More hyperbolic branches: beside those there are, kept where values ask for them, gone without a trace elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import DOUBLE, VALUE

import soctk
from soctk.learn.optimizers import LBFGS, LevenbergMarquardt
from soctk.learn.phases.curved import Curved
from soctk.learn.phases.draws import best_draw
from soctk.learn.phases.grow import Grow
from soctk.learn.phases.level import Level
from soctk.learn.phases.slope import Slope
from soctk.learn.trainer import Trainer

DIM, P = 3, 2
SIZES = {"hidden": (), "diagonal": True, "norms": (2,), "hyperbolics": 1, "level_squares": True}
CHOICE = {"structures": (("diagonal", "hyperbolics"), ("diagonal", "hyperbolics", "norm0"))}
RECIPE = soctk.FitConfig(starts=1, epochs=1, level_iterations=20, rows=2400)
DRAW = Curved(LevenbergMarquardt(25, 1e-7), 1200)
THEN = (Curved(LevenbergMarquardt(50, 1e-7), 2400), Curved(LBFGS(300, 20, 20, 5), 2400))
FOLLOW = (Slope(), Level(LBFGS(20, 20, 20, 5)))
PHASE = Grow(2, DRAW, THEN, FOLLOW, 2400, 3000)
GAIN = 0.1
"""What is left of the squared error at most where there are more kinks than branches."""


def model(**more: object) -> soctk.SOCICNN:
    return soctk.SOCICNN(DIM, P, **SIZES | CHOICE | more)  # type: ignore[arg-type]


def kinks(x: torch.Tensor, context: torch.Tensor, count: int = 4) -> torch.Tensor:
    """Return rounded kinks in so many directions that the context moves, beside a bowl."""
    angle = torch.arange(count, dtype=DOUBLE) * (torch.pi / count)
    rows = torch.stack([angle.cos(), angle.sin(), (2 * angle).cos()], dim=1)
    moved = context @ torch.stack([angle.sin(), (3 * angle).cos()]).to(DOUBLE)
    along = x @ rows.mT + (0.3 * moved).unsqueeze(-2)
    return (along.square() + 0.01).sqrt().sum(dim=-1) + 0.3 * x.square().sum(dim=-1)


def data(count: int = 4, noise: float = 0.0, seed: int = 0) -> soctk.ValueData:
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(100, P, generator=generator, dtype=DOUBLE)
    x = 2 * torch.rand(100, 24, DIM, generator=generator, dtype=DOUBLE) - 1
    value = kinks(x, context, count)
    return soctk.ValueData(context, x, value + noise * torch.randn(value.shape, generator=generator, dtype=DOUBLE))


def held_out(surrogate: soctk.ConvexSurrogate, of: soctk.ValueData) -> float:
    """Return the mean square of what the model leaves of the values' variation within an instance."""
    residual = of.value - surrogate(of.x, of.context).detach()
    return float((residual - residual.mean(dim=1, keepdim=True)).square().mean())


def points() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(40, DIM, generator=generator, dtype=DOUBLE), torch.randn(
        40, P, generator=generator, dtype=DOUBLE
    )


def shaken(surrogate: soctk.SOCICNN) -> soctk.SOCICNN:
    """Return the model with weights that are none of its initial ones."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in surrogate.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return surrogate


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 3), st.sampled_from(["full", "affine", "additive"]))
def test_added_branches_add_and_go_without_a_trace(had: int, added: int, units: int, conditioning: str) -> None:
    """What they add is itself a sum of branches: never negative, convex; the others stay as they are."""
    surrogate = shaken(model(hyperbolics=had, context_units=units, conditioning=conditioning))
    x, context = points()
    before, state = surrogate(x, context).detach(), surrogate.state_dict()
    state = {name: tensor.clone() for name, tensor in state.items()}
    surrogate.set_hyperbolics(had + added, seed=5)
    assert (surrogate.hyperbolics, surrogate.traits.branches) == (had + added, had + added)
    assert surrogate.config()["hyperbolics"] == had + added

    def more(points: torch.Tensor) -> torch.Tensor:
        return surrogate(points, context).detach() - smaller(points, context).detach()

    smaller = model(hyperbolics=had, context_units=units, conditioning=conditioning)
    smaller.load_state_dict(state)
    assert (more(x) > 0).all()
    assert (more(x.flip(0)) + more(x) - 2 * more((x + x.flip(0)) / 2) >= -VALUE[DOUBLE]).all()
    surrogate.set_hyperbolics(had)
    assert torch.equal(surrogate(x, context), before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in surrogate.state_dict().items())


def test_what_was_computed_before_is_still_differentiated() -> None:
    """PyTorch keeps the shape of a weight as long as anything computed from it: others take its place."""
    surrogate, (x, context) = model(), points()
    before = surrogate(x, context).sum()
    weight = surrogate.kappa
    surrogate.set_hyperbolics(4)
    (before + surrogate(x, context).sum()).backward()
    assert weight is not surrogate.kappa
    assert [len(each.grad) for each in (weight, surrogate.kappa)] == [1, 4]  # type: ignore[arg-type, union-attr]


def test_draws_differ_by_their_seed() -> None:
    surrogate = model()
    rows = []
    for seed in (0, 1, 0):
        surrogate.set_hyperbolics(1)
        surrogate.set_hyperbolics(3, seed)
        rows.append(surrogate.A_hyperbolic[1:].detach().clone())  # type: ignore[index]
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])


def test_branches_of_a_structure_without_them_stay_off() -> None:
    surrogate = model(structures=(("diagonal",), ("diagonal", "hyperbolics", "norm0")), structure=0)
    assert surrogate.traits.branches == 0
    surrogate.set_hyperbolics(4)
    assert not surrogate.A_hyperbolic.requires_grad  # type: ignore[union-attr]
    assert surrogate.traits.branches == 0
    surrogate.set_structure(1)
    assert surrogate.A_hyperbolic.requires_grad  # type: ignore[union-attr]
    assert surrogate.traits.branches == 4


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_a_wrong_count_is_refused(count: object) -> None:
    with pytest.raises((ValueError, TypeError), match="count"):
        model().set_hyperbolics(count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hyperbolics"):
        soctk.SOCICNN(DIM, P, norms=(2,)).set_hyperbolics(2)


def test_a_state_of_another_size_is_loaded_once_there_is_room() -> None:
    """Not silently: an optimizer of before would hold weights that are the model's no more."""
    grown, smaller = shaken(model()), model()
    grown.set_hyperbolics(4)
    with pytest.raises(RuntimeError, match="size mismatch for A_hyperbolic"):
        smaller.load_state_dict(grown.state_dict())
    smaller.set_hyperbolics(4)
    smaller.load_state_dict(grown.state_dict())
    x, context = points()
    assert torch.equal(smaller(x, context), grown(x, context))


def test_branches_are_added_where_there_are_more_kinks(tmp_path: Path) -> None:
    grown, plain = model(), model()
    report = soctk.fit(grown, data(), RECIPE, validation=data(seed=1))
    soctk.fit(plain, data(), soctk.FitConfig(**vars(RECIPE) | {"grow": False}), validation=data(seed=1))
    assert report.model is grown
    assert (plain.hyperbolics, grown.hyperbolics) == (1, 1 + DIM)
    assert held_out(grown, data(seed=2)) < GAIN * held_out(plain, data(seed=2))
    soctk.save(grown, tmp_path / "grown.pt")
    again = soctk.load(tmp_path / "grown.pt")
    x, context = points()
    assert torch.equal(again(x, context), grown(x, context))
    assert again.config() == grown.config()
    mean = soctk.average([grown, plain])
    assert torch.allclose(mean(x, context), (grown(x, context) + plain(x, context)) / 2)


@pytest.mark.parametrize(
    ("phase", "of"),
    [
        pytest.param(PHASE, data(1), id="no more kinks than branches"),
        pytest.param(PHASE, data(noise=1.0), id="noise"),
        pytest.param(Grow(2, DRAW, THEN, FOLLOW, 2400, 30), data(), id="too many weights"),
    ],
)
def test_elsewhere_nothing_changes(phase: Grow, of: soctk.ValueData) -> None:
    surrogate = model(structure=0)
    trainer = Trainer(surrogate, of, of)
    Curved(LevenbergMarquardt(100, 1e-9), 2400).run(trainer)
    before = trainer.state()
    phase.run(trainer)
    assert surrogate.hyperbolics == 1
    assert all(torch.equal(trainer.state()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interruption_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    surrogate = model(structure=0)
    trainer = Trainer(surrogate, data(), data(seed=1))
    before, calls = trainer.state(), [0]
    search = Curved.run

    def interrupted(phase: Curved, trainer: Trainer) -> None:
        calls[0] += 1
        if calls[0] == after:
            raise KeyboardInterrupt
        search(phase, trainer)

    monkeypatch.setattr(Curved, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PHASE.run(trainer)
    trainer.finish()
    assert surrogate.hyperbolics == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in surrogate.state_dict().items())


def test_no_draw_begins_once_time_is_up() -> None:
    trainer = Trainer(model(structure=0), data(), data(seed=1))
    trainer.interrupt()
    assert best_draw(trainer, DRAW, 2, lambda seed: None) is None
    before = trainer.state()
    PHASE.run(trainer)
    assert all(torch.equal(trainer.state()[name], tensor) for name, tensor in before.items())


def test_members_may_have_different_numbers_of_branches() -> None:
    report = soctk.fit(model(), data(), soctk.FitConfig(**vars(RECIPE) | {"members": 2, "jobs": 1}))
    members = report.model.members  # type: ignore[attr-defined]
    assert {member.hyperbolics for member in members} <= {1, 1 + DIM}
    x, context = points()
    assert torch.allclose(report.model(x, context), sum(member(x, context) for member in members) / 2)


class OfItsOwnConfig(soctk.SOCICNN):
    """Sizes that its `config()` does not hold."""

    def __init__(self, dim: int, context_dim: int) -> None:
        super().__init__(dim, context_dim, **SIZES | CHOICE)  # type: ignore[arg-type]

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim, "context_dim": self.context_dim}


def test_sizes_that_a_file_would_not_hold_stay() -> None:
    surrogate = OfItsOwnConfig(DIM, P)
    soctk.fit(surrogate, data(), RECIPE, validation=data(seed=1))
    assert surrogate.hyperbolics == 1


def test_what_b0_and_v_cannot_follow_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is left within an instance; what is left of the values as a whole decides too."""
    surrogate, of, other = model(structure=0), data(), data(seed=1)
    trainer = Trainer(surrogate, of, other)
    before = trainer.state()
    monkeypatch.setattr("soctk.learn.phases.grow.FOLLOWED", 0.0)
    PHASE.run(trainer)
    assert surrogate.hyperbolics == 1
    assert all(torch.equal(trainer.state()[name], tensor) for name, tensor in before.items())
    monkeypatch.setattr("soctk.learn.phases.grow.FOLLOWED", 4.0)
    PHASE.run(trainer)
    assert surrogate.hyperbolics == 1 + DIM


def test_an_interruption_amid_the_change_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    surrogate = model(structure=0)
    trainer = Trainer(surrogate, data(), data(seed=1))
    before, put = trainer.state(), soctk.SOCICNN.__setattr__

    def interrupted(self: soctk.SOCICNN, name: str, value: object) -> None:
        if name == "kappa":
            monkeypatch.undo()
            raise KeyboardInterrupt
        put(self, name, value)  # type: ignore[arg-type]

    monkeypatch.setattr(soctk.SOCICNN, "__setattr__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PHASE.run(trainer)
    assert surrogate.hyperbolics == 1
    assert all(torch.equal(trainer.state()[name], tensor) for name, tensor in before.items())
