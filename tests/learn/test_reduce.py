"""Smaller structures: what is left of a norm without a direction, and the exact function where sizes were guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import DOUBLE, LEARNED_VALUE, VALUE

import soctk
from soctk.conditioning import Offset
from soctk.learn.phases.reduce import Reduce
from soctk.learn.recipe import recipe_for
from soctk.learn.trainer import Trainer
from soctk.models.reductions import drop_direction, least_direction

DIM, P = 3, 2
CHOICE = {"structures": (("diagonal", "norm0", "hyperbolics"), ("diagonal", "norm0", "norm1", "hyperbolics"))}
SIZES = {"hidden": (), "diagonal": True, "norms": (4, 3), "hyperbolics": 3, "level_squares": True}
RECIPE = soctk.FitConfig(starts=1, epochs=1, level_iterations=20)


def model(**more: object) -> soctk.SOCICNN:
    return soctk.SOCICNN(DIM, P, **SIZES | CHOICE | more)  # type: ignore[arg-type]


def norm(rows: int, rank: int, seed: int) -> tuple[torch.Tensor, Offset]:
    """Return rows and offset of a norm that have `rank` directions."""
    generator = torch.Generator().manual_seed(seed)
    offset = Offset(P, rows, generator=generator, dtype=DOUBLE)
    mix = torch.randn(rows, rank, generator=generator, dtype=DOUBLE)
    A, D, e = (torch.randn(rank, columns, generator=generator, dtype=DOUBLE) for columns in (DIM, P, 1))
    with torch.no_grad():
        offset.slope.copy_(mix @ D)  # type: ignore[union-attr]
        offset.constant.copy_((mix @ e)[:, 0])
    return mix @ A, offset


def lengths(matrix: torch.Tensor, offset: Offset, seed: int = 0) -> torch.Tensor:
    """Return ||A x + d(theta)|| at random points."""
    generator = torch.Generator().manual_seed(seed)
    x, context = (torch.randn(50, size, generator=generator, dtype=DOUBLE) for size in (DIM, P))
    return (x @ matrix.mT + context @ offset.slope.mT + offset.constant).norm(dim=1).detach()  # type: ignore[union-attr]


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(0, 999))
def test_dropping_a_direction_is_the_nearest_norm_of_smaller_rank(rows: int, seed: int) -> None:
    """Eckart, Young and Mirsky: what [A D e] loses is its least singular value, in the spectral norm."""
    matrix, offset = norm(rows, rows, seed)
    before = torch.cat([matrix, offset.slope, offset.constant[:, None]], dim=1).detach()  # type: ignore[list-item]
    values = torch.linalg.svdvals(before)
    rank, share = least_direction(matrix, offset)
    assert rank == min(rows, DIM + P + 1)
    assert share == pytest.approx(float(values[-1] / values[0]))
    drop_direction(matrix, offset)
    after = torch.cat([matrix, offset.slope, offset.constant[:, None]], dim=1).detach()  # type: ignore[list-item]
    lost = torch.linalg.eigvalsh(before.mT @ before - after.mT @ after)
    assert float(lost[-1]) == pytest.approx(float(values[rank - 1] ** 2))
    assert float(lost[0]) >= -VALUE[DOUBLE] * float(values[0] ** 2)
    assert least_direction(matrix, offset)[0] == rank - 1


@given(st.integers(2, 5), st.integers(0, 99))
def test_a_direction_less_never_lengthens(rank: int, seed: int) -> None:
    matrix, offset = norm(6, rank, seed)
    values = lengths(matrix, offset)
    assert least_direction(matrix, offset)[0] == rank
    drop_direction(matrix, offset)
    assert (matrix[rank - 1 :] == 0).all()
    assert (lengths(matrix, offset) <= values * (1 + VALUE[DOUBLE])).all()  # a projection shortens


def test_reductions_name_what_is_on_least_first() -> None:
    surrogate = model()
    surrogate.set_structure(1)
    with torch.no_grad():
        surrogate.A[1].mul_(torch.tensor([[1.0], [1.0], [1e-6]], dtype=DOUBLE))
        surrogate.d[1].slope.mul_(torch.tensor([[1.0], [1.0], [1e-6]], dtype=DOUBLE))
        surrogate.d[1].constant.mul_(torch.tensor([1.0, 1.0, 1e-6], dtype=DOUBLE))
    assert [each.block for each in surrogate.reductions()] == ["hyperbolics", "norm1", "norm0"]
    surrogate.set_structure(0, ("hyperbolics",))
    assert [each.block for each in surrogate.reductions()] == ["norm0"]
    for _ in range(4):
        surrogate.reductions()[0].apply()
    assert surrogate.reductions() == []
    assert surrogate.traits.blocks == ("diagonal",)


def test_a_model_without_blocks_is_saved_and_loaded_as_it_is(tmp_path: Path) -> None:
    surrogate = model(without=("hyperbolics", "norm1"))
    whole = model()
    whole.load_state_dict(dict(surrogate.state_dict()))  # the weights alone
    x, context = torch.rand(5, DIM, dtype=DOUBLE), torch.randn(5, P, dtype=DOUBLE)
    assert not torch.allclose(surrogate(x, context), whole(x, context))
    soctk.save(surrogate, tmp_path / "model.pt")
    again = soctk.load(tmp_path / "model.pt")
    assert again.config() == surrogate.config()
    assert torch.equal(again(x, context), surrogate(x, context))
    whole.set_structure(1, ("hyperbolics", "norm1"))
    assert torch.equal(whole(x, context), surrogate(x, context))
    assert whole.parameter_count == surrogate.parameter_count < model().parameter_count


def test_an_unknown_block_is_refused() -> None:
    with pytest.raises(ValueError, match="without"):
        model(without=("norm7",))
    with pytest.raises(ValueError, match="without"):
        model().set_structure(0, "hyperbolics")


def cone(x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """Return a norm of two rows, whose offset the context moves, beside a bowl."""
    A = torch.tensor([[1.0, -0.5, 0.3], [0.2, 0.8, -1.0]], dtype=DOUBLE)
    D = torch.tensor([[0.3, -0.1], [0.2, 0.4]], dtype=DOUBLE)
    kink = (x @ A.mT + (context @ D.mT - 0.1).unsqueeze(-2)).norm(dim=-1)
    return kink + x.square() @ torch.tensor([0.5, 0.2, 0.4], dtype=DOUBLE)


def data(noise: float = 0.0, seed: int = 0) -> soctk.ValueData:
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(120, P, generator=generator, dtype=DOUBLE)
    x = 2 * torch.rand(120, 40, DIM, generator=generator, dtype=DOUBLE) - 1
    value = cone(x, context)
    return soctk.ValueData(context, x, value + noise * torch.randn(value.shape, generator=generator, dtype=DOUBLE))


def shape_error(model: soctk.ConvexSurrogate, of: soctk.ValueData) -> float:
    """Return the mean square of what the model leaves of the values' variation within an instance."""
    residual = of.value - model(of.x, of.context).detach()
    return float((residual - residual.mean(dim=1, keepdim=True)).square().mean())


