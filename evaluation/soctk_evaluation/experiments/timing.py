"""Time for a decision, with its quality beside it: this library and the solvers it replaces, one thread, one process.

Every method decides the same contexts of the same model (a SOC-ICNN, of random weights or learned) over the same set.
A method that decides one context at a time is given a few of them. Warm starts are decisions of contexts that are a
little away, for the methods that take any. Beside each of this library's own times
stands the time that its arithmetic alone would take: its floating-point operations, over the rate of a large matrix
product measured in the same run. Those of products and factorisations follow from the sizes, with symmetric matrices
halved; the others are counted while PyTorch carries out the same steps.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import clarabel  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
import scs
import torch
from torch import Tensor

import soctk
from soctk import ConvexSurrogate, Decision, DecisionLayer, FeasibleSet, FitConfig
from soctk.decide.lifted import LiftedProblem
from soctk_baselines import CvxpyLayerDecider
from soctk_evaluation.experiments.moreau import BATCHES, MISSING, MoreauBatch
from soctk_evaluation.experiments.operations import decision_flops, matrix_product_rate
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.key import SOLVER
from soctk_evaluation.tables.timing import write_timing
from soctk_tasks import make_task

CONTEXT_DIM = 8
SHAKE = 0.1
MODELS = ("compact", "wide", "trained")
TRAINED_ON = {"simplex": "simplex_socp", "box": "box_socp", "budget": "budget_twocone_socp"}
"""The tasks that "trained" models are learned from, by the name of their set."""
TRAINING = FitConfig(starts=1, level_iterations=20)
TRAINING_INSTANCES, TRAINING_CANDIDATES = 400, 64
MOVED = 0.01
"""How far contexts are from those that a warm start is from, in standard deviations."""
TOLERANCE = 1e-6
MOST_CONTEXTS = 2**16
PROCEDURE = 6
"""Counts the ways in which this file has measured: rows of another way are measured again."""
ROUGH_SCS = 1e-3
MEASURED_FOR = 0.2
"""Seconds: what is over sooner is repeated until then, because the best of three is a matter of luck there."""
SETS: dict[str, Callable[[int], FeasibleSet]] = {
    "simplex": soctk.Simplex,
    "box": soctk.Box,
    "budget": lambda dim: soctk.Budget(dim, total=0.3 * dim),
}


@dataclass(frozen=True)
class Measured:
    """What one method took for one decision: seconds, the best of the repeats of so many instances; how good it was.

    `certified` is the share of relative gaps of at most 1e-6; `iterations` are a median; `limit` is the seconds that
    the arithmetic alone would take. NaN where there is none: of derivatives, of others' methods.
    """

    seconds: float
    instances: int
    gap_max: float = float("nan")
    certified: float = float("nan")
    iterations: float = float("nan")
    limit: float = float("nan")


def example(kind: str, dim: int, seed: int = 0) -> ConvexSurrogate:
    """Return a SOC-ICNN with all weights moved at random.

    "compact" is the leaderboard's with every branch on; "wide" has a size as the paper's: a backbone of two layers of
    64 ReLUs, a full quadratic and a full norm.
    """
    if kind == "compact":
        model = soctk.make_surrogate("soc", dim, CONTEXT_DIM, seed=seed)
        model.set_structure(model.structure_count - 1)
    else:
        model = soctk.SOCICNN(dim, CONTEXT_DIM, hidden=(64, 64), quadratics=(dim,), norms=(dim,), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(SHAKE * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model


def trained(name: str, dim: int) -> tuple[ConvexSurrogate, FeasibleSet]:
    """Return the leaderboard's SOC-ICNN, learned from a task whose contexts are standard normal, and the task's set."""
    task = make_task(name, dim=dim, seed=0)
    model = soctk.make_surrogate("soc", dim, task.context_dim, seed=0)
    soctk.fit(model, task.sample(TRAINING_INSTANCES, TRAINING_CANDIDATES, seed=1), TRAINING)
    return model, task.feasible_set


class Race:
    """All methods on one model of `MODELS` and set of `SETS`, the best of so many repeats at least."""

    def __init__(self, model: str, feasible_set: str, dim: int, repeats: int = 3) -> None:
        soctk.warmup()  # nothing is decided by PyTorch meanwhile
        self.dim, self.repeats = dim, repeats
        if model == "trained":
            self.model, self.feasible_set = trained(TRAINED_ON[feasible_set], dim)
        else:
            self.model, self.feasible_set = example(model, dim), SETS[feasible_set](dim)
        self.flops_per_second = matrix_product_rate()

    def contexts(self, count: int, *, moved: bool = False) -> Tensor:
        """Return the first contexts of a fixed sample, or with `moved` others a little away from them."""
        generator = torch.Generator().manual_seed(1)
        size = max(count, MOST_CONTEXTS), self.model.context_dim
        rows = torch.randn(size, generator=generator, dtype=torch.float64)[:count]
        return rows + MOVED * torch.randn(rows.shape, generator=generator, dtype=rows.dtype) if moved else rows

    def best(self, run: Callable[[], Any]) -> tuple[float, Any]:
        """Return the least time of all repeats, after one run to warm up, and what the last returned."""
        answer, least = run(), float("inf")
        for _ in self._repeats(MEASURED_FOR):
            started = time.perf_counter()
            answer = run()
            least = min(least, time.perf_counter() - started)
        return least, answer

    def _repeats(self, seconds: float) -> Iterator[int]:
        """Count the repeats of a measurement: until they have taken so long, `repeats` at least."""
        started = time.perf_counter()
        for repeat in itertools.count():
            if repeat >= self.repeats and time.perf_counter() - started >= seconds:
                return
            yield repeat

    def newton(self, batch: int, *, warm: bool = False) -> Measured:
        """`soctk.minimize` for a whole batch; with `warm` from the decisions of contexts a little away."""
        rows = self.contexts(batch)
        seconds, decision = self._deciding(partial(soctk.minimize, self.model, self.feasible_set), rows, warm)
        own = [_median_iterations(decision)]
        if not warm:
            total = float(decision.iterations.sum())
            flops = decision_flops(lambda: self.model.form_at(rows), self.feasible_set, total, TOLERANCE)
            own.append(flops / self.flops_per_second / batch)
        return _scored(decision.relative_gap, seconds, batch, *own)

    def prepared(self, batch: int, *, warm: bool = False) -> Measured:
        """What `soctk.prepare` returns; with `warm` from the decisions of contexts a little away."""
        ready = soctk.prepare(self.model, self.feasible_set)
        seconds, decision = self._deciding(ready.minimize, self.contexts(batch), warm)
        return _scored(decision.relative_gap, seconds, batch, _median_iterations(decision))

    def _deciding(self, decide: Callable[..., Decision], rows: Tensor, warm: bool) -> tuple[float, Decision]:
        start = decide(self.contexts(len(rows), moved=True), tol=TOLERANCE) if warm else None
        return self.best(lambda: decide(rows, tol=TOLERANCE, x0=start))

    def layer(self, batch: int) -> Measured:
        """`soctk.DecisionLayer`, forward and backward; of the few decisions without a derivative forward alone."""
        rows = self.contexts(batch).requires_grad_()
        layer = DecisionLayer(self.model, self.feasible_set, skip_undefined=True)

        def run() -> None:
            layer(rows).square().sum().backward()

        return Measured(self.best(run)[0] / batch, batch)

    def _lifted(self, count: int, *, moved: bool = False) -> tuple[LiftedProblem, list[np.ndarray]]:
        """Return one parameterised program and its parameters' values at so many contexts."""
        form = self.model.conic_form(self.contexts(max(count, 2), moved=moved)).detach()
        lifted = LiftedProblem(form, self.feasible_set)
        return lifted, [tensor.numpy() for tensor in lifted.parameter_values(form)]

    def resolving(self, solver: str, count: int) -> Callable[[], Tensor]:
        """Return what re-solves one compiled DPP program of CVXPY, one context at a time."""
        lifted, values = self._lifted(count)

        def run() -> Tensor:
            answers = []
            for row in range(count):
                lifted.solve([value[row] for value in values], solver, {})
                answers.append(torch.from_numpy(np.array(lifted.x.value)))
            return torch.stack(answers)

        return run

    def cvxpy(self, solver: str, count: int) -> Measured:
        """CVXPY re-solving one compiled DPP program, one context at a time."""
        seconds, x = self.best(self.resolving(solver, count))
        return self._certified(x, seconds, count)

    def finished(
        self, solver: str, count: int, *, moved: bool = False
    ) -> Iterator[tuple[dict[str, Any], Callable[[Any], Tensor]]]:
        """Yield, for each context, the cone data that CVXPY gives a solver and what makes a decision of its answer."""
        lifted, values = self._lifted(count, moved=moved)
        for row in range(count):
            for parameter, value in zip(lifted.parameters, values, strict=True):
                parameter.value = value[row]
            data, chain, inverse = lifted.problem.get_problem_data(solver, solver_opts={})

            def decided(answer: Any, chain: Any = chain, inverse: Any = inverse) -> Tensor:
                lifted.problem.unpack_results(answer, chain, inverse)
                return torch.from_numpy(np.array(lifted.x.value))

            yield data, decided

    def direct(self, solver: str, count: int, *, warm: bool = False) -> Measured:
        """The solver called on the cone data that CVXPY gives it, made beforehand: its own solve time alone.

        With `warm` it begins at its own answer for a context a little away: SCS alone can.
        """
        total, answers = 0.0, []
        before = (
            [solve_directly(solver, data)[0] for data, _ in self.finished(solver, count, moved=True)] if warm else []
        )
        for row, (data, decided) in enumerate(self.finished(solver, count)):
            least, solution = float("inf"), None
            for _ in self._repeats(MEASURED_FOR / count):
                solution, seconds = solve_directly(solver, data, before[row] if warm else None)
                least = min(least, seconds)
            total += least
            answers.append(decided(solution))
        return self._certified(torch.stack(answers), total, count)

    def programs(self, batch: int) -> MoreauBatch:
        """Return finished cone data for Moreau; ImportError where it is not installed."""
        form = self.model.conic_form(self.contexts(batch)).detach()
        return MoreauBatch(form, [self.feasible_set] * batch, TOLERANCE)

    def moreau(self, batch: int) -> Measured:
        """Moreau's solve of a batch of finished cone data; ImportError where it is not installed."""
        programs = self.programs(batch)
        seconds, answer = self.best(programs.solve)
        return self._certified(programs.points(answer), seconds, batch)

    def layering(self, count: int, *, backward: bool) -> Callable[[], Tensor]:
        """Return what decides by a cvxpylayers layer on the same lift, whose derivatives are in the context."""
        decider = CvxpyLayerDecider(self.model, self.feasible_set)
        rows = self.contexts(count).requires_grad_()

        def run() -> Tensor:
            x = decider.layer(rows, weights=False)
            if backward:
                x.square().sum().backward()
            return x.detach()

        return run

    def cvxpylayers(self, count: int, *, backward: bool) -> Measured:
        """A cvxpylayers layer."""
        seconds, x = self.best(self.layering(count, backward=backward))
        return Measured(seconds / count, count) if backward else self._certified(x, seconds, count)

    def _certified(self, x: Tensor, seconds: float, count: int) -> Measured:
        """Project the answers to the set and certify them: infeasibility is not rewarded."""
        points = self.feasible_set.project(x)
        certificate = soctk.certify(self.model, self.feasible_set, points, self.contexts(count))
        return _scored(certificate.relative_gap, seconds, count)


