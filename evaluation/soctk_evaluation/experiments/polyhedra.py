"""Time for a decision over polyhedra with right-hand sides of their own, beside the solvers it replaces: one thread.

Every method decides the same contexts of the same surrogate with random weights, each over its own set
(`soctk_tasks.polyhedra`). CVXPY re-solves one compiled parameterised program with Clarabel; Moreau, a batched conic
solver in C, is called on the cone data of the same lift at each of some batch sizes: made beforehand and not counted;
and once more with what anybody who starts from contexts has to do besides, the coefficients at them.
Putting these into their places is never counted.
Gaps are those of `soctk.certify`, whatever the method.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import soctk
from soctk.decide.lifted import LiftedProblem
from soctk_evaluation.experiments.moreau import BATCHES, MISSING, MoreauBatch
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.key import SOLVER
from soctk_evaluation.tables.polyhedra import write_polyhedra
from soctk_tasks.polyhedra import POLYHEDRA

TOLERANCE = 1e-6
SHAKE = 0.3
CONTEXTS = 1024
ONE_BY_ONE = 5
MEASURED_FOR = 0.3
"""Seconds that a measurement is repeated for; the best counts."""
OWN = (("newton", 1), ("prepared", 1), ("newton", 64), ("newton", CONTEXTS))
MOREAU = ("moreau", "moreau_with_coefficients")
MEASURED = ("decide_ms", "instances", "gap_max", "certified", "violation_max", "iterations")


class Race:
    """A surrogate over one of the polyhedra, and all who decide."""

    def __init__(self, kind: str, name: str) -> None:
        soctk.warmup()  # nothing is decided by an outside solver meanwhile
        self.sets, self.context = POLYHEDRA[name](CONTEXTS)
        p = self.context.shape[1]
        self.model = soctk.make_surrogate(kind, self.sets.dim, p, max_parameters=None, seed=1)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for weight in self.model.parameters():
                noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight.add_(SHAKE * noise * weight.abs().mean().clamp(min=0.1))

    def newton(self, batch: int) -> dict[str, float]:
        """Time `soctk.minimize`."""
        sets, context = self.sets.select(slice(batch)), self.context[:batch]
        return self._measured(lambda: soctk.minimize(self.model, sets, context, tol=TOLERANCE), batch)

    def prepared(self, batch: int) -> dict[str, float]:
        """Time what `soctk.prepare` returns."""
        return self._measured(self.preparing(batch), batch)

    def preparing(self, count: int) -> Callable[[], soctk.Decision]:
        """Return the prepared decision of the first contexts."""
        ready = soctk.prepare(self.model, self.sets.base)
        sides = {name: getattr(self.sets, name)[:count] for name in ("f", "h") if getattr(self.sets, name).ndim > 1}
        return lambda: ready.minimize(self.context[:count], tol=TOLERANCE, **sides)

    def cvxpy_clarabel(self, _: int) -> dict[str, float]:
        """Time CVXPY's re-solve of one context after the other."""
        resolve, points, best = self.resolving(ONE_BY_ONE + 1), [], float("inf")
        for row in range(ONE_BY_ONE + 1):  # the first one compiles the program
            started = time.perf_counter()
            points.append(resolve(row))
            best = min(best, time.perf_counter() - started) if row else best
        return self.quality(torch.stack(points)) | {"decide_ms": 1e3 * best, "instances": ONE_BY_ONE}

    def resolving(self, count: int) -> Callable[[int], Tensor]:
        """Return what re-solves one parameterised program by CVXPY and Clarabel for one of the first contexts."""
        form = self.model.conic_form(self.context[:count]).detach()
        lifted = LiftedProblem(form, self.sets.select(slice(count)).flat((count,)))
        values = [np.asarray(value) for value in lifted.parameter_values(form)]

        def resolve(row: int) -> Tensor:
            assert lifted.rows is not None
            lifted.rows.set_row(row)
            lifted.solve([value[min(row, len(value) - 1)] for value in values], "CLARABEL", {})
            return torch.from_numpy(np.asarray(lifted.x.value, dtype=float))

        return resolve

    def moreau(self, batch: int) -> dict[str, Any]:
        """Time Moreau's solve of a batch of finished cone data."""
        return self._moreau(batch, counted=False)

    def moreau_with_coefficients(self, batch: int) -> dict[str, Any]:
        """Time Moreau's solve of a batch, and the coefficients at the contexts that its cone data are made of."""
        return self._moreau(batch, counted=True)

    def _moreau(self, batch: int, *, counted: bool) -> dict[str, Any]:
        try:
            programs = self.programs(batch)
        except ImportError:
            return MISSING

        def decide() -> Any:
            if counted:
                self.model.conic_form(self.context[:batch])
            return programs.solve()

        seconds, answer = _best(decide)
        return self.quality(programs.points(answer)) | {"decide_ms": 1e3 * seconds / batch, "instances": batch}

    def programs(self, batch: int) -> MoreauBatch:
        """Return the first contexts' finished cone data for Moreau; ImportError where it is not installed."""
        form, sets = self.model.conic_form(self.context[:batch]).detach(), self.sets.flat((CONTEXTS,))
        return MoreauBatch(form, [sets.one(k) for k in range(batch)], TOLERANCE)

    def _measured(self, decide: Callable[[], soctk.Decision], batch: int) -> dict[str, float]:
        seconds, decision = _best(decide)
        steps = float(decision.iterations.double().median())
        return self.quality(decision.x) | {"decide_ms": 1e3 * seconds / batch, "instances": batch, "iterations": steps}

    def quality(self, x: Tensor) -> dict[str, float]:
        """Return what `soctk.certify` says of decisions of the first contexts."""
        sets = self.sets.select(slice(len(x)))
        lower, upper = sets.lower, sets.upper
        certificate = soctk.certify(
            self.model, sets, torch.maximum(torch.minimum(x, upper), lower), self.context[: len(x)]
        )
        gap = certificate.relative_gap
        return {
            "gap_max": float(gap.max()),
            "certified": float((gap <= TOLERANCE).double().mean()),
            "violation_max": float(certificate.violation.max()),
        }


