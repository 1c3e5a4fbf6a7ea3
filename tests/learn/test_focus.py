"""Learning that looks at what is near the best (`FitConfig.focus`): weighted least squares, and what it is good for."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import DOUBLE, VALUE

import soctk
from soctk.learn import residuals
from soctk.learn.phases.focused import FOCUS, FOCUSED_PENALTY, Focused, can_compare, is_steep
from soctk.learn.phases.phase import Phase, run_in_turn
from soctk.learn.phases.refine import Refine
from soctk.learn.recipe import recipe_for
from soctk.learn.residuals import Residuals
from soctk.learn.trainer import Trainer
from soctk.learn.units import Standardized

DIM, P = 3, 2


def data(instances: int, candidates: int, seed: int) -> Standardized:
    generator = torch.Generator().manual_seed(seed)
    shapes = (instances, P), (instances, candidates, DIM), (instances, candidates)
    return Standardized(*(torch.randn(shape, generator=generator, dtype=DOUBLE) for shape in shapes))


@settings(max_examples=30)
@given(st.floats(1e-3, 100), st.integers(1, 4), st.integers(1, 9), st.integers(0, 999))
def test_the_best_come_first_and_weigh_most(focus: float, instances: int, candidates: int, seed: int) -> None:
    part = data(instances, candidates, seed)
    focused = part.focused(focus)
    assert (focused.value.diff(dim=1) >= 0).all()
    pairs = torch.cat([part.x, part.value.unsqueeze(-1)], dim=-1)
    again = torch.cat([focused.x, focused.value.unsqueeze(-1)], dim=-1)
    order = part.value.argsort(dim=1).unsqueeze(-1).expand_as(pairs)
    assert torch.equal(again, pairs.gather(1, order))  # the same decisions with the same values
    assert focused.root is not None
    assert (focused.root[:, 0] == 1).all()
    assert (focused.root.diff(dim=1) <= 0).all()
    above = focused.value - focused.value[:, :1]
    assert torch.allclose(focused.root.square() * (1 + focus * above).square(), torch.ones_like(above))
    assert part.focused(0.0) is part


@pytest.mark.parametrize("candidates", [5, 9, 40])  # with a basis of what is left, and without
@pytest.mark.parametrize("focus", [0.0, 0.5, 20.0])
def test_projecting_is_weighted_least_squares(focus: float, candidates: int) -> None:
    model = soctk.SOCICNN(DIM, P, norms=(2,), diagonal=True)
    part = data(4, candidates, seed=1).focused(focus)
    of = Residuals.projected(part)
    with torch.no_grad():
        curved = model._value(part.x, part.context)
        rest = (part.value - curved + (part.x * model.affine(part.context)[1]).sum(dim=-1)).numpy()
        slopes = of.slope_targets(model, model.affine).numpy()
    weights = np.ones((4, candidates)) if part.root is None else part.root.square().numpy()
    weights /= weights.mean()
    least = 0.0
    for i in range(4):
        root = np.sqrt(weights[i])[:, None]
        columns = np.column_stack([np.ones(candidates), part.x[i].numpy()])
        best, *_ = np.linalg.lstsq(root * columns, root[:, 0] * rest[i], rcond=None)
        least += np.sum(weights[i] * (rest[i] - columns @ best) ** 2)
        assert np.allclose(slopes[i], best[1:], atol=1e-6)
    assert float(of.loss(model).detach()) == pytest.approx(least / (4 * candidates), abs=VALUE[DOUBLE])


@pytest.mark.parametrize("limits", [{"LARGEST_PIECE": 2 * 9 * DIM}, {"LARGE": 0, "ROWS_AT_A_TIME": 2 * 9}])
def test_pieces_add_up(limits: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = soctk.SOCICNN(DIM, P, norms=(2,))
    if "LARGEST_PIECE" in limits:
        broad = dataclasses.replace(model.traits, breadth=1)
        monkeypatch.setattr(type(model), "traits", property(lambda _: broad))
    for of in (Residuals.projected(data(5, 9, 2).focused(3.0)), Residuals.weighted(data(5, 9, 2).focused(3.0), 0.1)):
        whole = float(of.loss(model).detach())
        with monkeypatch.context() as small:
            for name, number in limits.items():
                small.setattr(residuals, name, number)
            assert len(of.losses(model)) == 3
            assert float(of.total(model)) == pytest.approx(whole, rel=VALUE[DOUBLE])


def steep(instances: int, seed: int) -> tuple[soctk.ValueData, torch.Tensor]:
    """Return values of sum_i exp(2 (x_i - m_i)) - 2 (x_i - m_i) over [-1, 1]^n, and the m, a linear map of the context.

    They grow several times as fast on one side of m as on the other: no quadratic that fits all alike has its minimum
    there.
    """
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(instances, P, generator=generator, dtype=DOUBLE)
    center = 0.2 * torch.tanh(context[:, :1]) * torch.ones(DIM, dtype=DOUBLE)
    x = 2 * torch.rand(instances, 40, DIM, generator=generator, dtype=DOUBLE) - 1
    return soctk.ValueData(context, x, objective(x, center.unsqueeze(1))), center


def objective(x: torch.Tensor, center: torch.Tensor) -> torch.Tensor:
    return (torch.exp(2 * (x - center)) - 2 * (x - center)).sum(dim=-1)


def test_the_nearer_the_focus_the_better_the_decisions_of_a_model_that_cannot_fit_all() -> None:
    train, _ = steep(200, seed=1)
    test, center = steep(100, seed=2)
    regret = []
    for focus in (0.0, 4.0, 30.0):
        model = soctk.SOCICNN(DIM, P, hidden=(), diagonal=True)
        config = soctk.FitConfig(starts=1, newton_iterations=8, lbfgs_iterations=60, level_iterations=20, focus=focus)
        soctk.fit(model, train, config)
        decision = soctk.minimize(model, soctk.Box(DIM, -1.0, 1.0), test.context)
        assert (decision.status == "optimal").all()
        regret.append(float((objective(decision.x, center) - DIM).mean()))
    assert regret[1] < 0.8 * regret[0]
    assert regret[2] < 0.5 * regret[0]


BRIEF = soctk.FitConfig(starts=2, epochs=4, newton_iterations=30, lbfgs_iterations=300, level_iterations=20)


def penalised(noise: float = 0.0, penalty: float = 60.0, seed: int = 0) -> soctk.ValueData:
    """Return |x - m|^2 / 2 with a penalty on one side, and noise in units of the values' deviation."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (160, P), (160, 20, DIM), (160, 20)
    context, x, error = (torch.randn(shape, generator=generator, dtype=DOUBLE) for shape in shapes)
    value = cost(x, context, penalty)
    return soctk.ValueData(context, x, value + noise * float(value.std()) * error)


