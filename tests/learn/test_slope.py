"""v as a function of the context: as few ridge functions as do best, coordinate by coordinate."""

from __future__ import annotations

import pytest
import torch
from tolerances import DOUBLE, LEARNED_VALUE

import soctk
from soctk.checks import seeded
from soctk.conditioning import AffinePart
from soctk.learn.phases.slope import Slope
from soctk.learn.trainer import Trainer

DIM, P = 3, 2


def slopes(context: torch.Tensor) -> torch.Tensor:
    """Return an affine, a once clipped and a twice clipped response, (N, 3)."""
    first, second = context.unbind(dim=-1)
    return torch.stack([1 + 0.5 * first - second, (first + 0.3).clamp(min=0.0), (second - first).clamp(-0.5, 0.8)], -1)


def data(seed: int) -> soctk.ValueData:
    """Return values of slopes(theta)'x + |x|^2 / 2."""
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(300, P, generator=generator, dtype=DOUBLE)
    x = torch.randn(300, 8, DIM, generator=generator, dtype=DOUBLE)
    return soctk.ValueData(context, x, (x * slopes(context).unsqueeze(1)).sum(dim=-1) + 0.5 * x.square().sum(dim=-1))


def learned(phase: Slope) -> torch.Tensor:
    """Return the errors of v on new contexts where the curved part is exact, (n,)."""
    model = soctk.SOCICNN(DIM, P, hidden=(), diagonal=True, conditioning="affine")
    trainer = Trainer(model, data(0), data(1))
    scale = model.x_scale / model.value_scale.sqrt()
    with torch.no_grad():  # alpha / 2 (g x + e)^2 = x^2 / 2 in the data's units
        model.alpha.floor.fill_(0.0)  # type: ignore[union-attr]
        alpha = torch.nn.functional.softplus(torch.zeros((), dtype=DOUBLE))
        model.g.copy_(scale / alpha.sqrt())  # type: ignore[union-attr]
        model.e_diagonal.slope.zero_()  # type: ignore[union-attr]
        model.e_diagonal.constant.zero_()  # type: ignore[union-attr]
    phase.run(trainer)
    trainer.finish()
    test = data(2)
    x = torch.eye(DIM, dtype=DOUBLE)
    rise = model(torch.cat([x, -x]).expand(300, -1, -1), test.context.unsqueeze(1).expand(-1, 2 * DIM, -1)).detach()
    return ((rise[:, :DIM] - rise[:, DIM:]) / 2 - slopes(test.context)).square().mean(dim=0).sqrt()


def test_a_response_that_is_affine_or_clipped_is_found_exactly() -> None:
    errors = learned(Slope())
    assert errors[0] < LEARNED_VALUE
    assert errors[1] < LEARNED_VALUE
    many = learned(Slope(counts=()))
    assert (errors <= many).all()
    assert (errors[:2] < 1e-3 * many[:2]).all()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_entries_are_taken_as_they_are(count: int) -> None:
    options = {"generator": seeded(0), "dtype": DOUBLE}
    part = AffinePart(DIM, P, ridges=3, **options)  # type: ignore[arg-type]
    few = part.with_ridges(count, seeded(1))
    for each in (part, few):
        for weight in each.parameters():
            torch.nn.init.normal_(weight, generator=seeded(2))
    context = torch.randn(7, P, dtype=DOUBLE)
    before, entries = part.v(context), torch.tensor([True, False, True])
    part.take(few, entries)
    assert part.ridges == 3
    assert torch.allclose(part.v(context)[..., entries], few.v(context)[..., entries])
    assert torch.equal(part.v(context)[..., ~entries], before[..., ~entries])
