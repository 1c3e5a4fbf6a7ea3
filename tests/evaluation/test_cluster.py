"""`soctk decide --scheduler`: the plan is that of one machine whatever workers die, and what goes wrong is said."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

distributed = pytest.importorskip("distributed", reason="needs the extra `cluster`")
pytest.importorskip("pyarrow", reason="needs the extra `parquet`")

import dask  # noqa: E402

import soctk  # noqa: E402
from soctk import Columns  # noqa: E402
from soctk.tables.features import Number  # noqa: E402
from soctk_evaluation.cli import cluster as on_cluster  # noqa: E402
from soctk_evaluation.cli import main  # noqa: E402
from soctk_evaluation.cli.pieces import Pieces  # noqa: E402

ROWS, AT_ONCE = 3000, 125
DEATHS = 2
"""Workers that may die with a piece before it is given up."""


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    """A cluster of two processes, which starts another one for each that dies."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": DEATHS - 1}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a model and contexts in three files, whose order is that of the numbers in their names."""
    monkeypatch.chdir(tmp_path)
    columns = Columns((Number("load"), Number("price")), ("u 1", "u 2"), "cost")
    model = soctk.SOCICNN(2, 2, hidden=(), quadratics=(2,), seed=0).double()
    soctk.save(model, "model.st", notes=columns.notes())
    random = np.random.default_rng(0)
    days = pd.DataFrame({"id": np.arange(ROWS), "load": random.normal(size=ROWS), "price": random.normal(size=ROWS)})
    Path("days").mkdir()
    for name, part in zip(("part.2", "part.9", "part.10"), (days[:700], days[700:2400], days[2400:]), strict=True):
        part.to_parquet(f"days/{name}.parquet", index=False, row_group_size=300)


def decide(*more: str, output: str = "plan", code: int = 0) -> None:
    given = ["--set", "box", "--keep", "id", "--rows-at-once", str(AT_ONCE), "--output", output, *more]
    assert main(["decide", "model.st", "days", *given]) == code


def at(client: distributed.Client) -> tuple[str, str]:
    return "--scheduler", client.scheduler.address


def parts(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def check_whole() -> None:
    """Every context is decided once, in the input's order, as by one machine, and nothing is left beside the plan."""
    assert pd.read_parquet("plan")["id"].tolist() == list(range(ROWS))
    decide(output="here")
    assert parts("plan") == parts("here")
    assert not any(path.name.startswith(".") for path in Path().iterdir())


def die_once(mark: str, at_put: bool) -> None:
    """Let the worker that next decides a piece die: before it is kept, or after, before anyone is told."""
    put = Pieces.put

    def deadly(self: Pieces, *given: object) -> None:
        if at_put:
            put(self, *given)
        if not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if not at_put:
            put(self, *given)

    Pieces.put = deadly


@pytest.mark.parametrize("kept", [False, True], ids=["before it is kept", "after"])
def test_a_worker_that_dies_with_a_piece_costs_nothing(client: distributed.Client, kept: bool, tmp_path: Path) -> None:
    client.run(die_once, str(tmp_path.parent / f"{tmp_path.name}.dead"), kept)
    decide(*at(client))
    assert (tmp_path.parent / f"{tmp_path.name}.dead").exists()
    check_whole()