def cost(x: torch.Tensor, context: torch.Tensor, penalty: float) -> torch.Tensor:
    apart = x - 0.3 * context[:, None, :1]
    return apart.square().sum(dim=-1) / 2 + penalty * (apart[..., 0] - 1.5).clamp(min=0)


@torch.no_grad()
def decision_cost(model: soctk.ConvexSurrogate, data: soctk.ValueData, penalty: float) -> float:
    decision = soctk.minimize(model, soctk.Box(DIM, -3.0, 3.0), data.context)
    return float(cost(decision.x.unsqueeze(1), data.context, penalty).mean())


def made() -> soctk.ConvexSurrogate:
    """Return a model that has no branch for the penalty."""
    return soctk.SOCICNN(DIM, P, hidden=(), quadratics=(DIM,), seed=0)


def learned(data: soctk.ValueData, config: soctk.FitConfig) -> soctk.ConvexSurrogate:
    """Return what a fit leaves, interrupted or not."""
    model = made()
    with suppress(KeyboardInterrupt):
        soctk.fit(model, data, config)
    return model


@torch.no_grad()
def picked(model: soctk.ConvexSurrogate, data: soctk.ValueData) -> torch.Tensor:
    pick = model(data.x, data.context).argmin(dim=1, keepdim=True)
    return data.value.gather(1, pick).squeeze(1)


