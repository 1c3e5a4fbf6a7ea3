"""Experiment 1: a SOC-ICNN is the value function of an SOCP. Is it, in floating point?

Each trial takes one model at one point and context and asks, of quantities that were computed independently:

- the forward pass (torch) against the lift's optimum (Clarabel and SCS on sparse data assembled from the coefficients);
- the closed-form dual point against complex-step derivatives of the value in b, e and d (NumPy), against its own
  constraints, and, put into the paper's dual objective (NumPy), against the forward pass;
- the forward pass's z against the lift's rows, and with the closed-form duals in the complementarity conditions;
- the solvers' s, t and multipliers against ||B x + e||^2 / 2, ||A x + d||, the balls and the alignment.

Paper: d = 100, six layers of 256, two quadratic and two conic blocks of 24 rows, with and without passthrough, 150
trials each. Here the biases and contexts are non-zero, and a trained model is tried beside the random ones.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import soctk
from soctk import SOCICNN, ConeSolution, ConicForm, ConvexSurrogate, FitConfig
from soctk.losses import relative_error
from soctk_evaluation.experiments.random_weights import move_weights
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.key import SOLVER, versions_of
from soctk_evaluation.tables.equivalence import NEEDED, write_equivalence
from soctk_tasks import Task, make_task

SIZES: dict[str, Any] = {"dim": 100, "width": 256, "depth": 6, "blocks": 2, "rows": 24, "trials": 30}
SETTINGS = ("passthrough", "no_passthrough")
WEIGHTS = ("random", "trained")
CONTEXT_DIM = 8
VALUE_SCALE = 30.0
"""Brings a random model's values to the order of 100."""
TRAINING = FitConfig(starts=1, epochs=3, lbfgs_iterations=30, level_iterations=20, newton_iterations=0)
TIMED = 3
"""Trials of a cell in which CVXPY is timed too."""
BATCH = 1024
CLARABEL = {"tol_gap_abs": 1e-8, "tol_gap_rel": 1e-8, "tol_feas": 3e-10, "max_threads": 1}
ATTEMPTS: dict[str, tuple[dict[str, Any], ...]] = {
    "CLARABEL": tuple(CLARABEL | {"max_step_fraction": step} for step in (0.95, 0.9, 0.8, 0.7)),
    "SCS": ({"eps_abs": 1e-10, "eps_rel": 0.0, "max_iters": 100_000},),
}
"""Settings tried in turn until a solver calls its answer solved; the number of trials that took more is in the row. The
time is the last attempt's.

Residuals here are absolute; the solvers' relative tolerances would be multiplied by values of several hundred. At such
values Clarabel's residuals stop falling at about 1e-10 and rise again, and a step that jumps past that point ends in
"almost solved": one trial in sixty at the first length. Shorter ones do not."""
COMPLEX_STEP = 1e-30
"""Im f(b + i h g) / h is the derivative along g to rounding: nothing is subtracted (Squire and Trapp 1998)."""


def equivalence_cells(asked: Any, sizes: Mapping[str, int] | None = None) -> list[Cell]:
    """Return the cells asked for, the trained ones first; a trained model is the same for all seeds.

    Args:
        asked: `soctk_evaluation.cli.commands.Equivalence`.
        sizes: departures from `SIZES`.
    """
    config = SIZES | ({"trials": 3} if asked.quick else {}) | dict(sizes or {})
    weights = asked.methods or (("random",) if asked.quick else WEIGHTS)
    seeds = asked.seeds or ((0,) if asked.quick else tuple(range(5)))
    grid = itertools.product(sorted(weights, key=WEIGHTS.index, reverse=True), seeds, asked.settings)
    dim, rest = config["dim"], make_config({name: value for name, value in config.items() if name != "dim"})
    return [Cell("equivalence", setting, dim, kind, seed, "exact", rest) for kind, seed, setting in grid]


def run_cell(cell: Cell, folder: Path | None = None) -> dict[str, Any]:
    """Return the largest and mean value of every diagnostic over the trials of a cell, and times in milliseconds.

    Trained models are kept in `folder` for the other cells of their setting.
    """
    torch.set_num_threads(1)
    config = dict(cell.config)
    model = _model(cell, folder)
    points, contexts = _points(cell, config["trials"])
    found: dict[str, list[float]] = {}
    solved, repeated = dict.fromkeys(ATTEMPTS, 0), dict.fromkeys(ATTEMPTS, 0)
    for index in range(config["trials"]):
        trial = Trial(model, points[index], contexts[index])
        measured = trial.closed_form() | {"value": abs(trial.value)}
        for solver in ATTEMPTS:
            solution, attempts, more = trial.solved(solver)
            solved[solver] += solution.status == "optimal"
            repeated[solver] += attempts > 1 and solution.status == "optimal"
            measured |= more
        if index < TIMED:
            measured |= trial.times()
        for name, value in measured.items():
            found.setdefault(name, []).append(value)
    row: dict[str, Any] = {"params": model.parameter_count, "trials": config["trials"]}
    if cell.method == "trained":
        row["relative_error"] = float(relative_error(model, _task(cell.dim).sample(60, 32, seed=3)))
    for solver in ATTEMPTS:
        row |= {f"{solver.lower()}_successes": solved[solver], f"{solver.lower()}_repeated": repeated[solver]}
    for name, values in found.items():
        if name.endswith("_ms"):
            row[name] = float(np.median(values))
        else:
            row |= {f"{name}_max": float(np.max(values)), f"{name}_mean": float(np.mean(values))}
    return row | _batched_times(model, points, contexts)


