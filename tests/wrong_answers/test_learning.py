"""Wrong answers and holes that were found by attack, each as the attack that found it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import soctk
from soctk.learn.members import Members
from soctk.learn.optimality import Optima
from soctk.learn.report import FitReport, FitStatus
from soctk.maps.linear import DenseMap
from soctk.terms import Quadratic

# -- learning ------------------------------------------------------------------------------------------

QUICK = soctk.FitConfig(starts=2, epochs=2, newton_iterations=5, lbfgs_iterations=20, level_iterations=20)


def squares(instances: int = 60, candidates: int = 8) -> soctk.ValueData:
    """Return values of a squared distance in 3 variables, with contexts of 2 numbers."""
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(instances, 2, generator=generator, dtype=torch.float64)
    x = torch.rand(instances, candidates, 3, generator=generator, dtype=torch.float64)
    return soctk.ValueData(context, x, (x - 0.3).square().sum(dim=-1))


def state(model: soctk.ConvexSurrogate) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same_state(model: soctk.ConvexSurrogate, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("factor", [1e200, 1e-200])
@pytest.mark.parametrize("name", ["context", "x", "value"])
def test_a_fit_refuses_numbers_whose_spread_is_no_number(name: str, factor: float) -> None:
    """Squares of 1e200 overflow and those of 1e-200 vanish: units of inf made every value NaN, of 1 no fit at all."""
    data = squares()
    parts = {part: getattr(data, part) * (factor if part == name else 1.0) for part in ("context", "x", "value")}
    for model in (soctk.SOCICNN(3, 2, diagonal=True), soctk.make_surrogate("quadratic", 3, 2)):
        before = state(model)
        with pytest.raises(ValueError, match=f"^{name}: .*other units"):
            soctk.fit(model, soctk.ValueData(**parts), QUICK)
        assert same_state(model, before)


@pytest.mark.parametrize("factor", [1e39, 1e-60])
def test_a_fit_refuses_numbers_that_the_model_cannot_hold(factor: float) -> None:
    data, model = squares(), soctk.SOCICNN(3, 2, diagonal=True, dtype=torch.float32)
    before = state(model)
    with pytest.raises(ValueError, match=r"^value: .*float32.*other units"):
        soctk.fit(model, soctk.ValueData(data.context, data.x, factor * data.value), QUICK)
    assert same_state(model, before)


@pytest.mark.parametrize("unit", [100.0, 1e6])
@pytest.mark.parametrize("level", [0.0, 1000.0])
@pytest.mark.parametrize("name", ["soc", "quadratic", "norm", "dcp"])
def test_a_fit_does_not_depend_on_the_units_of_decisions(name: str, unit: float, level: float) -> None:
    """One mean and scale for all coordinates lost the smaller: errors of 60 to 100 % of the spread, "converged"."""
    scale, mean = torch.tensor([1.0, unit, 1.0]), torch.tensor([0.0, 0.0, level])
    data = squares(150)
    with torch.no_grad():
        data.value.add_(2 * (data.x[..., 0] - data.x[..., 1] - 0.1 * data.context[:, :1]).abs())
    other = soctk.ValueData(data.context, scale * data.x + mean, data.value)
    errors = []
    for given in (data, other):
        model = soctk.make_surrogate(name, 3, 2)
        soctk.fit(model, given, QUICK)
        wrong = model(given.x, given.context).detach() - given.value
        errors.append(float(wrong.square().mean().sqrt() / given.value.std()))
    assert errors[1] <= 1.5 * errors[0] + 0.01


def test_optima_do_not_depend_on_the_units_of_decisions() -> None:
    """Those within a thousandth of a bound are at it: of that coordinate's spread, not of all together."""
    data, scale = squares(60), torch.tensor([1.0, 1e-5, 1e4], dtype=torch.float64)
    centre = (0.3 + 0.1 * torch.tanh(data.context[:, :1])).expand(-1, 3)
    value = (data.x - centre.unsqueeze(1)).square().sum(dim=-1)
    reports = []
    for unit in (torch.ones(3, dtype=torch.float64), scale):
        given = soctk.ValueData(data.context, unit * data.x, value)
        model = soctk.SOCICNN(3, 2, hidden=(), diagonal=True)
        box = soctk.Box(3, 0.0, unit)
        reports.append(soctk.fit(model, given, QUICK, optima=unit * centre, feasible_set=box))
        x = soctk.minimize(model, box, data.context).x
        assert float(((x / unit) - centre).abs().max()) < 0.02
    assert reports[1].status == reports[0].status


