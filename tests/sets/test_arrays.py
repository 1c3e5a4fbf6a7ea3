"""Sets at right-hand sides as arrays: violations, refutations and boxes, for one set and among others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tolerances import DOUBLE, VALUE, close

from soctk import Box, Polyhedron, from_quadratic, minimize
from soctk.sets.implied import ROUNDING
from soctk_tasks.polyhedra import POLYHEDRA


@pytest.mark.parametrize("name", POLYHEDRA)
def test_what_arrays_say_of_points_is_what_tensors_say(name: str) -> None:
    sets = POLYHEDRA[name](7)[0]
    points = torch.randn(7, sets.dim, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    worst, share = sets.arrays.excess(points.numpy())
    close(torch.from_numpy(worst), sets.violation(points), VALUE)
    inside = sets.project(points)
    assert float(sets.arrays.excess(inside.numpy())[1].max()) <= 1e-8
    assert bool((share > 0)[worst > 0].all())
    nu, z = torch.randn(7, sets.f.shape[-1], dtype=DOUBLE), torch.rand(7, sets.h.shape[-1], dtype=DOUBLE)
    w = nu @ sets.rows.E + z @ sets.rows.G
    amount = sets.linear_minimum(w) - (nu * sets.f).sum(dim=-1) - (z * sets.h).sum(dim=-1)
    close(sets.refutes(nu, z), amount, VALUE)


def test_boxes_follow_from_rows_alike_for_one_set_and_among_others() -> None:
    """x_0 <= 1 gives x_1 <= 3, and that x_2 >= -3, one after the other; each set has its own ends."""
    G = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.0, -1.0, -1.0]])
    base = Polyhedron(3, [0.0, 0.0, -np.inf], [np.inf, np.inf, 5.0], G=G, h=[1.0, 2.0, 0.0])
    h = np.array([[1.0, 2.0, 0.0], [0.5, 4.0, 1.0]])
    lo, hi = base.at(h=h).box
    above = hi - torch.tensor([[1.0, 3.0, 5.0], [0.5, 4.5, 5.0]], dtype=DOUBLE)
    below = torch.tensor([[0.0, 0.0, -3.0], [0.0, 0.0, -5.5]], dtype=DOUBLE) - lo
    for beyond in (above, below):  # outwards, by what rounding may add
        assert float(beyond.min()) >= 0
        assert float(beyond.max()) <= 20 * ROUNDING
    for row in range(2):
        alone = base.at(h=h[row]).box
        assert bool((alone[0] == lo[row]).all())
        assert bool((alone[1] == hi[row]).all())


def test_a_set_of_one_point_is_not_refuted_by_rounding() -> None:
    """{0 <= x <= 1, .1 x_1 + .2 x_2 + .3 x_3 = .6} holds (1, 1, 1) alone; -.7 times the row refutes all beyond."""
    amount = float(Polyhedron(3, 0.0, 1.0, E=[[0.1, 0.2, 0.3]], f=[0.6]).at().refutes([-0.7], []))
    assert -1e-13 <= amount <= 0


def test_what_is_empty_or_has_no_end_is_named() -> None:
    crossed = Box(2).at(lower=[[0.0, 0.0], [2.0, 2.0]], upper=[[1.0, 1.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match="set 1 is empty"):
        crossed.project(torch.zeros(2, 2, dtype=DOUBLE))
    f = from_quadratic([[1.0, 0.0], [0.0, 1.0]], [-3.0, -3.0])
    with pytest.raises(ValueError, match="upper: set 1 has no end in coordinate 0"):
        minimize(f, Box(2).at(upper=[[1.0, 1.0], [float("inf"), 1.0]]))
