"""How forward passes and solvers of the lift grow with a SOC-ICNN's sizes: the rest of the paper's Experiment 1.

One size at a time departs from `BASE`; convolutional and recurrent models stand beside the dense ones, at the sizes of
the paper's structured tests. Each model has random weights, and each value is found twice: by the forward pass, and as
the optimum of the lift at that x, the theorem's program (`soctk.forms.cone_program`), by Clarabel and SCS on its sparse
data and by CVXPY.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import soctk
from soctk import ConvexSurrogate
from soctk_evaluation.experiments.equivalence import CONTEXT_DIM, evaluate, milliseconds
from soctk_evaluation.experiments.random_weights import move_weights
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.key import SOLVER
from soctk_evaluation.tables.scaling import NEEDED, write_scaling

BASE = {"dim": 50, "width": 64, "depth": 3, "quadratic_rows": 12, "norm_rows": 12}
"""Of dense models: width m, depth L, two quadratic and two norm blocks of so many rows (m_h and k_g)."""
BLOCKS = 2
AXES: dict[str, tuple[int, ...]] = {
    "width": (8, 16, 32, 64, 128, 256),
    "depth": (1, 2, 3, 4, 6, 8),
    "dim": (5, 10, 20, 50, 100, 200),
    "quadratic_rows": (3, 6, 12, 24, 48, 96),
    "norm_rows": (3, 6, 12, 24, 48, 96),
    "side": (4, 8, 16, 24),
    "steps": (5, 10, 20, 40),
}
"""What is varied, and its values: `side` is of the convolutional models' square images, `steps` the recurrent ones'."""
QUICK = 2
"""So many values of each are left of a quick run, the smallest."""
CHANNELS = 4
"""Of trajectories."""
TRIALS = 3
BATCH = 256
TOLERANCE = 1e-8
CLARABEL = {"tol_gap_abs": TOLERANCE, "tol_gap_rel": TOLERANCE, "tol_feas": TOLERANCE, "max_threads": 1}
SOLVERS: dict[str, dict[str, Any]] = {"CLARABEL": CLARABEL, "SCS": {"eps_abs": 1e-6, "eps_rel": 1e-6}}
"""The settings of each solver. SCS is a first-order method, slow to more digits."""


def scaling_cells(asked: Any) -> list[Cell]:
    """Return the cells asked for, large ones first; `asked` is a `soctk_evaluation.cli.commands.Scaling`."""
    cells = []
    for axis in asked.axes:
        for size in AXES[axis][:QUICK] if asked.quick else AXES[axis]:
            config = make_config({"size": size, "trials": TRIALS})
            cells.append(Cell("scaling", axis, dimension(axis, size), family(axis), 0, "values", config))
    return sorted(cells, key=lambda cell: (cell.method == "dense", -dict(cell.config)["size"]))


def dimension(axis: str, size: int) -> int:
    """Return the number of decision variables."""
    return {"side": size**2, "steps": CHANNELS * size, "dim": size}.get(axis, BASE["dim"])


def family(axis: str) -> str:
    """Return which models an axis is of."""
    return {"side": "convolutional", "steps": "recurrent"}.get(axis, "dense")


def make_model(axis: str, size: int) -> ConvexSurrogate:
    """Return the model of a size, its weights random and its values of the order of 1."""
    if axis == "side":
        model: ConvexSurrogate = soctk.ConvSOCICNN((size, size), seed=0)
    elif axis == "steps":
        model = soctk.RecurrentSOCICNN(size, CHANNELS, seed=0)
    else:
        sizes = BASE | {axis: size}
        rows = {"quadratics": (sizes["quadratic_rows"],) * BLOCKS, "norms": (sizes["norm_rows"],) * BLOCKS}
        model = soctk.SOCICNN(sizes["dim"], CONTEXT_DIM, hidden=(sizes["width"],) * sizes["depth"], seed=0, **rows)
    move_weights(model, seed=0)
    return model.eval()


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Return the lift's size, the largest errors over the trials, and median times in milliseconds.

    A solver that fails on any trial has no numbers but the count of its successes.
    """
    torch.set_num_threads(1)
    config = dict(cell.config)
    model = make_model(cell.task, config["size"])
    generator = torch.Generator().manual_seed(1)
    points, contexts = (
        torch.rand(BATCH, count, generator=generator, dtype=torch.float64) for count in (model.dim, model.context_dim)
    )
    trials = [_trial(model, points[index], contexts[index]) for index in range(config["trials"])]
    (batch,) = milliseconds(3, lambda: evaluate(model, points, contexts))
    found: dict[str, Any] = {"params": model.parameter_count, "forward_batch_ms": batch / BATCH}
    for name in trials[0]:
        values = [trial[name] for trial in trials]
        pool = np.median if name.endswith("_ms") else np.sum if name.endswith("_solved") else np.max
        found[name] = float(pool(values)) if None not in values else None
    return found


def _trial(model: ConvexSurrogate, x: Tensor, context: Tensor) -> dict[str, float | None]:
    form = model.conic_form(context).detach()
    program = form.cone_program(x)
    with torch.no_grad():
        value = float(model(x, context))
    runs: Mapping[str, Callable[[], Any]] = {
        "forward_ms": lambda: evaluate(model, x, context),
        "build_ms": lambda: form.cone_program(x),
    }
    found: dict[str, float | None] = {"value": abs(value), "rows": len(program.b), "variables": len(program.q)}
    found |= {"nonzeros": program.A.nnz}
    found |= {name: milliseconds(3, run)[0] for name, run in runs.items()}
    for solver, settings in SOLVERS.items():
        solution, name = program.solve(solver, **settings), solver.lower()
        fine = solution.status == "optimal"
        found |= {
            f"{name}_solved": float(fine),
            f"{name}_ms": 1e3 * solution.seconds if fine else None,
            f"{name}_error": abs(solution.value - value) / max(1.0, abs(value)) if fine else None,
        }

    def through_cvxpy() -> float:
        problem = program.to_cvxpy()
        return float(problem.solve(solver=cp.CLARABEL, **CLARABEL))

    error = abs(through_cvxpy() - value) / max(1.0, abs(value))
    return found | {"cvxpy_ms": milliseconds(1, through_cvxpy)[0], "cvxpy_error": error}


MEASURED = (*NEEDED, "clarabel_ms", "clarabel_error", "scs_ms", "scs_error")
ROOM = "soctk_evaluation.experiments"
EXPERIMENT = Experiment(
    "scaling",
    scaling_cells,
    run_cell,
    MEASURED,
    write_scaling,
    needed=(*NEEDED, "config.size"),
    code=lambda cell: (*SOLVER, f"{ROOM}.equivalence", f"{ROOM}.random_weights"),
    pages=pages("scaling.md", "scaling.svg"),
)
