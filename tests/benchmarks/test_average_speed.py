"""Decisions with the average of six models beside those with one of them, one thread, one run.

Run with: python -m pytest tests/benchmarks/test_average_speed.py --benchmark-only
"""

from __future__ import annotations

import time

import pytest
import torch

import soctk

MODELS, CONTEXT_DIM, REPEATS = 6, 5, 5


def trained(dim: int, seed: int) -> soctk.SOCICNN:
    """Return a model with weights and units as training leaves them: moved, and not those of the others."""
    model = soctk.SOCICNN(dim, CONTEXT_DIM, quadratics=(dim,), norms=(dim,), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    model.set_standardization(x=(0.1 + 0.01 * seed, 0.6), value=(1.0, 2.0))
    return model


def best(prepared, contexts: torch.Tensor) -> float:
    """Return the least seconds of some calls."""
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        prepared.minimize(contexts)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


@pytest.mark.parametrize("batch", [1, 1024])
@pytest.mark.parametrize("dim", [10, 20, 50])
def test_decisions_with_an_average(benchmark, dim, batch):
    """Certified decisions through `soctk.prepare`, and how many times as long as with one of the models."""
    models, box = [trained(dim, seed) for seed in range(MODELS)], soctk.Box(dim, -1.0, 1.0)
    contexts = torch.randn(batch, CONTEXT_DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    prepared = soctk.prepare(soctk.average(models), box)
    decision = benchmark(prepared.minimize, contexts)
    assert (decision.status == "optimal").all()
    singles = [soctk.prepare(model, box) for model in models]
    one = sum(best(single, contexts) for single in singles) / MODELS
    benchmark.extra_info["gap_max"] = float(decision.relative_gap.max())
    benchmark.extra_info["times_one_model"] = benchmark.stats["min"] / one
