"""`soctk decide --scheduler`: the plan is that of one machine whatever workers die, and what goes wrong is said."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from soctk_evaluation.cli.cluster import Work  # noqa: E402
from soctk_evaluation.cli.in_pieces import decide_piece  # noqa: E402
from soctk_evaluation.cli.log_commands import Decide, Feasible  # noqa: E402
from soctk_evaluation.cli.pieces import Pieces  # noqa: E402
from soctk_evaluation.cli.plan import Tally  # noqa: E402
from soctk_evaluation.cli.planner import Planner  # noqa: E402
from soctk_evaluation.cli.slices import slices_of  # noqa: E402
from soctk_evaluation.harness.request import UsageError  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills workers by a signal")

ROWS, AT_ONCE = 3000, 125
COMMAND = Decide(Path("model.st"), Feasible("box"), Path("days"), keep=("id",), rows_at_once=AT_ONCE)


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


def parts(folder: Path | str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def check_whole() -> None:
    """Every context is decided once, in the input's order, as by one machine, and nothing is left beside the plan."""
    assert pd.read_parquet("plan")["id"].tolist() == list(range(ROWS))
    decide(output="here")
    assert parts("plan") == parts("here")
    assert not any(path.name.startswith(".") for path in Path().iterdir())


@pytest.fixture
def workers(client: distributed.Client) -> Iterator[distributed.Client]:
    """The cluster, whose workers keep pieces as they should again after the test."""
    yield client
    client.run(mend)


def mend() -> None:
    Pieces.put = getattr(Pieces, "kept_put", Pieces.put)


def spoil(put: Callable[..., None]) -> None:
    Pieces.kept_put, Pieces.put = Pieces.put, put


def die_once(mark: str) -> None:
    """Let the worker that next decides a piece die with it."""

    def deadly(self: Pieces, *given: Any) -> None:
        if not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        Pieces.kept_put(self, *given)

    spoil(deadly)


def test_a_worker_that_dies_with_a_piece_costs_nothing(
    workers: distributed.Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mark = tmp_path_factory.mktemp("marks") / "dead"
    workers.run(die_once, str(mark))
    decide(*at(workers))
    assert mark.exists()
    check_whole()


def test_a_piece_that_is_decided_twice_is_the_same_file() -> None:
    """A worker that died before it told of its piece, and one that was thought dead and writes it once more."""
    planner, piece = Planner.of(COMMAND), slices_of(Path("days"), AT_ONCE)[0]
    pieces = Pieces(Path("plan"), "0" * 64, (AT_ONCE,))
    with pieces.held():
        tally = decide_piece(planner, 0, piece, pieces=pieces)
        first = parts(pieces.folder / "parts")
        assert decide_piece(planner, 0, piece, pieces=pieces) == tally
        pieces.put(0, *Planner.of(COMMAND).decide(piece.read(planner.reads)))
    assert parts(pieces.folder / "parts") == first


class Deadly(distributed.WorkerPlugin):
    """Lets every worker die that has decided one of the pieces, those that are started anew too."""

    def __init__(self, number: int) -> None:
        self.number = number

    def setup(self, worker: distributed.Worker) -> None:
        def deadly(pieces: Pieces, number: int, *given: Any) -> None:
            if number == self.number:
                os.kill(os.getpid(), signal.SIGKILL)
            Pieces.kept_put(pieces, number, *given)

        spoil(deadly)


def allow(failures: int, dask_scheduler: distributed.Scheduler) -> None:
    """Set how many workers may die with a task before it is given up, less one."""
    dask_scheduler.allowed_failures = failures


def test_a_piece_that_kills_its_workers_is_named_and_the_others_are_kept(workers: distributed.Client, capsys) -> None:
    workers.run_on_scheduler(allow, 0)
    workers.register_plugin(Deadly(7), name="deadly")
    decide(*at(workers), code=1)
    workers.unregister_worker_plugin("deadly")
    workers.run_on_scheduler(allow, 3)
    said = capsys.readouterr().err
    place = "piece 8, rows 126 to 250 of .*days/part.9.parquet"
    assert re.search(rf"soctk: {place}: given up, as every worker died that had it", said), said
    assert not Path("plan").exists()
    workers.run(mend)
    decide(*at(workers))
    assert "going on: 24 of 25 pieces" in capsys.readouterr().err
    check_whole()


def test_an_interrupted_plan_goes_on_here_or_there(
    workers: distributed.Client, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    found, result = [], on_cluster._result

    def stop(*given: Any) -> Any:
        found.append(result(*given))
        if len([one for one in found if isinstance(one, Tally)]) == 5:
            raise KeyboardInterrupt
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(on_cluster, "_result", stop)
        decide(*at(workers), code=130)
    said = capsys.readouterr().err
    assert int(re.search(r"interrupted: (\d+) of 25 pieces are decided", said)[1]) >= 5
    assert not Path("plan").exists()
    decide()  # in this process
    assert int(re.search(r"going on: (\d+) of 25 pieces", capsys.readouterr().err)[1]) >= 5
    check_whole()


def lose() -> None:
    """Let workers keep nothing, as if their folder were another one."""
    spoil(lambda *given: None)


def test_pieces_that_are_not_there_are_noticed(workers: distributed.Client, capsys) -> None:
    workers.run(lose)
    decide(*at(workers), code=1)
    said = capsys.readouterr().err
    assert "plan: not written, as pieces 1, 2, 3, 4, 5 and 20 more of 25 are missing in" in said
    assert not Path("plan").exists()


def test_what_workers_say_of_the_request_is_one_line(workers: distributed.Client, capsys) -> None:
    days = pd.read_parquet("days/part.10.parquet")
    days.loc[599, "price"] = np.nan
    days.to_parquet("days/part.10.parquet")
    decide(*at(workers), code=2)
    said = capsys.readouterr().err
    assert said.endswith("days/part.10.parquet: column price, row 600: expected a finite number, got a missing value\n")
    assert said.count("\n") == 1
    assert not list(Path().glob(".*"))


def test_a_worker_with_other_files_or_other_code_refuses() -> None:
    work = Work.of(COMMAND)
    for other in (replace(work, digests=("other",)), replace(work, code="0.0")):
        with pytest.raises(UsageError, match=r"a worker (sees no such file model\.st, or another one|has soctk)"):
            on_cluster._planner(other)


def test_without_a_scheduler_there_the_command_ends(capsys) -> None:
    with dask.config.set({"distributed.comm.timeouts.connect": "300ms"}):
        decide("--scheduler", "tcp://127.0.0.1:9", code=1)
    assert "127.0.0.1:9" in capsys.readouterr().err
    decide("--scheduler", "nowhere", code=2)
    assert "--scheduler: expected an address, as tcp://host:8786, got nowhere" in capsys.readouterr().err
