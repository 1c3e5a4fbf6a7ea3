"""Time for a decision by batch size, on the processor and on a GPU, beside a batched conic solver on each.

The same models, sets and contexts as `timing`'s. Moreau is called on finished cone data of the same lift, as there; a
large batch repeats the data of `DISTINCT` contexts, since those of all of them would take minutes to make.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

import soctk
from soctk_evaluation.experiments.moreau import MISSING, MoreauBatch
from soctk_evaluation.experiments.race import RACE, TOLERANCE, Measured, Race
from soctk_evaluation.experiments.timing import SETS, contexts_of, example
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.key import SOLVER
from soctk_evaluation.tables.devices import write_devices

DISTINCT = 256
NO_GPU = {"status": "not installed: a GPU that PyTorch can use"}
MEASURED = ("decide_ms", "instances", "gap_max", "certified", "iterations")
METHODS = (
    *("processor", "processor_threads", "gpu", "gpu_single"),
    *("processor_layer", "gpu_layer", "moreau", "moreau_gpu"),
)


class DeviceRace(Race):
    """A race of one model, moved to a device with its contexts.

    Args:
        kind: "compact" or "wide", as `timing.example`'s.
        name: of the set.
        dim: n.
        device: "cpu" or "cuda".
        dtype: of weights and contexts.
    """

    def __init__(self, kind: str, name: str, dim: int, device: str, dtype: torch.dtype = torch.float64) -> None:
        self.device = device
        model = example(kind, dim).to(device, dtype)
        super().__init__(model, SETS[name](dim), contexts_of(model).to(device, dtype))

    def best(self, run: Callable[[], Any]) -> tuple[float, Any]:
        """Return the least time until the device has done all, and what the last run returned."""

        def whole() -> Any:
            answer = run()
            if self.device != "cpu":
                torch.cuda.synchronize()
            return answer

        return super().best(whole)

    def newton(self, batch: int, *, warm: bool = False) -> Measured:
        """`Race.newton` without the floating-point operations, which are not counted on a GPU."""
        decide = [partial(soctk.minimize, self.model, self.sets_of(batch))]
        seconds, x, iterations = self._deciding(decide, [slice(0, batch)], warm)
        return self.judged(x, seconds, iterations=float(iterations.double().median()))

    def moreau_on(self, batch: int, device: str) -> Measured:
        """Moreau's solve of finished cone data on a device, at least a batch; ImportError where it is not installed."""
        distinct = min(batch, DISTINCT)
        copies = -(-batch // distinct)
        form = self.model.conic_form(self.contexts(distinct)).detach()
        sets = [self.sets_of(1)] * distinct
        programs = MoreauBatch(form, sets, TOLERANCE, device=device, copies=copies)
        seconds, answer = self.best(programs.solve)
        return self.judged(programs.points(answer)[:distinct], seconds / copies)


def devices_cells(asked: Any) -> list[Cell]:
    """Return the cells asked for, those of a race one after the other; each is stored alone, so that none is lost."""
    cells = []
    for dim, model, name in itertools.product(asked.dims, asked.models, asked.sets):
        for method, batch in itertools.product(METHODS, asked.batches):
            cells.append(Cell("devices", name, dim, method, 0, "exact", make_config({"model": model, "batch": batch})))
    return cells


def _race_of(cell: Cell) -> tuple[str, str, int]:
    return dict(cell.config)["model"], cell.task, cell.dim


_race = lru_cache(maxsize=3)(DeviceRace)


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Measure one method of a race; return the measurements of `MEASURED`.

    The processor works on one thread, or on one a core; a GPU has one thread beside it.
    """
    method, batch, race_of = cell.method, dict(cell.config)["batch"], _race_of(cell)
    on_gpu = "gpu" in method
    if on_gpu and not torch.cuda.is_available():
        return NO_GPU
    threads, device = os.cpu_count() or 1 if method == "processor_threads" else 1, "cuda" if on_gpu else "cpu"
    torch.set_num_threads(threads)
    try:
        if method.startswith("moreau"):
            measured = _race(*race_of, "cpu").moreau_on(batch, device)
        else:
            dtype = torch.float32 if method == "gpu_single" else torch.float64
            race = _race(*race_of, device, dtype)
            measured = race.layer(batch) if method.endswith("layer") else race.newton(batch)
    except ImportError:
        if not method.startswith("moreau"):
            raise
        return MISSING
    finally:
        torch.set_num_threads(1)
    return {name: asdict(measured)[name] for name in MEASURED}


EXPERIMENT = Experiment(
    "devices",
    devices_cells,
    run_cell,
    MEASURED,
    write_devices,
    text=("config.model",),
    needed=("decide_ms", "config.batch", "config.model"),
    code=lambda cell: (*SOLVER, *RACE, "soctk_evaluation.experiments.timing"),
    pages=pages("gpu-timing.md", "devices.svg"),
)
