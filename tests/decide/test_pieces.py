"""Large batches in pieces: the same decisions, in the same order, whatever the pieces and the threads."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tolerances import DOUBLE
from zoo import MODELS, SETS, shaken

import soctk
from soctk.decide import pieces
from soctk.decide.pieces import side_by_side
from soctk_tasks.polyhedra import POLYHEDRA


@pytest.fixture(params=[1, 2])
def small_pieces(request, monkeypatch: pytest.MonkeyPatch):
    """Pieces of eight, on one thread and on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(pieces, "PIECE", 8)
    yield
    torch.set_num_threads(before)


def test_threads_that_begin_later_have_the_number_of_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        list(side_by_side(lambda part: part, 40, 20))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def check_same(mine: soctk.Decision, other: soctk.Decision, tolerance: float = 1e-12) -> None:
    for field in dataclasses.fields(soctk.Decision):
        one, two = getattr(mine, field.name), getattr(other, field.name)
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance, equal_nan=True)
        elif isinstance(one, np.ndarray):
            assert (one == two).all()


@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("kind", ["soc", "softplus"])
def test_pieces_make_no_difference(kind: str, set_name: str, small_pieces) -> None:
    model, feasible_set = shaken(MODELS[kind](4)), SETS[set_name](4)
    context = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    decision = soctk.minimize(model, feasible_set, context)
    expected = [soctk.minimize(model, feasible_set, row, x0=None) for row in context]
    whole = soctk.Decision.joined(expected, (5, 7), 0.0)
    check_same(decision, whole)


@pytest.mark.parametrize("name", ["dispatch", "control"])
def test_pieces_of_sets_of_their_own(name: str, small_pieces) -> None:
    sets = POLYHEDRA[name](30)[0]
    model = shaken(MODELS["soc"](sets.dim))
    context = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    decision = soctk.minimize(model, sets, context)
    parts = [soctk.minimize(model, sets.select(slice(k, k + 6)), context[k : k + 6]) for k in range(0, 30, 6)]
    whole = soctk.Decision.joined(parts, (30,), 0.0)
    check_same(decision, whole, 1e-9)  # matrix products of other sizes are rounded otherwise
    torch.testing.assert_close(decision.prices.lower, whole.prices.lower, rtol=1e-9, atol=1e-9)


def test_units_starts_and_limits_are_cut_with_their_instances(small_pieces) -> None:
    model, feasible_set = shaken(MODELS["soc"](4)), SETS["budget"](4)
    context = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    scale = torch.linspace(0.1, 5.0, 20, dtype=DOUBLE)
    first = soctk.minimize(model, feasible_set, context, scale=scale)
    assert torch.equal(first.scale, scale)
    assert bool(first.optimal.all())
    assert bool(soctk.minimize(model, feasible_set, context, x0=first).optimal.all())
    late = soctk.minimize(model, feasible_set, context, time_limit=1e-9)
    assert set(late.status) == {soctk.Status.TIME_LIMIT}
    assert bool((feasible_set.violation(late.x) <= 1e-9).all())


@pytest.mark.parametrize("dim", [10, 500, 3000])
def test_systems_of_a_piece_are_of_bounded_size(dim: int) -> None:
    parts = pieces.pieces(20_000, 3, pieces.piece(dim))
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert (parts[0].start, parts[-1].stop) == (0, 20_000)
    assert all((part.stop - part.start) * dim**2 <= pieces.NUMBERS for part in parts)


def test_an_error_in_a_piece_is_the_caller_s(small_pieces) -> None:
    def fails(part: slice) -> int:
        if part.start >= 16:
            raise ValueError("no")
        return part.start

    with pytest.raises(ValueError, match="no"):
        list(side_by_side(fails, 40, 8))


def test_contexts_are_rows_however_a_batch_was_decided() -> None:
    model, context = shaken(MODELS["soc"](4)), torch.zeros(2, 3, 3, dtype=DOUBLE)
    parts = [soctk.minimize(model, soctk.Box(4), row) for row in context]
    assert soctk.Decision.joined(parts, (2, 3), 0.0).context.shape == (6, 3)
    assert soctk.minimize(model, soctk.Box(4), context).context.shape == (6, 3)
