"""v as a function of the context: what suits each coordinate, few ridge functions or a layer that all share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerances import DOUBLE, LEARNED_VALUE, VALUE

import soctk
from soctk.checks import seeded
from soctk.conditioning import AffinePart
from soctk.learn.deadline import Deadline
from soctk.learn.phases.slope import Regression, SharedLayer, Slope
from soctk.learn.trainer import Trainer

DIM, P = 3, 2
Slopes = Callable[[torch.Tensor], torch.Tensor]


def slopes(context: torch.Tensor) -> torch.Tensor:
    """Return an affine, a once clipped and a twice clipped response, (N, 3)."""
    first, second = context.unbind(dim=-1)
    return torch.stack([1 + 0.5 * first - second, (first + 0.3).clamp(min=0.0), (second - first).clamp(-0.5, 0.8)], -1)


def bent_together(context: torch.Tensor) -> torch.Tensor:
    """Return combinations of the same two bends, (N, 3)."""
    first, second = context.unbind(dim=-1)
    bends = torch.stack([torch.tanh(2 * first - second), torch.sin(first + second)], dim=-1)
    return bends @ torch.tensor([[1.0, -0.5, 0.7], [0.3, 1.0, -0.8]], dtype=DOUBLE)


def data(seed: int, slopes: Slopes = slopes) -> soctk.ValueData:
    """Return values of slopes(theta)'x + |x|^2 / 2."""
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(300, P, generator=generator, dtype=DOUBLE)
    x = torch.randn(300, 8, DIM, generator=generator, dtype=DOUBLE)
    return soctk.ValueData(context, x, (x * slopes(context).unsqueeze(1)).sum(dim=-1) + 0.5 * x.square().sum(dim=-1))


def learned(phase: Slope, slopes: Slopes = slopes) -> torch.Tensor:
    """Return the errors of v on new contexts where the curved part is exact, (n,)."""
    model = soctk.SOCICNN(DIM, P, hidden=(), diagonal=True, conditioning="affine", slope_hidden=16)
    trainer = Trainer(model, data(0, slopes), data(1, slopes))
    scale = model.x_scale / model.value_scale.sqrt()
    with torch.no_grad():  # alpha / 2 (g x + e)^2 = x^2 / 2 in the data's units
        model.alpha.floor.fill_(0.0)  # type: ignore[union-attr]
        alpha = torch.nn.functional.softplus(torch.zeros((), dtype=DOUBLE))
        model.g.copy_(scale / alpha.sqrt())  # type: ignore[union-attr]
        model.e_diagonal.slope.zero_()  # type: ignore[union-attr]
        model.e_diagonal.constant.zero_()  # type: ignore[union-attr]
    phase.run(trainer)
    trainer.finish()
    test = data(2, slopes)
    x = torch.eye(DIM, dtype=DOUBLE)
    rise = model(torch.cat([x, -x]).expand(300, -1, -1), test.context).detach()
    return ((rise[:, :DIM] - rise[:, DIM:]) / 2 - slopes(test.context)).square().mean(dim=0).sqrt()


def test_a_response_that_is_affine_or_clipped_is_found_exactly() -> None:
    errors = learned(Slope())
    assert errors[0] < LEARNED_VALUE
    assert errors[1] < LEARNED_VALUE
    many = learned(Slope(counts=()))
    assert (errors <= many).all()
    assert (errors[:2] < 1e-3 * many[:2]).all()


def test_coordinates_that_bend_together_share_what_they_learn() -> None:
    together, apart = (learned(Slope(shared_starts=starts), bent_together) for starts in (4, 0))
    assert (together < 0.2 * apart).all()


def test_the_shared_layer_is_the_best_for_what_is_inside_and_so_is_its_derivative() -> None:
    part = AffinePart(DIM, P, ridges=0, slope_hidden=4, generator=seeded(3), dtype=DOUBLE)
    contexts = [torch.randn(count, P, generator=seeded(count), dtype=DOUBLE) for count in (40, 9)]
    regression = Regression(*contexts, *(bent_together(each) for each in contexts))
    layer = SharedLayer(part, regression, 1e-3)
    assert part.slope is not None
    assert torch.autograd.gradcheck(
        lambda inner: loss_at(layer, inner), [layer.inner.detach().clone().requires_grad_()]
    )
    layer.settle()
    outside = [part.slope.constant, part.slope.slope, layer.network.outer]
    loss = regression.residual(part).square().sum(dim=0).mean() + 1e-3 * sum(w.square().sum() for w in outside)
    for gradient in torch.autograd.grad(loss, outside):
        assert float(gradient.abs().max()) < VALUE[DOUBLE]


def loss_at(layer: SharedLayer, inner: torch.Tensor) -> torch.Tensor:
    """Return the loss as a function of other numbers inside."""
    del layer.network.inner
    layer.network.inner = layer.inner = inner
    return layer.loss()


@pytest.mark.parametrize("hidden", [0, 4])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_entries_are_taken_as_they_are(count: int, hidden: int) -> None:
    part = AffinePart(DIM, P, ridges=3, slope_hidden=4, generator=seeded(0), dtype=DOUBLE)
    few = part.with_slope(seeded(1), ridges=count, slope_hidden=hidden)
    for each in (part, few):
        for weight in each.parameters():
            torch.nn.init.normal_(weight, generator=seeded(2))
    torch.nn.init.zeros_(part.slope_network.outer)  # type: ignore[union-attr]
    context = torch.randn(7, P, dtype=DOUBLE)
    before, entries = part.v(context), torch.tensor([True, False, True])
    part.take(few, entries)
    assert (part.ridges, part.slope_hidden) == (3, 4)
    assert torch.allclose(part.v(context)[..., entries], few.v(context)[..., entries])
    assert torch.equal(part.v(context)[..., ~entries], before[..., ~entries])


def test_without_time_what_was_learned_stays() -> None:
    model = soctk.SOCICNN(DIM, P, hidden=(), diagonal=True, slope_hidden=16)
    train, held_out = data(0, bent_together), data(1, bent_together)
    soctk.fit(model, train, soctk.FitConfig(starts=1), validation=held_out)
    before = error(model)
    Slope().run(Trainer(model, train, held_out, Deadline(0.0)))
    assert error(model) < 1.1 * before


def error(model: soctk.SOCICNN) -> float:
    """Return the mean error of values on new data."""
    test = data(2, bent_together)
    return float((model(test.x, test.context) - test.value).detach().abs().mean())


@pytest.mark.parametrize("candidates", [1, 4, 8])
def test_the_layer_stays_out_where_candidates_tell_no_slopes(candidates: int) -> None:
    model = soctk.SOCICNN(DIM, P, hidden=(), diagonal=True, slope_hidden=16)
    few = [soctk.ValueData(d.context, d.x[:, :candidates], d.value[:, :candidates]) for d in (data(0), data(1))]
    trainer = Trainer(model, *few)
    weights = {id(weight) for weight in trainer.weights()}
    layer = model.affine.slope_network
    assert layer is not None
    assert (id(layer.outer) in weights) == (candidates == 8)
    torch.nn.init.normal_(layer.outer)
    assert id(layer.outer) in {id(weight) for weight in trainer.weights()}
