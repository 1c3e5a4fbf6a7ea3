"""The recipe: what is done for which model, every switch, and what a phase of one's own needs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tolerances import DOUBLE

import soctk
from soctk.learn.deadline import Deadline
from soctk.learn.optimizers import LBFGS, LevenbergMarquardt, Suited
from soctk.learn.phases.adam import Adam
from soctk.learn.phases.curved import Curved
from soctk.learn.phases.everything import Everything
from soctk.learn.phases.grow import Grow
from soctk.learn.phases.level import Level
from soctk.learn.phases.own import Own
from soctk.learn.phases.phase import Phase
from soctk.learn.phases.race import Race, redrawn
from soctk.learn.phases.reduce import Reduce
from soctk.learn.phases.refine import Refine
from soctk.learn.phases.slope import Slope
from soctk.learn.phases.structured_start import StructuredStart
from soctk.learn.recipe import BEFORE_REDUCING, recipe_for
from soctk.learn.report import FitStatus
from soctk.learn.search import Search
from soctk.learn.trainer import Trainer
from soctk.losses import value_loss
from soctk.traits import TrainingTraits
from soctk_baselines import PCF

QUICK = soctk.FitConfig(starts=2, epochs=3, newton_iterations=6, lbfgs_iterations=40, level_iterations=60)


def outline(phases: tuple[Phase, ...]) -> list:
    """Return the kinds of phases, nested as they are."""
    return [
        (type(phase), outline(phase.phases)) if isinstance(phase, Race | Refine) else type(phase) for phase in phases
    ]


def bowls(instances: int = 60, candidates: int = 16) -> soctk.ValueData:
    """Return values of a shifted squared distance in 3 variables that moves with the context."""
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(instances, 2, generator=generator, dtype=DOUBLE)
    x = torch.rand(instances, candidates, 3, generator=generator, dtype=DOUBLE)
    center = context @ torch.randn(2, 3, generator=generator, dtype=DOUBLE)
    return soctk.ValueData(context, x, 3.0 + 7.0 * (x - center.unsqueeze(1)).square().sum(dim=-1))


def model(seed: int = 0, hyperbolics: int = 0) -> soctk.SOCICNN:
    sizes = {"hidden": (2,), "diagonal": True, "norms": (2,), "hyperbolics": hyperbolics}
    return soctk.SOCICNN(3, 2, **sizes, structures=(("diagonal",), ("norm0",)), seed=seed)  # type: ignore[arg-type]


AFTER = [Curved, Curved, Reduce, Slope, Everything, Level]
UNREDUCED = [kind for kind in AFTER if kind is not Reduce]
GROWN = [Curved, Curved, Reduce, Grow, Slope, Everything, Level]
OUTLINES = {
    "dense": (model, {}, [(Race, [Adam, Curved]), (Refine, AFTER)]),
    "one start, its own structure": (model, {"starts": 1, "choose_structure": False}, [Adam, (Refine, UNREDUCED)]),
    "no race": (model, {"race": False}, [(Race, [Adam, (Refine, AFTER)])]),
    "nothing projected out": (
        model,
        {"project_affine": False},
        [(Race, [Adam, Everything]), (Refine, [Everything, Level])],
    ),
    "no level": (model, {"level_regression": False}, [(Race, [Adam, Curved]), (Refine, AFTER[:5])]),
    "with hyperbolic branches": (lambda: model(hyperbolics=2), {}, [(Race, [Adam, Curved]), (Refine, GROWN)]),
    "nothing grown": (lambda: model(hyperbolics=2), {"grow": False}, [(Race, [Adam, Curved]), (Refine, AFTER)]),
    "grown, not reduced": (
        lambda: model(hyperbolics=2),
        {"reduce": False},
        [(Race, [Adam, Curved]), (Refine, [kind for kind in GROWN if kind is not Reduce])],
    ),
    "nothing reduced": (model, {"reduce": False}, [(Race, [Adam, Curved]), (Refine, UNREDUCED)]),
    "many steps": (
        model,
        {"lbfgs_iterations": BEFORE_REDUCING + 5},
        [(Race, [Adam, Curved]), (Refine, [Curved, Curved, Reduce, Curved, Slope, Everything, Level])],
    ),
    "no AdamW": (model, {"epochs": 0}, [(Race, [Curved]), (Refine, AFTER)]),
    "AdamW alone": (model, {"newton_iterations": 0, "lbfgs_iterations": 0}, [(Race, [Adam])]),
    "nothing": (model, {"epochs": 0, "newton_iterations": 0, "lbfgs_iterations": 0}, []),
    "no affine part": (
        lambda: PCF(3, 2),
        {},
        [(Race, [Adam, Everything]), (Refine, [Everything])],
    ),
    "windows": (
        lambda: soctk.RecurrentSOCICNN(4, 2),
        {},
        [(Race, [StructuredStart, Everything]), (Refine, [Everything])],
    ),
    "windows, plain": (
        lambda: soctk.RecurrentSOCICNN(4, 2),
        {"structured": False},
        [(Race, [Adam, Everything]), (Refine, [Everything])],
    ),
    "least squares": (lambda: soctk.make_surrogate("quadratic", 3, 2), {}, [Own]),
}


@pytest.mark.parametrize("name", OUTLINES)
def test_the_recipe_of_every_kind_of_model_and_every_switch(name: str) -> None:
    make, changes, expected = OUTLINES[name]
    assert outline(recipe_for(make(), dataclasses.replace(QUICK, **changes), 16)) == expected


@pytest.mark.parametrize("steps", [0, 1, BEFORE_REDUCING, BEFORE_REDUCING + 1, 1000])
def test_no_step_is_lost_to_what_is_tried_between(steps: int) -> None:
    """What a structure does not need is tried after 300 steps, and the others follow."""
    *_, refine = recipe_for(model(), dataclasses.replace(QUICK, lbfgs_iterations=steps), 16)
    found = [phase for phase in refine.phases if isinstance(phase, Reduce | Curved)]  # type: ignore[attr-defined]
    _, before, reduce, *after = found
    assert isinstance(reduce, Reduce)
    assert before.optimizer.iterations == min(steps, BEFORE_REDUCING)
    assert sum(phase.optimizer.iterations for phase in after) == max(0, steps - BEFORE_REDUCING)


def test_few_candidates_leave_nothing_to_project_out() -> None:
    assert outline(recipe_for(model(), QUICK, 4))[1] == (Refine, [Everything, Everything, Level])


def test_the_optimizer_asked_for_is_used_throughout() -> None:
    def used(optimizer: str, make=model) -> set[type]:
        *_, refine = recipe_for(make(), dataclasses.replace(QUICK, optimizer=optimizer), 16)  # type: ignore[arg-type]
        phases = refine.phases  # type: ignore[attr-defined]
        everything = [phase for phase in phases if isinstance(phase, Everything)]
        found = [phase.optimizer for phase in phases if isinstance(phase, Curved)]
        return {type(each) for each in (*found, *(each for phase in everything for each in phase.optimizers))}

    for make in (model, lambda: soctk.RecurrentSOCICNN(4, 2)):
        assert used("auto", make) == {Suited, LBFGS}
        assert used("lbfgs", make) == {LBFGS}
        assert used("levenberg_marquardt", make) == {LevenbergMarquardt}


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "lbfgs"},
        {"optimizer": "levenberg_marquardt"},
        {"choose_structure": False},
        {"project_affine": False},
        {"race": False},
        {"level_regression": False},
        {"project_affine": False, "level_regression": False, "race": False},
    ],
    ids=str,
)
def test_every_switch_makes_another_fit_that_learns_all_the_same(changes: dict) -> None:
    data = bowls()
    models = [model(), model()]
    for each, config in zip(models, (QUICK, dataclasses.replace(QUICK, **changes)), strict=True):
        soctk.fit(each, data, config)
    values = [each.evaluate(data.x, data.context).detach() for each in models]
    assert not torch.equal(*values)
    assert float(value_loss(models[1], data).detach()) < 0.1 * float(data.value.var())


@pytest.mark.parametrize("structure", [0, 1])
def test_without_a_choice_the_structure_stays(structure: int) -> None:
    mine = model()
    mine.set_structure(structure)
    soctk.fit(mine, bowls(), dataclasses.replace(QUICK, choose_structure=False))
    assert mine.structure == structure


def test_without_a_race_the_fit_is_the_best_of_the_single_ones() -> None:
    """To the last bit: nothing of one start touches another."""
    data, brief = bowls(), dataclasses.replace(QUICK, choose_structure=False)
    together = model(seed=3)
    report = soctk.fit(together, data, dataclasses.replace(brief, starts=2, race=False))
    singles = [model(seed=3), redrawn(model(seed=3), 1)]
    losses = [soctk.fit(each, data, dataclasses.replace(brief, starts=1)).best_validation for each in singles]
    assert report.best_validation == min(losses)
    best = singles[losses.index(min(losses))].state_dict()
    assert all(torch.equal(tensor, best[name]) for name, tensor in together.state_dict().items())


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="optimizer: expected one of auto, levenberg_marquardt, lbfgs, got 'adam'"):
        soctk.FitConfig(optimizer="adam")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="race: expected True or False, got 'no'"):
        soctk.FitConfig(race="no")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no weights to train"):
        soctk.fit(soctk.from_quadratic(torch.eye(3), torch.zeros(3), 0.0), bowls())


class Mean(soctk.ConvexSurrogate):
    """The mean of the values, found in a way of its own."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.mean = torch.nn.Parameter(torch.ones(1, 1, dtype=DOUBLE))

    def _conic_form(self, context: torch.Tensor) -> soctk.ConicForm:
        return soctk.ConicForm(self.mean, torch.zeros(1, 1, 3, dtype=self.dtype), (), (context.shape[0],))

    @property
    def traits(self) -> TrainingTraits:
        return TrainingTraits(own=self.take_mean)

    @torch.no_grad()
    def take_mean(self, trainer: Trainer) -> None:
        train, _ = trainer.standardized()
        self.mean.fill_(float(train.value.mean()))
        trainer.judge(FitStatus.CONVERGED, 1)


