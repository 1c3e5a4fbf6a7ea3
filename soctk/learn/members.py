"""Several surrogates, each learned from a sample of the instances, side by side in processes or on an executor.

Their mean is the surrogate (subagging, Buehlmann and Yu 2002): of convex functions it is convex. A member depends on
nothing but what `Members` holds and its number, so that who learns it, and how often, does not matter.
"""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch

from soctk.learn.config import FitConfig
from soctk.learn.context_range import average_of
from soctk.learn.data import ValueData
from soctk.learn.optimality import Optima
from soctk.learn.phases.race import can_redraw, redrawn
from soctk.learn.progress import Progress
from soctk.learn.report import FitReport, FitStatus
from soctk.processes import end_workers, ignore_interrupts, interrupts_held
from soctk.sets import SetAt
from soctk.surrogate import ConvexSurrogate

FEWEST_INSTANCES = 5
"""To draw samples from."""
MEMBER_STEP = 1000
"""Between the numbers of members' initial weights, so that none are those of a start of another's race."""
LOOK_EVERY = 0.2
"""Seconds between looks at whether to stop."""

Fit = Callable[..., FitReport]
Stop = Callable[[], bool]
Learned = tuple[ConvexSurrogate, FitReport]


class Mark(Protocol):
    """A flag that workers see when it is set here, as `threading.Event` is for threads."""

    def set(self) -> object:
        """Let `is_set` return True from now on."""
        ...

    def is_set(self) -> bool:
        """Return whether it was set."""
        ...


