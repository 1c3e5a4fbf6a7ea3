"""Image restoration against the paper's energy written out over pixels, and Clarabel, on the stand-in images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tolerances import DOUBLE, VALUE, close

from soctk import Box
from soctk_tasks import Faces, choose_width, load_faces, make_restoration
from soctk_tasks.faces import FacesNotFoundError
from soctk_tasks.restoration import Restoration

SIZE = 8


@pytest.fixture(scope="module")
def stand_in() -> Faces:
    return load_faces(source="stand-in")


@pytest.fixture(scope="module")
def task(stand_in: Faces) -> Restoration:
    return make_restoration(SIZE, faces=stand_in)


def papers_energy(x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> float:
    """Return the energy of one image (H, W), pixel by pixel, with the constants of the paper."""
    height, width = x.shape
    offsets = range(-2, 3)
    blur = {(a, b): math.exp(-(a * a + b * b) / (2 * 0.7**2)) for a in offsets for b in offsets}
    weight = sum(blur.values())

    def at(i: int, j: int) -> float:
        return float(x[i, j]) if 0 <= i < height and 0 <= j < width else 0.0

    total = 0.0
    for i in range(height):
        for j in range(width):
            blurred = sum(value * at(i + a, j + b) for (a, b), value in blur.items()) / weight
            total += 0.5 * (mask[i, j] * (blurred - y[i, j])) ** 2
            laplacian = at(i + 1, j) + at(i - 1, j) + at(i, j + 1) + at(i, j - 1) - 4 * at(i, j)
            total += 0.5 * 0.035 * laplacian**2
            right = x[i, j + 1] - x[i, j] if j + 1 < width else 0.0
            down = x[i + 1, j] - x[i, j] if i + 1 < height else 0.0
            total += 0.055 * math.sqrt(right**2 + down**2 + 1e-4)
    return total / (height * width)


def test_the_papers_sizes_and_set(stand_in: Faces) -> None:
    task = make_restoration(faces=stand_in)
    assert (task.size, task.sizes, task.count) == (64, (280, 60, 60), 16)
    assert task.feasible_set == Box(4096)
    assert task.context_dim == 2 * 4096
    assert task.identity == stand_in.identity


@pytest.mark.parametrize("size", [2, 8, 16])
def test_the_energy_is_the_papers(stand_in: Faces, size: int) -> None:
    task = make_restoration(size, faces=stand_in)
    data = task.sample(2, 16, seed=1)
    for i in range(2):
        y, mask = data.context[i].reshape(2, size, size).numpy()
        for j in range(16):
            value = papers_energy(data.x[i, j].reshape(size, size).numpy(), y, mask)
            assert float(data.value[i, j]) == pytest.approx(value, rel=1e-12)
    close(task.objective(data.x[:, 3], data.context), data.value[:, 3], VALUE)


def test_a_thousand_pixels_are_certified(stand_in: Faces) -> None:
    task = make_restoration(32, faces=stand_in)
    context = task.contexts(4, seed=2)
    decision = task.solve(context, tol=1e-5)
    assert (decision.status == "optimal").all()
    assert float(decision.gap.max()) <= 1e-5 * task.spread
    assert float(task.feasible_set.violation(decision.x).max()) == 0.0
    data = task.sample(4, 16, seed=2)
    assert bool((data.value.amin(dim=1) >= decision.lower_bound).all())


def test_samples_have_the_published_shapes(task: Restoration) -> None:
    data = task.sample(7, 16, seed=1)
    assert (data.context.shape, data.x.shape, data.value.shape) == ((7, 128), (7, 16, 64), (7, 16))


def test_candidates_are_of_the_published_kinds(task: Restoration) -> None:
    context, clean = task.draw(5, seed=3)
    x = task.candidates(context, clean, 16, seed=0)
    assert torch.equal(x[:, 0], task.observation(context))
    assert torch.equal(x[:, 1], clean)
    close(x[:, 2], task.blurred(clean), VALUE)
    for kind in (7, 11, 15):  # between the observation and the clean image
        low, high = torch.minimum(clean, x[:, 0]), torch.maximum(clean, x[:, 0])
        assert bool(((x[:, kind] >= low - 1e-12) & (x[:, kind] <= high + 1e-12)).all())


def test_corruption_is_the_papers(stand_in: Faces) -> None:
    task = make_restoration(faces=stand_in)
    context, clean = task.draw(100, seed=0)
    observed, mask = context.split(task.dim, dim=-1)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert bool((observed[mask == 0] == 0).all())
    residual = (observed - task.blurred(clean))[(mask == 1) & (observed > 0) & (observed < 1)]
    assert float(residual.std()) == pytest.approx(0.025, rel=0.02)
    # 10% of the pixels, and three holes of mean side 13, which overlap: 3 (13/64)^2 = .124 at most.
    assert 0.14 <= float(1 - mask.mean()) <= 0.10 + 0.9 * 0.124
    holes = task._holes(200, torch.Generator().manual_seed(1)).reshape(200, 64, 64)
    assert bool(holes.any(dim=(1, 2)).all())
    rows = holes.any(dim=2).sum(dim=1)
    assert int(rows.min()) >= 8
    assert int(holes.sum(dim=(1, 2)).max()) <= 4 * 18 * 18


def test_splits_share_no_image(task: Restoration) -> None:
    splits = task.splits(seed=4, sizes=(50, 30, 20), candidates=2)
    parts = (splits.train, splits.validation, splits.test)
    assert [part.data.instances for part in parts] == [50, 30, 20]
    clean = torch.cat([part.clean for part in parts])
    assert len({tuple(row) for row in clean.tolist()}) == 100


def test_trivial_decisions(task: Restoration) -> None:
    context, _ = task.draw(6, seed=5)
    observed, mask = context.reshape(6, 2, SIZE, SIZE).unbind(dim=1)
    mean = torch.stack([y[m == 1].mean() for y, m in zip(observed, mask, strict=True)])
    close(task.constant(context), mean[:, None].expand(6, task.dim), VALUE)
    averaged = task.moving_average(context, 3).reshape(6, SIZE, SIZE)
    for i in range(SIZE):
        for j in range(SIZE):
            window = (slice(None), slice(max(0, i - 1), i + 2), slice(max(0, j - 1), j + 2))
            for k in range(6):
                seen = mask[window][k] == 1
                expected = observed[window][k][seen].mean() if bool(seen.any()) else mean[k]
                assert float(averaged[k, i, j]) == pytest.approx(float(expected), abs=1e-12)
    assert choose_width(task, context, task.moving_average) in (1, 3, 5, 7, 9, 11)
    blind = torch.zeros(1, task.context_dim, dtype=DOUBLE)
    assert bool((task.moving_average(blind, 3) == 0.5).all())
    assert bool((task.start(blind) == 0.5).all())


def test_bad_arguments_are_refused(task: Restoration, stand_in: Faces) -> None:
    with pytest.raises(ValueError, match="size: expected a divisor of 64, got 48"):
        make_restoration(48, faces=stand_in)
    with pytest.raises(ValueError, match="at most 400"):
        task.contexts(401, seed=0)
    with pytest.raises(ValueError, match="candidates"):
        task.sample(2, 0, seed=0)


def test_the_trivial_rows_of_the_photographs() -> None:
    """What 60 photographs give at 32x32; the means of other sixties are within a tenth of these."""
    try:
        task = make_restoration(32)
    except FacesNotFoundError:
        pytest.skip("no photographs: set SOCTK_FACES")
    if not task.identity.startswith("Olivetti"):
        pytest.skip(f"another data set: {task.identity}")
    context, clean = task.draw(60, seed=0)
    best = task.solve(context, tol=1e-4)
    assert (best.status == "optimal").all()
    for x, regret, error in (
        (task.observation(context), 0.0210, 0.255),
        (task.constant(context), 0.0056, 0.118),
        (clean, 0.0025, 0.0655),
    ):
        assert float((task.objective(x, context) - best.value).mean()) == pytest.approx(regret, rel=0.15)
        assert float(task.decision_error(x, best.x).mean()) == pytest.approx(error, rel=0.10)