def test_a_reduced_surrogate_is_reported_as_a_whole() -> None:
    """All weights moved together last: what was reported was the loss of the curved part, with v as good as can be."""

    def bent(of: soctk.ValueData) -> soctk.ValueData:
        return soctk.ValueData(of.context, of.x, of.value + of.x[..., 0] * torch.sin(3 * of.context[:, :1]))

    surrogate, held_out = model(), bent(data(seed=1))
    report = soctk.fit(surrogate, bent(data()), RECIPE, validation=held_out)
    assert surrogate.without
    unit = float(surrogate.value_scale) ** 2
    assert report.best_validation == pytest.approx(shape_error(surrogate, held_out) / unit, rel=1e-6, abs=0.0)


def test_the_function_itself_is_found_where_sizes_were_guessed() -> None:
    """Four rows and three hyperbolic branches for a norm of two: without what is too much, the function is exact."""
    surrogate = model()
    report = soctk.fit(surrogate, data(), RECIPE, validation=data(seed=1))
    assert "hyperbolics" in surrogate.without
    assert least_direction(surrogate.A[0], surrogate.d[0])[0] == 2
    assert shape_error(surrogate, data(seed=2)) < LEARNED_VALUE**2
    assert "hyperbolics" not in surrogate.traits.blocks
    assert report.model is surrogate


@pytest.mark.parametrize("more", [{"reduce": False}, {"choose_structure": False}])
def test_it_can_be_switched_off(more: dict[str, bool]) -> None:
    recipe = recipe_for(model(), soctk.FitConfig(**more), 40, instances=120)  # type: ignore[arg-type]
    assert "Reduce(" not in repr(recipe)
    assert "Reduce(" in repr(recipe_for(model(), soctk.FitConfig(), 40, instances=120))


def test_with_noise_nothing_is_left_out() -> None:
    """No structure's loss falls below the noise, so none is clearly better."""
    surrogate = model()
    trainer = Trainer(surrogate, data(noise=0.3), data(noise=0.3, seed=1))
    before = trainer.state()
    Reduce(4800, 1e-7).run(trainer)
    assert surrogate.without == ()
    assert all(torch.equal(trainer.state()[name], tensor) for name, tensor in before.items())


def test_an_interruption_leaves_structure_and_weights_that_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    surrogate = model()
    trainer = Trainer(surrogate, data(), data(seed=1))
    before = trainer.state()
    apply = surrogate.set_structure

    def interrupted(index: int, without: tuple[str, ...] = ()) -> None:
        apply(index, without)
        if without:
            raise KeyboardInterrupt

    monkeypatch.setattr(surrogate, "set_structure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Reduce(4800, 1e-7).run(trainer)
    trainer.finish()
    assert surrogate.without == ()
    assert all(torch.equal(tensor, before[name]) for name, tensor in surrogate.state_dict().items())
