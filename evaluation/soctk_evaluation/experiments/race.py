"""Who decides the same contexts of one model side by side, on one thread: this library and the solvers it replaces.

The set is one for all contexts, or has right-hand sides of its own for each (`SetAt`). CVXPY re-solves one compiled DPP
program; solvers called directly and Moreau get the cone data of that same lift, made beforehand and not counted.
Every answer is projected to its set and certified: what leaves the set is not rewarded.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import soctk
from soctk import ConvexSurrogate, Decision, DecisionLayer, FeasibleSet
from soctk.decide.lifted import LiftedProblem
from soctk.sets import SetAt
from soctk.sets.at import NAMES
from soctk_baselines import CvxpyLayerDecider
from soctk_evaluation.experiments.direct import solve_directly
from soctk_evaluation.experiments.moreau import MISSING, MoreauBatch
from soctk_evaluation.experiments.operations import decision_flops, matrix_product_rate

RACE = (
    *(f"soctk_evaluation.experiments.{name}" for name in ("race", "direct", "moreau", "operations", "random_weights")),
    "soctk_baselines.cvxpy_layer",
)
"""The source of a race's measurements."""
TOLERANCE = 1e-6
MOVED = 0.01
"""How far contexts are from those that a warm start is from, in standard deviations."""
MEASURED_FOR = 0.2
"""Seconds: what is over sooner is repeated until then, because the best of three is a matter of luck there."""


@dataclass(frozen=True)
class Measured:
    """What one method took for one decision: the best of the repeats of so many instances; how good it was.

    NaN where there is none: of derivatives, of others' methods.

    Attributes:
        decide_ms: for one decision.
        instances: decided in a repeat.
        gap_max: the largest relative gap.
        certified: share of relative gaps of at most `TOLERANCE`.
        violation_max: of a constraint by an answer as it came.
        iterations: their median.
        limit_ms: what the arithmetic alone would take, at the rate of a large matrix product.
    """

    decide_ms: float
    instances: int
    gap_max: float = float("nan")
    certified: float = float("nan")
    violation_max: float = float("nan")
    iterations: float = float("nan")
    limit_ms: float = float("nan")