def test_what_does_not_vary_has_the_scale_one() -> None:
    """The mean of equal numbers is not always theirs: their spread came out as 1e-17 and was taken for a scale."""
    data = squares(30, 3)
    same = soctk.ValueData(torch.full_like(data.context, 0.1), torch.full_like(data.x, 0.1), 0 * data.value + 0.1)
    model = soctk.SOCICNN(3, 2, diagonal=True)
    with pytest.warns(UserWarning, match="do not say which decision is better"):
        soctk.fit(model, same, QUICK)
    for scale in (model.x_scale, model.value_scale, model.context_scale):
        assert torch.equal(scale, torch.ones_like(scale))


@pytest.mark.parametrize("name", ["soc", "quadratic"])
def test_a_fit_without_a_finite_validation_error_leaves_the_model_as_it_was(name: str) -> None:
    data, far = squares(), squares()
    value = far.value.clone()
    value[:, 0] = 1e200
    model = soctk.make_surrogate(name, 3, 2)
    before, structure = state(model), getattr(model, "structure", None)
    with pytest.warns(RuntimeWarning, match="as it was"):
        report = soctk.fit(model, data, QUICK, soctk.ValueData(far.context, far.x, value))
    assert report.status == "diverged"
    assert same_state(model, before)
    assert getattr(model, "structure", None) == structure


@pytest.mark.filterwarnings("ignore:fit:RuntimeWarning")
@pytest.mark.parametrize("row", range(0, 40, 3))
def test_the_command_fit_writes_no_model_whose_error_is_no_number(row: int, tmp_path: Path, capsys) -> None:
    """Wherever the outlier lands: in training, validation or held-out data."""
    from soctk_evaluation.cli import main

    random = np.random.default_rng(0)
    table = pd.DataFrame(random.uniform(size=(40, 5)), columns=["context_0", "context_1", "x_0", "x_1", "x_2"])
    table["value"] = (table[["x_0", "x_1", "x_2"]] ** 2).sum(axis=1)
    table.loc[row, "value"] = 1e200
    table.to_csv(tmp_path / "log.csv", index=False)
    assert main(["fit", str(tmp_path / "log.csv"), "--model", "quadratic"]) != 0
    assert capsys.readouterr().err
    assert not (tmp_path / "log.safetensors").exists()


@pytest.mark.parametrize(("conditioning", "candidates"), [("additive", 12), ("full", 3)])
def test_levels_are_learned_where_no_affine_part_is_projected_out(conditioning: str, candidates: int) -> None:
    """Levenberg-Marquardt's penalty moved b0's network, on which nothing else depended, to zero, where it stays."""
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(300, 1, generator=generator, dtype=torch.float64)
    x = torch.rand(300, candidates, 3, generator=generator, dtype=torch.float64)
    data = soctk.ValueData(context, x, 5 * context.square() + x.square().sum(dim=-1))
    model = soctk.SOCICNN(3, 1, hidden=(), diagonal=True, conditioning=conditioning)  # type: ignore[arg-type]
    soctk.fit(model, data, soctk.FitConfig(starts=1), validation=data)
    level = (model.evaluate(data.x, data.context) - data.value).detach().mean(dim=1)
    assert float(level.square().mean()) < 0.01 * float(data.value.mean(dim=1).var())


