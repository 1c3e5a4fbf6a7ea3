"""Projections of many points at once against those of one point at a time, which the contract tests check."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from polyhedra import POLYHEDRA, random_rows
from set_contract import accuracy, kkt_residual, row_size
from tolerances import DOUBLE, GENERAL_PROJECTION, PROJECTION

from soctk import Polyhedron, Simplex
from soctk.sets.active_set import FEW
from soctk.sets.general import General

COUNT = 3 * FEW
SETS = {
    **POLYHEDRA,
    "many_rows": lambda: random_rows(12, 60, 2),
    "long_simplex": lambda: Polyhedron(12, 0.0, G=np.geomspace(1.0, 1e4, 12), h=1.0),
}


@pytest.mark.parametrize("make", SETS.values(), ids=SETS)
@pytest.mark.parametrize("far", [0.1, 3.0, 1e3, 1e7])
def test_many_points_are_projected_as_one_is(make, far: float, generator: torch.Generator) -> None:
    polyhedron = make()
    general = General(polyhedron.rows())
    y = polyhedron.center() + far * torch.randn(COUNT, polyhedron.dim, generator=generator, dtype=DOUBLE)
    x, some = general.project(y), slice(None, None, COUNT // 6)
    atol = GENERAL_PROJECTION[DOUBLE] * max(polyhedron.magnitude, float(y.abs().max()))
    torch.testing.assert_close(x[some], torch.stack([general.project(point) for point in y[some]]), rtol=0, atol=atol)
    assert float(polyhedron.violation(x).max()) <= row_size(polyhedron) * PROJECTION[DOUBLE]


@pytest.mark.parametrize("make", SETS.values(), ids=SETS)
def test_projections_of_many_points_are_optimal(make, generator: torch.Generator) -> None:
    polyhedron = make()
    y = 3 * torch.randn(COUNT, polyhedron.dim, generator=generator, dtype=DOUBLE)
    x = General(polyhedron.rows()).project(y)
    for point, answer in zip(y[:20], x[:20], strict=True):
        tolerance = accuracy(polyhedron, point)
        assert kkt_residual(polyhedron, point, answer, tolerance) <= tolerance


@pytest.mark.parametrize("make", [lambda: random_rows(8, 20, 1), lambda: Simplex(10)])
def test_nearly_all_points_near_a_set_are_found_together(make, generator: torch.Generator) -> None:
    """What is left goes one at a time."""
    general = General(make().rows())
    y = torch.randn(COUNT, len(general.rows.lower), generator=generator, dtype=DOUBLE).numpy()
    within = general.inside.across(y - general.inside.point)
    _, found = general._projector._together.project(torch.from_numpy(within))
    assert int(found.sum()) >= 0.95 * COUNT


def test_points_of_the_set_stay(generator: torch.Generator) -> None:
    polyhedron = random_rows(6, 15, 1)
    x = polyhedron.sample(COUNT, generator)
    torch.testing.assert_close(polyhedron.project(x), x, rtol=0, atol=PROJECTION[DOUBLE])