class Race:
    """One model over one set, or over one for each context, and all who decide.

    Args:
        model: the surrogate.
        sets: the set, or sets of as many contexts.
        contexts: (N, p) float64, of which methods decide the first few.
        repeats: of a measurement, at least.
    """

    def __init__(
        self, model: ConvexSurrogate, sets: FeasibleSet | SetAt, contexts: Tensor, *, repeats: int = 3
    ) -> None:
        soctk.warmup()  # nothing is decided by PyTorch or an outside solver meanwhile
        self.model, self.sets, self.repeats, self._contexts = model, sets, repeats, contexts

    def contexts(self, count: int, *, moved: bool = False) -> Tensor:
        """Return the first contexts, or with `moved` others a little away from them; ValueError at too many."""
        if count > len(self._contexts):
            raise ValueError(f"batch: expected at most {len(self._contexts)}, as there are contexts, got {count}")
        rows = self._contexts[:count]
        if not moved:
            return rows.clone()
        return rows + MOVED * torch.randn(rows.shape, generator=torch.Generator().manual_seed(2), dtype=rows.dtype)

    def sets_of(self, count: int) -> FeasibleSet | SetAt:
        """Return the set of the first contexts, or theirs."""
        return self._sets_at(slice(count))

    def _sets_at(self, part: slice) -> FeasibleSet | SetAt:
        return self.sets.select(part) if isinstance(self.sets, SetAt) else self.sets

    # -- measuring -----------------------------------------------------------------------------------------

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

    def judged(self, x: Tensor, seconds: float = float("nan"), **own: float) -> Measured:
        """Return how good answers to the first contexts are, (count, n), and what all of them took."""
        count, sets = len(x), self.sets_of(len(x))
        violation = sets.violation(x)
        gap = soctk.certify(self.model, sets, sets.project(x), self.contexts(count)).relative_gap
        share = float((gap <= TOLERANCE).double().mean())
        return Measured(1e3 * seconds / count, count, float(gap.max()), share, float(violation.max()), **own)

    # -- this library --------------------------------------------------------------------------------------

    def newton(self, batch: int, batches: int = 1, *, warm: bool = False) -> Measured:
        """`soctk.minimize` for whole batches in turn; with `warm` from the decisions of contexts a little away."""
        parts = _parts(batch, batches)
        decide = [partial(soctk.minimize, self.model, self._sets_at(part)) for part in parts]
        seconds, x, iterations = self._deciding(decide, parts, warm)
        own = {"iterations": float(iterations.median())}
        if not warm and isinstance(self.sets, FeasibleSet):
            form = partial(self.model.form_at, self.contexts(len(x)))
            flops = decision_flops(form, self.sets, float(iterations.sum()), TOLERANCE)
            own["limit_ms"] = 1e3 * flops / self._flops_per_second / len(x)
        return self.judged(x, seconds, **own)

    def prepared(self, batch: int, batches: int = 1, *, warm: bool = False) -> Measured:
        """What `soctk.prepare` returns; with `warm` from the decisions of contexts a little away."""
        parts = _parts(batch, batches)
        seconds, x, iterations = self._deciding(self.preparing(parts), parts, warm)
        return self.judged(x, seconds, iterations=float(iterations.median()))

    def preparing(self, parts: Sequence[slice]) -> list[Callable[..., Decision]]:
        """Return the prepared decision of parts of the contexts, each of which takes them and `minimize`'s options."""
        if not isinstance(self.sets, SetAt):
            return [soctk.prepare(self.model, self.sets).minimize] * len(parts)
        prepared = soctk.prepare(self.model, self.sets.base).minimize
        sides = {name: side for name, side in zip(NAMES, self.sets.sides, strict=True) if side.ndim > 1}
        return [partial(prepared, **{name: side[part] for name, side in sides.items()}) for part in parts]

    def _deciding(
        self, decide: Sequence[Callable[..., Decision]], parts: Sequence[slice], warm: bool
    ) -> tuple[float, Tensor, Tensor]:
        """Return the seconds that all parts of the contexts take in turn, the decisions, and their iterations."""
        count = parts[-1].stop
        moved, rows = self.contexts(count, moved=True), self.contexts(count)
        calls = [
            partial(one, rows[part], tol=TOLERANCE, x0=one(moved[part], tol=TOLERANCE) if warm else None)
            for one, part in zip(decide, parts, strict=True)
        ]
        seconds, decisions = self.best(lambda: [call() for call in calls])
        return seconds, torch.cat([each.x for each in decisions]), torch.cat([each.iterations for each in decisions])

    def layer(self, batch: int, batches: int = 1) -> Measured:
        """`soctk.DecisionLayer`, forward and backward; of the few decisions without a derivative forward alone."""
        parts = _parts(batch, batches)
        rows = [self.contexts(parts[-1].stop)[part].requires_grad_() for part in parts]
        layers = [DecisionLayer(self.model, self._sets_at(part), skip_undefined=True) for part in parts]

        def run() -> None:
            for layer, row in zip(layers, rows, strict=True):
                layer(row).square().sum().backward()

        count = batch * batches
        return Measured(1e3 * self.best(run)[0] / count, count)

    @cached_property
    def _flops_per_second(self) -> float:
        return matrix_product_rate()

    # -- others --------------------------------------------------------------------------------------------

    def _lifted(self, count: int, *, moved: bool = False) -> tuple[LiftedProblem, Callable[[int], list[np.ndarray]]]:
        """Return one parameterised program, and what puts it at one of so many contexts and returns its parameters."""
        count = max(count, 2)
        form, sets = self.model.conic_form(self.contexts(count, moved=moved)).detach(), self.sets_of(count)
        lifted = LiftedProblem(form, sets)
        values = [tensor.numpy() for tensor in lifted.parameter_values(form)]

        def place(row: int) -> list[np.ndarray]:
            if lifted.rows is not None:
                lifted.rows.set_row(row)
            return [value[min(row, len(value) - 1)] for value in values]

        return lifted, place

    def resolving(self, solver: str, count: int) -> Callable[[], Tensor]:
        """Return what re-solves one compiled DPP program of CVXPY, one context at a time."""
        lifted, place = self._lifted(count)

        def run() -> Tensor:
            answers = []
            for row in range(count):
                lifted.solve(place(row), solver, {})
                answers.append(torch.from_numpy(np.array(lifted.x.value, dtype=float)))
            return torch.stack(answers)

        return run

    def cvxpy(self, solver: str, count: int) -> Measured:
        """CVXPY re-solving one compiled DPP program, one context at a time."""
        seconds, x = self.best(self.resolving(solver, count))
        return self.judged(x, seconds)

    def finished(
        self, solver: str, count: int, *, moved: bool = False
    ) -> Iterator[tuple[dict[str, Any], Callable[[Any], Tensor]]]:
        """Yield, for each context, the cone data that CVXPY gives a solver and what makes a decision of its answer."""
        lifted, place = self._lifted(count, moved=moved)
        for row in range(count):
            for parameter, value in zip(lifted.parameters, place(row), strict=True):
                parameter.value = value
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
        return self.judged(torch.stack(answers), total)

    def programs(self, part: slice) -> MoreauBatch:
        """Return finished cone data for Moreau of a part of the contexts; ImportError where it is not installed."""
        form, sets = self.model.conic_form(self.contexts(part.stop)[part]).detach(), self.sets
        each = [sets.one(row) if isinstance(sets, SetAt) else sets for row in range(part.start, part.stop)]
        return MoreauBatch(form, each, TOLERANCE)

    def moreau(self, batch: int, batches: int = 1, *, coefficients: bool = False) -> Measured:
        """Moreau's solve of batches of finished cone data in turn; ImportError where it is not installed.

        With `coefficients` those at the contexts are computed besides, as anybody has to who starts from contexts;
        to put them into their places in the cone data is not counted.
        """
        parts = _parts(batch, batches)
        work = [(self.programs(part), self.contexts(part.stop)[part]) for part in parts]

        def run() -> list[Any]:
            answers = []
            for programs, rows in work:
                if coefficients:
                    self.model.conic_form(rows)
                answers.append(programs.solve())
            return answers

        seconds, answers = self.best(run)
        points = [programs.points(answer) for (programs, _), answer in zip(work, answers, strict=True)]
        return self.judged(torch.cat(points), seconds)

    def layering(self, count: int, *, backward: bool) -> Callable[[], Tensor]:
        """Return what decides by a cvxpylayers layer on the same lift, whose derivatives are in the context."""
        assert isinstance(self.sets, FeasibleSet)
        decider = CvxpyLayerDecider(self.model, self.sets)
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
        return Measured(1e3 * seconds / count, count) if backward else self.judged(x, seconds)


