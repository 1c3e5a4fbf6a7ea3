"""Members on an executor of the caller's: the same as here, and what becomes of them when a fit is stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from joblib.externals.loky import get_reusable_executor

import soctk
from soctk import FitConfig, FitReport, ValueData
from soctk.learn.members import Members
from soctk.learn.phases.race import redrawn
from soctk.learn.report import FitStatus
from soctk.learn.search import Search

BRIEF = FitConfig(members=3, starts=1, epochs=1, newton_iterations=2, lbfgs_iterations=10, level_iterations=10)


def data() -> ValueData:
    """Return squared distances from a point that moves with the context, with noise."""
    generator = torch.Generator().manual_seed(0)
    context, x, noise = (
        torch.randn(40, *shape, generator=generator, dtype=torch.float64) for shape in ((2,), (4, 3), (4,))
    )
    return ValueData(context, x, (x - context[:, None, :1]).square().sum(dim=-1) + 0.3 * noise)


def made() -> soctk.ConvexSurrogate:
    return soctk.SOCICNN(3, 2, hidden=(), quadratics=(3,), norms=(2,), seed=0)


def members_of(report: FitReport) -> list[soctk.ConvexSurrogate]:
    assert isinstance(report.model, soctk.AverageSurrogate)
    return report.model.members


def check_same(models: list[soctk.ConvexSurrogate], others: list[soctk.ConvexSurrogate]) -> None:
    """The same numbers to the last bit: one thread, the same operations."""
    assert len(models) == len(others)
    for model, other in zip(models, others, strict=True):
        assert model.support.plain() == other.support.plain()  # type: ignore[union-attr]
        assert model.config() == other.config()
        torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=0, atol=0)


class Threads(ThreadPoolExecutor):
    """Threads that see a mark."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.mark = threading.Event()

    def event(self) -> threading.Event:
        return self.mark


class Gate:
    """Holds a member at its first step until it may go on; members are learned one at a time.

    Attributes:
        begun: numbers of the members that have begun.
        reached: set when the member is there.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, until: threading.Event) -> None:
        self.begun: list[int] = []
        self.reached = threading.Event()
        learn, step = Members.learn, Search.step

        def learning(members: Members, fit: Any, number: int, *more: Any, **named: Any) -> Any:
            self.begun.append(number)
            return learn(members, fit, number, *more, **named)

        def stepping(search: Search, loss: float) -> bool:
            if self.begun[-1] == number:
                self.reached.set()
                assert until.wait(60)
            return step(search, loss)

        monkeypatch.setattr(Members, "learn", learning)
        monkeypatch.setattr(Search, "step", stepping)


def test_an_executor_learns_what_is_learned_here_and_is_left_as_it_is() -> None:
    model, here = made(), made()
    expected = soctk.fit(here, data(), replace(BRIEF, jobs=1))
    with Threads(2) as executor:
        report = soctk.fit(model, data(), BRIEF, executor=executor)
        assert executor.submit(int, 5).result() == 5
        assert not executor.mark.is_set()
    check_same(members_of(report), members_of(expected))
    assert members_of(report)[0] is model
    check_same([model], [here])
    assert report.status == expected.status


def test_a_chosen_structure_comes_back_with_the_member() -> None:
    models = [soctk.make_surrogate("soc", 3, 2) for _ in range(2)]
    brief = replace(BRIEF, members=2)
    with Threads(1) as executor:
        found = members_of(soctk.fit(models[0], data(), brief, executor=executor))
    check_same(found, members_of(soctk.fit(models[1], data(), replace(brief, jobs=1))))


def test_with_a_mark_members_end_with_their_best_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three, one after the other: the first is learned, the second is at it, the third has not begun."""
    whole = members_of(soctk.fit(made(), data(), replace(BRIEF, jobs=1)))
    with Threads(1) as executor:
        gate = Gate(monkeypatch, 1, until=executor.mark)
        report = soctk.fit(made(), data(), BRIEF, executor=executor, stop=gate.reached.is_set)
    assert gate.begun == [0, 1]
    assert report.status == FitStatus.STOPPED
    found = members_of(report)
    assert len(found) == 2
    check_same(found[:1], whole[:1])
    assert not torch.equal(found[1](data().x[:, 0], data().context), whole[1](data().x[:, 0], data().context))


def test_without_a_mark_those_that_are_learned_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, over, model = members_of(soctk.fit(made(), data(), replace(BRIEF, jobs=1))), threading.Event(), made()
    with ThreadPoolExecutor(1) as executor:
        gate = Gate(monkeypatch, 1, until=over)
        report = soctk.fit(model, data(), BRIEF, executor=executor, stop=gate.reached.is_set)
        over.set()
    assert gate.begun == [0, 1]
    assert report.status == FitStatus.STOPPED
    check_same(members_of(report), whole[:1])
    assert members_of(report)[0] is model