def test_a_surrogate_may_have_a_training_of_its_own() -> None:
    data = bowls()
    mine = Mean()
    report = soctk.fit(mine, data, validation=data)
    assert report.status == "converged"
    assert report.validation == [(1, report.best_validation)]
    assert mine(data.x[0, 0], data.context[0]).item() == pytest.approx(float(data.value.mean()))


@pytest.mark.filterwarnings("error::RuntimeWarning")  # it has not diverged
def test_an_interrupted_fit_leaves_a_model_of_its_own_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    data = bowls()
    for mine in (soctk.SOCICNN(3, 2, dtype=torch.float32), soctk.RecurrentSOCICNN(3, 1, variant="soc", hidden=2)):
        part = soctk.ValueData(torch.cat([data.context, data.context[:, :1]], dim=1), data.x, data.value)
        monkeypatch.setattr(Search, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            soctk.fit(mine, data if mine.context_dim == 2 else part, QUICK)
        kinds = {tensor.dtype for tensor in mine.state_dict().values() if tensor.is_floating_point()}
        assert kinds == {mine.dtype} == {torch.float32 if mine.context_dim == 2 else DOUBLE}
        assert not mine.training
        assert all(bool(torch.isfinite(tensor).all()) for tensor in mine.state_dict().values())


def test_lbfgs_in_place_of_levenberg_marquardt_does_as_much_work_before_structures_are_compared() -> None:
    def steps(make) -> tuple[int, int]:
        race, refine = recipe_for(make(), QUICK, 16)
        raced, *_ = [phase.optimizer for phase in race.phases if isinstance(phase, Curved)]  # type: ignore[attr-defined]
        last = [phase.optimizer for phase in refine.phases if isinstance(phase, Curved)][-1]  # type: ignore[attr-defined]
        return raced.other.iterations, last.iterations

    assert steps(model) == (3 * 24, 40)
    assert steps(lambda: soctk.ReLUICNN(3, 2, hidden=(8, 8))) == (24, 40)


@pytest.mark.parametrize("dim", [10, 20, 50])
def test_every_weight_of_the_curved_part_has_several_residuals_left_to_be_told_by(dim: int) -> None:
    made, rng, instances = soctk.make_surrogate("soc", dim, 3), np.random.default_rng(0), 1000
    x = torch.from_numpy(rng.uniform(size=(instances, 64, dim)))
    data = soctk.ValueData(torch.from_numpy(rng.normal(size=(instances, 3))), x, x.square().sum(dim=-1))
    _, refine = recipe_for(made, soctk.FitConfig(), 64)
    curved = [phase for phase in refine.phases if isinstance(phase, Curved)][-1]  # type: ignore[attr-defined]
    residuals = Trainer(made, data, data).projected(curved.rows)[0].residual(made).numel()
    affine = made.traits.affine
    assert affine is not None
    weights = sum(weight.numel() for weight in made.parameters()) - sum(
        weight.numel() for weight in affine.parameters()
    )
    all_there_are = instances * (min(64, 2 * (dim + 1)) - dim - 1)
    assert residuals >= min(soctk.FitConfig().values_per_weight * weights - dim, all_there_are)
    known = recipe_for(made, soctk.FitConfig(), 64, instances=instances)[1].phases  # type: ignore[attr-defined]
    rows = [phase.rows for phase in known if isinstance(phase, Curved)]
    assert rows[0] == rows[1] // 2
    assert rows[1] <= max(soctk.FitConfig().rows, instances * min(64, 2 * (dim + 1)))
    fewer = recipe_for(made, soctk.FitConfig(values_per_weight=0), 64)[1].phases  # type: ignore[attr-defined]
    assert [phase for phase in fewer if isinstance(phase, Curved)][-1].rows == soctk.FitConfig().rows


@pytest.mark.parametrize("better", [False, True])
def test_a_contest_is_won_by_a_clearly_smaller_loss_alone(better: bool) -> None:
    """One that is learned to the end says little of one that has had a few steps, and the other way round."""
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    x = torch.rand(60, 12, 3, generator=generator, dtype=torch.float64)
    data = soctk.ValueData(context, x, (x - 0.3).square().sum(dim=-1) + (x[..., 0] - x[..., 1]).abs())
    model = soctk.make_surrogate("soc", 3, 2)
    trainer = Trainer(model, data, data)
    model.set_structure(1)
    first = trainer.present()
    held_out = trainer.projected(1000)[1]
    loss = float(held_out.total(model))
    trainer.contest(held_out, 2 * loss if better else 0.0)
    assert not trainer.settled
    model.set_structure(3)
    trainer.load(trainer.state())
    trainer.keep()
    if better:
        trainer._contest = (held_out, 2 * float(held_out.total(model)), first)
    trainer.decide_contest()
    assert trainer.settled == (not better)
    assert model.structure == (3 if better else 1)
    if not better:
        assert trainer.report.best_validation == pytest.approx(loss)
        assert all(torch.equal(value, first.state[name]) for name, value in trainer.best.items())
    trainer.decide_contest()  # there is none any more
    assert model.structure == (3 if better else 1)


@dataclasses.dataclass(frozen=True)
class LeavesOut(Phase):
    """Leaves a norm out of every start but the second, and says what it found."""

    begun: list[tuple[str, ...]]
    losses: tuple[float, ...]

    def run(self, trainer: Trainer) -> None:
        traits = trainer.model.traits
        self.begun.append(traits.without)
        if len(self.begun) != 2:
            traits.set_structure(traits.structure, ("norm1",))
        trainer.report.best_validation = self.losses[len(self.begun) - 1]
        trainer.keep()


@pytest.mark.parametrize(("losses", "without"), [((0.5, 1.0, 2.0), ("norm1",)), ((1.0, 0.5, 2.0), ())])
def test_what_a_start_goes_without_is_its_own(losses: tuple[float, ...], without: tuple[str, ...]) -> None:
    """Without a race all starts are reduced; the best one's weights were put into a structure that had all blocks, and
    the others began without what the first left out: errors three times what there was to learn, "converged"."""
    data = soctk.ValueData(torch.randn(30, 2), torch.rand(30, 12, 3), torch.rand(30, 12))
    model = soctk.make_surrogate("soc", 3, 2)
    model.set_structure(3)
    trainer, phase = Trainer(model, data, data), LeavesOut([], losses)
    Race(3, 3, 1, (phase,)).run(trainer)
    assert phase.begun == [()] * 3
    assert model.traits.without == without
    assert trainer.report.best_validation == min(losses)


@dataclasses.dataclass(frozen=True)
class Notes(Phase):
    """Notes the structure that it is run with."""

    seen: list[int]

    def run(self, trainer: Trainer) -> None:
        self.seen.append(trainer.model.traits.structure)


def test_a_fit_that_may_be_stopped_refines_the_structure_that_it_began_with() -> None:
    """What there is to fall back on has another structure, which was left in place where its weights were better."""
    data = bowls()
    model, phase = soctk.make_surrogate("soc", data.dim, data.context_dim), Notes([])
    soctk.fit(model, data, soctk.FitConfig(starts=1))
    trainer = Trainer(model, data, data, Deadline(None, lambda: False))
    trainer.whole = trainer.present()
    assert trainer.whole.structure != 4
    model.set_structure(4)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    begun = trainer.present()
    Refine((phase,)).run(trainer)
    assert phase.seen == [4]
    assert model.structure == begun.structure
    assert all(torch.equal(value, begun.state[name]) for name, value in trainer.best.items())


def test_counts_of_numpy_are_those_of_python() -> None:
    """PyTorch and threadpoolctl know no others."""
    counts = ("epochs", "threads", "starts", "lbfgs_iterations", "seed", "jobs", "rows", "patience")
    config = soctk.FitConfig(**{name: np.int64(2) for name in counts})
    assert all(type(getattr(config, name)) is int for name in counts)
    assert config == soctk.FitConfig(**dict.fromkeys(counts, 2))