@dataclass(frozen=True, eq=False)
class Members:
    """What members are learned from: the arguments of `soctk.fit`, none of which is ever changed."""

    model: ConvexSurrogate
    data: ValueData
    config: FitConfig
    validation: ValueData | None
    optima: Optima | None

    @classmethod
    def of(
        cls,
        model: ConvexSurrogate,
        data: ValueData,
        config: FitConfig,
        validation: ValueData | None,
        optima: Optima | None,
    ) -> Members:
        """Return the members, once it is clear that they can be drawn.

        Raises:
            ValueError: too few instances; a surrogate that cannot be made afresh.
        """
        if not can_redraw(model):
            raise ValueError(f"members: expected a model whose config() has a seed, got {type(model).__name__}")
        if data.instances < FEWEST_INSTANCES:
            wanted = f"expected at least {FEWEST_INSTANCES} instances to draw from"
            raise ValueError(f"members: {wanted}, got {data.instances}")
        return cls(copy.deepcopy(model), data, config, validation, optima)

    @property
    def count(self) -> int:
        """How many there are."""
        return self.config.members

    @property
    def processes(self) -> int:
        """How many this machine learns at a time."""
        return min(self.count, torch.get_num_threads() if self.config.jobs is None else self.config.jobs)

    def at_a_time(self, side_by_side: int) -> Members:
        """Return the members with the time limit of each where so many are learned at a time."""
        if self.config.time_limit is None:
            return self
        rounds = -(-self.count // side_by_side)
        return replace(self, config=replace(self.config, time_limit=self.config.time_limit / rounds))

    def learn(
        self, fit: Fit, number: int, stop: Stop | None, *, into: ConvexSurrogate | None = None, shown: bool = False
    ) -> Learned:
        """Fit member `number`: the surrogate given (0) or another of its sizes, with four fifths of the instances.

        What its sample leaves out is its validation data where none are given.

        Args:
            fit: `soctk.fit`.
            number: of the member.
            stop: as `soctk.fit` has it.
            into: the model to train; one made for the purpose by default.
            shown: whether its progress may be shown.
        """
        # Without repetition: cross-validation inside of a sample must not see an instance on both sides.
        drawn, left_out = self.data.split_instances(seed=self.config.seed + number)
        model, known = into or self._model(number), self.optima
        sets = None if known is None else known.feasible_set
        report = fit(
            model,
            self.data.rows(drawn),
            replace(self.config, members=1, seed=self.config.seed + number, progress=shown and self.config.progress),
            self.data.rows(left_out) if self.validation is None else self.validation,
            optima=None if known is None else known.x[drawn],
            feasible_set=sets.select(drawn) if isinstance(sets, SetAt) else sets,
            stop=stop,
        )
        return model, report

    def _model(self, number: int) -> ConvexSurrogate:
        return redrawn(self.model, MEMBER_STEP * number) if number else copy.deepcopy(self.model)


def side_by_side(
    fit: Fit, model: ConvexSurrogate, members: Members, stop: Stop | None, executor: Executor | None
) -> FitReport:
    """Fit all members, `model` the first of them, and return their mean in a report.

    Once `stop` says True, members that are being learned end with their best state, and no others begin. An executor's
    do so where it has a method `event`, which returns a mark that its workers see; those of another are left.
    """
    started = time.perf_counter()
    numbers = range(members.count)
    if executor is not None:
        learned = _on_executor(fit, model, members.at_a_time(members.config.jobs or members.count), stop, executor)
    elif members.processes == 1 or model.device.type != "cpu":
        learned = _in_turn(fit, members.at_a_time(1), numbers, stop, model)
    else:
        learned = _in_processes(fit, model, members.at_a_time(members.processes), stop)
    good = [number for number, (_, report) in learned.items() if report.status != FitStatus.DIVERGED]
    report = replace(learned[min(good or learned)][1], seconds=time.perf_counter() - started)
    if len(learned) < members.count or any(one.status == FitStatus.STOPPED for _, one in learned.values()):
        report.status = FitStatus.STOPPED
    report.model = average_of([learned[number][0] for number in sorted(good)]) if good else model
    return report


def _in_turn(
    fit: Fit, members: Members, numbers: Iterable[int], stop: Stop | None, first: ConvexSurrogate | None = None
) -> dict[int, Learned]:
    """Learn members one after the other; with `first`, number 0 is that model, learned even where none are to begin."""
    learned = {}
    for number in numbers:
        into = None if number else first
        if into is None and stop is not None and stop():
            break
        learned[number] = members.learn(fit, number, stop, into=into, shown=first is not None)
    return learned


def _in_processes(fit: Fit, model: ConvexSurrogate, members: Members, stop: Stop | None) -> dict[int, Learned]:
    """Deal the members out: each process of this machine, this one too, learns its own in turn."""
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.backend.reduction import dumps

    processes = members.processes
    mine, *theirs = (range(process, members.count, processes) for process in range(processes))
    with tempfile.TemporaryDirectory() as folder:
        mark = _FileMark(Path(folder) / "stop")

        def stopped() -> bool:
            if stop is not None and not mark.is_set() and stop():
                mark.set()
            return mark.is_set()

        # Pickled here: loky does so in a thread of its own, some time after `submit`, while learning keeps on members'
        # data what it works out, and a dictionary that grows cannot be pickled.
        pickled = bytes(dumps((fit, members)))
        with interrupts_held():
            executor = get_reusable_executor(max_workers=processes - 1, initializer=ignore_interrupts)
            others = [executor.submit(_unpickled, pickled, numbers, mark) for numbers in theirs]
        try:
            learned = _in_turn(fit, members, mine, None if stop is None else stopped, model)
            return learned | _collect(others, stopped, mark, Progress(0, enabled=False))
        except BaseException:
            end_workers(executor, others)
            raise


def _on_executor(
    fit: Fit, model: ConvexSurrogate, members: Members, stop: Stop | None, executor: Executor
) -> dict[int, Learned]:
    """Learn all on workers that are the caller's, who alone ends them."""
    mark: Mark | None = executor.event() if hasattr(executor, "event") else None  # type: ignore[attr-defined]
    futures = [executor.submit(_elsewhere, fit, members, [number], mark) for number in range(members.count)]
    try:
        with Progress(members.count, enabled=members.config.progress, unit="members") as progress:
            learned = _collect(futures, stop or _never, mark, progress)
    except BaseException:
        with suppress(Exception):  # what went wrong is what is raised
            _leave(futures, mark)
        raise
    if not learned:
        return {0: members.learn(fit, 0, stop, into=model)}  # as a fit that is stopped at once
    if 0 in learned:
        # A pickled model's attributes are all of it: the surrogate given becomes what came back.
        vars(model).update(vars(learned[0][0]))
        learned[0] = model, learned[0][1]
    return learned


def _collect(
    futures: Sequence[Future[dict[int, Learned]]], stop: Stop, mark: Mark | None, progress: Progress
) -> dict[int, Learned]:
    """Return the members that are learned, all of them unless `stop` says True; raise what one of them raises."""
    waiting, learned = list(futures), {}
    while waiting:
        for future in [future for future in waiting if future.done()]:
            waiting.remove(future)
            found = future.result()
            learned.update(found)
            for _, report in found.values():
                progress.advance(report.best_validation)
        if waiting and stop():
            if mark is None:
                _leave(waiting, mark)
                break
            mark.set()
        if waiting:
            time.sleep(LOOK_EVERY)
    return dict(sorted(learned.items()))


def _leave(futures: Iterable[Future[dict[int, Learned]]], mark: Mark | None) -> None:
    """Let members be: those that have not begun do not begin, those that look at a mark end."""
    if mark is not None:
        mark.set()
    for future in futures:
        future.cancel()


_one_at_a_time = threading.Lock()
"""Held by the thread of a worker that learns: how many threads PyTorch takes is its process's."""


def _elsewhere(fit: Fit, members: Members, numbers: Iterable[int], mark: Mark | None) -> dict[int, Learned]:
    """Fit members on a worker, none once the mark is set."""
    with _one_at_a_time:
        learned = _in_turn(fit, members, numbers, None if mark is None else mark.is_set)
        return {number: (model, replace(report, model=None)) for number, (model, report) in learned.items()}


def _unpickled(pickled: bytes, numbers: Iterable[int], mark: Mark) -> dict[int, Learned]:
    fit, members = pickle.loads(pickled)
    return _elsewhere(fit, members, numbers, mark)


@dataclass(frozen=True)
class _FileMark:
    """A mark that processes of one machine see, set for those whose parent is gone too."""

    path: Path
    parent: int = field(default_factory=os.getpid)

    def set(self) -> None:
        self.path.touch()

    def is_set(self) -> bool:
        return self.path.exists() or self.parent not in (os.getpid(), os.getppid())


def _never() -> bool:
    return False
