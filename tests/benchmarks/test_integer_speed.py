"""Decisions in whole numbers beside SCIP through CVXPY, one thread, one run: rows of the same groups.

Run with: python -m pytest tests/benchmarks/test_integer_speed.py --benchmark-only, where pyscipopt is installed.
"""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import soctk

pytest.importorskip("pyscipopt", reason="the rival's solver: pip install pyscipopt")
TOLERANCE = 1e-6
SETS = {
    "box": lambda dim: soctk.Box(dim, 0.0, 3.0),
    "knapsack": lambda dim: soctk.Polyhedron(dim, 0.0, 1.0, G=np.linspace(0.2, 1.2, dim), h=0.283 * dim),
    "equality": lambda dim: soctk.Polyhedron(dim, 0.0, 1.0, E=torch.arange(4, 4 + dim), f=float(2 * dim)),
}


class Case:
    """A model, a set and contexts."""

    def __init__(self, kind: str, dim: int, count: int) -> None:
        torch.set_num_threads(1)
        self.set = SETS[kind](dim)
        generator = torch.Generator().manual_seed(0)
        self.model = soctk.make_surrogate("soc", dim=dim, context_dim=4, seed=0)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
        self.contexts = torch.randn(count, 4, generator=generator, dtype=torch.float64)

    def decide(self) -> Tensor:
        """Decide all contexts by `soctk.minimize`."""
        return soctk.minimize(self.model, self.set, self.contexts, integer=True, tol=TOLERANCE).x

    def programs(self) -> Callable[[], Tensor]:
        """Return what solves one program, compiled by CVXPY, for each context by SCIP."""
        x = cp.Variable(self.set.dim, integer=True)
        embedding = soctk.Embedding(self.model, x)
        program = cp.Problem(cp.Minimize(embedding.value), [*embedding.constraints, *self.set.constraints(x)])

        def run() -> Tensor:
            answers = []
            for context in self.contexts:
                embedding.set_context(context)
                program.solve(solver="SCIP")
                answers.append(torch.from_numpy(x.value))
            return torch.stack(answers)

        run()  # compiled once, as a user would
        return run


@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("dim", [10, 20])
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", ["soctk.minimize", "CVXPY with SCIP"])
def test_decisions_in_whole_numbers(benchmark, name: str, kind: str, dim: int, count: int) -> None:
    """Both decide as well, to 1e-5."""
    case = Case(kind, dim, count)
    benchmark.group = f"{count} decisions in whole numbers, {kind}, d = {dim}"
    decide = case.decide if name == "soctk.minimize" else case.programs()
    points = benchmark.pedantic(decide, rounds=3, warmup_rounds=1)
    decision = soctk.minimize(case.model, case.set, case.contexts, integer=True, tol=TOLERANCE)
    assert bool(decision.optimal.all())
    whole = points.round()
    assert float((points - whole).abs().max()) <= 1e-5
    assert float(case.set.violation(whole).max()) <= 1e-6
    value = case.model(whole, case.contexts).detach()
    assert bool(((value - decision.value).abs() <= 1e-5 * decision.value.abs().clamp(min=1)).all())
    benchmark.extra_info.update(
        nodes_mean=float(decision.iterations.double().mean()), gap_max=float(decision.gap.max())
    )
