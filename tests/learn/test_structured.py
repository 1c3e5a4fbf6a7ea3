"""Learning branches over windows: the structured start, whitened coordinates, pieces, and the recipe as a whole."""

from __future__ import annotations

import pytest
import torch
from tolerances import DOUBLE, VALUE, close
from zoo import shaken

import soctk
from soctk.learn.phases.structured_start import structured_start
from soctk.learn.report import FitStatus
from soctk.learn.residuals import Residuals
from soctk.learn.units import Standardized, standardize
from soctk.learn.whitening import whitened
from soctk.losses import relative_error

SMALL = {"hidden": 0, "quadratics": 6, "norm_size": 2, "affine_hidden": 0}
QUICK = soctk.FitConfig(starts=1, lbfgs_iterations=60, newton_iterations=15)


def energy(x: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return the mean square of x - r and of the steps' lengths, as the smoothing task has them, for (.., 8, 2)."""
    moves = x.diff(dim=-2).square().sum(dim=-1)
    return 0.5 * (x - reference).square().mean(dim=(-1, -2)) + 0.3 * (moves + 1e-3).sqrt().mean(dim=-1)


@pytest.fixture(scope="module")
def data() -> soctk.ValueData:
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(60, 1, 8, 2, generator=generator, dtype=DOUBLE)
    x = reference * torch.rand(60, 10, 1, 1, generator=generator, dtype=DOUBLE)
    x = x + 0.3 * torch.randn(60, 10, 8, 2, generator=generator, dtype=DOUBLE)
    return soctk.ValueData(reference.flatten(1), x.flatten(2), energy(x, reference))


def images() -> tuple[soctk.ConvSOCICNN, soctk.ValueData]:
    """Return a model of images and data of a teacher with other weights."""
    options = {"layers": (), "quadratics": 4, "quadratic_kernel": 3, "affine_hidden": 0}
    teacher, model = (soctk.ConvSOCICNN((5, 5), **options, seed=seed) for seed in (1, 2))  # type: ignore[arg-type]
    shaken(teacher)
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(40, 12, 25, generator=generator, dtype=DOUBLE)
    context = torch.cat([torch.rand(40, 25), (torch.rand(40, 25) > 0.3)], dim=-1).to(DOUBLE)
    with torch.no_grad():
        values = teacher.evaluate(x, context)
    return model, soctk.ValueData(context, x, values)


def residuals(model: soctk.ConvexSurrogate, data: soctk.ValueData) -> Residuals:
    standardize(model, data)
    part = Standardized.of(model, data, DOUBLE)
    return Residuals.weighted(part, 0.1, model.features(part.x, part.context))


def test_the_start_explains_most_of_the_values(data: soctk.ValueData) -> None:
    for model, values in ((soctk.RecurrentSOCICNN(8, 2, **SMALL), data), images()):  # type: ignore[arg-type]
        parts = residuals(model, values)
        assert structured_start(model, parts, torch.Generator().manual_seed(0))
        assert float(parts.total(model)) < 0.3  # of the variance
        close(parts.loss(model).detach(), residuals_by_value(model, parts), VALUE)


def residuals_by_value(model: soctk.ConvexSurrogate, parts: Residuals) -> torch.Tensor:
    raw = model._value(parts.data.x, parts.data.context).detach() - parts.data.value
    return parts.shrink(raw.unsqueeze(-1)).square().mean()


def test_models_without_branches_have_no_structured_start(data: soctk.ValueData) -> None:
    model = soctk.RecurrentSOCICNN(8, 2, variant="relu", hidden=3)
    assert not structured_start(model, residuals(model, data), torch.Generator())


def test_whitened_coordinates_leave_the_function_alone(data: soctk.ValueData) -> None:
    model = shaken(soctk.RecurrentSOCICNN(8, 2, whole_norms=1, **SMALL))  # type: ignore[arg-type]
    parts = residuals(model, data)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = parts.residual(model).detach()
    with whitened(model, parts) as (inside,):
        close(inside.residual(model).detach(), expected, VALUE)
        gram = model.branches["norms"].mean_gram(inside.features["norms"])
        close(gram, torch.eye(len(gram), dtype=DOUBLE), VALUE)
    for name, tensor in model.state_dict().items():
        close(tensor, before[name], VALUE)
    with pytest.raises(KeyboardInterrupt), whitened(model, parts):
        raise KeyboardInterrupt
    close(parts.residual(model).detach(), expected, VALUE)


def test_a_loss_in_pieces_is_the_loss(data: soctk.ValueData, monkeypatch: pytest.MonkeyPatch) -> None:
    model = soctk.RecurrentSOCICNN(8, 2)
    parts = residuals(model, data)
    monkeypatch.setattr("soctk.learn.residuals.LARGEST_PIECE", 2**15)
    assert len(parts.pieces(model)) > 1
    assert sum(part.instances for part in parts.pieces(model)) == data.instances
    close(parts.total(model), parts.loss(model).detach(), VALUE)


def test_fit_finds_the_energy(data: soctk.ValueData) -> None:
    model = soctk.RecurrentSOCICNN(8, 2, **SMALL)  # type: ignore[arg-type]
    train, validation = data.split()
    report = soctk.fit(model, train, QUICK, validation=validation)
    assert relative_error(model, validation) < 0.02
    assert report.best_validation == min(loss for _, loss in report.validation)
    image, values = images()
    soctk.fit(image, values, QUICK)
    assert relative_error(image, values) < 0.02


def test_the_same_seed_gives_the_same_fit(data: soctk.ValueData) -> None:
    config = soctk.FitConfig(starts=1, lbfgs_iterations=5, newton_iterations=2, seed=4)
    fitted = [soctk.RecurrentSOCICNN(8, 2, **SMALL) for _ in range(2)]  # type: ignore[arg-type]
    for model in fitted:
        soctk.fit(model, data, config)
    for first, second in zip(*(model.state_dict().values() for model in fitted), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("variant", ["relu", "softplus", "quad", "norm", "soc"])
def test_one_plain_recipe_trains_every_variant(data: soctk.ValueData, variant) -> None:
    model = soctk.RecurrentSOCICNN(8, 2, variant=variant, hidden=4, quadratics=4, affine_hidden=4)
    config = soctk.FitConfig(structured=False, starts=1, epochs=20, lbfgs_iterations=40, newton_iterations=0)
    report = soctk.fit(model, data, config)
    assert report.best_validation < 0.5  # of the variance
    assert model.dtype == DOUBLE


@pytest.mark.parametrize("layer", [{"kind": "pool", "kernel": 2, "stride": 2}, {"kind": "transposed", "channels": 1}])
def test_layers_of_every_kind_are_learned_by_levenberg_marquardt_steps(layer) -> None:
    model = soctk.ConvSOCICNN((4, 4), layers=(2, layer), quadratics=0, norms=0, affine_hidden=0, seed=0)
    generator = torch.Generator().manual_seed(0)
    context, x = (torch.randn(20, *shape, generator=generator, dtype=DOUBLE) for shape in ((32,), (6, 16)))
    data = soctk.ValueData(context, x, x.square().mean(dim=-1))
    asked = soctk.FitConfig(starts=1, epochs=1, optimizer="levenberg_marquardt", newton_iterations=4)
    report = soctk.fit(model, data, asked)
    assert report.status in (FitStatus.CONVERGED, FitStatus.ITERATION_LIMIT)
    assert report.train[-1][1] < report.train[0][1]


def test_a_time_limit_ends_a_fit(data: soctk.ValueData) -> None:
    model = soctk.RecurrentSOCICNN(8, 2)
    report = soctk.fit(model, data, soctk.FitConfig(time_limit=0.01))
    assert report.status == soctk.learn.report.FitStatus.TIME_LIMIT


@pytest.mark.parametrize(("steps", "kernel"), [(1, 3), (2, 3), (4, 5)])
def test_horizons_without_a_step_away_from_the_ends_are_learned(steps: int, kernel: int) -> None:
    """No window is an ordinary one there: its coordinates were divided by 0, "the algorithm failed to converge"."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 8, steps, 1, generator=generator, dtype=DOUBLE)
    data = soctk.ValueData(torch.zeros(40, steps, dtype=DOUBLE), x.flatten(2), 1 + x.square().sum(dim=(-1, -2)))
    model = soctk.RecurrentSOCICNN(steps, 1, quadratic_kernel=kernel)
    soctk.fit(model, data, QUICK)
    assert float(relative_error(model, data)) < 0.05
