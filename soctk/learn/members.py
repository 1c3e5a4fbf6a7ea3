"""Several surrogates, each learned from a sample of the instances, side by side in processes of their own.

Their mean is the surrogate (subagging, Buehlmann and Yu 2002): of convex functions it is convex.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from soctk.checks import ArrayLike, as_tensor
from soctk.learn.config import FitConfig
from soctk.learn.data import HELD_OUT, ValueData, split_indices
from soctk.learn.phases.race import can_redraw, redrawn
from soctk.learn.report import FitReport, FitStatus
from soctk.models.average import average
from soctk.sets import FeasibleSet, SetAt
from soctk.surrogate import ConvexSurrogate

FEWEST_INSTANCES = 5
"""To draw samples from."""
LOOK_EVERY = 0.2
"""Seconds between looks at whether to stop."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Fit = Callable[..., FitReport]


@dataclass(frozen=True, eq=False)
class Sample:
    """One member and what it learns from: the arguments of `soctk.fit`."""

    model: ConvexSurrogate
    data: ValueData
    config: FitConfig
    validation: ValueData
    optima: torch.Tensor | None
    feasible_set: FeasibleSet | SetAt | None

    def learn(self, fit: Fit, stop: Callable[[], bool] | None) -> FitReport:
        """Fit the member."""
        more = {"optima": self.optima, "feasible_set": self.feasible_set, "stop": stop}
        return fit(self.model, self.data, self.config, self.validation, **more)


def samples_of(
    model: ConvexSurrogate,
    data: ValueData,
    config: FitConfig,
    validation: ValueData | None,
    *,
    optima: ArrayLike | None,
    feasible_set: FeasibleSet | SetAt | None,
) -> list[Sample]:
    """Return a surrogate and others of its sizes, each with four fifths of the instances.

    What a sample leaves out is its validation data where none are given. A time limit is for each.

    Raises:
        ValueError: too few instances; a surrogate that cannot be made afresh.
    """
    if not can_redraw(model):
        raise ValueError(f"members: expected a model whose config() has a seed, got {type(model).__name__}")
    if data.instances < FEWEST_INSTANCES:
        raise ValueError(f"members: expected at least {FEWEST_INSTANCES} instances to draw from, got {data.instances}")
    known = None if optima is None else as_tensor(optima, "optima")
    samples = []
    for number in range(config.members):
        # Without repetition: cross-validation inside of a sample must not see an instance on both sides.
        drawn, left_out = split_indices(data.instances, HELD_OUT, config.seed + number)
        samples.append(
            Sample(
                model if number == 0 else redrawn(model, number).to(model.device),
                data.rows(drawn),
                replace(config, members=1, seed=config.seed + number, time_limit=_share(config)),
                data.rows(left_out) if validation is None else validation,
                None if known is None else known[drawn],
                feasible_set.select(drawn) if isinstance(feasible_set, SetAt) else feasible_set,
            )
        )
    return samples


def _processes(config: FitConfig) -> int:
    return min(config.members, torch.get_num_threads() if config.jobs is None else config.jobs)


def _share(config: FitConfig) -> float | None:
    """Return the time limit of one member."""
    rounds = -(-config.members // _processes(config))
    return None if config.time_limit is None else config.time_limit / rounds


def side_by_side(fit: Fit, samples: list[Sample], config: FitConfig, stop: Callable[[], bool] | None) -> FitReport:
    """Fit all members, the first in this process, and return their mean in a report."""
    started = time.perf_counter()
    if _processes(config) == 1 or samples[0].model.device.type != "cpu":
        learned = []
        for sample in samples:
            learned.append((sample.model, sample.learn(fit, stop)))
            if stop is not None and stop():
                break
    else:
        learned = _in_processes(fit, samples, _processes(config), stop)
    good = [k for k, (_, report) in enumerate(learned) if report.status != FitStatus.DIVERGED]
    report = replace(learned[good[0] if good else 0][1], seconds=time.perf_counter() - started)
    report.model = average([learned[k][0] for k in good]) if good else samples[0].model
    return report


def _in_processes(
    fit: Fit, samples: list[Sample], processes: int, stop: Callable[[], bool] | None
) -> list[tuple[ConvexSurrogate, FitReport]]:
    from joblib.externals.loky import get_reusable_executor

    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "stop"

        def stopped() -> bool:
            if stop is not None and not mark.exists() and stop():
                mark.touch()  # the others look for it
            return mark.exists()

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a core for each process
        executor = get_reusable_executor(max_workers=processes - 1, env=ONE_THREAD)
        others = [executor.submit(_elsewhere, fit, sample, str(mark)) for sample in samples[1:]]
        try:
            first = samples[0].model, samples[0].learn(fit, stopped if stop is not None else None)
            while not all(other.done() for other in others):
                stopped()
                time.sleep(LOOK_EVERY)
            return [first, *(other.result() for other in others)]
        except BaseException:
            executor.shutdown(kill_workers=True)
            raise
        finally:
            torch.set_num_threads(threads)


def _elsewhere(fit: Fit, sample: Sample, mark: str) -> tuple[ConvexSurrogate, FitReport]:
    """Fit one member in a process of its own."""
    torch.set_num_threads(1)
    report = sample.learn(fit, lambda: Path(mark).exists())
    return sample.model, replace(report, model=None)
