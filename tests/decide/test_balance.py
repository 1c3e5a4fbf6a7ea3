"""The dual iterates of networks that bounds are made of."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tolerances import DOUBLE, VALUE

from soctk.decide.batched import balance
from soctk.maps.linear import DenseMap
from soctk.terms import Network

CONTEXTS = 5


def network(widths: tuple[int, ...], generator: torch.Generator) -> Network:
    def positive(*shape: int) -> torch.Tensor:
        return 0.1 + torch.randn(*shape, generator=generator, dtype=DOUBLE).abs()

    rows = sum(widths)
    matrix = torch.randn(1, rows, 3, generator=generator, dtype=DOUBLE)
    offset = torch.randn(CONTEXTS, 1, rows, generator=generator, dtype=DOUBLE)
    mixing = tuple(positive(1, outer, inner) for inner, outer in pairwise(widths))
    return Network(DenseMap(matrix), offset, positive(CONTEXTS, 1, widths[-1]), mixing, widths)


@pytest.mark.parametrize("widths", [(6,), (5, 4), (4, 3, 5)])
def test_balanced_duals_move_as_the_linearised_gradient_does(widths: tuple[int, ...]) -> None:
    """y + D2 phi du, where all slopes stay between 0 and 1; the chain of the advanced lags is off by O(du^2)."""
    generator = torch.Generator().manual_seed(len(widths))
    term = network(widths, generator)
    u = 0.3 * torch.randn(CONTEXTS, 1, sum(widths), generator=generator, dtype=DOUBLE)
    smoothed = term.smooth(u, torch.full((CONTEXTS, 1), 0.3, dtype=DOUBLE))
    lag = term.initial_lag(smoothed)
    du = 0.02 * torch.randn(u.shape, generator=generator, dtype=DOUBLE)
    advanced = term.advance_lag(smoothed, lag, du)
    wanted = smoothed.dual + term.curvature(smoothed, lag, du)
    found = term.lagged_dual(smoothed, balance(term, smoothed, advanced))
    assert float((found - wanted).abs().max()) <= VALUE[DOUBLE] * float(wanted.abs().max())
    if len(widths) > 1:
        assert float((term.lagged_dual(smoothed, advanced) - wanted).abs().max()) > 1e-6


@pytest.mark.parametrize("widths", [(6,), (5, 4), (4, 3, 5)])
def test_balanced_duals_are_feasible_however_far_a_step_goes(widths: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(7)
    term = network(widths, generator)
    u = torch.randn(CONTEXTS, 1, sum(widths), generator=generator, dtype=DOUBLE)
    smoothed = term.smooth(u, torch.full((CONTEXTS, 1), 1e-4, dtype=DOUBLE))
    du = 10 * torch.randn(u.shape, generator=generator, dtype=DOUBLE)
    advanced = term.advance_lag(smoothed, term.initial_lag(smoothed), du)
    found = term.lagged_dual(smoothed, balance(term, smoothed, advanced))
    assert float(term.dual_violation(found).max()) <= VALUE[DOUBLE] * float(found.abs().max())
