"""Running an entry: it learns and decides in a process of its own, which ends when its time is over.

The process is told contexts and values, and what else the entry's track shows; test optima never reach it. This is no
protection against code that means harm: run only entries that you have read.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from soctk.checks import check_unmasked
from soctk_evaluation.benchmark.decisions import About, as_decisions
from soctk_evaluation.benchmark.entry import Entry, TrainingData, describe, load_entry
from soctk_evaluation.benchmark.scoring import judge_of
from soctk_evaluation.benchmark.versions import Problem, Version, checked_hash, selection_of, task_of
from soctk_evaluation.harness.request import UsageError
from soctk_evaluation.harness.workers import machine

START_SECONDS = 300.0
"""What importing an entry may take."""
ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Played:
    """An entry's decisions on one problem, their times, and what went wrong."""

    x: np.ndarray
    fit_seconds: float = float("nan")
    decide_ms: float = float("nan")
    ended: str = ""


def play(make: Callable[[], Entry], given: dict[str, Any], contexts: np.ndarray) -> Played:
    """Fit a fresh entry and decide; one unmeasured decision goes before.

    Raises:
        TypeError: decisions with masked entries.
        ValueError: decisions of another shape, or that are no real numbers.
    """
    problem, entry = given["problem"], make()
    task = task_of(problem) if given.pop("shows_objective") else None
    started = time.perf_counter()
    entry.fit(TrainingData(**given, task=task))
    fitted = time.perf_counter()
    entry.decide(contexts[:1].copy())
    begun = time.perf_counter()
    x = entry.decide(contexts.copy())
    seconds = time.perf_counter() - begun
    check_unmasked(x, "decisions")
    array = as_decisions(np.asarray(x.detach() if isinstance(x, torch.Tensor) else x), problem, "decisions")
    return Played(array, fitted - started, 1e3 * seconds / len(contexts))


def given_to(problem: Problem, track: str) -> dict[str, Any]:
    """Return what a track shows of a problem, the arguments of `TrainingData` and whether the objective is shown."""
    judge = judge_of(problem)
    data = judge.data
    optimum = None if track == "values" else judge.train_optimum.x.numpy()
    arrays = {name: getattr(data, name).numpy() for name in ("context", "x", "value")}
    return {"problem": problem, **arrays, "optimum": optimum, "shows_objective": track == "objective"}


@dataclass
class Player:
    """The process of an entry, started again after one that did not return.

    Attributes:
        place: of the entry.
        time_limit: seconds for a problem.
    """

    place: str
    time_limit: float
    _process: Any = field(default=None, init=False)
    _connection: Any = field(default=None, init=False)

    def about(self) -> About:
        """Start the process; return what the entry says of itself."""
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        with _one_thread():
            process = context.Process(target=serve, args=(there, self.place), daemon=True)
            process.start()
        self._process = process
        there.close()
        self._connection = here
        answer = self._answer(START_SECONDS)
        if isinstance(answer, str):
            self.close()
            raise UsageError(answer if answer.startswith(self.place.partition(":")[0]) else f"{self.place}: {answer}")
        return answer

    def play(self, problem: Problem, track: str) -> Played:
        """Return the entry's decisions; none, and why, where it fails or takes too long."""
        if self._process is None:
            try:
                self.about()
            except UsageError as error:  # it could be imported before: what is done is kept
                return _nothing(problem, _told(error))
        message = given_to(problem, track), judge_of(problem).contexts.numpy()
        with contextlib.suppress(BrokenPipeError):
            self._connection.send(message)
        answer = self._answer(self.time_limit)
        if isinstance(answer, Played):
            return answer
        return _nothing(problem, answer)

    def _answer(self, seconds: float) -> Any:
        try:
            if self._connection.poll(seconds):
                return self._connection.recv()
            problem = f"took longer than {seconds:g} s"
        except (EOFError, ConnectionError):
            problem = "its process died"
        self.close()
        return problem

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process = None


def _nothing(problem: Problem, ended: str) -> Played:
    """Return no decisions, and why."""
    return Played(np.full((problem.test, problem.dim), np.nan), ended=ended)


@contextlib.contextmanager
def _one_thread():
    """Let processes that start meanwhile compute in one thread, so that times compare."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def serve(connection: Connection, place: str) -> None:
    """Answer with what the entry at `place` is, then each problem with what it decides."""
    torch.set_num_threads(1)
    try:
        make = load_entry(place)
        connection.send(describe(make, place))
    except Exception as error:
        connection.send(_told(error))
        return
    while True:
        try:
            given, contexts = connection.recv()
        except EOFError:
            return
        try:
            connection.send(play(make, given, contexts))
        except Exception as error:
            connection.send(_told(error))


def _told(error: Exception) -> str:
    text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:ERROR_CHARACTERS]


def run_entry(
    place: str,
    version: Version,
    time_limit: float,
    tell: Callable[[str], None],
    keep: Callable[[About, dict[str, np.ndarray]], None] = lambda about, decisions: None,
) -> tuple[About, dict[str, np.ndarray]]:
    """Run an entry on every problem of a version.

    Args:
        place: as `load_entry` takes it.
        version: the problems.
        time_limit: seconds for each, to learn and decide.
        tell: is given a line for each problem.
        keep: is given what is returned after each problem too; those to come are "not run".

    Returns:
        What is known of the entry, and its decisions (T, n) by problem.

    Raises:
        UsageError: no such entry, or data that are not the published ones.
    """
    player, problems, hashes = Player(place, time_limit), version.problems(), {}
    played = {problem.name: _nothing(problem, "not run") for problem in problems}

    def result() -> tuple[About, dict[str, np.ndarray]]:
        return _complete(about, played, hashes, version), {name: one.x for name, one in played.items()}

    try:
        about = player.about()
        for problem in problems:
            hashes[problem.name] = checked_hash(version, problem, judge_of(problem).data, judge_of(problem).contexts)
            played[problem.name] = one = player.play(problem, about.track)
            tell(f"{problem.name}: {one.ended or f'fit {one.fit_seconds:.2f} s, {one.decide_ms:.3f} ms a decision'}")
            keep(*result())
    finally:
        player.close()
    return result()


def _complete(about: About, played: dict[str, Played], hashes: dict[str, str], version: Version) -> About:
    done = {name: one for name, one in played.items() if not one.ended}
    return replace(
        about,
        machine=machine(),
        fit_seconds={name: one.fit_seconds for name, one in done.items()},
        decide_ms={name: one.decide_ms for name, one in done.items()},
        ended={name: one.ended for name, one in played.items() if one.ended},
        data=hashes,
        selection=selection_of(version),
    )


def failures(about: About, problems: Sequence[Problem]) -> bool:
    """Return whether the entry failed on every problem."""
    return all(problem.name in about.ended for problem in problems)