def _best(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least time of repeats, after one run to warm up, and what the last returned."""
    answer, least, begun = run(), float("inf"), time.perf_counter()
    while least == float("inf") or time.perf_counter() - begun < MEASURED_FOR:
        started = time.perf_counter()
        answer = run()
        least = min(least, time.perf_counter() - started)
    return least, answer


def polyhedra_cells(asked: Any) -> list[Cell]:
    """Return the cells asked for; those of a race, which are measured one after the other, come together."""
    others = [("cvxpy_clarabel", 1), *((name, batch) for name in MOREAU for batch in BATCHES)]
    return [
        Cell(
            "polyhedra",
            name,
            POLYHEDRA[name](1)[0].dim,
            method,
            0,
            "exact",
            make_config({"model": kind, "batch": batch}),
        )
        for name in asked.sets
        for kind in asked.models
        for method, batch in (*OWN, *others)
    ]


def _race_of(cell: Cell) -> tuple[str, str]:
    return dict(cell.config)["model"], cell.task


@lru_cache(maxsize=1)
def _race(kind: str, name: str) -> Race:
    return Race(kind, name)


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Measure one method of a race on one thread; return the measurements of `MEASURED`."""
    torch.set_num_threads(1)
    return getattr(_race(*_race_of(cell)), cell.method)(dict(cell.config)["batch"])


NEEDED = ("decide_ms", "config.batch", "config.model")
EXPERIMENT = Experiment(
    "polyhedra",
    polyhedra_cells,
    run_cell,
    MEASURED,
    write_polyhedra,
    needed=NEEDED,
    code=lambda cell: (*SOLVER, "soctk_tasks.polyhedra", "soctk_evaluation.experiments.moreau"),
    together=_race_of,
    pages=pages("polyhedra-timing.md", "polyhedra.svg"),
)
