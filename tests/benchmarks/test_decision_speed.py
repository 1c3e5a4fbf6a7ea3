"""Decisions beside the solvers they replace, one thread, one run: whoever does the same work is a row of one group.

Run with: python -m pytest tests/benchmarks --benchmark-only
`soctk timing` measures the same for more dimensions and writes the table of the docs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import soctk
from soctk_evaluation.experiments.direct import solve_directly
from soctk_evaluation.experiments.race import TOLERANCE, Race
from soctk_evaluation.experiments.timing import MODELS, make_race

DIM, MANY = 10, 64
RIVALS = ("CVXPY with Clarabel", "CVXPY with SCS", "cvxpylayers", "Moreau")
ALONE = ("Clarabel alone, finished data", "SCS at 1e-3 alone, finished data")


@pytest.fixture(scope="module", params=MODELS)
def race(request) -> Race:
    torch.set_num_threads(1)
    race = make_race(request.param, "budget", DIM, repeats=2)
    race.kind = request.param
    return race


def rival(race: Race, name: str, count: int) -> Callable[[], Any]:
    """Return what decides `count` contexts in another way and returns (count, n)."""
    if name.startswith("CVXPY"):
        return race.resolving("CLARABEL" if name.endswith("Clarabel") else "SCS", count)
    if name == "cvxpylayers":
        return race.layering(count, backward=False)
    pytest.importorskip("moreau", reason="Moreau is not installed: pip install 'soctk[rivals]'")
    programs = race.programs(slice(0, count))
    return lambda: programs.points(programs.solve())


def check(race: Race, points: torch.Tensor, most: float) -> float:
    """Return the largest certified gap of points, which are projected first; assert that it is at most so much."""
    gap = race.judged(points).gap_max
    assert gap <= most
    return gap


@pytest.mark.parametrize("name", ["soctk.prepare", "soctk.minimize", "soctk.runtime", *RIVALS, *ALONE])
def test_one_decision(benchmark, race, name, tmp_path):
    """A certified decision of one context; what is on finished data alone has had its data made before."""
    benchmark.group = f"one decision, {race.kind} model"
    rows, points = race.contexts(1), None
    if name == "soctk.runtime":
        soctk.to_runtime(race.model, race.sets, tmp_path / "a.soctk")
        decide, context = soctk.runtime.load(tmp_path / "a.soctk"), rows[0].numpy()
        points = torch.from_numpy(np.asarray(benchmark(decide, context, tol=TOLERANCE).x))[None]
    elif name == "soctk.prepare":
        points = benchmark(soctk.prepare(race.model, race.sets).minimize, rows, tol=TOLERANCE).x
    elif name == "soctk.minimize":
        points = benchmark(soctk.minimize, race.model, race.sets, rows, tol=TOLERANCE).x
    elif name in ALONE:
        solver = name.split()[0].upper()
        data, decided = next(race.finished(solver, 1))
        points = decided(benchmark(solve_directly, solver, data)[0])[None]
    else:
        points = benchmark(rival(race, name, 1))
    benchmark.extra_info["gap_max"] = check(race, points, 1e-1 if "SCS" in name else 1e-5)


@pytest.mark.parametrize("name", ["soctk.minimize", *RIVALS])
def test_many_decisions(benchmark, race, name):
    """Certified decisions of many contexts, at once or one after the other."""
    benchmark.group = f"{MANY} decisions, {race.kind} model"
    if name == "soctk.minimize":
        points = benchmark(soctk.minimize, race.model, race.sets, race.contexts(MANY), tol=TOLERANCE).x
    else:
        points = benchmark(rival(race, name, MANY))
    benchmark.extra_info["gap_max"] = check(race, points, 1e-1 if "SCS" in name else 1e-5)


@pytest.mark.parametrize("name", ["soctk.DecisionLayer", "cvxpylayers"])
def test_derivatives(benchmark, race, name):
    """Decisions of many contexts and the derivatives of a loss of them."""
    benchmark.group = f"{MANY} decisions and their derivatives, {race.kind} model"
    if name == "cvxpylayers":
        benchmark(race.layering(MANY, backward=True))
        return
    rows, layer = race.contexts(MANY).requires_grad_(), soctk.DecisionLayer(race.model, race.sets)
    benchmark(lambda: layer(rows).square().sum().backward())
    assert bool((rows.grad != 0).any())


@pytest.mark.parametrize("name", ["feed-forward", "the lift, solved"])
def test_value(benchmark, race, name):
    """The value at one point as the network computes it, and as the cone program whose value function it is."""
    benchmark.group = f"the value at a point, {race.kind} model"
    point, row = race.sets.sample(1, torch.Generator().manual_seed(0)), race.contexts(1)
    with torch.no_grad():
        value = float(race.model(point, row)[0])
        if name == "feed-forward":
            benchmark(race.model, point, row)
            return
    x = cp.Variable(DIM)
    program = cp.Problem(cp.Minimize(race.model.to_cvxpy(x, row[0])), [x == point[0].numpy()])
    benchmark(program.solve, solver="CLARABEL")
    assert float(program.value) == pytest.approx(value, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", ["SOC-ICNN", "its ReLU backbone"])
def test_forward_pass(benchmark, race, name):
    """Feed-forward values of a SOC-ICNN and of a ReLU ICNN of the same backbone."""
    benchmark.group = f"1024 values, {race.kind} model"
    points, rows = race.sets.sample(1024, torch.Generator().manual_seed(0)), race.contexts(1024)
    model = race.model
    if name != "SOC-ICNN":
        model = soctk.ReLUICNN(DIM, race.model.context_dim, hidden=race.model.hidden)
    with torch.no_grad():
        assert bool(benchmark(model, points, rows).isfinite().all())
