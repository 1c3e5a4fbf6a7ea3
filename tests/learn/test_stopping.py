"""Fits that are told to stop, and what is seen of a fit in progress."""

from __future__ import annotations

import itertools
import re
from contextlib import nullcontext

import pytest
import torch

import soctk
from soctk.learn import progress
from soctk.losses import relative_error
from soctk_tasks import make_task

QUICK = soctk.FitConfig(starts=2, epochs=2, newton_iterations=6, lbfgs_iterations=40, level_iterations=40)


def bowls(candidates: int) -> soctk.ValueData:
    """Values of a squared distance that moves with the context."""
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(80, 2, generator=generator, dtype=torch.float64)
    x = torch.rand(80, candidates, 3, generator=generator, dtype=torch.float64)
    mixing = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    return soctk.ValueData(context, x, (x - (context @ mixing).unsqueeze(1)).square().sum(dim=-1))


@pytest.mark.parametrize("candidates", [1, 8])
def test_a_fit_that_is_told_to_stop_keeps_what_it_has_learned(candidates: int) -> None:
    data, asked = bowls(candidates), itertools.count()
    model = soctk.SOCICNN(3, 2, seed=3)
    before = relative_error(model, data)
    report = soctk.fit(model, data, QUICK, stop=lambda: next(asked) >= 8)
    assert report.status == "stopped"
    assert relative_error(model, data) < before
    stopped, asked = next(asked), itertools.count()
    whole = soctk.fit(soctk.SOCICNN(3, 2, seed=3), data, QUICK, stop=lambda: next(asked) < 0)
    assert whole.status != "stopped"
    assert stopped < 0.5 * next(asked)


def values_of(model: soctk.ConvexSurrogate, data: soctk.ValueData) -> torch.Tensor:
    return model(data.x, data.context).detach()


@pytest.mark.parametrize("name", ["soc", "dcp", "norm"])
@pytest.mark.parametrize("steps", [0, 3, 30, 150, 400])
def test_values_are_right_whenever_a_fit_is_stopped(name: str, steps: int) -> None:
    """The curved part is learned first: without b0 and v, which follow, values were off by all that a context moves."""
    whole, asked = bowls(16), itertools.count()
    value = whole.value + 10 * whole.context[:, :1] + (whole.x.sum(dim=-1) - 1.5).abs()
    data, validation = (soctk.ValueData(whole.context, whole.x[:, k::2], value[:, k::2]) for k in (0, 1))
    model = soctk.make_surrogate(name, 3, 2)
    report = soctk.fit(model, data, soctk.FitConfig(seed=1), validation, stop=lambda: next(asked) >= steps)
    assert report.status == "stopped"
    ones = torch.ones(80, 8, 1, dtype=torch.float64)
    affine = torch.cat([ones, data.context.unsqueeze(1).expand(-1, 8, -1), data.x], dim=-1).flatten(end_dim=1)
    rest = data.value.reshape(-1, 1) - affine @ torch.linalg.lstsq(affine, data.value.reshape(-1, 1)).solution
    assert float((values_of(model, data) - data.value).square().mean()) <= 1.2 * float(rest.square().mean())
    held_out = (values_of(model, validation) - validation.value).square().mean() / model.value_scale.square()
    assert report.best_validation == pytest.approx(float(held_out), rel=1e-6)


def test_without_a_terminal_progress_is_lines(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    soctk.fit(soctk.SOCICNN(3, 2), bowls(8), soctk.FitConfig(starts=1, epochs=2, newton_iterations=3, progress=True))
    said = capsys.readouterr()
    shares = [int(share) for share in re.findall(r"^fit: (\d+)% of \d+ steps, loss [\d.e+-]+, \d+ s$", said.err, re.M)]
    assert len(shares) == said.err.count("\n") > 3
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 100
    assert said.out == ""


@pytest.mark.parametrize("method", ["soc", "dcp", "pcf_template", "norm"])
def test_what_a_fit_leaves_is_whole_whenever_it_ends_and_never_much_worse_than_before(method: str) -> None:
    task = make_task("box_socp", dim=4)
    data, held_out = task.sample(60, 16, seed=1), task.sample(20, 16, seed=2)
    config = soctk.FitConfig(starts=2, epochs=1, lbfgs_iterations=20, newton_iterations=6, level_iterations=10)

    def left(raising: bool, last: int) -> float:
        model, calls = soctk.make_surrogate(method, 4, task.context_dim, seed=0), itertools.count(1)

        def stop() -> bool:
            ended = next(calls) >= last
            if ended and raising:
                raise KeyboardInterrupt
            return ended

        with nullcontext() if not raising else pytest.raises(KeyboardInterrupt):
            soctk.fit(model, data, config, held_out, stop=stop)
        assert model.support is not None
        with torch.no_grad():
            value = values_of(model, held_out)
        return float((value - held_out.value).square().mean())

    for raising in (False, True):
        errors = [left(raising, last) for last in (1, 6, 20, 60)]
        assert all(later <= 1.2 * min(errors[: k + 1]) for k, later in enumerate(errors)), errors
        assert errors[0] < held_out.value.var()
