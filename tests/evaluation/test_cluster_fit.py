"""`soctk fit --scheduler`: the mean is that of one machine whatever workers die, and what goes wrong is said."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

distributed = pytest.importorskip("distributed", reason="needs the extra `cluster`")

import dask  # noqa: E402

import soctk  # noqa: E402
from soctk.learn.members import Members  # noqa: E402
from soctk.learn.search import Search  # noqa: E402
from soctk_evaluation.cli import main  # noqa: E402
from soctk_evaluation.harness import dask_executor  # noqa: E402
from soctk_evaluation.harness.dask_executor import ClusterExecutor  # noqa: E402
from soctk_evaluation.harness.key import code_in_use  # noqa: E402
from soctk_evaluation.harness.request import UsageError  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills workers by a signal")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    context, x = random.normal(size=(30, 1)), random.uniform(size=(30, 3, 2))
    value = ((x - 0.3 * context[:, None, :1]) ** 2).sum(axis=-1) + 0.1 * random.normal(size=(30, 3))
    np.savez("log.npz", context=context, x=x, value=value)


def fit(*more: str, members: int = 3, code: int = 0) -> None:
    small = ("--model", "quad", "--max-parameters", "60")
    assert main(["fit", "log.npz", *small, "--members", str(members), *more]) == code


def at(client: distributed.Client) -> tuple[str, str]:
    return "--scheduler", client.scheduler.address


@pytest.fixture
def workers(client: distributed.Client) -> Iterator[distributed.Client]:
    """The cluster, whose workers learn as they should again after the test."""
    yield client
    client.wait_for_workers(2)
    client.run(mend)


def mend() -> None:
    Members.learn = getattr(Members, "kept", Members.learn)
    Search.step = getattr(Search, "kept", Search.step)


def spoil(kind: type, name: str, function: Callable[..., Any]) -> None:
    kind.kept = getattr(kind, "kept", getattr(kind, name))
    setattr(kind, name, function)


def die_once(mark: str) -> None:
    """Let the worker that learns the second member die with it, once."""

    def deadly(members: Members, fit: Any, number: int, *more: Any, **named: Any) -> Any:
        if number == 1 and not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Members.kept(members, fit, number, *more, **named)

    spoil(Members, "learn", deadly)


def test_a_worker_that_dies_with_a_member_costs_nothing(workers: distributed.Client, tmp_path: Path, capsys) -> None:
    workers.run(die_once, str(tmp_path / "dead"))
    fit(*at(workers), "--output", "there.st")
    assert (tmp_path / "dead").exists()
    assert "the mean of 3 of 3 members" in capsys.readouterr().out
    fit("--output", "here.st")
    there, here = map(soctk.load, ("there.st", "here.st"))
    torch.testing.assert_close(there.state_dict(), here.state_dict(), rtol=0, atol=0)
    assert there.support.plain() == here.support.plain()


def wait_to_be_stopped(mark: str) -> None:
    """Let members learn until they are told to stop."""

    def patient(search: Search, loss: float) -> bool:
        Path(mark).touch()
        while not search.deadline.passed:
            time.sleep(0.05)
        return Search.kept(search, loss)

    spoil(Search, "step", patient)


def interrupt_when(mark: Path) -> None:
    while not mark.exists():
        time.sleep(0.05)
    signal.raise_signal(signal.SIGINT)


def test_the_first_interrupt_reaches_the_workers(workers: distributed.Client, tmp_path: Path, capsys) -> None:
    """Those that are being learned end with their best state, those that have not begun are left out."""
    workers.run(wait_to_be_stopped, str(tmp_path / "begun"))
    threading.Thread(target=interrupt_when, args=(tmp_path / "begun",)).start()
    fit(*at(workers), members=5)
    said = capsys.readouterr()
    assert "stopping with the best state so far; Ctrl-C again ends at once" in said.err
    assert "the best state when the fit was interrupted" in said.out
    mean = soctk.load("log.safetensors")
    assert isinstance(mean, soctk.AverageSurrogate)
    assert f"the mean of {len(mean.members)} of 5 members" in said.out
    assert 1 <= len(mean.members) <= 2  # there are two workers


class Deadly(distributed.WorkerPlugin):
    """Lets every worker die that learns the second member, those that are started anew too."""

    def setup(self, worker: distributed.Worker) -> None:
        def deadly(members: Members, fit: Any, number: int, *more: Any, **named: Any) -> Any:
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return Members.kept(members, fit, number, *more, **named)

        spoil(Members, "learn", deadly)


def allow(failures: int, dask_scheduler: distributed.Scheduler) -> None:
    """Set how many workers may die with a task before it is given up, less one."""
    dask_scheduler.allowed_failures = failures


def test_a_member_that_kills_its_workers_ends_the_command(workers: distributed.Client, capsys) -> None:
    workers.run_on_scheduler(allow, 0)
    workers.register_plugin(Deadly(), name="deadly")
    fit(*at(workers), code=1)
    workers.unregister_worker_plugin("deadly")
    workers.run_on_scheduler(allow, 3)
    assert "soctk: given up, as every worker died that had a certain member" in capsys.readouterr().err
    assert not Path("log.safetensors").exists()


def fail() -> None:
    def failing(members: Members, fit: Any, number: int, *more: Any, **named: Any) -> Any:
        raise RuntimeError("out of\norder")

    spoil(Members, "learn", failing)


def test_what_a_worker_fails_with_is_one_line(workers: distributed.Client, capsys) -> None:
    workers.run(fail)
    fit(*at(workers), code=1)
    assert "soctk: a worker failed: RuntimeError: out of order; no model written\n" in capsys.readouterr().err


def test_any_executor_of_the_cluster_will_do(client: distributed.Client) -> None:
    """One without a mark, in a script."""
    data, config = soctk.read_log("log.npz").data, soctk.FitConfig(members=2, starts=1, newton_iterations=5)
    models = [soctk.make_surrogate("quad", 2, 1, 60) for _ in range(2)]
    there, here = (
        soctk.fit(model, data, config, executor=executor)
        for model, executor in zip(models, (client.get_executor(pure=False), None), strict=True)
    )
    x, context = data.x[:, 0], data.context
    torch.testing.assert_close(there.model(x, context), here.model(x, context), rtol=0, atol=0)
    assert ClusterExecutor(client).workers == 2


def test_a_worker_with_other_code_refuses() -> None:
    assert dask_executor._carry_out(code_in_use(), int, 5) == 5
    with pytest.raises(UsageError, match=r"a worker has soctk .*: expected 0\.0, as here"):
        dask_executor._carry_out("0.0", int, 5)


def test_what_makes_no_sense_is_said_before_anything_is_learned(
    client: distributed.Client, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    fit(*at(client), members=1, code=2)
    assert "--scheduler: expected --members of at least 2" in capsys.readouterr().err
    fit("--scheduler", "nowhere", code=2)
    assert "--scheduler: expected an address, as tcp://host:8786, got nowhere" in capsys.readouterr().err
    with dask.config.set({"distributed.comm.timeouts.connect": "300ms"}):
        fit("--scheduler", "tcp://127.0.0.1:9", code=1)
    assert "127.0.0.1:9" in capsys.readouterr().err
    monkeypatch.setattr("soctk_evaluation.harness.dask_client.find_spec", lambda name: None)
    fit(*at(client), code=2)
    assert 'needs the package distributed: pip install "soctk[cluster]"' in capsys.readouterr().err
    assert not Path("log.safetensors").exists()


def test_workers_are_waited_for(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def interrupted(client: distributed.Client, count: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(distributed.Client, "wait_for_workers", interrupted)
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        fit("--scheduler", cluster.scheduler_address, code=130)
        assert f"no workers at {cluster.scheduler_address} yet: waiting for some" in capsys.readouterr().err
