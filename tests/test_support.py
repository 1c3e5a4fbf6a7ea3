"""Where a model's data were: learned by `fit`, kept by files, copies and averages, seen by decisions."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from safetensors import safe_open

import soctk
from soctk.support import Support

DIM, CONTEXT = 3, 2
BOX = soctk.Box(DIM, 0.0, 1.0)


def data(rows: int = 200) -> soctk.ValueData:
    random = np.random.default_rng(0)
    theta = random.normal(size=(rows, CONTEXT))
    x = (0.5 + 0.1 * theta[:, :1] + 0.15 * random.normal(size=(rows, DIM))).clip(0, 1)
    return soctk.ValueData(theta, x[:, None], ((x - 0.5 - 0.1 * theta[:, :1]) ** 2).sum(axis=1)[:, None])


@pytest.fixture
def model() -> soctk.ConvexSurrogate:
    made = soctk.make_surrogate("quadratic", DIM, CONTEXT)
    soctk.fit(made, data())
    return made


def test_the_data_are_inside_and_far_contexts_outside(model) -> None:
    context = data().context
    inside = soctk.minimize(model, BOX, context).outside
    assert inside.shape == (200,)
    assert not bool(inside.any())
    assert bool(soctk.minimize(model, BOX, torch.tensor([[50.0, 0.0]])).outside.all())
    assert not soctk.Decision.joined([soctk.minimize(model, BOX, context[:3])] * 2, (2, 3), 0.0).outside.any()
    assert soctk.minimize(model, BOX, context.reshape(2, 100, CONTEXT)).outside.shape == (2, 100)
    assert bool(soctk.minimize(model, BOX, torch.zeros(CONTEXT)).outside) is False


def test_usual_decisions_of_other_contexts_are_outside() -> None:
    random = np.random.default_rng(0)
    theta = torch.from_numpy(random.uniform(-1, 1, size=(300, 1)))
    support = Support.of((theta, (theta + 0.01 * torch.from_numpy(random.normal(size=(300, 1))))[:, None]))
    at = np.array([[0.9], [0.9], [1.5]])
    assert support.outside(at, np.array([[0.9], [-0.9], [1.5]])).tolist() == [False, True, True]


def follower(rows: int = 400, context_dim: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Contexts, and decisions that follow them within 0.1: the ranges are ten times as wide and more."""
    random = np.random.default_rng(0)
    theta = random.normal(size=(rows, context_dim))
    x = theta[:, :1] * np.array([1.0, -0.5, 0.2]) + 0.1 * random.uniform(-1, 1, size=(rows, 3))
    return theta, x


def test_decisions_far_from_the_usual_ones_at_their_context_are_outside() -> None:
    """Within all ranges, and not far from the mean of both together: the distances there are of the contexts."""
    theta, x = follower()
    support = Support.of((torch.from_numpy(theta), torch.from_numpy(x)[:, None]))
    at, usual = np.zeros((2, 8)), np.zeros((2, 3))
    usual[1, 1] = 0.25
    assert not support.outside(theta, x).any()
    assert support.outside(at, usual).tolist() == [False, True]
    without = dataclasses.replace(support, farthest_given=np.inf)
    assert without.outside(at, usual).tolist() == [False, False]


def test_the_distance_from_the_usual_decision_is_that_of_the_residuals_of_least_squares() -> None:
    theta, x = follower()
    support = Support.of((torch.from_numpy(theta), torch.from_numpy(x)[:, None]))
    basis = np.concatenate([np.ones((len(theta), 1)), theta], axis=1)
    residual = x - basis @ np.linalg.lstsq(basis, x, rcond=None)[0]
    expected = np.sqrt(np.einsum("ri,ij,rj->r", residual, np.linalg.inv(residual.T @ residual / len(x)), residual))
    np.testing.assert_allclose(support.distance_given(theta, x), expected, rtol=1e-9)
    assert support.farthest_given == pytest.approx(expected.max(), rel=1e-9)


def test_a_file_of_an_older_version_flags_what_it_did() -> None:
    theta, x = follower()
    support = Support.of((torch.from_numpy(theta), torch.from_numpy(x)[:, None]))
    plain = support.plain()
    assert Support.from_plain(plain, 3, 8).farthest_given == support.farthest_given
    del plain["farthest_given"]
    older = Support.from_plain(plain, 3, 8)
    assert "farthest_given" not in older.plain()
    assert older.outside(np.zeros((1, 8)), np.array([[0.0, 0.25, 0.0]])).tolist() == [False]


def test_files_copies_and_averages_remember(model, tmp_path) -> None:
    context = torch.cat([data().context[:20], torch.full((3, CONTEXT), 30.0)])
    expected = soctk.minimize(model, BOX, context).outside
    assert expected.sum() == 3
    soctk.save(model, tmp_path / "model.st")
    network = soctk.SOCICNN(DIM, CONTEXT, hidden=(), quadratics=(2,), norms=(), ridges=0)
    network.support = model.support
    for other in (soctk.load(tmp_path / "model.st"), soctk.average([model, model])):
        assert torch.equal(soctk.minimize(other, BOX, context).outside, expected)
    assert soctk.freeze(network).support is model.support
    assert torch.equal(soctk.prepare(model, BOX).minimize(context).outside, expected)


