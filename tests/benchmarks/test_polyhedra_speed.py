"""Decisions over polyhedra beside the solvers they replace, one thread, one run; quality beside time.

Run with: python -m pytest tests/benchmarks/test_polyhedra_speed.py --benchmark-only
`soctk polyhedra` measures the same, and Moreau where it is installed, and writes the table of the docs.
"""

from __future__ import annotations

import pytest
import torch

import soctk
from soctk_evaluation.experiments.polyhedra import TOLERANCE, Race
from soctk_tasks.polyhedra import POLYHEDRA


@pytest.fixture(scope="module", params=[(name, kind) for name in POLYHEDRA for kind in ("soc", "relu")], ids="-".join)
def race(request) -> Race:
    torch.set_num_threads(1)
    return Race(request.param[1], request.param[0])


@pytest.mark.parametrize("batch", [1, 64, 1024])
def test_decisions(benchmark, race, batch: int) -> None:
    """Certified decisions for a batch, and how many times as long a re-solve by CVXPY and Clarabel takes for one."""
    sets, context = race.sets.select(slice(batch)), race.context[:batch]
    decision = benchmark(soctk.minimize, race.model, sets, context, tol=TOLERANCE)
    assert bool(decision.optimal.all())
    benchmark.extra_info["gap_max"] = float(decision.relative_gap.max())
    benchmark.extra_info["violation_max"] = float(decision.violation.max())
    each = 1e3 * benchmark.stats["mean"] / batch
    benchmark.extra_info["cvxpy_clarabel_takes"] = race.cvxpy_clarabel(1)["decide_ms"] / each
