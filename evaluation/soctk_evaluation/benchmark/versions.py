"""What the benchmark consists of: versions, their problems, and the data of each, known by a hash."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk import ValueData
from soctk_evaluation.harness.request import UsageError, check_names
from soctk_tasks import TASKS, Task, make_task, task_names
from soctk_tasks.registry import UNTUNED

TRACKS = ("values", "optima", "objective")
"""What an entry may learn from: values of candidates; those and optimal decisions; the true objective."""
HASHED_DECIMALS = 5
"""Data are hashed to so many decimals, so that the last bits of another processor are no other data."""
STREAM = zlib.crc32(b"soctk benchmark")


@dataclass(frozen=True)
class Problem:
    """One task of one seed: its data and its test contexts follow from these numbers.

    Attributes:
        task: its name.
        dim: decision dimension n.
        seed: of the task's constants and of its data.
        train: number N of training contexts.
        candidates: number M of decisions with known values for each.
        test: number of test contexts.
        test_seed: 0 for the published test contexts; another number for others that no entry has seen.
    """

    task: str
    dim: int
    seed: int
    train: int
    candidates: int
    test: int
    test_seed: int = 0

    @property
    def name(self) -> str:
        """The problem's name in files: TASK-DIM-SEED."""
        return f"{self.task}-{self.dim}-{self.seed}"


@dataclass(frozen=True)
class Version:
    """A list of problems that never changes under its name.

    Attributes:
        name: of the version.
        cases: tasks with their dimensions.
        seeds: of each.
        train, candidates, test: as in `Problem`.
        test_seed: likewise.
    """

    name: str
    cases: tuple[tuple[str, int], ...]
    seeds: tuple[int, ...]
    train: int = 1000
    candidates: int = 32
    test: int = 200
    test_seed: int = 0

    def problems(self) -> list[Problem]:
        """Return the problems, seed by seed."""
        sizes = (self.train, self.candidates, self.test, self.test_seed)
        return [Problem(task, dim, seed, *sizes) for seed in self.seeds for task, dim in self.cases]


_SEEDS = (100, 101, 102, 103, 104)
VERSIONS = {
    version.name: version
    for version in (
        Version("1", tuple((task, 10) for task in (*TASKS, *UNTUNED)), _SEEDS),
        Version("trial", (("box_socp", 3), ("simplex_logistic", 3)), (100, 101, 102), 60, 8, 20),
    )
}
"""Version 1, and a small one to try things out. No recipe was chosen by their seeds."""


def choose(
    version: str = "1",
    tasks: Sequence[str] = (),
    dims: Sequence[int] = (),
    seeds: Sequence[int] = (),
    test_seed: int = 0,
) -> Version:
    """Return a version, or the part or variation of it that is asked for.

    Raises:
        UsageError: an unknown version or task, or a number out of range.
    """
    check_names([version], list(VERSIONS), "version")
    check_names(tasks, task_names(), "task")
    for name, given, least in (("dims", dims, 1), ("seeds", seeds, 0), ("test-seed", (test_seed,), 0)):
        if any(value < least for value in given):
            raise UsageError(f"--{name}: expected integers of at least {least}, got {' '.join(map(str, given))}")
    whole = VERSIONS[version]
    usual = dict(whole.cases)
    chosen = [(task, dim) for task in tasks or usual for dim in dims or (usual.get(task, whole.cases[0][1]),)]
    cases, named = (tuple(dict.fromkeys(part)) for part in (chosen, seeds))  # what is named twice is there once
    return replace(whole, cases=cases, seeds=named or whole.seeds, test_seed=test_seed)


def selection_of(version: Version) -> dict[str, Any]:
    """Return which problems a version has, as JSON takes it."""
    cases = [list(case) for case in version.cases]
    return {"version": version.name, "cases": cases, "seeds": list(version.seeds), "test_seed": version.test_seed}


def from_selection(selection: Mapping[str, Any]) -> Version:
    """Return the version that `selection_of` wrote.

    Raises:
        UsageError: something else.
    """
    try:
        cases = tuple((str(task), int(dim)) for task, dim in selection["cases"])
        seeds, test_seed = tuple(map(int, selection["seeds"])), int(selection["test_seed"])
        whole = choose(str(selection["version"]), [task for task, _ in cases], (), seeds, test_seed)
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"selection: expected version, cases, seeds and test_seed ({error})") from None
    return replace(whole, cases=cases)


def label_of(version: Version) -> str:
    """Return the version's name where it is the published one, else its name and that it is another choice."""
    return version.name if version == VERSIONS.get(version.name) else f"{version.name} (own choice)"


@cache
def task_of(problem: Problem) -> Task:
    """Return the task; UsageError where it cannot have this dimension or its data are not installed."""
    try:
        return make_task(problem.task, dim=problem.dim, seed=problem.seed)
    except (ValueError, FileNotFoundError, ImportError) as error:
        raise UsageError(f"{problem.name}: {error}") from None


def training(problem: Problem) -> ValueData:
    """Return the training data: contexts (N, p), candidates (N, M, n), their values (N, M)."""
    return task_of(problem).sample(problem.train, problem.candidates, seed=_seed(problem, 1))


def held_out(problem: Problem) -> Tensor:
    """Return the test contexts, (T, p)."""
    return task_of(problem).contexts(problem.test, seed=_seed(problem, 2, problem.test_seed))


def _seed(problem: Problem, *part: int) -> int:
    return int(np.random.SeedSequence((STREAM, problem.seed, *part)).generate_state(1)[0])


def hash_of(data: ValueData, contexts: Tensor) -> str:
    """Return the hash of training data and test contexts, to `HASHED_DECIMALS` decimals."""
    digest = hashlib.sha256()
    for array in (data.context, data.x, data.value, contexts):
        rounded = torch.as_tensor(array).double().numpy().round(HASHED_DECIMALS) + 0.0  # no negative zero
        digest.update(f"{rounded.shape}".encode() + np.ascontiguousarray(rounded, dtype="<f8").tobytes())
    return digest.hexdigest()


def published_hash(version: Version, problem: Problem) -> str | None:
    """Return the hash that a published version's problem has to have; None of one that is not published."""
    if problem not in VERSIONS[version.name].problems():
        return None
    stored = json.loads(files("soctk_evaluation.benchmark").joinpath("assets/hashes.json").read_text(encoding="utf-8"))
    return stored.get(version.name, {}).get(problem.name)


def checked_hash(version: Version, problem: Problem, data: ValueData, contexts: Tensor) -> str:
    """Return the hash of a problem's data.

    Raises:
        UsageError: a published problem whose data are others here.
    """
    found, expected = hash_of(data, contexts), published_hash(version, problem)
    if expected not in (None, found):
        raise UsageError(
            f"{problem.name}: expected data of hash {expected[:12]} in version {version.name}, got {found[:12]}: "
            "other versions of soctk, torch or numpy make other data, and scores on them compare with nothing"
        )
    return found