def _median_iterations(decision: Decision) -> float:
    return float(decision.iterations.double().median())


def _scored(gap: Tensor, seconds: float, count: int, *own: float) -> Measured:
    return Measured(seconds / count, count, float(gap.max()), float((gap <= TOLERANCE).double().mean()), *own)


def solve_directly(solver: str, data: dict[str, Any], start: Any = None) -> tuple[Any, float]:
    """Return the answer of CLARABEL or SCS to CVXPY's data for it, and its own seconds; SCS from an earlier answer."""
    return _direct_clarabel(data) if solver == "CLARABEL" else _direct_scs(data, start)


def _direct_clarabel(data: dict[str, Any]) -> tuple[Any, float]:
    from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import CLARABEL, dims_to_solver_cones

    settings = clarabel.DefaultSettings()  # pyright: ignore[reportAttributeAccessIssue]
    settings.verbose = False
    P = data["P"] if data.get("P") is not None else np.zeros((0, 0))
    program = (P, data["c"], data["A"], data["b"], dims_to_solver_cones(data[CLARABEL.DIMS]))
    solution = clarabel.DefaultSolver(*program, settings).solve()  # pyright: ignore[reportAttributeAccessIssue]
    return solution, solution.solve_time


def _direct_scs(data: dict[str, Any], start: dict[str, Any] | None) -> tuple[Any, float]:
    from cvxpy.reductions.solvers.conic_solvers.scs_conif import SCS, dims_to_solver_dict

    arguments = {name: data[name] for name in ("A", "b", "c")}
    if data.get("P") is not None:
        arguments["P"] = data["P"]
    options: dict[str, Any] = {"verbose": False, "eps_abs": ROUGH_SCS, "eps_rel": ROUGH_SCS}
    given = {"warm_start": False} if start is None else {name: start[name] for name in ("x", "y", "s")}
    solution = scs.SCS(arguments, dims_to_solver_dict(data[SCS.DIMS]), **options).solve(**given)
    return solution, solution["info"]["solve_time"] / 1000


