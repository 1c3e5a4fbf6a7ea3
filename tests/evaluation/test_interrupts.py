"""Ctrl-C during `soctk fit`: the first one saves the best state so far, the second one ends the command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import soctk
from soctk.learn.search import Search
from soctk_evaluation.cli import main
from soctk_evaluation.cli.interrupts import first_interrupt


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """Let SIGINT interrupt, also where the shell began this process in the background, with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    context, x = random.normal(size=(60, 2)), random.uniform(size=(60, 4, 3))
    np.savez(tmp_path / "log.npz", context=context, x=x, value=((x - 0.3 * context[:, None, :1]) ** 2).sum(axis=-1))
    return tmp_path / "log.npz"


def interrupting(times: int):
    """Return a step that is interrupted, the first time that it is taken."""
    step, left = Search.step, [times]

    def interrupted(search: Search, loss: float) -> bool:
        while left[0]:
            left[0] -= 1
            signal.raise_signal(signal.SIGINT)
        return step(search, loss)

    return interrupted


def test_the_first_interrupt_saves_the_best_state(log: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Search, "step", interrupting(1))
    assert main(["fit", str(log), "--model", "quad"]) == 0
    said, model = capsys.readouterr(), log.with_suffix(".safetensors")
    assert "stopping with the best state so far; Ctrl-C again ends at once" in said.err
    assert f"wrote {model}, the best state when the fit was interrupted" in said.out
    assert "s, stopped" in said.out
    assert said.out.index("wrote") < said.out.index("held-out error")  # before what takes long
    assert soctk.load(model).dim == 3
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_interrupt_ends_at_once(log: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(Search, "step", interrupting(2))
    assert main(["fit", str(log), "--model", "quad"]) == 130
    assert "soctk: interrupted" in capsys.readouterr().err
    assert not log.with_suffix(".safetensors").exists()


def test_outside_of_the_block_an_interrupt_is_as_ever(capsys) -> None:
    with first_interrupt("noted") as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
    assert capsys.readouterr().err == "soctk: noted\n"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