def test_one_value_is_not_learned_from() -> None:
    """Held out from itself it had the error 0."""
    data, model = squares(1, 1), soctk.SOCICNN(3, 2)
    before = state(model)
    with pytest.raises(ValueError, match=r"^data: expected at least two observed values"):
        soctk.fit(model, data, QUICK)
    assert same_state(model, before)


def test_the_command_fit_refuses_a_log_of_one_row(tmp_path: Path, capsys) -> None:
    from soctk_evaluation.cli import main

    pd.DataFrame({"context_0": [1.0], "x_0": [2.0], "value": [3.0]}).to_csv(tmp_path / "log.csv", index=False)
    assert main(["fit", str(tmp_path / "log.csv"), "--model", "quadratic"]) == 2
    assert "at least 3" in capsys.readouterr().err
    assert not (tmp_path / "log.safetensors").exists()


def test_decisions_that_are_measured_twice_are_learned_as_well_as_once() -> None:
    """What two measurements of one decision differ by is noise, or rounding, and no unit of what there is to learn."""
    data, errors = squares(160, 1), {}
    noise = 0.01 * torch.randn(160, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    given = {
        "once": (data.x, data.value + noise[:, :1]),
        "twice": (data.x.expand(-1, 2, -1), data.value + noise),
        "almost equal": (data.x.expand(-1, 2, -1), data.value + noise[:, :1] + 1e-9 * noise),
    }
    for name, (x, value) in given.items():
        model = soctk.make_surrogate("soc", 3, 2)
        soctk.fit(model, soctk.ValueData(data.context, x, value), soctk.FitConfig(starts=1))
        wrong = model(data.x[:, 0], data.context) - data.value[:, 0]
        errors[name] = float(wrong.detach().square().mean().sqrt())
    assert errors["twice"] <= 1.2 * errors["once"]
    assert errors["almost equal"] == pytest.approx(errors["once"], rel=0.05)


def test_no_context_is_on_two_sides_of_a_split() -> None:
    """Rows of one context in both: a model that had learned every context by heart was said to be good."""
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(20, 2, generator=generator, dtype=torch.float64).repeat(5, 1)
    data = soctk.ValueData(context, torch.rand(100, 1, 3), torch.rand(100, 1))
    first, second = (set(map(tuple, part.context.tolist())) for part in data.split(seed=1))
    assert (len(first), len(second)) == (16, 4)
    assert first.isdisjoint(second)
    assert [part.instances for part in data.split(seed=1)] == [80, 20]
    same = soctk.ValueData(torch.zeros(100, 1), data.x, data.value)
    assert [part.instances for part in same.split(seed=1)] == [80, 20]


def test_plain_mistakes_are_said_in_words() -> None:
    data, model = squares(), soctk.SOCICNN(3, 2)
    with pytest.raises(TypeError, match=r"^data: expected a soctk\.ValueData, got tuple"):
        soctk.fit(model, (data.context, data.x, data.value))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^config: expected a soctk\.FitConfig, got dict"):
        soctk.fit(model, data, {"seed": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^validation: expected a soctk\.ValueData"):
        soctk.fit(model, data, QUICK, [data])  # type: ignore[arg-type]
    for name, wrong in (("penalty", "a"), ("learning_rate", np.inf), ("level_weight", np.inf), ("seed", 2**70)):
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            soctk.fit(model, data, soctk.FitConfig(**{name: wrong}))
    with pytest.raises(ValueError, match=r"^optima_weights: expected"):
        soctk.FitConfig(optima_weights=(np.inf,))
    with pytest.raises(ValueError, match=r"^counts: expected"):
        soctk.ValueData(data.context, data.x, data.value, torch.zeros(60))
    optima = torch.zeros(60, 3)
    sets = soctk.Box(3, -1.0, 1.0).at(upper=torch.ones(60, 3))
    with pytest.raises(TypeError, match=r"^feasible_set: expected one set.*soctk\.Optimality"):
        soctk.Suboptimality(data.context, sets, optima)
    first, second = soctk.Optimality(data.context, sets, optima).split(0)
    assert (first.instances, second.instances) == (48, 12)
    assert second.feasible_set.batch_shape == (12,)  # type: ignore[union-attr]


def test_data_in_other_shapes_are_told_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"x: expected shape .*got \(5, 3\); .*x\[:, None\] and value\[:, None\]"):
        soctk.ValueData(np.zeros((5, 2)), np.zeros((5, 3)), np.zeros(5))
    with pytest.raises(TypeError, match=r"context: .*got None; .*\(N, 0\)"):
        soctk.ValueData(None, np.zeros((5, 1, 3)), np.zeros((5, 1)))
    with pytest.raises(ValueError, match=r"models: expected a sequence, got SOCICNN$"):
        soctk.average(soctk.SOCICNN(3, 2))


def test_seeds_of_numpy_are_seeds() -> None:
    data = squares()
    found = [soctk.SOCICNN(3, 2), soctk.SOCICNN(3, 2)]
    for model, seed in zip(found, (3, np.int64(3)), strict=True):
        soctk.fit(model, data, soctk.FitConfig(starts=1, epochs=1, newton_iterations=2, seed=seed))
    assert same_state(found[0], state(found[1]))


def test_too_few_values_to_tell_a_curve_from_a_plane_are_said_to_be() -> None:
    """A level and 3 + 2 slopes pass through any 6 values; of 7, one is held out."""
    with pytest.warns(UserWarning, match=r"^data: 5 observed values .* at least 7"):
        soctk.fit(soctk.SOCICNN(3, 2), squares(6, 1), QUICK)


def test_a_weight_may_be_a_single_number() -> None:
    """Its derivatives have one dimension fewer than those of a vector."""

    class Bowl(soctk.ConvexSurrogate):
        def __init__(self) -> None:
            super().__init__(3)
            self.w = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

        def _conic_form(self, context: torch.Tensor) -> soctk.ConicForm:
            none = torch.zeros(1, 1, 3, dtype=torch.float64)
            bowl = Quadratic(DenseMap(torch.eye(3, dtype=torch.float64)[None]), none, self.w.exp().expand_as(none))
            return soctk.ConicForm(none[..., 0], none, (bowl,), (context.shape[0],))

    x = torch.randn(20, 10, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = soctk.ValueData(torch.zeros(20, 0), x, 3.0 * x.square().sum(dim=-1))
    model = Bowl()
    assert soctk.fit(model, data, QUICK).best_validation < 1.0
    assert float(model.w.detach()) != 0.0


def test_instances_of_one_context_are_on_one_side_of_every_split() -> None:
    """Members, known optima and losses of decisions were judged on contexts that they had been learned from."""
    data = squares(60)
    data = soctk.ValueData(data.context[:15].repeat(4, 1), data.x, data.value)
    best = torch.full((60, 3), 0.3, dtype=torch.float64)
    losses = soctk.Optimality, soctk.Suboptimality
    pairs = [loss(data.context, soctk.Box(3, 0.0, 1.0), best).split(seed=1) for loss in losses]
    pairs += [Optima.of(data, best, soctk.Box(3, 0.0, 1.0)).split(1)]
    given: list[tuple[soctk.ValueData, soctk.ValueData]] = []

    def note(model, learned, config, left_out, **more):
        given.append((learned, left_out))
        return FitReport(FitStatus.CONVERGED)

    members = Members.of(soctk.SOCICNN(3, 2), data, soctk.FitConfig(members=2), None, None)
    members.learn(note, 1, None)
    for learned, judged in pairs + given:
        contexts = [set(map(tuple, part.context.tolist())) for part in (learned, judged)]
        assert not contexts[0] & contexts[1]
        assert len(contexts[0] | contexts[1]) == 15
