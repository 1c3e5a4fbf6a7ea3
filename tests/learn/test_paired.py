"""Errors that are compared on the same rows."""

from __future__ import annotations

import numpy as np
import pytest

from soctk.learn.paired import clearly_better


def test_evidence_is_paired_and_counts_errors() -> None:
    generator = np.random.default_rng(0)
    noise = generator.normal(size=4000) ** 2
    assert clearly_better(noise - 0.2 * generator.uniform(size=4000), noise, 3.0)
    assert not clearly_better(noise, noise, 0.0)
    assert not clearly_better(noise, noise + generator.normal(size=4000) * 0.1 + 1e-3, 3.0)
    assert not clearly_better(np.full(3, np.nan), np.ones(3), 0.0)


@pytest.mark.parametrize(("required", "share"), [(0.0, 0.5), (1.0, 0.1587), (2.0, 0.0228)])
def test_equals_are_told_apart_as_rarely_as_a_normal_mean_exceeds_so_many_errors(required: float, share: float) -> None:
    errors, others = np.random.default_rng(0).normal(size=(2, 4000, 200))
    found = np.mean([clearly_better(*pair, required) for pair in zip(errors, others, strict=True)])
    assert found == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 4000))


@pytest.mark.parametrize("worth", [1e-6, 1.0, 1e12])
@pytest.mark.parametrize("rows", [30, 1000])
def test_a_single_row_that_differs_is_one_error(rows: int, worth: float) -> None:
    others = np.zeros(rows)
    others[0] = worth
    assert clearly_better(np.zeros(rows), others, 1.0)
    assert not clearly_better(np.zeros(rows), others, 1.02)