class Trial:
    """One model at one point and context, and its coefficients as NumPy arrays."""

    def __init__(self, model: SOCICNN, x: Tensor, context: Tensor) -> None:
        self.model, self.x, self.context = model, x, context
        self.form: ConicForm = model.conic_form(context).detach()
        with torch.no_grad():
            self.value = float(model(x, context))
        self.program = self.form.cone_program(x)
        network = self.form.network
        assert network is not None
        self.widths = network.widths
        self.point = x.numpy()
        self.W, self.b, self.c = (network.coefficients()[name][0].numpy() for name in ("A", "offset", "weights"))
        self.U = [matrix[0].numpy() for name, matrix in network.coefficients().items() if name[0] == "U"]
        (quadratic,), (norm,) = self.form.quadratics, self.form.norms
        self.blocks, self.size = quadratic.blocks, norm.size
        self.B, self.A = (term.map.to_sparse() for term in (quadratic, norm))
        self.e, self.d = (term.offset.reshape(-1).numpy() for term in (quadratic, norm))
        self.alpha, self.lam = (term.weights.reshape(-1).numpy() for term in (quadratic, norm))

    def closed_form(self) -> dict[str, float]:
        """Return the diagnostics of the closed-form primal and dual points."""
        dual = self.form.dual(self.x)
        nu, *rest = (part.reshape(-1).numpy() for part in dual.parts)
        z, a = self._forward()
        w = np.zeros(self.program.q.size)
        for level, part in enumerate(z, start=1):
            w[self.program.variables[f"z{level}"]] = part
        slack = self.program.b - self.program.A @ w
        layers = [self.program.rows[f"{name}{k + 1}"] for k in range(len(z)) for name in ("layer", "active")]
        return {
            "primal_dual_gap": abs(self.value - self._dual_value(nu, rest)),
            "relative_gap": abs(self.value - self._dual_value(nu, rest)) / max(1.0, abs(self.value)),
            "primal_violation": max(0.0, -min(float(slack[rows].min()) for rows in layers)),
            "dual_violation": self._chain_violation(nu) + self._ball_violation(rest),
            "complementarity": self._complementarity(nu, z, a),
            "dual_slope": self._slope_error([nu, *rest]),
        }

    def solved(self, solver: str) -> tuple[ConeSolution, int, dict[str, float]]:
        """Return a solver's solution of the lift, the number of attempts and the diagnostics of it."""
        solution, attempts = self.program.solve(solver, **ATTEMPTS[solver][0]), 1
        for settings in ATTEMPTS[solver][1:]:
            if solution.status == "optimal":
                break
            solution, attempts = self.program.solve(solver, **settings), attempts + 1
        norms, halves = self._norm_arguments(), [0.5 * float(q @ q) for q in self._quadratic_blocks()]
        lengths = [float(np.linalg.norm(u)) for u in norms]
        duals = [part.reshape(-1).numpy() for part in solution.dual.parts]
        balls = duals[2].reshape(len(norms), -1)
        aligned = [
            abs(float(mu @ u) - weight * length)
            for mu, u, weight, length in zip(balls, norms, self.lam, lengths, strict=True)
        ]
        found = {
            "error": abs(solution.value - self.value),
            "gap": abs(solution.value - solution.dual_value),
            "primal_violation": solution.violation,
            "dual_violation": solution.dual_violation,
            "chain_violation": self._chain_violation(duals[0]),
            "ball_violation": max(0.0, float((np.linalg.norm(balls, axis=1) - self.lam).max())),
            "quadratic_tightness": float(np.abs(solution.variables["s"] - halves).max()),
            "norm_tightness": float(np.abs(solution.variables["t"] - lengths).max()),
            "alignment": max(aligned),
            "solve_ms": 1e3 * solution.seconds,
        }
        return solution, attempts, {f"{solver.lower()}_{name}": value for name, value in found.items()}

    def times(self) -> dict[str, float]:
        """Return the times of the ways to this value, one point at a time."""

        def through_cvxpy() -> None:
            x = cp.Variable(self.form.dim)
            problem = cp.Problem(cp.Minimize(self.model.to_cvxpy(x, self.context)), [x == self.point])
            problem.solve(solver=cp.CLARABEL, max_threads=1)

        frozen = soctk.freeze(self.model)
        runs = {
            "forward_ms": (5, lambda: evaluate(self.model, self.x, self.context)),
            "frozen_ms": (5, lambda: evaluate(frozen, self.x, self.context)),
            "dual_ms": (5, lambda: self.form.dual(self.x)),
            "build_ms": (1, lambda: self.form.cone_program(self.x)),
            "cvxpy_ms": (1, through_cvxpy),
        }
        return {name: milliseconds(repeats, run)[0] for name, (repeats, run) in runs.items()}

    # -- the paper's formulas, in NumPy ------------------------------------------------------------------

    def _blocks(self, stacked: np.ndarray) -> list[np.ndarray]:
        return np.split(stacked, np.cumsum(self.widths)[:-1])

    def _forward(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return z_1, ..., z_L from the torch network and the preactivations they must be compared with."""
        network = self.form.network
        assert network is not None
        inner = network.inner(self.x.reshape(1, 1, -1))
        z = [torch.relu(part).reshape(-1).numpy() for part in network.preactivations(inner)]
        affine = self._blocks(self.W @ self.point + self.b)
        a = [affine[0], *(part + U @ below for part, U, below in zip(affine[1:], self.U, z[:-1], strict=True))]
        return z, a

    def _quadratic_blocks(self) -> list[np.ndarray]:
        return np.split(self.B @ self.point + self.e, np.cumsum(self.blocks)[:-1])

    def _norm_arguments(self) -> np.ndarray:
        return (self.A @ self.point + self.d).reshape(-1, self.size)

    def _dual_value(self, nu: np.ndarray, rest: Sequence[np.ndarray]) -> float:
        """Return v'x + b0 + sum nu'(W x + b) + sum [y'(Bx + e) - ||y||^2 / (2 alpha)] + sum mu'(A x + d)."""
        y, mu = rest
        q = np.concatenate(self._quadratic_blocks())
        total = float(self.form.constant) + float(self.form.linear.reshape(-1).numpy() @ self.point)
        total += float(nu @ (self.W @ self.point + self.b)) + float(y @ q) - float(np.sum(y**2 / (2 * self.alpha)))
        return total + float(mu @ self._norm_arguments().reshape(-1))

    def _chain_violation(self, nu: np.ndarray) -> float:
        """Return the violation of 0 <= nu_L <= c and 0 <= nu_l <= U_{l+1}' nu_{l+1}."""
        parts = self._blocks(nu)
        above = [self.c, *(U.T @ outer for U, outer in zip(reversed(self.U), reversed(parts[1:]), strict=True))]
        over = [float((part - bound).max()) for part, bound in zip(reversed(parts), above, strict=True)]
        return max(0.0, float(-nu.min()), *over)

    def _ball_violation(self, rest: Sequence[np.ndarray]) -> float:
        return max(0.0, float((np.linalg.norm(rest[1].reshape(len(self.lam), -1), axis=1) - self.lam).max()))

    def _complementarity(self, nu: np.ndarray, z: list[np.ndarray], a: list[np.ndarray]) -> float:
        """Return the largest |nu_l (z_l - a_l)| and |(U'nu_{l+1} - nu_l) z_l|."""
        parts = self._blocks(nu)
        bounds = [*(U.T @ outer for U, outer in zip(self.U, parts[1:], strict=True)), self.c]
        return max(
            max(float(np.abs(n * (zl - al)).max()), float(np.abs((bound - n) * zl).max()))
            for n, zl, al, bound in zip(parts, z, a, bounds, strict=True)
        )

    def _value(self, offsets: Sequence[np.ndarray]) -> complex:
        """Return the value at the point with other offsets b, e and d, which may be complex."""
        b, e, d = offsets
        parts = self._blocks(self.W @ self.point + b)
        z = _relu(parts[0])
        for part, U in zip(parts[1:], self.U, strict=True):
            z = _relu(part + U @ z)
        q, u = self.B @ self.point + e, (self.A @ self.point + d).reshape(-1, self.size)
        return self.c @ z + 0.5 * self.alpha @ q**2 + self.lam @ np.sqrt((u**2).sum(axis=1))

    def _slope_error(self, dual: Sequence[np.ndarray]) -> float:
        """Return the largest difference between the dual point's and the value's slopes along a random direction.

        The dual point (nu, y, mu) is the gradient of the value in (b, e, d), by the envelope theorem; each of the three
        is moved alone, every entry by plus or minus the step.
        """
        offsets = [self.b, self.e, self.d]
        generator = np.random.default_rng(0)
        worst = 0.0
        for index, part in enumerate(dual):
            along = generator.choice([-1.0, 1.0], size=part.size)
            moved = [
                offset + 1j * COMPLEX_STEP * along if other == index else offset for other, offset in enumerate(offsets)
            ]
            worst = max(worst, abs(float(part @ along) - float(np.imag(self._value(moved))) / COMPLEX_STEP))
        return worst


def _relu(a: np.ndarray) -> np.ndarray:
    return np.where(np.real(a) > 0, a, 0.0)


def _model(cell: Cell, folder: Path | None = None) -> SOCICNN:
    config = dict(cell.config)
    sizes = (cell.dim, config["width"], config["depth"], config["blocks"], config["rows"], cell.task == "passthrough")
    if cell.method == "trained":
        return _trained(folder, *sizes)
    model = _blank(*sizes, seed=cell.seed)
    move_weights(model, cell.seed)  # the quadratics' offsets start at zero
    model.set_standardization(value=(5.0, VALUE_SCALE))
    return model


def _blank(dim: int, width: int, depth: int, blocks: int, rows: int, passthrough: bool, seed: int = 0) -> SOCICNN:
    options = {"quadratics": (rows,) * blocks, "norms": (rows,) * blocks, "passthrough": passthrough, "seed": seed}
    return SOCICNN(dim, CONTEXT_DIM, hidden=(width,) * depth, **options)


def _trained(
    folder: Path | None, dim: int, width: int, depth: int, blocks: int, rows: int, passthrough: bool
) -> SOCICNN:
    """Return a model of the experiment's size fitted to the paper's box_socp objective in this dimension.

    The model is kept in `folder`, under a name that another size, recipe or version of the code would not have.
    """
    sizes = (dim, width, depth, blocks, rows, passthrough)
    versions = versions_of("soc", "box_socp", (__name__,))
    name = hashlib.sha256(repr((sizes, TRAINING, versions)).encode()).hexdigest()[:16]
    kept = None if folder is None else folder / f"trained-{name}.safetensors"
    if kept is not None and kept.is_file():
        return cast(SOCICNN, soctk.load(kept))
    model = _blank(*sizes)
    task = _task(dim)
    soctk.fit(model, task.sample(300, 32, seed=1), TRAINING, validation=task.sample(60, 32, seed=2))
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        soctk.save(model, kept)
    return model


def _task(dim: int) -> Task:
    return make_task("box_socp", dim=dim)


def _points(cell: Cell, count: int) -> tuple[Tensor, Tensor]:
    """Return points and contexts of the trials: random ones, or of the task the model was trained on."""
    generator = torch.Generator().manual_seed(1000 + cell.seed)
    contexts = torch.randn(count, CONTEXT_DIM, generator=generator, dtype=torch.float64)
    if cell.method == "trained":
        return torch.rand(count, cell.dim, generator=generator, dtype=torch.float64), contexts
    return torch.randn(count, cell.dim, generator=generator, dtype=torch.float64), contexts


def _batched_times(model: SOCICNN, points: Tensor, contexts: Tensor) -> dict[str, float]:
    """Return the forward pass's time a point in a batch, and that of its ReLU backbone alone, side by side."""
    rows = torch.arange(BATCH) % len(points)
    x, context = points[rows], contexts[rows]
    backbone = soctk.ReLUICNN(model.dim, CONTEXT_DIM, hidden=model.hidden, passthrough=model.passthrough)
    forward, alone = milliseconds(5, *(partial(evaluate, each, x, context) for each in (model, backbone)))
    return {"forward_batch_ms": forward / BATCH, "backbone_batch_ms": alone / BATCH}


@torch.no_grad()
def evaluate(model: ConvexSurrogate, x: Tensor, context: Tensor) -> None:
    """Take the forward pass."""
    model(x, context)


def milliseconds(repeats: int, *runs: Callable[[], Any]) -> list[float]:
    """Return the least time of each of some runs, taken in turns, after one round to warm up."""
    seconds = []
    for _ in range(1 + repeats):
        marks = [time.perf_counter()]
        for run in runs:
            run()
            marks.append(time.perf_counter())
        seconds.append(np.diff(marks))
    return [1e3 * float(least) for least in np.min(seconds[1:], axis=0)]


MEASURED = (*NEEDED, "relative_error")
SHOWN = (*NEEDED, *(f"config.{name}" for name in ("depth", "width", "blocks", "rows")))
EXPERIMENT = Experiment(
    "equivalence",
    equivalence_cells,
    run_cell,
    MEASURED,
    write_equivalence,
    needed=SHOWN,
    code=lambda cell: (*SOLVER, "soctk_evaluation.experiments.random_weights"),
    pages=pages("equivalence.md", "equivalence.svg"),
)
