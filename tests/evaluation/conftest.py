"""Make the helper modules of this folder importable by name, here and in workers; a cluster."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import soctk

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `soctk fit` learn from one start, in a third of its iterations and a tenth of those from optima."""
    brief = functools.partial(soctk.FitConfig, starts=1, lbfgs_iterations=100, optima_iterations=10)
    monkeypatch.setattr("soctk_evaluation.cli.logged.FitConfig", brief)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """The client of a cluster of two processes, which starts another one for each that dies."""
    distributed = pytest.importorskip("distributed", reason="needs the extra `cluster`")
    import dask

    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "5 minutes"}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
