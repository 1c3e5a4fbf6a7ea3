"""Projection onto the three sets beside CVXPY with Clarabel, one thread, one run: a ratio for each point.

Run with: python -m pytest tests/benchmarks --benchmark-only
"""

from __future__ import annotations

import time

import cvxpy as cp
import pytest
import torch

import soctk

ROWS, DIM, SOLVED = 1024, 50, 20
SETS = {"simplex": soctk.Simplex(DIM), "box": soctk.Box(DIM), "budget": soctk.Budget(DIM, total=15.0)}


@pytest.mark.parametrize("name", SETS)
def test_projection(benchmark, name):
    """Time for a batch of (1024, 50), and how many times a CVXPY re-solve takes for one point."""
    feasible_set = SETS[name]
    y = torch.randn(ROWS, DIM, dtype=torch.float64)
    x = benchmark(feasible_set.project, y)
    point, target = cp.Variable(DIM), cp.Parameter(DIM)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(point - target)), feasible_set.constraints(point))
    target.value = y[0].numpy()
    problem.solve(solver="CLARABEL")  # compiled once, as a user would
    started, excess = time.perf_counter(), 0.0
    for row in range(SOLVED):
        target.value = y[row].numpy()
        problem.solve(solver="CLARABEL")
        theirs = (torch.from_numpy(point.value) - y[row]).square().sum()
        excess = max(excess, float((x[row] - y[row]).square().sum() / theirs) - 1)
    seconds_each = (time.perf_counter() - started) / SOLVED
    benchmark.extra_info["times_faster_per_point"] = seconds_each * ROWS / benchmark.stats["mean"]
    benchmark.extra_info["violation"] = float(feasible_set.violation(x).max())
    assert float(feasible_set.violation(x).max()) < 1e-12
    assert excess < 1e-6  # never farther than Clarabel's answer, beyond its own infeasibility
