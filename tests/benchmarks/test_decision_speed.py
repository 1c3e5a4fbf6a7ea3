"""Decisions beside the solvers they replace, one thread, one run; quality beside time, ratios beside both.

Run with: python -m pytest tests/benchmarks --benchmark-only
`soctk timing` measures the same for more dimensions and writes the table of the docs.
"""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch

import soctk
from soctk_evaluation.experiments.timing import MODELS, TOLERANCE, Measured, Race

DIM, ONE_BY_ONE = 10, 5


@pytest.fixture(scope="module", params=MODELS)
def race(request) -> Race:
    torch.set_num_threads(1)
    return Race(request.param, "budget", DIM, repeats=2)


@pytest.fixture(scope="module")
def rivals(race) -> dict[str, Measured]:
    return {
        "cvxpy_clarabel": race.cvxpy("CLARABEL", ONE_BY_ONE),
        "scs_1e-3": race.direct("SCS", ONE_BY_ONE),
        "cvxpylayers_backward": race.cvxpylayers(ONE_BY_ONE, backward=True),
    }


@pytest.mark.parametrize("batch", [1, 64, 1024])
def test_decisions(benchmark, race, rivals, batch):
    """Certified decisions for a batch, and how many times as long each rival takes for one."""
    rows = race.contexts(batch)
    decision = benchmark(soctk.minimize, race.model, race.feasible_set, rows, tol=TOLERANCE)
    assert bool(decision.optimal.all())
    benchmark.extra_info["gap_max"] = float(decision.relative_gap.max())
    for name in ("cvxpy_clarabel", "scs_1e-3"):
        benchmark.extra_info[f"{name}_takes"] = rivals[name].seconds * batch / benchmark.stats["mean"]
        benchmark.extra_info[f"{name}_gap_max"] = rivals[name].gap_max


def test_one_decision_of_a_prepared_model(benchmark, race):
    """One certified decision with `soctk.prepare`, and how many times as long the model itself takes."""
    rows, prepared = race.contexts(1), soctk.prepare(race.model, race.feasible_set)
    decision = benchmark(prepared.minimize, rows, tol=TOLERANCE)
    assert bool(decision.optimal.all())
    seconds, _ = race.best(lambda: soctk.minimize(race.model, race.feasible_set, rows, tol=TOLERANCE))
    benchmark.extra_info["model_takes"] = seconds / benchmark.stats["mean"]


def test_one_decision_of_a_file(benchmark, race, tmp_path):
    """One certified decision from a file of `soctk.to_runtime`, and how many times as long a prepared model takes."""
    rows, prepared = race.contexts(1), soctk.prepare(race.model, race.feasible_set)
    soctk.to_runtime(race.model, race.feasible_set, tmp_path / "a.soctk")
    decide, context = soctk.runtime.load(tmp_path / "a.soctk"), rows[0].numpy()
    decision = benchmark(decide, context, tol=TOLERANCE)
    assert decision.optimal
    seconds, _ = race.best(lambda: prepared.minimize(rows, tol=TOLERANCE))
    benchmark.extra_info["prepared_takes"] = seconds / benchmark.stats["mean"]


@pytest.mark.parametrize("batch", [64, 1024])
def test_layer_forward_and_backward(benchmark, race, rivals, batch):
    """`DecisionLayer`, and how many times as long a cvxpylayers layer takes for one context."""
    rows, layer = race.contexts(batch).requires_grad_(), soctk.DecisionLayer(race.model, race.feasible_set)
    benchmark(lambda: layer(rows).square().sum().backward())
    takes = rivals["cvxpylayers_backward"].seconds * batch / benchmark.stats["mean"]
    benchmark.extra_info["cvxpylayers_takes"] = takes


def test_forward_pass_beside_solving_the_lift(benchmark, race):
    """Feed-forward values of 1024 points, and how many times as long one value takes as a solved program."""
    points, rows = race.feasible_set.sample(1024, torch.Generator().manual_seed(0)), race.contexts(1024)
    with torch.no_grad():
        values = benchmark(race.model, points, rows)
    x = cp.Variable(DIM)
    problem = cp.Problem(cp.Minimize(race.model.to_cvxpy(x, rows[0])), [x == points[0].numpy()])
    seconds, _ = race.best(lambda: problem.solve(solver="CLARABEL"))
    assert float(values[0]) == pytest.approx(float(problem.value), rel=1e-6, abs=1e-6)
    benchmark.extra_info["lift_takes"] = seconds * 1024 / benchmark.stats["mean"]


def test_soc_forward_beside_its_backbone(benchmark, race):
    """The SOC-ICNN's forward pass, and its share of a ReLU ICNN's of the same backbone."""
    points, rows = race.feasible_set.sample(1024, torch.Generator().manual_seed(0)), race.contexts(1024)
    backbone = soctk.ReLUICNN(DIM, race.model.context_dim, hidden=race.model.hidden)
    with torch.no_grad():
        benchmark(race.model, points, rows)
        seconds, _ = race.best(lambda: backbone(points, rows))
    benchmark.extra_info["times_the_backbone"] = benchmark.stats["mean"] / seconds