def test_stopped_before_any_is_learned_the_first_is_as_a_fit_that_is_stopped_at_once() -> None:
    over, models = threading.Event(), (made(), made())
    with ThreadPoolExecutor(1) as executor:
        executor.submit(over.wait, 60)  # nothing else begins
        report = soctk.fit(models[0], data(), BRIEF, executor=executor, stop=lambda: True)
        over.set()
    soctk.fit(models[1], data(), replace(BRIEF, jobs=1), stop=lambda: True)
    assert report.status == FitStatus.STOPPED
    assert members_of(report) == [models[0]]
    check_same([models[0]], [models[1]])


def test_what_a_member_raises_is_raised_and_the_others_do_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def failing(members: Members, fit: Any, number: int, *more: Any, **named: Any) -> Any:
        begun.append(number)
        raise ValueError("no such member")

    monkeypatch.setattr(Members, "learn", failing)
    with Threads(1) as executor:
        with pytest.raises(ValueError, match="no such member"):
            soctk.fit(made(), data(), replace(BRIEF, members=200), executor=executor)
        assert executor.mark.is_set()
        assert executor.submit(int, 5).result() == 5
    assert len(begun) < 200


def test_a_time_limit_is_shared_by_those_that_are_learned_one_after_the_other() -> None:
    members = Members.of(made(), data(), replace(BRIEF, time_limit=60.0), None, None)
    assert [members.at_a_time(count).config.time_limit for count in (1, 2, 3, 8)] == [20.0, 30.0, 60.0, 60.0]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_interrupt_ends_the_processes_of_many_members_without_a_word() -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        soctk.fit(made(), data(), replace(BRIEF, members=9, jobs=2, epochs=1000), stop=interrupted)


@pytest.mark.skipif(sys.platform != "linux", reason="children are read from /proc")
def test_an_interrupt_that_a_terminal_sends_to_all_processes_leaves_their_members_alone() -> None:
    """Those that are still starting too: the whole of the fit goes on, and it is this process that ends it."""
    sent: set[int] = set()

    def interrupt_workers() -> bool:
        children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
        for child in {int(number) for found in children for number in found} - sent:
            os.kill(child, signal.SIGINT)
            sent.add(child)
        return False

    get_reusable_executor().shutdown(wait=True)
    report = soctk.fit(made(), data(), replace(BRIEF, members=4, jobs=2), stop=interrupt_workers)
    assert sent
    assert report.status != FitStatus.STOPPED
    assert len(members_of(report)) == 4


def test_processes_share_members_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    here, learn = [], Members.learn

    def learning(members: Members, fit: Any, number: int, *more: Any, **named: Any) -> Any:
        here.append(number)
        return learn(members, fit, number, *more, **named)

    monkeypatch.setattr(Members, "learn", learning)
    found = members_of(soctk.fit(made(), data(), replace(BRIEF, members=5, jobs=2)))
    assert here == [0, 2, 4]
    check_same(found, members_of(soctk.fit(made(), data(), replace(BRIEF, members=5, jobs=1))))


class Noting:
    """Notes which threads of this process copy or pickle it."""

    threads: ClassVar[set[threading.Thread]] = set()

    def __getstate__(self) -> None:
        self.threads.add(threading.current_thread())


def test_what_other_processes_learn_from_is_pickled_before_learning_begins() -> None:
    """A thread that pickles the data at its leisure meets what learning keeps on them, and ends in an error."""
    watched = data()
    vars(watched)["noting"] = Noting()
    soctk.fit(made(), watched, replace(BRIEF, members=2, jobs=2))
    assert Noting.threads == {threading.current_thread()}


def test_no_start_of_a_members_race_is_that_of_another() -> None:
    """Every member's race draws other initial weights than every other's."""
    starts: list[soctk.ConvexSurrogate] = []

    def racing(model: soctk.ConvexSurrogate, *_data: Any, **_named: Any) -> FitReport:
        starts.extend([model, *(redrawn(model, k) for k in range(1, 8))])
        return FitReport(FitStatus.CONVERGED)

    members = Members.of(made(), data(), replace(BRIEF, members=6), None, None)
    for number in range(6):
        members.learn(racing, number, None)
    assert len({start.config()["seed"] for start in starts}) == len(starts) == 48


def test_an_executor_is_refused_where_there_is_one_member() -> None:
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(ValueError, match=r"executor: expected FitConfig\(members=\)"),
    ):
        soctk.fit(made(), data(), executor=executor)


def test_members_are_of_the_models_precision() -> None:
    report = soctk.fit(made().float(), data(), replace(BRIEF, jobs=1))
    assert {member.dtype for member in members_of(report)} == {torch.float32}


def test_optima_of_another_number_are_refused_before_anything_is_learned() -> None:
    for count in (30, 80):
        with pytest.raises(ValueError, match="one for each instance"):
            soctk.fit(made(), data(), BRIEF, optima=torch.zeros(count, 3))