ONE_BY_ONE = (
    *("cvxpy_clarabel", "cvxpy_scs", "clarabel", "scs_1e-3", "scs_1e-3_warm"),
    *("cvxpylayers", "cvxpylayers_backward"),
)
OTHERS = (*((name, 1) for name in ONE_BY_ONE), *(("moreau", batch) for batch in BATCHES))
MEASURED = ("decide_ms", "instances", "gap_max", "certified", "iterations", "limit_ms")
"""The measurements in a row."""


def timing_cells(asked: Any) -> list[Cell]:
    """Return the cells asked for; those of a race, which are measured side by side, come together."""
    methods = ("newton", "newton_warm", "layer")
    own = [("prepared", 1), ("prepared_warm", 1), *itertools.product(methods, asked.batches)]
    cells = []
    for dim, model, name in itertools.product(asked.dims, asked.models, asked.sets):
        config = {"model": model, "count": asked.count, "procedure": PROCEDURE}
        for method, batch in (*own, *OTHERS):
            cells.append(Cell("timing", name, dim, method, 0, "exact", make_config(config | {"batch": batch})))
    return cells


def _race_of(cell: Cell) -> tuple[str, str, int]:
    return dict(cell.config)["model"], cell.task, cell.dim


@lru_cache(maxsize=1)
def _race(model: str, feasible_set: str, dim: int) -> Race:
    return Race(model, feasible_set, dim)


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Measure one method of a race on one thread; return the measurements of `MEASURED`."""
    torch.set_num_threads(1)
    race, config = _race(*_race_of(cell)), dict(cell.config)
    count, batch = config["count"], config["batch"]
    runs: dict[str, Callable[[], Measured]] = {
        "newton": lambda: race.newton(batch),
        "prepared": lambda: race.prepared(batch),
        "newton_warm": lambda: race.newton(batch, warm=True),
        "prepared_warm": lambda: race.prepared(batch, warm=True),
        "layer": lambda: race.layer(batch),
        "cvxpy_clarabel": lambda: race.cvxpy("CLARABEL", count),
        "cvxpy_scs": lambda: race.cvxpy("SCS", count),
        "clarabel": lambda: race.direct("CLARABEL", count),
        "scs_1e-3": lambda: race.direct("SCS", count),
        "scs_1e-3_warm": lambda: race.direct("SCS", count, warm=True),
        "cvxpylayers": lambda: race.cvxpylayers(count, backward=False),
        "cvxpylayers_backward": lambda: race.cvxpylayers(count, backward=True),
        "moreau": lambda: race.moreau(batch),
    }
    try:
        measured = asdict(runs[cell.method]())
    except ImportError:
        if cell.method != "moreau":
            raise
        return MISSING
    times = {"decide_ms": 1000 * measured.pop("seconds"), "limit_ms": 1000 * measured.pop("limit")}
    return measured | times


NEEDED = ("decide_ms", "config.batch", "config.model")
MODULES = ("soctk_evaluation.experiments.moreau", "soctk_evaluation.experiments.operations")
CODE = (*SOLVER, "soctk_baselines.cvxpy_layer", *MODULES)
# The ratios of a race belong together.
EXPERIMENT = Experiment(
    "timing",
    timing_cells,
    run_cell,
    MEASURED,
    write_timing,
    needed=NEEDED,
    code=lambda cell: CODE,
    together=_race_of,
    pages=pages("timing.md", "timing.svg"),
)