@pytest.mark.parametrize(
    ("noise", "penalty", "seed", "focus"),
    [(0.0, 60.0, 0, FOCUS), (0.3, 60.0, 0, FOCUS), (0.3, 60.0, 1, 0.0), (0.0, 0.0, 0, 0.0)],
    ids=["steep", "steep, with noise that says nothing", "steep, with noise that is fitted", "not steep"],
)
def test_the_focus_is_there_where_held_out_decisions_are_not_clearly_worse_for_it(
    noise: float, penalty: float, seed: int, focus: float
) -> None:
    """Where the picks are not told apart the fit with a focus decides better, in these data as in most (method.md)."""
    data = penalised(noise, penalty, seed)
    assert is_steep(data) == (penalty > 0)
    fits = {
        0.0: learned(data, dataclasses.replace(BRIEF, focus=0.0)),
        FOCUS: learned(data, dataclasses.replace(BRIEF, focus=FOCUS, penalty=FOCUSED_PENALTY)),
    }
    _, held_out = data.split(seed=BRIEF.seed)
    worse = picked(fits[FOCUS], held_out) - picked(fits[0.0], held_out)
    assert penalty == 0 or (worse.mean() <= worse.std() / len(worse) ** 0.5) == (focus > 0)
    decided = {each: decision_cost(model, data, penalty) for each, model in fits.items()}
    assert penalty == 0 or decided[focus] < decided[FOCUS - focus]
    found = made()
    assert soctk.fit(found, data, BRIEF).focus == focus
    torch.testing.assert_close(found.state_dict(), fits[focus].state_dict(), rtol=0, atol=0)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(0, 99))
def test_whether_values_are_steep_does_not_depend_on_their_units(level: float, scale: float, seed: int) -> None:
    data = penalised()
    levels = level * torch.randn(160, 1, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    assert is_steep(dataclasses.replace(data, value=scale * (data.value + levels)))
    assert not is_steep(dataclasses.replace(data, value=torch.ones_like(data.value)))


def test_a_few_picks_compare_nothing() -> None:
    data = penalised()
    few = dataclasses.replace(data, x=data.x[:, :7], value=data.value[:, :7])
    assert can_compare(data, data.rows(slice(30)))
    assert not can_compare(data, data.rows(slice(29)))
    assert not can_compare(data, few)
    assert not can_compare(few, data)
    once = torch.full((160,), 20).index_fill(0, torch.tensor([3]), 1)  # one instance's value is repeated
    assert not can_compare(dataclasses.replace(data, counts=once), data)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_fit_cut_short_as_it_begins_again_keeps_what_it_had(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_again = Trainer.begin_again

    def interrupted(trainer: Trainer, *more: Any) -> None:
        begin_again(trainer, *more)
        if at_once:
            raise KeyboardInterrupt
        monkeypatch.setattr(Refine, "run", interrupt)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "begin_again", interrupted)
    data = penalised()
    expected = learned(data, dataclasses.replace(BRIEF, focus=0.0))
    torch.testing.assert_close(learned(data, BRIEF).state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_what_a_report_says_is_of_the_fit_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    picks = "soctk.learn.phases.focused.picked"
    monkeypatch.setattr(picks, lambda trainer: torch.full((32,), trainer.focus))  # no focus helps
    data = penalised()
    optima = 0.3 * data.context[:, :1].expand(-1, DIM)
    reports = [
        soctk.fit(
            made(), data, dataclasses.replace(BRIEF, **more), optima=optima, feasible_set=soctk.Box(DIM, -9.0, 9.0)
        )
        for more in ({}, {"focus": 0.0})
    ]
    assert [report.focus for report in reports] == [0.0, 0.0]
    for name in ("status", "best_validation", "decision_errors"):
        assert getattr(reports[0], name) == getattr(reports[1], name), name


def test_one_centre_has_no_use_for_a_focus() -> None:
    """As it is learned from held-out values too, its picks among them would be no measure."""
    data = penalised(3.0)
    model = soctk.make_surrogate("soc", DIM, P)
    report = soctk.fit(model, data, BRIEF)
    assert model.traits.structure < len(model.traits.centred)
    assert report.focus == 0


def test_adamw_has_no_focus() -> None:
    config = soctk.FitConfig(newton_iterations=0, lbfgs_iterations=0)
    model = soctk.make_surrogate("soc", DIM, P)
    assert recipe_for(model, config, 20, steep=True) == recipe_for(model, config, 20)


def test_a_recipe_says_that_values_are_steep() -> None:
    model = soctk.make_surrogate("soc", DIM, P)
    (focused,) = recipe_for(model, soctk.FitConfig(), 20, steep=True)
    assert isinstance(focused, Focused)
    assert focused.alike == recipe_for(model, soctk.FitConfig(), 20)
    assert focused.focused == (recipe_for(model, soctk.FitConfig(penalty=FOCUSED_PENALTY), 20),)


def test_effective_candidates_are_those_of_equal_weight_that_tell_as_much() -> None:
    """A mean of values with these weights has the variance of one of so many."""
    value = torch.tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]], dtype=DOUBLE)
    data = Standardized(torch.zeros(2, 0), torch.zeros(2, 4, 1), value)
    assert data.effective == data.focused(0.0).effective == 4.0
    weight = torch.tensor([1.0, 1.0, 1 / 25, 1 / 169], dtype=DOUBLE)
    share = weight / weight.sum()
    expected = (float(1 / share.square().sum()), 4.0)  # the second instance's are all its best
    assert data.focused(4.0).effective == pytest.approx(sum(expected) / 2)


