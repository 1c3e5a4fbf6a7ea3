"""Decisions over polyhedra beside the solvers they replace, one thread, one run: rivals are rows of the same groups.

Run with: python -m pytest tests/benchmarks/test_polyhedra_speed.py --benchmark-only
`soctk polyhedra` measures the same and writes the table of the docs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import soctk
from soctk_evaluation.experiments.polyhedra import make_race
from soctk_evaluation.experiments.race import TOLERANCE, Race
from soctk_tasks.polyhedra import POLYHEDRA

MANY = 64
RIVALS = ("CVXPY with Clarabel", "Moreau, finished data")


@pytest.fixture(scope="module", params=[(name, kind) for name in POLYHEDRA for kind in ("soc", "relu")], ids="-".join)
def race(request) -> Race:
    torch.set_num_threads(1)
    race = make_race(request.param[1], request.param[0])
    race.name = "-".join(request.param)
    return race


def rival(race: Race, name: str, count: int) -> Callable[[], Tensor]:
    """Return what decides `count` contexts in another way and returns (count, n)."""
    if name.startswith("CVXPY"):
        return race.resolving("CLARABEL", count)
    pytest.importorskip("moreau", reason="Moreau is not installed: pip install 'soctk[rivals]'")
    programs = race.programs(count)
    return lambda: programs.points(programs.solve())


def check(benchmark, race: Race, points: Tensor) -> None:
    """Put the largest gap and violation beside the time; assert that all did what they were asked for, about."""
    quality = race.judged(points)
    assert quality.gap_max <= 100 * TOLERANCE
    assert quality.violation_max <= 100 * TOLERANCE
    benchmark.extra_info.update(gap_max=quality.gap_max, violation_max=quality.violation_max)


@pytest.mark.parametrize("name", ["soctk.prepare", "soctk.minimize", *RIVALS])
def test_one_decision(benchmark, race: Race, name: str) -> None:
    """A decision of one context over its own set."""
    benchmark.group = f"one decision, {race.name}"
    if name == "soctk.prepare":
        points = benchmark(race.preparing(1), race.contexts(1), tol=TOLERANCE).x
    elif name == "soctk.minimize":
        points = benchmark(soctk.minimize, race.model, race.sets_of(1), race.contexts(1), tol=TOLERANCE).x
    else:
        points = benchmark(rival(race, name, 1))
    check(benchmark, race, points)


@pytest.mark.parametrize("name", ["soctk.minimize", *RIVALS])
def test_many_decisions(benchmark, race: Race, name: str) -> None:
    """Decisions of many contexts over their own sets, at once or one after the other."""
    benchmark.group = f"{MANY} decisions, {race.name}"
    if name == "soctk.minimize":
        points = benchmark(soctk.minimize, race.model, race.sets_of(MANY), race.contexts(MANY), tol=TOLERANCE).x
    else:
        points = benchmark(rival(race, name, MANY))
    check(benchmark, race, points)
