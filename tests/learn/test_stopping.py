"""Fits that are told to stop, and what is seen of a fit in progress."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

import soctk
from soctk.learn import progress
from soctk.losses import relative_error

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


def test_without_a_terminal_progress_is_lines(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    soctk.fit(soctk.SOCICNN(3, 2), bowls(8), soctk.FitConfig(starts=1, epochs=2, newton_iterations=3, progress=True))
    said = capsys.readouterr()
    shares = [int(share) for share in re.findall(r"^fit: (\d+)% of \d+ steps, loss [\d.e+-]+, \d+ s$", said.err, re.M)]
    assert len(shares) == said.err.count("\n") > 3
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 100
    assert said.out == ""