def test_where_a_focus_leaves_few_candidates_both_is_tried_projecting_and_not() -> None:
    """The affine function of an instance would fit all that counts there, which suits some models and not others."""
    model, config = soctk.make_surrogate("soc", DIM, P), soctk.FitConfig(penalty=FOCUSED_PENALTY)
    few, enough = (recipe_for(model, soctk.FitConfig(), 20, steep=True, effective=count)[0] for count in (4.0, 12.0))
    assert isinstance(few, Focused)
    assert isinstance(enough, Focused)
    assert few.alike == enough.alike == recipe_for(model, soctk.FitConfig(), 20)
    projecting = recipe_for(model, config, 20)
    assert enough.focused == (projecting,)
    assert few.focused[0] == recipe_for(model, config, 20, effective=4.0)
    apart, together = repr(few.focused[0]), repr(few.focused[1])
    assert "Curved(" not in apart
    assert "networks=False" in apart
    affine = (
        repr(projecting).replace("Slope(affine=False", "Slope(affine=True").replace("networks=True", "networks=False")
    )
    assert together == affine != repr(projecting)


@pytest.mark.parametrize("name", ["soc", "dcp"])
def test_v_is_affine_where_it_follows_slopes_of_few_values_that_count(name: str) -> None:
    """A nonlinear response to the context in slopes like these is mostly noise, in held-out ones too."""
    part, model = penalised(), soctk.make_surrogate(name, DIM, P, seed=0)
    trainer = Trainer(model, *part.split(seed=0), focus=FOCUS)
    (focused,) = recipe_for(model, BRIEF, 20, steep=True, effective=4.0)
    assert isinstance(focused, Focused)
    run_in_turn(focused.focused[1], trainer)
    v, ones = trainer.affine.v(part.context)[:, 0].detach(), torch.ones(part.instances, 1, dtype=DOUBLE)
    features = torch.cat([ones, part.context], dim=1)
    left = v - features @ torch.linalg.lstsq(features, v).solution
    assert float(left.abs().max()) <= 1e-9 * float(v.abs().max())
    assert float(v.std(dim=0).min()) > 1e-3


@dataclasses.dataclass(frozen=True)
class Leave(Phase):
    """Leaves a number of its own in the weights."""

    number: float

    def run(self, trainer: Trainer) -> None:
        with torch.no_grad():
            trainer.affine.level.constant.fill_(self.number)
        trainer.keep()