def measure(race: Race, method: str, batch: int, count: int, names: Sequence[str]) -> dict[str, Any]:
    """Return the named measurements of one method: of a batch, or of `count` contexts one after the other."""
    batches = count if batch == 1 else 1
    runs: dict[str, Callable[[], Measured]] = {
        "newton": lambda: race.newton(batch, batches),
        "prepared": lambda: race.prepared(batch, batches),
        "newton_warm": lambda: race.newton(batch, batches, warm=True),
        "prepared_warm": lambda: race.prepared(batch, batches, warm=True),
        "layer": lambda: race.layer(batch, batches),
        "cvxpy_clarabel": lambda: race.cvxpy("CLARABEL", count),
        "cvxpy_scs": lambda: race.cvxpy("SCS", count),
        "clarabel": lambda: race.direct("CLARABEL", count),
        "scs_1e-3": lambda: race.direct("SCS", count),
        "scs_1e-3_warm": lambda: race.direct("SCS", count, warm=True),
        "cvxpylayers": lambda: race.cvxpylayers(count, backward=False),
        "cvxpylayers_backward": lambda: race.cvxpylayers(count, backward=True),
        "moreau": lambda: race.moreau(batch, batches),
        "moreau_with_coefficients": lambda: race.moreau(batch, batches, coefficients=True),
    }
    try:
        measured = asdict(runs[method]())
    except ImportError:
        if not method.startswith("moreau"):
            raise
        return MISSING
    return {name: measured[name] for name in names}


def _parts(batch: int, batches: int) -> list[slice]:
    """Return where the contexts of each batch are."""
    return [slice(k * batch, (k + 1) * batch) for k in range(batches)]