def test_models_that_do_not_know_flag_nothing(tmp_path) -> None:
    model = soctk.SOCICNN(DIM, CONTEXT)
    soctk.save(model, tmp_path / "model.st")
    with safe_open(tmp_path / "model.st", framework="pt") as file:
        assert "support" not in file.metadata()
    assert soctk.minimize(soctk.load(tmp_path / "model.st"), BOX, torch.zeros(4, CONTEXT)).outside is None
    assert soctk.average([model]).support is None


def test_an_average_of_other_data_has_the_widest_ranges() -> None:
    parts = [Support.of((torch.full((1, 1), k), torch.tensor([[[0.0], [k]]]))) for k in (1.0, 2.0)]
    joined = Support.joined(parts)
    assert joined.context.tolist() == [[1.0], [2.0]]
    assert joined.x.tolist() == [[0.0], [2.0]]
    assert Support.joined([*parts, None]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"x": [[0.0]]},
        {"mean": [1.0]},
        {"farthest": None},
        {"farthest_given": []},
        {"context": "x"},
        {"parts": 1},
        {"parts": [{"parts": []}]},
    ],
)
def test_a_file_is_not_believed(change) -> None:
    plain = Support.of((torch.zeros(2, CONTEXT), torch.ones(2, 1, DIM))).plain() | change
    with pytest.raises(ValueError, match=r"expected|positive definite"):
        Support.from_plain(plain, DIM, CONTEXT)


def test_a_model_without_context_and_an_empty_set_are_said() -> None:
    x = np.random.default_rng(0).uniform(0.2, 0.8, size=(1, 80, 2))
    model = soctk.make_surrogate("quadratic", 2)
    soctk.fit(model, soctk.ValueData(np.zeros((1, 0)), x, (x**2).sum(axis=2)))
    assert bool(soctk.minimize(model, soctk.Box(2)).outside) is True  # the minimum 0 lies beyond the range
    empty = soctk.Budget(2, 1.0).at(total=torch.tensor([1.0, 9.0], dtype=torch.float64))
    assert soctk.minimize(model, empty).outside.tolist() == [False, True]


def test_what_every_member_has_never_seen_is_outside_of_their_mean(tmp_path) -> None:
    """Its ranges alone, which a policy that follows the context makes wide, said nothing."""
    theta, x = follower(context_dim=1)
    parts = [
        (torch.from_numpy(theta[rows]), torch.from_numpy(x[rows])[:, None]) for rows in (slice(300), slice(100, 400))
    ]
    members = [soctk.make_surrogate("quadratic", 3, 1) for _ in parts]
    for member, part in zip(members, parts, strict=True):
        member.support = Support.of(part)
    soctk.save(soctk.average(members), tmp_path / "mean.safetensors")
    far, usual = -x, x
    assert (np.abs(far) < 0.9 * np.abs(x).max(axis=0)).all(axis=1).any()
    for model in (
        soctk.average(members),
        soctk.average([soctk.average(members)] * 2),
        soctk.load(tmp_path / "mean.safetensors"),
    ):
        assert not model.support.outside(theta, usual).any()
        each = [Support.of(part).outside(theta, far) for part in parts]
        np.testing.assert_array_equal(model.support.outside(theta, far), np.logical_and(*each))
        assert model.support.outside(theta, far).mean() > 0.5


def test_numbers_that_were_constant_may_have_been_float32_on_the_way() -> None:
    random = np.random.default_rng(0)
    context, x = random.normal(size=(80, 2)), random.normal(size=(80, 4, DIM))
    context[:, 1], x[..., 0] = 0.1, 0.7
    model = soctk.make_surrogate("quadratic", DIM, 2)
    soctk.fit(model, soctk.ValueData(context, x, np.square(x).sum(axis=-1)))
    tight = soctk.Box(DIM, [0.7, -0.5, -0.5][:DIM], [0.7, 0.5, 0.5][:DIM])
    for one, given in ((model, context), (model, context.astype(np.float32)), (copy.deepcopy(model).float(), context)):
        assert not bool(soctk.minimize(one, tight, given[:20]).outside.any())
    given = context[:20].copy()
    given[:, 1] = 0.10001
    assert bool(soctk.minimize(model, tight, given).outside.all())


def test_members_of_a_saved_average_remember(tmp_path) -> None:
    context, x = np.random.default_rng(0).normal(size=(10, 2)), np.random.default_rng(1).normal(size=(10, 3, DIM))
    models = []
    for moved in (0.0, 5.0):
        models.append(soctk.make_surrogate("quadratic", DIM, 2))
        soctk.fit(models[-1], soctk.ValueData(context + moved, x, np.square(x).sum(axis=-1)))
    soctk.save(soctk.average(models), tmp_path / "mean.st")
    loaded = soctk.load(tmp_path / "mean.st")
    for model, member in zip(models, loaded.members, strict=True):
        assert member.support.plain() == model.support.plain()
    assert soctk.average(loaded.members[:1]).support.plain()["context"] == models[0].support.plain()["context"]