def kept_of(*picks: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return which of several fits is kept, the first without a focus, by what each picks."""
    trainer = Trainer(made(), *penalised().split(seed=0))
    begun, judged = trainer.affine.level.constant.item(), iter(picks)
    monkeypatch.setattr("soctk.learn.phases.focused.picked", lambda _: next(judged))
    Focused((Leave(1.0),), tuple((Leave(1.0 + number),) for number in range(1, len(picks)))).run(trainer)
    number = trainer.affine.level.constant.item()
    assert number != begun
    assert trainer.finish().focus == (0.0 if number == 1.0 else FOCUS)
    return round(number - 1.0)


@pytest.mark.parametrize("means", list(permutations((1.0, 2.0, 3.0))))
def test_of_all_recipes_the_one_that_picks_best_is_kept(
    means: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    picks = (torch.full((32,), mean, dtype=DOUBLE) for mean in means)
    assert kept_of(*picks, monkeypatch=monkeypatch) == means.index(min(means))


@pytest.mark.parametrize(
    ("errors", "kept"), [((-3.0,), 1), ((1.1,), 1), ((1.3,), 0), ((1.1, 1.0), 2), ((1.1, 1.3), 1), ((1.3, 1.1), 2)]
)
def test_no_focus_is_kept_only_where_its_picks_are_clearly_better(
    errors: tuple[float, ...], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' are worse by so many standard errors of the paired differences."""
    noise = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    noise -= noise.mean()
    common, error = 100 * noise.flip(0), float(noise.std()) / 50**0.5
    picks = (common, *(common + noise + each * error for each in errors))
    assert kept_of(*picks, monkeypatch=monkeypatch) == kept


@pytest.mark.parametrize("worth", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize(("differ", "kept"), [(1, 1), (2, 0)])
def test_a_single_pick_says_nothing_against_a_focus(
    worth: float, differ: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = torch.ones(32, dtype=DOUBLE)
    others[:differ] += worth
    assert kept_of(torch.ones(32, dtype=DOUBLE), others, monkeypatch=monkeypatch) == kept


def test_picks_that_are_the_same_say_nothing_against_a_focus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept_of(*(torch.ones(32) for _ in range(3)), monkeypatch=monkeypatch) == 1


def test_steep_values_of_few_candidates_are_decided_better_for_it() -> None:
    """Values of a penalty in many directions: with weights, a handful of 24 candidates counts."""
    generator = torch.Generator().manual_seed(0)
    dim, count = 12, 240

    def draw(instances: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        context = torch.randn(instances, P, generator=generator, dtype=DOUBLE)
        x = 2 * torch.rand(instances, 24, dim, generator=generator, dtype=DOUBLE) - 1
        center = 0.3 * torch.tanh(context @ mixing)
        return context, x, center

    def values(x: torch.Tensor, center: torch.Tensor) -> torch.Tensor:
        return (x - center).square().sum(dim=-1) + 300 * ((x.sum(dim=-1) - center.sum(dim=-1)).abs() - 1).clamp(min=0)

    mixing = torch.randn(P, dim, generator=generator, dtype=DOUBLE)
    context, x, center = draw(count)
    data = soctk.ValueData(context, x, values(x, center.unsqueeze(1)))
    new, _, best = draw(100)
    regret = []
    for least in (residuals.SPARE_CANDIDATES, 0.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(residuals, "SPARE_CANDIDATES", least)
            model = soctk.SOCICNN(dim, P, hidden=(), quadratics=(dim,), norms=(1, 1), seed=0)
            soctk.fit(model, data, dataclasses.replace(BRIEF, starts=1, focus=4.0))
        decision = soctk.minimize(model, soctk.Box(dim, -1.0, 1.0), new)
        regret.append(float(values(decision.x, best).mean()))
    assert regret[0] < regret[1]


@pytest.mark.parametrize("focus", [-1.0, float("nan"), float("inf")])
def test_a_focus_is_a_finite_number(focus: float) -> None:
    with pytest.raises(ValueError, match=r'focus: expected a finite number of at least 0, or "auto", got'):
        soctk.FitConfig(focus=focus)


def test_the_level_is_right_where_values_are_least() -> None:
    """No quadratic is exp(4 x): with a focus it is the least values that are neither over- nor underestimated."""
    generator = torch.Generator().manual_seed(0)
    context, x = (torch.rand(*shape, generator=generator, dtype=DOUBLE) for shape in ((60, 1), (60, 40, 1)))
    known = soctk.ValueData(context, x, (4 * x[..., 0]).exp() + context)
    model = soctk.SOCICNN(1, 1, hidden=(), quadratics=(1,), seed=0)
    soctk.fit(model, known, soctk.FitConfig(starts=1, focus=20.0, penalty=1e-6))
    with torch.no_grad():
        error = model(x, context[:, None].expand(-1, 40, -1)) - known.value
    least = error.gather(1, known.value.argsort(dim=1)[:, :10]).mean()
    assert abs(float(least)) <= 0.2 * abs(float(error.mean()))
